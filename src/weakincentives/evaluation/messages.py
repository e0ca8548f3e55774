"""Provider-neutral, append-only messages of a conversation, and the outcome of a tool call.

Each message has a `kind`, which identifies its type in JSON, and a `text` for display.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from ..citations import Citation
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

After a `"pause"`, the model continues its answer when asked again. After a provider's `"error"`,
the message contains only the text received up to that point.
"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call to the tool `name`; `arguments` is the model's JSON text, not yet validated."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Instructions:
    """The prompt's text in a conversation with user messages, or a later change to that text.

    `media` contains the images and documents whose markers appear in the text. `refused` means that
    the provider rejected the media, so later requests omit them.
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
    """A message from the user, or the prompt itself if there is no user message.

    `repair` marks a message from the engine that explains why the model's last answer was rejected.
    `refused` means that the provider rejected the message, so later requests omit it.
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

    `reasoning` is the reasoning that the provider shows, such as a summary or thinking text. A
    blank line separates its parts, and `(hidden)` replaces a part that the provider sends in
    encrypted form. `citations` refer to passages of `text`.

    `wire` contains the provider's own items. Providers that use `wire_format` receive them
    unchanged; other providers receive text and calls. `requested_model` is the model that the
    request named: only this model receives the reasoning in `wire` again. `model` is the model name
    reported by the provider, or empty if there is none.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: TokenUsage = field(default_factory=TokenUsage)
    wire: tuple[Json, ...] = ()
    model: str = ""
    wire_format: str = ""
    requested_model: str = ""
    reasoning: str = ""
    citations: tuple[Citation, ...] = ()
    kind: Literal["assistant"] = field(default="assistant", repr=False)


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The answer to one tool call; `unknown` means that the call was interrupted while running.

    `media` contains images and documents that the model sees after the text. `refused` means that
    the provider rejected the answer, so later requests send a note instead.
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
        """Returns the message in the format of Chat Completions."""
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.content}


@dataclass(frozen=True, slots=True)
class ToolsAdded:
    """These tools are available as of this message."""

    tools: tuple[StoredToolSpec, ...]
    text: ClassVar[str] = ""
    kind: Literal["tools_added"] = field(default="tools_added", repr=False)


@dataclass(frozen=True, slots=True)
class ToolsRemoved:
    """The tools with these names are no longer available as of this message."""

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
    """Returns the message, marked as rejected by the provider or with that mark removed."""
    if isinstance(message, Instructions | UserMessage | ToolMessage):
        return replace(message, refused=by_provider)
    return message


def keep_media[M: Message](message: M, store: ContentStore) -> M:
    """Moves a message's media bytes to the store; returns the message with references to them."""
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
    """Returns the tools by name, after applying the tool changes among `messages`."""
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
    """Yields each call with its answer, in the order of the answers, even if ids are repeated."""
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
    """The outcome of one tool call, and its changes to the conversation's tools.

    A call that read a section adds the section's tools, `expanded_tools`. `opened` contains the
    paths of the sections that open with these tools, and `shown` the sections in the answer. A call
    that closed the section at `closed` removes the tools named in `closed_tools`. `request` asks
    for sections that only a new evaluation can open. `error` is the class name of the exception
    that made the call fail.
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
    """Returns content without lone surrogates in its texts."""
    if isinstance(content, str):
        return sendable(content)
    return tuple([sendable(part) if isinstance(part, str) else part for part in content])


def unwrap_arguments(text: str) -> str:
    """Returns a call's arguments, decoded once if the model or the server encoded them twice.

    Missing arguments (an empty string or null) become an empty object.
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
    """Returns `answer` without lone surrogates; returns the same object if there are none."""
    calls = [ToolCall(*map(sendable, astuple(call))) for call in answer.tool_calls]
    citations = [
        replace(
            item,
            url=sendable(item.url),
            title=sendable(item.title),
            source=sendable(item.source),
            quote=sendable(item.quote),
        )
        for item in answer.citations
    ]
    sent = replace(
        answer,
        text=sendable(answer.text),
        tool_calls=tuple(calls),
        reasoning=sendable(answer.reasoning),
        citations=tuple(citations),
    )
    return answer if sent == answer else sent
