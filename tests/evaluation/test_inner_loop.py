"""The inner loop with its limits, without a provider or handlers."""

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import check_answered, text_of, tool
from weakincentives.content import Image
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    LimitError,
    PromptEvaluationError,
)
from weakincentives.evaluation.inner_loop import (
    Action,
    Finished,
    InnerLoop,
    ProviderRequest,
    Restart,
    RunConfig,
    ToolCalls,
)
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Finish,
    Instructions,
    Message,
    ToolCall,
    ToolExecutionOutcome,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
)
from weakincentives.evaluation.run_limits import RunLimits
from weakincentives.evaluation.schemas import tool_to_spec
from weakincentives.limits import Budget, Clock, Deadline, Meter, TokenUsage
from weakincentives.prompt import SectionVisibility
from weakincentives.prompt.errors import OutputParseError, VisibilityExpansionRequired
from weakincentives.prompt.output import StructuredOutputConfig, parse_output

NOW = datetime(2025, 1, 1, tzinfo=UTC)
SPECS = (tool_to_spec(tool(name="known")),)
HIDDEN = tuple(tool(name=name) for name in ("late_one", "late_two", "known"))


@dataclass(frozen=True)
class Answer:
    n: int


def asks(*names: str, finish: Finish = "tool_calls", tokens: int = 1) -> AssistantMessage:
    calls = tuple(ToolCall(f"call_{index}", name, "{}") for index, name in enumerate(names))
    return AssistantMessage(tool_calls=calls, finish=finish, usage=TokenUsage(tokens, tokens))


def says(text: str, finish: Finish = "stop") -> AssistantMessage:
    return AssistantMessage(text=text, finish=finish, usage=TokenUsage(1, 1))


def outcome(call: ToolCall, *, expanded: bool = False) -> ToolExecutionOutcome:
    done = ToolExecutionOutcome(
        call.call_id, ToolMessage(call.call_id, f"did {call.name}"), success=True
    )
    return (
        replace(done, expanded_tools=HIDDEN, section_key="s", opened=(("s",),))
        if expanded
        else done
    )


def opening() -> Conversation:
    return Conversation(ns="tests", key="go", messages=(UserMessage("Go."),), tools=SPECS)


def machine(config: RunConfig | None = None, *, typed: bool = False) -> InnerLoop:
    return InnerLoop(
        conversation=opening(),
        structured_output=StructuredOutputConfig(Answer) if typed else None,
        config=config or RunConfig(),
        meter=Meter(config.budget if config else None),
    )


def limits_of(loop: InnerLoop, clock: Clock = lambda: NOW) -> RunLimits:
    return RunLimits(loop.config, loop.meter, clock, "", 0)


# --- L5: any script ends, each call is answered once and in order, and any step can be taken from a
# pickle

MODEL_NAMES = st.sampled_from(["known", "unknown", "", "expand", "late_one"])
TURNS = st.lists(
    st.builds(
        lambda names, finish, text, tokens: replace(
            asks(*names, finish=finish, tokens=tokens), text=text
        ),
        st.lists(MODEL_NAMES, max_size=4),
        st.sampled_from(
            [*["stop"] * 4, *["tool_calls"] * 4, "length", "content_filter", "refusal"]
        ),
        st.sampled_from(["", "no", '{"n": 1}', '{"n": "x"}', "\ud800"]),
        st.integers(0, 50),
    ),
    max_size=8,
)
CONFIGS = st.builds(
    RunConfig,
    max_turns=st.one_of(st.none(), st.integers(0, 5)),
    max_repairs=st.integers(0, 3),
    supports_dynamic_tools=st.just(value=True),
    deadline=st.one_of(
        st.none(), st.integers(0, 20).map(lambda n: Deadline(NOW + timedelta(seconds=n)))
    ),
    budget=st.one_of(
        st.none(),
        st.builds(
            Budget,
            max_tokens=st.one_of(st.none(), st.integers(0, 200)),
            max_calls=st.one_of(st.none(), st.integers(0, 5)),
            max_tool_calls=st.one_of(st.none(), st.integers(0, 6)),
        ),
    ),
)

type End = tuple[object, list[Message], TokenUsage, int, list[object]]


def run(loop: InnerLoop, script: Sequence[AssistantMessage], batch: int, *, pickled: bool) -> End:
    """Plays `script` to `loop`, submitting up to `batch` outcomes together; each step takes a
    second.
    """
    seconds = count()
    injected: list[object] = []

    def now() -> datetime:
        return NOW + timedelta(seconds=next(seconds))

    def advance(step: Action) -> Action:
        limits = limits_of(loop, now)
        match step:
            case ProviderRequest(turn=turn, changes=changes):
                injected.extend(
                    (change.section_key, [tool.name for tool in change.expanded_tools])
                    for change in changes
                )
                try:
                    limits.reserve_request(turn - 1)
                except LimitError:
                    loop.turns -= 1  # the request is not sent
                    raise
                answer = script[turn - 1] if turn <= len(script) else says('{"n": 1}')
                limits.count(answer.usage)
                return loop.receive(answer)
            case ToolCalls(calls):
                reserved = limits.reserve_calls(calls[:batch])
                outcomes = [outcome(call, expanded=call.name == "expand") for call in reserved]
                return loop.submit(outcomes)
            case _:
                raise AssertionError

    end: object
    try:
        step = loop.start()
        while not isinstance(step, Finished):
            if pickled:
                loop, step = pickle.loads(pickle.dumps((loop, step)))
            step = advance(step)
        end = step
    except PromptEvaluationError as error:
        error = loop.failed(error)
        end = (
            type(error),
            str(error),
            error.usage,
            error.turns,
            list(error.transcript) == loop.transcript,
        )
    return end, loop.transcript, loop.usage, loop.turns, injected


@given(script=TURNS, config=CONFIGS, typed=st.booleans(), batch=st.integers(1, 4))
def test_every_run_ends_answers_each_call_and_can_be_pickled_at_each_step(
    script: list[AssistantMessage], config: RunConfig, *, typed: bool, batch: int
) -> None:
    straight = run(machine(config, typed=typed), script, batch, pickled=False)
    assert run(machine(config, typed=typed), script, batch, pickled=True) == straight
    end, transcript, usage, turns, injected = straight
    check_answered(transcript)
    assert transcript[0] == UserMessage("Go.")
    replies = [message for message in transcript if isinstance(message, AssistantMessage)]
    assert replies == [*script, says('{"n": 1}')][: len(replies)]
    assert usage == sum((message.usage for message in replies), TokenUsage())
    assert turns in (len(replies), len(replies) + 1)
    if isinstance(end, tuple):
        assert end[-1], "the error has the whole transcript"
    if isinstance(end, Finished):
        assert turns == len(replies)
        assert isinstance(end.output, Answer) is typed
    if config.max_turns is not None:
        assert turns <= config.max_turns
    added = [
        spec.name
        for message in transcript
        if isinstance(message, ToolsAdded)
        for spec in message.tools
    ]
    assert len(added) == len(set(added)), "a tool is added once"
    assert "known" not in added
    assert len(injected) <= sum(
        call.name == "expand" for message in replies for call in message.tool_calls
    )


@given(script=TURNS, config=CONFIGS, batch=st.integers(2, 4))
def test_submitting_outcomes_in_batches_or_singly_gives_the_same_result(
    script: list[AssistantMessage], config: RunConfig, batch: int
) -> None:
    unlimited = replace(config, deadline=None, budget=None)
    one_by_one = run(machine(unlimited), script, 1, pickled=False)
    assert run(machine(unlimited), script, batch, pickled=False) == one_by_one


# --- Cases


def start(loop: InnerLoop) -> ProviderRequest:
    step = loop.start()
    assert isinstance(step, ProviderRequest)
    return step


def test_submit_rejects_the_outcome_of_another_call() -> None:
    loop = machine()
    start(loop)
    loop.receive(asks("known", "known"))
    with pytest.raises(
        ValueError,
        match="outcome of call 'call_1' was submitted, but the pending calls are 'call_0'",
    ):
        loop.submit([outcome(ToolCall("call_1", "known", "{}"))])


def test_submit_without_pending_calls_raises_value_error() -> None:
    loop = machine()
    start(loop)
    with pytest.raises(ValueError, match="the pending calls are 'none'"):
        loop.submit([outcome(ToolCall("call_1", "known", "{}"))])


@pytest.mark.parametrize(
    ("finish", "code"),
    [("length", "truncated"), ("content_filter", "content_filter"), ("refusal", "refused")],
)
def test_truncated_or_refused_answer_ends_the_run_with_every_call_answered(
    finish: Finish, code: str
) -> None:
    loop = machine()
    start(loop)
    with pytest.raises(PromptEvaluationError) as caught:
        loop.receive(asks("known", finish=finish))
    assert (caught.value.phase, caught.value.code) == ("response", code)
    check_answered(caught.value.transcript)


def test_tool_calls_run_even_if_the_finish_reason_is_stop() -> None:
    loop = machine()
    start(loop)
    assert isinstance(loop.receive(asks("known", finish="stop")), ToolCalls)


@pytest.mark.parametrize(
    ("expired", "seconds"), [(False, -1), (True, 1)], ids=["passed", "while-somebody-waited"]
)
def test_call_after_the_deadline_raises_and_releases_its_reservation(
    seconds: int, *, expired: bool
) -> None:
    loop = machine(RunConfig(deadline=Deadline(NOW + timedelta(seconds=seconds))))
    loop.meter.reserve_tool_calls(1)
    with pytest.raises(DeadlineExceededError) as caught:
        limits_of(loop).check_calls(1, expired=expired)
    assert (caught.value.code, caught.value.remedy) == ("deadline", "allow more time")
    assert loop.meter.tool_calls == 0


@pytest.mark.parametrize(
    ("budget", "bound"),
    [
        (Budget(max_tokens=2), "max_tokens=2"),
        (Budget(max_input_tokens=1), "max_input_tokens=1"),
        (Budget(max_output_tokens=1), "max_output_tokens=1"),
        (Budget(max_tool_calls=0), "max_tool_calls=0"),
    ],
)
def test_exhausted_budget_rejects_the_next_call_and_names_the_limit(
    budget: Budget, bound: str
) -> None:
    loop = machine(RunConfig(budget=budget))
    limits = limits_of(loop)
    limits.count(TokenUsage(1, 1))
    with pytest.raises(BudgetExceededError, match=bound):
        limits.reserve_calls((ToolCall("call_0", "known", "{}"),))
    assert loop.usage == TokenUsage(1, 1)


@pytest.mark.parametrize(
    ("budget", "price", "remedy"),
    [
        (Budget(max_cost=1), 1.0, "raise the budget"),
        (Budget(max_cost=1), None, "pass prices that know it to RunConfig"),
    ],
)
def test_budget_remedy_mentions_prices_only_if_a_price_is_missing(
    budget: Budget, price: float | None, remedy: str
) -> None:
    limits = limits_of(machine(RunConfig(budget=budget, prices=lambda usage, model: price)))
    limits.reserve_request(0)
    limits.count(TokenUsage(1, 1))
    with pytest.raises(BudgetExceededError) as caught:
        limits.reserve_request(1)
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(
    ("code", "status", "marked"),
    [
        ("bad_request", 400, ["More.", "Look."]),
        ("content", None, ["Look."]),
        ("server_error", 500, ["Look."]),
        ("rate_limit", 429, []),
    ],
)
def test_rejected_request_marks_the_messages_since_the_models_last_one(
    code: str, status: int | None, marked: list[str]
) -> None:
    picture = Image.from_url("https://example.com/a.png", "image/png")
    new = UserMessage("More."), UserMessage(("Look.", picture))
    earlier = Instructions("Be kind."), UserMessage(("Hi", picture)), says("Hello.")
    loop = InnerLoop(conversation=replace(opening(), messages=(*earlier, *new)))
    loop.start()
    error = loop.failed(PromptEvaluationError("no", phase="request", code=code, status=status))
    assert error.conversation is not None
    messages = error.conversation.messages
    users = [message for message in messages if isinstance(message, UserMessage)]
    refused = [message for message in users if message.refused]
    assert [text_of(message).partition("\n")[0] for message in refused] == marked
    assert messages[:3] == earlier
    assert error.conversation.retried().messages == (*earlier, *new)


def test_stop_answers_started_calls_as_unknown_and_the_others_as_not_run() -> None:
    loop = machine()
    start(loop)
    step = loop.receive(asks("known", "late_one", "late_two"))
    assert isinstance(step, ToolCalls)
    loop.submit([outcome(step.calls[0])])
    loop.running = step.calls[1:2]
    loop.stop()
    texts = [(item.text, item.unknown) for item in loop.transcript if isinstance(item, ToolMessage)]
    assert texts == [
        ("did known", False),
        ("This call was interrupted and its outcome is unknown.", True),
        ("Not run: the evaluation ended.", False),
    ]


def test_final_text_joins_paused_parts_and_excludes_earlier_answers() -> None:
    loop = machine()
    start(loop)
    step = loop.receive(replace(asks("known"), text="Let me see. "))
    assert isinstance(step, ToolCalls)
    assert isinstance(loop.submit([outcome(step.calls[0])]), ProviderRequest)
    for text in ("One, ", "two, "):
        assert isinstance(loop.receive(says(text, finish="pause")), ProviderRequest)
    assert loop.receive(says("three.")) == Finished("One, two, three.", None)


def test_closing_a_section_removes_only_tools_that_the_model_has() -> None:
    loop = machine()
    start(loop)
    step = loop.receive(asks("known"))
    assert isinstance(step, ToolCalls)
    closed = replace(outcome(step.calls[0]), closed=("s",), closed_tools=("late_one", "known"))
    loop.submit([closed])
    assert loop.transcript[-1] == ToolsRemoved(("known",))


def test_conversation_keeps_the_sections_that_calls_have_opened_and_closed() -> None:
    loop = machine()
    start(loop)
    step = loop.receive(asks("known", "known"))
    assert isinstance(step, ToolCalls)
    first, second = map(outcome, step.calls)
    loop.submit([replace(first, opened=(("a",), ("b",)))])
    loop.submit([replace(second, closed=("b",))])
    sections = {record.path: record.visibility for record in loop.conversation_now.sections}
    assert sections == {("a",): SectionVisibility.FULL, ("b",): SectionVisibility.SUMMARY}


def test_several_section_requests_are_merged_into_one_restart() -> None:
    loop = machine()
    start(loop)
    step = loop.receive(asks("open_sections", "open_sections"))
    assert isinstance(step, ToolCalls)
    requests = [
        VisibilityExpansionRequired(
            requested_overrides={(name,): SectionVisibility.FULL},
            reason="to read",
            section_keys=(name,),
        )
        for name in ("one", "two")
    ]
    outcomes = [
        replace(outcome(call), request=request)
        for call, request in zip(step.calls, requests, strict=True)
    ]
    action = loop.submit(outcomes)
    assert isinstance(action, Restart)
    request = action.request
    assert "sections: one, two" in str(request)
    assert (request.section_keys, request.reason) == (("one", "two"), "to read")
    assert set(request.requested_overrides) == {("one",), ("two",)}


def test_reserve_calls_reserves_only_as_many_as_the_budget_allows() -> None:
    calls = tuple([ToolCall(f"call_{number}", "known", "{}") for number in range(3)])
    limits = limits_of(machine(RunConfig(budget=Budget(max_tool_calls=2))))
    assert limits.reserve_calls(calls) == calls[:2]
    with pytest.raises(BudgetExceededError, match="max_tool_calls=2 reached with 2"):
        limits.reserve_calls(calls[2:])
    limits.reserve_request(1)  # the model may still answer


def test_repair_lists_all_issues_and_exhausted_repairs_raise_an_error() -> None:
    loop = machine(RunConfig(max_repairs=1), typed=True)
    start(loop)
    step = loop.receive(says('{"n": "x", "extra": 1}'))
    assert isinstance(step, ProviderRequest)
    assert step.turn == 2
    assert "n: " in text_of(loop.transcript[-1])
    assert "extra: " in text_of(loop.transcript[-1])
    with pytest.raises(
        PromptEvaluationError, match="not the declared output after 1 repairs"
    ) as caught:
        loop.receive(says("still wrong"))
    assert (caught.value.phase, caught.value.turns) == ("response", 2)
    assert isinstance(caught.value.__cause__, OutputParseError)
    assert caught.value.__cause__.raw_response == "still wrong"


def test_repair_message_is_limited_in_length() -> None:
    loop = machine(typed=True)
    start(loop)
    loop.receive(says(json.dumps({f"extra{number}": 1 for number in range(10_000)})))
    assert len(text_of(loop.transcript[-1])) < 5_000
    assert text_of(loop.transcript[-1]).endswith("Answer again with the corrected JSON alone.")


def test_repaired_answer_is_accepted() -> None:
    loop = machine(typed=True)
    start(loop)
    loop.receive(says("no json"))
    assert loop.receive(says('{"n": 2}')) == Finished('{"n": 2}', Answer(2))


@pytest.mark.parametrize(
    "text",
    [
        '{"items": [{"n": 1}, {"n": 2}]}',
        '[{"n": 1}, {"n": 2}]',
        '```json\n{"items": [{"n": 1}, {"n": 2}]}\n```',
        'Here it is:\n```json\n{"items": [{"n": 1}, {"n": 2}]}\n```\nDone.',
        '```\n[{"n": 1}, {"n": 2}]\n```',
    ],
)
def test_array_output_is_accepted_with_or_without_wrapper_and_code_fence(text: str) -> None:
    loop = InnerLoop(conversation=opening(), structured_output=StructuredOutputConfig(list[Answer]))
    request = start(loop)
    assert request.output is not None
    assert list(request.output.schema["properties"]) == ["items"]
    step = loop.receive(says(text))
    assert isinstance(step, Finished)
    assert step.output == [Answer(1), Answer(2)]


@dataclass(frozen=True)
class Scored:
    n: int
    score: int = 7


@pytest.mark.parametrize(
    "text",
    ['{"n": 1}', '{"n": 1, "score": null}', 'So:\n```json\n{"n": 1, "score": null}\n```'],
)
def test_null_in_the_answer_restores_a_default_and_the_text_still_parses(text: str) -> None:
    config = StructuredOutputConfig(Scored)
    loop = InnerLoop(conversation=opening(), structured_output=config)
    start(loop)
    step = loop.receive(says(text))
    assert isinstance(step, Finished)
    assert (step.output, step.text) == (Scored(1, 7), step.text) == parse_output(step.text, config)


def test_null_for_a_required_field_is_repaired() -> None:
    loop = InnerLoop(conversation=opening(), structured_output=StructuredOutputConfig(Scored))
    start(loop)
    assert isinstance(loop.receive(says('{"n": null, "score": null}')), ProviderRequest)
    assert "n: " in text_of(loop.transcript[-1])


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"items": ' * 50_000, "```\n" + "{" * 50_000, '{"items": 1}', "null"]
)
def test_malformed_final_text_requests_a_repair(text: str) -> None:
    loop = InnerLoop(conversation=opening(), structured_output=StructuredOutputConfig(list[Answer]))
    start(loop)
    assert isinstance(loop.receive(says(text)), ProviderRequest)


def steps_of(turns: int, tools: int) -> Iterator[Action]:
    loop = machine(RunConfig(max_turns=None))
    step: Action = loop.start()
    while not isinstance(step, Finished):
        yield step
        if isinstance(step, ToolCalls):
            step = loop.submit([outcome(call) for call in step.calls])
        elif isinstance(step, ProviderRequest):
            step = loop.receive(asks(*["known"] * tools) if step.turn <= turns else says("done"))


def test_requests_share_one_transcript_and_the_first_tools() -> None:
    requests = [step for step in steps_of(20, 2) if isinstance(step, ProviderRequest)]
    assert len(requests) == 21
    assert all(request.transcript is requests[0].transcript for request in requests)
    assert all(request.tools is requests[0].tools for request in requests)


@pytest.mark.parametrize("word", [True, False, "parallel"])
def test_unknown_parallel_tool_calls_mode_raises_value_error(word: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"^parallel_tool_calls must be 'in_order' or 'isolated', got {word!r}"
    ):
        RunConfig(parallel_tool_calls=word)


@pytest.mark.parametrize("name", ["max_turns", "max_repairs", "max_depth"])
@pytest.mark.parametrize(
    ("count", "kind", "message"),
    [
        ("3", TypeError, "must be an int, got '3'"),
        (2.5, TypeError, "must be an int, got 2.5"),
        (True, TypeError, "must be an int, got True"),
        (-1, ValueError, "must not be negative, got -1"),
    ],
)
def test_run_config_limits_must_be_non_negative_integers(
    name: str, count: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"{name} {message}"):
        RunConfig(**{name: count})


@pytest.mark.parametrize("name", ["deadline", "budget"])
def test_run_config_deadline_and_budget_must_not_be_plain_numbers(name: str) -> None:
    limits: dict[str, Any] = {name: 30}
    with pytest.raises(TypeError, match=f"{name} must be a {name.title()}, such as .*, got 30"):
        RunConfig(**limits)
