"""A session serves one run at a time: a second run is rejected and changes nothing."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import replace
from threading import Barrier, Event, Thread
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import Args, Note, answers, prompt, tool
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.locks import ConcurrentRunError, RunStack, RunToken
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.events import Operation
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

THREADS = 32


def note(params: Args, *, context: ToolContext) -> ToolResult[object]:
    """Notes a number; fails for a multiple of three."""
    context.session.dispatch(Note(str(params.a)))
    return ToolResult("noted", success=params.a % 3 != 0)


def script(numbers: list[int]) -> ScriptedAdapter:
    return ScriptedAdapter([call(*[("note", {"a": number}) for number in numbers]), say("done")])


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 999), min_size=1, max_size=4), min_size=THREADS, max_size=THREADS
    )
)
def test_runs_of_32_threads_on_one_session_are_serialized(
    scripts: list[list[int]],
) -> None:
    session, together = Session(), Barrier(THREADS)
    refusals = list[ConcurrentRunError]()
    order = list[int]()

    def work(index: int) -> None:
        together.wait()
        while True:
            try:
                MainLoop(script(scripts[index])).execute(
                    prompt(tool(note, name="note")),
                    session=session,
                    save=lambda _: order.append(
                        index
                    ),  # at the end of the run, which has reserved the session
                )
                return
            except ConcurrentRunError as error:
                refusals.append(error)
                Event().wait(0.001)

    threads = [Thread(target=work, args=[index]) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    expected = [str(number) for index in order for number in scripts[index] if number % 3]
    assert sorted(order) == list(range(THREADS))
    assert [item.text for item in session[Note].all()] == expected
    session.runs.begin(RunToken("free again"))


def waiting(started: Event, release: Event) -> Callable[..., ToolResult[object]]:
    def wait(params: Args, *, context: ToolContext) -> ToolResult[object]:
        """Notes a number, waits, and fails."""
        context.session.dispatch(Note("mine"))
        started.set()
        release.wait(60)
        return ToolResult("failed", success=False)

    return wait


@pytest.mark.claim("N-16")
def test_second_run_on_a_session_raises_concurrent_run_error_with_a_remedy() -> None:
    session, started, release = Session(session_id="s"), Event(), Event()
    loop = MainLoop(ScriptedAdapter([call(("note", {"a": 1})), say("done")]))
    first = prompt(tool(waiting(started, release), name="note"))
    thread = Thread(target=loop.execute, args=[first], kwargs={"session": session})
    thread.start()
    assert started.wait(60)
    before = session.snapshot()
    second = ScriptedAdapter([say("no")])
    for run in (
        lambda: second.evaluate(prompt(), session=session),
        lambda: asyncio.run(second.evaluate_async(prompt(), session=session)),
        lambda: next(second.stream(prompt(), session=session)),
        lambda: MainLoop(second).execute(prompt(), session=session),
        lambda: Chat(MainLoop(second), prompt(), session=session).send("Hello?"),
    ):
        with pytest.raises(
            ConcurrentRunError, match=r"session 's' is in use .* session of its own"
        ):
            run()
    assert second.requests == []
    assert session.snapshot().slices == before.slices
    release.set()
    thread.join(60)
    assert session[Note].all() == ()
    assert MainLoop(second).execute(prompt(), session=session).text == "no"


def test_concurrent_payment_is_rejected_instead_of_being_rolled_back() -> None:
    """One run pays; the other run's failing call begins before and ends after the payment."""

    async def look(params: Args, *, context: ToolContext) -> ToolResult[object]:
        """Looks."""
        await asyncio.sleep(0.05)
        return ToolResult("Nothing found.", success=False)

    async def both(session: Session) -> BaseException | None:
        pay = ScriptedAdapter([call(("note", {"a": 5})), say("paid")])
        search = ScriptedAdapter([call(("look", {})), say("no")])
        searching = asyncio.create_task(
            search.evaluate_async(prompt(tool(look, name="look")), session=session)
        )
        paying = asyncio.create_task(
            pay.evaluate_async(prompt(tool(note, name="note")), session=session)
        )
        await asyncio.wait([searching, paying])
        return paying.exception()

    session = Session()
    assert isinstance(asyncio.run(both(session)), ConcurrentRunError)
    assert session[Note].all() == ()


@pytest.mark.parametrize("ending", ["close", "drop"])
def test_closed_or_dropped_stream_releases_the_session(ending: str) -> None:
    session, adapter = Session(), script([1])
    events = MainLoop(adapter).stream(prompt(tool(note, name="note")), session=session)
    next(events)
    with pytest.raises(ConcurrentRunError):
        adapter.evaluate(prompt(), session=session)
    if ending == "close":
        events.close()
    else:
        del events
        gc.collect()
    assert ScriptedAdapter([say("yes")]).evaluate(prompt(), session=session).text == "yes"


def test_run_that_fails_at_its_start_releases_the_session() -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    session, three = Session(), cast("Any", 3)
    kept = list[BaseException]()  # their tracebacks keep the frames of the run
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            MainLoop(script([1])).execute(prompt(), session=session, budget=three)
        kept.append(caught.value)
        with pytest.raises(Exception, match="no reply") as failed:
            ScriptedAdapter([]).evaluate(prompt(), session=session)
        kept.append(failed.value)
        unsubscribe = session.bus.subscribe(Operation, interrupt)
        with pytest.raises(KeyboardInterrupt) as stopped:
            MainLoop(script([1])).execute(prompt(), session=session)
        kept.append(stopped.value)
        unsubscribe()
    assert ScriptedAdapter([say("yes")]).evaluate(prompt(), session=session).text == "yes"


def test_handler_can_evaluate_nested_runs_and_a_chat_in_its_own_session() -> None:
    def nest(params: Args, *, context: ToolContext) -> ToolResult[object]:
        """Asks others."""
        adapter = context.adapter
        own = Chat(MainLoop(adapter), prompt(), session=Session())
        inner = prompt(tool(note, name="note"))
        texts = [
            adapter.evaluate(inner, session=context.session).text,
            MainLoop(adapter).execute(inner, session=context.session).text,
            own.send("Hello?").text,
        ]
        with pytest.raises(ConcurrentRunError):
            model.evaluate(inner, session=context.session)  # not known to be nested
        return ToolResult(" ".join(texts))

    noting = call(("note", {"a": 1}))
    model = ScriptedAdapter(
        [call(("nest", {})), noting, say("one"), noting, say("two"), say("three"), say("done")]
    )
    session = Session()
    response = model.evaluate(prompt(tool(nest, name="nest")), session=session)
    assert [message.content for message in answers(response.transcript)] == ["one two three"]
    assert len(session[Note].all()) == 2


def test_prompt_with_resources_allows_only_one_run_at_a_time() -> None:
    """Otherwise, a failing call in one run would undo the other run's changes to a resource."""

    class Cell:
        """A resource."""

    adapter = ScriptedAdapter([say("one"), say("two"), say("three"), say("four")])
    shared = prompt().bind(resources={Cell: Cell()})
    events = adapter.stream(shared, session=Session())
    next(events)
    with pytest.raises(ConcurrentRunError, match=r"has resources, is in use .* bind the template"):
        adapter.evaluate(shared, session=Session())
    events.close()
    adapter.evaluate(shared, session=Session())

    plain = prompt()
    events = adapter.stream(plain, session=Session())
    next(events)
    assert adapter.evaluate(plain, session=Session()).text == "four"
    events.close()


def test_run_stack_accepts_runs_that_end_in_any_order() -> None:
    stack = RunStack("it", "wait")
    outer = RunToken("outer")
    inner = RunToken("inner", outer)
    stack.begin(outer)
    stack.begin(inner)
    with pytest.raises(ConcurrentRunError, match="in use by a run of 'inner'"):
        stack.begin(RunToken("sibling", outer))
    stack.end(outer)  # a thread of its handler keeps running
    with pytest.raises(ConcurrentRunError):
        stack.begin(RunToken("next"))
    stack.end(inner)
    stack.begin(RunToken("next"))


@pytest.mark.parametrize("parallel", ["in_order", "isolated"])
@pytest.mark.parametrize("approval", [None, "effects"])
def test_handler_cannot_run_another_adapter_on_the_session_of_its_call(
    parallel: Any, approval: Any
) -> None:
    other = ScriptedAdapter([say("never")] * 4)

    def ask(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(other.evaluate(prompt(), session=context.session).text)

    calls = call(("probe", {"a": 1}), ("probe", {"a": 2}))
    config = RunConfig(parallel_tool_calls=parallel)
    adapter = ScriptedAdapter([calls, say("done")], config=config)
    asked = prompt(replace(tool(ask), approval=approval))
    response = adapter.evaluate(asked, session=Session(), approver=lambda preview: Approve())
    for answer in answers(response.transcript):
        assert "is in use by a run of " in answer.content
        assert not answer.success
    assert other.requests == []
