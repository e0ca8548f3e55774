"""The conformance suite: any `ProviderAdapter` plays the scenarios, and what comes of it is
compared.

What must come of a scenario stands with it; besides, all adapters must come to what
`ScriptedAdapter` comes to, whether they inject tools or start again. An adapter's author writes a
`Harness`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, Protocol

from ..adapters.core import PromptEvaluationError, ProviderAdapter, ThrottleError
from ..adapters.provider_errors import error_from_request, error_from_status
from ..evaluation.inner_loop import InnerLoopConfig
from ..evaluation.main_loop import MainLoop
from ..evaluation.messages import AssistantMessage, ToolMessage, UserMessage
from ..evaluation.response import Completed, TextDelta
from ..limits import Clock, Deadline, TokenUsage
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..runtime.session import Session
from ..visibility import SectionVisibility, VisibilityOverrides
from .scenarios import SCENARIOS, Can, Note, ProviderFault, Scenario, Step, World
from .scripted import ScriptedAdapter

__all__ = [
    "ConformanceError",
    "Harness",
    "Observed",
    "ScriptedHarness",
    "Sent",
    "Stage",
    "check",
    "run",
    "scenarios",
]

type Way = Literal[
    "execute", "execute_async", "evaluate", "evaluate_async", "stream", "stream_async"
]


class ConformanceError(AssertionError):
    """An adapter did not do as a scenario says."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as the model saw it: what the user's side said, the tools, and call id and text
    of all answers.
    """

    texts: tuple[str, ...]
    tools: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """An adapter with a script behind it, and all requests so far."""

    adapter: ProviderAdapter
    sent: Callable[[], Sequence[Sent]]


class Harness(Protocol):
    """Puts a script behind an adapter; `can` says which scenarios make sense for it."""

    can: Can

    def open(
        self, steps: Sequence[Step], /, *, config: InnerLoopConfig, clock: Clock
    ) -> AbstractContextManager[Stage]:
        """A new adapter whose model's side plays `steps`, one a request."""
        ...


class ScriptedHarness:
    """The harness of `ScriptedAdapter`, with which all others are compared, or of an `adapter` made
    from it.
    """

    def __init__(
        self, adapter: Callable[..., ScriptedAdapter] = ScriptedAdapter, *, inject: bool = True
    ) -> None:
        self._adapter = adapter
        self.can = ~Can(0) if inject else ~Can.INJECT

    @contextmanager
    def open(
        self, steps: Sequence[Step], /, *, config: InnerLoopConfig, clock: Clock
    ) -> Generator[Stage]:
        """The steps are the adapter's replies."""
        replies = [_raised(step) if isinstance(step, ProviderFault) else step for step in steps]
        adapter = self._adapter(
            replies, dynamic_tools=Can.INJECT in self.can, config=config, clock=clock
        )

        def sent() -> list[Sent]:
            return [
                Sent(
                    tuple(
                        [one.content for one in request.messages if isinstance(one, UserMessage)]
                    ),
                    request.tool_names,
                    tuple(
                        [
                            (one.call_id, one.content)
                            for one in request.messages
                            if isinstance(one, ToolMessage)
                        ]
                    ),
                )
                for request in adapter.requests
            ]

        yield Stage(adapter, sent)


def _raised(fault: ProviderFault) -> PromptEvaluationError:
    if fault.status is None:
        return error_from_request("it", fault.code, "failed")
    wait = None if fault.retry_after is None else str(fault.retry_after)
    return error_from_status(
        "it", fault.status, message="failed", code=fault.kind, retry_after=wait
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What came of a run, as plain values.

    `error` is phase, code, status and seconds to wait; `notes`, `kept` and `opened` are the state
    of session and resource, `visible` and `tools` what a prompt shows with it; `events` has a
    letter for each event, `log` all that does not differ from run to run; `answers` are the tools'
    texts, `sent` is what the model saw.
    """

    text: str | None
    output: object
    error: str
    usage: TokenUsage
    notes: str
    kept: str
    opened: str
    visible: str
    tools: str
    events: str
    log: tuple[str, ...]
    answers: tuple[str, ...]
    sent: tuple[Sent, ...]


_END = ("text", "output", "error", "notes", "kept", "opened", "visible", "tools")
_LETTERS = {
    "PromptRendered": "R",
    "ProviderCalled": "C",
    "ToolInvoked": "T",
    "ToolsInjected": "I",
    "ToolsWithdrawn": "W",
    "VisibilityExpanded": "V",
    "PromptExecuted": "X",
}
_INCIDENTAL = {
    "event_id",
    "created_at",
    "session_id",
    "seconds",
    "timestamp",
    "adapter",
    "measure",
    "error",
}


def run(scenario: Scenario, harness: Harness, way: Way = "execute") -> Observed:
    """Plays a scenario, under `MainLoop` or by the adapter itself.

    What is no `PromptEvaluationError` goes through.
    """
    world, session = World(), Session()
    prompt = scenario.prompt().bind(resources={World: world})
    seen: list[Any] = []  # Any: events of every kind
    session.bus.subscribe(object, seen.append)
    ends = None if scenario.seconds is None else Deadline.after(scenario.seconds, now=world.now)
    with harness.open(scenario.steps, config=scenario.config, clock=world.clock) as stage:
        # Any below: results of both kinds, and adapters with and without `stream`.
        evaluator: Any = (
            MainLoop(stage.adapter, clock=world.clock)
            if way.startswith("execute")
            else stage.adapter
        )
        try:
            going = getattr(evaluator, way)(
                prompt, session=session, deadline=ends, budget=scenario.budget
            )
            result: Any = _gone(going, way)
        except PromptEvaluationError as error:
            result = error
        sent = tuple(stage.sent())
    events = [
        (_LETTERS[type(event).__name__], event)
        for event in seen
        if type(event).__name__ in _LETTERS
    ]
    after = prompt.render(session=session)
    failed = isinstance(result, PromptEvaluationError)
    return Observed(
        text=None if failed else result.text,
        output=None if failed else result.output,
        error=_told(result) if failed else "",
        usage=result.usage,
        notes=" ".join([note.text for note in session[Note].all()]),
        kept=" ".join(world.book),
        opened=_full((session[VisibilityOverrides].latest() or VisibilityOverrides()).overrides),
        visible=_full(after.visibility),
        tools=_own([tool.name for tool in after.tools]),
        events="".join([letter for letter, _ in events]),
        log=tuple([f"{letter} {_lasting(event)}" for letter, event in events]),
        answers=tuple([event.content for letter, event in events if letter == "T"]),
        sent=sent,
    )


def _gone(going: Any, way: Way) -> Any:
    """What a call came to, awaited or read to its end where it must be; a stream's pieces are what
    the model said.
    """
    if "stream" not in way:
        return asyncio.run(going) if way.endswith("async") else going
    events = asyncio.run(_collected(going)) if way.endswith("async") else list(going)
    if not events or not isinstance(events[-1], Completed):
        raise ConformanceError(f"a stream must end with Completed, not with {events[-1:]!r}")
    response = events[-1].response
    pieces = "".join([event.text for event in events if isinstance(event, TextDelta)])
    said = "".join([one.text for one in response.transcript if isinstance(one, AssistantMessage)])
    if pieces != said:
        raise ConformanceError(f"the stream's pieces are {pieces!r}, and the model said {said!r}")
    return response


async def _collected(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


def _told(error: PromptEvaluationError) -> str:
    wait = error.retry_after if isinstance(error, ThrottleError) else None
    parts = f"{error.phase}/{error.code}", error.status, wait and f"{wait.total_seconds():g}s"
    return " ".join([str(part) for part in parts if part])


def _full(visibility: Any) -> str:  # Any: a mapping whose keys are invariant
    return " ".join(
        sorted(".".join(path) for path, one in visibility.items() if one is SectionVisibility.FULL)
    )


def _own(tools: Sequence[str]) -> str:
    return " ".join(sorted(name for name in tools if name not in RESERVED_TOOL_NAMES))


def _lasting(event: Any) -> list[object]:
    return [
        getattr(event, field.name)
        for field in fields(event)
        if field.compare and field.name not in _INCIDENTAL
    ]


def scenarios(harness: Harness) -> tuple[Scenario, ...]:
    """The scenarios for what `harness` can; those of `SCENARIOS` that are not among them are left
    out.
    """
    return tuple([one for one in SCENARIOS if one.needs in harness.can])


def check(scenario: Scenario, harness: Harness, *ways: Way) -> None:
    """Plays a scenario in these ways, by default in each that makes sense, and compares what comes
    of it.

    Raises `ConformanceError` with all that differs.
    """
    if not ways:
        ways = "execute", "execute_async"
        # else only MainLoop goes on
        if "V" not in _reference(scenario, inject=Can.INJECT in harness.can).events:
            ways += "evaluate", "evaluate_async"
            ways += ("stream", "stream_async") if Can.STREAM in harness.can else ()
    for way in ways:
        try:
            wrong = list(_differences(scenario, harness.can, run(scenario, harness, way)))
        except AssertionError as error:  # how a harness says that its script was not kept to
            wrong = [str(error)]
        if wrong:
            raise ConformanceError("\n  ".join([f"{scenario.name}, by {way}:", *wrong]))


@cache
def _reference(scenario: Scenario, *, inject: bool) -> Observed:
    return run(scenario, ScriptedHarness(inject=inject))


def _differences(scenario: Scenario, can: Can, got: Observed) -> Iterator[str]:
    inject = Can.INJECT in can
    twin = _reference(scenario, inject=inject)
    # a vendor's loop may have asked again
    vague = Can.USAGE not in can or (got.error and Can.OWN_LOOP not in can)
    for name, wanted in scenario.expect.items():
        if not (name == "usage" and vague) and not _fits(name, getattr(got, name), wanted, can):
            yield f"{name}: {getattr(got, name)!r} instead of {wanted!r}"
    for other in (
        (twin,) if Can.INJECT in scenario.needs else (twin, _reference(scenario, inject=not inject))
    ):
        # the JSON of typed output may be written otherwise
        for name in _END if other.output is None else _END[1:]:
            if getattr(got, name) != getattr(other, name):
                yield f"{name}: {getattr(got, name)!r}, but the scripted adapter's {getattr(other, name)!r}"
    if Can.OWN_LOOP | Can.USAGE in can and got.log != twin.log:
        yield f"log: {got.log}, but the scripted adapter's {twin.log}"
    last = _own(got.sent[-1].tools) if got.sent else ""
    if not got.error and last != got.tools:
        yield f"tools of the last request: {last!r} instead of {got.tools!r}"
    told, known = (
        dict([answer for one in seen.sent for answer in one.answers]) for seen in (got, twin)
    )
    for call_id, content in known.items():
        if content not in told.get(call_id, ""):
            yield f"answer to {call_id}: {told.get(call_id)!r} instead of {content!r}"
    if Can.OWN_LOOP in can:
        yield from _differences_sent(got.sent, twin.sent)


def _fits(name: str, value: Any, wanted: Any, can: Can) -> bool:  # Any: each field has its own type
    match name:
        case "events" if Can.INJECT not in can:
            wanted = wanted.replace("I", "VR")
        case "answers":
            return len(value) == len(wanted) and all(map(str.__contains__, value, wanted))
        case "error" if wanted:
            value = value[: len(wanted)]
        case _:
            pass
    return bool(value == wanted)


def _differences_sent(got: Sequence[Sent], wanted: Sequence[Sent]) -> Iterator[str]:
    """How requests differ from what they must hold; there may be more words around it."""
    if len(got) != len(wanted):
        yield f"{len(got)} requests instead of {len(wanted)}"
    for number, (one, other) in enumerate(zip(got, wanted, strict=False), 1):
        said, known = "\0".join(one.texts), "\0".join(other.texts)
        if any(said.count(text) != known.count(text) for text in other.texts):
            yield f"texts of request {number}: {one.texts!r} instead of {other.texts!r}"
        if sorted(one.tools) != sorted(other.tools):
            yield f"tools of request {number}: {one.tools!r} instead of {other.tools!r}"
        if [call_id for call_id, _ in one.answers] != [call_id for call_id, _ in other.answers]:
            yield f"answers in request {number}: {one.answers!r} instead of {other.answers!r}"
