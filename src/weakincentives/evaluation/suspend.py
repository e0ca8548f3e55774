"""How an evaluation stops when its calls wait for people, and what it recalls when it goes on."""

from collections.abc import Sequence
from typing import Any

from ..prompt.prompt import Prompt
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..protocols import SessionProtocol
from .adapter import EvaluationStart, ExecutionOptions
from .approval import Approve, Preview
from .inner_loop import InnerLoop
from .messages import AssistantMessage, ToolCall, ToolExecutionOutcome, answered_calls
from .nested_runs import ChangedRunError, Waiting, tool_digests
from .run_logs import NestedRunLog, OpenCalls
from .suspension import (
    Resumption,
    RunSuspended,
    SuspendedRun,
    Suspension,
    cannot_wait,
    mark_suspended,
)
from .tool_executor import ToolExecutor

__all__ = ["options_of", "recall_calls", "suspend", "wait_on", "waiting_for"]


def waiting_for(
    pending: Sequence[Preview],
    calls: Sequence[ToolCall],
    open_calls: OpenCalls,
    prompt: Prompt[Any],  # Any: a prompt of any output
) -> Waiting:
    """Returns what a run waits for; `calls` are those of its turn from the first that waits.

    Keeps the decisions on them, but an approval only if the call would still do what was shown.
    """
    decisions, nested = open_calls.decisions, open_calls.records(calls)
    waiting = {preview.call_id for preview in pending} | nested.keys()
    tools = [
        call.name
        for approval_id, call in zip(open_calls.ids(calls), calls, strict=True)
        if approval_id in waiting
    ]
    shown = {preview.call_id: preview for preview in open_calls.waited.pending}
    return Waiting(
        pending=tuple(pending),
        decisions={
            preview.call_id: decisions[preview.call_id]
            for preview in pending
            if preview.call_id in decisions
            and (
                not isinstance(decisions[preview.call_id], Approve)
                or (preview.call_id in shown and shown[preview.call_id].shows_same(preview))
            )
        }
        | {name: decisions[name] for name in nested if name in decisions},
        nested=nested,
        tool_digests=tool_digests(prompt.template, tools),
    )


def suspend(
    waiting: Waiting,
    *,
    loop: InnerLoop,
    prompt: Prompt[Any],  # Any: a prompt of any output
    session: SessionProtocol,
    options: EvaluationStart,
) -> RunSuspended:
    """Returns the error that ends an evaluation that waits, of which `options` are the arguments.

    A nested evaluation notes in its log that it waits; without a log, or after a call that can
    neither be undone nor repeated, it cannot.
    """
    conversation, answers = loop.suspended()
    resumption = options.get("resume")
    before = resumption.suspension if resumption else None
    suspension = Suspension(
        ns=prompt.ns,
        key=prompt.key,
        pending=waiting.pending,
        conversation=conversation,
        session="",
        answers=answers,
        decisions=waiting.decisions,
        tool_digests=waiting.tool_digests,
        spent=loop.meter.usage,
        turns=loop.turns,
        repairs=loop.repairs,
        first_message=before.first_message if before else len(loop.conversation.messages),
        previous_turns=options.get("previous_turns", 0),
        start=options.get("conversation"),
        has_message=options.get("message") is not None,
        on_change=options.get("on_change", "append"),
        nested=waiting.nested,
    )
    parent = options.get("parent")
    if parent is None or parent.evaluation_id is None:
        return mark_suspended(suspension, session)
    log = parent.log
    unrepeatable = "" if log is None else log.caller.root.unrepeatable
    if log is None or unrepeatable:
        return RunSuspended(suspension, cannot_wait(unrepeatable))
    log.waiting = waiting
    return RunSuspended(suspension)


def wait_on(
    error: ChangedRunError,
    log: NestedRunLog | None,
    resumption: Resumption | None,
    loop: InnerLoop,
    session: SessionProtocol,
) -> None:
    """Lets a resumed run that cannot go on be resumed again, if it has done nothing so far."""
    if log is not None:
        log.refusal = error
    if resumption is not None:
        suspension = resumption.suspension
        known = len(suspension.conversation.messages) + len(suspension.answers)
        if len(loop.transcript) == known:
            session[SuspendedRun].append(SuspendedRun(suspension.suspension_id))


def recall_calls(
    tools: ToolExecutor, resumption: Resumption
) -> tuple[Suspension, list[ToolExecutionOutcome]]:
    """Records the calls that the suspended evaluation has made.

    Returns the suspension, and the outcomes of the calls of its last turn.
    """
    suspension = resumption.suspension
    *messages, last = suspension.conversation.messages
    for call, answer in answered_calls(messages[suspension.first_message :]):
        if call.name not in RESERVED_TOOL_NAMES:  # whose sections the conversation knows
            tools.recall(call, answer)
    calls = last.tool_calls if isinstance(last, AssistantMessage) else ()
    return suspension, [
        tools.recall(call, answer) for call, answer in zip(calls, suspension.answers, strict=False)
    ]


def options_of(suspension: Suspension, options: ExecutionOptions) -> ExecutionOptions:
    """Returns the options with which the suspended run began.

    Raises `TypeError` for what is no suspension and `ValueError` for options of a new run.
    """
    if not isinstance(suspension, Suspension):
        raise TypeError(f"suspension is {suspension!r:.200}; pass RunSuspended.suspension")
    for name in ("message", "conversation"):
        if options.get(name) is not None:
            raise ValueError(f"{name}= goes with a new run; the suspension has the run's own")
    return {
        **options,
        "message": suspension.message,
        "conversation": suspension.start,
        "on_change": suspension.on_change,
    }
