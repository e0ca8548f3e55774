"""Runs that wait for people: `RunSuspended` ends a run whose calls nobody is there to approve.

Its `Suspension` is a value and JSON. `MainLoop.resume` goes on with it and with the decisions, in
any process, as if the run had never stopped. The session of a suspended run has a mark, which
`resume` removes: so a run goes on once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Self

from .. import serde
from ..content import Content
from ..errors import SerdeError, ValidationIssue, WeakIncentivesError
from ..limits import RunUsage
from ..prompt.prompt import Prompt
from ..protocols import SessionProtocol
from ..runtime.events import new_id
from ..runtime.session.session import Session
from ..runtime.session.slices import EMPTY
from ..runtime.session.snapshots import SessionSnapshot, library_state
from .approval import Approve, Decision, Deny, Preview, ReplaceArguments
from .call_history import RecordedCall
from .conversation import Conversation, OnChange
from .messages import AssistantMessage, ToolMessage, UserMessage
from .response import Restarted

__all__ = [
    "Resumption",
    "RunSuspended",
    "SuspendedRun",
    "Suspension",
    "check_resumable",
    "suspended",
    "tool_digests",
]


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
    suspension_id: str = field(default_factory=new_id)
    version: Literal[1] = 1

    @property
    def message(self) -> Content | None:
        """The user's message with which the run began, if there was one."""
        opening = self.conversation.messages[self.first_message - 1]
        return opening.content if self.has_message and isinstance(opening, UserMessage) else None

    def to_json(self) -> str:
        """Returns JSON text from which `from_json` makes an equal suspension."""
        return serde.dump_json_lossless(Suspension, self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parses what `to_json` wrote; raises `SerdeError` for other text or another version."""
        suspension = serde.parse_json(cls, text)
        messages = suspension.conversation.messages
        calls: list[str] = []
        if messages and isinstance(last := messages[-1], AssistantMessage):
            calls = [call.call_id for call in last.tool_calls]
        answered = [answer.call_id for answer in suspension.answers]
        waiting = {preview.call_id for preview in suspension.pending}
        if answered != calls[: len(answered)] or not waiting <= set(calls[len(answered) :]):
            issue = ValidationIssue(("conversation",), "it does not end with the pending calls")
            raise SerdeError("suspension", (issue,))
        return suspension


class RunSuspended(WeakIncentivesError):
    """A run waits for a person; `suspension` goes on with `MainLoop.resume`."""

    def __init__(self, suspension: Suspension) -> None:
        self.suspension = suspension
        names = ", ".join([preview.tool for preview in suspension.pending])
        super().__init__(
            f"the run waits for the approval of {len(suspension.pending)} calls ({names}); "
            "go on by MainLoop.resume(prompt, suspension, decisions), or pass approver="
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.suspension,)


class Resumption(NamedTuple):
    """A suspension with all decisions on it so far."""

    suspension: Suspension
    decisions: Mapping[str, Decision]


# Any: a prompt of any output
def check_resumable(
    prompt: Prompt[Any],
    suspension: Suspension,
    decisions: Mapping[str, Decision],
    session: SessionProtocol,
) -> Resumption:
    """Returns what the run goes on with, and removes its mark from the session.

    A session without state is first restored to the suspension's. Raises `ValueError` and changes
    nothing for another prompt, changed tools, decisions on unknown calls and a session in which the
    run does not wait, such as one that has resumed it.
    """
    if not isinstance(suspension, Suspension):
        raise TypeError(f"suspension is {suspension!r:.200}; pass RunSuspended.suspension")
    name = f"{suspension.ns}/{suspension.key}"
    if (prompt.ns, prompt.key) != (suspension.ns, suspension.key):
        raise ValueError(
            f"the suspended run is of prompt {name!r}, not of {f'{prompt.ns}/{prompt.key}'!r}; "
            "resume it with its own prompt"
        )
    tools = [preview.tool for preview in suspension.pending]
    if (digests := tool_digests(prompt, tools)) != suspension.tool_digests:
        changed = [
            tool
            for tool in dict.fromkeys(tools)
            if digests.get(tool) != suspension.tool_digests.get(tool)
        ]
        raise ValueError(
            f"the tools {changed} have changed since the run of {name!r} was suspended; "
            "resume it with the code that suspended it"
        )
    waiting = {preview.call_id for preview in suspension.pending}
    for call_id, decision in decisions.items():
        if call_id not in waiting:
            raise ValueError(f"call {call_id!r} does not wait; decide on {sorted(waiting)}")
        if not isinstance(decision, Approve | Deny | ReplaceArguments):
            raise TypeError(f"the decision on {call_id!r} is {decision!r}; pass Approve()")
    prompt.declare_state(session)
    if isinstance(session, Session) and _is_new(session.snapshot()):
        session.restore(session.parse_snapshot(suspension.session))
    mark = SuspendedRun(suspension.suspension_id)
    if not session[SuspendedRun].where(mark.__eq__):
        raise ValueError(
            f"the run of {name!r} does not wait in this session: it was resumed already, or the "
            "session is another one; pass a new Session() for that of the suspension"
        )
    session[SuspendedRun].clear(mark.__eq__)
    return Resumption(suspension, {**suspension.decisions, **decisions})


# Any: as above
def tool_digests(prompt: Prompt[Any], names: Sequence[str]) -> dict[str, str]:
    """Returns a digest of what each tool declares, by name, of those that the prompt has."""
    tools = [prompt.template.registry.get_tool(name) for name in names]
    return {
        tool.name: sha256(
            serde.dump_json(
                [tool.name, tool.description, tool.params_schema(), tool.effect]
            ).encode()
        ).hexdigest()
        for tool in tools
        if tool is not None
    }


def suspended(suspension: Suspension, session: SessionProtocol) -> RunSuspended:
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
    return all(head is EMPTY for head in snapshot.slices.values())
