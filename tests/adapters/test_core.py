"""The work of every adapter around the inner loop: events, limits, progress, buses."""

import asyncio
import copy
import gc
import logging
import pickle
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any

import pytest

from support.agents import Args, answers, ok, prompt, recorded, tool
from weakincentives.adapters.core import Connection, LoopAdapter, PromptResponse, ProviderAdapter
from weakincentives.content import MediaSupport, text_of
from weakincentives.errors import WeakIncentivesError
from weakincentives.evaluation.approval import Deny
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    LimitError,
    PromptEvaluationError,
    ThrottleError,
    TurnLimitError,
)
from weakincentives.evaluation.inner_loop import ProviderRequest, RunConfig
from weakincentives.evaluation.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from weakincentives.limits import Budget, Deadline, TokenUsage
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.prompt.errors import OutputParseError
from weakincentives.prompt.renderer import RenderedPrompt
from weakincentives.runtime.events import (
    Event,
    InProcessEventBus,
    Operation,
    PromptExecuted,
    PromptRendered,
    ProviderCalled,
    ToolInvoked,
)
from weakincentives.runtime.session import Append, Session
from weakincentives.testing import ScriptedAdapter, SeenRequest, call, say

START = datetime(2025, 1, 1, tzinfo=UTC)


class Watch:
    """A clock that does not move until a test sets it."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


# --- Events


def test_evaluation_publishes_its_events_in_order() -> None:
    session = Session()
    events = recorded(session.bus, Event)
    adapter = ScriptedAdapter([call(("probe", {"a": 1}), usage=TokenUsage(5, 2, 1)), say("done")])
    response = adapter.evaluate(prompt(tool()), session=session)
    rendered, asked, invoked, again, executed = events
    assert isinstance(rendered, PromptRendered)
    assert (rendered.ns, rendered.key, rendered.adapter, rendered.tool_names) == (
        "tests",
        "agent",
        "scripted",
        ("probe",),
    )
    assert isinstance(asked, ProviderCalled)
    assert (asked.turn, asked.usage, asked.finish, asked.tool_calls, asked.error) == (
        1,
        TokenUsage(5, 2, 1),
        "tool_calls",
        1,
        None,
    )
    assert isinstance(invoked, ToolInvoked)
    assert (invoked.params, invoked.content, invoked.prompt_name) == (Args(1), "ok", "agent")
    assert isinstance(again, ProviderCalled)
    assert again.turn == 2
    assert isinstance(executed, PromptExecuted)
    assert (executed.text, executed.turns, executed.usage) == ("done", 2, TokenUsage(15, 7, 1))
    assert {event.session_id for event in events} == {session.session_id}
    assert (response.text, response.turns, response.usage) == ("done", 2, TokenUsage(15, 7, 1))
    assert response.output is None
    assert [type(message) for message in response.transcript] == [
        UserMessage,
        AssistantMessage,
        ToolMessage,
        AssistantMessage,
    ]
    assert isinstance(response.transcript, tuple)


@pytest.mark.claim("C-08")
def test_rendered_prompt_is_evaluated_unchanged() -> None:
    rendered = prompt(text="First.").render()
    adapter = ScriptedAdapter([say("done")])
    adapter.evaluate(rendered, session=Session())
    assert adapter.requests[0].messages == (UserMessage(rendered.text),)


@pytest.mark.claim("C-08", "DT-03")
def test_prompt_and_rendering_get_equal_responses_and_session_is_keyword_only() -> None:
    def response(target: Any) -> PromptResponse[Any]:
        return ScriptedAdapter([call(("probe", {})), say("done")]).evaluate(
            target, session=Session()
        )

    asked = prompt(tool())
    assert response(asked) == response(asked.render())
    untyped: Any = ScriptedAdapter([say("done")])
    with pytest.raises(TypeError, match="positional"):
        untyped.evaluate(asked, Session())


@pytest.mark.claim("DT-02")
def test_provider_adapter_without_evaluate_cannot_be_instantiated() -> None:
    abstract: Any = ProviderAdapter
    with pytest.raises(TypeError, match="evaluate"):
        abstract()


def test_rendering_without_its_prompt_is_rejected() -> None:
    template = prompt().template
    bare = template.renderer.render(param_lookup={})
    with pytest.raises(ValueError, match=r"rendered by Prompt\.render"):
        ScriptedAdapter([]).evaluate(bare, session=Session())


def test_lone_surrogate_in_the_prompt_is_replaced_before_sending() -> None:
    adapter = ScriptedAdapter([say("done")])
    adapter.evaluate(prompt(text="a\ud800b"), session=Session())
    [message] = adapter.requests[0].messages
    assert isinstance(message, UserMessage)
    assert text_of(message.content).endswith("a?b")


def test_custom_bus_and_the_session_receive_each_event_once() -> None:
    session, bus = Session(), InProcessEventBus()
    own, external = recorded(session.bus, Event), recorded(bus, Event)
    ScriptedAdapter([call(("probe", {})), say("done")]).evaluate(
        prompt(tool()), session=session, bus=bus
    )
    assert own == []
    assert len(external) == 5
    copies = [
        *session[PromptRendered],
        *session[ProviderCalled],
        *session[ToolInvoked],
        *session[PromptExecuted],
    ]
    assert sorted(event.event_id for event in copies) == sorted(
        event.event_id for event in external
    )


@pytest.mark.parametrize("external", [False, True])
def test_failing_reducer_is_logged_and_does_not_end_the_evaluation(
    external: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session()

    def reduce(view: object, event: object) -> Append[Args]:
        raise RuntimeError("reducer broke")

    session[Args].register(ToolInvoked, reduce)
    bus = InProcessEventBus() if external else None
    adapter = ScriptedAdapter([call(("probe", {})), say("done")])
    assert adapter.evaluate(prompt(tool()), session=session, bus=bus).text == "done"
    assert [
        record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR
    ] == [True]


def test_sessions_sharing_an_adapter_and_a_bus_do_not_mix() -> None:
    bus = InProcessEventBus()
    first, second = Session(bus=bus), Session(bus=bus)
    adapter = ScriptedAdapter([call(("probe", {})), say("one"), say("two")])
    adapter.evaluate(prompt(tool()), session=first)
    adapter.evaluate(prompt(), session=second)
    assert [len(session[ToolInvoked]) for session in (first, second)] == [1, 0]
    assert [event.text for event in second[PromptExecuted].all()] == ["two"]


# --- Limits


def late(watch: Watch, seconds: float) -> Any:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        watch.passes(seconds)
        return ToolResult("late")

    return tool(handler)


def test_expired_deadline_sends_no_request() -> None:
    adapter = ScriptedAdapter([], clock=Watch())
    with pytest.raises(DeadlineExceededError) as caught:
        adapter.evaluate(prompt(), session=Session(), deadline=Deadline(START))
    assert (caught.value.phase, caught.value.code, caught.value.turns) == ("limit", "deadline", 0)
    assert (caught.value.usage, caught.value.remedy) == (TokenUsage(), "allow more time")
    assert len(caught.value.transcript) == 1


@pytest.mark.claim("U-15")
def test_call_outlasting_the_deadline_is_recorded_and_the_next_is_not_run() -> None:
    watch, session = Watch(), Session()
    adapter = ScriptedAdapter([call(("probe", {}), ("probe", {}))], clock=watch)
    with pytest.raises(DeadlineExceededError) as caught:
        adapter.evaluate(
            prompt(late(watch, 9)), session=session, deadline=Deadline.after(5, now=START)
        )
    assert [event.content for event in session[ToolInvoked].all()] == ["late"]
    assert [(answer.content, answer.success) for answer in answers(caught.value.transcript)] == [
        ("late", True),
        ("Not run: the evaluation ended.", False),
    ]
    assert (caught.value.turns, caught.value.usage) == (1, TokenUsage(10, 5))


def test_a_finished_answer_counts_even_after_the_deadline() -> None:
    watch = Watch()

    def slow(_: SeenRequest) -> AssistantMessage:
        watch.passes(3600)
        return say("done")

    adapter, deadline = ScriptedAdapter([slow], clock=watch), Deadline.after(5, now=START)
    assert adapter.evaluate(prompt(), session=Session(), deadline=deadline).text == "done"


@pytest.mark.parametrize("where", ["argument", "rendered", "config", "budget", "config's budget"])
def test_earliest_deadline_applies_wherever_it_was_set(where: str) -> None:
    watch = Watch()
    soon, much_later = Deadline.after(5, now=START), Deadline.after(500, now=START)
    config = RunConfig(
        deadline=soon if where == "config" else much_later,
        budget=Budget(max_seconds=5) if where == "config's budget" else Budget(max_seconds=500),
    )
    adapter = ScriptedAdapter([call(("probe", {}))], clock=watch, config=config)
    rendered = prompt(late(watch, 9)).render(deadline=soon if where == "rendered" else much_later)
    with pytest.raises(DeadlineExceededError):
        adapter.evaluate(
            rendered,
            session=Session(),
            deadline=soon if where == "argument" else much_later,
            budget=Budget(max_seconds=5) if where == "budget" else None,
        )


def test_handlers_receive_the_deadline_in_their_context() -> None:
    seen: list[Deadline | None] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        seen.append(context.deadline)
        return ToolResult("ok")

    adapter = ScriptedAdapter([call(("probe", {})), say("done")], clock=Watch())
    adapter.evaluate(prompt(tool(handler)), session=Session(), budget=Budget(max_seconds=60))
    assert seen == [Deadline(START + timedelta(seconds=60))]


@pytest.mark.claim("U-16")
@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(max_tokens=15), "max_tokens=15 reached with 15"),
        (Budget(max_input_tokens=10), "max_input_tokens=10"),
        (Budget(max_output_tokens=5), "max_output_tokens=5"),
        (Budget(max_calls=1), "max_calls=1"),
        (Budget(max_tool_calls=0), "max_tool_calls=0"),
    ],
)
@pytest.mark.parametrize("configured", [False, True])
def test_each_budget_limit_ends_the_evaluation_and_reports_usage(
    budget: Budget,
    said: str,
    configured: bool,
) -> None:
    config = RunConfig(budget=budget if configured else Budget(max_calls=50))
    adapter = ScriptedAdapter([call(("probe", {}))] * 9, config=config)
    with pytest.raises(BudgetExceededError, match=said) as caught:
        adapter.evaluate(prompt(tool()), session=Session(), budget=None if configured else budget)
    assert (caught.value.turns, caught.value.usage) == (1, TokenUsage(10, 5))
    assert (caught.value.phase, caught.value.code) == ("limit", "budget")


def test_exceeding_max_turns_raises_turn_limit_error() -> None:
    adapter = ScriptedAdapter([call(("probe", {}))] * 9, config=RunConfig(max_turns=3))
    with pytest.raises(TurnLimitError) as caught:
        adapter.evaluate(prompt(tool()), session=Session())
    assert (caught.value.turns, caught.value.usage, len(answers(caught.value.transcript))) == (
        3,
        TokenUsage(30, 15),
        3,
    )
    assert (caught.value.phase, caught.value.code) == ("limit", "turns")


# --- Structured output


@dataclass(frozen=True)
class Answer:
    text: str
    score: int = 0


@pytest.mark.claim("C-25")
def test_invalid_output_is_repaired_with_all_issues_listed() -> None:
    session = Session()
    adapter = ScriptedAdapter([say('{"score": "x", "more": 1}'), say('{"text": "ok", "score": 2}')])
    response = adapter.evaluate(prompt(output=Answer), session=session)
    assert response.output == Answer("ok", 2)
    asked = adapter.requests[1].messages[-1]
    assert isinstance(asked, UserMessage)
    assert all(name in asked.content for name in ("text: ", "score: ", "more: "))
    assert [event.output for event in session[PromptExecuted].all()] == [Answer("ok", 2)]


@pytest.mark.claim("C-25", "TL-37")
def test_exhausted_repairs_raise_prompt_evaluation_error() -> None:
    session = Session()
    adapter = ScriptedAdapter([say("no")] * 3)
    with pytest.raises(PromptEvaluationError) as caught:
        adapter.evaluate(prompt(output=Answer), session=session)
    assert (caught.value.phase, caught.value.code, caught.value.turns) == ("response", "output", 3)
    assert isinstance(caught.value.__cause__, OutputParseError)
    assert session[PromptExecuted].all() == ()


def test_without_repairs_the_first_invalid_answer_raises() -> None:
    adapter = ScriptedAdapter([say("no")], config=RunConfig(max_repairs=0))
    with pytest.raises(PromptEvaluationError, match="after 0 repairs"):
        adapter.evaluate(prompt(output=Answer), session=Session())


# --- Errors


def test_limits_and_throttling_are_evaluation_errors() -> None:
    assert issubclass(ThrottleError, PromptEvaluationError)
    for kind in (DeadlineExceededError, BudgetExceededError, TurnLimitError):
        assert issubclass(kind, LimitError)
    assert issubclass(LimitError, PromptEvaluationError)
    assert issubclass(PromptEvaluationError, WeakIncentivesError)


def test_error_message_has_provider_status_remedy_and_code_on_one_line() -> None:
    error = PromptEvaluationError(
        "no such model",
        phase="request",
        code="not_found",
        provider="openai",
        status=404,
        remedy="check its name",
    )
    assert str(error) == "openai 404: no such model; check its name [request/not_found]"


@pytest.mark.parametrize("kind", [PromptEvaluationError, ThrottleError, DeadlineExceededError])
def test_error_survives_pickling_and_copying_with_all_fields(
    kind: type[PromptEvaluationError],
) -> None:
    error = kind(
        message="slow down",
        phase="request",
        code="throttled",
        provider="p",
        status=429,
        remedy="wait",
    )
    conversation = Conversation(ns="tests", key="core", messages=(UserMessage("hi"),))
    error = error.with_progress(usage=TokenUsage(1, 2), turns=3, conversation=conversation)
    if isinstance(error, ThrottleError):
        error.retry_after = timedelta(seconds=7)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
        assert twin.args == ("slow down",)


# --- A subclass


class Broken(LoopAdapter, Connection):
    """A provider that fails in a way that its adapter does not expect."""

    name = "broken"

    def connect(self, rendered: RenderedPrompt[Any], /) -> "Broken":
        return self

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        raise OSError("disk on fire")

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        await asyncio.Event().wait()
        raise AssertionError


def test_unexpected_exception_propagates_and_is_recorded_in_an_event() -> None:
    session = Session()
    with pytest.raises(OSError, match="disk on fire"):
        Broken().evaluate(prompt(), session=session)
    [event] = session[ProviderCalled].all()
    assert (event.error, event.usage, event.finish) == ("OSError: disk on fire", TokenUsage(), "")


def test_cancelled_request_is_recorded_in_an_event() -> None:
    session = Session()

    async def main() -> None:
        running = asyncio.create_task(Broken().evaluate_async(prompt(), session=session))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    [event] = session[ProviderCalled].all()
    assert event.error is not None
    assert event.error.startswith("CancelledError")


def test_loop_adapters_support_dynamic_tools() -> None:
    assert Broken().supports_dynamic_tools is True


def test_adapter_accepts_no_media_and_has_no_budget_by_default() -> None:
    assert (Broken().media, Broken().budget) == (MediaSupport(), None)


@pytest.mark.parametrize("kind", [ProviderAdapter, LoopAdapter])
def test_evaluate_async_is_a_coroutine_function_and_evaluate_is_not(kind: Any) -> None:
    assert iscoroutinefunction(kind.evaluate_async)
    assert not iscoroutinefunction(kind.evaluate)
    assert not iscoroutinefunction(kind.stream)


def test_response_repr_omits_the_transcript() -> None:
    response: PromptResponse[Any] = ScriptedAdapter([say("done")]).evaluate(
        prompt(tool(ok)), session=Session()
    )
    assert "transcript" not in repr(response)
    assert "characters=4" in repr(response)


# --- The end of a line


class Held(LoopAdapter):
    """Opens connections that count how often they are closed."""

    def __init__(self, *replies: AssistantMessage | Exception, **options: Any) -> None:
        super().__init__(**options)
        self.replies = replies
        self.lines: list[HeldLine] = []

    def connect(self, rendered: RenderedPrompt[Any], /) -> "HeldLine":
        self.lines.append(HeldLine(self.replies))
        return self.lines[-1]


class HeldLine(Connection):
    """Supports one of the provider's own tools."""

    def __init__(self, replies: tuple[AssistantMessage | Exception, ...]) -> None:
        self.replies = iter(replies)
        self.closed = 0
        self.provider_tools = [tool(name="theirs")]

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        reply = next(self.replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return self.ask(request)

    def close(self) -> None:
        self.closed += 1


def run_async(adapter: Held, session: Session) -> None:
    asyncio.run(adapter.evaluate_async(prompt(), session=session))


def run_stream(adapter: Held, session: Session) -> None:
    list(adapter.stream(prompt(), session=session))


def run_stream_async(adapter: Held, session: Session) -> None:
    async def main() -> None:
        async for _ in adapter.stream_async(prompt(), session=session):
            pass

    asyncio.run(main())


def run_and_stop_early(adapter: Held, session: Session) -> None:
    events = adapter.stream(prompt(), session=session)
    next(events)
    events.close()


WAYS = [
    lambda adapter, session: adapter.evaluate(prompt(), session=session),
    run_async,
    run_stream,
    run_stream_async,
]


@pytest.mark.parametrize("run", [*WAYS, run_and_stop_early])
def test_connection_is_closed_once_when_its_evaluation_completes(run: Any) -> None:
    adapter = Held(say("done"))
    run(adapter, Session())
    assert [line.closed for line in adapter.lines] == [1]


@pytest.mark.parametrize("run", WAYS)
@pytest.mark.parametrize(
    "error", [OSError("gone"), PromptEvaluationError("no", phase="request", code="timeout")]
)
def test_connection_is_closed_once_when_its_evaluation_fails(run: Any, error: Exception) -> None:
    adapter = Held(error)
    with pytest.raises(type(error)):
        run(adapter, Session())
    assert [line.closed for line in adapter.lines] == [1]


@pytest.mark.parametrize("run", WAYS)
def test_provider_tools_that_require_approval_need_an_approver(run: Any) -> None:
    class Asking(Held):
        def connect(self, rendered: RenderedPrompt[Any], /) -> HeldLine:
            line = super().connect(rendered)
            line.provider_tools = [
                Tool(name="theirs", handler=ok, params_type=Args, approval="arguments")
            ]
            return line

    adapter, session = Asking(say("done")), Session()
    heard = recorded(session.bus, object)
    with pytest.raises(ValueError, match=r"provider itself runs \['theirs'\].*pass approver="):
        run(adapter, session)
    assert heard == []
    response = adapter.evaluate(prompt(), session=session, approver=lambda preview: Deny())
    assert response.text == "done"


@pytest.mark.parametrize("run", WAYS)
def test_operation_keeps_its_result_unless_it_raised(run: Any) -> None:
    session, heard = Session(), list[Operation]()

    def listen(work: Operation) -> None:
        heard.append(work)
        work.on_end(lambda _: None)

    session.bus.subscribe(Operation, listen)
    run(ScriptedAdapter([say("done")]), session)
    assert [(operation.kind, type(operation.result)) for operation in heard] == [
        ("evaluation", PromptResponse),
        ("request", AssistantMessage),
    ]
    with pytest.raises(OSError, match="gone"):
        run(ScriptedAdapter([OSError("gone")]), session)
    assert [(operation.kind, operation.result) for operation in heard[2:]] == [
        ("evaluation", None),
        ("request", None),
    ]


@pytest.mark.parametrize("run", [WAYS[0], run_stream])
def test_raised_error_is_freed_without_the_garbage_collector(run: Any) -> None:
    class LostError(PromptEvaluationError):
        """Raised by no other test."""

    def fail(_: SeenRequest) -> AssistantMessage:
        raise LostError("no", phase="request", code="timeout")

    adapter = ScriptedAdapter([fail])
    gc.collect()
    gc.disable()
    try:
        with suppress(LostError):
            run(adapter, Session())
        assert [error for error in gc.get_objects() if isinstance(error, LostError)] == []
    finally:
        gc.enable()


def test_request_operation_ends_if_an_event_handler_is_interrupted() -> None:
    session, ended = Session(), list[tuple[str, BaseException | None]]()

    def interrupted(event: ProviderCalled) -> None:
        raise KeyboardInterrupt

    def listen(work: Operation) -> None:
        work.on_end(lambda error: ended.append((work.kind, error)))

    session.bus.subscribe(Operation, listen)
    session.bus.subscribe(ProviderCalled, interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        ScriptedAdapter([say("x")]).evaluate(prompt(), session=session)
    assert ended == [("request", None), ("evaluation", caught.value)]


@pytest.mark.parametrize("run", WAYS)
@pytest.mark.parametrize(
    "error", [OSError("gone"), PromptEvaluationError("no", phase="request", code="timeout")]
)
def test_request_failing_after_the_deadline_raises_deadline_exceeded_error(
    run: Any, error: Exception
) -> None:
    watch, session = Watch(), Session()

    def late(_: SeenRequest) -> Exception:
        watch.passes(60)
        return error

    limited = RunConfig(deadline=Deadline(START + timedelta(seconds=60)))
    with pytest.raises(
        DeadlineExceededError, match=r"scripted: the deadline passed during a request"
    ) as caught:
        run(ScriptedAdapter([late], clock=watch, config=limited), session)
    assert (caught.value.__cause__, caught.value.turns) == (error, 1)
    assert (caught.value.phase, caught.value.code) == ("limit", "deadline")
    [event] = session[ProviderCalled].all()
    assert (event.error or "").startswith("DeadlineExceededError")


def test_provider_tools_are_listed_and_published_like_prompt_tools() -> None:
    session = Session()
    calls = AssistantMessage(tool_calls=(ToolCall("1", "theirs", "{}"),), finish="tool_calls")
    Held(calls, say("done")).evaluate(prompt(tool()), session=session)
    assert session[PromptRendered].all()[0].tool_names == ("probe", "theirs")
    assert [(event.name, event.success) for event in session[ToolInvoked].all()] == [
        ("theirs", True)
    ]
