"""Runs that wait for people: `RunSuspended` ends a run whose calls nobody is there to approve.

Its `Suspension` is a value and JSON: the log of the run. `MainLoop.resume` goes on with it and with
the decisions, in any process, as if the run had never stopped. The session of a suspended run has a
mark, which `resume` removes: so a run goes on once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from .. import serde
from ..content import Content
from ..errors import SerdeError, ValidationIssue, WeakIncentivesError
from ..limits import TokenUsage
from ..prompt.model_json import read_without_nulls
from ..prompt.prompt import AnyPrompt
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
    misfit_of,
    size_of,
    tool_digests,
    waiting,
    waiting_tools,
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
    "suspend",
    "wait_again",
]


_VERSION = 2
_OLD = "it was written by weakincentives 0.2; resume it there, or start again from its conversation"
_REMEDY = "go on by MainLoop.resume(prompt, suspension, decisions), or pass approver="


@library_state
@dataclass(frozen=True, slots=True)
class SuspendedRun:
    """The mark of a suspended run in its session."""

    suspension_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A run that waits for decisions on the calls in `pending`, as a value and JSON.

    `log` has what has happened in the run, `session` the JSON of the session's snapshot, and
    `tool_digests` what the tools of the waiting calls declare. It holds no resources, params of the
    prompt or credentials; but what the model and the tools wrote is in it, as in any conversation.
    """

    run_id: str
    ns: str
    key: str
    log: LoggedRun = field(repr=False)
    session: str = field(repr=False)
    tool_digests: Mapping[str, str] = field(repr=False)

    @property
    def pending(self) -> tuple[Preview, ...]:
        """What people must decide on, in the order of the calls."""
        return tuple([preview for preview, _ in waiting(self.log)])

    @property
    def decisions(self) -> Mapping[str, Decision]:
        """The decisions that were made already, by call id."""
        return {
            preview.call_id: decision
            for preview, decision in waiting(self.log)
            if decision is not None
        }

    @property
    def message(self) -> Content | None:
        """The user's message with which the run began, if there was one."""
        return self.log.message

    @property
    def start(self) -> Conversation | None:
        """The conversation that the run has continued, if there was one."""
        return self.log.conversation

    @property
    def conversation(self) -> Conversation | None:
        """What was said in the last evaluation, up to the calls that wait."""
        begun, messages = None, list[Message]()
        for entry in self.log.entries:
            match entry:
                case Rendered(conversation=conversation):
                    begun, messages = conversation, []
                case Answered(AssistantMessage() as reply):
                    messages.append(reply)
                case LoggedCall(answer=answer):
                    messages.append(answer)
                case _:
                    pass
        return begun and begun.with_messages([*begun.messages, *messages], TokenUsage(), ())

    @property
    def suspension_id(self) -> str:
        """Tells the waits of a run apart."""
        return f"{self.run_id}:{size_of(self.log)}"

    def decide(self, decisions: Mapping[str, Decision]) -> Self:
        """Returns the suspension with decisions by call id, with which the run goes on.

        Raises `ValueError` for a call that does not wait, and `TypeError` for what is no decision.
        """
        check_decisions(self, decisions)
        return replace(self, log=decide(self.log, decisions))

    def to_json(self) -> str:
        """Returns JSON text from which `from_json` makes an equal suspension."""
        return f'{{"version":{_VERSION},{serde.dump_json_lossless(Suspension, self)[1:]}'

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parses what `to_json` wrote; raises `SerdeError` for other text or another version."""
        value = serde.parse_json(dict[str, object], text)
        version = value.pop("version", None)
        if version != _VERSION:
            problem = _OLD if version == 1 else f"it has version {version!r}, not {_VERSION}"
            raise SerdeError("suspension", (ValidationIssue(("version",), problem),))
        suspension = serde.parse(cls, value)
        if issue := _issue(suspension):
            raise SerdeError("suspension", (issue,))
        return suspension


def previews_of_0_2(text: str) -> tuple[Preview, ...] | None:
    """Returns what waits in a suspension that 0.2 wrote, to be listed; `None` for another one."""
    value = serde.parse_json(dict[str, object], text)
    if value.get("version") != 1:
        return None
    return serde.parse(tuple[Preview, ...], value.get("pending"))


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


def check_resumable(
    prompt: AnyPrompt,
    suspension: Suspension,
    decisions: Mapping[str, Decision],
    session: SessionProtocol,
) -> LoggedRun:
    """Returns the log with which the run goes on, and removes the run's mark from the session.

    A new session is first restored to the suspension's state. Raises `ValueError` and changes
    nothing for another prompt, changed tools, decisions on unknown calls and a session in which the
    run does not wait, such as one that has resumed it.
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
    if issue := _issue(suspension):
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
    """Raises `ValueError` for a decision on a call that does not wait, `TypeError` for others."""
    decided: object = decisions
    if not isinstance(decided, Mapping):
        raise TypeError(f"decisions must be a mapping of call ids, got {decided!r:.100}")
    waiting = {preview.call_id for preview in suspension.pending}
    for call_id, decision in decisions.items():
        if call_id not in waiting:
            raise ValueError(
                f"decisions must be for suspended calls, {sorted(waiting)}, got one for {call_id!r}"
            )
        if not isinstance(decision, Approve | Deny | ReplaceArguments):
            raise TypeError(
                f"the decision on {call_id!r} must be Approve(), Deny(reason) or "
                f"ReplaceArguments(arguments), got {decision!r}"
            )
        if isinstance(decision, ReplaceArguments):
            arguments_json(decision.arguments)


def replacement_issue(template: AgentTemplate[object], preview: Preview, decision: Decision) -> str:
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


def _find_tool(template: AgentTemplate[object], names: Sequence[str]) -> AnyTool | None:
    tool = template.registry.get_tool(names[0])
    if tool is None or len(names) == 1:
        return tool
    handler = tool.handler
    return _find_tool(handler.template, names[1:]) if isinstance(handler, PromptHandler) else None


def _cannot_wait(tool: str) -> str:
    """Returns why a nested run cannot wait and what to do.

    `tool` must not run twice; without one, the call around the run cannot be made again.
    """
    if tool:
        return f"a call of {tool!r}, which must not run twice, has changed files; pass approver="
    return (
        "it runs inside a call that must not run twice, or where no run can wait; pass approver= "
        "or make the tool around it by Tool.from_prompt"
    )


def suspend(log: RunLog, prompt: AnyPrompt, session: SessionProtocol) -> RunSuspended:
    """Returns the error that ends a run which waits, and marks its session.

    A run inside a call notes in its log that it waits; after a call that can neither be undone nor
    repeated, or in one that cannot be made again, it cannot. Raises `SerdeError` for state that
    JSON cannot hold.
    """
    log.digests = tool_digests(prompt.template, waiting_tools(log.to_value()))
    caller = log.caller
    if caller is not None:
        suspension = _suspension(log, prompt, "")
        if caller.root.unrepeatable or not caller.can_wait:
            return RunSuspended(suspension, _cannot_wait(caller.root.unrepeatable))
        log.waits = True
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


def wait_again(log: RunLog, session: SessionProtocol) -> None:
    """Lets a resumed run that cannot go on be resumed again, if it has done nothing so far."""
    waited = any(waiting(log.record))
    if waited and (size := size_of(log.to_value())) == size_of(log.record):
        session[SuspendedRun].append(SuspendedRun(f"{log.run_id}:{size}"))


def _is_new(snapshot: SessionSnapshot) -> bool:
    """Says whether a session has no state, and no run has waited in it."""
    heads = snapshot.slices
    return SuspendedRun not in heads and all(head is EMPTY for head in heads.values())


def _issue(suspension: Suspension) -> ValidationIssue | None:
    """Returns what does not fit together in a value that parses."""
    log, previews = suspension.log, suspension.pending
    begun = [entry for entry in log.entries if isinstance(entry, Rendered)]
    problem = ""
    if not begun or (last := begun[-1].conversation) is None or not last.messages:
        problem = "it has no rendered prompt"
    elif misfit := misfit_of(log):
        problem = misfit
    elif not previews:
        problem = "it does not end with calls that wait"
    elif not all(preview.is_intact for preview in previews):
        problem = "a preview shows something else than was suspended"
    return ValidationIssue(("log",), problem) if problem else None
