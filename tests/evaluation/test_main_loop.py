"""The loop around evaluations: sections open through restarts, within one deadline and budget, and
no call runs twice.
"""

import asyncio
from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self

import pytest

from support.agents import Args, Note, nested_adapter, ok, recorded, tool
from weakincentives.adapters.core import PromptResponse, ProviderAdapter
from weakincentives.content import text_of
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    LimitError,
    PromptEvaluationError,
)
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import Execution, Expansion, ExpansionLimitError, MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolMessage, UserMessage
from weakincentives.evaluation.response import Completed, Restarted
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.limits import Budget, Deadline, TokenUsage
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    RenderedPrompt,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.protocols import EventBus, SessionProtocol
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.events import (
    InProcessEventBus,
    ToolInvoked,
    ToolsInjected,
    VisibilityExpanded,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, SeenRequest, call, say
from weakincentives.visibility import SetVisibilityOverride, VisibilityOverrides

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
EACH = TokenUsage(10, 5)


def summarized(
    key: str, *tools: Tool[Any, Any], children: tuple[MarkdownSection[Any], ...] = ()
) -> MarkdownSection:
    return MarkdownSection(
        title=key.title(),
        key=key,
        template=f"All about {key}.",
        summary=f"{key} in short.",
        visibility=SUMMARY,
        tools=tools,
        children=children,
    )


def manual(
    *tools: Tool[Any, Any], disclosure: Disclosure = Disclosure.READ, closable: bool = False
) -> Prompt[Any]:
    """A full section with `tools`, two summarized ones with a tool each, and one without tools."""
    return Prompt(
        ns="tests",
        key="manual",
        disclosure=disclosure,
        closable=closable,
        sections=[
            MarkdownSection(title="Task", key="task", template="Go.", tools=tools),
            summarized("more", tool(name="late")),
            summarized("rest", tool(name="last")),
            summarized("prose"),
        ],
    )


def read(key: str) -> AssistantMessage:
    return call(("read_section", {"section_key": key}))


def opening(*keys: str, reason: str = "need it") -> AssistantMessage:
    return call(("open_sections", {"section_keys": keys, "reason": reason}))


def static(*replies: Reply) -> ScriptedAdapter:
    return ScriptedAdapter(replies, dynamic_tools=False)


def dynamic(*replies: Reply) -> ScriptedAdapter:
    return ScriptedAdapter(replies)


# Any: options of all types.
def execute(
    adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session, **options: Any
) -> Execution[Any]:
    return MainLoop(adapter).execute(prompt, session=session, **options)


def execute_async(
    adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session, **options: Any
) -> Execution[Any]:
    return asyncio.run(MainLoop(adapter).execute_async(prompt, session=session, **options))


drivers = pytest.mark.parametrize("run", [execute, execute_async])
type Run = Callable[..., Execution[Any]]


def overrides(session: Session) -> dict[tuple[str, ...], SectionVisibility]:
    latest = session[VisibilityOverrides].latest()
    return {} if latest is None else dict(latest.overrides)


def opened_with(adapter: ScriptedAdapter) -> list[str]:
    """Returns the prompt's text in each evaluation."""
    first = [request.messages[0] for request in adapter.requests if len(request.messages) == 1]
    return [text_of(message.content) for message in first if isinstance(message, UserMessage)]


# --- Restarts


@pytest.mark.claim("C-01", "C-15", "DT-29", "DT-35", "PS-29")
@drivers
@pytest.mark.parametrize(
    ("adapter", "disclosure", "reason"),
    [
        (
            lambda: static(read("more"), say("done")),
            Disclosure.READ,
            "Adapter does not support dynamic tools",
        ),
        (lambda: static(opening("more"), say("done")), Disclosure.OPEN, "need it"),
        (lambda: dynamic(opening("more"), say("done")), Disclosure.OPEN, "need it"),
        (lambda: dynamic(opening("more"), say("done")), Disclosure.SPLIT, "need it"),
    ],
    ids=["static read", "static open", "dynamic open", "dynamic split"],
)
def test_requested_section_is_open_after_the_restart(
    run: Run, adapter: Callable[[], ScriptedAdapter], disclosure: Disclosure, reason: str
) -> None:
    scripted, session = adapter(), Session()
    injected = recorded(session.bus, ToolsInjected)
    expanded = recorded(session.bus, VisibilityExpanded)
    execution = run(scripted, manual(disclosure=disclosure), session)
    assert execution.text == execution.response.text == "done"
    assert execution.restarts == 1
    assert execution.expansions == (Expansion(("more",), reason),)
    assert execution.usage == EACH + EACH
    before, after = opened_with(scripted)
    assert ("All about more." in before, "All about more." in after) == (False, True)
    assert (
        "late" in scripted.requests[0].tool_names,
        "late" in scripted.requests[1].tool_names,
    ) == (
        False,
        True,
    )
    assert overrides(session) == {("more",): FULL}
    assert injected == []
    # telemetry counts these as wink.disclosure.restarts
    assert [(event.section_keys, event.reason) for event in expanded] == [(("more",), reason)]


@pytest.mark.claim("PD-27")
def test_sections_requested_together_open_in_one_restart() -> None:
    adapter, session = dynamic(opening("more", "prose"), say("done")), Session()
    execution = execute(adapter, manual(disclosure=Disclosure.OPEN), session)
    assert execution.restarts == 1
    assert "All about more." in opened_with(adapter)[1]
    assert "All about prose." in opened_with(adapter)[1]


@pytest.mark.claim("C-09", "C-19", "PD-26", "PR-18")
def test_section_opened_by_the_model_overrides_the_caller_and_the_session() -> None:
    session = Session()
    session.dispatch(SetVisibilityOverride(path=("more",), visibility=FULL))
    adapter = static(read("more"), say("done"))
    execution = execute(adapter, manual(), session, visibility_overrides={("more",): SUMMARY})
    assert execution.restarts == 1
    before, after = opened_with(adapter)
    assert ("All about more." in before, "All about more." in after) == (False, True)


def test_visibility_overrides_apply_across_restarts_and_are_not_stored() -> None:
    adapter, session = static(read("rest"), say("done")), Session()
    given = {("more",): FULL}
    execute(adapter, manual(), session, visibility_overrides=given)
    assert all("All about more." in text for text in opened_with(adapter))
    assert overrides(session) == {("rest",): FULL}
    assert given == {("more",): FULL}


@pytest.mark.claim("C-19", "DT-23")
def test_opened_section_stays_open_in_the_session() -> None:
    session = Session()
    execute(static(read("more"), say("done")), manual(), session)
    adapter = static(say("again"))
    assert execute(adapter, manual(), session).restarts == 0
    assert "late" in adapter.requests[0].tool_names


@pytest.mark.parametrize("dynamic_tools", [False, True])
def test_closed_section_stays_closed_when_another_section_opens(dynamic_tools: bool) -> None:
    close = call(("close_section", {"section_key": "more"}))
    adapter = ScriptedAdapter(
        [read("more"), close, read("rest"), say("done")], dynamic_tools=dynamic_tools
    )
    session = Session()
    execute(adapter, manual(closable=True), session)
    assert overrides(session) == {("more",): SUMMARY, ("rest",): FULL}
    own = [name for name in adapter.requests[-1].tool_names if not name.endswith("_section")]
    assert own == ["last"]


def test_section_closed_by_the_model_overrides_the_caller_after_a_restart() -> None:
    session = Session()
    session[VisibilityOverrides].seed(VisibilityOverrides({("more",): FULL}))
    adapter = static(call(("close_section", {"section_key": "more"})), read("rest"), say("done"))
    MainLoop(adapter).execute(
        manual(closable=True), session=session, visibility_overrides={("more",): FULL}
    )
    assert overrides(session) == {("more",): SUMMARY, ("rest",): FULL}
    own = [name for name in adapter.requests[-1].tool_names if not name.endswith("_section")]
    assert own == ["last"]


@pytest.mark.claim("C-15", "PD-25")
def test_handwritten_expansion_loop_gives_the_same_result() -> None:
    prompt, session = manual(disclosure=Disclosure.OPEN), Session()
    adapter = dynamic(opening("more"), say("done"))
    given: dict[tuple[str, ...], SectionVisibility] = {}
    texts: list[str] = []
    evaluations = 0
    while not texts:
        evaluations += 1
        try:
            response = adapter.evaluate(
                prompt.render(session=session, visibility_overrides=given), session=session
            )
            texts.append(response.text)
        except VisibilityExpansionRequired as e:
            given.update(e.requested_overrides)
    assert (texts, evaluations) == (["done"], 2)
    assert "All about more." in opened_with(adapter)[1]


@drivers
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deadline": 30}, r"deadline must be a Deadline, such as Deadline\.after.*, got 30"),
        (
            {"deadline": timedelta(seconds=30)},
            r"deadline must be a Deadline, .*, got datetime\.timedelta\(",
        ),
        ({"budget": 1000}, r"budget must be a Budget, such as Budget.*, got 1000"),
    ],
)
def test_plain_number_as_a_limit_raises_type_error_with_a_remedy(
    run: Run, given: Any, message: str
) -> None:
    adapter = dynamic()
    with pytest.raises(TypeError, match=message):
        run(adapter, manual(), Session(), **given)
    with pytest.raises(TypeError, match=message):
        adapter.evaluate(manual(), session=Session(), **given)
    assert adapter.requests == []


def stream(adapter: ScriptedAdapter, prompt: Any, *, session: Any) -> None:
    list(adapter.stream(prompt, session=session))


def stream_async(adapter: ScriptedAdapter, prompt: Any, *, session: Any) -> None:
    async def main() -> None:
        async for _ in adapter.stream_async(prompt, session=session):
            pass

    asyncio.run(main())


def loop(adapter: ScriptedAdapter, prompt: Any, *, session: Any) -> None:
    MainLoop(adapter).execute(prompt, session=session)


def loop_async(adapter: ScriptedAdapter, prompt: Any, *, session: Any) -> None:
    asyncio.run(MainLoop(adapter).execute_async(prompt, session=session))


def evaluate(adapter: ScriptedAdapter, prompt: Any, *, session: Any) -> None:
    adapter.evaluate(prompt, session=session)


def evaluate_async(adapter: ScriptedAdapter, prompt: Any, *, session: Any) -> None:
    asyncio.run(adapter.evaluate_async(prompt, session=session))


@pytest.mark.parametrize("way", [evaluate, evaluate_async, stream, stream_async, loop, loop_async])
@pytest.mark.parametrize(
    ("prompt", "session", "message"),
    [
        (
            "Say hello.",
            Session(),
            r"cannot evaluate 'Say hello\.'; pass a template or template\.bind\(…\)",
        ),
        (None, Session(), "cannot evaluate a NoneType; pass a template"),
        (manual(), "s", r"session must be a Session object, got 's'"),
        (manual(), Session, r"session must be a Session object, got <class .*Session'>"),
    ],
)
def test_invalid_prompt_or_session_raises_type_error_with_a_remedy(
    way: Any, prompt: Any, session: Any, message: str
) -> None:
    adapter = dynamic()
    with pytest.raises(TypeError, match=message):
        way(adapter, prompt, session=session)
    assert adapter.requests == []


@pytest.mark.parametrize("count", ["3", None])
def test_max_expansions_must_be_an_integer(count: Any) -> None:
    with pytest.raises(TypeError, match=f"max_expansions must be an int, got {count!r}"):
        MainLoop(dynamic(), max_expansions=count)


@pytest.mark.parametrize("adapter", [3, ScriptedAdapter])
def test_main_loop_rejects_an_adapter_of_another_type(adapter: Any) -> None:
    with pytest.raises(TypeError, match=r"MainLoop takes an adapter, such as OpenAIAdapter.*, got"):
        MainLoop(adapter)


def test_list_of_models_is_rejected_with_the_adapter_for_several() -> None:
    models: Any = ["openai:gpt-5.2", "anthropic:claude-opus-5-5"]
    with pytest.raises(TypeError, match=r"got \[.*\]; use FallbackAdapter\(\*models\)"):
        MainLoop(models)


def test_unknown_argument_of_a_run_is_answered_with_the_right_one() -> None:
    options: Any = {"model": "openai:gpt-5.2"}
    with pytest.raises(TypeError, match=r"unknown argument 'model' .* did you mean 'adapter'"):
        MainLoop(dynamic()).execute(manual(), "Hi", **options)


def test_execute_accepts_another_adapter_and_bus() -> None:
    own, other = dynamic(), static(read("more"), say("done"))
    bus, session = InProcessEventBus(), Session()
    expanded = recorded(bus, VisibilityExpanded)
    loop = MainLoop(own)
    assert loop.execute(manual(), session=session, adapter=other, bus=bus).text == "done"
    assert (len(own.requests), len(other.requests), loop.adapter) == (0, 2, own)
    assert [event.session_id for event in expanded] == [session.session_id]


def test_typed_output_is_returned_after_a_restart() -> None:
    prompt = Prompt[Note](ns="tests", key="typed", sections=[summarized("more", tool(name="late"))])
    execution = MainLoop(static(read("more"), say(Note("hi")))).execute(prompt, session=Session())
    assert execution.output == Note("hi")


# --- Limits


def endless(key: Callable[[int], str]) -> ScriptedAdapter:
    return ScriptedAdapter([opening(key(number)) for number in range(20)])


def nested(depth: int) -> Prompt[Any]:
    inner: tuple[MarkdownSection[Any], ...] = ()
    for number in reversed(range(depth)):
        inner = (summarized(f"level{number}", children=inner),)
    return Prompt(ns="tests", key="deep", sections=inner, disclosure=Disclosure.OPEN)


def deeper(number: int) -> str:
    return ".".join(f"level{at}" for at in range(number + 1))


@pytest.mark.claim("PD-28", "U-16")
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_endless_expansion_raises_expansion_limit_error_with_the_usage(limit: int) -> None:
    adapter, session = endless(deeper), Session()
    with pytest.raises(
        ExpansionLimitError,
        match=f"^the model asked for further sections after {limit} expansions: .*; raise max_exp",
    ) as caught:
        MainLoop(adapter, max_expansions=limit).execute(nested(12), session=session)
    assert isinstance(caught.value, LimitError)
    assert isinstance(caught.value.__cause__, VisibilityExpansionRequired)
    assert (caught.value.phase, caught.value.code) == ("limit", "expansions")
    assert len(adapter.requests) == limit + 1
    assert caught.value.turns == limit + 1
    assert caught.value.usage == TokenUsage(10 * (limit + 1), 5 * (limit + 1))
    assert len(overrides(session)) == limit


@pytest.mark.claim("PD-28", "U-16")
def test_max_expansions_defaults_to_ten_and_must_not_be_negative() -> None:
    adapter = endless(deeper)
    with pytest.raises(ExpansionLimitError, match="after 10 expansions"):
        MainLoop(adapter).execute(nested(12), session=Session())
    assert len(adapter.requests) == 11
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        MainLoop(adapter, max_expansions=-1)


@drivers
@pytest.mark.parametrize(
    ("budget", "bound"),
    [
        (Budget(max_calls=2), "max_calls"),
        (Budget(max_tokens=25), "max_tokens"),
        (Budget(max_input_tokens=20), "max_input_tokens"),
        (Budget(max_output_tokens=10), "max_output_tokens"),
    ],
)
def test_budget_applies_to_all_evaluations_together(run: Run, budget: Budget, bound: str) -> None:
    adapter = static(read("more"), read("rest"), say("never"))
    with pytest.raises(BudgetExceededError, match=bound) as caught:
        run(adapter, manual(), Session(), budget=budget)
    assert len(adapter.requests) == 2
    assert (caught.value.usage, caught.value.turns) == (EACH + EACH, 2)


@drivers
def test_adapter_budget_applies_to_all_evaluations_together(run: Run) -> None:
    replies = [read("more"), say("Done.")]
    for calls, fits in ((2, True), (1, False)):
        config = RunConfig(budget=Budget(max_calls=calls))
        adapter: ScriptedAdapter = ScriptedAdapter(replies, dynamic_tools=False, config=config)
        if fits:
            assert run(adapter, manual(), Session()).text == "Done."
        else:
            with pytest.raises(BudgetExceededError, match="max_calls=1 reached with 1"):
                run(adapter, manual(), Session())


def test_max_tool_calls_applies_across_restarts() -> None:
    adapter = static(
        call(("probe", {})), read("more"), call(("probe", {"a": 4})), call(("probe", {"a": 5}))
    )
    session = Session()
    with pytest.raises(BudgetExceededError, match="max_tool_calls"):
        execute(adapter, manual(tool()), session, budget=Budget(max_tool_calls=3))
    assert [event.name for event in session[ToolInvoked].all()] == [
        "probe",
        "read_section",
        "probe",
    ]


class Watch:
    """A clock that a script advances."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def then(
        self, seconds: float, reply: AssistantMessage
    ) -> Callable[[SeenRequest], AssistantMessage]:
        def play(_: SeenRequest) -> AssistantMessage:
            self.now += timedelta(seconds=seconds)
            return reply

        return play


@pytest.mark.parametrize("how", ["deadline", "max_seconds"])
def test_deadline_applies_to_all_evaluations_together(how: str) -> None:
    watch = Watch()
    adapter = ScriptedAdapter(
        [watch.then(6, read("more")), watch.then(6, read("rest")), say("never")],
        dynamic_tools=False,
        clock=watch,
    )
    limit: dict[str, Any] = (
        {"deadline": Deadline.after(10, now=watch.now)}
        if how == "deadline"
        else {"budget": Budget(max_seconds=10)}
    )
    with pytest.raises(DeadlineExceededError) as caught:
        MainLoop(adapter, clock=watch).execute(manual(), session=Session(), **limit)
    assert len(adapter.requests) == 2
    assert caught.value.turns == 2
    assert {request.request.deadline for request in adapter.requests} == {
        Deadline(datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=10))
    }


@drivers
@pytest.mark.parametrize("usage", [EACH, TokenUsage()], ids=["counted", "unreported"])
def test_error_after_a_restart_contains_the_usage_of_all_evaluations(
    run: Run, usage: TokenUsage
) -> None:
    failing = PromptEvaluationError("the provider is down", phase="request", code="down")
    with pytest.raises(PromptEvaluationError) as caught:
        run(static(replace(read("more"), usage=usage), failing), manual(), Session())
    assert str(caught.value) == str(failing)
    assert (failing.turns, failing.transcript) == (
        0,
        (),
    )  # an error that is used elsewhere does not change
    assert (caught.value.usage, caught.value.turns) == (usage, 2)


# --- At most once


@dataclass(frozen=True)
class Free:
    """Params that can no longer be converted to JSON once they are parsed."""

    value: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", float(self.value))


def once(
    handler: Callable[..., Any], name: str = "pay", params: type[Any] = Args
) -> Tool[Any, Any]:
    return Tool(
        name=name, handler=handler, params_type=params, result_type=object, effect="at_most_once"
    )


def paying(paid: list[int]) -> Tool[Any, Any]:
    """Returns a tool that must not run twice for a call; it answers with the number of its runs."""

    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        paid.append(params.a)
        context.session.dispatch(Note(f"paid {params.a}"))
        return ToolResult(f"receipt {len(paid)}", value=Note(f"value {len(paid)}"))

    return once(pay)


def told(adapter: ScriptedAdapter) -> list[str]:
    """Returns the answers to tool calls in the last request."""
    return [
        message.content
        for message in adapter.requests[-1].messages
        if isinstance(message, ToolMessage)
    ]


@drivers
def test_at_most_once_call_is_replayed_after_a_restart(run: Run) -> None:
    paid: list[int] = []
    session = Session()
    pay = call(("pay", {"a": 7}))
    adapter = static(pay, read("more"), pay, read("rest"), pay, say("done"))
    run(adapter, manual(paying(paid)), session)
    assert paid == [7]
    assert told(adapter) == ['receipt 1\n\n{"text":"value 1"}']
    assert session[Note].all() == (Note("paid 7"),)
    events = [event for event in session[ToolInvoked].all() if event.name == "pay"]
    assert [event.replayed for event in events] == [False, True, True]
    assert {event.content for event in events} == {'receipt 1\n\n{"text":"value 1"}'}
    assert {event.result.value for event in events} == {Note("value 1")}


def test_repeated_equal_calls_are_replayed_in_order_and_further_ones_run() -> None:
    paid: list[int] = []
    pay = call(("pay", {"a": 7}))
    adapter = static(pay, pay, read("more"), pay, pay, pay, say("done"))
    session = Session()
    execute(adapter, manual(paying(paid)), session)
    assert paid == [7, 7, 7]
    assert [text.partition("\n")[0] for text in told(adapter)] == [
        "receipt 1",
        "receipt 2",
        "receipt 3",
    ]
    events = [event.replayed for event in session[ToolInvoked].all() if event.name == "pay"]
    assert events == [False, False, True, True, False]


def test_repeatable_tools_run_again_after_a_restart() -> None:
    ran: list[int] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params.a)
        return ToolResult("ok")

    probe = call(("probe", {}))
    execute(static(probe, read("more"), probe, say("done")), manual(tool(handler)), Session())
    assert ran == [3, 3]


def test_calls_of_an_earlier_execution_are_not_replayed() -> None:
    paid: list[int] = []
    session, prompt = Session(), manual(paying(paid))
    for _ in range(2):
        execute(static(call(("pay", {})), say("done")), prompt, session)
    assert paid == [3, 3]


def test_failed_call_is_replayed_as_a_failure() -> None:
    ran: list[int] = []

    def failing(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params.a)
        raise RuntimeError("the bank said no")

    session = Session()
    pay = call(("pay", {}))
    adapter = static(pay, read("more"), pay, say("done"))
    execute(adapter, manual(once(failing)), session)
    assert (ran, told(adapter)) == ([3], ["the bank said no"])
    assert [event.success for event in session[ToolInvoked].all() if event.name == "pay"] == [
        False,
        False,
    ]


def test_call_with_invalid_arguments_is_not_recorded() -> None:
    paid: list[int] = []
    wrong = call(("pay", {"a": "seven"}))
    execute(
        static(wrong, read("more"), wrong, call(("pay", {})), say("done")),
        manual(paying(paid)),
        Session(),
    )
    assert paid == [3]


def test_call_without_an_answer_has_unknown_outcome_and_is_not_run_again() -> None:
    began: list[int] = []

    def pay_then_ask(params: Args, *, context: ToolContext) -> ToolResult[object]:
        began.append(params.a)
        raise VisibilityExpansionRequired(
            requested_overrides={("more",): FULL}, reason="r", section_keys=("more",)
        )

    pay = call(("pay", {}))
    session = Session()
    adapter = static(pay, pay, say("done"))
    execute(adapter, manual(once(pay_then_ask)), session)
    assert began == [3]
    [answer] = told(adapter)
    assert "outcome is unknown; it is not run again" in answer
    assert [event.replayed for event in session[ToolInvoked].all()] == [False, True]
    assert not session[ToolInvoked].all()[-1].success


def test_unserializable_params_are_matched_by_their_raw_arguments() -> None:
    ran: list[object] = []

    def handler(params: Free, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params.value)
        return ToolResult("ok")

    pay, other = call(("pay", '{"value": "1e999"}')), call(("pay", '{"value": "-1e999"}'))
    execute(
        static(pay, read("more"), pay, other, say("done")),
        manual(once(handler, params=Free)),
        Session(),
    )
    assert ran == [float("inf"), float("-inf")]


@dataclass(frozen=True)
class Addressed:
    """Params that differ outside their fields, so that their JSON is equal."""

    amount: int
    to: InitVar[str] = ""

    def __post_init__(self, to: str) -> None:
        object.__setattr__(self, "receiver", to)


def test_calls_with_equal_json_but_different_params_both_run() -> None:
    ran: list[object] = []

    def handler(params: Addressed, *, context: ToolContext) -> ToolResult[object]:
        ran.append(vars(params)["receiver"])
        return ToolResult("ok")

    first, again = call(("pay", '{"amount": 1, "to": "a"}')), call(("pay", '{"to":"a","amount":1}'))
    other = call(("pay", '{"amount": 1, "to": "b"}'))
    execute(
        static(first, read("more"), again, other, say("done")),
        manual(once(handler, params=Addressed)),
        Session(),
    )
    assert ran == ["a", "b"]


class SeedSignature(ProviderAdapter):
    """An adapter whose `evaluate` accepts only the arguments in the seed documents."""

    def __init__(self, inner: ProviderAdapter) -> None:
        self.inner = inner

    def evaluate[Out](
        self,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        /,
        *,
        session: SessionProtocol,
        bus: EventBus | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
    ) -> PromptResponse[Out]:
        return self.inner.evaluate(
            prompt, session=session, bus=bus, deadline=deadline, budget=budget
        )


def test_at_most_once_call_prevents_restarts_of_an_adapter_with_its_own_loop() -> None:
    probe = call(("probe", {}))
    script = [probe, read("more"), probe, say("done")]
    loop = MainLoop(SeedSignature(static(*script)))
    assert loop.execute(manual(tool(ok)), session=Session()).text == "done"
    paid: list[int] = []
    script = [call(("pay", {})), say("paid"), call(("pay", {})), read("more"), say("done")]
    loop = MainLoop(SeedSignature(static(*script)))
    assert loop.execute(manual(paying(paid)), session=Session()).text == "paid"
    with pytest.raises(TypeError, match=r"SeedSignature has a loop of its own.*from LoopAdapter"):
        loop.execute(manual(paying(paid)), session=Session())
    assert len(paid) == 2


def test_adapter_with_its_own_loop_spends_one_budget_across_restarts() -> None:
    script = [read("more"), read("rest"), say("done")]
    loop = MainLoop(SeedSignature(static(*script)))
    execution = loop.execute(manual(), session=Session(), budget=Budget(max_calls=3))
    assert (execution.usage, execution.restarts) == (EACH + EACH + EACH, 2)
    adapter = static(*script)
    with pytest.raises(BudgetExceededError, match="max_calls") as caught:
        MainLoop(SeedSignature(adapter)).execute(
            manual(), session=Session(), budget=Budget(max_calls=2)
        )
    assert len(adapter.requests) == 2
    assert (caught.value.usage, caught.value.turns) == (EACH + EACH, 2)


@pytest.mark.parametrize(("max_calls", "inside"), [(1, 0), (2, 1)])
def test_nested_adapter_with_its_own_loop_is_limited_by_the_callers_budget(
    max_calls: int, inside: int
) -> None:
    inner = Prompt(
        ns="tests", key="inner", sections=[MarkdownSection(title="T", template="Inner.")]
    )
    asked = static(say("inside"))

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        loop = MainLoop(nested_adapter(context))
        execution = loop.execute(inner, session=Session(), adapter=SeedSignature(asked))
        return ToolResult(execution.text)

    loop = MainLoop(static(call(("delegate", {})), say("done")))
    outer = manual(tool(delegate, name="delegate"))
    with pytest.raises(BudgetExceededError):
        loop.execute(outer, session=Session(), budget=Budget(max_calls=max_calls))
    assert len(asked.requests) == inside


def test_nested_adapter_has_the_capabilities_and_budget_of_the_callers_adapter() -> None:
    seen: list[tuple[object, ...]] = []

    def look(params: Args, *, context: ToolContext) -> ToolResult[object]:
        adapter = nested_adapter(context)
        seen.append((adapter.supports_dynamic_tools, adapter.budget, adapter.media))
        return ToolResult("seen")

    for dynamic_tools in (True, False):
        config = RunConfig(budget=Budget(max_calls=7))
        script = [call(("look", {})), say("done")]
        adapter: ScriptedAdapter = ScriptedAdapter(
            script, dynamic_tools=dynamic_tools, config=config
        )
        MainLoop(adapter).execute(manual(tool(look, name="look")), session=Session())
        assert seen.pop() == (dynamic_tools, Budget(max_calls=7), adapter.media)


class Counter:
    """A resource that a run creates once."""

    made: ClassVar[int] = 0

    def __init__(self) -> None:
        Counter.made += 1


@pytest.mark.parametrize("way", ["execute", "execute_async", "stream", "stream_async"])
def test_resources_stay_open_across_restarts(way: str) -> None:
    def use(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Counter)
        return ToolResult("used")

    use_it = call(("use", {}))
    loop, session = MainLoop(static(use_it, read("more"), use_it, say("done"))), Session()
    registry = ResourceRegistry.of(Binding(Counter, lambda _: Counter()))
    asked = manual(tool(use, name="use")).bind(resources=registry)
    Counter.made = 0

    async def collect() -> list[Any]:
        return [event async for event in loop.stream_async(asked, session=session)]

    match way:
        case "execute":
            assert loop.execute(asked, session=session).restarts == 1
        case "execute_async":
            assert asyncio.run(loop.execute_async(asked, session=session)).restarts == 1
        case _:
            stream = way == "stream"
            events = [*loop.stream(asked, session=session)] if stream else asyncio.run(collect())
            [restarted] = [event for event in events if isinstance(event, Restarted)]
            assert restarted.section_keys == ("more",)
            assert isinstance(events[-1], Completed)
    assert Counter.made == 1


def test_call_before_a_restart_is_not_repeated_after_a_suspension() -> None:
    paid: list[int] = []
    waits = replace(tool(ok, name="wait"), approval="arguments")
    asked = manual(paying(paid), waits)
    pay = call(("pay", {"a": 3}))
    loop = MainLoop(static(pay, read("more"), call(("wait", {})), pay, say("done")))
    session = Session()
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=session)
    suspension = Suspension.from_json(waiting.value.suspension.to_json())
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    loop.resume(asked, suspension, decisions, session=session)
    assert paid == [3]


def test_visibility_decided_before_a_suspension_applies_after_it() -> None:
    now = [True]

    def asked() -> Prompt[Any]:
        waits = replace(tool(ok, name="wait"), approval="arguments")
        return Prompt(
            ns="tests",
            key="manual",
            sections=[
                MarkdownSection(title="Task", template="Go.", tools=[waits]),
                MarkdownSection(
                    title="Now",
                    template="It is now.",
                    summary="Later.",
                    visibility=lambda: FULL if now[0] else SUMMARY,
                ),
                summarized("more", tool(name="late")),
            ],
        )

    adapter = static(call(("wait", {})), read("more"), say("done"))
    loop, session = MainLoop(adapter), Session()
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked(), session=session)
    suspension = Suspension.from_json(waiting.value.suspension.to_json())
    now[0] = False
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    assert loop.resume(asked(), suspension, decisions, session=session).restarts == 1
    assert ["It is now." in text for text in opened_with(adapter)] == [True, True]


def test_equal_calls_both_run_without_a_main_loop() -> None:
    paid: list[int] = []
    pay = call(("pay", {}))
    dynamic(pay, pay, say("done")).evaluate(manual(paying(paid), tool(ok)), session=Session())
    assert paid == [3, 3]


class OwnError(PromptEvaluationError, OSError):
    """An error with its own `__new__`, constructor and slots."""

    __slots__ = ("place",)

    def __new__(cls, *, place: str) -> Self:
        return super().__new__(cls, 5, place)

    def __init__(self, *, place: str) -> None:
        OSError.__init__(self, 5, place)
        PromptEvaluationError.__init__(self, "lost", phase="request", code="lost")
        self.place = place


@pytest.mark.parametrize("script", [[], [read("more")]], ids=["first", "restarted"])
def test_error_with_its_own_constructor_keeps_its_attributes_and_context(
    script: list[Reply],
) -> None:
    raised = OwnError(place="here")

    def fail(seen: SeenRequest) -> AssistantMessage:
        try:
            raise KeyError("why")
        except KeyError:
            raised.add_note("noted")
            raise raised  # noqa: B904 - without `from`, it has a context

    loop = MainLoop(static(*script, fail))
    with pytest.raises(OwnError) as caught:
        loop.execute(manual(tool(ok)), session=Session())
    error = caught.value
    assert (error.place, error.errno, error.__notes__) == ("here", 5, ["noted"])
    assert error.turns == len(script) + 1
    # `raise` in an `except` block has a context and suppresses nothing
    assert isinstance(error.__context__, KeyError)
    assert (error.__cause__, error.__suppress_context__) == (None, False)
