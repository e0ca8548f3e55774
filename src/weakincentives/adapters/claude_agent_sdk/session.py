"""An earlier conversation as a session of the CLI, which the CLI resumes.

The CLI holds its sessions in files, one JSON line for each message, and resumes the file at a path.
Text, calls and answers go into the file. Reasoning does not: its signature is valid only after the
messages that the model has seen, and the CLI adds words of its own to these.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

from ...content import MediaSupport, text_of
from ...evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
    media_of,
)
from ..codec import AnyJson, Wire
from ..provider_errors import error_from_request

__all__ = ["count_earlier", "encode_new", "write_session"]

_GO_ON = "Go on."
_STARTED = "2026-01-01T00:00:00.000Z"  # the CLI reads a time, and does not show it to the model


def count_earlier(transcript: Sequence[Message]) -> int:
    """Returns the number of messages up to the model's last one and the answers to its calls."""
    for index in range(len(transcript) - 1, -1, -1):
        if isinstance(transcript[index], AssistantMessage | ToolMessage):
            return index + 1
    return 0


def encode_new(messages: Sequence[Message]) -> str | list[Wire]:
    """Returns the content of a message of the user: changed instructions and the user's words.

    The CLI has a form of its own for words that are not the user's, which Claude models know. It
    asks the model for nothing without a message, so there is always one.
    """
    texts = [_text_of(message) for message in messages]
    texts = [text for text in texts if text] or [_remind(_GO_ON)]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def write_session(
    path: Path, messages: Sequence[Message], encode_call: Callable[[ToolCall], Wire]
) -> None:
    """Writes messages to a file that the CLI can resume; `encode_call` writes name and input."""
    session, parent = path.stem, None
    lines: list[str] = []
    for message in _encode(messages, encode_call):
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


def _encode(messages: Sequence[Message], encode_call: Callable[[ToolCall], Wire]) -> list[Wire]:
    """Returns messages of the Messages API, with new ids: providers differ in what an id may be."""
    encoded: list[Wire] = []
    ids: dict[str, str] = {}
    count = 0
    for message in messages:
        match message:
            case AssistantMessage(text=text, tool_calls=calls):
                blocks: list[AnyJson] = [{"type": "text", "text": text}] if text else []
                for call in calls:
                    count += 1
                    ids[call.call_id] = f"earlier{count}"
                    blocks.append(
                        {"type": "tool_use", "id": ids[call.call_id], **encode_call(call)}
                    )
                if blocks:
                    encoded.append({"role": "assistant", "content": blocks})
            case ToolMessage(call_id, content, success):
                answer = {
                    "type": "tool_result",
                    "tool_use_id": ids[call_id],
                    "content": content,
                    "is_error": not success,
                }
                encoded.append({"role": "user", "content": [answer]})
            case _:
                if text := _text_of(message):
                    encoded.append({"role": "user", "content": text})
    return encoded


def _text_of(message: Message) -> str:
    if media := media_of(message):
        problem = MediaSupport().problem(media[0])
        raise error_from_request("claude_agent_sdk", "content", f"{media[0]}: {problem}")
    match message:
        case UserMessage(content):
            return text_of(content)
        case Instructions(content):
            return _remind(content)
        case _:
            return ""


def _remind(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"
