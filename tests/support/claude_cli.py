"""The Claude adapter with the SDK's real CLI, against a scripted server."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from support.scripted_server import Call, Request, ScriptedServer
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter

KEY = "sk-ant-marked-0123456789"
MODEL = "claude-sonnet-4-5"
NOWHERE = "http://127.0.0.1:9"


# Any: options of all types.
def connect(server: ScriptedServer | None, **changes: Any) -> ClaudeAgentSDKAdapter:
    """Returns an adapter for the server, or for one that is not there, without thinking."""
    url = NOWHERE if server is None else server.url
    arguments: dict[str, Any] = {"base_url": url, "api_key": KEY, "max_retries": 0, **changes}
    arguments["options"] = {"thinking": {"type": "disabled"}, **changes.get("options", {})}
    return ClaudeAgentSDKAdapter(MODEL, **arguments)


# Any: arguments, well-formed or not.
def mcp(name: str, arguments: Any = None, server: str = "wink") -> Call:
    """Returns a call of one of our tools, with the name that the CLI gives it."""
    return Call(f"mcp__{server}__{name}", {} if arguments is None else arguments)


def results(request: Request) -> list[str]:
    """Returns the tools' results in the last message, without the reminders that the CLI adds."""
    blocks = request.json["messages"][-1]["content"]
    contents = [block["content"] for block in blocks if block["type"] == "tool_result"]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


def cli_pids() -> list[int]:
    """Returns the ids of this process's children that are CLIs."""
    pids: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            pids += (thread / "children").read_text().split()
    return [int(pid) for pid in pids if "claude" in _command(pid)]


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has ended
        return ""
