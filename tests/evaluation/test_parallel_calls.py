"""Concurrent calls in one turn have the same result as sequential calls, in less time."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Barrier, Lock, main_thread
from threading import Event as Flag
from time import monotonic, perf_counter, sleep
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import (
    Args,
    Note,
    answers,
    fields_but,
    nested_adapter,
    ok,
    prompt,
    recorded,
    tool,
)
from support.programs import (
    FAILURES,
    STATE,
    Cell,
    Counted,
    ForkableCell,
    ForkedCell,
    Heard,
    Op,
    Plain,
    Program,
    Redirect,
    World,
    programs,
    run,
    session,
)
from weakincentives.adapters.core import PromptResponse
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.errors import BudgetExceededError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget
from weakincentives.prompt import Prompt, RenderedPrompt, Tool, ToolContext, ToolResult
from weakincentives.prompt.errors import VisibilityExpansionRequired
from weakincentives.prompt.tool import Effect
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.runtime.events import Event, InProcessEventBus, ToolInvoked
from weakincentives.runtime.session import Append, Session
from weakincentives.runtime.transactions import tool_transaction
from weakincentives.testing.scripted import ScriptedAdapter, call, say

ISOLATED = RunConfig(parallel_tool_calls="isolated")
TIMEOUT = 60  # seconds; no test takes them


def evaluate(
    adapter: ScriptedAdapter, asked: Prompt[Any], at: Session, **how: Any
) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=at, **how)


def evaluate_async(
    adapter: ScriptedAdapter, asked: Prompt[Any], at: Session, **how: Any
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=at, **how))


type Evaluate = Callable[..., PromptResponse[Any]]
drivers = pytest.mark.parametrize("driver", [evaluate, evaluate_async])


def named(
    name: str, handler: Callable[..., Any], effect: Effect = "repeatable", params: Any = Args
) -> Tool[Any, Any]:
    return Tool[Any, Any](
        name=name, handler=handler, params_type=params, result_type=object, effect=effect
    )


# --------------------------------------------------------------------------------------------------
# the law


@dataclass(frozen=True)
class Which:
    number: int


def story(
    turns: Sequence[Sequence[Program]],
    config: RunConfig,
    driver: Evaluate,
    *,
    start: int,
    external: bool,
    later: bool,
) -> tuple[object, ...]:
    """Returns everything observable of an evaluation whose tools run `turns`, in a session that
    begins with `start` values.
    """
    calls = [program for turn in turns for program in turn]
    numbers = iter(range(len(calls)))
    script = [call(*[("run", {"number": next(numbers)}) for _ in turn]) for turn in turns]

    def handler(params: Which, *, context: ToolContext) -> ToolResult[object]:
        return run(calls[params.number], context)

    async def handler_later(params: Which, *, context: ToolContext) -> ToolResult[object]:
        return run(calls[params.number], context)

    world, at = World(), session()
    at[Plain].seed(*[Plain(0)] * start)
    bus = InProcessEventBus() if external else at.bus
    events = recorded(bus, Event)
    asked = prompt(named("run", handler_later if later else handler, params=Which)).bind(
        resources=world.registry()
    )
    ending: object = None
    try:
        ending = driver(
            ScriptedAdapter([*script, say("done")], config=config), asked, at, bus=bus
        ).transcript
    except BaseException as error:
        ending = repr(error)
    published = [(type(event), fields_but(event)) for event in events]
    logged = [
        fields_but(event) for kind in (Heard, Counted, ToolInvoked) for event in at[kind].all()
    ]
    return ending, [at[kind].all() for kind in STATE], world.numbers(), published, logged


ENDINGS = (None, None, None, None, False, ValueError, Redirect, KeyboardInterrupt)


@settings(max_examples=300)
@given(
    turns=st.lists(st.lists(programs(ENDINGS), min_size=1, max_size=4), min_size=1, max_size=2),
    start=st.sampled_from([0, 3]),
    external=st.booleans(),
    later=st.booleans(),
)
def test_parallel_calls_give_the_same_result_as_calls_in_order(
    turns: list[list[Program]], **drawn: Any
) -> None:
    wanted = story(turns, RunConfig(), evaluate, **drawn)
    for driver in (evaluate, evaluate_async):
        assert story(turns, ISOLATED, driver, **drawn) == wanted


# --------------------------------------------------------------------------------------------------
# truly concurrent


def meet(barrier: Barrier, *, later: bool) -> Callable[..., Any]:
    """A handler that returns once as many calls run as the barrier waits for."""

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        barrier.wait(TIMEOUT)
        context.session.dispatch(Note(context.call_id))
        return ToolResult(context.call_id)

    async def handler_later(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return await asyncio.to_thread(handler, params, context=context)

    return handler_later if later else handler


@drivers
@pytest.mark.parametrize(("count", "later"), [(2, False), (4, True), (16, False)])
def test_calls_of_one_turn_run_concurrently_and_are_committed_in_order(
    driver: Evaluate, count: int, later: bool
) -> None:
    """This holds even on few cores, where the event loop's own thread pool may be smaller."""
    at, ids = Session(), [f"call_{number}" for number in range(1, count + 1)]
    adapter = ScriptedAdapter([call(*[("meet", {})] * count), say("done")], config=ISOLATED)
    response = driver(adapter, prompt(named("meet", meet(Barrier(count), later=later))), at)
    assert [answer.content for answer in answers(response.transcript)] == ids
    assert [note.text for note in at[Note].all()] == ids
    assert [event.call_id for event in at[ToolInvoked].all()] == ids


@drivers
def test_forks_of_a_resource_are_used_concurrently(driver: Evaluate) -> None:
    barrier, cell = Barrier(3), ForkableCell()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        barrier.wait(TIMEOUT)
        context.resources.get(ForkableCell).add(int(context.call_id[-1]))
        return ToolResult("ok")

    adapter = ScriptedAdapter([call(*[("add", {})] * 3), say("done")], config=ISOLATED)
    driver(adapter, prompt(named("add", handler)).bind(resources={ForkableCell: cell}), Session())
    assert (cell.numbers, barrier.broken) == ([1, 2, 3], False)


def test_calls_run_in_order_by_default() -> None:
    together: list[int] = []
    running, lock = [0], Lock()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        with lock:
            running[0] += 1
            together.append(running[0])
        with lock:
            running[0] -= 1
        return ToolResult("ok")

    adapter = ScriptedAdapter([call(*[("count", {})] * 8), say("done")])
    adapter.evaluate(prompt(named("count", handler)), session=Session())
    assert together == [1] * 8


@pytest.mark.parametrize(
    "stranger", [("once", {}), ("nobody", {}), ("read_section", {"section_key": "x"})]
)
def test_non_repeatable_call_separates_groups_of_parallel_calls(
    stranger: tuple[str, Any],
) -> None:
    before, after = Barrier(2), Barrier(2)
    tools = (
        named("before", meet(before, later=False)),
        named("once", ok, "at_most_once"),
        named("after", meet(after, later=False), "pure"),
    )
    calls = [("before", {}), ("before", {}), stranger, ("after", {}), ("after", {})]
    response = evaluate(
        ScriptedAdapter([call(*calls), say("done")], config=ISOLATED), prompt(*tools), Session()
    )
    assert [answer.call_id for answer in answers(response.transcript)] == [
        f"call_{n}" for n in range(1, 6)
    ]


# --------------------------------------------------------------------------------------------------
# run once again


def counted(handler: Callable[[ToolContext], object]) -> tuple[Tool[Any, Any], list[str]]:
    """Returns a tool, and the ids of the calls for which its handler ran."""
    ran: list[str] = []

    def counting(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(context.call_id)
        return ToolResult(str(handler(context)))

    return named("count", counting), ran


def twice(
    tool: Tool[Any, Any], at: Session, driver: Evaluate = evaluate, **resources: Any
) -> list[str]:
    """Returns the answers to two parallel calls of the tool."""
    adapter = ScriptedAdapter([call(("count", {}), ("count", {})), say("done")], config=ISOLATED)
    asked = prompt(tool).bind(**resources)
    return [answer.content for answer in answers(driver(adapter, asked, at).transcript)]


def reads_and_writes(context: ToolContext) -> object:
    seen = len(context.session[Note])
    context.session.dispatch(Note("x"))
    return seen


@drivers
def test_call_that_read_a_value_changed_by_an_earlier_call_runs_again_once(
    driver: Evaluate,
) -> None:
    counting, ran = counted(reads_and_writes)
    at = Session()
    assert twice(counting, at, driver) == ["0", "1"]
    assert sorted(ran) == ["call_1", "call_2", "call_2"]
    assert len(at[ToolInvoked]) == 2


def test_calls_that_only_write_are_not_run_again() -> None:
    def handler(context: ToolContext) -> object:
        context.session[Note].append(Note("x"))
        return "written"

    counting, ran = counted(handler)
    twice(counting, Session())
    assert sorted(ran) == ["call_1", "call_2"]


def test_failed_call_does_not_make_later_calls_run_again() -> None:
    def handler(context: ToolContext) -> object:
        seen = reads_and_writes(context)
        if context.call_id == "call_1":
            raise ValueError("no")
        return seen

    counting, ran = counted(handler)
    assert twice(counting, Session()) == ["no", "0"]
    assert sorted(ran) == ["call_1", "call_2"]


def swallowing(ask: Callable[[ToolContext], object]) -> Callable[[ToolContext], object]:
    """A careless handler that turns every error into an answer."""

    def handler(context: ToolContext) -> object:
        try:
            return ask(context)
        except BaseException as error:
            return f"swallowed {type(error).__name__}"

    return handler


# Any: the requested attribute is not in the protocol.
REFUSED: dict[str, Callable[[Any], object]] = {
    "telemetry": lambda context: len(context.session[ToolInvoked]),
    "a subscription": lambda context: context.event_bus.subscribe(Note, print) and "subscribed",
    "a reducer": lambda context: context.session[Note].register(int, lambda view, event: None),
    "installing": lambda context: (
        context.session.parse_snapshot('{"version":1,"slices":{}}').slices
    ),
    "the content of a snapshot": lambda context: context.session.snapshot().to_json(),
    "a transaction over all": lambda context: len(list(context.prompt.resources)),
    "what has no fork": lambda context: context.resources.get(Cell).read(),
    "what the prompt holds": lambda context: context.prompt.resources.get(Cell).read(),
    "what is folded": lambda context: context.event_bus.publish(Counted(number=1)),
    "a dispatch that fails": lambda context: context.session.dispatch(Note),
}


@pytest.mark.parametrize("asked", REFUSED)
def test_call_that_cannot_be_isolated_runs_in_order_even_if_it_hides_errors(
    asked: str,
) -> None:
    answers = [
        twice(counted(swallowing(REFUSED[asked]))[0], session(), how, resources={Cell: Cell()})
        for how in (
            evaluate,
            evaluate_async,
            lambda adapter, *rest: evaluate(in_order(adapter), *rest),
        )
    ]
    assert answers[0] == answers[1] == answers[2]
    assert "NotIsolatedError" not in repr(answers)


def in_order(adapter: ScriptedAdapter) -> ScriptedAdapter:
    adapter.config = RunConfig()
    return adapter


def test_predicate_of_clear_is_tracked_as_a_read() -> None:
    def handler(context: ToolContext) -> object:
        seen: list[Note] = []

        def look(note: Note) -> bool:
            seen.append(note)
            return False

        context.session[Note].clear(look)
        context.session[Note].append(Note("x"))
        return len(seen)

    counting, ran = counted(handler)
    assert twice(counting, Session()) == ["0", "1"]
    assert sorted(ran) == ["call_1", "call_2", "call_2"]


def test_predicate_of_clear_is_not_called_after_the_call() -> None:
    def handler(context: ToolContext) -> object:
        unwanted = "a"
        context.session[Note].clear(lambda note: note.text == unwanted)
        unwanted = "b"
        return None

    at = Session()
    at[Note].seed(Note("a"), Note("b"))
    counting, ran = counted(handler)
    twice(counting, at)
    assert at[Note].all() == (Note("b"),)
    assert sorted(ran) == ["call_1", "call_2", "call_2"]


def test_reducer_error_caused_by_earlier_calls_is_raised_in_the_handler() -> None:
    at = Session()

    def one_at_most(view: Any, event: Note) -> Any:
        if len(view):
            raise ValueError("full")
        return Append(event)

    at[Note].register(Note, one_at_most)

    def handler(context: ToolContext) -> object:
        try:
            context.session.dispatch(Note("x"))
        except ValueError as error:
            return error
        return "written"

    counting, _ = counted(handler)
    assert twice(counting, at) == ["written", "full"]


def test_dispatch_that_fails_only_without_earlier_calls_runs_after_them() -> None:
    at = Session()
    at[Note].append(Note("old"))

    def into_empty(view: Any, event: Note) -> Any:
        if len(view):
            raise ValueError("full")
        return Append(event)

    at[Note].register(Note, into_empty)

    def handler(context: ToolContext) -> object:
        if context.call_id == "call_1":
            context.session[Note].clear()
        with suppress(ValueError):
            context.session.dispatch(Note("new"))
        return "cleared"

    twice(counted(handler)[0], at)
    assert at[Note].all() == (Note("new"),)


class Forgetful(ForkableCell):
    """Fails where forking should not."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def fork(self) -> ForkedCell:
        if self.at == "fork":
            raise OSError("disk full")
        return super().fork()

    def merge(self, fork: ForkedCell, /) -> bool:
        if self.at == "merge":
            self.numbers.append(99)
            raise OSError("disk full")
        return super().merge(fork)


@pytest.mark.parametrize("at", ["fork", "merge"])
def test_resource_that_fails_to_fork_or_merge_is_used_in_order(at: str) -> None:
    cell = Forgetful(at)

    def handler(context: ToolContext) -> object:
        context.resources.get(Forgetful).add(1)
        return "added"

    counting, _ = counted(handler)
    assert twice(counting, Session(), resources={Forgetful: cell}) == ["added", "added"]
    assert cell.numbers == [1, 1]


def test_resource_bound_to_two_types_is_forked_once() -> None:
    cell = ForkableCell()

    def handler(context: ToolContext) -> object:
        context.resources.get(ForkableCell).add(1)
        return context.resources.get(Cell).read()

    counting, _ = counted(handler)
    assert twice(counting, Session(), resources={ForkableCell: cell, Cell: cell}) == [
        "[1]",
        "[1, 1]",
    ]


def test_resources_of_a_call_are_closed_even_if_the_call_runs_again() -> None:
    closed: list[str] = []

    class Handle:
        def close(self) -> None:
            closed.append("closed")

    def handler(context: ToolContext) -> object:
        context.resources.get(Handle)
        return reads_and_writes(context)

    counting, ran = counted(handler)
    registry = ResourceRegistry.of(Binding(Handle, lambda _: Handle(), scope=Scope.TOOL_CALL))
    twice(counting, Session(), resources=registry)
    assert len(closed) == len(ran) == 3


def test_resource_created_in_a_failing_call_is_closed_and_discarded() -> None:
    made: list[str] = []

    class Handle:
        def __init__(self) -> None:
            made.append("made")

        def close(self) -> None:
            made.append("closed")

    def handler(context: ToolContext) -> object:
        context.resources.get(Handle)
        raise ValueError("no")

    twice(
        counted(handler)[0],
        Session(),
        resources=ResourceRegistry.of(Binding(Handle, lambda _: Handle())),
    )
    assert made == ["made", "closed"] * 2


def test_nested_runs_of_parallel_calls_run_concurrently_on_their_forks() -> None:
    """Each call's bus gets its events immediately; the session's bus gets them in call order."""
    barrier = Barrier(2)

    def inner(params: Args, *, context: ToolContext) -> ToolResult[object]:
        barrier.wait(TIMEOUT)
        context.session.dispatch(Note(f"inner of {params.a}"))
        return ToolResult("ok")

    def outer(params: Args, *, context: ToolContext) -> ToolResult[object]:
        agent = ScriptedAdapter([call(("inner", {"a": params.a})), say(f"said {params.a}")])
        asked = prompt(named("inner", inner))
        return ToolResult(context.evaluate(asked, adapter=agent).text)

    at, bus = Session(), InProcessEventBus()
    events = recorded(bus, ToolInvoked)
    adapter = ScriptedAdapter(
        [call(("outer", {"a": 1}), ("outer", {"a": 2})), say("done")], config=ISOLATED
    )
    response = evaluate(adapter, prompt(named("outer", outer)), at, bus=bus)
    assert [answer.content for answer in answers(response.transcript)] == ["said 1", "said 2"]
    assert [note.text for note in at[Note].all()] == ["inner of 1", "inner of 2"]
    names = ["inner", "outer", "inner", "outer"]
    assert (
        [event.name for event in events] == [event.name for event in at[ToolInvoked].all()] == names
    )


def test_transaction_of_a_handler_over_all_resources_is_rolled_back() -> None:
    cell = ForkableCell()

    def handler(context: ToolContext) -> object:
        with suppress(ValueError), tool_transaction(context.session, context.prompt.resources):
            context.resources.get(ForkableCell).add(1)
            raise ValueError
        return "undone"

    assert twice(counted(handler)[0], Session(), resources={ForkableCell: cell}) == [
        "undone",
        "undone",
    ]
    assert cell.numbers == []


def test_recursive_run_of_the_same_prompt_rolls_back_its_failed_calls() -> None:
    cell = ForkableCell()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        if params.a:
            agent = ScriptedAdapter([call(("again", {"a": params.a - 1})), say("fine")])
            nested = replace(nested_adapter(context), adapter=agent)
            assert isinstance(context.prompt, Prompt)
            return ToolResult(nested.evaluate(context.prompt, session=context.session).text)
        context.resources.get(ForkableCell).add(1)
        return ToolResult("added", success=False)

    asked = prompt(named("again", handler)).bind(resources={ForkableCell: cell})
    adapter = ScriptedAdapter(
        [call(("again", {"a": 1}), ("again", {"a": 1})), say("done")], config=ISOLATED
    )
    assert [
        answer.content for answer in answers(evaluate(adapter, asked, Session()).transcript)
    ] == [
        "fine",
        "fine",
    ]
    assert cell.numbers == []


# -------------------------------------------------------------------------------------------------
# ends and limits


_NAME: ContextVar[str] = ContextVar("name", default="unset")


@drivers
def test_handlers_see_the_context_variables_of_the_caller(driver: Evaluate) -> None:
    token = _NAME.set("mine")
    try:
        assert twice(counted(lambda context: _NAME.get())[0], Session(), driver) == ["mine", "mine"]
    finally:
        _NAME.reset(token)


def test_calls_before_a_redirect_are_answered_and_charged_to_the_budget() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(context.call_id))
        if params.a == 2:
            raise Redirect("elsewhere")
        return ToolResult("ok")

    for config in (RunConfig(), ISOLATED):
        calls = call(*[("go", {"a": number}) for number in (1, 2, 3)])
        at = Session()
        # The limit is checked before each call: one remaining call does not allow the redirect.
        adapter = ScriptedAdapter([calls], config=config)
        with pytest.raises(BudgetExceededError) as caught:
            evaluate(adapter, prompt(named("go", handler)), at, budget=Budget(max_tool_calls=1))
        assert [answer.content for answer in answers(caught.value.transcript)] == [
            "ok",
            *["Not run: the evaluation ended."] * 2,
        ]
        assert [note.text for note in at[Note].all()] == ["call_1"]
        for how in (evaluate, evaluate_async):
            at = Session()
            with pytest.raises(Redirect):
                how(ScriptedAdapter([calls], config=config), prompt(named("go", handler)), at)
            assert len(at[ToolInvoked]) == len(at[Note]) == 2


@drivers
@pytest.mark.parametrize(
    ("config", "count"), [(RunConfig(), 3), (ISOLATED, 4)], ids=["in order", "isolated"]
)
def test_restart_within_a_turn_reports_the_number_of_calls_that_ran(
    config: RunConfig, count: int, driver: Evaluate
) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        if params.a == 2:
            raise VisibilityExpansionRequired(
                "more", requested_overrides={}, reason="", section_keys=()
            )
        return ToolResult("ok")

    calls = call(*[("go", {"a": number}) for number in (1, 1, 2, 3)])
    with pytest.raises(VisibilityExpansionRequired) as caught:
        driver(ScriptedAdapter([calls], config=config), prompt(named("go", handler)), Session())
    assert caught.value.run_usage.tool_calls == count


def test_cancellation_waits_for_all_calls_and_leaves_no_effects() -> None:
    started, release, ended = Barrier(3), asyncio.Event(), list[str]()
    cell = ForkableCell()

    def in_thread(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        context.resources.get(ForkableCell).add(1)
        started.wait(TIMEOUT)
        ended.append("thread")
        return ToolResult("ok")

    async def in_loop(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        try:
            await release.wait()
        finally:
            ended.append("loop")
        return ToolResult("ok")

    async def cancel() -> None:
        adapter = ScriptedAdapter(
            [call(("thread", {}), ("loop", {}), ("thread", {}))], config=ISOLATED
        )
        asked = prompt(named("thread", in_thread), named("loop", in_loop)).bind(
            resources={ForkableCell: cell}
        )
        task = asyncio.create_task(adapter.evaluate_async(asked, session=at))
        await asyncio.to_thread(started.wait, TIMEOUT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    at = Session()
    asyncio.run(cancel())
    assert sorted(ended) == ["loop", "thread", "thread"]
    assert (at[Note].all(), cell.numbers, len(at[ToolInvoked])) == ((), [], 0)


def test_cancellation_does_not_start_calls_queued_for_a_thread() -> None:
    running, release, begun = Barrier(17), Flag(), list[str]()

    def in_thread(params: Args, *, context: ToolContext) -> ToolResult[object]:
        begun.append(context.call_id)
        running.wait(TIMEOUT)
        release.wait(TIMEOUT)
        return ToolResult("ok")

    async def in_loop(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            await asyncio.Future()
        finally:
            release.set()
        return ToolResult("ok")

    async def cancel() -> None:
        adapter = ScriptedAdapter([call(*[("thread", {})] * 20, ("loop", {}))], config=ISOLATED)
        asked = prompt(named("thread", in_thread), named("loop", in_loop))
        task = asyncio.create_task(adapter.evaluate_async(asked, session=Session()))
        await asyncio.to_thread(running.wait, TIMEOUT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert len(begun) == 16


def main_waits_for_calls(*, cancelled: bool) -> bool:
    """Returns whether the main thread has submitted all calls, or cancelled those without a thread.

    It then waits in the pool's shutdown. An earlier interrupt may hit the start of a thread, which
    corrupts CPython's state.
    """
    frame, called = sys._current_frames().get(main_thread().ident or 0), ""
    while frame is not None:
        name = frame.f_code.co_name
        if (name, called) == ("shutdown", "join"):
            return frame.f_locals["cancel_futures"] is cancelled
        frame, called = frame.f_back, name
    return False


def wait_for_main(*, cancelled: bool) -> None:
    end = monotonic() + TIMEOUT
    while not main_waits_for_calls(cancelled=cancelled):
        assert monotonic() < end
        sleep(0.01)


def test_sigint_waits_for_running_calls_and_commits_none() -> None:
    running, ended = Barrier(2), list[str]()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        running.wait(TIMEOUT)
        if context.call_id == "call_1":
            wait_for_main(cancelled=False)
            signal.raise_signal(signal.SIGINT)
        ended.append(context.call_id)
        return ToolResult("ok")

    at = Session()
    adapter = ScriptedAdapter([call(("go", {}), ("go", {}))], config=ISOLATED)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluate(adapter, prompt(named("go", handler)), at)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (sorted(ended), at[Note].all(), len(at[ToolInvoked])) == (["call_1", "call_2"], (), 0)


def test_sigint_does_not_start_calls_queued_for_a_thread() -> None:
    running, interrupted, begun = Barrier(16), Flag(), list[str]()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        begun.append(context.call_id)
        if running.wait(TIMEOUT) == 0:  # in one of the sixteen calls that run
            wait_for_main(cancelled=False)
            # a signal just before the main thread blocks does not wake it: CPython checks
            # for signals before and after, but not in between
            while not interrupted.wait(0.1):
                signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        interrupted.wait(TIMEOUT)
        wait_for_main(cancelled=True)
        return ToolResult("ok")

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    at = Session()
    adapter = ScriptedAdapter([call(*[("go", {})] * 20)], config=ISOLATED)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluate(adapter, prompt(named("go", handler)), at)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (len(begun), len(at[ToolInvoked])) == (16, 0)


@drivers
@pytest.mark.parametrize("failure", FAILURES)
def test_calls_before_a_failing_call_are_committed_whatever_it_raises(
    driver: Evaluate, failure: type[BaseException]
) -> None:
    programs = [
        Program((Op("append", Plain, (1,)),)),
        Program((Op("append", Plain, (2,)),), failure),
    ]
    side, order = (
        story([programs], config, driver, start=0, external=False, later=False)
        for config in (ISOLATED, RunConfig())
    )
    assert side == order
    assert side[1] == [(Plain(1),), (), ()]


@drivers
def test_no_more_calls_run_than_the_tool_call_budget_allows(driver: Evaluate) -> None:
    counting, ran = counted(lambda context: "ok")
    adapter = ScriptedAdapter([call(*[("count", {})] * 4)], config=ISOLATED)
    with pytest.raises(BudgetExceededError) as caught:
        driver(adapter, prompt(counting), Session(), budget=Budget(max_tool_calls=3))
    assert sorted(ran) == ["call_1", "call_2", "call_3"]
    assert [answer.success for answer in answers(caught.value.transcript)] == [
        True,
        True,
        True,
        False,
    ]


def test_main_loop_runs_calls_in_parallel_if_the_adapter_config_allows_it() -> None:
    adapter = ScriptedAdapter([call(("meet", {}), ("meet", {})), say("done")], config=ISOLATED)
    asked = prompt(named("meet", meet(Barrier(2), later=False)))
    assert MainLoop(adapter).execute(asked, session=Session()).text == "done"


def test_invalid_arguments_are_answered_in_call_order() -> None:
    adapter = ScriptedAdapter(
        [call(("probe", {}), ("probe", {"a": "x"}), ("probe", {})), say("done")], config=ISOLATED
    )
    response = evaluate(adapter, prompt(tool()), Session())
    assert [answer.success for answer in answers(response.transcript)] == [True, False, True]


# --- Keys


def test_call_that_runs_again_keeps_its_unique_idempotency_key() -> None:
    keys: list[str] = []

    def listens(params: Args, *, context: ToolContext) -> ToolResult[object]:
        keys.append(f"{params.a} {context.idempotency_key}")
        # forks lack it, so the call runs again
        context.session.bus.subscribe(ToolInvoked, lambda _: None)
        return ToolResult("ok")

    adapter = ScriptedAdapter(
        [call(("probe", {"a": 1}), ("probe", {"a": 2})), call(("probe", {"a": 3})), say("done")],
        config=RunConfig(parallel_tool_calls="isolated"),
    )
    adapter.evaluate(prompt(tool(listens)), session=Session())
    assert len(keys) == 5
    assert len(set(keys)) == len({key.split()[1] for key in keys}) == 3


# --------------------------------------------------------------------------------------------------
# the arguments of a call on forks


def test_only_repeatable_calls_without_approval_run_on_forks() -> None:
    at, forked = Session(), list[tuple[int, bool]]()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        forked.append((params.a, context.session is not at))
        return ToolResult("ok")

    tools = [
        named("free", handler),
        named("once", handler, "at_most_once"),
        replace(named("asks", handler), approval=lambda: None),
    ]
    names = ["free", "free", "once", "free", "free", "asks", "free", "asks", "asks", "once"]
    calls = call(*[(name, {"a": number}) for number, name in enumerate(names)])
    adapter = ScriptedAdapter([calls, say("done")], config=ISOLATED)
    adapter.evaluate(prompt(*tools), session=at, approver=lambda _: Approve())
    assert [number for number, on_fork in sorted(forked) if on_fork] == [0, 1, 3, 4]
    assert len(forked) == len(names)


@drivers
def test_parallel_calls_have_the_same_idempotency_keys_as_calls_in_order(driver: Evaluate) -> None:
    def keys(config: RunConfig) -> list[str]:
        found: dict[int, str] = {}

        def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
            found[params.a] = context.idempotency_key
            return ToolResult("ok")

        turns = [
            call(*[("free", {"a": number}) for number in range(3)]),
            call(("free", {"a": 3}), ("free", {"a": 4})),
            call(("free", {"a": 5})),
        ]
        adapter = ScriptedAdapter([*turns, say("done")], config=config)
        driver(adapter, prompt(named("free", handler)), Session())
        assert len(set(found.values())) == 6
        return [found[number].partition(":")[2] for number in range(6)]

    assert keys(ISOLATED) == keys(RunConfig())


def test_nested_parallel_calls_of_two_turns_have_unique_idempotency_keys() -> None:
    keys: list[str] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        keys.append(context.idempotency_key)
        return ToolResult("ok")

    inner = prompt(named("free", handler))

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.evaluate(inner).text)

    turns = [
        call(("delegate", {})),
        call(("free", {"a": 1}), ("free", {"a": 2})),
        call(("free", {"a": 3}), ("free", {"a": 4})),
        say("inside"),
        say("done"),
    ]
    adapter = ScriptedAdapter(turns, config=ISOLATED)
    adapter.evaluate(prompt(named("delegate", delegate, "at_most_once")), session=Session())
    assert len(set(keys)) == 4


def test_prompts_of_a_parallel_call_use_the_resources_of_its_fork() -> None:
    files, seen = InMemoryFilesystem(), list[bool]()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        rendered = context.rendered_prompt
        assert isinstance(rendered, RenderedPrompt)
        seen.append(rendered.prompt is context.prompt)
        own = context.prompt.resources.get(Filesystem)
        own.write_text(f"{params.a}.txt", "new")
        seen.append(context.resources.get(Filesystem).exists(f"{params.a}.txt"))
        seen.append(own is not files and not files.list())
        return ToolResult("ok")

    calls = call(("free", {"a": 1}), ("free", {"a": 2}))
    adapter = ScriptedAdapter([calls, say("done")], config=ISOLATED)
    asked = prompt(named("free", handler)).bind(resources={Filesystem: files})
    adapter.evaluate(asked, session=Session())
    assert seen == [True] * 6
    assert [item.path for item in files.list()] == ["1.txt", "2.txt"]


def test_duration_of_a_parallel_call_is_at_least_that_of_its_handler() -> None:
    took: dict[int, float] = {}

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        started = perf_counter()
        while perf_counter() < started + 0.02:  # longer than the steps after it
            pass
        took[params.a] = perf_counter() - started
        return ToolResult("ok")

    at = Session()
    events = recorded(at.bus, ToolInvoked)
    calls = call(("free", {"a": 1}), ("free", {"a": 2}))
    adapter = ScriptedAdapter([calls, say("done")], config=ISOLATED)
    adapter.evaluate(prompt(named("free", handler)), session=at)
    assert [event.seconds >= took[number] for number, event in enumerate(events, 1)] == [True] * 2


@drivers
def test_interrupt_leaves_unmerged_parallel_calls_with_unknown_outcome(
    driver: Evaluate,
) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        if params.a == 2:
            raise KeyboardInterrupt
        return ToolResult("ok")

    saved: list[Any] = []
    calls = call(("free", {"a": 1}), ("free", {"a": 2}))
    adapter = ScriptedAdapter([calls, say("done")], config=ISOLATED)
    with pytest.raises(KeyboardInterrupt):
        driver(adapter, prompt(named("free", handler)), Session(), save=saved.append)
    assert [answer.unknown for answer in answers(saved[-1].messages)] == [False, True]


def test_nested_parallel_calls_of_one_turn_have_unique_idempotency_keys() -> None:
    keys: list[str] = []

    def inside(params: Args, *, context: ToolContext) -> ToolResult[object]:
        keys.append(context.idempotency_key)
        return ToolResult("ok")

    def once(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.evaluate(prompt(named("free", inside))).text)

    calls = call(*[("free", {"a": number}) for number in range(3)])
    adapter = ScriptedAdapter([call(("once", {})), calls, say("in"), say("out")], config=ISOLATED)
    adapter.evaluate(prompt(named("once", once, "at_most_once")), session=Session())
    assert len(keys) == len(set(keys)) == 3
