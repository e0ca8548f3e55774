"""How an evaluation stops when its calls wait for people, and what it recalls when it goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..prompt.prompt import Prompt
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..protocols import SessionProtocol
from .adapter import LoopOptions
from .approval import Approve, Decision, Preview
from .inner_loop import InnerLoop
from .messages import AssistantMessage, ToolExecutionOutcome, ToolMessage
from .suspension import Resumption, RunSuspended, Suspension, suspended, tool_digests
from .tool_executor import ToolExecutor

__all__ = ["recall_calls", "suspend"]


def suspend(
    pending: Sequence[Preview],
    decisions: Mapping[str, Decision],
    *,
    loop: InnerLoop,
    prompt: Prompt[Any],  # Any: a prompt of any output
    session: SessionProtocol,
    options: LoopOptions,
) -> RunSuspended:
    """Returns the error that ends an evaluation until people have decided on `pending`.

    Keeps `decisions` on them, but an approval only if the call would still do what was shown.
    `options` are those of the evaluation.
    """
    conversation, answers = loop.suspended()
    spent = loop.meter.usage  # with the first call that waits, which counts when it runs
    resumption = options.get("resume")
    before = resumption.suspension if resumption else None
    shown = {item.call_id: item.digest for item in before.pending} if before else {}
    return suspended(
        Suspension(
            ns=prompt.ns,
            key=prompt.key,
            pending=tuple(pending),
            conversation=conversation,
            session="",
            answers=answers,
            decisions={
                preview.call_id: decisions[preview.call_id]
                for preview in pending
                if preview.call_id in decisions
                and (
                    shown.get(preview.call_id) == preview.digest
                    or not isinstance(decisions[preview.call_id], Approve)
                )
            },
            tool_digests=tool_digests(prompt, [preview.tool for preview in pending]),
            spent=replace(spent, tool_calls=spent.tool_calls - 1),
            turns=loop.turns,
            repairs=loop.repairs,
            first_message=before.first_message if before else len(loop.conversation.messages),
            previous_turns=options.get("previous_turns", 0),
            start=options.get("conversation"),
            has_message=options.get("message") is not None,
            on_change=options.get("on_change", "append"),
        ),
        session,
    )


def recall_calls(
    tools: ToolExecutor, resumption: Resumption
) -> tuple[Suspension, list[ToolExecutionOutcome]]:
    """Records the calls that the suspended evaluation has made.

    Returns the suspension, and the outcomes of the calls of its last turn.
    """
    suspension = resumption.suspension
    *messages, last = suspension.conversation.messages
    answers = {item.call_id: item for item in messages if isinstance(item, ToolMessage)}
    for message in messages[suspension.first_message :]:
        for call in message.tool_calls if isinstance(message, AssistantMessage) else ():
            if call.name not in RESERVED_TOOL_NAMES:  # whose sections the conversation knows
                tools.recall(call, answers.get(call.call_id))
    calls = last.tool_calls if isinstance(last, AssistantMessage) else ()
    return suspension, [
        tools.recall(call, answer) for call, answer in zip(calls, suspension.answers, strict=False)
    ]
