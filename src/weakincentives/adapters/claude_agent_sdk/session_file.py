"""Writes an earlier conversation as a session that the CLI can resume.

The CLI stores sessions in files with one line of JSON for each message, and can resume the file at
a given path. The file contains texts, calls and results, but no reasoning: its signature is valid
only after exactly the messages that the model saw, and the CLI adds its own text to these.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

from ...content import Media, Part
from ...evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ..codec import AnyJson, JsonObject
from ..valid_messages import GO_ON, ValidMessages

__all__ = ["EncodeMedia", "count_earlier", "encode_new", "media_message", "write_session"]

type EncodeMedia = Callable[[Media], JsonObject]
"""Encodes an image or a document as a content block, or raises `PromptEvaluationError`."""

_NO_ID = "(?!)"  # matches nothing
_STARTED = "2026-01-01T00:00:00.000Z"  # the CLI requires a time, but does not send it to the model


def count_earlier(transcript: Sequence[Message]) -> int:
    """Counts the messages up to the model's last one, including the results of its calls."""
    for index in range(len(transcript) - 1, -1, -1):
        if isinstance(transcript[index], AssistantMessage | ToolMessage):
            return index + 1
    return 0


def media_message(instructions: Instructions) -> list[Message]:
    """Returns the media in `instructions` as a user message; CLI instructions can only be text."""
    parts = _with_markers(instructions)
    return [UserMessage(parts)] if parts else []


def encode_new(messages: Sequence[Message], encode_media: EncodeMedia) -> str | list[JsonObject]:
    """Returns the content of a user message: changed instructions and the user's texts.

    The CLI has its own way, which Claude models know, to mark text that is not the user's. It sends
    a request only if there is a message, so this function always returns one.
    """
    blocks = [block for message in messages for block in _blocks_of(message, encode_media)]
    return _content_of(blocks or [_text_block(_remind(GO_ON))])


def write_session(
    path: Path,
    messages: Sequence[Message],
    encode_call: Callable[[ToolCall], JsonObject],
    encode_media: EncodeMedia,
) -> None:
    """Writes messages to a file that the CLI can resume; `encode_call` encodes a call."""
    session, parent = path.stem, None
    lines: list[str] = []
    for message in _encode(messages, encode_call, encode_media):
        entry = {
            "type": message["role"],
            "message": message,
            "uuid": str(uuid4()),
            "parentUuid": parent,
            "sessionId": session,
            "isSidechain": False,
            "timestamp": _STARTED,
        }
        parent = entry["uuid"]
        lines.append(json.dumps(entry))
    path.write_text("\n".join([*lines, ""]))


def _encode(
    messages: Sequence[Message],
    encode_call: Callable[[ToolCall], JsonObject],
    encode_media: EncodeMedia,
) -> list[JsonObject]:
    """Encodes messages in the format of the Messages API."""
    encoded: list[JsonObject] = []
    # Assign new ids, because the CLI would mistake a later call with the same id for an answered
    # one.
    for message in ValidMessages(call_ids=_NO_ID).read(messages, to_be_sent=False):
        match message:
            case AssistantMessage(text=text, tool_calls=calls):
                blocks: list[AnyJson] = [_text_block(text)] if text else []
                blocks += [
                    {"type": "tool_use", "id": call.call_id, **encode_call(call)} for call in calls
                ]
                encoded.append({"role": "assistant", "content": blocks})
            case ToolMessage(call_id, content, success, media=media):
                shown = [encode_media(item) for item in media] if success else []
                answer = {
                    "type": "tool_result",
                    "tool_use_id": call_id,
                    "content": [_text_block(content), *shown] if shown else content,
                    "is_error": not success,
                }
                encoded.append({"role": "user", "content": [answer]})
            case _:
                if blocks := _blocks_of(message, encode_media):
                    encoded.append({"role": "user", "content": _content_of(blocks)})
    return encoded


def _blocks_of(message: Message, encode_media: EncodeMedia) -> list[JsonObject]:
    """Returns the user's message, or changes to the instructions, as content blocks."""
    match message:
        case UserMessage(str() as content):
            parts: Sequence[Part] = [content]
        case UserMessage(parts):
            pass
        case Instructions(content):
            parts = [_remind(content), *_with_markers(message)]
        case _:
            parts = []
    return [
        _text_block(part) if isinstance(part, str) else encode_media(part)
        for part in parts
        if part != ""
    ]


def _with_markers(instructions: Instructions) -> tuple[Part, ...]:
    return tuple([part for item in instructions.media for part in (str(item), item)])


def _text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _content_of(blocks: list[JsonObject]) -> str | list[JsonObject]:
    """Converts blocks to message content; a single text becomes a string."""
    match blocks:
        case [{"type": "text", "text": str() as text}]:
            return text
        case _:
            return blocks


def _remind(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"
