"""Makes calls whose handlers write state and files, each with a real SIGINT at a random moment:
`PROGRAM FOLDER SEED`.

Fails at the first call that was neither completely undone nor completely done. Prints the number of
interrupted calls.
"""

import logging
import random
import signal
import sys
from pathlib import Path
from time import perf_counter

from support.agents import Args, Note, prompt, tool
from support.sizes import FULL
from weakincentives.evaluation.effects import run
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.messages import ToolCall
from weakincentives.evaluation.tool_executor import ToolExecutor, same_adapter
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.events import Operation
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter

CALLS = 600 if FULL else 200
SECONDS = 8.0  # at least; it ends once enough calls have been interrupted
ENOUGH = 21
BEFORE = {"a": b"1", "b/c": b"2"}
AFTER = {"b/c": b"changed", "d/e": b"new"}


def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
    files = context.resources.get(Filesystem)
    files.delete("a")
    files.write_text("b/c", "changed")
    files.write_text("d/e", "new")
    context.session.dispatch(Note("written"))
    if params.a:
        raise ToolFailedError
    return ToolResult("ok")


class ToolFailedError(Exception):
    """Raised by the handler."""


class Alarm:
    """Raises SIGINT while it is armed; one that arrives after the call is ignored."""

    armed = False

    @classmethod
    def ring(cls, *_: object) -> None:
        if cls.armed:
            cls.armed = False
            signal.raise_signal(signal.SIGINT)


def main(root: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - not a secret
    session, interrupted, started = Session(), 0, perf_counter()
    files = HostFilesystem(root)
    asked = prompt(tool(handler)).bind(resources={Filesystem: files})

    def found() -> dict[str, bytes]:
        return {
            entry.path: files.read_bytes(entry.path)
            for entry in files.walk()
            if entry.kind == "file"
        }

    with asked.resources:
        executor = ToolExecutor(
            prompt=asked,
            rendered=asked.render(session=session),
            adapter=same_adapter(ScriptedAdapter([])),
            config=RunConfig(),
            session=session,
            publish=lambda _: None,
            operation=Operation(bus=session.bus, kind="evaluation", name="n"),
        )
        usual = 1.0
        for number in range(CALLS):
            if perf_counter() - started > SECONDS and interrupted >= ENOUGH:
                break
            for path in found().keys() - BEFORE.keys():
                files.delete(path)
            for path, data in BEFORE.items():
                files.write_bytes(path, data)
            session[Note].clear()
            fails = number % 4 > 0
            delay = (
                0.0 if number < 8 else rng.uniform(usual / 100, usual * 1.1)
            )  # the first ones show how long a call takes
            done, began = False, perf_counter()
            try:
                Alarm.armed = True
                signal.setitimer(signal.ITIMER_REAL, delay)
                outcome = run(
                    executor.execute(ToolCall(str(number), "probe", f'{{"a": {int(fails)}}}'))
                )
                done = outcome.success
                Alarm.armed = False
            except KeyboardInterrupt:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if number < 8:
                usual = min(usual, perf_counter() - began)
            left = (found(), [note.text for note in session[Note].all()])
            if left not in (
                [(AFTER, ["written"])]
                if done
                else [(BEFORE, []), (AFTER, ["written"])][: 2 - fails]
            ):
                raise SystemExit(
                    f"call {number} ({fails=}, {done=}) was interrupted after {delay} s "
                    f"and left {left}"
                )
    files.close()
    sys.stdout.write(f"{interrupted}\n")


if __name__ == "__main__":
    logging.disable()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, Alarm.ring)
    main(Path(sys.argv[1]), int(sys.argv[2]))
