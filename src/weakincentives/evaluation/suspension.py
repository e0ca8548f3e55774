"""Runs that wait for people: `RunSuspended` ends a run whose calls nobody is there to approve.

Its `Suspension` is a value and JSON. `MainLoop.resume` goes on with it and with the decisions, in
any process, as if the run had never stopped. The session of a suspended run has a mark, which
`resume` removes: so a run goes on once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

from .. import serde
from ..content import Content
from ..errors import SerdeError, ValidationIssue, WeakIncentivesError
from ..limits import RunUsage
from ..prompt.model_json import read_without_nulls
from ..prompt.prompt import Prompt
from ..prompt.template import PromptTemplate
from ..prompt.tool import AnyTool, PromptHandler
from ..protocols import SessionProtocol
from ..runtime.events import new_id
from ..runtime.session.session import Session
from ..runtime.session.slices import EMPTY
from ..runtime.session.snapshots import SessionSnapshot, library_state
from .approval import Approve, Decision, Deny, Preview, ReplaceArguments, arguments_json
from .call_history import RecordedCall
from .conversation import Conversation, OnChange
from .messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from .nested_runs import (
    NestedRuns,
    Waiting,
    approval_ids,
    change_since,
    check_nested,
    pending_inside,
)
from .response import Restarted

__all__ = [
    "Resumption",
    "RunSuspended",
    "SuspendedRun",
    "Suspension",
    "cannot_wait",
    "check_decisions",
    "check_resumable",
    "mark_suspended",
    "replacement_issue",
]


_REMEDY = "go on by MainLoop.resume(prompt, suspension, decisions), or pass approver="


@library_state
@dataclass(frozen=True, slots=True)
class SuspendedRun:
    """The mark of a suspended run in its session."""

    suspension_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A run that waits for decisions on the calls in `pending`, as a value and JSON.

    `conversation` ends with the model's calls, of which the first have `answers`. `session` is the
    JSON of the session's snapshot. `spent` is what the evaluation has used, `spent_before` the
    evaluations of the run before it. `decisions` were made already, on calls that wait for others.
    `nested` has the runs inside calls that have no answer yet, by the ids of these calls.
    It holds no resources, params of the prompt or credentials; but what the model and the tools
    wrote is in it, as in any conversation.
    """

    ns: str
    key: str
    pending: tuple[Preview, ...]
    conversation: Conversation = field(repr=False)
    session: str = field(repr=False)
    answers: tuple[ToolMessage, ...] = field(default=(), repr=False)
    decisions: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    tool_digests: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    spent: RunUsage = field(default=RunUsage(), repr=False)
    turns: int = field(default=0, repr=False)
    repairs: int = field(default=0, repr=False)
    first_message: int = field(default=0, repr=False)
    spent_before: RunUsage = field(default=RunUsage(), repr=False)
    turns_before: int = field(default=0, repr=False)
    previous_turns: int = field(default=0, repr=False)
    restarts: tuple[Restarted, ...] = field(default=(), repr=False)
    calls: tuple[RecordedCall, ...] = field(default=(), repr=False)
    start: Conversation | None = field(default=None, repr=False)
    has_message: bool = field(default=False, repr=False)
    on_change: OnChange = field(default="append", repr=False)
    nested: Mapping[str, NestedRuns] = field(default_factory=dict[str, NestedRuns], repr=False)
    suspension_id: str = field(default_factory=new_id)
    version: Literal[1] = 1

    @property
    def message(self) -> Content | None:
        """The user's message with which the run began, if there was one."""
        opening = self.conversation.messages[self.first_message - 1]
        return opening.content if self.has_message and isinstance(opening, UserMessage) else None

    @property
    def calls_of_turn(self) -> tuple[ToolCall, ...]:
        """The model's last calls, of which the first have an answer."""
        messages = self.conversation.messages
        last = messages[-1] if messages else None
        return last.tool_calls if isinstance(last, AssistantMessage) else ()

    def to_json(self) -> str:
        """Returns JSON text from which `from_json` makes an equal suspension."""
        return serde.dump_json_lossless(Suspension, self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parses what `to_json` wrote; raises `SerdeError` for other text or another version."""
        suspension = serde.parse_json(cls, text)
        if issue := _issue(suspension):
            raise SerdeError("suspension", (issue,))
        return suspension


class RunSuspended(WeakIncentivesError):
    """A run waits for a person; `suspension` goes on with `MainLoop.resume`."""

    def __init__(self, suspension: Suspension, remedy: str = _REMEDY) -> None:
        self.suspension = suspension
        self.remedy = remedy
        names = [preview.tool for preview in suspension.pending]
        count = "1 call" if len(names) == 1 else f"{len(names)} calls"
        calls = f"{count} ({', '.join(names)})"
        super().__init__(f"the run waits for the approval of {calls}; {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.suspension, self.remedy)


class Resumption(NamedTuple):
    """A suspension with all decisions on it so far."""

    suspension: Suspension
    decisions: Mapping[str, Decision]

    @property
    def waiting(self) -> Waiting:
        """The calls for which the run has waited."""
        pending, nested = self.suspension.pending, self.suspension.nested
        return Waiting(pending=pending, decisions=self.decisions, nested=nested)


# Any: a prompt of any output
def check_resumable(
    prompt: Prompt[Any],
    suspension: Suspension,
    decisions: Mapping[str, Decision],
    session: SessionProtocol,
) -> Resumption:
    """Returns what the run goes on with, and removes its mark from the session.

    A new session is first restored to the suspension's state. Raises `ValueError` and changes
    nothing for another prompt, changed tools, decisions on unknown calls and a session in which the
    run does not wait, such as one that has resumed it.
    """
    name = f"{suspension.ns}/{suspension.key}"
    if change := change_since(prompt.template, name, suspension.tool_digests, kind="run"):
        raise ValueError(change)
    check_nested(prompt.template, suspension.nested)
    check_decisions(suspension, decisions)
    all_decisions = {**suspension.decisions, **decisions}
    for preview in suspension.pending:
        decision = all_decisions.get(preview.call_id)
        if decision and (problem := replacement_issue(prompt.template, preview, decision)):
            raise ValueError(problem)
    if issue := _issue(suspension):
        raise ValueError(f"cannot resume the suspension: {issue.message}; pass it as it was made")
    if isinstance(session, Session) and _is_new(session.snapshot()):
        session.restore(session.parse_snapshot(suspension.session))
    mark = SuspendedRun(suspension.suspension_id)
    if not session[SuspendedRun].where(mark.__eq__):
        raise ValueError(
            f"the run of {name!r} does not wait in this session: it was resumed already, or the "
            "session is another one; pass a new Session() for that of the suspension"
        )
    session[SuspendedRun].clear(mark.__eq__)
    return Resumption(suspension, all_decisions)


def check_decisions(suspension: Suspension, decisions: Mapping[str, Decision]) -> None:
    """Raises `ValueError` for a decision on a call that does not wait, `TypeError` for others."""
    decided: object = decisions
    if not isinstance(decided, Mapping):
        raise TypeError(f"decisions must be a mapping of call ids, got {decided!r:.100}")
    waiting = {preview.call_id for preview in suspension.pending}
    for call_id, decision in decisions.items():
        if call_id not in waiting:
            raise ValueError(f"call {call_id!r} does not wait; decide on {sorted(waiting)}")
        if not isinstance(decision, Approve | Deny | ReplaceArguments):
            raise TypeError(f"the decision on {call_id!r} is {decision!r}; pass Approve()")
        if isinstance(decision, ReplaceArguments):
            arguments_json(decision.arguments)


# Any: a prompt of any output
def replacement_issue(template: PromptTemplate[Any], preview: Preview, decision: Decision) -> str:
    """Returns why the call's tool cannot take replaced arguments; `""` if it can.

    Finds the tools of the template, and of the prompts that `Tool.from_prompt` makes tools.
    """
    tool = _find_tool(template, (*preview.inside, preview.tool))
    if tool is None or not isinstance(decision, ReplaceArguments):
        return ""
    try:
        read_without_nulls(tool.parse_params, arguments_json(decision.arguments))
    except SerdeError as error:
        return (
            f"the arguments of ReplaceArguments for call {preview.call_id!r} do not fit tool "
            f"{tool.name!r} ({error}); correct them"
        )
    return ""


# Any: a prompt of any output
def _find_tool(template: PromptTemplate[Any], names: Sequence[str]) -> AnyTool | None:
    tool = template.registry.get_tool(names[0])
    if tool is None or len(names) == 1:
        return tool
    handler = tool.handler
    return _find_tool(handler.template, names[1:]) if isinstance(handler, PromptHandler) else None


def cannot_wait(tool: str) -> str:
    """Returns why a nested run cannot wait and what to do.

    `tool` must not run twice; without one, the call around the run cannot be made again.
    """
    if tool:
        return f"a call of {tool!r}, which must not run twice, has changed files; pass approver="
    return (
        "it runs inside a call that must not run twice, or where no run can wait; pass approver= "
        "or make the tool around it by Tool.from_prompt"
    )


def mark_suspended(suspension: Suspension, session: SessionProtocol) -> RunSuspended:
    """Marks the session and returns the error that ends the run, with the session's snapshot.

    Raises `SerdeError` for state that JSON cannot hold.
    """
    mark = SuspendedRun(suspension.suspension_id)
    session[SuspendedRun].append(mark)
    try:
        snapshot = session.snapshot()
        text = snapshot.to_json() if isinstance(snapshot, SessionSnapshot) else ""
    except BaseException:
        session[SuspendedRun].clear(mark.__eq__)
        raise
    return RunSuspended(replace(suspension, session=text))


def _is_new(snapshot: SessionSnapshot) -> bool:
    """Says whether a session has no state, and no run has waited in it."""
    heads = snapshot.slices
    return SuspendedRun not in heads and all(head is EMPTY for head in heads.values())


def _issue(suspension: Suspension) -> ValidationIssue | None:
    """Returns what does not fit together in a value that parses."""
    messages = suspension.conversation.messages
    calls = suspension.calls_of_turn
    answered = [answer.call_id for answer in suspension.answers]
    fits = answered == [call.call_id for call in calls[: len(answered)]]
    open_calls = [
        (approval_id, call.name)
        for approval_id, call in list(zip(approval_ids(calls), calls, strict=True))[len(answered) :]
    ]
    nested = pending_inside(suspension.nested)
    waiting = [(preview.call_id, preview.tool) for preview in suspension.pending]
    inner = {(preview.call_id, preview.tool) for preview in nested}
    fits = fits and suspension.nested.keys() <= {approval_id for approval_id, _ in open_calls}
    if not fits or not waiting or not inner <= set(waiting) <= inner.union(open_calls):
        return ValidationIssue(("conversation",), "it does not end with the pending calls")
    own = [preview for preview in suspension.pending if preview not in nested]
    if any(preview.inside for preview in own) or not all(
        preview.is_intact for preview in suspension.pending
    ):
        return ValidationIssue(("pending",), "a preview shows something else than was suspended")
    if len(set(waiting)) != len(waiting):
        return ValidationIssue(("pending",), "two are of one call")
    if not 0 < suspension.first_message < len(messages):
        return ValidationIssue(("first_message",), "the conversation has no such message")
    turns = suspension.turns, suspension.turns_before, suspension.previous_turns
    if min(*turns, suspension.repairs) < 0:
        return ValidationIssue(("turns",), "a count is negative")
    return None
