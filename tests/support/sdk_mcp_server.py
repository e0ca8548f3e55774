"""An MCP server for the 2026-07-28 protocol: `python sdk_mcp_server.py [PORT]`."""

import os
import sys
from typing import Annotated, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

server = MCPServer("modern", instructions="Adds and asks.")
READ_ONLY = ToolAnnotations(read_only_hint=True)


class Consent(BaseModel):
    agreed: bool


class Guest(BaseModel):
    name: str = Field(title="Full name", min_length=2)
    age: int = Field(default=18, ge=0)
    meal: Literal["fish", "rice"] = "rice"


def ask() -> Elicit[Consent]:
    return Elicit("Delete everything?", Consent)


def ask_guest() -> Elicit[Guest]:
    return Elicit("Who comes?", Guest)


@server.tool(annotations=READ_ONLY)
def add(left: int, right: int) -> int:
    """Adds two numbers."""
    return left + right


@server.tool()
def delete_all(consent: Annotated[Consent, Resolve(ask)]) -> str:
    """Deletes everything, if the user agrees."""
    return "deleted" if consent.agreed else "kept"


@server.tool()
def invite(
    guest: Annotated[Guest, Resolve(ask_guest)], consent: Annotated[Consent, Resolve(ask)]
) -> str:
    """Asks two questions concurrently."""
    return f"{guest.name}, {guest.age}, {guest.meal}, {consent.agreed}"


@server.tool(annotations=READ_ONLY)
def pid() -> str:
    """Returns the number of the server's process."""
    return str(os.getpid())


@server.tool(annotations=READ_ONLY)
async def report(context: Context) -> str:
    """Reports progress and writes to the log."""
    await context.report_progress(1, 2, "half")
    # The protocol deprecates logs, but servers still write them.
    warn = context.warning  # type: ignore[deprecated]  # pyright: ignore[reportDeprecated]
    await warn({"cache": "cold"}, logger_name="modern")
    return "reported"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
