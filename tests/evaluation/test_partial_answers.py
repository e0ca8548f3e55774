"""Streams of typed prompts: the events that show the answer so far, and their cost.

The comments name the rows of the acceptance cases.
"""

import asyncio
import copy
import json
import os
import pickle
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.ag_ui_front_end import apply_patch
from support.partial_answers import ANSWER, ORDER, Chunks, Line, Order, template
from support.scripted_server import Call, Say, ScriptedServer
from weakincentives import (
    MainLoop,
    MarkdownSection,
    OutputRejected,
    PromptEvaluationError,
    ToolContext,
    serde,
    tool,
)
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation import (
    AnswerRejected,
    AssistantMessage,
    Completed,
    OutputDelta,
    ProviderAdapter,
    ProviderRequest,
    ReasoningDelta,
    Restarted,
    TextDelta,
    ToolCall,
    ToolCallStarted,
)
from weakincentives.evaluation.messages import ToolsAdded
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility


class OneChunk(Chunks):
    size = 1_000_000


# Any: prompts, outputs and events of all types.
def in_order(adapter: ProviderAdapter, asked: Any, **options: Any) -> list[Any]:
    return list(MainLoop(adapter).stream(asked, "Hi", **options))


def in_a_loop(adapter: ProviderAdapter, asked: Any, **options: Any) -> list[Any]:
    async def run() -> list[Any]:
        events = MainLoop(adapter).stream_async(asked, "Hi", **options)
        return [event async for event in events]

    return asyncio.run(run())


def partials(events: Sequence[Any]) -> list[Any]:
    return [event.partial for event in events if isinstance(event, OutputDelta)]


def parts(events: Sequence[Any], *borders: type) -> list[list[Any]]:
    """Returns the partial answers, split at the events of the `borders`' types."""
    found: list[list[Any]] = [[]]
    for event in events:
        if isinstance(event, borders):
            found.append([])
        elif isinstance(event, OutputDelta):
            found[-1].append(event.partial)
    return found


drivers = pytest.mark.parametrize("run", [in_order, in_a_loop], ids=["sync", "async"])
type Run = Callable[..., list[Any]]


@drivers
def test_each_text_delta_that_changes_the_answer_is_followed_by_one_output_delta(
    run: Run,
) -> None:
    events = run(Chunks([say(ANSWER)]), template(Order))
    assert [event.text for event in events if isinstance(event, TextDelta)] == list(ANSWER)
    shown = partials(events)
    assert shown[:3] == [{}, {"number": 12}, {"number": 12, "state": "open"}]
    assert all(earlier != later for earlier, later in pairwise(shown))
    for before, event in pairwise(events[:-2]):
        assert isinstance(before, TextDelta) or not isinstance(event, OutputDelta)
    assert shown[-2]["lines"] == [{"name": "tea"}, {"name": "milk", "count": 3}]


@drivers
def test_keys_appear_in_the_order_of_arrival(run: Run) -> None:
    events = run(Chunks([say('{"note": "a", "state": "open", "number": 1}')]), template(Order))
    assert list(partials(events)[-2]) == ["note", "state", "number"]


OUTPUTS = [
    pytest.param(Order, ANSWER, id="object-with-defaults"),
    pytest.param(Order, f"```json\n{ANSWER}\n```", id="fence"),
    pytest.param(Order, '{"number": 1, "state": "open", "lines": null}', id="null"),
    pytest.param(Line, '{"name": "a", "count": 2}', id="every-field"),
    pytest.param(list[Line], '{"items": [{"name": "a"}]}', id="list"),
    pytest.param(list[int], "[1, 2, 3]", id="bare-list"),
    pytest.param(list[int], '{"items": []}', id="empty-list"),
    pytest.param(dict[str, int], '{"a": 1}', id="dict"),
    pytest.param(int | str, '{"value": 5}', id="union"),
    pytest.param(int | None, "12", id="bare-number"),
    pytest.param(bool, '{"value": false}', id="bool"),
    pytest.param(set[int], '{"value": [3, 1, 2, 3]}', id="set-in-another-order"),
    pytest.param(float, '{"value": 5}', id="float"),
]


@drivers
@pytest.mark.parametrize("adapter", [Chunks, OneChunk], ids=["characters", "one-piece"])
@pytest.mark.parametrize(("output", "answer"), OUTPUTS)
def test_only_the_last_output_delta_equals_the_output(
    run: Run, adapter: type[Chunks], output: Any, answer: str
) -> None:
    events = run(adapter([say(answer)]), template(output))
    dumped = serde.dump(events[-1].response.output)
    assert [partial == dumped for partial in partials(events)].count(True) == 1
    assert partials(events)[-1] == dumped


@drivers
@pytest.mark.parametrize("output", [str, None], ids=["str", "none"])
def test_answer_that_is_text_has_no_output_delta(run: Run, output: Any) -> None:
    assert partials(run(Chunks([say(ANSWER)]), template(output))) == []


@drivers
def test_rejected_answer_begins_a_new_partial(run: Run) -> None:
    wrong = '{"number": 12, "state": "ajar", "note": "so"}'
    events = run(Chunks([say(wrong), say('{"state": "closed", "number": 7}')]), template(Order))
    first, second = parts(events, AnswerRejected)
    assert first[-1] == {"number": 12, "note": "so"}
    assert second[:3] == [{}, {"state": "closed"}, {"state": "closed", "number": 7}]
    assert second[-1] == serde.dump(Order(7, "closed"))
    assert not any("note" in partial for partial in second[:-1])


@drivers
def test_answer_rejected_by_accept_begins_a_new_partial(run: Run) -> None:
    seen: list[Order] = []

    def accept(order: Order, *, context: ToolContext) -> None:
        seen.append(order)
        if order.number != 7:
            raise OutputRejected("order 7 is meant")

    script = [say(ANSWER), say('{"number": 7, "state": "open"}')]
    events = run(Chunks(script), template(Order, accept=accept))
    first, second = parts(events, AnswerRejected)
    assert first[-1]["number"] == 12
    assert second[0] == {}
    assert second[-1] == serde.dump(Order(7, "open"))
    assert seen == [ORDER, Order(7, "open")]


@drivers
def test_answer_that_is_never_accepted_raises_no_other_error(run: Run) -> None:
    with pytest.raises(PromptEvaluationError, match="not the declared output"):
        run(Chunks([say('{"number": "x"}'), say("[}"), say("<think>")] * 2), template(Order))


@drivers
def test_restart_begins_a_new_partial(run: Run) -> None:
    @tool
    def weigh(grams: int) -> str:
        """Weigh something."""
        return f"{grams} g"

    more = MarkdownSection(
        title="More",
        template="More.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[weigh],
    )
    script = [
        replace(call(("read_section", {"section_key": "more"})), text='{"number": 1, "note": "x'),
        say('{"state": "open", "number": 3}'),
    ]
    sections = [MarkdownSection(title="Task", template="Go."), more]
    restarting = Chunks(script, dynamic_tools=False)
    first, second = parts(run(restarting, template(Order, sections=sections)), Restarted)
    assert first[-1] == {"number": 1, "note": "x"}
    assert second[:3] == [{}, {"state": "open"}, {"state": "open", "number": 3}]
    first, second = parts(run(Chunks(script), template(Order, sections=sections)), ToolsAdded)
    assert second[0] == {}


@drivers
def test_fallback_to_another_adapter_begins_a_new_partial(run: Run) -> None:
    class BreaksOff(Chunks):
        def ask_stream(self, request: ProviderRequest, /) -> Iterator[TextDelta | AssistantMessage]:
            yield TextDelta('{"number": 5, "note": "so')
            raise PromptEvaluationError("it broke", phase="request", code="connection")

    adapter = FallbackAdapter(BreaksOff([]), Chunks([say('{"state": "open", "number": 1}')]))
    first, second = parts(run(adapter, template(Order)), AnswerRejected)
    assert first == [{"number": 5, "note": "so"}]
    assert second[:2] == [{}, {"state": "open"}]
    assert second[-1] == serde.dump(Order(1, "open"))


@drivers
def test_answer_continues_after_a_pause(run: Run) -> None:
    paused = AssistantMessage(text=ANSWER[:30], finish="pause")
    shown = partials(run(Chunks([paused, say(ANSWER[30:])]), template(Order)))
    assert shown == partials(run(Chunks([say(ANSWER)]), template(Order)))


@drivers
def test_adapter_with_its_own_loop_has_partial_answers(run: Run) -> None:
    class OwnLoop(ProviderAdapter):
        def evaluate(self, prompt: Any, /, **options: Any) -> Any:
            return ScriptedAdapter([say(ANSWER)]).evaluate(prompt, **options)

    expected: list[Any] = [
        {"number": 12, "state": "open", "lines": [{"name": "tea"}, {"name": "milk", "count": 3}]},
        serde.dump(ORDER),
    ]
    assert partials(run(OwnLoop(), template(Order))) == expected


@pytest.mark.parametrize(
    "border",
    [AnswerRejected("no"), Restarted((), "more"), ToolCallStarted(ToolCall("1", "weigh", "{}"))],
    ids=["rejected", "restarted", "called"],
)
def test_own_loop_begins_a_new_partial_when_its_model_starts_over(border: Any) -> None:
    class OwnLoop(ProviderAdapter):
        def evaluate(self, prompt: Any, /, **options: Any) -> Any:
            return ScriptedAdapter([say(ANSWER)]).evaluate(prompt, **options)

        def stream(self, prompt: Any, /, **options: Any) -> Generator[Any]:
            yield TextDelta('{"number": 5, "note": "so')
            yield border
            yield TextDelta(ANSWER[:14])
            yield TextDelta(ANSWER[14:])
            yield Completed(self.evaluate(prompt, **options))

    first, second = parts(in_order(OwnLoop(), template(Order)), type(border))
    assert first == [{"number": 5, "note": "so"}]
    assert second[0] == {"number": 12}
    assert second[-1] == serde.dump(ORDER)


@drivers
def test_adapter_that_forwards_a_stream_does_not_repeat_its_partial_answers(run: Run) -> None:
    class Forwards(ProviderAdapter):
        def evaluate(self, prompt: Any, /, **options: Any) -> Any:
            raise NotImplementedError

        def stream(self, prompt: Any, /, **options: Any) -> Any:
            yield from Chunks([say(ANSWER)]).stream(prompt, **options)

        async def stream_async(self, prompt: Any, /, **options: Any) -> AsyncGenerator[Any]:
            for event in self.stream(prompt, **options):
                yield event

    shown = partials(run(Forwards(), template(Order)))
    expected = partials(run(Chunks([say(ANSWER)]), template(Order)))
    assert [part for part in shown if part] == [part for part in expected if part]


@given(size=st.integers(1, 30))
def test_partial_is_the_same_whenever_it_is_read(size: int) -> None:
    adapter = type("Sized", (Chunks,), {"size": size})
    at_once = [
        copy.deepcopy(event.partial)
        for event in MainLoop(adapter([say(ANSWER)])).stream(template(Order), "Hi")
        if isinstance(event, OutputDelta)
    ]
    events = list(MainLoop(adapter([say(ANSWER)])).stream(template(Order), "Hi"))
    deltas = [event for event in events if isinstance(event, OutputDelta)]
    assert [delta.partial for delta in reversed(deltas)] == at_once[::-1]
    assert deltas == [OutputDelta(partial) for partial in at_once]
    assert pickle.loads(pickle.dumps(deltas)) == deltas


@given(size=st.integers(1, 9), skip=st.integers(1, 9))
def test_patches_between_partial_answers_give_the_later_one(size: int, skip: int) -> None:
    adapter = type("Sized", (Chunks,), {"size": size})
    answer = ANSWER.replace("tea", "a ~/\\u2705 b").replace('"number"', '"note": "x y", "number"')
    events = list(MainLoop(adapter([say(answer)])).stream(template(Order), "Hi"))
    deltas = [event for event in events if isinstance(event, OutputDelta)]
    state: Any = {"output": None}
    earlier = None
    for delta in [*deltas[:-1:skip], deltas[-1]]:
        operations = delta.patch(earlier, "/output")
        for operation in operations:
            if operation["op"] == "replace":
                before = copy.deepcopy(state)
                assert apply_patch(copy.deepcopy(state), [operation]) != before
        state = apply_patch(copy.deepcopy(state), operations)
        assert state == {"output": delta.partial}
        earlier = delta
    assert deltas[-1].patch(deltas[-1]) == []


def text_of(length: int) -> str:
    return json.dumps({"number": 1, "state": "open", "note": "x" * length})


def list_of(length: int) -> str:
    lines = [{"name": "ab", "count": 1}] * (length // 27)
    return json.dumps({"number": 1, "state": "open", "lines": lines})


def dict_of(length: int) -> str:
    return json.dumps({f"{key}": 1 for key in range(length // 9)})


@dataclass
class Node:
    name: str = ""
    children: "list[Node]" = field(default_factory=list["Node"])


def nested(length: int) -> str:
    inner = '{"children":[' * 50 + "]}" * 50
    return f'{{"items": [{", ".join([inner] * (length // len(inner)))}]}}'


LONG = [
    pytest.param(Order, text_of, id="long-string"),
    pytest.param(Order, list_of, id="long-list"),
    pytest.param(list[int], lambda n: f"[{','.join('7' * (n // 2))}]", id="list-of-numbers"),
    pytest.param(dict[str, int], dict_of, id="dict"),
    pytest.param(list[Node], nested, id="deep-nesting"),
]


@pytest.mark.parametrize(("output", "answer"), LONG)
@pytest.mark.parametrize("reads", [False, True], ids=["unread", "read"])
def test_cost_is_linear_in_the_length_of_the_answer(
    output: Any, answer: Callable[[int], str], *, reads: bool
) -> None:
    def seconds(length: int) -> float:
        loop, text = MainLoop(Chunks([say(answer(length))] * 3)), template(output)
        best = float("inf")
        for _ in range(3):
            begin = process_time()
            for event in loop.stream(text, "Hi"):
                if reads and isinstance(event, OutputDelta):
                    event.partial  # noqa: B018 - creates the value
            best = min(best, process_time() - begin)
        return best

    assert seconds(8000) <= 2.3 * seconds(4000) or seconds(8000) <= 2.3 * seconds(4000)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)


def adapters(server: ScriptedServer) -> dict[str, Callable[..., ProviderAdapter]]:
    def openai(api: Any) -> Callable[..., ProviderAdapter]:
        return lambda **options: OpenAIAdapter(
            "test", api=api, base_url=server.openai_url, api_key="k", max_retries=0, **options
        )

    return {
        "responses": openai("responses"),
        "chat": openai("chat"),
        "prompted": partial(openai("chat"), structured_output="prompted"),
        "anthropic": lambda **options: AnthropicAdapter(
            "claude-sonnet-5-5", base_url=server.url, api_key="k", max_retries=0, **options
        ),
    }


TEXTS = {
    "plain": ANSWER,
    "fence": f"Here it is:\n\n```json\n{ANSWER}\n```\nGood bye.",
    "thought": f"<think>Is it {{}}?</think>\n{ANSWER}",
}


@drivers
@pytest.mark.parametrize("name", ["responses", "chat", "prompted", "anthropic"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.usefixtures("clean_environment")
def test_adapters_have_the_same_partial_answers(run: Run, name: str, text: str) -> None:
    with ScriptedServer(Say(TEXTS[text])) as server:
        events = run(adapters(server)[name](), template(Order))
    first, second = [event.text for event in events if isinstance(event, TextDelta)]
    assert first + second == TEXTS[text]
    scripted = type("Halves", (Chunks,), {"size": len(first)})([say(first + second)])
    assert partials(events) == partials(run(scripted, template(Order)))
    assert partials(events)[-1] == serde.dump(ORDER)
    assert len(partials(events)) == 3


@drivers
@pytest.mark.parametrize("name", ["responses", "anthropic"])
@pytest.mark.usefixtures("clean_environment")
def test_stream_with_reasoning_and_calls_has_partial_answers(run: Run, name: str) -> None:
    @tool
    def weigh(grams: int) -> str:
        """Weigh something."""
        return f"{grams} g"

    task = MarkdownSection(title="Task", template="Go.", tools=[weigh])
    steps = (
        Say("Let me see.", calls=(Call("weigh", {"grams": 5}),), reasoning="Hm."),
        Say(ANSWER, reasoning="So."),
    )
    with ScriptedServer(*steps) as server:
        events = run(adapters(server)[name](), template(Order, sections=[task]))
    kinds = [type(event) for event in events]
    last_reasoning = len(kinds) - kinds[::-1].index(ReasoningDelta) - 1
    assert last_reasoning < kinds.index(OutputDelta)
    assert partials(events)[0]["number"] == 12
    assert partials(events)[-1] == serde.dump(ORDER)
    assert isinstance(events[-1], Completed)
