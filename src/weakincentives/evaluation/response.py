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
    """What an evaluation gave: the final `text` and, where the prompt declares one, the typed
    `output`.

    `text` is the model's own, or the JSON that `output` was read from; `turns` counts provider
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
    """A tool call of the model is about to run; calls that run at once all start before the first
    has ended.
    """

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A tool call has run; `message` is what the model will be told."""

    call: ToolCall
    message: ToolMessage


@dataclass(frozen=True, slots=True)
class Completed[Out](Parametrized):
    """The last event: the whole response, as `evaluate` gives it."""

    response: PromptResponse[Out]


type StreamEvent[Out] = (
    TextDelta | ToolCallStarted | ToolCallFinished | ToolsAdded | ToolsRemoved | Completed[Out]
)
"""Everything that `stream` can yield."""
