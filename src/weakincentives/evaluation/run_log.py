"""The log of a run that is being performed: what has happened in it, in order.

A tool call took effect exactly if its `Called` is in the log: appending the entry is the last part
of the call's transaction, and one store. The conversation of a run that was interrupted is read
from its log. The runs inside a call have logs of their own, which its `OpenCall` begins.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from ..content import Content
from ..errors import ControlFlow, WeakIncentivesError
from ..limits import RunUsage
from ..prompt.prompt import AnyPrompt
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
    to_logged,
    usage_of,
    waiting,
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
    "replay",
]

_NO_CHANGES: Changes = {}
_NOTHING = LoggedRun()


class Called(NamedTuple):
    """A call has an answer, be it that it was refused; the fields are those of a `LoggedCall`.

    A call that must not run twice has its `result` too, for the event of a repeated one.
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
    """Stores the log of a durable run while it grows, with the logs of the runs inside its calls.

    Threads may call it at once. What it raises ends the run, if it is no `Exception` also where a
    handler catches that.
    """

    run_id: str

    def load(self, record: LoggedRun, /) -> LoggedRun:
        """Returns `record` with what was stored after it, and restores the state of the session."""
        ...

    def append(self, log: "RunLog", entries: Sequence[LoggedEntry], /) -> None:
        """Stores further entries of `log`, after the first `log.stored`."""
        ...

    def transact(self, log: "RunLog", name: str, perform: Callable[[], bool], /) -> None:
        """Calls `perform`, which runs tool `name`, and stores its entries in one transaction.

        Takes back what it wrote to the database if it returns false. It may be called again.
        """
        ...


class UndecidedError(Exception):
    """People must decide on a call, or on calls inside it, and nobody is there to ask."""


class RunLog:
    """The log of one run; a run that has a record goes on from there.

    A run inside a call, whose `caller` was undone, repeats its record entry by entry: see
    `next_recorded`. Another run takes its record over. `waits` says that the run waits for people,
    and `refusal` why it cannot go on. `turn` counts the provider's answers. A durable run has a
    `sink`, which has the first `stored` entries.
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
        self.ns, self.key = name  # of the prompt
        self.path = caller.path if caller else ""
        self.entries: list[Entry] = []
        self.turn = 0
        self.message: Content | None = record.message
        self.conversation: Conversation | None = record.conversation
        self.on_change: OnChange = record.on_change
        self.digests: Mapping[str, str] = {}  # of the tools that wait
        # whether the run is inside a call that was undone, and repeats what it had done
        self.is_repeated = caller is not None and bool(record.entries)
        # whether a run notes how to repeat what its calls have changed
        self.keeps_changes: bool = sink is not None or (caller is not None and caller.keeps_changes)
        self.continued: Conversation | None = None  # by the present evaluation
        self.is_turn = False  # of a chat
        self.before_call: tuple[int, Snapshot] | None = (
            None  # the entries and the state before a call
        )
        self.waits = False
        self.refusal: BaseException | None = None
        self._calls: tuple[ToolCall, ...] = ()
        self._ids: tuple[str, ...] = ()
        self._inside: dict[CallKey, OpenCall] = {}
        self._shown: dict[CallKey, Preview] = {}
        self._decisions: dict[CallKey, Decision] = {}
        self._begun: set[CallKey] = set()  # before a stop, and not answered
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
        """Returns the ids of the run's events, which a session with `session_id` keeps."""
        return {"session_id": session_id, "run_id": self.run_id, "run_path": self.path}

    # ------------------------------------------------------------------------- what was recorded

    def take_over(self) -> None:
        """Takes over the whole record, whose changes the session has."""
        for entry in self.record.entries:
            if isinstance(entry, Answered):
                self.add_answer(entry)
            else:
                self.entries.append(entry)

    @property
    def begins(self) -> int:
        """The index of the last `Rendered`, with which the present evaluation begins."""
        index = len(self.entries) - 1
        while not isinstance(self.entries[index], Rendered):
            index -= 1
        return index

    @property
    def earlier(self) -> tuple[Sequence[Entry], Sequence[ToolCall]]:
        """The entries before the present evaluation, and the calls with an unknown outcome."""
        unknown = self.continued.unknown_calls if self.continued else ()
        return (self.entries[: self.begins + 1] if self.entries else ()), unknown

    def requests_before(self, *causes: str) -> int:
        """Returns the requests before the last evaluation of one of these causes, if any."""
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
        """Returns the next entry of the record; `None` where the run goes on for the first time.

        Raises `ChangedRunError` if it is of another kind, or of another call than `key`.
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
        """Returns the usage of the present evaluation by the record."""
        start, entries = self.begins, list[LoggedEntry]()
        for entry in self.record.entries[start + 1 :]:
            if isinstance(entry, Rendered):
                break
            entries.append(entry)
        answers = sum(isinstance(entry, Answered) for entry in entries)
        first = sum(isinstance(entry, Answered) for entry in self.record.entries[: start + 1])
        inside = {
            key: runs
            for key, runs in self.record.inside.items()
            if first < _turn_of(key) <= first + answers and runs.tool != COMPACTION
        }
        return usage_of(LoggedRun(entries=tuple(entries), inside=inside))

    # ------------------------------------------------------------------------- what happens

    def add_answer(self, answered: Answered) -> None:
        """Appends an answer of the provider; the calls that follow are those of a new turn."""
        self.entries.append(answered)
        self.turn += 1
        reply = answered.reply
        self._calls = () if isinstance(reply, ProviderFailure) else reply.tool_calls
        self._ids = approval_ids(self._calls) if self._calls else ()

    def keys(self, calls: Sequence[ToolCall]) -> list[CallKey]:
        """Returns the keys of the last calls of the turn; some of them may not run."""
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
        """Appends that a person must decide on a call; with `keep`, a decision on it holds.

        But an approval holds only if the call would still do what was shown.
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
        """Returns what a person has seen of a call."""
        return self._shown.get(key)

    def decision(self, key: CallKey) -> Decision | None:
        """Returns a decision on a call that has not been applied."""
        return self._decisions.get(key)

    def take_decision(self, key: CallKey) -> Decision | None:
        """Returns a decision on a call, which is applied now."""
        return self._decisions.pop(key, None)

    def has_begun(self, key: CallKey) -> bool:
        """Whether a call that must not run twice was begun, and then interrupted."""
        return key in self._begun

    def has_waited(self, key: CallKey) -> bool:
        """Whether the run has waited for a call, or for calls inside it."""
        return key in self._shown or key in self.record.inside

    def store(self) -> None:
        """Stores what is new, if the run is durable."""
        if self.sink is not None and (new := self.entries[self.stored :]):
            try:
                self.sink.append(self, [_logged(entry) for entry in new])
            except Exception as error:
                self.refusal = error
                raise
            self.stored = len(self.entries)

    # ------------------------------------------------------------------------- runs inside calls

    def begin_call(
        self,
        key: CallKey,
        call: ToolCall,
        *,
        can_wait: bool = False,
        is_preview: bool = False,
    ) -> "OpenCall":
        """Returns a new execution of a call, in which runs repeat what they have recorded."""
        if self._inside:
            self._inside.pop(key, None)
        return OpenCall(self, key, call, can_wait=can_wait, is_preview=is_preview)

    def begin_summary(self) -> "OpenCall":
        """Returns what stands for a call, inside of which the conversation is summarized."""
        can_wait = self.caller is not None and self.caller.can_wait
        call = ToolCall("", COMPACTION, "{}")
        return self.begin_call(f"{self.turn}/{COMPACTION}", call, can_wait=can_wait)

    def enter(self, call: "OpenCall") -> None:
        """Keeps an execution inside of which a run begins."""
        self._inside[call.key] = call

    def to_value(self, size: int | None = None) -> LoggedRun:
        """Returns the log as a value, by default whole; what is not yet repeated stays in it."""
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
        """Returns what people must decide on."""
        return tuple([preview for preview, _ in waiting(self.to_value())])


class OpenCall:
    """One execution of a tool call, and the runs inside it.

    They can wait for people if `can_wait` says so: the handler then runs again. In a preview of a
    later call no run begins, since it would ask the model; `has_runs` then says that the handler
    tried to begin one. `unrepeatable` names a tool inside the call that can neither be undone nor
    repeated, so that no run inside can wait any more. With `keeps_changes` the runs inside can be
    repeated.
    """

    __slots__ = (
        "_record",
        "call",
        "can_wait",
        "has_runs",
        "is_preview",
        "keeps_changes",
        "key",
        "log",
        "runs",
        "unrepeatable",
    )

    def __init__(
        self,
        log: RunLog,
        key: CallKey,
        call: ToolCall,
        *,
        can_wait: bool,
        is_preview: bool,
    ) -> None:
        self.log, self.key, self.call = log, key, call
        self.can_wait, self.is_preview = can_wait, is_preview
        self.has_runs, self.unrepeatable = False, ""
        self.keeps_changes = can_wait or log.keeps_changes
        self.runs: list[RunLog] = []
        record = log.record.inside.get(key)
        fits = record is not None and record.arguments == call.arguments
        self._record = record.runs if fits and record is not None else ()

    def repeat(self, before: "OpenCall") -> None:
        """Lets the runs inside repeat those of an execution that was undone."""
        self._record = before.to_value().runs

    @property
    def idempotency_key(self) -> str:
        """The same text for each execution of the call, also in another process."""
        return f"{self.log.run_id}:{self.log.path}{self.key}"

    @property
    def path(self) -> str:
        """The path of the next run inside the call."""
        return f"{self.log.path}{self.key}/{len(self.runs) + 1}:"

    @property
    def root(self) -> "OpenCall":
        """The call of the root run that this one is a part of."""
        caller = self.log.caller
        return self if caller is None else caller.root

    def begin(self, prompt: AnyPrompt) -> RunLog:
        """Returns the log of the next run of the call's handler.

        Raises `ChangedRunError` if the run that waits there is of another prompt or other tools.
        """
        if self.is_preview:
            self.has_runs = True
            raise WeakIncentivesError(
                "nested runs cannot start while the tool call is being previewed"
            )
        index = len(self.runs)
        record = self._record[index] if index < len(self._record) else None
        if record is not None and not record.log.entries:  # it had hardly begun
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
        """Why a run inside the call cannot go on, such as a table that is gone."""
        return next((log.refusal for log in self.runs if log.refusal is not None), None)

    def end(self) -> None:
        """Ends the execution, once the handler has ended.

        Raises `UndecidedError` if a run inside the call waits, and its `refusal` if one cannot go
        on, even where the handler has caught the error.
        """
        if not self.runs:
            return
        if (refusal := self.refusal) is not None:
            raise refusal
        if any(log.waits for log in self.runs):
            raise UndecidedError(self.call.name)

    def to_value(self) -> RunsInside:
        """Returns what the runs inside have done; those that have not begun again stay in it."""
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
    """Passes to a new `loop` what `entries` tell, and returns its next action.

    `apply` receives what earlier turns have opened and closed, in a run that continues. If the last
    entry should have ended the run and an interrupt was faster, it then raises that error.
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


def _turn_of(key: CallKey) -> int:
    return int(key.partition("/")[0])


def drop_unfinished(loop: InnerLoop) -> None:
    """Removes an answer that was stopped or cut, since its request is sent again."""
    last = loop.transcript[-1]
    if isinstance(last, AssistantMessage) and unfinished_error(last) is not None:
        loop.transcript.pop()
