"""Converts a stored run's log to events, so that one reader supports both kinds of logs.

Suspended and durable runs store their entries. The entries contain messages and calls, but do not
contain times, durations or section sizes.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from ..content import text_of
from ..evaluation.approval import Deny, Preview
from ..evaluation.logged_run import (
    ACCEPT,
    COMPACTION,
    Answered,
    Asked,
    CallKey,
    Decided,
    LoggedCall,
    LoggedRun,
    ProviderFailure,
    Rendered,
    pending_previews,
    usage_of,
)
from ..evaluation.messages import AssistantMessage
from ..evaluation.suspension import Suspension
from ..limits import TokenUsage
from ..prompt.tool import ToolResult
from ..runtime.events import (
    AnswerRejected,
    ApprovalDecided,
    Compacted,
    EvaluationStopped,
    Event,
    EventIds,
    PromptExecuted,
    PromptRendered,
    ProviderCalled,
    ToolInvoked,
    VisibilityExpanded,
)
from ..serde import Json
from .event_log import Record, event_record, read_events

__all__ = ["read_records", "records_of"]


def read_records(lines: Iterable[str], clean: Callable[[str], str] | None = None) -> list[Record]:
    """Returns the events in an event log, or in a `Suspension` as JSON.

    `clean` is applied to each line in a log and to each event in a suspension. Raises `ValueError`
    under the same conditions as `read_events` and `Suspension.from_json`.
    """
    lines = iter(lines)
    if not (first := next(lines, "")).startswith('{"version":'):
        rest = chain([first] if first else [], lines)
        return list(read_events(map(clean, rest) if clean else rest))
    suspension = Suspension.from_json("".join([first, *lines]))
    records = records_of(suspension.log, suspension.run_id)
    return [json.loads(clean(json.dumps(record))) for record in records] if clean else records


def records_of(log: LoggedRun, run_id: str) -> list[Record]:
    """Returns the events that a run published, according to its log, including nested runs.

    The records do not contain `created_at` or `sections`; durations and the numbers in `Compacted`
    are 0.
    """
    begun = [entry.conversation for entry in log.entries if isinstance(entry, Rendered)]
    last = next((known for known in reversed(begun) if known is not None), None)
    ns, key = (last.ns, last.key) if last else ("", "")
    ids = EventIds(session_id=None, run_id=run_id, run_path="")
    return [_untimed(event_record(event)) for event in _EntryReader(ns, key, ids).events(log)]


def _untimed(record: Record) -> Record:
    return {name: value for name, value in record.items() if name != "created_at"}


class _EntryReader:
    """Reads one run's entries and creates the events that they represent."""

    def __init__(self, ns: str, key: str, ids: EventIds) -> None:
        self._ns, self._key, self._ids = ns, key, ids
        self._turn = self._turns = 0  # in the run, and in its current evaluation
        self._usage = TokenUsage()
        self._shown: dict[CallKey, Preview] = {}
        self._last: AssistantMessage | None = None  # a final answer unless it is rejected

    def events(self, log: LoggedRun) -> Iterator[Event]:
        seen = set[CallKey]()
        for entry in log.entries:
            match entry:
                case Rendered():
                    yield from self._inside(log, f"{self._turn}/{COMPACTION}", seen)
                    yield from self._begin(entry, log)
                case Answered(reply, cost):
                    yield self._answer(reply, cost)
                case Asked(key, preview):
                    self._shown[key] = preview
                case Decided(key, decision) if shown := self._shown.get(key):
                    yield ApprovalDecided(
                        name=shown.tool,
                        call_id=shown.call_id,
                        approval=shown.approval,
                        decision=decision.kind,
                        reason=decision.reason if isinstance(decision, Deny) else "",
                        preview=str(shown),
                        **self._ids,
                    )
                case LoggedCall():
                    yield from self._inside(log, entry.key, seen)
                    yield from self._call(entry)
                case _:
                    pass
        for key in log.inside:
            yield from self._inside(log, key, seen)
        yield from self._end(log)

    def _begin(self, entry: Rendered, log: LoggedRun) -> Iterator[Event]:
        if entry.cause == "restart":
            yield VisibilityExpanded(
                section_keys=entry.section_keys, reason=entry.reason, **self._ids
            )
        begun = entry.conversation
        if entry.cause == "compaction":
            yield Compacted(
                ns=self._ns,
                key=self._key,
                dropped_turns=0,
                dropped_calls=0,
                tokens_before=0,
                tokens_after=0,
                **self._ids,
            )
        self._turns, self._usage, self._last = 0, TokenUsage(), None
        message = log.message if entry.cause == "start" else None
        yield PromptRendered(
            ns=self._ns,
            key=self._key,
            name=self._key,
            adapter="",
            text=begun.messages[0].text if begun else "",
            tool_names=tuple(begun.available_tools) if begun else (),
            message=text_of(message) if message else "",
            **self._ids,
        )

    def _answer(self, reply: AssistantMessage | ProviderFailure, cost: float | None) -> Event:
        if isinstance(reply, ProviderFailure):
            failure, message, arrived = reply, None, reply.arrived
        else:
            failure, message, arrived = None, reply, reply
        number = self._turns + 1
        if not (failure and failure.fell_back):  # a fallback sends the same request again
            self._turns = number
        self._turn += 1
        self._usage += reply.usage
        self._last = message
        return ProviderCalled(
            adapter=failure.provider if failure else "",
            turn=number,
            seconds=0.0,
            usage=reply.usage,
            finish=message.finish if message else "",
            tool_calls=len(message.tool_calls) if message else 0,
            error=failure.message if failure else None,
            text=arrived.text if arrived else "",
            model=arrived.model if arrived else "",
            reasoning=arrived.reasoning if arrived else "",
            citations=arrived.citations if arrived else (),
            cost=cost if reply.usage.total_tokens else None,
            **self._ids,
        )

    def _call(self, entry: LoggedCall) -> Iterator[Event]:
        answer = entry.answer
        if entry.call.name == ACCEPT:
            if not answer.success:
                self._last = None
                yield AnswerRejected(answer.text, **self._ids)
            return
        value: Json = None
        if entry.sections is not None:
            opened = [list[Json](path) for path in entry.sections.opened]
            value = {"opened": list[Json](opened), "closed": list[Json](entry.sections.closed)}
        yield ToolInvoked(
            name=entry.call.name,
            call_id=entry.call.call_id,
            params=_parsed(entry.call.arguments) if entry.has_run else None,
            result=ToolResult(answer.text, value, success=answer.success),
            content=answer.text,
            prompt_name=self._key,
            requested_sections=_requested(entry),
            reason=entry.request.reason if entry.request else "",
            arguments=entry.call.arguments[:10_000],
            **self._ids,
        )

    def _inside(self, log: LoggedRun, key: CallKey, seen: set[CallKey]) -> Iterator[Event]:
        if key in seen or key not in log.inside:
            return
        seen.add(key)
        for number, run in enumerate(log.inside[key].runs, 1):
            path = f"{self._ids['run_path']}{key}/{number}:"
            ids = EventIds(session_id=None, run_id=self._ids["run_id"], run_path=path)
            yield from _EntryReader(run.ns, run.key, ids).events(run.log)
            self._usage += usage_of(run.log).usage

    def _end(self, log: LoggedRun) -> Iterator[Event]:
        pending = tuple(pending_previews(log))
        if pending:
            yield EvaluationStopped(
                prompt_name=self._key,
                adapter="",
                reason="suspended",
                usage=self._usage,
                turns=self._turns,
                pending=tuple([str(preview) for preview, _ in pending]),
                **self._ids,
            )
        elif (answer := self._last) is not None and not answer.tool_calls:
            yield PromptExecuted(
                prompt_name=self._key,
                adapter="",
                text=answer.text,
                output=None,
                usage=self._usage,
                turns=self._turns,
                seconds=0.0,
                **self._ids,
            )


def _requested(entry: LoggedCall) -> tuple[str, ...]:
    if entry.request is not None:
        return entry.request.section_keys
    return (entry.sections.section_key,) if entry.sections else ()


def _parsed(arguments: str) -> Json:
    try:
        value: Json = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value
