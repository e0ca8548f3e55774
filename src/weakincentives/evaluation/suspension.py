"""Suspends runs: `RunSuspended` ends a run if its calls need decisions but there is no approver.

The error's `Suspension` contains the run's log, as a value and as JSON. Given the suspension and
the decisions, `MainLoop.resume` continues the run in any process, as if it had never stopped. A
suspended run leaves a mark in its session, which `resume` removes, so that a run is resumed only
once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from .. import serde
from ..content import Content
from ..errors import SerdeError, ValidationIssue, WeakIncentivesError
from ..limits import TokenUsage
from ..prompt.model_json import read_without_nulls
from ..prompt.template import AnyPrompt
from ..prompt.tool import AgentTemplate, AnyTool, PromptHandler
from ..protocols import SessionProtocol
from ..runtime.session.session import Session
from ..runtime.session.slices import EMPTY
from ..runtime.session.snapshots import SessionSnapshot, library_state
from .approval import Approve, Decision, Deny, Preview, ReplaceArguments, arguments_json
from .conversation import Conversation
from .logged_run import (
    Answered,
    LoggedCall,
    LoggedRun,
    Rendered,
    change_since,
    check_nested,
    decide,
    inconsistency_in,
    pending_previews,
    size_of,
    suspended_tools,
    tool_digests,
)
from .messages import AssistantMessage, Message
from .run_log import RunLog

__all__ = [
    "RunSuspended",
    "SuspendedRun",
    "Suspension",
    "check_decisions",
    "check_resumable",
    "previews_of_0_2",
    "replacement_issue",
    "restore_suspension",
    "suspend",
]


_VERSION = 2
_OLD = (
    "the suspension was written by weakincentives 0.2; resume it with 0.2, or start a new run from "
    "its conversation"
)
_REMEDY = (
    "resume it with MainLoop.resume(prompt, suspension, decisions) or "
    "Chat.resume(suspension, decisions), or pass approver="
)


@library_state
@dataclass(frozen=True, slots=True)
class SuspendedRun:
    """The mark of a suspended run in its session."""

    suspension_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A run that is waiting for decisions on the calls in `pending`, as a value and as JSON.

    `log` is the run's log, `session` is the session's snapshot as JSON, and `tool_digests` contains
    digests of the pending calls' tools. A suspension does not contain resources, the prompt's
    params or credentials. However, like any conversation, it contains everything that the model and
    the tools wrote.
    """

    run_id: str
    ns: str
    key: str
    log: LoggedRun = field(repr=False)
    session: str = field(repr=False)
    tool_digests: Mapping[str, str] = field(repr=False)

    @property
    def pending(self) -> tuple[Preview, ...]:
        """The previews that need a decision, in the order of the calls."""
        return tuple([preview for preview, _ in pending_previews(self.log)])

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """The decisions made so far, by call id."""
        return {
            preview.call_id: decision
            for preview, decision in pending_previews(self.log)
            if decision is not None
        }

    @property
    def message(self) -> Content | None:
        """The user's message at the start of the run, if there was one."""
        return self.log.message

    @property
    def start(self) -> Conversation | None:
        """The conversation that the run continued, if there was one."""
        return self.log.conversation

    @property
    def conversation(self) -> Conversation | None:
        """The conversation of the last evaluation, up to the pending calls."""
        initial, messages = None, list[Message]()
        for entry in self.log.entries:
            match entry:
                case Rendered(conversation=conversation):
                    initial, messages = conversation, []
                case Answered(AssistantMessage() as reply):
                    messages.append(reply)
                case LoggedCall(answer=answer):
                    messages.append(answer)
                case _:
                    pass
        return initial and initial.with_messages([*initial.messages, *messages], TokenUsage(), ())

    @property
    def suspension_id(self) -> str:
        """An id that differs each time the run is suspended."""
        return f"{self.run_id}:{size_of(self.log)}"

    def decide(self, decisions: Mapping[str, Decision]) -> Self:
        """Returns the suspension with decisions by call id, which apply when the run is resumed.

        Raises `ValueError` for a call that is not pending, and `TypeError` for a value that is not
        a decision.
        """
        check_decisions(self, decisions)
        return replace(self, log=decide(self.log, decisions))

    def to_json(self) -> str:
        """Returns JSON text from which `from_json` restores an equal suspension."""
        return f'{{"version":{_VERSION},{serde.dump_json_lossless(Suspension, self)[1:]}'

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parses the output of `to_json`; raises `SerdeError` for any other text or version."""
        value = serde.parse_json(dict[str, object], text)
        version = value.pop("version", None)
        if version != _VERSION:
            problem = _OLD if version == 1 else f"must be {_VERSION}, got {version!r}"
            raise SerdeError("suspension", (ValidationIssue(("version",), problem),))
        suspension = serde.parse(cls, value)
        if issue := _find_issue(suspension):
            raise SerdeError("suspension", (issue,))
        return suspension


def previews_of_0_2(text: str) -> tuple[Preview, ...] | None:
    """Lists the pending calls of a suspension written by 0.2; `None` for any other version."""
    value = serde.parse_json(dict[str, object], text)
    if value.get("version") != 1:
        return None
    return serde.parse(tuple[Preview, ...], value.get("pending"))


class RunSuspended(WeakIncentivesError):
    """A run is waiting for a reviewer; pass `suspension` to `MainLoop.resume` to continue it."""

    def __init__(self, suspension: Suspension, remedy: str = _REMEDY) -> None:
        self.suspension = suspension
        self.remedy = remedy
        names = [preview.tool for preview in suspension.pending]
        count = "1 call" if len(names) == 1 else f"{len(names)} calls"
        calls = f"{count} ({', '.join(names)})"
        super().__init__(f"the run needs approval for {calls}; {remedy}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.suspension, self.remedy)


def check_resumable(
    prompt: AnyPrompt,
    suspension: Suspension,
    decisions: Mapping[str, Decision],
    session: SessionProtocol,
) -> LoggedRun:
    """Returns the log from which the run continues, and removes its mark from the session.

    A new session is first restored to the suspension's state. Raises `ValueError`, without changing
    anything, for another prompt, changed tools, decisions on unknown calls, or a session in which
    the run is not suspended, for example because it was already resumed.
    """
    name = f"{suspension.ns}/{suspension.key}"
    if change := change_since(prompt.template, name, suspension.tool_digests, kind="run"):
        raise ValueError(change)
    check_nested(prompt.template, suspension.log)
    check_decisions(suspension, decisions)
    for preview in suspension.pending:
        decision = decisions.get(preview.call_id)
        if decision and (problem := replacement_issue(prompt.template, preview, decision)):
            raise ValueError(problem)
    if issue := _find_issue(suspension):
        raise ValueError(f"cannot resume the suspension: {issue.message}; pass it unchanged")
    if isinstance(session, Session) and _is_new(session.snapshot()):
        session.restore(session.parse_snapshot(suspension.session))
    mark = SuspendedRun(suspension.suspension_id)
    if not session[SuspendedRun].where(mark.__eq__):
        raise ValueError(
            f"the run of {name!r} is not suspended in this session: it was already resumed, or it "
            "belongs to another session; to restore the suspended session, pass a new Session()"
        )
    session[SuspendedRun].clear(mark.__eq__)
    return decide(suspension.log, decisions)


def check_decisions(suspension: Suspension, decisions: Mapping[str, Decision]) -> None:
    """Checks that each decision is for a pending call.

    Raises `ValueError` for any other call, and `TypeError` for a value that is not a decision.
    """
    decided: object = decisions
    if not isinstance(decided, Mapping):
        raise TypeError(f"decisions must be a mapping of call ids, got {decided!r:.100}")
    pending = {preview.call_id for preview in suspension.pending}
    for call_id, decision in decisions.items():
        if call_id not in pending:
            raise ValueError(
                f"decisions must be for suspended calls, {sorted(pending)}, got one for {call_id!r}"
            )
        if not isinstance(decision, Approve | Deny | ReplaceArguments):
            raise TypeError(
                f"the decision on {call_id!r} must be Approve(), Deny(reason) or "
                f"ReplaceArguments(arguments), got {decision!r}"
            )
        if isinstance(decision, ReplaceArguments):
            arguments_json(decision.arguments)


def replacement_issue(template: AgentTemplate[object], preview: Preview, decision: Decision) -> str:
    """Explains why the call's tool cannot accept the replacement arguments; `""` if it can.

    Searches the tools of the template, and those of prompts passed to `Tool.from_prompt`.
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


def _find_tool(template: AgentTemplate[object], names: Sequence[str]) -> AnyTool | None:
    tool = template.registry.get_tool(names[0])
    if tool is None or len(names) == 1:
        return tool
    handler = tool.handler
    return _find_tool(handler.template, names[1:]) if isinstance(handler, PromptHandler) else None


def _cannot_suspend(tool: str) -> str:
    """Explains why a nested run cannot be suspended, and how to fix it.

    `tool` has already run and must not run twice; if it is empty, the call that started the run
    cannot be repeated.
    """
    if tool:
        return (
            f"it cannot be suspended because a call of {tool!r}, which must not run twice, has "
            "changed files; pass approver="
        )
    return (
        "it cannot be suspended because it is nested in a call that must not run twice, or that "
        "does not support suspended runs; pass approver=, or create the enclosing tool with "
        "Tool.from_prompt"
    )


def suspend(log: RunLog, prompt: AnyPrompt, session: SessionProtocol) -> RunSuspended:
    """Returns the error that suspends a run, and marks its session.

    A nested run records in its log that it is suspended. It cannot be suspended after a call that
    can neither be undone nor repeated, or inside a call that cannot be repeated. Raises
    `SerdeError` for state that cannot be saved as JSON.
    """
    log.digests = tool_digests(prompt.template, suspended_tools(log.to_value()))
    caller = log.caller
    if caller is not None:
        suspension = _suspension(log, prompt, "")
        if caller.root.unrepeatable or not caller.can_suspend:
            return RunSuspended(suspension, _cannot_suspend(caller.root.unrepeatable))
        log.is_suspended = True
        return RunSuspended(suspension)
    mark = SuspendedRun(_suspension(log, prompt, "").suspension_id)
    session[SuspendedRun].append(mark)
    try:
        snapshot = session.snapshot()
        text = snapshot.to_json() if isinstance(snapshot, SessionSnapshot) else ""
    except BaseException:
        session[SuspendedRun].clear(mark.__eq__)
        raise
    return RunSuspended(_suspension(log, prompt, text))


def _suspension(log: RunLog, prompt: AnyPrompt, session: str) -> Suspension:
    return Suspension(
        run_id=log.run_id,
        ns=prompt.ns,
        key=prompt.key,
        log=log.to_value(),
        session=session,
        tool_digests=log.digests,
    )


def restore_suspension(log: RunLog, session: SessionProtocol) -> None:
    """Restores the suspension if the resumed run failed before its first step."""
    was_suspended = any(pending_previews(log.record))
    if was_suspended and (size := size_of(log.to_value())) == size_of(log.record):
        session[SuspendedRun].append(SuspendedRun(f"{log.run_id}:{size}"))


def _is_new(snapshot: SessionSnapshot) -> bool:
    """Whether a session has no state and never had a suspended run."""
    heads = snapshot.slices
    return SuspendedRun not in heads and all(head is EMPTY for head in heads.values())


def _find_issue(suspension: Suspension) -> ValidationIssue | None:
    """Returns an inconsistency in a suspension that was parsed successfully, if there is one."""
    log, previews = suspension.log, suspension.pending
    rendered = [entry for entry in log.entries if isinstance(entry, Rendered)]
    problem = ""
    if not rendered or (last := rendered[-1].conversation) is None or not last.messages:
        problem = "the log does not contain a rendered prompt"
    elif inconsistency := inconsistency_in(log):
        problem = inconsistency
    elif not previews:
        problem = "the log does not end with calls that are pending approval"
    elif not all(preview.is_intact for preview in previews):
        problem = "a preview has changed since the run was suspended"
    return ValidationIssue(("log",), problem) if problem else None
