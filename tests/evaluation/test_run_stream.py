"""A run's plain stream can be closed from any thread, and an error names a stream that is open."""

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest

from support.agents import Args, Note, ok, prompt, tool
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.response import Completed, TextDelta
from weakincentives.locks import ConcurrentRunError
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

TIMEOUT = 20


@dataclass
class Running:
    """A run whose tool waits until the test releases it."""

    session: Session
    events: Generator[Any]
    started: Event
    proceed: Event


def adapter_stream(adapter: ScriptedAdapter, asked: Any, session: Session) -> Generator[Any]:
    return adapter.stream(asked, session=session)


def loop_stream(adapter: ScriptedAdapter, asked: Any, session: Session) -> Generator[Any]:
    return MainLoop(adapter).stream(asked, session=session)


def chat_stream(adapter: ScriptedAdapter, asked: Any, session: Session) -> Generator[Any]:
    return Chat(MainLoop(adapter), asked, session=session).stream("Go")


type Start = Callable[[ScriptedAdapter, Any, Session], Generator[Any]]

every_stream = pytest.mark.parametrize("start", [adapter_stream, loop_stream, chat_stream])


def running(start: Start) -> Running:
    started, proceed = Event(), Event()

    def wait(_: Args, *, context: ToolContext) -> ToolResult[object]:
        started.set()
        assert proceed.wait(TIMEOUT)
        context.session.dispatch(Note("done"))
        return ToolResult("ok")

    session = Session()
    adapter = ScriptedAdapter([call(("wait", {}), ("probe", {})), say("Never.")])
    events = start(adapter, prompt(tool(wait, name="wait"), tool(ok)), session)
    return Running(session, events, started, proceed)


@every_stream
def test_closing_a_stream_from_another_thread_ends_the_run_at_its_next_event(start: Start) -> None:
    run, read = running(start), list[object]()
    reader = Thread(target=lambda: read.extend(run.events))
    reader.start()
    assert run.started.wait(TIMEOUT)
    closer = Thread(target=run.events.close)
    closer.start()
    run.proceed.set()
    for thread in (closer, reader):
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert [event.name for event in run.session[ToolInvoked]] == ["wait"]
    assert run.session[Note].all() == (Note("done"),), "the finished call keeps its effects"
    assert not any(isinstance(event, Completed) for event in read)
    assert list(run.events) == []


def test_next_message_can_be_sent_as_soon_as_close_has_returned() -> None:
    started, proceed = Event(), Event()

    def wait(_: Args, *, context: ToolContext) -> ToolResult[object]:
        started.set()
        assert proceed.wait(TIMEOUT)
        return ToolResult("ok")

    adapter = ScriptedAdapter([call(("probe", {})), say("Fine.")])
    chat = Chat(MainLoop(adapter), prompt(tool(wait)), session=Session())
    events, answers = chat.stream("Go"), list[str]()
    reader = Thread(target=lambda: list(events))
    reader.start()
    assert started.wait(TIMEOUT)

    def close_and_send() -> None:
        events.close()
        answers.append(chat.send("And now?").text)

    closer = Thread(target=close_and_send)
    closer.start()
    proceed.set()
    for thread in (closer, reader):
        thread.join(TIMEOUT)
    assert answers == ["Fine."]


@every_stream
def test_handler_that_closes_its_own_stream_stops_the_run(start: Start) -> None:
    streams: list[Generator[Any]] = []

    def stop(_: Args, *, context: ToolContext) -> ToolResult[object]:
        streams[0].close()
        return ToolResult("ok")

    adapter = ScriptedAdapter([call(("probe", {})), say("Never.")])
    streams.append(start(adapter, prompt(tool(stop)), Session()))
    assert not any(isinstance(event, Completed) for event in streams[0])
    assert len(adapter.requests) == 1


@every_stream
def test_stream_closed_before_the_first_read_runs_nothing(start: Start) -> None:
    adapter = ScriptedAdapter([say("Never.")])
    events = start(adapter, prompt(), Session())
    events.close()
    assert (list(events), adapter.requests) == ([], [])


@every_stream
def test_send_returns_the_next_event_of_a_stream(start: Start) -> None:
    events = start(ScriptedAdapter([say("One two.")]), prompt(), Session())
    assert next(events) == TextDelta("One two.")
    assert isinstance(events.send(None), Completed)


@every_stream
def test_exception_thrown_into_a_stream_ends_the_run(start: Start) -> None:
    events = start(ScriptedAdapter([say("One two.")]), prompt(), session := Session())
    assert isinstance(next(events), TextDelta)
    with pytest.raises(ZeroDivisionError):
        events.throw(ZeroDivisionError())
    adapter = ScriptedAdapter([say("Fine.")])
    assert MainLoop(adapter).execute(prompt(), session=session).text == "Fine."


@every_stream
def test_leaving_a_with_block_ends_a_streams_run(start: Start) -> None:
    adapter = ScriptedAdapter([call(("probe", {})), say("Never.")])
    stream: Any = start(adapter, prompt(tool(ok)), session := Session())
    with stream as events:
        for _ in events:
            break
    assert (list(events), len(adapter.requests)) == ([], 1)
    again = ScriptedAdapter([say("Fine.")])
    assert MainLoop(again).execute(prompt(), session=session).text == "Fine."


@pytest.mark.parametrize("has_error", [False, True])
def test_leaving_an_async_with_block_ends_a_streams_run(*, has_error: bool) -> None:
    async def run(start: Callable[..., Any], *arguments: Any) -> str:
        session = Session()
        adapter = ScriptedAdapter([call(("probe", {})), say("Never.")])
        asked = prompt(tool(ok))
        try:
            async with start(adapter, asked, session) as events:
                async for _ in events:
                    if has_error:
                        raise ZeroDivisionError
                    break
        except ZeroDivisionError:
            assert has_error
        assert len(adapter.requests) == 1
        again = ScriptedAdapter([say("Fine.")])
        return (await MainLoop(again).execute_async(asked, session=session)).text

    def of_adapter(adapter: ScriptedAdapter, asked: Any, session: Session) -> Any:
        return adapter.stream_async(asked, session=session)

    def of_loop(adapter: ScriptedAdapter, asked: Any, session: Session) -> Any:
        return MainLoop(adapter).stream_async(asked, session=session)

    def of_chat(adapter: ScriptedAdapter, asked: Any, session: Session) -> Any:
        return Chat(MainLoop(adapter), asked, session=session).stream_async("Go")

    for start in (of_adapter, of_loop, of_chat):
        assert asyncio.run(run(start)) == "Fine."


def test_stream_of_a_nested_run_is_a_context_manager() -> None:
    texts: list[str] = []

    async def nested(_: Args, *, context: ToolContext) -> ToolResult[object]:
        adapter: Any = context.adapter
        async with adapter.stream_async(prompt(), session=Session()) as events:
            texts.extend([event.text async for event in events if isinstance(event, TextDelta)])
        with adapter.stream(prompt(), session=Session()) as plain:
            texts.extend([event.text for event in plain if isinstance(event, TextDelta)])
        return ToolResult("ok")

    replies = [call(("nested", {})), say("In."), say("Side."), say("Out.")]
    loop = MainLoop(ScriptedAdapter(replies))
    asked = prompt(tool(nested, name="nested"))
    assert asyncio.run(loop.execute_async(asked)).text == "Out."
    assert texts == ["In.", "Side."]


def test_async_stream_without_a_loop_behaves_as_an_async_generator() -> None:
    async def run() -> object:
        events = MainLoop(ScriptedAdapter([say("One two.")])).stream_async(prompt())
        assert await anext(events) == TextDelta("One two.")
        assert isinstance(await events.asend(None), Completed)
        assert [event async for event in events] == []
        stopped = MainLoop(ScriptedAdapter([say("One two.")])).stream_async(prompt())
        await anext(stopped)
        with pytest.raises(ZeroDivisionError):
            await stopped.athrow(ZeroDivisionError())
        return await anext(stopped, None)

    assert asyncio.run(run()) is None


@pytest.mark.parametrize("start", [loop_stream, adapter_stream])
def test_run_during_an_open_stream_raises_concurrent_run_error(start: Start) -> None:
    session = Session()
    events = start(ScriptedAdapter([say("One two.")]), prompt(), session)
    next(events)
    with pytest.raises(ConcurrentRunError, match=r"an open stream of 'agent'; .*`async with`"):
        MainLoop(ScriptedAdapter([])).execute(prompt(), session=session)
    events.close()


def test_chat_message_after_break_raises_concurrent_run_error_until_aclose() -> None:
    chat = Chat(MainLoop(ScriptedAdapter([say("One."), say("Two.")])), prompt(), session=Session())

    async def run() -> str:
        events = chat.stream_async("Go")
        async for _ in events:
            break
        with pytest.raises(ConcurrentRunError, match="an open stream of 'agent'"):
            await chat.send_async("Stop")
        await events.aclose()
        return (await chat.send_async("Stop")).text

    assert asyncio.run(run()) == "Two."


def test_concurrent_nested_run_error_suggests_its_own_session() -> None:
    async def fan_out(_: Args, *, context: ToolContext) -> ToolResult[object]:
        runs = [context.evaluate_async(prompt()) for _ in range(2)]
        results = await asyncio.gather(*runs, return_exceptions=True)
        return ToolResult(" ".join(str(r) for r in results if isinstance(r, BaseException)))

    class Slow(ScriptedAdapter):
        async def ask_async(self, request: Any) -> Any:
            await asyncio.sleep(0)
            return await super().ask_async(request)

    adapter = Slow([call(("probe", {})), say("One."), say("Two."), say("Done.")])
    response = asyncio.run(adapter.evaluate_async(prompt(tool(fan_out)), session=Session()))
    assert response.conversation is not None
    [answer] = [m.content for m in response.conversation.messages if m.kind == "tool"]
    assert "session=Session()" in answer
