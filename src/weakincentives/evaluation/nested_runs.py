"""The records of runs inside tool calls, with which these go on after their root run has waited.

A call whose handler runs another prompt is undone while its root run waits for people. Later the
handler runs again, and each of its runs repeats what it had done: the model's answers come from the
run's record, and so do the answers of calls that failed, change nothing or must not run twice. The
other calls run again. The records are values and JSON; the logs in `run_logs` make them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any, Literal

from .. import serde
from ..errors import WeakIncentivesError
from ..limits import RunUsage
from ..prompt.template import PromptTemplate
from ..prompt.tool import NON_REPEATABLE, AnyTool, PromptHandler
from ..runtime.session.snapshots import Changes
from .approval import Decision, Preview
from .errors import EvaluationPhase, PromptEvaluationError, ThrottleError
from .messages import AssistantMessage, ToolCall, ToolMessage

__all__ = [
    "ChangedRunError",
    "Decisions",
    "NestedCall",
    "NestedRun",
    "NestedRuns",
    "ProviderFailure",
    "UndecidedError",
    "Waiting",
    "approval_ids",
    "change_since",
    "check_nested",
    "check_run",
    "may_wait",
    "pending_inside",
    "tool_digests",
]

type Decisions = Mapping[str, Decision]

_NO_USAGE = RunUsage()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFailure:
    """A request of a nested run that failed, in place of the model's answer."""

    message: str
    phase: EvaluationPhase
    code: str
    provider: str
    status: int | None
    remedy: str
    is_throttle: bool = False
    retry_after: timedelta | None = None
    kind: Literal["failure"] = "failure"

    @classmethod
    def of(cls, error: PromptEvaluationError) -> "ProviderFailure":
        """Returns the failure of which `error` tells."""
        return cls(
            message=error.message,
            phase=error.phase,
            code=error.code,
            provider=error.provider,
            status=error.status,
            remedy=error.remedy,
            is_throttle=isinstance(error, ThrottleError),
            retry_after=error.retry_after if isinstance(error, ThrottleError) else None,
        )

    def to_error(self) -> PromptEvaluationError:
        """Returns an equal error."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedRuns:
    """The runs inside one call, in the order in which its handler began them.

    `arguments` are those with which the call ran, and `spent` is what its runs have used.
    """

    tool: str
    arguments: str
    idempotency_key: str
    spent: RunUsage = _NO_USAGE
    runs: "tuple[NestedRun, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedCall:
    """A call of a nested run that has an answer, with the arguments with which it ran.

    `state` are the changes of the session by a call that need not run again. `is_complete` says of
    a tool that declares no effect that the call has changed nothing else.
    """

    call: ToolCall
    answer: ToolMessage
    nested: NestedRuns
    state: Changes = field(default_factory=dict[str, dict[str, serde.Json]])
    is_complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedRun:
    """What a nested run has done; it goes on from there.

    `pending` are the calls on which people must decide, in order. Their ids in the run around this
    one are `ids`. `open` has the runs inside calls without an answer, by their approval ids;
    `decisions` were made on such calls before they ran. `summaries` are the runs that have made the
    conversation shorter.
    """

    ns: str
    key: str
    answers: tuple[AssistantMessage | ProviderFailure, ...] = ()
    calls: tuple[NestedCall, ...] = ()
    open: Mapping[str, NestedRuns] = field(default_factory=dict[str, NestedRuns])
    decisions: Decisions = field(default_factory=dict[str, Decision])
    pending: tuple[Preview, ...] = ()
    ids: tuple[str, ...] = ()
    tool_digests: Mapping[str, str] = field(default_factory=dict[str, str])
    summaries: "tuple[NestedRun, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The calls of one turn for which a run waits, with the decisions on them so far."""

    pending: tuple[Preview, ...] = ()
    decisions: Decisions = field(default_factory=dict[str, Decision])
    nested: Mapping[str, NestedRuns] = field(default_factory=dict[str, NestedRuns])
    tool_digests: Mapping[str, str] = field(default_factory=dict[str, str])


class UndecidedError(Exception):
    """Nobody has decided on the calls of `previews`, so the run must wait.

    `decisions` were made on some of them that wait for others.
    """

    def __init__(self, previews: Sequence[Preview], decisions: Decisions | None = None) -> None:
        super().__init__(", ".join([preview.tool for preview in previews]))
        self.previews = tuple(previews)
        self.decisions = decisions or {}


class ChangedRunError(WeakIncentivesError, ValueError):
    """A nested run that waits cannot go on, since its prompt or its tools have changed."""


def approval_ids(calls: Sequence[ToolCall]) -> tuple[str, ...]:
    """Returns for each call of a turn the id under which people decide on it.

    It is the call's id, but no two calls of a turn have the same, and it has no slash: an id with
    slashes is of a call inside a nested run.
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


def pending_inside(nested: Mapping[str, NestedRuns]) -> list[Preview]:
    """Returns the previews of all pending calls in the runs of a record, as people see them."""
    return [
        replace(preview, call_id=approval_id, inside=(record.tool, *preview.inside))
        for record in nested.values()
        for run in record.runs
        for approval_id, preview in zip(run.ids, run.pending, strict=False)
    ]


def may_wait(tool: AnyTool | None) -> bool:
    """Whether the runs inside a call of `tool` can wait: its handler then runs twice."""
    return tool is not None and (
        tool.effect not in NON_REPEATABLE or isinstance(tool.handler, PromptHandler)
    )


# Any: a prompt of any output
def tool_digests(template: PromptTemplate[Any], names: Sequence[str]) -> dict[str, str]:
    """Returns a digest of what each tool declares, by name, of those that the template has."""
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


# Any: as above
def check_nested(template: PromptTemplate[Any], nested: Mapping[str, NestedRuns]) -> None:
    """Raises `ChangedRunError` if a run inside one of the template's tools cannot go on.

    It finds the prompts of tools that `Tool.from_prompt` makes. Runs of other handlers are checked
    when they begin.
    """
    for record in nested.values():
        tool = template.registry.get_tool(record.tool)
        if tool is not None and isinstance(tool.handler, PromptHandler):
            for run in record.runs:
                check_run(tool.handler.template, run)


# Any: as above
def check_run(template: PromptTemplate[Any], run: NestedRun) -> None:
    """Raises `ChangedRunError` if a nested run that waits cannot go on with the template."""
    change = change_since(template, f"{run.ns}/{run.key}", run.tool_digests, kind="nested run")
    if change:
        raise ChangedRunError(change)
    check_nested(template, run.open)


# Any: as above
def change_since(
    template: PromptTemplate[Any], name: str, digests: Mapping[str, str], *, kind: str
) -> str:
    """Returns why a run of the prompt `name` cannot go on with the template; `""` if it can.

    `digests` are those of its tools when it was suspended; `kind` names the run in the message.
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
