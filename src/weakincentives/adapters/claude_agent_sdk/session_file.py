"""An earlier conversation as a session of the CLI, which the CLI resumes.

The CLI holds its sessions in files, one JSON line for each message, and resumes the file at a path.
Text, calls and answers go into the file. Reasoning does not: its signature is valid only after the
messages that the model has seen, and the CLI adds words of its own to these.
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
from ..codec import AnyJson, Wire
from ..valid_messages import GO_ON, ValidMessages

__all__ = ["EncodeMedia", "count_earlier", "encode_new", "media_message", "write_session"]

type EncodeMedia = Callable[[Media], Wire]
"""Returns the block of an image or a document; raises `PromptEvaluationError` without one."""

_NO_ID = "(?!)"  # matches nothing
_STARTED = "2026-01-01T00:00:00.000Z"  # the CLI reads a time, and does not show it to the model


def count_earlier(transcript: Sequence[Message]) -> int:
    """Returns the number of messages up to the model's last one and the answers to its calls."""
    for index in range(len(transcript) - 1, -1, -1):
        if isinstance(transcript[index], AssistantMessage | ToolMessage):
            return index + 1
    return 0


def media_message(instructions: Instructions) -> list[Message]:
    """Returns the user's message with the media of instructions, which hold text alone."""
    parts = _with_markers(instructions)
    return [UserMessage(parts)] if parts else []


def encode_new(messages: Sequence[Message], encode_media: EncodeMedia) -> str | list[Wire]:
    """Returns the content of a message of the user: changed instructions and what the user says.

    The CLI has a form of its own for words that are not the user's, which Claude models know. It
    asks the model for nothing without a message, so there is always one.
    """
    blocks = [block for message in messages for block in _blocks_of(message, encode_media)]
    return _content_of(blocks or [_text_block(_remind(GO_ON))])


def write_session(
    path: Path,
    messages: Sequence[Message],
    encode_call: Callable[[ToolCall], Wire],
    encode_media: EncodeMedia,
) -> None:
    """Writes messages to a file that the CLI can resume; `encode_call` writes name and input."""
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
    encode_call: Callable[[ToolCall], Wire],
    encode_media: EncodeMedia,
) -> list[Wire]:
    """Returns messages of the Messages API."""
    encoded: list[Wire] = []
    # With new ids: the CLI would take a later call of the same id for one that it has answered.
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


def _blocks_of(message: Message, encode_media: EncodeMedia) -> list[Wire]:
    """Returns what the user says, or what of the instructions has changed, in blocks."""
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


def _text_block(text: str) -> Wire:
    return {"type": "text", "text": text}


def _content_of(blocks: list[Wire]) -> str | list[Wire]:
    """Returns blocks as content, a single text as it is."""
    match blocks:
        case [{"type": "text", "text": str() as text}]:
            return text
        case _:
            return blocks


def _remind(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"
