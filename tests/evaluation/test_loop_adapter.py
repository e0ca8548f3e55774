"""Both performers produce the same evaluation."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Args, Note, check_answered, fields_but, prompt, tool
from weakincentives.adapters.core import PromptResponse
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolsAdded
from weakincentives.limits import Budget, Deadline, TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, ToolResult
from weakincentives.prompt.errors import VisibilityExpansionRequired
from weakincentives.runtime.events import (
    Event,
    Operation,
    ProviderCalled,
    ToolInvoked,
    ToolsInjected,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, SeenRequest, call, say
from weakincentives.visibility import SectionVisibility, VisibilityOverrides

START = datetime(2025, 1, 1, tzinfo=UTC)


def writes(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note(f"wrote {params.a}"))
    return ToolResult("ok", value=params, success=params.a >= 0)


async def writes_later(params: Args, *, context: ToolContext) -> ToolResult[object]:
    await asyncio.sleep(0)
    return writes(params, context=context)


def raises(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note("undone"))
    raise ValueError(f"no {params.a}")


def agent() -> Prompt[Any]:
    hidden = MarkdownSection(
        title="More",
        key="more",
        template="The rest.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(writes, name="late")],
    )
    tools = [
        tool(writes, name="writes"),
        tool(writes_later, name="writes_later"),
        tool(raises, name="raises"),
    ]
    shown = MarkdownSection(title="Task", key="task", template="Go.", tools=tools)
    return Prompt(PromptTemplate[Args](ns="tests", key="agent", sections=[shown, hidden]))


CALLS = st.tuples(
    st.sampled_from(["writes", "writes_later", "raises", "late", "unknown", "read_section"]),
    st.sampled_from(
        [
            '{"a": 1}',
            '{"a": -1}',
            '{"a": "x"}',
            '{"a"',
            '{"section_key": "more"}',
            '{"section_key": "x"}',
        ]
    ),
)
REPLIES = st.one_of(
    st.lists(CALLS, min_size=1, max_size=3).map(lambda calls: call(*calls)),
    st.sampled_from([say("no json"), say('{"a": 1}'), replace(say("cut"), finish="length")]),
    st.builds(
        lambda: PromptEvaluationError("down", phase="request", code="server_error", status=500)
    ),
)


def clock() -> Callable[[], datetime]:
    seconds = count()
    return lambda: START + timedelta(seconds=next(seconds))


# Any: an outcome is compared, not used.
def story(
    replies: Sequence[Any],
    *,
    dynamic: bool,
    config: RunConfig,
    budget: Budget | None,
    asynchronous: bool,
) -> Any:
    """Returns everything observable of one evaluation."""
    session = Session()
    events: list[object] = []
    session.bus.subscribe(Event, events.append)
    adapter = ScriptedAdapter(
        [*replies, say('{"a": 1}')], dynamic_tools=dynamic, config=config, clock=clock()
    )
    end: object
    try:
        if asynchronous:
            response = asyncio.run(adapter.evaluate_async(agent(), session=session, budget=budget))
        else:
            response = adapter.evaluate(agent(), session=session, budget=budget)
        check_answered(response.transcript)
        end = response
    except PromptEvaluationError as error:
        check_answered(error.transcript)
        end = type(error), str(error), error.usage, error.turns, error.transcript
    except VisibilityExpansionRequired as required:
        end = str(required)
    seen = [(type(event), fields_but(event)) for event in events]
    requests = [(request.messages, request.tool_names) for request in adapter.requests]
    return end, seen, requests, session[Note].all(), session[VisibilityOverrides].all()


@given(
    replies=st.lists(REPLIES, max_size=5),
    dynamic=st.booleans(),
    config=st.builds(
        RunConfig,
        max_turns=st.integers(1, 6),
        deadline=st.none()
        | st.integers(3, 20).map(lambda n: Deadline(START + timedelta(seconds=n))),
    ),
    budget=st.none()
    | st.builds(Budget, max_tool_calls=st.integers(0, 5), max_tokens=st.integers(0, 200)),
)
def test_sync_and_async_performers_produce_the_same_result_and_events(
    replies: list[Any], *, dynamic: bool, config: RunConfig, budget: Budget | None
) -> None:
    sync, later = (
        story(replies, dynamic=dynamic, config=config, budget=budget, asynchronous=asynchronous)
        for asynchronous in (False, True)
    )
    assert sync == later
    _, seen, requests, _, _ = sync
    assert sum(kind is ProviderCalled for kind, _ in seen) == len(requests)
    for (before, _), (after, _) in pairwise(requests):
        assert after[: len(before)] == before


# --- Injection


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tools_of_a_section_that_was_read_are_added_to_the_running_conversation(
    asynchronous: bool,
) -> None:
    session = Session()
    read = ("read_section", {"section_key": "more"})
    adapter = ScriptedAdapter(
        [call(read, read, ("late", {})), call(("late", {"a": 5})), say('{"a": 1}')]
    )
    if asynchronous:
        asyncio.run(adapter.evaluate_async(agent(), session=session))
    else:
        adapter.evaluate(agent(), session=session)
    first, second, third = adapter.requests
    assert second.tool_names == (*first.tool_names, "late")
    assert third.tool_names == second.tool_names
    assert second.messages[: len(first.messages)] == first.messages
    assert [event.success for event in session[ToolInvoked].all()] == [True, True, False, True]
    assert session[Note].all() == (Note("wrote 5"),)
    [injected] = session[ToolsInjected].all()
    assert (injected.tool_names, injected.section_key) == (("late",), "more")
    overrides = session[VisibilityOverrides].latest()
    assert overrides is not None
    assert overrides.get(("more",)) is SectionVisibility.FULL
    assert "late" in [tool.name for tool in agent().render(session=session).tools]


def test_tools_are_added_after_all_answers_of_the_turn() -> None:
    adapter = ScriptedAdapter(
        [call(("read_section", {"section_key": "more"}), ("writes", {})), say('{"a": 1}')]
    )
    response: PromptResponse[Any] = adapter.evaluate(agent(), session=Session())
    kinds = [type(message).__name__ for message in response.transcript]
    assert kinds == [
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "ToolMessage",
        "ToolsAdded",
        "AssistantMessage",
    ]
    [added] = [message for message in response.transcript if isinstance(message, ToolsAdded)]
    assert [spec.name for spec in added.tools] == ["late"]


def test_scripted_reply_can_depend_on_the_request() -> None:
    def reply(request: SeenRequest) -> AssistantMessage:
        return say(f'{{"a": {request.request.turn}}}')

    response = ScriptedAdapter([reply]).evaluate(agent(), session=Session())
    assert response.output == Args(1)


@pytest.mark.parametrize("reply", [say(Args()), ValueError("no")], ids=["answered", "failed"])
def test_provider_called_is_published_before_the_request_operation_ends(reply: Reply) -> None:
    seen: list[str] = []

    def listen(operation: Operation) -> None:
        operation.on_end(lambda _: seen.append(operation.kind))

    session = Session()
    session.bus.subscribe(Operation, listen)
    session.bus.subscribe(ProviderCalled, lambda _: seen.append("ProviderCalled"))
    with suppress(ValueError):
        ScriptedAdapter([reply]).evaluate(agent(), session=session)
    assert seen == ["ProviderCalled", "request", "evaluation"]


@pytest.mark.parametrize("model", ["", "m-2"])
@pytest.mark.parametrize("failure", [None, ValueError("no")])
def test_provider_called_contains_adapter_model_usage_and_cost(
    failure: ValueError | None, model: str
) -> None:
    session, paid = Session(), list[tuple[TokenUsage, str]]()
    ends: list[tuple[str, BaseException | None]] = []

    def price(usage: TokenUsage, model: str) -> float:
        paid.append((usage, model))
        return 2.5

    def listen(operation: Operation) -> None:
        operation.on_end(lambda error: ends.append((operation.kind, error)))

    session.bus.subscribe(Operation, listen)
    reply = replace(say(Args(), usage=TokenUsage(7, 3)), model=model)
    adapter = ScriptedAdapter([failure or reply], config=RunConfig(prices=price))
    with suppress(ValueError):
        adapter.evaluate(agent(), session=session)
    [event] = session[ProviderCalled].all()
    assert event.adapter == adapter.name != ""
    assert event.seconds >= 0
    if failure is None:
        assert (event.model, event.cost, event.error) == (model or adapter.model, 2.5, None)
        assert (event.usage, event.finish) == (TokenUsage(7, 3), "stop")
        assert (TokenUsage(7, 3), model or adapter.model) in paid
        assert ends == [("request", None), ("evaluation", None)]
    else:
        assert (event.model, event.cost, event.error) == (adapter.model, None, "ValueError: no")
        assert (event.usage, event.finish, paid) == (TokenUsage(), "", [])
        assert ends == [("request", failure), ("evaluation", failure)]


def test_prices_can_be_unhashable_and_replaced_between_runs() -> None:
    @dataclass
    class Prices:
        dollars: float

        def __call__(self, usage: TokenUsage, model: str) -> float:
            return self.dollars

    adapter = ScriptedAdapter([say('{"a": 1}')] * 2)
    loop = MainLoop(adapter)
    costs = list[float | None]()
    for dollars in (1, 2):
        adapter.config = RunConfig(prices=Prices(dollars))
        session = Session()
        loop.execute(agent(), session=session)
        costs += [event.cost for event in session[ProviderCalled]]
    assert costs == [1, 2]


def test_main_loop_calls_the_evaluate_method_of_a_subclass_that_overrides_it() -> None:
    class Canned(ScriptedAdapter):
        def evaluate(self, *arguments: Any, **options: Any) -> Any:
            return PromptResponse(
                prompt_name="canned", text="Hello.", output=None, usage=TokenUsage(), turns=1
            )

    assert MainLoop(Canned([])).execute(prompt()).text == "Hello."


def test_older_annotation_of_an_adapter_with_an_output_type_still_runs() -> None:
    adapter: Any = ScriptedAdapter  # for type checkers, the class has no parameter
    assert adapter[Args] is ScriptedAdapter
