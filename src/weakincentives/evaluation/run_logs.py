"""Logs of nested runs: what they do is recorded, so that they can repeat it after a wait.

`NestedRunLog` records one nested run, `CallLog` one execution of a tool call with the runs inside
it, and `OpenCalls` has the calls of one turn. Their records are the values of `nested_runs`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import WeakIncentivesError
from ..limits import Meter, RunUsage, TokenUsage
from ..prompt.prompt import Prompt
from .approval import Decision, Preview
from .journal import CallIdentity
from .messages import AssistantMessage, ToolCall
from .nested_runs import (
    ChangedRunError,
    Decisions,
    NestedCall,
    NestedRun,
    NestedRuns,
    ProviderFailure,
    UndecidedError,
    Waiting,
    approval_ids,
    check_run,
)

__all__ = ["CallLog", "Identity", "NestedRunLog", "OpenCalls"]

type Identity = CallIdentity | CallLog
"""Identifies a tool call: a journal's key, or the log of an execution whose runs can wait."""

_NO_USAGE = RunUsage()
_NOTHING_WAITS = Waiting()


class NestedRunLog:
    """Records one nested run; a run that has a record repeats it first."""

    def __init__(
        self,
        prompt: Prompt[Any],  # Any: a prompt of any output
        record: NestedRun | None,
        decisions: Decisions,
        caller: "CallLog",
    ) -> None:
        self.caller = caller
        self._ns, self._key = prompt.ns, prompt.key
        self._record = record
        self._decisions = decisions
        self._answers: list[AssistantMessage | ProviderFailure] = []
        self._calls: list[NestedCall] = []
        self._is_resumed = record is None
        self.waiting: Waiting | None = None
        self.refusal: ChangedRunError | None = None
        summaries = NestedRuns(
            tool="", arguments="", idempotency_key="", runs=record.summaries if record else ()
        )
        inside = OpenCalls("", caller.meter, self)
        inside.begin_turn((), Waiting(nested={"": summaries}))
        self.summaries = inside.start("", ToolCall("", "", ""))

    def take_answer(self) -> AssistantMessage | ProviderFailure | None:
        """Returns the model's next answer if it is recorded."""
        index = len(self._answers)
        if self._record is None or index >= len(self._record.answers):
            return None
        self._answers.append(self._record.answers[index])
        return self._answers[index]

    def add_answer(self, answer: AssistantMessage | ProviderFailure) -> None:
        """Records what the provider answered, or how the request failed."""
        self._answers.append(answer)

    def take_call(self, call: ToolCall) -> NestedCall | None:
        """Returns the record of the next call, if it has one."""
        index = len(self._calls)
        if self._record is None or index >= len(self._record.calls):
            return None
        record = self._record.calls[index]
        if (record.call.call_id, record.call.name) != (call.call_id, call.name):
            return None
        self._calls.append(record)
        return record

    def add_call(self, call: NestedCall) -> None:
        """Records a call that has an answer."""
        self._calls.append(call)

    def resume(self) -> Waiting | None:
        """Returns for what the run has waited, once, in the turn in which it did so."""
        record = self._record
        if self._is_resumed or record is None or len(self._answers) < len(record.answers):
            return None
        self._is_resumed = True
        return Waiting(pending=record.pending, decisions=self._decisions, nested=record.open)

    def to_record(self, place: str) -> NestedRun:
        """Returns the record of the run, whose pending calls have ids that begin with `place`.

        A run that has not yet repeated its record keeps the rest of it.
        """
        waiting, record = self.waiting or _NOTHING_WAITS, self._record
        answers, calls = self._answers, self._calls
        if record is not None:
            answers = [*answers, *record.answers[len(answers) :]]
            calls = [*calls, *record.calls[len(calls) :]]
        return NestedRun(
            ns=self._ns,
            key=self._key,
            answers=tuple(answers),
            calls=tuple(calls),
            open=waiting.nested,
            decisions={
                name: waiting.decisions[name]
                for name in waiting.nested.keys() & waiting.decisions.keys()
            },
            pending=waiting.pending,
            ids=tuple([f"{place}/{preview.call_id}" for preview in waiting.pending]),
            tool_digests=waiting.tool_digests,
            summaries=self.summaries.to_record().runs,
        )


class CallLog:
    """Records one execution of a tool call and the runs inside it.

    `unrepeatable` names a tool inside it whose call can neither be undone nor repeated, so that no
    run inside can wait any more. In a preview of a later call no run begins, since it would ask
    the model; `has_runs` then says that the handler tried to begin one.
    """

    began = False  # as for a `CallIdentity`

    def __init__(
        self, open_calls: "OpenCalls", approval_id: str, call: ToolCall, idempotency_key: str
    ) -> None:
        self.call = call
        self.idempotency_key = idempotency_key
        self.unrepeatable = ""
        self.is_preview = False
        self.has_runs = False
        self._open = open_calls
        self._meters = open_calls.meters
        self._id = approval_id
        self._record: NestedRuns | None = None
        self._decisions: Decisions = {}
        self._runs: list[NestedRunLog] = []
        self._spent = _NO_USAGE

    @property
    def meter(self) -> Meter:
        """Counts what the runs inside the call use, also those of earlier executions."""
        return self._meters.setdefault(self._id, Meter(parent=self._open.meter))

    @property
    def root(self) -> "CallLog":
        """The log of the root run's call."""
        around = self._open.run
        return self if around is None else around.caller.root

    def resume(self, record: NestedRuns, decisions: Decisions, *, is_counted: bool) -> None:
        """Lets the runs inside the call repeat their record, with `decisions` on their calls.

        If their usage `is_counted` already, it counts again when they repeat it.
        """
        self._record, self._decisions, self._spent = record, decisions, self.meter.usage
        if is_counted:
            self.meter.add_run(_negative(record.spent), "")

    def repeat(self, record: NestedRuns) -> None:
        """Lets the runs inside the call repeat their record, which nobody has counted yet."""
        self._record, self.idempotency_key = record, record.idempotency_key

    # Any: a prompt of any output
    def begin(self, prompt: Prompt[Any]) -> NestedRunLog:
        """Returns the log of the next run of the call's handler.

        Raises `ChangedRunError` if the run that waits there is of another prompt or other tools.
        """
        if self.is_preview:
            self.has_runs = True
            raise WeakIncentivesError("runs inside a call that only shows what it would do wait")
        index = len(self._runs)
        record, decisions = None, dict[str, Decision]()
        if self._record is not None and index < len(self._record.runs):
            record = self._record.runs[index]
            decisions = dict(record.decisions) | {
                preview.call_id: self._decisions[approval_id]
                for preview, approval_id in zip(record.pending, record.ids, strict=True)
                if approval_id in self._decisions
            }
        log = NestedRunLog(prompt, record, decisions, self)
        self._runs.append(log)
        if record is not None:
            try:
                check_run(prompt.template, record)
            except ChangedRunError as error:
                log.refusal = error
                raise
        return log

    @property
    def refusal(self) -> ChangedRunError | None:
        """Why a run inside the call cannot go on."""
        return next((log.refusal for log in self._runs if log.refusal is not None), None)

    def end(self) -> None:
        """Ends the log, once the handler has ended.

        Raises `UndecidedError` if a run inside the call waits, and `ChangedRunError` if one cannot
        go on, even where the handler has caught the error.
        """
        if self._record is None and not self._runs:
            return  # as most calls
        self._count_lost()
        if (refusal := self.refusal) is not None:
            raise refusal
        undecided = self.undecided()
        if undecided.previews:
            raise undecided

    def undecided(self) -> UndecidedError:
        """Returns the calls inside this one on which people must decide, if there are any."""
        previews: list[Preview] = []
        decisions: dict[str, Decision] = {}
        for place, log in self._places():
            if log.waiting is not None:
                for preview in log.waiting.pending:
                    approval_id = f"{place}/{preview.call_id}"
                    inside = (self.call.name, *preview.inside)
                    previews.append(replace(preview, call_id=approval_id, inside=inside))
                    if preview.call_id in log.waiting.decisions:
                        decisions[approval_id] = log.waiting.decisions[preview.call_id]
        return UndecidedError(previews, decisions)

    def _count_lost(self) -> None:
        """Counts the usage of earlier executions that this one has not repeated."""
        before, now = self._spent, self.meter.usage
        if now.calls < before.calls or now.tool_calls < before.tool_calls:
            self.meter.add(
                before.usage + _negative(now).usage,
                calls=before.calls - now.calls,
                tool_calls=before.tool_calls - now.tool_calls,
                cost=(before.cost or 0.0) - (now.cost or 0.0),
            )

    def to_record(self) -> NestedRuns:
        """Returns the record of the call's runs."""
        runs = [log.to_record(place) for place, log in self._places()]
        if self._record is not None:
            runs += self._record.runs[len(runs) :]
        return NestedRuns(
            tool=self.call.name,
            arguments=self.call.arguments,
            idempotency_key=self.idempotency_key,
            spent=self.meter.usage,
            runs=tuple(runs),
        )

    def _places(self) -> list[tuple[str, NestedRunLog]]:
        return [(f"{self._id}/{number}", log) for number, log in enumerate(self._runs, 1)]


class OpenCalls:
    """The calls of one turn of an evaluation, by their approval ids, and the runs inside them.

    `run` is the evaluation's log if the evaluation is nested. `decisions` are those on the turn's
    own calls, not on calls inside them; `shown` are the previews that people have seen.
    """

    def __init__(self, evaluation_id: str, meter: Meter, run: NestedRunLog | None) -> None:
        self.meter = meter
        self.run = run
        self._evaluation_id = evaluation_id
        self._turn = 0
        self.begin_turn((), None)

    def begin_turn(self, calls: Sequence[ToolCall], waited: Waiting | None) -> None:
        """Takes the calls of a new turn, and for what the run has `waited` in it.

        It forgets the turn before, whose calls may have had the same ids.
        """
        self.waited, self.has_waited = waited or _NOTHING_WAITS, waited is not None
        self.meters: dict[str, Meter] = {}
        self._logs: dict[str, CallLog] = {}
        self._turn += 1
        self._calls, self._ids = tuple(calls), approval_ids(calls)
        self.decisions: dict[str, Decision] = {}
        self.shown: dict[str, Preview] = {}
        if waited is not None:
            decisions = waited.decisions
            self.decisions = {name: decisions[name] for name in self._ids if name in decisions}
            self.shown = {preview.call_id: preview for preview in waited.pending}

    def ids(self, calls: Sequence[ToolCall]) -> tuple[str, ...]:
        """Returns the approval ids of the last calls of the turn; some of them may not run."""
        count = len(self._ids) - len(calls)
        if tuple(calls) == self._calls[count:]:
            return self._ids[count:]
        left, ids = list(zip(self._calls, self._ids, strict=True)), list[str]()
        for call in reversed(calls):
            while left[-1][0] != call:
                left.pop()
            ids.append(left.pop()[1])
        return tuple(reversed(ids))

    def forget(self, approval_id: str) -> None:
        """Drops the decision on a call that has an outcome."""
        self.decisions.pop(approval_id, None)
        self.shown.pop(approval_id, None)

    def start(self, approval_id: str, call: ToolCall, *, is_preview: bool = False) -> CallLog:
        """Returns the log of an execution of a call, which goes on from the call's record."""
        record = self.waited.nested.get(approval_id)
        key = f"{self._evaluation_id}:{self._turn}:{approval_id}"
        if record is not None:
            key = record.idempotency_key
        log = self._logs[approval_id] = CallLog(self, approval_id, call, key)
        log.is_preview = is_preview
        if record is not None:
            self._resume(log, approval_id, record)
        return log

    def _resume(self, log: CallLog, approval_id: str, record: NestedRuns) -> None:
        is_first, meter, spent = approval_id not in self.meters, log.meter, record.spent
        if is_first and self.run is None:  # a nested run counts anew what it repeats
            meter.tokens, meter.calls = spent.usage, spent.calls
            meter.tool_calls, meter.cost = spent.tool_calls, spent.cost or 0.0
        if record.arguments == log.call.arguments:
            is_counted = not is_first or self.run is None
            log.resume(record, self.waited.decisions, is_counted=is_counted)

    def record(self, approval_id: str, call: ToolCall) -> tuple[ToolCall, NestedRuns]:
        """Returns a call that has an answer, as it was executed, and the record of its runs."""
        if (log := self._logs.get(approval_id)) is not None:
            return log.call, log.to_record()
        return call, NestedRuns(tool=call.name, arguments=call.arguments, idempotency_key="")

    def has_runs(self, approval_id: str) -> bool:
        """Whether a run inside a call has not begun, since the call only shows what it would do."""
        log = self._logs.get(approval_id)
        return log is not None and log.has_runs

    def undecided(self, approval_id: str) -> UndecidedError:
        """Returns what people must decide on inside a call of the turn, as it is known so far."""
        log, record = self._logs.get(approval_id), self.waited.nested.get(approval_id)
        if log is not None:
            return log.undecided()
        ids = {item for run in record.runs for item in run.ids} if record else set[str]()
        return UndecidedError(
            [preview for preview in self.waited.pending if preview.call_id in ids],
            {name: self.waited.decisions[name] for name in ids & self.waited.decisions.keys()},
        )

    def batch(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Returns the first of the last calls of the turn; one that has a record runs alone."""
        nested = self.waited.nested
        for index, approval_id in enumerate(self.ids(calls) if nested else ()):
            if approval_id in nested:
                return calls[: max(index, 1)]
        return calls

    def records(self, calls: Sequence[ToolCall]) -> dict[str, NestedRuns]:
        """Returns the records of the runs inside the last calls of the turn, if there are any."""
        records: dict[str, NestedRuns] = {}
        for approval_id in self.ids(calls):
            record = self.waited.nested.get(approval_id)
            if (log := self._logs.get(approval_id)) is not None:
                record = log.to_record()
            if record is not None and record.runs:
                records[approval_id] = record
        return records


def _negative(spent: RunUsage) -> RunUsage:
    tokens = spent.usage
    usage = TokenUsage(
        -tokens.input_tokens,
        -tokens.output_tokens,
        -tokens.cached_tokens,
        -tokens.cache_write_tokens,
        -tokens.reasoning_tokens,
        -tokens.cache_write_1h_tokens,
    )
    return RunUsage(usage, -spent.calls, -spent.tool_calls, -(spent.cost or 0.0))
