"""What an evaluation tells while it runs: the events that `stream` yields."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..specialised import Specialised
from .transcript import ToolCall, ToolMessage, ToolsAdded, ToolsRemoved

if TYPE_CHECKING:
    from .core import PromptResponse

__all__ = ["Completed", "StreamEvent", "TextDelta", "ToolCallFinished", "ToolCallStarted"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A further piece of the text that the model is writing."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool call of the model is about to run; calls that run at once all start before the first has ended."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A tool call has run; `message` is what the model will be told."""

    call: ToolCall
    message: ToolMessage


@dataclass(frozen=True, slots=True)
class Completed[Out](Specialised):
    """The last event: the whole response, as `evaluate` gives it."""

    response: "PromptResponse[Out]"


type StreamEvent[Out] = TextDelta | ToolCallStarted | ToolCallFinished | ToolsAdded | ToolsRemoved | Completed[Out]
"""Everything that `stream` can yield."""
