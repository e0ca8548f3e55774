"""The conformance suite plays scenarios with any `ProviderAdapter` and compares the outcomes.

Each scenario defines its expected outcome. In addition, every adapter must reach the same outcome
as `ScriptedAdapter`, whether it injects tools or restarts. Each scenario is played with only the
prompt, with a user message, and in a conversation that another adapter started. To test your own
adapter, implement a `Harness`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, Protocol

from .. import serde
from ..adapters.core import PromptEvaluationError, ProviderAdapter, ThrottleError
from ..adapters.provider_errors import error_from_request, error_from_status
from ..evaluation.conversation import Conversation
from ..evaluation.inner_loop import RunConfig
from ..evaluation.main_loop import MainLoop
from ..evaluation.messages import AssistantMessage, Instructions, ToolMessage, UserMessage, media_of
from ..evaluation.response import Completed, OutputDelta, ReasoningDelta, TextDelta
from ..limits import Clock, Deadline, TokenUsage
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.template import AnyPrompt
from ..runtime.session import Session
from ..visibility import SectionPath, SectionVisibility, VisibilityOverrides
from .scenarios import SCENARIOS, Capability, Note, ProviderFault, Scenario, Step, World
from .scripted import ScriptedAdapter, SeenRequest, call, say

__all__ = [
    "ConformanceError",
    "Harness",
    "RunOutcome",
    "ScriptedHarness",
    "SentRequest",
    "Stage",
    "check",
    "run",
    "scenarios",
]

type Way = Literal[
    "execute", "execute_async", "evaluate", "evaluate_async", "stream", "stream_async"
]
type Beginning = Literal["prompt", "message", "conversation"]
"""How a scenario starts: with only the prompt, with a message, or as a later turn."""

type _Any = Any  # Any: results, events and adapters of any type


class ConformanceError(AssertionError):
    """An adapter's outcome differs from the expected one."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request from the model's point of view.

    `texts` contains the instructions and the user's texts, and `tools` the tool names. `answers`
    contains the tool results, as pairs of call id and text. `media` contains the digests of all
    images and documents, in order. `replies` contains the model's own earlier texts, and `calls`
    the ids of its earlier calls, in order.
    """

    texts: tuple[str, ...]
    tools: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    media: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """An adapter with a scripted provider, and all the requests so far."""

    adapter: ProviderAdapter
    sent: Callable[[], Sequence[SentRequest]]


class Harness(Protocol):
    """Opens adapters with a scripted provider; `capabilities` selects the scenarios to play."""

    capabilities: Capability

    def open(
        self, steps: Sequence[Step], /, *, config: RunConfig, clock: Clock
    ) -> AbstractContextManager[Stage]:
        """Opens a new adapter whose provider plays `steps`, one for each request."""
        ...


class ScriptedHarness:
    """The harness for `ScriptedAdapter`, the reference for other adapters, or for a subclass."""

    def __init__(
        self, adapter: Callable[..., ScriptedAdapter] = ScriptedAdapter, *, inject: bool = True
    ) -> None:
        self._adapter = adapter
        self.capabilities = ~Capability(0) if inject else ~Capability.INJECT

    @contextmanager
    def open(
        self, steps: Sequence[Step], /, *, config: RunConfig, clock: Clock
    ) -> Generator[Stage]:
        """Plays the steps as the adapter's replies."""
        replies = [_error(step) if isinstance(step, ProviderFault) else step for step in steps]
        inject = Capability.INJECT in self.capabilities
        adapter = self._adapter(replies, dynamic_tools=inject, config=config, clock=clock)
        yield Stage(adapter, lambda: [_sent(request) for request in adapter.requests])


def _sent(request: SeenRequest) -> SentRequest:
    messages = request.messages
    replies = [message for message in messages if isinstance(message, AssistantMessage)]
    answers = [message for message in messages if isinstance(message, ToolMessage)]
    parts = [
        part
        for message in messages
        if isinstance(message, Instructions | UserMessage)
        for part in ([message.content] if isinstance(message.content, str) else message.content)
    ]
    return SentRequest(
        texts=tuple([part for part in parts if isinstance(part, str)]),
        tools=request.tool_names,
        answers=tuple([(answer.call_id, answer.content) for answer in answers]),
        media=tuple([media.digest for message in messages for media in media_of(message)]),
        replies=tuple([reply.text for reply in replies]),
        calls=tuple([tool_call.call_id for reply in replies for tool_call in reply.tool_calls]),
    )


def _error(fault: ProviderFault) -> PromptEvaluationError:
    if fault.status is None:
        return error_from_request("it", fault.code, "failed")
    status, seconds = fault.status, fault.retry_after
    wait = None if seconds is None else str(seconds)
    return error_from_status("it", status, message="failed", code=fault.kind, retry_after=wait)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """A run's outcome as plain values.

    `error` contains the phase, code, status and seconds to wait. `notes`, `book` and `opened` are
    the final state of the session and the resource; `visible` and `tools` are the sections and
    tools that the prompt shows in that state. `events` contains a letter for each event, and `log`
    contains the event fields that are the same in every run. `answers` contains the texts of tool
    results, and `sent` contains the requests from the model's point of view. `reasoning` contains
    the reasoning of each message that has any, and `sources` the URLs that the answer cites.
    """

    text: str | None
    output: object
    error: str
    usage: TokenUsage
    notes: str
    book: str
    opened: str
    visible: str
    tools: str
    events: str
    log: tuple[str, ...]
    answers: tuple[str, ...]
    sent: tuple[SentRequest, ...]
    reasoning: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


_END = ("text", "output", "error", "notes", "book", "opened", "visible", "tools", "sources")
_LETTERS = {
    "PromptRendered": "R",
    "ProviderCalled": "C",
    "ToolInvoked": "T",
    "ToolsInjected": "I",
    "ToolsWithdrawn": "W",
    "VisibilityExpanded": "V",
    "PromptExecuted": "X",
}
# Event fields that differ between runs or adapters.
_INCIDENTAL = (
    "event_id created_at session_id run_id run_path seconds timestamp adapter measure error model"
    " reasoning citations"
)


def run(
    scenario: Scenario, harness: Harness, way: Way = "execute", beginning: Beginning = "prompt"
) -> RunOutcome:
    """Plays a scenario with `MainLoop` or the adapter itself; catches only evaluation errors."""
    world, session = World(), Session()
    prompt = scenario.prompt().bind(resources={World: world})
    options: dict[str, _Any] = (
        {} if beginning == "prompt" else {"message": scenario.message or "Go on."}
    )
    earlier: dict[str, str] = {}
    if beginning == "conversation":
        options["conversation"], earlier = _earlier_turn((scenario.earlier or scenario.prompt)())
    published: list[_Any] = []
    session.bus.subscribe(object, published.append)
    seconds = scenario.seconds
    deadline = None if seconds is None else Deadline.after(seconds, now=world.now)
    with harness.open(scenario.steps, config=scenario.config, clock=world.clock) as stage:
        main_loop = MainLoop(stage.adapter, clock=world.clock)
        evaluator = main_loop if way.startswith("execute") else stage.adapter
        evaluate: _Any = getattr(evaluator, way)
        budget = scenario.budget
        try:
            running = evaluate(prompt, session=session, deadline=deadline, budget=budget, **options)
            result: _Any = _result(running, way)
        except PromptEvaluationError as error:
            result = error
        sent = tuple([_without_earlier(request, earlier) for request in stage.sent()])
    events = [
        (letter, event)
        for event in published
        if (letter := _LETTERS.get(type(event).__name__)) is not None
    ]
    after = prompt.render(session=session)
    failed = isinstance(result, PromptEvaluationError)
    return RunOutcome(
        text=None if failed else result.text,
        output=None if failed else result.output,
        error=_describe(result) if failed else "",
        usage=result.usage,
        notes=" ".join([note.text for note in session[Note].all()]),
        book=" ".join(world.book),
        opened=_full((session[VisibilityOverrides].latest() or VisibilityOverrides()).overrides),
        visible=_full(after.visibility),
        tools=_user_tools([tool.name for tool in after.tools]),
        events="".join([letter for letter, _ in events]),
        log=tuple([f"{letter} {_constant_fields(event)}" for letter, event in events]),
        answers=tuple([event.content for letter, event in events if letter == "T"]),
        sent=sent,
        reasoning=tuple([it.reasoning for letter, it in events if letter == "C" and it.reasoning]),
        sources=() if failed else tuple([citation.url for citation in result.citations]),
    )


def _earlier_turn(prompt: AnyPrompt) -> tuple[Conversation, dict[str, str]]:
    """Returns an earlier turn's conversation, restored from JSON, and its results by call id."""
    output = prompt.template.structured_output
    answer = "[]" if output is not None and output.container == "array" else '{"count": 1}'
    replies = [call(("peek", {}), ("peek", {"last": 1})), say(answer)]
    prompt.bind(resources={World: World()})
    response = ScriptedAdapter(replies).evaluate(prompt, session=Session(), message="Look first.")
    assert response.conversation is not None  # set by every loop adapter
    conversation = Conversation.from_json(response.conversation.to_json())
    answers = [message for message in conversation.messages if isinstance(message, ToolMessage)]
    return conversation, {message.call_id: message.content for message in answers}


def _without_earlier(request: SentRequest, earlier: Mapping[str, str]) -> SentRequest:
    """Returns a request from the later turn without the earlier turn's calls and results.

    Adapters can send these with new call ids. Raises `ConformanceError` if a result is missing. A
    nested evaluation's conversation is unrelated, so its request is returned unchanged.
    """
    if not earlier or not any("Look first." in text for text in request.texts):
        return request
    answers = request.answers[: len(earlier)]
    if len({call_id for call_id, _ in answers}) < len(earlier) or any(
        content not in answer
        for content, (_, answer) in zip(earlier.values(), answers, strict=True)
    ):
        raise ConformanceError(
            f"the request has the wrong answers for the previous turn: {answers!r}"
        )
    # If an adapter drops the earlier calls, later calls are removed here; the caller detects that.
    number = len(earlier)
    return replace(request, answers=request.answers[number:], calls=request.calls[number:])


def _result(running: _Any, way: Way) -> _Any:
    """Awaits a call or reads a stream, and checks that its chunks add up to text and output."""
    if "stream" not in way:
        return asyncio.run(running) if way.endswith("async") else running
    events = asyncio.run(_collect(running)) if way.endswith("async") else list(running)
    if not events or not isinstance(events[-1], Completed):
        raise ConformanceError(f"a stream must end with Completed, got {events[-1:]!r}")
    response: _Any = events[-1].response
    pieces = "".join([event.text for event in events if isinstance(event, TextDelta)])
    replies = [reply for reply in response.transcript if isinstance(reply, AssistantMessage)]
    text = "".join([reply.text for reply in replies[-response.turns :]])
    if pieces != text:
        raise ConformanceError(f"the stream's chunks must add up to {text!r}, got {pieces!r}")
    thoughts = "".join([event.text for event in events if isinstance(event, ReasoningDelta)])
    reasoning = "".join([reply.reasoning for reply in replies[-response.turns :]])
    if thoughts != reasoning:
        raise ConformanceError(
            f"the stream's chunks of reasoning must add up to {reasoning!r}, got {thoughts!r}"
        )
    partials = [event.partial for event in events if isinstance(event, OutputDelta)]
    is_typed = response.output is not None and not isinstance(response.output, str)
    output = serde.dump(response.output) if is_typed else None
    complete = [partial == output for partial in partials]
    if complete != [*[False] * (len(partials) - 1), *[True] * is_typed]:
        raise ConformanceError(f"only the last OutputDelta must be {output!r}, got {partials!r}")
    return response


async def _collect(events: AsyncIterator[_Any]) -> list[_Any]:
    return [event async for event in events]


def _describe(error: PromptEvaluationError) -> str:
    wait = error.retry_after if isinstance(error, ThrottleError) else None
    parts = f"{error.phase}/{error.code}", error.status, wait and f"{wait.total_seconds():g}s"
    return " ".join([str(part) for part in parts if part])


def _full(visibility: Mapping[SectionPath, SectionVisibility | None]) -> str:
    full = [path for path, value in visibility.items() if value is SectionVisibility.FULL]
    return " ".join(sorted(map(".".join, full)))


def _user_tools(tools: Sequence[str]) -> str:
    return " ".join(sorted(name for name in tools if name not in RESERVED_TOOL_NAMES))


def _constant_fields(event: _Any) -> list[object]:
    values = [
        (field.name, getattr(event, field.name))
        for field in fields(event)
        if field.compare and field.name not in _INCIDENTAL.split()
    ]
    # Some APIs use objects as arguments, so empty arguments become an empty object.
    return ["{}" if name == "arguments" and value == "" else value for name, value in values]


def scenarios(harness: Harness) -> tuple[Scenario, ...]:
    """Returns the scenarios in `SCENARIOS` that `harness` can play."""
    return tuple([scenario for scenario in SCENARIOS if scenario.needs in harness.capabilities])


def check(
    scenario: Scenario,
    harness: Harness,
    *ways: Way,
    beginnings: Sequence[Beginning] = ("prompt", "message", "conversation"),
) -> None:
    """Plays a scenario in the given `ways`, by default all that apply, and checks the outcomes.

    The first item in `beginnings` is played in all ways, the other items in the first way, and the
    last item also in the last way. Raises `ConformanceError` with all differences.
    """
    if not ways:
        ways = "execute", "execute_async"
        # Only MainLoop continues after a restart that opens a section.
        if "V" not in _reference(scenario, inject=Capability.INJECT in harness.capabilities).events:
            ways += "evaluate", "evaluate_async"
            ways += ("stream", "stream_async") if Capability.STREAM in harness.capabilities else ()
    first_way, *_, last_way = *ways, ways[-1]
    plays = dict[tuple[Way, Beginning], None]()
    plays |= {(way, beginnings[0]): None for way in ways}
    plays |= {(first_way, beginning): None for beginning in beginnings}
    plays[last_way, beginnings[-1]] = None
    for way, beginning in plays:
        try:
            outcome = run(scenario, harness, way, beginning)
            differences = list(_differences(scenario, harness.capabilities, outcome, beginning))
        except AssertionError as error:  # raised by a harness for requests outside its script
            differences = [str(error)]
        if differences:
            play = way if beginning == "prompt" else f"{way} with a {beginning}"
            raise ConformanceError("\n  ".join([f"{scenario.name}, by {play}:", *differences]))


@cache
def _reference(scenario: Scenario, *, inject: bool, beginning: Beginning = "prompt") -> RunOutcome:
    return run(scenario, ScriptedHarness(inject=inject), beginning=beginning)


def _differences(
    scenario: Scenario, capabilities: Capability, outcome: RunOutcome, beginning: Beginning
) -> Iterator[str]:
    inject = Capability.INJECT in capabilities
    reference = _reference(scenario, inject=inject, beginning=beginning)
    yield from _unmet_expectations(scenario, capabilities, outcome)
    references = [reference]
    if Capability.INJECT not in scenario.needs:
        references.append(_reference(scenario, inject=not inject, beginning=beginning))
    for other in references:
        # An adapter can write the JSON for typed output differently.
        for name in _END if other.output is None else _END[1:]:
            value, expected = getattr(outcome, name), getattr(other, name)
            if value != expected:
                yield f"{name}: {value!r}, but the scripted adapter's {expected!r}"
    if Capability.OWN_LOOP | Capability.USAGE in capabilities and outcome.log != reference.log:
        yield f"log: {outcome.log}, but the scripted adapter's {reference.log}"
    last_tools = _user_tools(outcome.sent[-1].tools) if outcome.sent else ""
    if not outcome.error and last_tools != outcome.tools:
        yield f"tools of the last request: {last_tools!r} instead of {outcome.tools!r}"
    media, expected_media = [run.sent[-1].media if run.sent else () for run in (outcome, reference)]
    if media != expected_media:
        yield f"media of the last request: {media!r} instead of {expected_media!r}"
    answers = _answers(outcome)
    for call_id, content in _answers(reference).items():
        if content not in answers.get(call_id, ""):
            yield f"answer to {call_id}: {answers.get(call_id)!r} instead of {content!r}"
    if Capability.OWN_LOOP in capabilities:
        yield from _request_differences(outcome.sent, reference.sent)


def _unmet_expectations(
    scenario: Scenario, capabilities: Capability, outcome: RunOutcome
) -> Iterator[str]:
    is_usage_known = Capability.USAGE in capabilities
    if outcome.error and Capability.OWN_LOOP not in capabilities:
        is_usage_known = False  # a vendor's loop may have repeated a request
    for name, expected in scenario.expect.items():
        value = getattr(outcome, name)
        if name == "usage" and not is_usage_known:
            continue
        if not _fits(name, value, expected, capabilities):
            yield f"{name}: {value!r} instead of {expected!r}"


def _answers(outcome: RunOutcome) -> dict[str, str]:
    return dict([answer for request in outcome.sent for answer in request.answers])


def _fits(name: str, value: _Any, expected: _Any, capabilities: Capability) -> bool:
    match name:
        case "events" if Capability.INJECT not in capabilities:
            expected = expected.replace("I", "VR")
        case "answers":
            return len(value) == len(expected) and all(map(str.__contains__, value, expected))
        case "error" if expected:
            value = value[: len(expected)]
        case _:
            pass
    return bool(value == expected)


def _request_differences(
    requests: Sequence[SentRequest], expected: Sequence[SentRequest]
) -> Iterator[str]:
    """Yields the differences between actual and expected requests; additional text is allowed."""
    if len(requests) != len(expected):
        yield f"{len(requests)} requests instead of {len(expected)}"
    for number, (request, other) in enumerate(zip(requests, expected, strict=False), 1):
        for name in ("texts", "replies"):
            texts, expected_texts = getattr(request, name), getattr(other, name)
            words, expected_words = "\0".join(texts), "\0".join(expected_texts)
            if any(words.count(t) != expected_words.count(t) for t in expected_texts if t):
                yield f"{name} of request {number}: {texts!r} instead of {expected_texts!r}"
        if sorted(request.tools) != sorted(other.tools):
            yield f"tools of request {number}: {request.tools!r} instead of {other.tools!r}"
        if [call_id for call_id, _ in request.answers] != [call_id for call_id, _ in other.answers]:
            yield f"answers in request {number}: {request.answers!r} instead of {other.answers!r}"
        if request.calls != other.calls:
            yield f"calls in request {number}: {request.calls!r} instead of {other.calls!r}"
