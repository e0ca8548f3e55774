"""`Compaction` determines when `MainLoop` shortens a conversation, and which parts it keeps.

Providers reject requests that are too long. Before that happens, the loop rebuilds the conversation
from the prompt (`Conversation.restated`): open sections appear in their places, closed ones are
removed, the last turns are kept, and a summary can replace the older ones. `request_tokens`
measures a request, and `plan_compaction` chooses the part to remove.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from textwrap import shorten
from typing import assert_never

from ..content import Image, Media, text_of
from ..limits import check_count
from ..prompt.renderer import AnyRenderedPrompt
from ..prompt.template import AnyTemplate
from ..runtime.events import Compacted, EventIds
from .conversation import Conversation, rendered_tools
from .messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    answered_calls,
    media_of,
)
from .schemas import ToolSpec

__all__ = ["Compaction", "Plan", "plan_compaction", "request_tokens"]

_BYTES_PER_TOKEN = 4
_MEDIA_TOKENS = 1_600
_MIN_NOTE = 200  # characters, enough for the last call that the note lists
_MAX_NOTED = 100  # characters for a call and its answer
_NOTE = (
    "[The oldest tool calls of this turn were made and answered, and then removed to save space. "
    "The last of them are:]\n"
)
_SUMMARY = "[What was said before, in short:]\n\n"


@dataclass(frozen=True, slots=True)
class Compaction:
    """Determines when a conversation is shortened, and which parts are kept.

    `MainLoop` compacts a conversation before a request of more than `at_tokens` tokens, both
    between and within turns, and once when the provider rejects a request as too long. Set
    `at_tokens` well below the model's limit, because part of the count is an estimate.

    Compaction keeps at most the last `keep_turns` turns, or fewer if these need more than half of
    the tokens that remain of `at_tokens` after the prompt. The older turns are sent as text to an
    evaluation of `summary`, and its answer replaces them; without `summary`, they are dropped. If
    the last turn is too long on its own, its oldest tool calls and their answers are removed, and a
    note lists them.

    Raises `ValueError` for numbers below 1.
    """

    at_tokens: int
    keep_turns: int
    summary: AnyTemplate | None = None

    def __post_init__(self) -> None:
        for name, value in (("at_tokens", self.at_tokens), ("keep_turns", self.keep_turns)):
            check_count(name, value)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The part of a conversation that compaction removes.

    It consists of the turns before the last `kept_turns`, and of `dropped_calls` calls in the last
    turn, which are already missing from `conversation`. `tokens` is the size of the request before
    compaction, and `scale` is the number of tokens per estimated token. The summary's prompt
    receives the last `max_summarized` characters of the removed turns.
    """

    conversation: Conversation
    kept_turns: int
    dropped_calls: int
    tokens: int
    scale: float
    max_summarized: int

    @property
    def older(self) -> Sequence[Sequence[Message]]:
        """The turns to remove."""
        turns = self.conversation.turns
        return turns[: len(turns) - self.kept_turns]

    def older_text(self) -> str:
        """Returns the turns to remove as text, for the summary."""
        messages = [message for turn in self.older for message in turn]
        text = "\n\n".join(filter(None, map(_as_text, messages)))
        return text[-self.max_summarized :]

    def apply(self, rendered: AnyRenderedPrompt, summary: str) -> Conversation:
        """Returns the shorter conversation."""
        text = _SUMMARY + summary if summary else ""
        return self.conversation.restated(rendered, keep_turns=self.kept_turns, summary=text)

    def tokens_of(self, conversation: Conversation) -> int:
        """Estimates the number of tokens in a request with a restated conversation."""
        return round(_estimate(conversation.messages, conversation.tools) * self.scale)

    def event(self, shorter: Conversation, summary: str, ids: EventIds) -> Compacted:
        """Returns the event for a conversation that `apply` returned."""
        return Compacted(
            ns=shorter.ns,
            key=shorter.key,
            dropped_turns=len(self.older),
            dropped_calls=self.dropped_calls,
            tokens_before=self.tokens,
            tokens_after=self.tokens_of(shorter),
            summary=summary,
            **ids,
        )


def plan_compaction(
    compaction: Compaction, conversation: Conversation, rendered: AnyRenderedPrompt
) -> Plan | None:
    """Returns the part of `conversation` to remove; `None` if it cannot become shorter.

    The kept turns take at most half of the tokens that remain of `compaction.at_tokens` after the
    prompt, or half of their current size if a provider already reported that they are too long.
    """
    tokens = request_tokens(conversation.messages, conversation.tools)
    estimated = _estimate(conversation.messages, conversation.available_tools.values())
    scale = max(tokens, 1) / max(estimated, 1)
    prompt = _estimate([Instructions(rendered.text)], rendered_tools(rendered))
    remaining = space = (min(compaction.at_tokens, tokens) / scale - prompt) / 2
    turns, count = conversation.turns, 0
    for turn in reversed(turns[-compaction.keep_turns :]):
        size = _estimate(turn)
        if count and size > remaining:
            break
        remaining -= size
        count += 1
    dropped = 0
    if remaining < 0:  # the last turn is too long on its own
        max_note = max(round(space * _BYTES_PER_TOKEN / 4), _MIN_NOTE)
        last, dropped = _without_oldest_calls(turns[-1], -remaining, max_note)
        messages = [message for turn in (*turns[:-1], last) for message in turn]
        conversation = replace(
            conversation, messages=(conversation.messages[0], *messages), tool_changes=()
        )
    plan = Plan(
        conversation=conversation,
        kept_turns=count,
        dropped_calls=dropped,
        tokens=tokens,
        scale=scale,
        max_summarized=round(compaction.at_tokens / scale * _BYTES_PER_TOKEN / 2),
    )
    shorter = plan.older or dropped or plan.tokens_of(plan.apply(rendered, "")) < tokens * 0.9
    return plan if shorter else None


def request_tokens(messages: Sequence[Message], tools: Iterable[ToolSpec]) -> int:
    """Returns the number of tokens in a request with these messages.

    This is the provider's own count for the last answer, plus an estimate for the later messages.
    """
    later = 0
    for message in reversed(messages):
        if isinstance(message, AssistantMessage) and message.usage.total_tokens:
            return later + message.usage.total_tokens
        later += _estimate([message])
    return later + _estimate([], tools)


def _without_oldest_calls(
    turn: Sequence[Message], excess: float, max_note: int
) -> tuple[list[Message], int]:
    """Replaces a turn's oldest rounds of calls with a note; also returns the number of calls.

    The last round is kept, as is everything from the first call with an unknown outcome.
    """
    starts = [i for i, message in enumerate(turn) if isinstance(message, AssistantMessage)]
    excess += max_note / _BYTES_PER_TOKEN
    dropped: list[Message] = []
    for start, end in zip(starts, islice(starts, 1, None), strict=False):
        round_ = turn[start:end]
        if excess <= 0 or any(isinstance(m, ToolMessage) and m.unknown for m in round_):
            break
        excess -= _estimate(round_)
        dropped += round_
    if not dropped:
        return list(turn), 0
    notes: list[str] = []
    head: list[Message] = []
    for message in turn[: starts[0]]:
        text = text_of(message.content) if isinstance(message, UserMessage) else ""
        if text.startswith(_NOTE):
            notes += text.removeprefix(_NOTE).splitlines()
        else:
            head.append(message)
    calls = list(answered_calls(dropped))
    for call, answer in calls:
        line = f"- {call.name}({call.arguments:.{_MAX_NOTED}}): {answer.content}"
        notes.append(shorten(line, _MAX_NOTED, placeholder="…"))
    while sum(map(len, notes)) > max_note:
        del notes[0]
    note = UserMessage(_NOTE + "\n".join(notes), repair=True)
    return [*head, note, *turn[starts[0] + len(dropped) :]], len(calls)


def _as_text(message: Message) -> str:
    match message:
        case UserMessage(refused=True):
            return ""
        case UserMessage(content):
            return f"User: {text_of(content)}"
        case ToolMessage(content=content):
            return f"Tool: {content}"
        case AssistantMessage(text=text, tool_calls=calls):
            lines = [f"Assistant: {text}"] if text else []
            return "\n".join(lines + [f"Assistant calls {c.name}({c.arguments})" for c in calls])
        case Instructions() | ToolsAdded() | ToolsRemoved():
            return ""
        case never:
            assert_never(never)


def _estimate(messages: Iterable[Message], tools: Iterable[ToolSpec] = ()) -> int:
    """Estimates the number of tokens in messages and tools from their size in bytes.

    An image counts as 1,600 tokens, and a text document as text. Any other document counts as one
    token per 50 bytes, but at least 1,600: providers count pixels and pages, which the library does
    not know.
    """
    size = sum([_tool_bytes(tool) for tool in tools])
    for message in messages:
        if isinstance(message, UserMessage | ToolMessage) and message.refused:
            continue  # rejected messages are not sent
        size += sum([_media_tokens(media) * _BYTES_PER_TOKEN for media in media_of(message)])
        match message:
            case Instructions(content) | ToolMessage(content=content):
                size += _bytes(content)
            case UserMessage(content):
                size += _bytes(text_of(content))
            case AssistantMessage(text=text, tool_calls=calls):
                size += _bytes(text)
                size += sum([_bytes(call.name) + _bytes(call.arguments) for call in calls])
            case ToolsAdded(added):
                size += sum([_tool_bytes(tool) for tool in added])
            case ToolsRemoved():
                pass
            case never:
                assert_never(never)
    return -(-size // _BYTES_PER_TOKEN)


def _media_tokens(media: Media) -> int:
    if media.mime.startswith("text/"):
        return media.size // _BYTES_PER_TOKEN
    return _MEDIA_TOKENS if isinstance(media, Image) else max(_MEDIA_TOKENS, media.size // 50)


def _tool_bytes(tool: ToolSpec) -> int:
    return _bytes(tool.name + tool.description) + len(json.dumps(tool.parameters))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
