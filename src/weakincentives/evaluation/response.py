"""What an evaluation returns, and the events that `stream` yields while it runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..generics import Parametrized
from ..limits import TokenUsage
from .messages import Message, ToolCall, ToolMessage, ToolsAdded, ToolsRemoved

__all__ = [
    "Completed",
    "PromptResponse",
    "StreamEvent",
    "TextDelta",
    "ToolCallFinished",
    "ToolCallStarted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResponse[Out](Parametrized):
    """The result of an evaluation: the final `text` and the typed `output` if one is declared.

    `text` is the model's own, or the JSON from which `output` was parsed; `turns` counts provider
    requests, `transcript` is the whole conversation.
    """

    prompt_name: str
    text: str
    output: Out | None
    usage: TokenUsage
    turns: int
    transcript: Sequence[Message] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A further piece of the text that the model is writing."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool call is about to run; parallel calls all start before the first one ends."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A tool call has run; `message` is the answer that the model reads."""

    call: ToolCall
    message: ToolMessage


@dataclass(frozen=True, slots=True)
class Completed[Out](Parametrized):
    """The last event: the response, as `evaluate` returns it."""

    response: PromptResponse[Out]


type StreamEvent[Out] = (
    TextDelta | ToolCallStarted | ToolCallFinished | ToolsAdded | ToolsRemoved | Completed[Out]
)
"""Everything that `stream` can yield."""
