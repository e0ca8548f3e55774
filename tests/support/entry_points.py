"""Entry points of an adapter: its own, those of `MainLoop` and `Chat`, and nested runs.

An entry point takes an adapter, a session and a deadline, runs a prompt, and returns the
response's text.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from support.agents import Args, Note, prompt, tool
from weakincentives.adapters.core import LoopAdapter
from weakincentives.contrib.durable import (
    MemoryLogTable,
    durable,
    execute_run,
    execute_run_async,
    to_input,
)
from weakincentives.contrib.durable.execution import to_execution
from weakincentives.evaluation.approval import Approve, Decision
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.response import Completed
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.limits import Deadline
from weakincentives.prompt import Prompt, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

__all__ = ["ANSWERED_BEFORE", "ENTRY_POINTS", "STREAMED", "EntryPoint", "asked", "one_event_loop"]

ANSWERED_BEFORE = "paid before"
"""The answer to a call in runs that another adapter began."""

type EntryPoint = Callable[[LoopAdapter, Session, Deadline | None], str]


def _pay(params: object, *, context: ToolContext) -> ToolResult[object]:
    return ToolResult(message=ANSWERED_BEFORE)


# Any below: prompts and events with any output type
def asked() -> Prompt[Any]:
    """Returns the prompt that every entry point runs."""
    return prompt(tool(), replace(tool(_pay, name="pay"), approval="arguments"))


_runner: ContextVar[asyncio.Runner | None] = ContextVar("_runner", default=None)


@contextmanager
def one_event_loop() -> Generator[None]:
    """Runs this thread's asynchronous entry points in a single event loop, which is faster."""
    with asyncio.Runner() as runner:
        token = _runner.set(runner)
        try:
            yield
        finally:
            _runner.reset(token)


def _run[T](work: Coroutine[Any, Any, T]) -> T:
    runner = _runner.get()
    return asyncio.run(work) if runner is None else runner.run(work)


def _last(events: list[Any]) -> str:
    assert isinstance(events[-1], Completed)
    text: str = events[-1].response.text
    return text


async def _gather(events: Any) -> list[Any]:
    return [event async for event in events]


def evaluate(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return adapter.evaluate(asked(), session=session, deadline=deadline).text


def evaluate_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return _run(adapter.evaluate_async(asked(), session=session, deadline=deadline)).text


def stream(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return _last(list(adapter.stream(asked(), session=session, deadline=deadline)))


def stream_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    events = adapter.stream_async(asked(), session=session, deadline=deadline)
    return _last(_run(_gather(events)))


def execute(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return MainLoop(adapter).execute(asked(), session=session, deadline=deadline).text


def execute_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    loop = MainLoop(adapter)
    return _run(loop.execute_async(asked(), session=session, deadline=deadline)).text


def loop_stream(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return _last(list(MainLoop(adapter).stream(asked(), session=session, deadline=deadline)))


def loop_stream_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    events = MainLoop(adapter).stream_async(asked(), session=session, deadline=deadline)
    return _last(_run(_gather(events)))


def _chat(adapter: LoopAdapter, session: Session) -> Chat[Any]:
    return Chat(MainLoop(adapter), asked(), session=session)


def send(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return _chat(adapter, session).send("Hi.", deadline=deadline).text


def send_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return _run(_chat(adapter, session).send_async("Hi.", deadline=deadline)).text


def chat_stream(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return _last(list(_chat(adapter, session).stream("Hi.", deadline=deadline)))


def chat_stream_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    events = _chat(adapter, session).stream_async("Hi.", deadline=deadline)
    return _last(_run(_gather(events)))


def _delegating() -> tuple[MainLoop, list[PromptEvaluationError | str]]:
    """Returns a loop whose model calls `delegate` once, and the list of its results."""
    return MainLoop(ScriptedAdapter([call(("delegate", {})), say("done")])), []


def nested(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    loop, results = _delegating()

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("undone if the run fails"))
        try:
            text = context.evaluate(asked(), adapter=adapter, deadline=deadline).text
        except PromptEvaluationError as error:
            results.append(error)
            raise
        results.append(text)
        return ToolResult(text)

    session.declare(Note)
    assert loop.execute(prompt(tool(delegate, name="delegate")), session=session).text == "done"
    return _nested_result(results, session)


def nested_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    loop, results = _delegating()

    async def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("undone if the run fails"))
        try:
            response = await context.evaluate_async(asked(), adapter=adapter, deadline=deadline)
        except PromptEvaluationError as error:
            results.append(error)
            raise
        results.append(response.text)
        return ToolResult(response.text)

    session.declare(Note)
    execution = _run(loop.execute_async(prompt(tool(delegate, name="delegate")), session=session))
    assert execution.text == "done"
    return _nested_result(results, session)


def _nested_result(results: list[PromptEvaluationError | str], session: Session) -> str:
    [result] = results
    assert len(session[Note].all()) == isinstance(result, str)
    if isinstance(result, PromptEvaluationError):
        raise result
    return result


def _suspended(session: Session) -> Suspension:
    """Returns the suspended run of another adapter."""
    loop = MainLoop(ScriptedAdapter([call(("pay", {}))]))
    try:
        loop.execute(asked(), session=session)
    except RunSuspended as waiting:
        return Suspension.from_json(waiting.suspension.to_json())
    raise AssertionError("the run does not wait")


def _approvals(waiting: Suspension) -> dict[str, Decision]:
    return {preview.call_id: Approve() for preview in waiting.pending}


def resume(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    waiting, loop = _suspended(session), MainLoop(adapter)
    decisions = _approvals(waiting)
    return loop.resume(asked(), waiting, decisions, session=session, deadline=deadline).text


def resume_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    waiting, loop = _suspended(session), MainLoop(adapter)
    resuming = loop.resume_async(
        asked(), waiting, _approvals(waiting), session=session, deadline=deadline
    )
    return _run(resuming).text


def resume_stream(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    waiting, loop = _suspended(session), MainLoop(adapter)
    events = loop.stream(
        asked(),
        suspension=waiting,
        decisions=_approvals(waiting),
        session=session,
        deadline=deadline,
    )
    return _last(list(events))


def _end_of(result: Any) -> Any:
    """Returns how a durable run ended; for a passed deadline, without the time."""
    error = result.get("error", {}).get("is")
    return error if error == "DeadlineExceededError" else {**result, "session": None}


def _durable(
    adapter: LoopAdapter, session: Session, deadline: Deadline | None, *, streamed: bool
) -> str:
    agent = durable(MainLoop(adapter), asked, session=lambda run_id: session)
    given, table, events = to_input(deadline=deadline), MemoryLogTable(), list[Any]()
    if streamed:
        running = execute_run_async(agent, given, table, "run", progress=events.append)
        result = _run(running)
    else:
        result = execute_run(agent, given, table, "run")
    # the log gives the same result without the adapter
    again = execute_run(durable(MainLoop(ScriptedAdapter([])), asked), given, table, "run")
    assert _end_of(again) == _end_of(result)
    text = to_execution(agent, result).text
    return _last(events) if streamed else text


def durable_run(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return _durable(adapter, session, deadline, streamed=False)


def durable_stream_async(adapter: LoopAdapter, session: Session, deadline: Deadline | None) -> str:
    return _durable(adapter, session, deadline, streamed=True)


ENTRY_POINTS: tuple[EntryPoint, ...] = (
    evaluate,
    evaluate_async,
    execute,
    execute_async,
    send,
    send_async,
    nested,
    nested_async,
    resume,
    resume_async,
    durable_run,
    stream,
    stream_async,
    loop_stream,
    loop_stream_async,
    chat_stream,
    chat_stream_async,
    resume_stream,
    durable_stream_async,
)
STREAMED = frozenset(
    {stream, stream_async, loop_stream, loop_stream_async, chat_stream, chat_stream_async}
    | {resume_stream, durable_stream_async}
)
"""The entry points that ask the provider for a stream."""
