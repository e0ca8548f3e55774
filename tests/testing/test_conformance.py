"""The conformance suite with this library's adapters, and with adapters with deliberate errors."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.harnesses import HttpHarness, sent_by_chat, sent_by_responses
from support.scripted_server import ScriptedServer
from support.sizes import FULL
from weakincentives.adapters.core import PromptEvaluationError, PromptResponse
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
)
from weakincentives.evaluation.response import AnswerRejected, Delta, OutputDelta, TextDelta
from weakincentives.limits import TokenUsage
from weakincentives.prompt import VisibilityExpansionRequired
from weakincentives.runtime.events import ToolInvoked, ToolsInjected
from weakincentives.testing import ScriptedAdapter
from weakincentives.testing.conformance import (
    ConformanceError,
    Harness,
    ScriptedHarness,
    check,
    run,
    scenarios,
)
from weakincentives.testing.scenarios import SCENARIOS, Capability, Scenario

# Any below: prompts with any output type.


def openai(api: Any) -> HttpHarness:
    def make(server: ScriptedServer, **options: Any) -> OpenAIAdapter:
        return OpenAIAdapter(
            "m", api=api, base_url=server.openai_url, api_key="sk-test", max_retries=0, **options
        )

    return HttpHarness(make, sent_by_chat if api == "chat" else sent_by_responses, ~Capability(0))


HARNESSES: dict[str, Harness] = {
    "scripted": ScriptedHarness(),
    "scripted, starting again": ScriptedHarness(inject=False),
    "chat": openai("chat"),
    "responses": openai("responses"),
}
# unless the run is full, a scenario alternates between the two APIs
OVER_HTTP = {"chat": 0, "responses": 1}
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.claim("DT-04", "DT-17", "DT-18", "DT-19", "DT-23", "DT-36", "DT-16", "DT-20", "DT-30")
@pytest.mark.claim("U-17", "DT-26", "DT-29", "C-15", "C-13", "PD-23", "PD-24")
@pytest.mark.parametrize(
    ("harness", "scenario"),
    [
        pytest.param(harness, scenario, id=f"{name}: {scenario}")
        for name, harness in HARNESSES.items()
        for place, scenario in enumerate(scenarios(harness))
        if FULL or OVER_HTTP.get(name) != place % 2
    ],
)
def test_adapter_passes_the_scenario(harness: Harness, scenario: Scenario) -> None:
    # L8 among others: injection and restart give the same final state, sync, async and streamed.
    check(scenario, harness)


def test_every_scenario_is_run_unless_a_restart_makes_it_impossible() -> None:
    assert len(SCENARIOS) == len(BY_NAME) > 80
    left_out = {
        name: [scenario.name for scenario in SCENARIOS if scenario not in scenarios(harness)]
        for name, harness in HARNESSES.items()
    }
    assert left_out.pop("scripted, starting again") == ["twice in one turn", "too early"]
    assert left_out == {"scripted": [], "chat": [], "responses": []}


# --- Wrong adapters


class Sends(ScriptedAdapter):
    """Sends the model something other than the conversation."""

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        return super().ask(replace(request, transcript=self.altered(list(request.transcript))))

    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return transcript


class Hears(ScriptedAdapter):
    """Reads something other than the model's answer."""

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        return self.altered(super().ask(request))

    def altered(self, reply: AssistantMessage) -> AssistantMessage:
        return reply


class DropsAnAnswer(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        last = max(
            (n for n, message in enumerate(transcript) if isinstance(message, ToolMessage)),
            default=None,
        )
        return transcript if last is None else [*transcript[:last], *transcript[last + 1 :]]


class MixesUpAnswers(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        ids = [message.call_id for message in transcript if isinstance(message, ToolMessage)]
        return [
            replace(message, call_id=ids.pop()) if isinstance(message, ToolMessage) else message
            for message in transcript
        ]


class CutsLongAnswers(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [
            replace(o, content=o.content[:9999]) if isinstance(o, ToolMessage) else o
            for o in transcript
        ]


class LosesToolsAfterInjection(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [message for message in transcript if not isinstance(message, ToolsAdded)]


class InjectsTwice(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [
            message
            for message in transcript
            for _ in range(2 if isinstance(message, ToolsAdded) else 1)
        ]


class KeepsClosedTools(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [message for message in transcript if not isinstance(message, ToolsRemoved)]


class RepeatsThePrompt(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [*transcript, transcript[0]] if len(transcript) > 1 else transcript


class DropsInstructions(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [message for message in transcript if not isinstance(message, Instructions)]


class DropsChangedSections(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        later = [message for message in transcript[1:] if not isinstance(message, Instructions)]
        return [*transcript[:1], *later]


class DropsUserMessages(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [message for message in transcript if not isinstance(message, UserMessage)]


class DropsTheModelsText(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [
            replace(message, text="") if isinstance(message, AssistantMessage) else message
            for message in transcript
        ]


class DropsTheModelsCalls(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [
            replace(message, tool_calls=()) if isinstance(message, AssistantMessage) else message
            for message in transcript
        ]


class DropsMediaOfTools(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [
            replace(message, media=()) if isinstance(message, ToolMessage) else message
            for message in transcript
        ]


class KeepsRepairsToItself(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [
            message
            for n, message in enumerate(transcript)
            if n == 0 or not isinstance(message, UserMessage)
        ]


class HearsOneCallATurn(Hears):
    def altered(self, reply: AssistantMessage) -> AssistantMessage:
        return replace(reply, tool_calls=reply.tool_calls[:1])


class HearsCallsBackwards(Hears):
    def altered(self, reply: AssistantMessage) -> AssistantMessage:
        return replace(reply, tool_calls=reply.tool_calls[::-1])


class ParsesLoosely(Hears):
    def altered(self, reply: AssistantMessage) -> AssistantMessage:
        calls = [
            replace(c, arguments=c.arguments if c.arguments[-1:] == "}" else "{}")
            for c in reply.tool_calls
        ]
        return replace(reply, tool_calls=tuple(calls))


class SpeaksAsciiAlone(Hears):
    def altered(self, reply: AssistantMessage) -> AssistantMessage:
        return replace(reply, text=reply.text.encode("ascii", "replace").decode())


class CountsCachedTokensTwice(Hears):
    def altered(self, reply: AssistantMessage) -> AssistantMessage:
        return replace(reply, usage=reply.usage + TokenUsage(reply.usage.cached_tokens))


class TakesAnyEnding(Hears):
    def altered(self, reply: AssistantMessage) -> AssistantMessage:
        return replace(reply, finish="tool_calls" if reply.tool_calls else "stop")


class HasOneFaultForAll(ScriptedAdapter):
    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        try:
            return super().ask(request)
        except PromptEvaluationError as error:
            raise PromptEvaluationError(
                error.message, phase="request", code="client_error"
            ) from error


class AnswersItsOwnFaults(ScriptedAdapter):
    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        try:
            return super().ask(request)
        except PromptEvaluationError as error:
            return AssistantMessage(text=str(error))


class Evaluates(ScriptedAdapter):
    """Misinterprets its arguments."""

    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return super().evaluate(prompt, **options)


class IgnoresTheDeadline(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        rendered = prompt.prompt.render(session=options["session"])
        return super().evaluate(rendered, **{**options, "deadline": None})


class IgnoresTheBudget(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return super().evaluate(prompt, **{**options, "budget": None})


class IgnoresTheBudgetWhenAsync(ScriptedAdapter):
    async def evaluate_async(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        options["budget"] = None
        return await super().evaluate_async(prompt, **options)


class SwallowsTheNewStart(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        try:
            return super().evaluate(prompt, **options)
        except VisibilityExpansionRequired as signal:
            return PromptResponse(
                prompt_name="", text=str(signal), output=None, usage=signal.run_usage.usage, turns=1
            )


class LosesTheOutput(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return replace(super().evaluate(prompt, **options), output=None)


class CountsTheLastTurnAlone(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        response = super().evaluate(prompt, **options)
        *_, last = [
            message for message in response.transcript if isinstance(message, AssistantMessage)
        ]
        return replace(response, usage=last.usage)


class Unrestored:
    """A session that is never restored, and whose bus loses events."""

    def __init__(self, session: Any, *lost: type, restores: bool = True) -> None:
        self._session = session
        self._lost = lost
        self._restores = restores

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def __getitem__(self, kind: type) -> Any:
        return self._session[kind]

    def restore(self, snapshot: Any) -> None:
        if self._restores:
            self._session.restore(snapshot)

    @property
    def bus(self) -> "Unrestored":
        return self

    def publish(self, event: object) -> None:
        if not isinstance(event, self._lost):
            self._session.bus.publish(event)


class DoesNotRollBack(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return super().evaluate(
            prompt, **{**options, "session": Unrestored(options["session"], restores=False)}
        )


class ForgetsToolEvents(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return super().evaluate(
            prompt, **{**options, "session": Unrestored(options["session"], ToolInvoked)}
        )


class ForgetsInjectionEvents(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return super().evaluate(
            prompt, **{**options, "session": Unrestored(options["session"], ToolsInjected)}
        )


class StreamsTwice(ScriptedAdapter):
    def ask_stream(
        self, request: ProviderRequest, /
    ) -> Iterator[Delta | AnswerRejected | AssistantMessage]:
        for piece in super().ask_stream(request):
            yield piece
            if isinstance(piece, TextDelta):
                yield piece


class HidesTheOutput(ScriptedAdapter):
    def stream(self, prompt: Any, /, **options: Any) -> Any:
        events = super().stream(prompt, **options)
        return [event for event in events if not isinstance(event, OutputDelta)]


class EndsWithoutAnEnd(ScriptedAdapter):
    def stream(self, prompt: Any, /, **options: Any) -> Any:
        return list(super().stream(prompt, **options))[:-1]


class ForgetsTheConversation(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return super().evaluate(prompt, **{**options, "conversation": None})


class ForgetsTheMessage(Evaluates):
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        message = options.pop("message", None)
        return super().evaluate(prompt, **options, message=message and "Go.")


class ForgetsEarlierAnswers(Sends):
    def altered(self, transcript: list[Message]) -> Sequence[Message]:
        return [
            replace(message, content="Gone.")
            if isinstance(message, ToolMessage) and message.call_id == "call_1"
            else message
            for message in transcript
        ]


class AsksOnceMore(ScriptedAdapter):
    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        try:
            return super().ask(request)
        except PromptEvaluationError:
            return super().ask(request)


@pytest.mark.parametrize(
    ("adapter", "inject", "name", "difference"),
    [
        (DropsAnAnswer, True, "one call", "answer to call_1_1: None"),
        (
            MixesUpAnswers,
            True,
            "a call sees an earlier write",
            "answer to call_1_1: 'notes: a'",
        ),
        (CutsLongAnswers, True, "a long answer", "answer to call_2_1"),
        (LosesToolsAfterInjection, True, "a section with tools", "tools of the last request"),
        (InjectsTwice, True, "a section with tools", "tools of the last request"),
        (KeepsClosedTools, True, "closing", "tools of the last request"),
        (RepeatsThePrompt, True, "one call", "texts of request 2"),
        (DropsInstructions, True, "an answer without a call", "texts of request 1"),
        (DropsChangedSections, True, "a changed section", "texts of request 1"),
        (DropsUserMessages, True, "an answer without a call", "texts of request 1"),
        (DropsTheModelsText, True, "text with a call", "replies of request 2"),
        (DropsTheModelsCalls, True, "one call", "calls in request 2"),
        (DropsMediaOfTools, True, "images and documents", "media of the last request"),
        (KeepsRepairsToItself, True, "a repaired object", "texts of request 2"),
        (HearsOneCallATurn, True, "three calls of one turn", "notes: 'a' instead of 'a b c'"),
        (HearsCallsBackwards, True, "three calls of one turn", "notes: 'c b a' instead of 'a b c'"),
        (ParsesLoosely, True, "broken JSON", "answers"),
        (SpeaksAsciiAlone, True, "text of all scripts", "text"),
        (CountsCachedTokensTwice, True, "cached tokens", "usage"),
        (TakesAnyEnding, True, "a truncated turn", "no reply for request 2"),
        (HasOneFaultForAll, True, "a failure: quota 429", "error: 'request/client_error'"),
        (AnswersItsOwnFaults, True, "an immediate failure", "error: '' instead of"),
        (IgnoresTheDeadline, True, "a tool outlasts the deadline", "no reply for request 2"),
        (IgnoresTheBudget, True, "a tool outlasts the budget", "no reply for request 2"),
        (AsksOnceMore, True, "an immediate failure", "no reply for request 2"),
        (ForgetsTheConversation, True, "one call", "execute with a conversation:"),
        (ForgetsTheMessage, True, "one call", "execute with a message:"),
        (ForgetsEarlierAnswers, True, "one call", "the wrong answers for the previous turn"),
        (SwallowsTheNewStart, False, "a section with tools", "notes: '' instead of 'a b'"),
        (LosesTheOutput, True, "an object", "output: None instead of"),
        (CountsTheLastTurnAlone, True, "one call", "usage"),
        (DoesNotRollBack, True, "a tool raises", "notes: 'a' instead of ''"),
        (ForgetsToolEvents, True, "one call", "events: 'RCCX' instead of 'RCTCX'"),
        (
            ForgetsInjectionEvents,
            True,
            "a section with tools",
            "events: 'RCTCTCTCX' instead of 'RCTICTCTCX'",
        ),
        (StreamsTwice, True, "an answer without a call", "the stream's chunks must add up to"),
        (HidesTheOutput, True, "an object", "only the last OutputDelta must be {'count': 3"),
        (EndsWithoutAnEnd, True, "an answer without a call", "must end with Completed"),
    ],
)
def test_faulty_adapter_is_detected(adapter: Any, inject: Any, name: str, difference: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        check(BY_NAME[name], ScriptedHarness(adapter, inject=inject))
    assert difference in str(caught.value)


def test_adapter_that_is_faulty_in_one_entry_point_fails_only_there() -> None:
    scenario, harness = BY_NAME["tool calls"], ScriptedHarness(IgnoresTheBudgetWhenAsync)
    check(scenario, harness, "execute", "evaluate")
    with pytest.raises(
        ConformanceError, match="tool calls, by evaluate_async:\n  the script has no reply"
    ):
        check(scenario, harness, "evaluate_async")


def test_run_returns_the_outcome_of_a_scenario() -> None:
    outcome = run(BY_NAME["a section with tools"], ScriptedHarness(inject=False), "execute_async")
    assert (outcome.text, outcome.notes, outcome.opened) == ("done", "a b", "more more.side")
    assert outcome.events == "RCTVRCTCTCX"
    assert [len(request.tools) for request in outcome.sent] == [5, 7, 7, 7]
    assert outcome.answers[0].startswith("Visibility expansion required for sections: more")
