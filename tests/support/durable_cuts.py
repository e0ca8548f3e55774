"""Runs trees as durable runs, whose processes crash at the appends to their log.

The oracle is `play` of `support.cut_runs`: the run that was never cut. A crash drops the process
with its session and files, so files are not compared.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from support.agents import Note
from support.cut_runs import Face, Outcome, Process, decide, message_of, outcome
from support.durable_runs import Job, Json
from support.run_trees import PICTURE, Outside, Tree
from weakincentives.content import Part
from weakincentives.contrib.durable import (
    MemoryLogTable,
    durable,
    execute_run,
    execute_run_async,
    to_input,
    to_resumed,
)
from weakincentives.contrib.durable.agent import AnyAgent
from weakincentives.contrib.durable.execution import to_execution
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.stored_log import LogTable, Row
from weakincentives.evaluation.suspension import Suspension
from weakincentives.limits import TokenUsage
from weakincentives.runtime.session import Session

INPUT = to_input(Job("it"))


class CrashError(BaseException):
    """Raised where the process crashes."""


class Crash(NamedTuple):
    """A process crashes at this append, counted from its start, before or after it is stored."""

    append: int
    after: bool


class CrashingTable:
    """Passes calls to another table until the process crashes."""

    def __init__(self, table: LogTable, crash: Crash | None) -> None:
        self.table, self.crash = table, crash
        self.begin, self.transact = table.begin, table.transact
        self.appends = 0

    def append(self, run_id: str, attempt: int, rows: Sequence[Row], *, first: bool) -> None:
        self.appends += 1
        dies = self.crash is not None and self.appends >= self.crash.append
        if dies and not (self.crash and self.crash.after and self.appends == self.crash.append):
            raise CrashError
        self.table.append(run_id, attempt, rows, first=first)
        if dies:
            raise CrashError


def _agent(process: Process) -> AnyAgent:
    content = process.out.content
    return durable(
        process.loop,
        lambda: process.prompt,
        types=[Note],
        session=lambda run_id: Session(session_id=run_id, content=content),
    )


def perform(
    agent: AnyAgent,
    table: LogTable,
    run_input: Json = INPUT,
    face: Face = "evaluate",
    *,
    run_id: str = "run",
    events: list[Any] | None = None,  # Any: events with any output type
) -> Json:
    """Performs an attempt in one of four ways and returns its result; streams fill `events`."""
    given, tell = through_json(run_input), None
    if face.startswith("stream"):
        tell = (events if events is not None else []).append
    if face.endswith("async"):
        running = execute_run_async(agent, given, table, run_id, progress=tell)
        return through_json(asyncio.run(running))
    return through_json(execute_run(agent, given, table, run_id, progress=tell))


def through_json(value: Json) -> Json:
    return json.loads(json.dumps(value))


def _message(tree: Tree, number: int, out: Outside) -> str | Sequence[Part]:
    message = message_of(tree, number)
    return message if isinstance(message, str) else [message[0], out.content.put(PICTURE)]


def play_durable(
    tree: Tree,
    out: Outside,
    *,
    table: LogTable | None = None,
    faces: Sequence[Face] = ("evaluate",),
    crashes: Iterable[Crash] = (),
    decides_all: bool = True,
    prefix: str = "run",
) -> Outcome:
    """Runs a tree to its end, each message as a durable run, in as many processes as that takes.

    Each process uses the next of `faces` and of `crashes`. Calls are not approved during a process:
    the next one begins with the decisions on all pending calls or on the first.
    """
    table, left, lives = table or MemoryLogTable(), list(crashes), 0
    process, conversation = Process(tree, out), None
    answers, usage = list[str](), TokenUsage()
    for number in range(len(tree.scripts)):
        given = to_input(
            message=_message(tree, number, out), session=process.session, conversation=conversation
        )
        run_id = f"{prefix}-{number}"
        part = run_id
        while True:
            agent, face = _agent(process), faces[lives % len(faces)]
            lives += 1
            assert lives < 1000, (
                "the run does not end"
            )  # it has 100 turns, with suspensions in each
            crashing = CrashingTable(table, left.pop(0) if left else None)
            try:
                result = perform(agent, crashing, given, face, run_id=part)
            except CrashError:
                process = Process(tree, out)
                continue
            if "suspension" not in result:
                break
            out.suspensions += 1
            pending = Suspension.from_json(result["suspension"]).pending
            decided = pending if decides_all else pending[:1]
            given = to_resumed(given, result, {it.call_id: decide(it) for it in decided})
            part = f"{run_id}:wait-{result['waits']}"
            process = process.next(keeps_session=False)
        try:
            execution = to_execution(agent, result)
            answers.append(execution.text)
            conversation, spent = execution.conversation, execution.usage
        except PromptEvaluationError as error:
            answers.append(f"{type(error).__name__}: {error}")
            conversation, spent = error.conversation, error.usage
        usage += spent
        process.session.restore(process.session.parse_snapshot(result["session"], types=[Note]))
    process.end()
    return outcome(process, answers, conversation, usage)
