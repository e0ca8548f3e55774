"""An MCP server for the 2025-11-25 protocol, without an SDK, that misbehaves on request.

Run it as `python plain_mcp_server.py FOLDER`. It appends its calls to `FOLDER/calls`. If
`FOLDER/tools.json` exists, it replaces the list of tools.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

type Json = dict[str, object]


def tool(name: str, properties: Json | None = None, /, **annotations: bool) -> Json:
    schema = {"type": "object", "properties": properties or {}}
    return {
        "name": name,
        "description": f"Does {name}.",
        "inputSchema": schema,
        "annotations": annotations,
    }


TEXT: Json = {"text": {"type": "string"}}
TOOLS: list[Json] = [
    tool("append", TEXT),
    tool("ask", readOnlyHint=True),
    tool("content"),
    tool("die"),
    tool("die_once", idempotentHint=True),
    tool("echo", TEXT, readOnlyHint=True),
    tool("elicit", TEXT),
    tool("elicit_and_go", TEXT),
    tool("elicit_and_refuse", TEXT),
    tool("elicit_later", TEXT),
    tool("environment", readOnlyHint=True),
    tool("fail", TEXT),
    tool("hang"),
    tool("large", readOnlyHint=True),
    tool("lines", readOnlyHint=True),
    tool("measure", readOnlyHint=True) | {"outputSchema": {"type": "object", "required": ["size"]}},
    tool("mismeasure", readOnlyHint=True)
    | {"outputSchema": {"type": "object", "required": ["size"]}},
    tool("mutate", TEXT),
    tool("pid", readOnlyHint=True),
    tool("progress", readOnlyHint=True),
    tool("recall", readOnlyHint=True),
    tool("refuse", TEXT),
    tool("remember", TEXT),
    tool("rubbish", readOnlyHint=True),
]


def main(folder: Path) -> None:
    server = Server(folder)
    for line in sys.stdin:
        if (response := server.respond(json.loads(line))) is not None:
            send(response)


class Server:
    """Responds to messages; its tools are methods that return a text or a result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.request: object = None
        self.token: object = None
        self.remembered: list[str] = []

    def respond(self, message: Any) -> Json | None:  # Any: JSON of the protocol
        """Returns the response to a request, or `None` for a notification."""
        match message.get("method"):
            case "initialize":
                self.note("starts", "x")
                self.note("capabilities", json.dumps(message["params"]["capabilities"]))
                self.note("client", json.dumps(message["params"]["clientInfo"]))
                result: Json = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}, "logging": {}},
                    "serverInfo": {"name": "plain", "version": "1"},
                    "instructions": "Costs are in $ and ${CREDITS}.",
                }
            case "tools/list":
                self.note("lists", "x")
                listing = self.folder / "tools.json"
                tools = json.loads(listing.read_text()) if listing.exists() else TOOLS
                if (self.folder / "dies-listing").exists():
                    (self.folder / "dies-listing").unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
                result = self.page(tools, message.get("params") or {})
            case "tools/call":
                params = message["params"]
                name, text = params["name"], str(params["arguments"].get("text", ""))
                self.note("calls", f"{name} {text}\n")
                self.token = params.get("_meta", {}).get("progressToken")
                if name == "elicit_and_refuse":
                    self.elicit(text)
                    text = "Not like that."
                if name in {"refuse", "elicit_and_refuse"}:
                    error = {"code": -32000, "message": text}
                    return {"id": message["id"], "error": error}
                self.request = message["id"]
                answer = getattr(self, name)(text)
                if answer is None:
                    return None
                content = [{"type": "text", "text": answer}]
                result = {"content": content} if isinstance(answer, str) else answer
            case None:  # an answer to a request of ours
                self.note("responses", json.dumps(message["result"]) + "\n")
                return None
            case str(method) if "id" in message:
                return {"id": message["id"], "error": {"code": -32601, "message": f"no {method}"}}
            case _:
                return None
        return {"id": message["id"], "result": result}

    def page(self, tools: list[Json], params: Json) -> Json:
        """Returns all tools, or one tool per page, for as many pages as the file `pages` says."""
        if not (self.folder / "pages").exists():
            return {"tools": tools}
        index = int(str(params.get("cursor", 0)))
        more = index + 1 < int((self.folder / "pages").read_text())
        page: Json = {"tools": tools[index : index + 1]}
        return page | {"nextCursor": f"{index + 1}"} if more else page

    def mutate(self, text: str) -> str:
        changed = [
            tool | {"description": text} if tool["name"] == "echo" else tool for tool in TOOLS
        ]
        (self.folder / "tools.json").write_text(json.dumps(changed))
        send({"method": "notifications/tools/list_changed"})
        return "changed"

    def note(self, file: str, text: str) -> None:
        (self.folder / file).parent.mkdir(exist_ok=True)
        with (self.folder / file).open("a") as lines:
            lines.write(text)

    def append(self, text: str) -> str:
        self.note("data/lines", text + "\n")
        return self.lines("")

    def lines(self, _: str) -> str:
        path = self.folder / "data/lines"
        return path.read_text() if path.exists() else ""

    def ask(self, _: str) -> str:
        send({"id": "q", "method": "sampling/createMessage", "params": SAMPLING})
        return sys.stdin.readline()

    def content(self, _: str) -> Json:
        return {"content": CONTENT}

    def die(self, text: str) -> NoReturn:
        self.append(text)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def die_once(self, text: str) -> str:
        if not (self.folder / "died").exists():
            (self.folder / "died").touch()
            self.die(text)
        return "alive"

    def echo(self, text: str) -> str:
        return text

    def elicit(self, params: str) -> str:
        send({"id": "q", "method": "elicitation/create", "params": json.loads(params)})
        return sys.stdin.readline()

    def elicit_and_go(self, params: str) -> str:
        send({"id": "q", "method": "elicitation/create", "params": json.loads(params)})
        while not (self.folder / "asked").exists():
            time.sleep(0.01)
        return "gone"

    def elicit_later(self, params: str) -> None:
        """Answers the call, and asks once the file `ended` says that the call has ended."""
        send({"id": self.request, "result": {"content": [{"type": "text", "text": "later"}]}})
        while not (self.folder / "ended").exists():
            time.sleep(0.01)
        send({"id": "q", "method": "elicitation/create", "params": json.loads(params)})
        self.note("asked-later", sys.stdin.readline())

    def environment(self, _: str) -> str:
        return json.dumps(dict(os.environ))

    def fail(self, text: str) -> Json:
        return {"content": [{"type": "text", "text": self.append(text)}], "isError": True}

    def hang(self, text: str) -> NoReturn:
        if text == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (self.folder / "hangs").write_text(str(os.getpid()))
        while True:
            self.append(text)
            time.sleep(0.01)

    def large(self, _: str) -> Json:
        text = "x" * 2_000_000
        return {"content": [{"type": "text", "text": text}], "structuredContent": {"text": text}}

    def measure(self, _: str) -> Json:
        return {"content": [{"type": "text", "text": '{"size": 1}'}], "structuredContent": SIZE}

    def mismeasure(self, text: str) -> Json:
        return {"content": [], "structuredContent": {"length": 1, "unit": text}}

    def pid(self, _: str) -> str:
        return str(os.getpid())

    def progress(self, text: str) -> Json:
        half = {"progressToken": self.token, "progress": 1, "total": 2, "message": text or "half"}
        log = {"level": "warning", "logger": "plain", "data": text or {"cache": "cold"}}
        if text == "bare":
            half, log = {"progressToken": self.token, "progress": 1}, {"level": "info", "data": ""}
        send({"method": "notifications/progress", "params": half})
        send({"method": "notifications/message", "params": log})
        return {"content": []}

    def recall(self, _: str) -> str:
        return " ".join(self.remembered)

    def remember(self, text: str) -> str:
        self.remembered.append(text)
        self.append(text)
        return self.recall("")

    def rubbish(self, text: str) -> str:
        print("Starting up... {not json", flush=True)  # noqa: T201
        return text


SIZE: Json = {"size": 1}
SAMPLING: Json = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Say something."}}],
    "maxTokens": 5,
}
PIXEL = "iVBORw0KGgo="  # the part of a picture that determines its type
CONTENT: list[Json] = [
    {"type": "text", "text": "A text."},
    {"type": "image", "mimeType": "image/png", "data": PIXEL},
    {"type": "image", "mimeType": "image/png", "data": "AAAA"},
    {"type": "audio", "mimeType": "audio/wav", "data": "not base64"},
    {"type": "resource_link", "name": "log", "uri": "file:///log"},
    {"type": "resource", "resource": {"uri": "file:///a", "text": "Inside."}},
    {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "a/b", "blob": "AAAA"}},
]


def send(message: Json) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
