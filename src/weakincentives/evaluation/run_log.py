"""The log of a run: what has happened in it, in order.

A tool call took effect exactly if its `Called` is in the log: appending the entry is the last part
of the call's transaction, and one store. The conversation of a run that was interrupted is read
from its log.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import ControlFlow
from ..limits import RunUsage, utc_now
from .errors import PromptEvaluationError
from .inner_loop import InnerLoop
from .messages import AssistantMessage, ToolCall, ToolExecutionOutcome

__all__ = ["ACCEPT", "Answered", "Called", "Entry", "RunLog", "replayed"]

ACCEPT = "<accept>"
"""The name of the call that checks an answer; no tool can have it."""


class Answered(NamedTuple):
    """The provider has answered."""

    reply: AssistantMessage


class Called(NamedTuple):
    """A call has an answer, be it that it was refused; `call` has the arguments it ran with."""

    call: ToolCall
    outcome: ToolExecutionOutcome


type Entry = Answered | Called
RunLog = list[Entry]


def replayed(loop: InnerLoop, log: Sequence[Entry]) -> InnerLoop:
    """Returns a loop with the conversation that `log` tells, of a run that was interrupted.

    An interrupt can come at any moment, so the run's own `loop` may have taken an entry in part.
    """
    unlimited = replace(loop.config, deadline=None, budget=None, max_turns=None)
    again = InnerLoop(
        conversation=loop.conversation,
        structured_output=loop.structured_output,
        param_descriptions=loop.param_descriptions,
        config=unlimited,
        content=loop.content,
    )
    last = again.transcript[-1]
    if isinstance(last, AssistantMessage) and last.tool_calls:  # of a run that was suspended
        again.resume(RunUsage(), 0, 0, (), utc_now())
    else:
        again.start(utc_now())
    for entry in log:
        try:
            if isinstance(entry, Answered):
                again.receive(entry.reply, utc_now())
            elif entry.call.name != ACCEPT:
                again.submit([entry.outcome], utc_now())
            elif not entry.outcome.success:
                again.reject(entry.outcome.message.content, utc_now())
        except (ControlFlow, PromptEvaluationError):
            pass  # which has ended the run, unless the interrupt was faster
    again.meter, again.turns, again.running = loop.meter, loop.turns, loop.running
    return again
