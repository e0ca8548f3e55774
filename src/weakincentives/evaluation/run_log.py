"""The log of a run in progress: its steps, in order.

A tool call took effect if and only if its `Called` entry is in the log. Appending that entry is the
last step of the call's transaction, and is atomic. An interrupted run's conversation is restored
from its log. The runs nested in a call have logs of their own, which the call's `OpenCall` creates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from ..content import Content
from ..errors import ControlFlow, WeakIncentivesError
from ..limits import RunUsage
from ..prompt.template import AnyPrompt
from ..prompt.tool import ToolResult
from ..protocols import Snapshot
from ..runtime.events import EventIds
from ..runtime.session.snapshots import Changes
from .approval import Approve, Decision, Preview
from .conversation import Conversation, OnChange
from .errors import ChangedRunError, PromptEvaluationError
from .inner_loop import Action, InnerLoop, ProviderRequest, unfinished_error
from .logged_run import (
    ACCEPT,
    COMPACTION,
    Answered,
    Asked,
    Began,
    CallKey,
    Decided,
    LoggedCall,
    LoggedEntry,
    LoggedRun,
    NestedRun,
    ProviderFailure,
    Rendered,
    RunsInside,
    approval_ids,
    check_run,
    pending_previews,
    to_logged,
    usage_of,
)
from .messages import AssistantMessage, ToolCall, ToolExecutionOutcome

__all__ = [
    "Called",
    "Entry",
    "LogSink",
    "OpenCall",
    "RunLog",
    "UndecidedError",
    "drop_unfinished",
    "evaluation_usage",
    "replay",
]

_NO_CHANGES: Changes = {}
_NOTHING = LoggedRun()


class Called(NamedTuple):
    """A call was answered, even if only with a rejection; has the same fields as `LoggedCall`.

    For a call that must not run twice, `result` is also kept, for the event of a repeated call.
    """

    key: CallKey
    call: ToolCall
    outcome: ToolExecutionOutcome
    has_run: bool = True
    state: Changes = _NO_CHANGES
    is_complete: bool = False
    result: ToolResult[object] | None = None

    def logged(self) -> LoggedCall:
        """Returns the entry for JSON."""
        return to_logged(
            self.call,
            self.key,
            self.outcome,
            has_run=self.has_run,
            state=self.state,
            is_complete=self.is_complete,
        )


type Entry = LoggedEntry | Called


class LogSink(Protocol):
    """Stores the growing log of a durable run, together with the logs of nested runs.

    Threads may call a sink concurrently. Any error that it raises ends the run. An error that is
    not an `Exception` ends the run even inside a handler that catches every `Exception`.
    """

    run_id: str

    def load(self, record: LoggedRun, /) -> LoggedRun:
        """Returns `record` with the entries stored after it, and restores the session's state."""
        ...

    def append(self, log: "RunLog", entries: Sequence[LoggedEntry], /) -> None:
        """Stores further entries of `log`, which follow the first `log.stored` ones."""
        ...

    def transact(self, log: "RunLog", name: str, perform: Callable[[], bool], /) -> None:
        """Calls `perform`, which runs tool `name`, and stores its entries in one transaction.

        If `perform` returns false, its writes to the database are rolled back. `perform` may be
        called again.
        """
        ...


class UndecidedError(Exception):
    """A call, or a call in a nested run, needs a decision, but there is no approver."""


class RunLog:
    """The log of one run; a run with a record continues from it.

    A nested run whose `caller` was undone repeats its record entry by entry; see `next_recorded`.
    Any other run takes over its record. `refusal` is the reason why the run cannot continue. `turn`
    counts the provider's answers. A durable run has a `sink`, which contains the first `stored`
    entries.
    """

    def __init__(
        self,
        run_id: str,
        name: tuple[str, str] = ("", ""),
        record: LoggedRun = _NOTHING,
        caller: "OpenCall | None" = None,
        sink: LogSink | None = None,
    ) -> None:
        self.sink, self.stored = sink, len(record.entries)
        self.run_id, self.record, self.caller = run_id, record, caller
        self.ns, self.key = name  # together, they identify the prompt
        self.path = caller.path if caller else ""
        self.entries: list[Entry] = []
        self.turn = 0
        self.message: Content | None = record.message
        self.conversation: Conversation | None = record.conversation
        self.on_change: OnChange = record.on_change
        self.digests: Mapping[str, str] = {}  # of the tools whose calls are suspended
        # whether the run is nested in a call that was undone, and repeats its record
        self.is_repeated = caller is not None and bool(record.entries)
        # whether the run records its calls' changes, in order to repeat them
        self.keeps_changes: bool = sink is not None or (caller is not None and caller.keeps_changes)
        # the conversation that the current evaluation continues
        self.continued: Conversation | None = None
        self.is_turn = False  # whether the run is a chat turn
        # the number of entries and the state before a call
        self.before_call: tuple[int, Snapshot] | None = None
        self.is_suspended = False
        self.refusal: BaseException | None = None
        self._calls: tuple[ToolCall, ...] = ()
        self._ids: tuple[str, ...] = ()
        self._inside: dict[CallKey, OpenCall] = {}
        self._shown: dict[CallKey, Preview] = {}
        self._decisions: dict[CallKey, Decision] = {}
        self._begun: set[CallKey] = set()  # unanswered calls that started before the run stopped
        for entry in record.entries:
            self._note(entry)

    def _note(self, entry: LoggedEntry) -> None:
        match entry:
            case Asked(key, preview):
                self._shown[key] = preview
                self._decisions.pop(key, None)
            case Decided(key, decision):
                self._decisions[key] = decision
            case Began(key):
                self._begun.add(key)
            case LoggedCall(key=key):
                self._begun.discard(key)
            case _:
                pass

    def ids(self, session_id: str | None) -> EventIds:
        """Returns the ids for the run's events in the session with `session_id`."""
        return {"session_id": session_id, "run_id": self.run_id, "run_path": self.path}

    # ------------------------------------------------------------------------- recorded steps

    def take_over(self) -> None:
        """Takes over the whole record, whose changes are already in the session."""
        for entry in self.record.entries:
            if isinstance(entry, Answered):
                self.add_answer(entry)
            else:
                self.entries.append(entry)

    @property
    def begins(self) -> int:
        """The index of the last `Rendered`, which starts the current evaluation."""
        index = len(self.entries) - 1
        while not isinstance(self.entries[index], Rendered):
            index -= 1
        return index

    @property
    def earlier(self) -> tuple[Sequence[Entry], Sequence[ToolCall]]:
        """The entries before the current evaluation, and the calls with an unknown outcome."""
        unknown = self.continued.unknown_calls if self.continued else ()
        return (self.entries[: self.begins + 1] if self.entries else ()), unknown

    def requests_before(self, *causes: str) -> int:
        """Returns the number of requests before the last evaluation with one of these causes."""
        found = requests = 0
        for entry in self.entries:
            match entry:
                case Rendered(cause=cause) if cause in causes:
                    found = requests
                case Answered(ProviderFailure(fell_back=True)):
                    pass  # the request was sent again
                case Answered():
                    requests += 1
                case _:
                    pass
        return found

    def next_recorded[E: LoggedEntry](self, kind: type[E], key: CallKey = "") -> E | None:
        """Returns the next entry in the record; `None` once all recorded steps are repeated.

        Raises `ChangedRunError` if the entry has another type or belongs to another call.
        """
        recorded = self.record.entries
        while len(self.entries) < len(recorded):
            entry = recorded[len(self.entries)]
            if not isinstance(entry, Asked | Decided | Began):
                if not isinstance(entry, kind) or (key and getattr(entry, "key", "") != key):
                    raise self._changed()
                return entry
            self.entries.append(entry)
        return None

    def _changed(self) -> ChangedRunError:
        self.refusal = error = ChangedRunError(
            "a nested run does something else than before it waited; resume it with the code that "
            "suspended it"
        )
        return error

    def recorded_usage(self) -> RunUsage:
        """Returns the usage recorded for the current evaluation."""
        return evaluation_usage(self.record, self.begins)

    # ------------------------------------------------------------------------- new steps

    def add_answer(self, answered: Answered) -> None:
        """Appends an answer from the provider; the calls that follow belong to a new turn."""
        self.entries.append(answered)
        self.turn += 1
        reply = answered.reply
        self._calls = () if isinstance(reply, ProviderFailure) else reply.tool_calls
        self._ids = approval_ids(self._calls) if self._calls else ()

    def keys(self, calls: Sequence[ToolCall]) -> list[CallKey]:
        """Returns the keys of the turn's last calls, even if some of them do not run."""
        count = len(self._ids) - len(calls)
        turn = self.turn
        if tuple(calls) == self._calls[count:]:
            return [f"{turn}/{approval_id}" for approval_id in self._ids[count:]]
        left, ids = list(zip(self._calls, self._ids, strict=True)), list[str]()
        for call in reversed(calls):
            while left[-1][0] != call:
                left.pop()
            ids.append(left.pop()[1])
        return [f"{turn}/{approval_id}" for approval_id in reversed(ids)]

    def ask(self, key: CallKey, preview: Preview, *, keep: bool = False) -> None:
        """Logs that a call needs a decision; if `keep` is true, an earlier decision stays valid.

        However, an approval is valid only if the call would still have the previewed effects.
        """
        shown, decision = self._shown.get(key), self._decisions.get(key) if keep else None
        if isinstance(decision, Approve) and not (shown and shown.shows_same(preview)):
            decision = None
        if shown == preview and decision == self._decisions.get(key):
            return
        asked: list[LoggedEntry] = [Asked(key, preview)]
        if decision is not None:
            asked.append(Decided(key, decision))
        for entry in asked:
            self.entries.append(entry)
            self._note(entry)

    def shown(self, key: CallKey) -> Preview | None:
        """Returns the preview of a call, as last shown to the reviewer."""
        return self._shown.get(key)

    def decision(self, key: CallKey) -> Decision | None:
        """Returns the decision on a call, if it has not been applied yet."""
        return self._decisions.get(key)

    def take_decision(self, key: CallKey) -> Decision | None:
        """Removes and returns the decision on a call, so that it can be applied."""
        return self._decisions.pop(key, None)

    def has_begun(self, key: CallKey) -> bool:
        """Whether a call that must not run twice was started and then interrupted."""
        return key in self._begun

    def was_suspended_for(self, key: CallKey) -> bool:
        """Whether the run was suspended for this call, or for a call in a run nested in it."""
        return key in self._shown or key in self.record.inside

    def store(self) -> None:
        """Stores the new entries, if the run is durable."""
        if self.sink is not None and (new := self.entries[self.stored :]):
            try:
                self.sink.append(self, [_logged(entry) for entry in new])
            except Exception as error:
                self.refusal = error
                raise
            self.stored = len(self.entries)

    # ------------------------------------------------------------------------- nested runs

    def begin_call(
        self, key: CallKey, call: ToolCall, *, can_suspend: bool = False, is_preview: bool = False
    ) -> "OpenCall":
        """Returns a new execution of a call, in which nested runs repeat their records."""
        if self._inside:
            self._inside.pop(key, None)
        return OpenCall(self, key, call, can_suspend=can_suspend, is_preview=is_preview)

    def begin_summary(self) -> "OpenCall":
        """Returns a pseudo call for the nested run that summarizes the conversation."""
        can_suspend = self.caller is not None and self.caller.can_suspend
        call = ToolCall("", COMPACTION, "{}")
        return self.begin_call(f"{self.turn}/{COMPACTION}", call, can_suspend=can_suspend)

    def enter(self, call: "OpenCall") -> None:
        """Keeps a call's execution, because a nested run starts in it."""
        self._inside[call.key] = call

    def to_value(self, size: int | None = None) -> LoggedRun:
        """Returns the log, or its first `size` entries, as a value.

        The value includes recorded entries that have not been repeated yet.
        """
        entries = [_logged(entry) for entry in self.entries[:size]]
        entries += self.record.entries[len(entries) :]
        last = max([n for n, entry in enumerate(entries) if isinstance(entry, Rendered)], default=0)
        if self.caller is not None:
            last = len(entries)
        for index, entry in enumerate(entries[:last]):
            if isinstance(entry, Rendered):
                entries[index] = replace(entry, conversation=None)
        inside = dict(self.record.inside)
        inside |= {key: call.to_value() for key, call in self._inside.copy().items()}
        if size is not None:
            turns = sum(isinstance(entry, Answered) for entry in entries)
            inside = {key: runs for key, runs in inside.items() if _turn_of(key) <= turns}
        return LoggedRun(
            entries=tuple(entries),
            inside=inside,
            message=self.message,
            conversation=self.conversation,
            on_change=self.on_change,
        )

    def pending(self) -> tuple[Preview, ...]:
        """Returns the previews that need a decision."""
        return tuple([preview for preview, _ in pending_previews(self.to_value())])


class OpenCall:
    """One execution of a tool call, and the runs nested in it.

    If `can_suspend` is true, nested runs can be suspended; the handler then runs again later. When
    a later call is previewed, nested runs cannot start, because they would ask the model;
    `has_runs` then means that the handler tried to start one. `unrepeatable` names a tool whose
    call in a nested run can neither be undone nor repeated, so that nested runs can no longer be
    suspended. If `keeps_changes` is true, the nested runs can be repeated.
    """

    __slots__ = (
        "_record",
        "call",
        "can_suspend",
        "has_runs",
        "is_preview",
        "keeps_changes",
        "key",
        "log",
        "runs",
        "unrepeatable",
    )

    def __init__(
        self, log: RunLog, key: CallKey, call: ToolCall, *, can_suspend: bool, is_preview: bool
    ) -> None:
        self.log, self.key, self.call = log, key, call
        self.can_suspend, self.is_preview = can_suspend, is_preview
        self.has_runs, self.unrepeatable = False, ""
        self.keeps_changes = can_suspend or log.keeps_changes
        self.runs: list[RunLog] = []
        record = log.record.inside.get(key)
        fits = record is not None and record.arguments == call.arguments
        self._record = record.runs if fits and record is not None else ()

    def repeat(self, before: "OpenCall") -> None:
        """Makes nested runs repeat the runs of an execution that was undone."""
        self._record = before.to_value().runs

    @property
    def idempotency_key(self) -> str:
        """A string that is the same for each execution of the call, even in another process."""
        return f"{self.log.run_id}:{self.log.path}{self.key}"

    @property
    def path(self) -> str:
        """The path of the next run nested in the call."""
        return f"{self.log.path}{self.key}/{len(self.runs) + 1}:"

    @property
    def root(self) -> "OpenCall":
        """The root run's call in which this call is nested."""
        caller = self.log.caller
        return self if caller is None else caller.root

    def begin(self, prompt: AnyPrompt) -> RunLog:
        """Returns the log for the next run that the call's handler starts.

        Raises `ChangedRunError` if the suspended run has another prompt or other tools.
        """
        if self.is_preview:
            self.has_runs = True
            raise WeakIncentivesError(
                "nested runs cannot start while the tool call is being previewed"
            )
        index = len(self.runs)
        record = self._record[index] if index < len(self._record) else None
        if record is not None and not record.log.entries:  # stopped before its first step
            record = None
        name = prompt.ns, prompt.key
        known = record.log if record else _NOTHING
        log = RunLog(self.log.run_id, name, known, self, self.log.sink)
        self.runs.append(log)
        self.log.enter(self)
        if record is not None:
            log.digests = record.tool_digests
            try:
                check_run(prompt.template, record)
            except ChangedRunError as error:
                log.refusal = error
                raise
        return log

    @property
    def refusal(self) -> BaseException | None:
        """The reason why a nested run cannot continue, such as a missing table."""
        return next((log.refusal for log in self.runs if log.refusal is not None), None)

    def end(self) -> None:
        """Ends the execution after the handler has ended.

        Raises `UndecidedError` if a nested run is suspended, or a nested run's `refusal` if it
        cannot continue, even if the handler has caught the error.
        """
        if not self.runs:
            return
        if (refusal := self.refusal) is not None:
            raise refusal
        if any(log.is_suspended for log in self.runs):
            raise UndecidedError(self.call.name)

    def to_value(self) -> RunsInside:
        """Returns the nested runs as a value, including runs that have not started again yet."""
        runs = [
            NestedRun(ns=log.ns, key=log.key, log=log.to_value(), tool_digests=log.digests)
            for log in self.runs
        ]
        runs += self._record[len(runs) :]
        name, arguments = self.call.name, self.call.arguments
        return RunsInside(tool=name, arguments=arguments, runs=tuple(runs))


def replay(
    loop: InnerLoop,
    entries: Sequence[Entry],
    outcome_of: Callable[[LoggedCall], ToolExecutionOutcome],
    apply: Callable[[ToolExecutionOutcome], None] | None = None,
) -> Action:
    """Replays `entries` on a new `loop`, and returns its next action.

    If the run continues, `apply` receives the sections that earlier turns opened and closed. If the
    last entry is a failure that should have ended the run, but an interrupt came first, that
    failure is raised.
    """
    action: Action = loop.start()
    end: PromptEvaluationError | None = None
    for entry in entries:
        end = None
        try:
            match entry:
                case Answered(AssistantMessage() as reply):
                    drop_unfinished(loop)
                    action = loop.receive(reply)
                case Answered(ProviderFailure(arrived=AssistantMessage() as arrived)):
                    drop_unfinished(loop)
                    loop.transcript.append(arrived)
                case Called() | LoggedCall():
                    outcome = entry.outcome if isinstance(entry, Called) else outcome_of(entry)
                    if entry.call.name != ACCEPT:
                        action = loop.submit([outcome])
                    elif not outcome.success:
                        action = loop.reject(outcome.message.content)
                case _:
                    continue
        except ControlFlow:
            continue
        except PromptEvaluationError as error:
            end = error
            continue
        if apply is not None and isinstance(action, ProviderRequest):
            for change in action.changes:
                apply(change)
    if end is not None and apply is not None:
        raise end
    return action


def _logged(entry: Entry) -> LoggedEntry:
    return entry.logged() if isinstance(entry, Called) else entry


def evaluation_usage(log: LoggedRun, start: int) -> RunUsage:
    """Returns the usage of the evaluation whose first entry is at `start`."""
    entries = list[LoggedEntry]()
    for entry in log.entries[start + 1 :]:
        if isinstance(entry, Rendered):
            break
        entries.append(entry)
    answers = sum(isinstance(entry, Answered) for entry in entries)
    first = sum(isinstance(entry, Answered) for entry in log.entries[: start + 1])
    inside = {
        key: runs
        for key, runs in log.inside.items()
        if first < _turn_of(key) <= first + answers and runs.tool != COMPACTION
    }
    return usage_of(LoggedRun(entries=tuple(entries), inside=inside))


def _turn_of(key: CallKey) -> int:
    return int(key.partition("/")[0])


def drop_unfinished(loop: InnerLoop) -> None:
    """Removes a stopped or truncated answer, because its request is sent again."""
    last = loop.transcript[-1]
    if isinstance(last, AssistantMessage) and unfinished_error(last) is not None:
        loop.transcript.pop()
