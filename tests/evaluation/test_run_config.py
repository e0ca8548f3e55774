"""Each field of a `RunConfig` applies at each of its places, and the nearest place wins."""

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives import (
    Budget,
    Chat,
    Deadline,
    MainLoop,
    MarkdownSection,
    ModelSettings,
    PromptTemplate,
    RunConfig,
    Session,
    TokenUsage,
    ToolContext,
    ToolError,
    tool,
)
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.evaluation import (
    PromptEvaluationError,
    PromptResponse,
    ProviderAdapter,
    ToolMessage,
)
from weakincentives.evaluation.config import layered
from weakincentives.limits import Meter, utc_now
from weakincentives.testing import ScriptedAdapter, call, say


@tool(effect="pure")
def look(text: str) -> str:
    """Look it up."""
    return text * 2_000


def go_deeper(context: ToolContext) -> str:
    """Go deeper."""
    return context.evaluate(TEMPLATE, "Deeper").text


TEMPLATE = PromptTemplate[int](
    ns="tests",
    key="config",
    sections=[MarkdownSection(title="Task", template="Do it.", tools=[look, go_deeper])],
)
LOOK = call(("look", {"text": "a"}))
TWICE = call(("look", {"text": "a"}), ("look", {"text": "b"}))
DEEPER = call(("go_deeper", {}))

# Any: values of all fields
type Fields = dict[str, Any]
type Place = Callable[..., ScriptedAdapter]  # of fields, replies, and another template


def run_on_adapter(
    fields: Fields, replies: list[Any], template: PromptTemplate[int] = TEMPLATE
) -> ScriptedAdapter:
    adapter = ScriptedAdapter(replies, config=RunConfig(**fields))
    MainLoop(adapter).execute(template, "Go")
    return adapter


def run_on_loop(
    fields: Fields, replies: list[Any], template: PromptTemplate[int] = TEMPLATE
) -> ScriptedAdapter:
    adapter = ScriptedAdapter(replies)
    MainLoop(adapter, config=RunConfig(**fields)).execute(template, "Go")
    return adapter


def run_in_chat(
    fields: Fields, replies: list[Any], template: PromptTemplate[int] = TEMPLATE
) -> ScriptedAdapter:
    adapter = ScriptedAdapter(replies)
    Chat(adapter, template, config=RunConfig(**fields)).send("Go")
    return adapter


def run_in_call(
    fields: Fields, replies: list[Any], template: PromptTemplate[int] = TEMPLATE
) -> ScriptedAdapter:
    adapter = ScriptedAdapter(replies)
    MainLoop(adapter).execute(template, "Go", config=RunConfig(**fields))
    return adapter


def run_in_turn(
    fields: Fields, replies: list[Any], template: PromptTemplate[int] = TEMPLATE
) -> ScriptedAdapter:
    adapter = ScriptedAdapter(replies)
    Chat(adapter, template).send("Go", config=RunConfig(**fields))
    return adapter


def run_in_evaluation(
    fields: Fields, replies: list[Any], template: PromptTemplate[int] = TEMPLATE
) -> ScriptedAdapter:
    adapter = ScriptedAdapter(replies)
    adapter.evaluate(template, message="Go", config=RunConfig(**fields))
    return adapter


PLACES: list[Place] = [
    run_on_adapter,
    run_on_loop,
    run_in_chat,
    run_in_call,
    run_in_turn,
    run_in_evaluation,
]
places = pytest.mark.parametrize("place", PLACES)


def outcome(place: Place, fields: Fields, replies: list[Any]) -> str:
    """Returns the last message that the model saw, or the error's code."""
    try:
        adapter = place(fields, list(replies))
    except PromptEvaluationError as error:
        return error.code
    return str(adapter.requests[-1].messages[-1].text)


@places
@pytest.mark.parametrize(
    ("fields", "replies", "code"),
    [
        ({"max_turns": 1}, [LOOK, say(1)], "turns"),
        ({"max_repairs": 0}, [say("no"), say(1)], "output"),
        ({"deadline": Deadline(utc_now() - timedelta(1))}, [LOOK, say(1)], "deadline"),
        ({"budget": Budget(max_calls=1)}, [LOOK, say(1)], "budget"),
        (
            {"budget": Budget(max_cost=1.0), "prices": lambda usage, model: 2.0},
            [LOOK, say(1)],
            "budget",
        ),
    ],
    ids=["max_turns", "max_repairs", "deadline", "budget", "prices"],
)
def test_limit_ends_the_run_wherever_it_is_set(
    place: Place, fields: Fields, replies: list[Any], code: str
) -> None:
    assert outcome(place, {}, replies) != code
    assert outcome(place, fields, replies) == code


@places
@pytest.mark.parametrize(
    ("fields", "reply", "text"),
    [
        ({"max_argument_chars": 1_000}, call(("look", {"text": "a" * 1_000})), "at most 1,000"),
        ({"max_result_chars": 1_000}, LOOK, "Cut here"),
        ({"max_depth": 0}, DEEPER, "max_depth"),
    ],
    ids=["max_argument_chars", "max_result_chars", "max_depth"],
)
def test_limit_of_calls_applies_wherever_it_is_set(
    place: Place, fields: Fields, reply: Any, text: str
) -> None:
    replies = [reply, say(1), say(1)]
    assert text not in outcome(place, {}, replies)
    assert text in outcome(place, fields, replies[:2])


@places
@pytest.mark.parametrize("mode", ["in_order", "isolated"])
def test_calls_run_in_parallel_wherever_it_is_set(place: Place, mode: str) -> None:
    running: list[int] = []
    seen: list[int] = []
    both = Barrier(2)

    @tool(effect="pure")
    def meet(number: int) -> str:
        """Wait for the other call, if it runs at the same time."""
        running.append(number)
        with suppress(BrokenBarrierError):
            both.wait(0.05 if mode == "in_order" else 10)
        seen.append(len(running))
        return "Met."

    section = MarkdownSection(title="Task", template="Meet.", tools=[meet])
    template = PromptTemplate[int](ns="tests", key="meet", sections=[section])
    calls = call(("meet", {"number": 1}), ("meet", {"number": 2}))
    place({"parallel_tool_calls": mode}, [calls, say(1)], template)
    assert seen == ([1, 2] if mode == "in_order" else [2, 2])


def test_nearest_place_wins_by_field() -> None:
    far = RunConfig(max_turns=1, max_repairs=0)
    near = RunConfig(max_turns=5)
    adapter = ScriptedAdapter([LOOK, say("no")], config=far)
    with pytest.raises(PromptEvaluationError) as caught:
        MainLoop(adapter, config=RunConfig(max_turns=2)).execute(TEMPLATE, "Go", config=near)
    assert caught.value.code == "output"  # two turns, and no repair
    assert layered(near, far) == RunConfig(max_turns=5, max_repairs=0)
    assert layered(None, far, None) is far
    assert layered(None, None) is None
    assert RunConfig().over(far) is far


def test_default_that_was_given_wins() -> None:
    adapter = ScriptedAdapter([LOOK, say(1)], config=RunConfig(max_turns=1))
    MainLoop(adapter).execute(TEMPLATE, "Go", config=RunConfig(max_turns=100))
    assert RunConfig(max_turns=100).given == {"max_turns"}


def test_config_is_a_value() -> None:
    config = RunConfig(max_turns=3)
    assert config == RunConfig(max_turns=3, max_repairs=2)
    assert len({config, RunConfig(max_turns=3)}) == 1
    copied = pickle.loads(pickle.dumps(config))
    assert (copied, copied.given) == (config, {"max_turns"})
    assert replace(config, max_repairs=1).max_turns == 3


@pytest.mark.parametrize("name", ["turn", "max_turn"])
def test_misspelt_field_is_refused_with_the_nearest(name: str) -> None:
    fields: Any = {name: 3}
    with pytest.raises(TypeError, match="did you mean 'max_turns'"):
        RunConfig(**fields)


def test_nested_run_inherits_the_config_of_its_call() -> None:
    adapter = ScriptedAdapter([DEEPER, say("no"), say(1)])
    config = RunConfig(max_repairs=0)
    MainLoop(adapter).execute(TEMPLATE, "Go", config=config)
    answer = adapter.requests[-1].messages[-1]
    assert isinstance(answer, ToolMessage)
    assert (answer.success, len(adapter.requests)) == (False, 3)


def test_turns_and_repairs_of_a_nested_run_count_anew() -> None:
    adapter = ScriptedAdapter([DEEPER, say("no"), say(2), say("no"), say(1)])
    config = RunConfig(max_turns=3, max_repairs=1)
    result = MainLoop(adapter).execute(TEMPLATE, "Go", config=config)
    assert (result.output, result.response.turns) == (1, 3)


def test_given_field_of_a_nested_run_wins() -> None:
    def delegate(context: ToolContext) -> str:
        """Delegate."""
        return context.evaluate(TEMPLATE, "Deeper", config=RunConfig(max_repairs=1)).text

    section = MarkdownSection(title="Task", template="Delegate.", tools=[delegate])
    template = PromptTemplate[int](ns="tests", key="outer", sections=[section])
    adapter = ScriptedAdapter([call(("delegate", {})), say("no"), say(2), say(1)])
    config = RunConfig(max_repairs=0)
    assert MainLoop(adapter).execute(template, "Go", config=config).output == 1


def test_budget_ends_parent_and_nested_runs_together() -> None:
    adapter = ScriptedAdapter([DEEPER, LOOK, LOOK, say(1)])
    with pytest.raises(PromptEvaluationError) as caught:
        MainLoop(adapter).execute(TEMPLATE, "Go", config=RunConfig(budget=Budget(max_calls=2)))
    assert (caught.value.code, len(adapter.requests)) == ("budget", 2)


def test_runs_at_once_share_an_allowance() -> None:
    meter = Meter()
    budget = Budget(max_tokens=100, meter=meter)
    adapters = [ScriptedAdapter([LOOK] * 20) for _ in range(4)]

    def use(adapter: ScriptedAdapter) -> TokenUsage:
        with pytest.raises(PromptEvaluationError) as caught:
            MainLoop(adapter, config=RunConfig(budget=budget)).execute(TEMPLATE, "Go")
        assert caught.value.code == "budget"
        return caught.value.usage

    with ThreadPoolExecutor(4) as pool:
        used = list(pool.map(use, adapters))
    requests = sum(len(adapter.requests) for adapter in adapters)
    assert meter.usage.usage == sum(used, TokenUsage())
    assert meter.usage.calls == requests
    assert 100 <= meter.usage.usage.total_tokens <= 100 + 3 * 15


# ------------------------------------------------------------------------------------- sessions


def test_runs_without_a_session_have_their_own() -> None:
    loop = MainLoop(ScriptedAdapter([say(1), say(2), say(3)]))

    async def both() -> list[Any]:
        return await asyncio.gather(*[loop.execute_async(TEMPLATE, "Go") for _ in "ab"])

    first, second = asyncio.run(both())
    third = loop.execute(TEMPLATE)
    assert len({id(run.session) for run in (first, second, third)}) == 3
    assert [len(run.conversation.messages) for run in (first, second)] == [3, 3]
    assert third.response.session is third.session


def test_given_session_is_the_one_of_the_result() -> None:
    session = Session()
    adapter = ScriptedAdapter([say(1), say(2)])
    assert MainLoop(adapter).execute(TEMPLATE, session=session).session is session
    assert adapter.evaluate(TEMPLATE, session=session).session is session


def test_message_is_passed_once() -> None:
    with pytest.raises(TypeError, match="message is passed twice"):
        MainLoop(ScriptedAdapter([])).execute(TEMPLATE, "Go", message="Go")


@places
def test_error_of_a_limit_has_conversation_usage_and_session(place: Place) -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        place({"max_turns": 1}, [LOOK, say(1)])
    error = caught.value
    assert error.conversation is not None
    assert error.usage.total_tokens == 15
    assert isinstance(error.session, Session)
    assert pickle.loads(pickle.dumps(error)).session is None


class Own(ProviderAdapter):
    """An adapter with its own loop."""

    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return PromptResponse(prompt_name="own", text="1", output=1, usage=TokenUsage(), turns=1)


def test_adapter_with_its_own_loop_refuses_what_it_cannot_apply() -> None:
    loop, session = MainLoop(Own()), Session()
    result = loop.execute(TEMPLATE, session=session, config=RunConfig(budget=Budget(max_calls=9)))
    assert result.session is session
    with pytest.raises(ValueError, match="cannot apply max_turns of the config because Own has"):
        loop.execute(TEMPLATE, config=RunConfig(max_turns=1))


# ------------------------------------------------------------------------ nearer configs


def test_budget_of_none_clears_the_budget_of_the_adapter() -> None:
    adapter = ScriptedAdapter([LOOK, say(1)], config=RunConfig(budget=Budget(max_calls=1)))
    result = MainLoop(adapter).execute(TEMPLATE, "Go", config=RunConfig(budget=None))
    assert result.output == 1


def test_cost_without_prices_is_refused_before_the_request() -> None:
    adapter = ScriptedAdapter([say(1)])
    with pytest.raises(ValueError, match="there are no prices"):
        MainLoop(adapter).execute(TEMPLATE, config=RunConfig(budget=Budget(max_cost=1.0)))
    assert adapter.requests == []


@pytest.mark.parametrize("config", [{"max_turns": 3}, 3])
def test_config_of_another_type_is_refused(config: Any) -> None:
    with pytest.raises(TypeError, match="config must be a RunConfig"):
        MainLoop(ScriptedAdapter([])).execute(TEMPLATE, config=config)


def test_prices_must_be_a_function() -> None:
    prices: Any = 3
    with pytest.raises(TypeError, match="prices must be a function"):
        RunConfig(prices=prices)


def nested_on(adapter: ProviderAdapter, seen: list[Any]) -> PromptTemplate[int]:
    """A prompt whose tool runs another one on `adapter`."""

    def delegate(context: ToolContext) -> str:
        """Delegate."""
        try:
            seen.append(context.evaluate(TEMPLATE, "Deeper", adapter=adapter).output)
        except Exception as error:
            seen.append(error)
        return "Done."

    section = MarkdownSection(title="Task", template="Delegate.", tools=[delegate])
    return PromptTemplate[int](ns="tests", key="outer", sections=[section])


def test_nested_run_on_another_adapter_keeps_that_adapters_budget() -> None:
    seen: list[Any] = []
    other = ScriptedAdapter([LOOK, say(2)], config=RunConfig(budget=Budget(max_calls=1)))
    adapter = ScriptedAdapter([call(("delegate", {})), say(1)])
    config = RunConfig(budget=Budget(max_calls=50), max_turns=9)
    assert MainLoop(adapter).execute(nested_on(other, seen), "Go", config=config).output == 1
    [error] = seen
    assert isinstance(error, PromptEvaluationError)
    assert error.code == "budget"


def test_nested_run_on_another_adapter_inherits_the_prices() -> None:
    seen: list[Any] = []
    other = ScriptedAdapter([say(2)])
    prices = RunConfig(prices=lambda usage, model: 0.1, budget=Budget(max_cost=9.0))
    adapter = ScriptedAdapter([call(("delegate", {})), say(1)], config=prices)
    assert MainLoop(adapter).execute(nested_on(other, seen), "Go").output == 1
    assert seen == [2]


def test_outer_config_does_not_refuse_a_nested_adapter_with_its_own_loop() -> None:
    seen: list[Any] = []
    adapter = ScriptedAdapter([call(("delegate", {})), say(1)])
    config = RunConfig(max_turns=5)
    assert MainLoop(adapter).execute(nested_on(Own(), seen), "Go", config=config).output == 1
    assert seen == [1]


def test_error_of_the_depth_limit_has_the_session() -> None:
    errors: list[PromptEvaluationError] = []

    def deeper(context: ToolContext) -> str:
        """Go deeper."""
        try:
            return context.evaluate(TEMPLATE, "Deeper").text
        except PromptEvaluationError as error:
            errors.append(error)
            raise

    section = MarkdownSection(title="Task", template="Deeper.", tools=[deeper])
    template = PromptTemplate[int](ns="tests", key="deep", sections=[section])
    adapter = ScriptedAdapter([call(("deeper", {})), say(1)])
    MainLoop(adapter).execute(template, "Go", config=RunConfig(max_depth=0))
    assert [error.code for error in errors] == ["depth"]
    assert errors[0].session is not None


def test_fallback_applies_the_result_limit_of_the_call() -> None:
    def long(size: int) -> str:
        """A long text."""
        return "x" * size

    section = MarkdownSection(title="Task", template="Long.", tools=[long])
    template = PromptTemplate[int](ns="tests", key="long", sections=[section])

    def shown(**options: Any) -> int:
        first = ScriptedAdapter([call(("long", {"size": 150_000})), say(1)])
        adapter = FallbackAdapter(first, ScriptedAdapter([]))
        MainLoop(adapter).execute(template, "Go", **options)
        return len(first.requests[-1].messages[-1].text)

    assert shown() <= 100_000
    assert shown(config=RunConfig(max_result_chars=200_000)) == 150_000
    assert shown(config=RunConfig(max_result_chars=None)) == 150_000


# ------------------------------------------------------------------------------------- settings


@given(near=st.none() | st.integers(1, 9), middle=st.none() | st.integers(1, 9))
def test_settings_argument_is_the_config_with_these_settings(
    near: int | None, middle: int | None
) -> None:
    """`settings=` of a loop or chat equals `config=RunConfig(settings=…)`, and nearer ones win."""
    settings = ModelSettings() if near is None else ModelSettings(seed=near)
    config = None if middle is None else RunConfig(settings=ModelSettings(seed=middle, top_p=1))
    as_config = layered(RunConfig(settings=settings) if settings.given else None, config)
    adapter = ScriptedAdapter([say(1)] * 4)
    MainLoop(adapter, config=config, settings=settings).execute(TEMPLATE, "Go")
    MainLoop(adapter, config=as_config).execute(TEMPLATE, "Go")
    Chat(adapter, TEMPLATE, config=config, settings=settings).send("Go")
    Chat(MainLoop(adapter, config=config), TEMPLATE, settings=settings).send("Go")
    assert len({repr(seen.request.settings) for seen in adapter.requests}) == 1


def test_settings_argument_that_is_not_model_settings_is_rejected() -> None:
    settings: Any = {"temperature": 0}
    for make in (
        lambda: MainLoop(ScriptedAdapter([]), settings=settings),
        lambda: Chat(ScriptedAdapter([]), TEMPLATE, settings=settings),
        lambda: ScriptedAdapter([], settings=settings),
    ):
        with pytest.raises(TypeError, match=r"settings must be ModelSettings, got \{'temp"):
            make()


# ----------------------------------------------------------------------- errors of handlers


@tool(effect="pure")
def misread(text: str) -> str:
    """Read it wrong."""
    if text == "expected":
        raise ToolError("Not there.")
    raise LookupError(text)


BROKEN = PromptTemplate[int](
    ns="tests",
    key="broken",
    sections=[MarkdownSection(title="Task", template="Read.", tools=[misread])],
)


@places
@pytest.mark.parametrize("mode", ["in_order", "isolated"])
def test_error_in_a_handler_ends_the_run_wherever_it_is_set(place: Place, mode: str) -> None:
    calls = call(("misread", {"text": "bug"}), ("misread", {"text": "bug"}))
    script, fields = [calls, say(1)], {"parallel_tool_calls": mode}
    assert place(fields, script, BROKEN).requests[-1].messages[-1].text == "bug"
    with pytest.raises(LookupError, match="bug"):
        place({**fields, "raise_handler_errors": True}, script, BROKEN)


def test_expected_error_and_mistake_of_the_model_are_told_to_it() -> None:
    calls = call(("misread", {"text": "expected"}), ("misread", {}), ("misred", {}))
    adapter = run_in_call({"raise_handler_errors": True}, [calls, say(1)], BROKEN)
    told = [message.text for message in adapter.requests[-1].messages[-3:]]
    assert told[0] == "Not there."
    assert "text" in told[1]
    assert "misred" in told[2]


def test_session_is_unchanged_after_the_error_of_a_handler() -> None:
    def count(context: ToolContext) -> str:
        """Count."""
        context.session[Count].seed(Count(1))
        raise LookupError("bug")

    section = MarkdownSection(title="Task", template="Count.", tools=[count], state=[Count])
    template = PromptTemplate(ns="tests", key="count", sections=[section])
    adapter, session = ScriptedAdapter([call(("count", {})), say("Done.")]), Session()
    config = RunConfig(raise_handler_errors=True)
    with pytest.raises(LookupError):
        MainLoop(adapter, config=config).execute(template, "Go", session=session)
    assert session[Count].latest() is None
    assert MainLoop(ScriptedAdapter([say("Fine.")])).execute(template, session=session).text


@dataclass(frozen=True)
class Count:
    value: int
