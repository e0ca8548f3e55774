"""`wink mcp`: lock MCP servers, see how they change, and serve a prompt."""

import asyncio
import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from typer import Argument, Exit, Option, Typer

from .. import serde
from ..contrib.mcp.lock import (
    LockError,
    ServerLock,
    differences,
    lock_folder,
    lock_path,
    lock_text,
    read_lock,
    write_lock,
)
from ..contrib.mcp.server_errors import ServerError
from ..contrib.mcp.state import UndoVerdict, probe_undo
from ..displays import count_of
from ..errors import SerdeError, missing_extra
from ..prompt.external_schemas import upgrade_dialect
from ..prompt.tool import MAX_DESCRIPTION
from ..redaction import Redactor, credentials_in
from ..serde import Json
from ..serde.validation import check_schema
from .printing import printable
from .target import Params, Set, Tag, Target, UsageError, load_prompt

__all__ = ["app"]

app = Typer(no_args_is_help=True, help="Lock MCP servers, see their changes, serve a prompt.")
Name = Annotated[str, Argument(help="Your name for the server: a-z, 0-9 and '-'.")]
Names = Annotated[list[str] | None, Argument(help="Servers; by default, all with a lock file.")]
Command = Annotated[
    list[str] | None, Argument(help="After --, the command that starts the server.")
]
Url = Annotated[str | None, Option(help="The URL of a server over HTTP.")]
Header = Annotated[list[str] | None, Option(help="A header for --url, NAME: VALUE. Repeatable.")]
Env = Annotated[list[str] | None, Option(help="A variable that the server receives. Repeatable.")]
Cwd = Annotated[str | None, Option(help="The working directory of the command.")]
Folder = Annotated[Path, Option(help="The folder of the server's data.")]
Change = Annotated[str, Option(help="A call that changes it: tool name and JSON arguments.")]
Read = Annotated[str, Option(help="A call that reads it.")]
Timeout = Annotated[float, Option(help="Seconds to wait for a server.")]

_VERDICTS: dict[UndoVerdict, str] = {
    "undone": "the server sees that its folder was restored",
    "cached": "the server keeps the undone change in memory; do not rely on folder=",
    "unseen": "reading does not show the change; choose another call for --read or --change",
}


@app.command()
def lock(
    name: Name,
    command: Command = None,
    *,
    url: Url = None,
    header: Header = None,
    env: Env = None,
    cwd: Cwd = None,
    timeout: Timeout = 30,
) -> None:
    """Start or connect to a server, and write its tools to its lock file for review.

    Without a command or --url, uses the ones in the lock file. Write '${NAME}' instead of a secret:
    it is replaced by the variable NAME each time the server is started or contacted.
    """
    path = lock_path(name)
    if command or url:
        server = ServerLock(
            name=name,
            command=tuple(command) if command else None,
            url=url,
            headers=dict(_header(text) for text in header or ()),
            env=tuple(env or ()),
            cwd=cwd,
        )
    else:
        server = read_lock(path)
    _refuse_secrets(replace(server, tools=()))
    live = _live(server, timeout)
    _refuse_secrets(live)
    with suppress(LockError):  # the file does not exist or was edited
        _print(f"{difference}" for difference in differences(read_lock(path), live))
    write_lock(path, live)
    for tool in live.tools:
        try:
            check_schema(upgrade_dialect(tool.input_schema))
        except SerdeError as error:
            problem = f"its input is not a valid {error}; exclude it with exclude="
            _print([f"tool {tool.name!r} cannot be called because {problem}"])
        if (length := len(tool.description.strip())) > MAX_DESCRIPTION:
            limit = f"and the limit for a tool is {MAX_DESCRIPTION:,}"
            place = "the section's text contains the full description"
            _print(
                [f"tool {tool.name!r} has a description of {length:,} characters, {limit}; {place}"]
            )
    _print([f"{count_of(len(live.tools), 'tool')} of {name} in {path}"])


@app.command()
def diff(names: Names = None, *, timeout: Timeout = 30) -> None:
    """Print the differences between servers and their lock files."""
    for name in names or _some_locked():
        server = read_lock(lock_path(name))
        _print(f"{name}: {found}" for found in differences(server, _live(server, timeout)))


@app.command()
def check(names: Names = None, *, timeout: Timeout = 30) -> None:
    """Compare servers with their lock files. Exits with 1 if there is a difference."""
    differ = False
    for name in names or _some_locked():
        server = read_lock(lock_path(name))
        try:
            lines = [f"{found}" for found in differences(server, _live(server, timeout))]
        except ServerError as error:
            lines = [f"{error}"]
        _print([f"{name}: {line}" for line in lines or [count_of(len(server.tools), "tool")]])
        differ = differ or bool(lines)
    if differ:
        raise Exit(1)


@app.command("list")
def list_() -> None:
    """Print the servers that have a lock file."""
    for name in _locked():
        server = read_lock(lock_path(name))
        start = server.url or " ".join(server.command or ())
        tools, text = count_of(len(server.tools), "tool"), f"{len(lock_text(server)):,} characters"
        version = f"{server.server_name} {server.server_version}".strip()
        _print([f"{name}: {version}, {tools}, {text}: {start}"])


@app.command()
def probe(name: Name, *, folder: Folder, change: Change, read: Read) -> None:
    """Test whether a server notices that its folder was restored. Exits with 1 if it does not.

    At the end, the folder is in its original state.
    """
    server = read_lock(lock_path(name))
    verdict = probe_undo(
        server, folder, change=_call("--change", change), read=_call("--read", read)
    )
    _print([f"{name}: {verdict}: {_VERDICTS[verdict]}"])
    if verdict != "undone":
        raise Exit(1)


@app.command()
def serve(target: Target, *, params: Params = None, set_: Set = None, tag: Tag = None) -> None:
    """Serve a prompt's tools to an MCP client over standard input and output."""
    with _sdk():
        from ..contrib.mcp.serve import serve_stdio
    with redirect_stdout(sys.stderr):  # standard output is reserved for the protocol
        prompt = load_prompt(target, params, set_, tag)
    asyncio.run(serve_stdio(prompt))


def _locked() -> list[str]:
    return sorted(path.stem for path in lock_folder().glob("*.json"))


def _some_locked() -> list[str]:
    """Returns the locked servers; raises `UsageError` if there are none in this folder."""
    if names := _locked():
        return names
    raise UsageError(f"no server is locked in '{lock_folder()}'; run wink mcp lock NAME -- COMMAND")


def _live(server: ServerLock, timeout: float) -> ServerLock:
    """Returns the server's current tools as a lock; raises `ServerError` on a timeout."""
    with _sdk():
        from ..contrib.mcp.client import open_server

    async def look() -> ServerLock:
        async with asyncio.timeout(timeout), open_server(server, lambda _: None) as opened:
            return opened.lock

    try:
        return asyncio.run(look())
    except TimeoutError:
        message = f"MCP server {server.name!r} lists no tools within {timeout:g} seconds"
        raise ServerError(message) from None


@contextmanager
def _sdk() -> Generator[None]:
    """Reports the missing extra if an import inside the block needs the SDK."""
    try:
        yield
    except ImportError as error:
        raise missing_extra("An MCP server", "mcp", "mcp") from error


def _call(option: str, text: str) -> tuple[str, dict[str, Json]]:
    tool, _, arguments = text.partition(" ")
    try:
        return tool, serde.parse_json(dict[str, Json], arguments or "{}")
    except SerdeError as error:
        raise UsageError(f"{option} must be 'TOOL {{JSON}}': {error}") from error


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise UsageError("--header must be NAME: VALUE, such as 'Authorization: Bearer ${KEY}'")
    return name.strip(), value.strip()


def _refuse_secrets(server: ServerLock) -> None:
    """Raises `UsageError` if the lock file would contain a secret."""
    text = lock_text(server)
    for name, value in os.environ.items():
        if Redactor(tuple(credentials_in({name: value})))(text) != text:
            raise UsageError(
                f"the lock file must not contain the value of {name}; write '${{{name}}}' instead "
                "of it"
            )
    words = server.command or ()
    named = [word.partition("=")[::2] for word in words]
    named += [(flag, word) for flag, word in pairwise(words) if flag.startswith("-")]
    for name, value in [*named, *server.headers.items()]:
        if "${" not in value and Redactor(tuple(credentials_in({name: value})))(value) != value:
            raise UsageError(
                f"the lock file must not contain the secret {name!r}; write '${{NAME}}' instead "
                "of its value, and set the variable NAME"
            )
    if server.url is not None and urlsplit(server.url).password:
        raise UsageError("--url must not contain a password; write '${NAME}' instead of it")


def _print(texts: Iterable[str]) -> None:
    sys.stdout.writelines(f"{printable(text)}\n" for text in texts)
