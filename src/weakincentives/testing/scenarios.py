"""The conformance suite's scenarios as data: a prompt, the model's turns, and the outcome.

All scenarios share one prompt, whose tools do what a call's arguments request.
"""

import asyncio
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Flag, auto
from functools import partial
from typing import Any

from ..citations import Citation
from ..content import Document, Image, Part
from ..evaluation.inner_loop import RunConfig
from ..evaluation.messages import AssistantMessage
from ..limits import Budget, TokenUsage
from ..prompt import Disclosure, MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.function_tools import as_tool, tool
from ..prompt.template import AnyPrompt
from ..prompt.tool import AnyTool
from ..protocols import SessionProtocol
from ..record_types import AnyType
from ..visibility import SectionPath, SectionVisibility
from .scripted import call, say

__all__ = ["SCENARIOS", "Capability", "Note", "ProviderFault", "Scenario", "Step", "World"]


class Capability(Flag):
    """An adapter's and its harness's capabilities; scenarios that require others are skipped."""

    INJECT = auto()  # can add tools to a running conversation: `supports_dynamic_tools`
    STREAM = auto()  # implements `stream` and `stream_async`
    USAGE = auto()  # reports the tokens of each request, including cached ones
    STATUS = auto()  # distinguishes failures by HTTP status
    CODES = auto()  # also uses the provider's own codes, and reports how long to wait
    TRANSPORT = auto()  # its harness can drop connections and send invalid replies
    LENGTH = auto()  # its provider reports that an answer was truncated
    FILTER = auto()  # its provider reports that an answer was filtered
    REFUSAL = auto()  # its provider reports that the model refused
    MEDIA = auto()  # supports images (PNG) and documents (PDF)
    ARGUMENTS = auto()  # forwards arguments as the model wrote them, even invalid JSON
    REASONING = auto()  # its provider shows the model's reasoning
    CITATIONS = auto()  # its provider reports the sources that an answer cites
    # Sends one request for each step, and results in our wording, without a vendor's loop in
    # between.
    OWN_LOOP = auto()


@dataclass(frozen=True, slots=True)
class ProviderFault:
    """A provider failure, which the adapter must report as `code`.

    With a `status`, it is an HTTP failure, with the provider's own code in `kind` and a
    `retry-after` in seconds. Without a status, `"connection"` is a dropped connection, and
    `"malformed"` is a reply that no adapter can read.
    """

    code: str
    status: int | None = None
    kind: str | None = None
    retry_after: int | None = None


# Any: scenario options, each with its own type.
type _Option = Any

type Step = AssistantMessage | ProviderFault
"""The provider's side of one turn. Tool call ids are unique within their scenario."""


_NO_NEEDS = Capability(0)
_DEFAULT_CONFIG = RunConfig()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """A script and its outcome: `expect` maps fields of `RunOutcome` to expected values.

    Expected answers and errors only need to be contained in the actual ones. An evaluation gets
    `config`, a deadline in `seconds` and `budget`. Injection and restart must reach the same
    outcome, unless the scenario requires injection. When the scenario is played with a message,
    `message` is the user's message, by default the suite's own. When it is played in a
    conversation, `earlier` is the earlier turn's prompt, if its texts were different.
    """

    name: str
    steps: tuple[Step, ...]
    expect: Mapping[str, object]
    prompt: Callable[[], AnyPrompt]
    needs: Capability = _NO_NEEDS
    config: RunConfig = _DEFAULT_CONFIG
    seconds: float | None = None
    budget: Budget | None = None
    message: Sequence[Part] | None = None
    earlier: Callable[[], AnyPrompt] | None = None

    def __str__(self) -> str:
        return self.name


# --- The environment of all scenarios


@dataclass(frozen=True, slots=True)
class Note:
    """State that tools write to the session."""

    text: str


class World:
    """A resource: a book that can be restored, and a clock that only tools advance."""

    def __init__(self) -> None:
        self.book: tuple[str, ...] = ()
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def clock(self) -> datetime:
        return self.now

    def snapshot(self) -> tuple[str, ...]:
        return self.book

    def restore(self, snapshot: tuple[str, ...], /) -> None:
        self.book = snapshot


@dataclass(frozen=True, slots=True)
class _Work:
    note: str
    then: str = ""


@dataclass(frozen=True, slots=True)
class _Tally:
    count: float
    unit: str = "notes"


def _work(params: _Work, *, context: ToolContext) -> ToolResult[_Tally]:
    """Writes the note to the session, and also to the book if `then` is set; then does `then`."""
    context.session.dispatch(Note(params.note))
    if params.then:
        context.resources.get(World).book += (params.note,)
    match params.then:
        case "count":
            return ToolResult("noted", _Tally(1))
        case "nan":
            return ToolResult("noted", _Tally(float("nan")))
        case "refuse":
            return ToolResult("refused", success=False)
        case "raise":
            raise RuntimeError("no luck")
        case "open":
            opened: dict[SectionPath, SectionVisibility] = {("more",): SectionVisibility.FULL}
            raise VisibilityExpansionRequired(
                requested_overrides=opened, reason="wanted", section_keys=("more",)
            )
        case "ask":
            section = MarkdownSection(title="Inner", template="Say it.")
            inner = Prompt(ns="conformance", key="inner", sections=[section])
            return ToolResult(context.adapter.evaluate(inner, session=context.session).text)
        case "outlast":
            context.resources.get(World).now += timedelta(hours=1)
        case _:
            pass
    return ToolResult("noted")


@tool(effect="pure")
def peek(session: SessionProtocol, last: int = 9) -> str:
    """Reads the notes."""
    notes = session[Note].all()[-last:]
    return f"notes: {' '.join(note.text for note in notes)}"


def _world(
    output: AnyType = None,
    disclosure: Disclosure = Disclosure.READ,
    *,
    closable: bool = False,
    task: str = "Do it: 100 %, für 1 €.",
) -> AnyPrompt:
    """Builds the prompt: a task, `more` with tools and children, `lore` without either, `off`."""
    worker = partial(
        Tool[_Work, _Tally], description="Writes a note.", handler=_work, effect="repeatable"
    )
    hidden = partial(
        MarkdownSection, summary="There is more.", visibility=SectionVisibility.SUMMARY
    )
    more = [
        hidden(title="Deep", template="All the way.", tools=[worker(name="deep")]),
        MarkdownSection(title="Side", template="Beside it.", tools=[worker(name="side")]),
    ]
    tools: list[AnyTool] = [
        worker(name="work"),
        worker(name="send", effect="at_most_once"),
        worker(name="manual", handler=None),
        as_tool(peek),
    ]
    sections = [
        MarkdownSection(title="Task", template=task, tools=tools),
        hidden(title="More", template="The rest.", tools=[worker(name="more")], children=more),
        hidden(title="Lore", template="Long ago."),
        hidden(title="Off", template="Not now.", tools=[worker(name="off")], enabled=False),
    ]
    options: AnyType = {"disclosure": disclosure, "closable": closable, "output_type": output}
    return Prompt(ns="conformance", key="world", sections=sections, **options)


_PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4"
    "2mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_PAPER = Document.from_bytes(b"%PDF-1.4\n%%EOF\n", name="paper.pdf")
_PHOTO, _OTHER = [
    # A decoder ignores everything after the image.
    Image.from_bytes(a2b_base64(_PIXEL) + name.encode(), name=name)
    for name in ("photo.png", "other.png")
]


@dataclass(frozen=True, slots=True)
class _Pictures:
    photo: Image
    other: Image


@tool(effect="pure")
async def show(context: ToolContext) -> list[str | Image | Document]:
    """Shows them."""
    await asyncio.sleep(0)
    return ["shown" if context.call_id else "", _OTHER, _PAPER]


def _gallery() -> AnyPrompt:
    """Builds a prompt with an image, another in a closed section, and a tool that returns both."""
    sections = [
        MarkdownSection[_Pictures](title="Task", template="Look: $photo", tools=[show, peek]),
        MarkdownSection[_Pictures](
            title="More",
            template="And here: $other",
            summary="There is more.",
            visibility=SectionVisibility.SUMMARY,
        ),
    ]
    prompt = Prompt(ns="conformance", key="gallery", sections=sections)
    return prompt.bind(_Pictures(_PHOTO, _OTHER))


# --- The table. Events: prompt Rendered, provider Called, Tool invoked, tools Injected (or
# Visibility expanded and rendered again), tools Withdrawn, prompt eXecuted. A list contains the
# calls of one turn.

type _Call = tuple[str, object]


class _script:  # noqa: N801 - called like a function, for each row of the table
    """A script; `expect` adds the outcome and returns a scenario."""

    def __init__(self, name: str, *script: Step | _Call | list[_Call], **options: _Option) -> None:
        self._name, self._steps = name, script
        self._options: dict[str, _Option] = {"prompt": _world, **options}

    def expect(self, **outcome: object) -> Scenario:
        """Returns the scenario; adds the reply `done` to a script that ends with calls."""
        script = self._steps
        if "error" not in outcome and script and not isinstance(script[-1], AssistantMessage):
            script += (say("done"),)
            outcome.setdefault("text", "done")
        steps = [_numbered(turn, step) for turn, step in enumerate(script, 1)]
        spent = [step.usage for step in steps if isinstance(step, AssistantMessage)]
        outcome = {"error": "", "usage": sum(spent, TokenUsage()), **outcome}
        return Scenario(name=self._name, steps=tuple(steps), expect=outcome, **self._options)


def _numbered(turn: int, step: Step | _Call | list[_Call]) -> Step:
    if isinstance(step, ProviderFault):
        return step
    if not isinstance(step, AssistantMessage):
        step = call(*([step] if isinstance(step, tuple) else step))
    tool_calls = [
        replace(tool_call, call_id=f"call_{turn}_{number}")
        for number, tool_call in enumerate(step.tool_calls, 1)
    ]
    return replace(step, tool_calls=tuple(tool_calls))


def _to(tool: str, note: str, then: str = "") -> _Call:
    return tool, {"note": note, "then": then}


def _read(key: str) -> _Call:
    return "read_section", {"section_key": key}


def _open(*keys: str) -> _Call:
    return "open_sections", {"section_keys": keys, "reason": "wanted"}


_w = partial(_to, "work")
_own = partial(_script, needs=Capability.OWN_LOOP)
_usage = partial(_script, needs=Capability.USAGE)
_close = ("close_section", {"section_key": "more"})
_opening, _closing = partial(_world, disclosure=Disclosure.OPEN), partial(_world, closable=True)
_object, _objects = partial(_world, output=_Tally), partial(_world, output=list[_Tally])
_isolated = RunConfig(parallel_tool_calls="isolated")
_invalid, _unicode = say('{"count": "many"}'), "ünï 漢字 🙂 \"'\\"
_half, _deadline, _budget = say("Half of"), "limit/deadline", "limit/budget"

SCENARIOS = (
    _script("an answer without a call", say("Hello.")).expect(
        text="Hello.", events="RCX", notes=""
    ),
    _script(
        "reasoning before calls and the answer",
        call(_w("a"), reasoning="I look."),
        say("Done.", reasoning="So."),
        needs=Capability.REASONING,
    ).expect(text="Done.", reasoning=("I look.", "So."), notes="a", events="RCTCX"),
    _script(
        "an answer with a source",
        say("It is so.", citations=[Citation(url="https://example.org/a", title="A")]),
        needs=Capability.CITATIONS,
    ).expect(text="It is so.", sources=("https://example.org/a",)),
    _own("an empty answer", say(""), say("Hello.")).expect(text="Hello.", events="RCCX"),
    _script("text of all scripts", say(_unicode)).expect(text=_unicode),
    _script("one call", _w("a")).expect(notes="a", answers=("noted",), events="RCTCX"),
    _script("arguments of all scripts", _w(_unicode), ("peek", {})).expect(
        notes=_unicode, answers=("noted", f"notes: {_unicode}")
    ),
    _script("calls of three turns", _w("a"), _w("b"), _w("c")).expect(
        notes="a b c", events="RCTCTCTCX"
    ),
    _script("three calls of one turn", [_w("a"), _w("b"), _w("c")]).expect(
        notes="a b c", events="RCTTTCX"
    ),
    _script("a call sees an earlier write", [_w("a"), ("peek", {})]).expect(
        answers=("noted", "notes: a")
    ),
    _script("text with a call", replace(call(_w("a")), text="Let me see."), say("Seen.")).expect(
        notes="a", text="Seen."
    ),
    _script("a value follows the message", _w("a", "count")).expect(
        answers=('noted\n\n{"count":1.0,"unit":"notes"}',)
    ),
    _script("no arguments mean the defaults", ("peek", ""), needs=Capability.ARGUMENTS).expect(
        answers=("notes: ",)
    ),
    _script("null means the default", ("peek", {"last": None})).expect(answers=("notes: ",)),
    _script("a long answer", _w("x" * 30_000), ("peek", {})).expect(
        answers=("noted", f"notes: {'x' * 30_000}")
    ),
    _usage(
        "cached tokens",
        replace(call(_w("a")), usage=TokenUsage(20, 8, 5, 3, 2)),
        say("Oh", usage=TokenUsage(9, 4, 6, 1)),
    ).expect(),
    _script("a changed section", _w("a"), earlier=partial(_world, task="Wait.")).expect(notes="a"),
    _script("a tool asks the model", _w("a", "ask"), say("Aye."), say("Oh")).expect(
        answers=("Aye.",)
    ),
    _script("isolated calls", [_w("a"), _w("b"), ("peek", {})], config=_isolated).expect(
        notes="a b", events="RCTTTCX"
    ),
    _script(
        "images and documents",
        [("show", {}), _read("more")],
        prompt=_gallery,
        message=["Compare", _OTHER, "and", _PAPER],
        needs=Capability.MEDIA,
    ).expect(answers=("shown", "And here: "), events="RCTTCX"),
    # Failed calls are undone.
    _script("a tool fails", _w("a", "refuse")).expect(
        notes="", book="", answers=("refused",), events="RCTCX"
    ),
    _script("a tool raises", _w("a", "raise")).expect(
        notes="", book="", answers=("no luck",), events="RCTCX"
    ),
    _script("a value that is not JSON", _w("a", "nan")).expect(notes="", book=""),
    _script("parallel calls are kept", [_w("a", "book"), _w("b", "raise"), _w("c")]).expect(
        notes="a c", book="a"
    ),
    _script("a second try", _w("a", "refuse"), _w("a")).expect(
        notes="a", answers=("refused", "noted")
    ),
    # The model's mistakes are returned to it.
    _own("an unknown tool", [("nix", {}), _w("a")]).expect(
        answers=("Unknown tool 'nix'. Available", "noted"), notes="a"
    ),
    _own("a tool of a hidden section", _to("more", "a")).expect(
        answers=("Tool 'more' is closed; call",), notes=""
    ),
    _script("a tool without a handler", _to("manual", "a")).expect(
        answers=("cannot be called here",)
    ),
    _script("broken JSON", [("work", '{"note": "'), _w("a")], needs=Capability.ARGUMENTS).expect(
        answers=("Invalid JSON", "noted")
    ),
    _script("a number for a string", ("work", {"note": 7})).expect(answers=("note: ",), notes=""),
    _script("a string for a number", ("peek", {"last": "all"})).expect(answers=("last: ",)),
    _script("an unknown field", ("work", {"note": "x", "more": 1})).expect(
        answers=("more: ",), notes=""
    ),
    _own("nothing to close", _close).expect(answers=("Unknown tool 'close_section'",)),
    # Sections open by injection or by a restart, with the same outcome.
    _script("a section without tools", _read("lore")).expect(
        opened="", answers=("Long ago.",), events="RCTCX"
    ),
    _script("a section with tools", _read("more"), _to("more", "a"), _to("side", "b")).expect(
        notes="a b", events="RCTICTCTCX"
    ),
    _script("inside a hidden section", _read("more.deep"), _to("deep", "a")).expect(
        opened="more more.deep more.side", notes="a"
    ),
    _script("step by step", _read("more"), _read("more.deep"), _to("deep", "a")).expect(
        notes="a", events="RCTICTICTCX"
    ),
    _script("an open section", _read("more"), _read("more")).expect(events="RCTICTCX"),
    _script("a disabled section", _read("off")).expect(
        answers=("Unknown section key: 'off'",), opened=""
    ),
    _script("state is kept", _w("a", "book"), _read("more"), _to("more", "b", "book")).expect(
        notes="a b", book="a b"
    ),
    _script("calls before opening a section", [_w("a"), _read("more")], _to("more", "b")).expect(
        notes="a b", events="RCTTICTCX"
    ),
    _script("a new tool is undone too", _read("more"), _to("more", "a", "raise")).expect(
        notes="", opened="more more.side"
    ),
    _script(
        "typed output after opening a section", _read("more"), say(_Tally(2)), prompt=_object
    ).expect(output=_Tally(2)),
    _script("twice in one turn", [_read("more"), _read("more")], needs=Capability.INJECT).expect(
        events="RCTTICX"
    ),
    _script(
        "too early",
        [_read("more"), _to("more", "a")],
        needs=Capability.INJECT | Capability.OWN_LOOP,
    ).expect(notes=""),
    _script("open_sections", _open("more"), _to("more", "a"), prompt=_opening).expect(
        opened="more", events="RCTVRCTCX"
    ),
    _script("a tool opens a section", _w("a", "open"), _to("more", "b")).expect(
        notes="a b", opened="more", events="RCTVRCTCX"
    ),
    _script("sent once", _to("send", "a"), _open("more"), _to("send", "a"), prompt=_opening).expect(
        notes="a"
    ),
    _own("closing", _read("more"), _close, prompt=_closing).expect(events="RCTICTWCX"),
    _own("a closed tool", _read("more"), _close, _to("more", "a"), prompt=_closing).expect(
        notes=""
    ),
    _own(
        "reopening", _read("more"), _close, _read("more"), _to("more", "a"), prompt=_closing
    ).expect(notes="a"),
    # Typed output.
    _script("an object", say(_Tally(3, "apples")), prompt=_object).expect(
        output=_Tally(3, "apples"), events="RCX"
    ),
    _script("a list of objects", say({"items": [_Tally(1)]}), prompt=_objects).expect(
        output=[_Tally(1)]
    ),
    _script("an object after a call", _w("a"), say(_Tally(1)), prompt=_object).expect(
        output=_Tally(1), notes="a"
    ),
    _own("an object with a null", say('{"count": 4, "unit": null}'), prompt=_object).expect(
        output=_Tally(4)
    ),
    _own("an object in a fence", say('```json\n{"count": 4}\n```'), prompt=_object).expect(
        output=_Tally(4)
    ),
    _own("a bare list", say([_Tally(1)]), prompt=_objects).expect(output=[_Tally(1)]),
    _own("a repaired object", _invalid, say(_Tally(5)), prompt=_object).expect(
        output=_Tally(5), events="RCCX"
    ),
    _own(
        "repairs around a call", say("5"), _w("a"), _invalid, say(_Tally(5)), prompt=_object
    ).expect(output=_Tally(5), notes="a"),
    _own("never an object", _invalid, _invalid, _invalid, prompt=_object).expect(
        error="response/output", events="RCCC"
    ),
    _own("no repairs", _invalid, prompt=_object, config=RunConfig(max_repairs=0)).expect(
        error="response/output", events="RC"
    ),
    # Limits.
    _script("a deadline that has passed", seconds=0).expect(error=_deadline, events="R"),
    _script("a tool outlasts the deadline", [_w("a", "outlast"), _w("b")], seconds=60).expect(
        error=_deadline, notes="a"
    ),
    _script("a tool outlasts the budget", _w("a", "outlast"), budget=Budget(max_seconds=60)).expect(
        error=_deadline, notes="a"
    ),
    _script("turns", _w("a"), _w("b"), config=RunConfig(max_turns=2)).expect(
        error="limit/turns", notes="a b"
    ),
    _script("requests", _w("a"), budget=Budget(max_calls=1)).expect(
        error=_budget, notes="a", events="RCT"
    ),
    _script("tool calls", [_w("a"), _w("b")], budget=Budget(max_tool_calls=1)).expect(
        error=_budget, notes="a", events="RCT"
    ),
    _script("an answer after the last call", _w("a"), budget=Budget(max_tool_calls=1)).expect(
        notes="a"
    ),
    _usage("tokens", _w("a"), _w("b"), budget=Budget(max_tokens=30)).expect(
        error=_budget, notes="a", events="RCTC"
    ),
    _script(
        "requests with a restart",
        _open("more"),
        _w("a"),
        prompt=_opening,
        budget=Budget(max_calls=2),
    ).expect(error=_budget, notes="a"),
    # Provider failures.
    *[
        _script(f"a failure: {error}", _w("a"), fault, needs=needs).expect(
            notes="a", events="RCTC", error=f"request/{error}"
        )
        for needs, error, fault in (
            (Capability.STATUS, "bad_request 400", ProviderFault("bad_request", 400)),
            (Capability.STATUS, "authentication 401", ProviderFault("authentication", 401)),
            (Capability.STATUS, "permission 403", ProviderFault("permission", 403)),
            (Capability.STATUS, "not_found 404", ProviderFault("not_found", 404)),
            (Capability.STATUS, "throttled 429", ProviderFault("throttled", 429)),
            (Capability.STATUS, "server_error 500", ProviderFault("server_error", 500)),
            (Capability.CODES, "throttled 429 7s", ProviderFault("throttled", 429, retry_after=7)),
            (
                Capability.CODES,
                "context_length 400",
                ProviderFault("context_length", 400, "context_length_exceeded"),
            ),
            (Capability.CODES, "quota 429", ProviderFault("quota", 429, "insufficient_quota")),
            (Capability.TRANSPORT, "connection", ProviderFault("connection")),
        )
    ],
    _script("no reply", _w("a"), ProviderFault("malformed"), needs=Capability.TRANSPORT).expect(
        error="response/malformed", notes="a"
    ),
    _script(
        "an immediate failure", ProviderFault("bad_request", 400), needs=Capability.STATUS
    ).expect(error="request/bad", events="RC"),
    _script(
        "a failure after opening a section",
        _read("more"),
        ProviderFault("bad_request", 400),
        needs=Capability.STATUS,
    ).expect(error="request/bad"),
    _script("a truncated answer", replace(_half, finish="length"), needs=Capability.LENGTH).expect(
        error="response/truncated"
    ),
    _script(
        "a filtered answer", replace(_half, finish="content_filter"), needs=Capability.FILTER
    ).expect(error="response/content"),
    _script("a refusal", replace(_half, finish="refusal"), needs=Capability.REFUSAL).expect(
        error="response/refused", events="RC"
    ),
    _script(
        "a truncated turn",
        replace(call(_w("a")), finish="length"),
        needs=Capability.OWN_LOOP | Capability.LENGTH,
    ).expect(notes="", error="response/truncated"),
)
"""Every scenario, by topic."""
