"""The log of a run, as a value and as JSON: the run's steps, in order.

A suspended run is saved as its log, from which it can be resumed in any process. If a call has
nested runs, each of them has its own log. `run_log` contains the log of a run in progress.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from hashlib import sha256
from operator import attrgetter
from typing import Annotated, Literal

from .. import serde
from ..content import Content
from ..limits import RunUsage, TokenUsage
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.tool import AgentTemplate, PromptHandler
from ..runtime.session.snapshots import Changes
from ..visibility import SectionPath, SetVisibilityOverride, ShownSection
from .approval import Decision, Preview
from .conversation import Conversation, OnChange
from .errors import ChangedRunError, EvaluationPhase, PromptEvaluationError, ThrottleError
from .messages import AssistantMessage, ToolCall, ToolExecutionOutcome, ToolMessage, sendable

__all__ = [
    "ACCEPT",
    "COMPACTION",
    "Answered",
    "Asked",
    "CallKey",
    "Decided",
    "LoggedCall",
    "LoggedEntry",
    "LoggedRun",
    "NestedRun",
    "ProviderFailure",
    "Rendered",
    "RunsInside",
    "SectionRequest",
    "approval_ids",
    "change_since",
    "check_nested",
    "check_run",
    "decide",
    "inconsistency_in",
    "pending_previews",
    "size_of",
    "suspended_tools",
    "to_logged",
    "tool_digests",
    "usage_of",
]

_tokens = attrgetter(*[item.name for item in fields(TokenUsage)])
ACCEPT = "<accept>"
"""The name of the pseudo call that checks an answer; no tool can have this name."""

COMPACTION = "<compaction>"
"""The name of the pseudo call in which a summary's run is nested."""

type CallKey = str
"""Identifies a call in its run, such as `"3/call_7"`: the number of provider answers so far,
and the id of the decision on the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """An evaluation starts: the first one, one with more sections open, or one with fewer messages.

    The JSON contains only the last evaluation's `conversation`, because the run continues from
    there.
    """

    cause: Literal["start", "restart", "compaction"] = "start"
    section_keys: tuple[str, ...] = ()
    reason: str = ""
    conversation: Conversation | None = field(default=None, repr=False)
    kind: Literal["rendered"] = field(default="rendered", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFailure:
    """A failed request, recorded in place of an answer; `usage` counts the tokens it used.

    `arrived` is the part of the answer that the conversation keeps. If `fell_back` is true, the
    request was then sent to another provider.
    """

    message: str
    phase: EvaluationPhase
    code: str
    provider: str = ""
    status: int | None = None
    remedy: str = ""
    is_throttle: bool = False
    retry_after: timedelta | None = None
    usage: TokenUsage = field(default_factory=TokenUsage)
    arrived: AssistantMessage | None = None
    fell_back: bool = False
    kind: Literal["failure"] = field(default="failure", repr=False)

    @classmethod
    def of(cls, error: PromptEvaluationError) -> "ProviderFailure":
        """Returns the failure that `error` describes."""
        return cls(
            message=sendable(error.message),
            phase=error.phase,
            code=error.code,
            provider=error.provider,
            status=error.status if isinstance(error.status, int) else None,
            remedy=sendable(error.remedy),
            is_throttle=isinstance(error, ThrottleError),
            retry_after=error.retry_after if isinstance(error, ThrottleError) else None,
        )

    def to_error(self) -> PromptEvaluationError:
        """Returns the error that this failure records."""
        kind = ThrottleError if self.is_throttle else PromptEvaluationError
        error = kind(
            self.message,
            phase=self.phase,
            code=self.code,
            provider=self.provider,
            status=self.status,
            remedy=self.remedy,
        )
        if isinstance(error, ThrottleError):
            error.retry_after = self.retry_after
        return error


@dataclass(frozen=True, slots=True)
class Answered:
    """The provider answered or failed; `cost` is the answer's cost, if its price is known."""

    reply: Annotated[AssistantMessage | ProviderFailure, serde.ByKind()]
    cost: float | None = 0.0
    kind: Literal["answered"] = field(default="answered", repr=False)


@dataclass(frozen=True, slots=True)
class Began:
    """A call's handler starts; even if it is interrupted, the call must not run twice."""

    key: CallKey
    kind: Literal["began"] = field(default="began", repr=False)


@dataclass(frozen=True, slots=True)
class Asked:
    """A call needs a decision; `preview` shows its effects."""

    key: CallKey
    preview: Preview
    kind: Literal["asked"] = field(default="asked", repr=False)


@dataclass(frozen=True, slots=True)
class Decided:
    """A reviewer has decided on a call."""

    key: CallKey
    decision: Decision
    kind: Literal["decided"] = field(default="decided", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionChange:
    """The section changes from a `ToolExecutionOutcome`, with tools represented by their names."""

    section_key: str
    tools: tuple[str, ...]
    opened: tuple[SectionPath, ...]
    closed_tools: tuple[str, ...]
    shown: tuple[ShownSection, ...]
    closed: SectionPath


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRequest:
    """A request for sections that only a new evaluation can open."""

    message: str
    section_keys: tuple[str, ...]
    reason: str
    requested: tuple[SetVisibilityOverride, ...]

    def to_error(self) -> VisibilityExpansionRequired:
        """Returns the exception that this request records."""
        return VisibilityExpansionRequired(
            self.message,
            requested_overrides={item.path: item.visibility for item in self.requested},
            reason=self.reason,
            section_keys=self.section_keys,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """A call was answered; if `has_run` is true, `call` has the arguments with which it ran.

    `state` contains the call's changes to the session, if the call does not have to run again. For
    a tool without a declared effect, `is_complete` means that the call changed nothing else.
    """

    key: CallKey
    call: ToolCall
    answer: ToolMessage
    error: str = ""
    sections: SectionChange | None = None
    request: SectionRequest | None = None
    state: Changes = field(default_factory=dict[str, dict[str, serde.Json]])
    is_complete: bool = False
    has_run: bool = True
    kind: Literal["called"] = field(default="called", repr=False)


type LoggedEntry = Annotated[
    Rendered | Answered | Asked | Decided | Began | LoggedCall, serde.ByKind()
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """The steps of a run that started with `message` and `conversation`, and its nested runs."""

    entries: tuple[LoggedEntry, ...] = ()
    inside: "Mapping[CallKey, RunsInside]" = field(default_factory=dict[CallKey, "RunsInside"])
    message: Content | None = None
    conversation: Conversation | None = None
    on_change: OnChange = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedRun:
    """The log of a nested run; `tool_digests` are the digests of the tools with suspended calls."""

    ns: str
    key: str
    log: LoggedRun
    tool_digests: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsInside:
    """The runs nested in one call, in the order in which its handler started them.

    `arguments` are the arguments with which the call ran.
    """

    tool: str
    arguments: str
    runs: tuple[NestedRun, ...] = ()


def to_logged(
    call: ToolCall,
    key: CallKey,
    outcome: ToolExecutionOutcome,
    *,
    has_run: bool,
    state: Changes,
    is_complete: bool,
) -> LoggedCall:
    """Returns the log entry for a call's outcome."""
    sections, request = None, None
    if outcome.shown or outcome.opened or outcome.closed or outcome.expanded_tools:
        sections = SectionChange(
            section_key=outcome.section_key,
            tools=tuple([tool.name for tool in outcome.expanded_tools]),
            opened=outcome.opened,
            closed_tools=outcome.closed_tools,
            shown=outcome.shown,
            closed=outcome.closed,
        )
    if (error := outcome.request) is not None:
        request = SectionRequest(
            message=str(error),
            section_keys=error.section_keys,
            reason=error.reason,
            requested=tuple(
                [
                    SetVisibilityOverride(path=path, visibility=visibility)
                    for path, visibility in error.requested_overrides.items()
                ]
            ),
        )
    answer, kind = outcome.message, outcome.error
    return LoggedCall(
        key=key,
        call=call,
        answer=answer,
        error=kind,
        has_run=has_run,
        sections=sections,
        request=request,
        state=state,
        is_complete=is_complete,
    )


def approval_ids(calls: Sequence[ToolCall]) -> tuple[str, ...]:
    """Returns the id of the decision on each call in a turn.

    This is the call's own id, made unique within the turn, with slashes replaced: an id with
    slashes belongs to a call in a nested run.
    """
    ids: list[str] = []
    for call in calls:
        name = call.call_id.replace("/", "~")
        number, approval_id = 1, name
        while approval_id in ids:
            number += 1
            approval_id = f"{name}#{number}"
        ids.append(approval_id)
    return tuple(ids)


def _open_calls(log: LoggedRun) -> Iterator[tuple[CallKey, str, ToolCall]]:
    """Yields the unanswered calls of the model's last answer, with their ids."""
    turn, calls = 0, tuple[ToolCall, ...]()
    answered: set[CallKey] = set()
    for entry in log.entries:
        match entry:
            case Answered(reply):
                turn += 1
                calls = reply.tool_calls if isinstance(reply, AssistantMessage) else ()
            case LoggedCall(key=key):
                answered.add(key)
            case _:
                pass
    for approval_id, call in zip(approval_ids(calls), calls, strict=True):
        if (key := f"{turn}/{approval_id}") not in answered:
            yield key, approval_id, call


def pending_previews(log: LoggedRun) -> Iterator[tuple[Preview, Decision | None]]:
    """Yields the previews of a suspended run that need a decision, in the order of the calls.

    Each preview comes with its decision, if one was already made while other calls are pending.
    """
    asked: dict[CallKey, tuple[Preview, Decision | None]] = {}
    for entry in log.entries:
        match entry:
            case Asked(key, preview):
                asked[key] = preview, None
            case Decided(key, decision) if key in asked:
                asked[key] = asked[key][0], decision
            case _:
                pass
    for key, approval_id, call in _open_calls(log):
        runs = log.inside[key].runs if key in log.inside else ()
        inner = [
            (
                replace(
                    preview,
                    call_id=f"{approval_id}/{number}/{preview.call_id}",
                    inside=(call.name, *preview.inside),
                ),
                decision,
            )
            for number, run in enumerate(runs, 1)
            for preview, decision in pending_previews(run.log)
        ]
        if inner:
            yield from inner
        elif key in asked:
            yield asked[key]


def suspended_tools(log: LoggedRun) -> list[str]:
    """Returns the names of the tools whose calls are suspended or have nested runs."""
    shown = {entry.key for entry in log.entries if isinstance(entry, Asked)}
    known = shown | log.inside.keys()
    return [call.name for key, _, call in _open_calls(log) if key in known]


def inconsistency_in(log: LoggedRun) -> str:
    """Describes an inconsistency in a log; returns `""` if there is none."""
    turn, calls = 0, dict[CallKey, ToolCall]()
    for entry in log.entries:
        match entry:
            case Answered(reply):
                turn += 1
                requested = reply.tool_calls if isinstance(reply, AssistantMessage) else ()
                keys = [f"{turn}/{approval_id}" for approval_id in approval_ids(requested)]
                calls = dict(zip(keys, requested, strict=True))
            case Asked(key, preview):
                shown = f"{turn}/{preview.call_id}", preview.tool, preview.inside
                if key not in calls or shown != (key, calls[key].name, ()):
                    return "a preview belongs to another call"
            case LoggedCall(key=key, call=call, answer=answer) if call.name != ACCEPT:
                known = calls.pop(key, None)
                if known is None or (known.call_id, known.name) != (call.call_id, call.name):
                    return "an answer belongs to a call that was not made"
                if answer.call_id != call.call_id:
                    return "an answer belongs to a call that was not made"
            case _:
                pass
    turns = {str(number) for number in range(turn + 1)}
    if any(key.partition("/")[0] not in turns for key in log.inside):
        return "a run is nested in a call that was not made"
    inner = [run.log for inside in log.inside.values() for run in inside.runs]
    return next(filter(None, map(inconsistency_in, inner)), "")


def decide(log: LoggedRun, decisions: Mapping[str, Decision]) -> LoggedRun:
    """Returns the log with decisions on pending calls, by their ids."""
    keys = {approval_id: key for key, approval_id, _ in _open_calls(log)}
    own: list[Decided] = []
    inner: dict[CallKey, dict[int, dict[str, Decision]]] = {}
    for call_id, decision in decisions.items():
        approval_id, _, rest = call_id.partition("/")
        key = keys[approval_id]
        if not rest:
            own.append(Decided(key, decision))
            continue
        number, _, inside_id = rest.partition("/")
        inner.setdefault(key, {}).setdefault(int(number) - 1, {})[inside_id] = decision
    inside = dict(log.inside)
    for key, by_run in inner.items():
        runs = [
            replace(run, log=decide(run.log, by_run.get(index, {})))
            for index, run in enumerate(inside[key].runs)
        ]
        inside[key] = replace(inside[key], runs=tuple(runs))
    return replace(log, entries=(*log.entries, *own), inside=inside)


def usage_of(log: LoggedRun, model: str = "") -> RunUsage:
    """Returns the usage of a run of `model`, including nested runs."""
    usages, known, tool_calls = list[TokenUsage](), list[float](), 0
    unpriced: dict[str, int] = {}
    for entry in log.entries:
        match entry:
            case Answered(ProviderFailure(fell_back=True)):
                pass  # the following answer includes this failure's cost
            case Answered(reply, cost):
                usages.append(reply.usage)
                if cost is None:
                    name = _model_of(reply) or model
                    unpriced[name] = unpriced.get(name, 0) + 1
                else:
                    known.append(cost)
            case LoggedCall(call=ToolCall(name=name)) if name != ACCEPT:
                tool_calls += 1
            case _:
                pass
    tokens = map(sum, zip(*map(_tokens, usages), strict=True))  # faster than adding
    total, cost = RunUsage(TokenUsage(*tokens), len(usages), tool_calls), sum(known, 0.0)
    if unpriced:
        total = replace(total, known_cost=cost, unpriced=unpriced)
    elif known:
        total = replace(total, cost=cost)
    for inside in log.inside.values():
        for run in inside.runs:
            total += usage_of(run.log, model)
    return total


def _model_of(reply: AssistantMessage | ProviderFailure) -> str:
    return "" if isinstance(reply, ProviderFailure) else reply.model or reply.requested_model


def size_of(log: LoggedRun) -> int:
    """Returns the number of log entries except decisions, including entries of nested runs."""
    inner = [run.log for inside in log.inside.values() for run in inside.runs]
    own = sum(not isinstance(entry, Decided) for entry in log.entries)
    return own + sum(map(size_of, inner))


def tool_digests(template: AgentTemplate[object], names: Sequence[str]) -> dict[str, str]:
    """Returns a digest of each tool's declaration, by name, for the tools of the template."""
    tools = [template.registry.get_tool(name) for name in names]
    return {
        tool.name: sha256(
            serde.dump_json(
                [tool.name, tool.description, tool.params_schema(), tool.effect]
            ).encode()
        ).hexdigest()
        for tool in tools
        if tool is not None
    }


def check_nested(template: AgentTemplate[object], log: LoggedRun) -> None:
    """Raises `ChangedRunError` if a nested run of a pending call in `log` cannot continue.

    This checks the prompts of tools created by `Tool.from_prompt`. Runs started by other handlers
    are checked when they start.
    """
    for key, _, call in _open_calls(log):
        tool = template.registry.get_tool(call.name)
        if key in log.inside and tool is not None and isinstance(tool.handler, PromptHandler):
            for run in log.inside[key].runs:
                check_run(tool.handler.template, run)


def check_run(template: AgentTemplate[object], run: NestedRun) -> None:
    """Raises `ChangedRunError` if a suspended nested run cannot continue with the template."""
    change = change_since(template, f"{run.ns}/{run.key}", run.tool_digests, kind="nested run")
    if change:
        raise ChangedRunError(change)
    check_nested(template, run.log)


def change_since(
    template: AgentTemplate[object], name: str, digests: Mapping[str, str], *, kind: str
) -> str:
    """Explains why a run of the prompt `name` cannot continue with the template; `""` if it can.

    `digests` are the digests of its tools when the run was suspended; `kind` names the run in the
    message.
    """
    if (now := f"{template.ns}/{template.key}") != name:
        return (
            f"the suspended {kind} is of prompt {name!r}, not of {now!r}; "
            "resume it with its own prompt"
        )
    present = tool_digests(template, list(digests))
    changed = [tool for tool, digest in digests.items() if present.get(tool) != digest]
    if not changed:
        return ""
    return (
        f"the tools {changed} have changed since the {kind} of {name!r} was suspended; "
        "resume it with the code that suspended it"
    )
