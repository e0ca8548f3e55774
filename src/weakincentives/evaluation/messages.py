"""The messages of a conversation, neutral and append-only, and the outcome of a tool call."""

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
"""Why the model stopped writing."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls `name`; `arguments` is the JSON text as the model wrote it, valid or not."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class UserMessage:
    """The prompt itself, or a later message to the model, such as the issues of its answer."""

    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessage:
    """The model's answer; `wire` holds items of the provider that must go back unchanged.

    `model` is the name under which the provider says that it answered; empty if it says none.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: TokenUsage = field(default_factory=TokenUsage)
    wire: tuple[Json, ...] = ()
    model: str = ""


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The answer to one tool call."""

    call_id: str
    content: str
    success: bool = True

    def as_dict(self) -> dict[str, str]:
        """Returns the form that Chat Completions uses."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.content}


@dataclass(frozen=True, slots=True)
class ToolsAdded:
    """These tools are available from here on."""

    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class ToolsRemoved:
    """The tools of these names are no longer available from here on."""

    names: tuple[str, ...]


type Message = UserMessage | AssistantMessage | ToolMessage | ToolsAdded | ToolsRemoved


@dataclass(slots=True, frozen=True)
class ToolExecutionOutcome:
    """The outcome of one tool call, and its changes of the conversation's tools.

    A call that read a section brings its tools, `expanded_tools`, and the paths of the sections
    that open with them, `opened`. A call that closed a section takes away `closed_tools`, by name.
    `request` asks for sections that only a new evaluation can open. `error` names the class of the
    exception that made the call fail.
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
    """Returns `text` without lone surrogates, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
