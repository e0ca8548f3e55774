"""However a run ends while an approval is pending, nothing is left and the next run works."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from support import suspended_chat
from support.agents import Note
from support.suspended_chat import AFTER, BEFORE, make, turn
from weakincentives.evaluation.approval import Approve, Decision, Preview
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

KINDS = ["effects", "arguments", "nested"]


def files_in(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def sessions_in(database: Path) -> list[str]:
    """Reads the table, and writes to it, which fails immediately if another process has a lock."""
    with closing(sqlite3.connect(database, timeout=0)) as store, store:
        store.execute("BEGIN EXCLUSIVE")
        return [row[0] for row in store.execute("SELECT snapshot FROM sessions")]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["SIGKILL", "SIGINT", "answer"])
def test_process_that_ends_during_approval_leaves_no_effects(
    tmp_path: Path, ending: str, kind: str
) -> None:
    folder, database, temporary = tmp_path / "folder", tmp_path / "chat.db", tmp_path / "temporary"
    make(folder, database)
    temporary.mkdir()
    library = Path(sys.modules["weakincentives"].__file__ or "").parents[1]
    command = [sys.executable, "-m", "support.suspended_chat", str(folder), str(database), kind]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": str(library), "PATH": "", "TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == "asked\n"
            assert files_in(folder) == BEFORE
            assert sessions_in(database) == []
            if ending == "answer":
                process.stdin.write("yes\n")
                process.stdin.flush()
            else:
                process.send_signal(getattr(signal, ending))
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                if ending == "SIGINT":  # Python misses a signal just before it waits
                    process.send_signal(signal.SIGINT)
        finally:
            process.kill()
    if ending == "answer":
        assert (process.returncode, files_in(folder)) == (0, AFTER)
        assert len(sessions_in(database)) == 1
    else:
        assert process.returncode != 0
        assert files_in(folder) == BEFORE
        assert sessions_in(database) == []
    assert list(temporary.iterdir()) == []
    assert turn(folder, database, kind, lambda _: Approve()) == "done"
    assert files_in(folder) == AFTER
    [stored] = sessions_in(database)
    assert "edited" in stored


@pytest.mark.parametrize("kind", KINDS)
def test_run_cancelled_during_approval_leaves_no_effects(tmp_path: Path, kind: str) -> None:
    make(tmp_path / "folder", tmp_path / "chat.db")
    folder = tmp_path / "folder"
    # A plain handler would run in a thread, which a cancellation would have to wait for.
    asked = suspended_chat.chat_prompt(folder, "nested async" if kind == "nested" else kind)
    calls = [call(("delegate", {}))] if kind == "nested" else []
    inside = [say("inside") for _ in calls]
    session = Session()
    session.declare(Note)
    before = session.snapshot().to_json()

    async def cancel() -> None:
        waits = asyncio.Event()

        async def decide(preview: Preview) -> Decision:
            waits.set()
            decision: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
            return await decision

        loop = MainLoop(ScriptedAdapter([*calls, call(("edit", {}))]))
        running = asyncio.ensure_future(loop.execute_async(asked, session=session, approver=decide))
        await waits.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    assert files_in(folder) == BEFORE
    assert session.snapshot().to_json() == before
    loop = MainLoop(ScriptedAdapter([*calls, call(("edit", {})), *inside, say("done")]))
    execution = loop.execute(asked, session=session, approver=lambda _: Approve())
    assert execution.text == "done"
    assert files_in(folder) == AFTER
