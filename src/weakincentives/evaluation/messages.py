"""The conversation as neutral, append-only values, and what came of a tool call; codecs write them
for a provider.
"""

from dataclasses import dataclass, field
from typing import Literal

from ..limits import TokenUsage
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.tool import AnyTool
from ..serde import Json
from .schemas import ToolSpec

__all__ = [
    "AssistantMessage",
    "Finish",
    "Message",
    "ToolCall",
    "ToolExecutionOutcome",
    "ToolMessage",
    "ToolsAdded",
    "ToolsRemoved",
    "UserMessage",
    "sendable",
]

type Finish = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]
"""Why the model stopped: it was done, it wants tools, it ran into its length limit, it was
filtered, it refused.
"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model wants `name` called; `arguments` is the JSON text as the model wrote it, valid or
    not.
    """

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """The prompt itself, or a later word of ours to the model, such as what was wrong with its
    answer.
    """

    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """What the model answered.

    `wire` holds the provider's own items where these must be sent back unchanged.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: TokenUsage = field(default_factory=TokenUsage)
    wire: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The answer to one tool call."""

    call_id: str
    content: str
    success: bool = True

    def as_dict(self) -> dict[str, str]:
        """The form that Chat Completions uses."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.content}


@dataclass(frozen=True, slots=True)
class ToolsAdded:
    """From here on these tools are available too."""

    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class ToolsRemoved:
    """From here on the tools of these names are no longer available."""

    names: tuple[str, ...]


type Message = UserMessage | AssistantMessage | ToolMessage | ToolsAdded | ToolsRemoved


@dataclass(slots=True, frozen=True)
class ToolExecutionOutcome:
    """What came of one tool call, and how it changes the tools of the conversation.

    `expanded_tools` are those of the section that was read, for which `opened` must be visible;
    `closed_tools` names those whose section was closed. `request` is set when the call asks for
    sections that only a new evaluation can open. `error` names the class of what made the call
    fail, if that was an exception.
    """

    tool_call_id: str
    message: ToolMessage
    success: bool
    expanded_tools: tuple[AnyTool, ...] = ()
    section_key: str = ""
    opened: tuple[tuple[str, ...], ...] = ()
    closed_tools: tuple[str, ...] = ()
    error: str = ""
    request: VisibilityExpansionRequired | None = None


def sendable(text: str) -> str:
    """`text` without lone surrogates, which no wire can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
