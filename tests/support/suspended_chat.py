"""A turn of a chat over a folder, with a session kept in SQLite, whose call is pending approval:
`PROGRAM FOLDER DATABASE APPROVAL`.

Prints `asked` when the approver is asked, and blocks until a line arrives: `yes` approves.
"""

import signal
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.agents import Args, Note, prompt, tool
from weakincentives.evaluation.approval import Approve, Approver, Decision, Deny, Preview
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import Prompt, ToolContext, ToolResult
from weakincentives.prompt.approval_rules import ApprovalMode
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

BEFORE = {"a.txt": "old\n", "b/c.txt": "kept\n"}
AFTER = {"a.txt": "new\n", "b/c.txt": "kept\n", "d/e.txt": "more\n"}


def edit(params: Args, *, context: ToolContext) -> ToolResult[object]:
    files = context.resources.get(Filesystem)
    files.write_text("a.txt", "new\n")
    files.write_text("d/e.txt", "more\n")
    context.session.dispatch(Note("edited"))
    return ToolResult("edited")


def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
    files = context.resources.get(Filesystem)
    context.session.dispatch(Note("delegates"))
    inner = editing("effects").bind(resources={Filesystem: files})
    return ToolResult(context.evaluate(inner).text)


async def delegate_async(params: Args, *, context: ToolContext) -> ToolResult[object]:
    files = context.resources.get(Filesystem)
    context.session.dispatch(Note("delegates"))
    inner = editing("effects").bind(resources={Filesystem: files})
    return ToolResult((await context.evaluate_async(inner)).text)


def editing(approval: str) -> Prompt[Any]:
    mode: ApprovalMode = "arguments" if approval == "arguments" else "effects"
    return prompt(replace(tool(edit, name="edit"), approval=mode))


def chat_prompt(folder: Path, kind: str) -> Prompt[Any]:
    """Returns a chat's prompt whose call needs approval, or runs a prompt whose call does."""
    asked = editing(kind)
    if kind.startswith("nested"):
        handler = delegate_async if kind == "nested async" else delegate
        asked = prompt(tool(handler, name="delegate"))
    return asked.bind(resources={Filesystem: HostFilesystem(folder)})


def turn(folder: Path, database: Path, kind: str, approver: Approver) -> str:
    """Runs a turn from the stored session, stores the session, and returns the answer."""
    asked = chat_prompt(folder, kind)
    calls = [call(("delegate", {}))] if kind == "nested" else []
    replies = [*calls, call(("edit", {})), *[say("inside") for _ in calls], say("done")]
    session = Session()
    session.declare(Note)
    with closing(sqlite3.connect(database)) as store, store:
        rows = store.execute("SELECT snapshot FROM sessions").fetchall()
    for (snapshot,) in rows:
        session.restore(session.parse_snapshot(snapshot))
    chat = Chat(MainLoop(ScriptedAdapter(replies)), asked, session=session)
    answer = chat.send("Edit it.", approver=approver)
    with closing(sqlite3.connect(database, timeout=0)) as store, store:
        store.execute("DELETE FROM sessions")
        store.execute("INSERT INTO sessions VALUES (?)", [session.snapshot().to_json()])
    return answer.text


def make(folder: Path, database: Path) -> None:
    """Creates the folder and the database as they are before the turn."""
    for name, text in BEFORE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with closing(sqlite3.connect(database)) as store, store:
        store.execute("CREATE TABLE sessions (snapshot TEXT)")


def ask(preview: Preview) -> Decision:
    """Asks the process that started this one."""
    sys.stdout.write("asked\n")
    sys.stdout.flush()
    return Approve() if sys.stdin.readline() == "yes\n" else Deny()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
    turn(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], ask)
