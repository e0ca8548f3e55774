"""The messages of a conversation, neutral and append-only, and the outcome of a tool call.

Each message has a `kind`, which tells the messages apart in JSON, and a `text` for readers.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from ..content import Content, ContentStore, Document, Image, media_in, text_of
from ..limits import TokenUsage
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.tool import AnyTool
from ..serde import ByKind, Json
from ..visibility import SectionPath, ShownSection
from .schemas import StoredToolSpec, ToolSpec

__all__ = [
    "AssistantMessage",
    "Finish",
    "Instructions",
    "Message",
    "ToolCall",
    "ToolExecutionOutcome",
    "ToolMessage",
    "ToolsAdded",
    "ToolsRemoved",
    "UserMessage",
    "answered_calls",
    "apply_tool_changes",
    "keep_media",
    "media_of",
    "refused",
    "sendable",
    "sendable_content",
    "unwrap_arguments",
    "without_surrogates",
]

type Finish = Literal["stop", "tool_calls", "pause", "length", "content_filter", "refusal", "error"]
"""Why the model stopped writing.

After a `"pause"` it continues its answer when asked again. After an `"error"` of the provider the
message has only the text that had arrived.
"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model calls `name`; `arguments` is the JSON text as the model wrote it, valid or not."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Instructions:
    """The prompt's text beside a user's message, or later what of the prompt has changed.

    `media` are the images and documents whose markers are in the text. `refused` says that the
    provider rejected them: later requests omit the media.
    """

    content: str
    media: tuple[Image | Document, ...] = ()
    refused: bool = False
    kind: Literal["instructions"] = field(default="instructions", repr=False)

    @property
    def text(self) -> str:
        """The text of the prompt; the same as `content`."""
        return self.content


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message of the user, or the prompt itself where the user sends none.

    `repair` marks a message of the engine: it says why the model's last answer is rejected.
    `refused` says that the provider rejected the message: later requests omit it.
    """

    content: Content
    repair: bool = False
    refused: bool = False
    kind: Literal["user"] = field(default="user", repr=False)

    @property
    def text(self) -> str:
        """The content as text, with a marker for each image and document."""
        return text_of(self.content)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class AssistantMessage:
    """The model's answer.

    `wire` holds the provider's own items, which go back unchanged to providers of `wire_format`;
    others receive text and calls. `model` is the name under which the provider says that it
    answered; empty if it says none.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: TokenUsage = field(default_factory=TokenUsage)
    wire: tuple[Json, ...] = ()
    model: str = ""
    wire_format: str = ""
    kind: Literal["assistant"] = field(default="assistant", repr=False)


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The answer to one tool call; `unknown` says that the call was begun and then interrupted.

    `media` are images and documents that the model sees after the text. `refused` says that the
    provider rejected the answer: later requests send a note in its place.
    """

    call_id: str
    content: str
    success: bool = True
    unknown: bool = False
    media: tuple[Image | Document, ...] = ()
    refused: bool = False
    kind: Literal["tool"] = field(default="tool", repr=False)

    @property
    def text(self) -> str:
        """The text that the model received; the same as `content`."""
        return self.content

    def as_dict(self) -> dict[str, str]:
        """Returns the form that Chat Completions uses."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.content}


@dataclass(frozen=True, slots=True)
class ToolsAdded:
    """These tools are available from here on."""

    tools: tuple[StoredToolSpec, ...]
    text: ClassVar[str] = ""
    kind: Literal["tools_added"] = field(default="tools_added", repr=False)


@dataclass(frozen=True, slots=True)
class ToolsRemoved:
    """The tools of these names are no longer available from here on."""

    names: tuple[str, ...]
    text: ClassVar[str] = ""
    kind: Literal["tools_removed"] = field(default="tools_removed", repr=False)


type Message = Annotated[
    Instructions | UserMessage | AssistantMessage | ToolMessage | ToolsAdded | ToolsRemoved,
    ByKind(),
]


def media_of(message: Message) -> tuple[Image | Document, ...]:
    """Returns the images and documents of a message."""
    match message:
        case UserMessage(tuple() as content):
            return media_in(content)
        case Instructions(media=media) | ToolMessage(media=media):
            return media
        case _:
            return ()


def refused[M: Message](message: M, *, by_provider: bool = True) -> M:
    """Returns the message with the mark that the provider rejected it, or without that mark."""
    if isinstance(message, Instructions | UserMessage | ToolMessage):
        return replace(message, refused=by_provider)
    return message


def keep_media[M: Message](message: M, store: ContentStore) -> M:
    """Puts the bytes that a message has into the store; returns the message with references."""
    if all(media.data is None for media in media_of(message)):
        return message
    match message:
        case UserMessage(tuple() as content):
            parts = [part if isinstance(part, str) else store.put(part) for part in content]
            return replace(message, content=tuple(parts))
        case Instructions(media=media) | ToolMessage(media=media):
            return replace(message, media=tuple(map(store.put, media)))
        case _:
            return message


def apply_tool_changes(
    tools: Iterable[ToolSpec], messages: Iterable[Message]
) -> dict[str, ToolSpec]:
    """Returns the tools by name after the changes among `messages`."""
    available = {tool.name: tool for tool in tools}
    for message in messages:
        match message:
            case ToolsAdded(added):
                available |= {tool.name: tool for tool in added}
            case ToolsRemoved(names):
                for name in names:
                    available.pop(name, None)
            case _:
                pass
    return available


def answered_calls(messages: Iterable[Message]) -> Iterator[tuple[ToolCall, ToolMessage]]:
    """Yields each call with its answer, in the order of the answers; servers may repeat ids."""
    calls: list[ToolCall] = []
    for message in messages:
        match message:
            case AssistantMessage(tool_calls=called):
                calls = [*called]
            case ToolMessage(call_id):
                for index, call in enumerate(calls):
                    if call.call_id == call_id:
                        yield calls.pop(index), message
                        break
            case _:
                pass


@dataclass(slots=True, frozen=True)
class ToolExecutionOutcome:
    """The outcome of one tool call, and its changes of the conversation's tools.

    A call that read a section brings its tools, `expanded_tools`, and the paths of the sections
    that open with them, `opened`; `shown` has the sections that the model reads in the answer. A
    call that closed the section at `closed` takes away `closed_tools`, by name.
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
    shown: tuple[ShownSection, ...] = ()
    closed: SectionPath = ()


def sendable(text: str) -> str:
    """Returns `text` without lone surrogates, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def sendable_content(content: Content) -> Content:
    """Returns content with sendable texts."""
    if isinstance(content, str):
        return sendable(content)
    return tuple([sendable(part) if isinstance(part, str) else part for part in content])


def unwrap_arguments(text: str) -> str:
    """Returns the arguments of a call, unwrapped where a model or a server encoded them twice.

    Absent arguments, empty or null, become an empty object.
    """
    if text.startswith("{"):
        return text
    plain = text
    while (stripped := plain.strip()).startswith('"'):
        try:
            plain = json.loads(stripped)
        except ValueError:
            return text
    if stripped in ("", "null"):
        return "{}"
    return plain if plain is text or stripped.startswith("{") else text


def without_surrogates(answer: AssistantMessage) -> AssistantMessage:
    """Returns `answer` with sendable text and calls: the same object if they are so already."""
    calls = [ToolCall(*map(sendable, astuple(call))) for call in answer.tool_calls]
    sent = replace(answer, text=sendable(answer.text), tool_calls=tuple(calls))
    return answer if sent == answer else sent
