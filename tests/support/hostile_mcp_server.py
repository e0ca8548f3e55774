"""An MCP server over stdio that floods its client: too large, too many and too deep messages.

Run it as `python hostile_mcp_server.py FOLDER`, like the plain server whose tools it replaces.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has its own folder there

from support.plain_mcp_server import Json, Server, send, tool

TOOLS: list[Json] = [
    tool(name, {"text": {"type": "string"}}, readOnlyHint=True)
    for name in (
        *("blocks", "child", "deep", "echo", "huge", "log", "mute_pings", "nested", "newlines"),
        *("pings", "questions", "same_ping", "table"),
    )
]


class HostileServer(Server):
    """A server whose tools flood the client; `text` is usually the amount."""

    def respond(self, message: Any) -> Json | None:  # Any: JSON of the protocol
        if message.get("method") == "tools/list":
            return {"id": message["id"], "result": {"tools": TOOLS}}
        return super().respond(message)

    def blocks(self, text: str) -> Json:
        return {"content": [{"type": "text", "text": ""}] * int(text)}

    def nested(self, text: str) -> Json:
        return {"content": [], "structuredContent": {"rows": [[[]]] * int(text)}}

    def table(self, text: str) -> Json:
        rows = [{"name": "a, [b] {c}", "price": row} for row in range(int(text))]
        return {"content": [], "structuredContent": {"rows": rows}}

    def deep(self, text: str) -> None:
        inside = "[" * int(text) + "]" * int(text)
        result = f'{{"content":[],"structuredContent":{{"rows":{inside}}}}}'
        write(f'{{"jsonrpc":"2.0","id":{json.dumps(self.request)},"result":{result}}}\n')

    def huge(self, text: str) -> Json:
        return {"content": [{"type": "text", "text": "\\,[{" * (int(text) // 5)}]}

    def log(self, text: str) -> str:
        data = {"level": "info", "data": "x" * 5_000}
        for _ in range(int(text)):
            send({"method": "notifications/message", "params": data})
        return "logged"

    def pings(self, _: str) -> NoReturn:
        self.flood(json.dumps({"jsonrpc": "2.0", "id": "%s", "method": "ping"}), answered=True)

    def mute_pings(self, _: str) -> NoReturn:
        self.flood(json.dumps({"jsonrpc": "2.0", "id": "%s", "method": "ping"}))

    def same_ping(self, _: str) -> NoReturn:
        self.flood(json.dumps({"jsonrpc": "2.0", "id": "same", "method": "ping"}))

    def questions(self, _: str) -> NoReturn:
        form = {"message": "x" * 100_000, "requestedSchema": {"type": "object", "properties": {}}}
        question = {"jsonrpc": "2.0", "id": "%s", "method": "elicitation/create", "params": form}
        self.flood(json.dumps(question), answered=True)

    def newlines(self, _: str) -> NoReturn:
        self.flood("")

    def flood(self, line: str, *, answered: bool = False) -> NoReturn:
        """Writes a line forever; another process reads the answers, or none does."""
        if answered and os.fork() == 0:
            while os.read(0, 65536):
                pass
            os._exit(0)
        lines = 0
        while True:
            batch = range(lines, lines + 1000)
            write("".join([(line % n if "%s" in line else line) + "\n" for n in batch]))
            lines += 1000

    def child(self, text: str) -> str:
        """Starts a process that never ends by itself; with `ignore`, it ignores SIGTERM."""
        ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" * bool(text)
        program = f"{ignore}import time; print(flush=True); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert process.stdout
        process.stdout.readline()
        return str(process.pid)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    server = HostileServer(Path(sys.argv[1]))
    for received in sys.stdin:
        if (response := server.respond(json.loads(received))) is not None:
            send(response)
