"""Conversations with every fault that models and servers are known to make, drawn from a seed.

The model's messages are replies in a provider's format, read by that provider's codec. The engine
adds the rest: results, calls that a limit stopped, changed tools and sections, and repairs.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from weakincentives.adapters.anthropic.codec import MessagesCodec, MessagesOptions
from weakincentives.adapters.chat_completions import ChatCodec
from weakincentives.adapters.codec import Codec, CodecOptions, decode_reply
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.adapters.server_profile import ServerProfile
from weakincentives.content import Image
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    without_surrogates,
)
from weakincentives.evaluation.schemas import ToolSpec

__all__ = ["FORMATS", "chat_codec", "conversation", "messages_codec", "responses_codec"]

# Any throughout: replies and arguments of any shape.

TEXTS = (
    "",
    " \n",
    "Hello.",
    "<think>Hm.</think>\nHello.",
    "<think>Hm.",
    "日本語 🙂",
    "a\ud800b",
    "nul\0",
    '{"a": 1}',
    "x" * 300,
)
IDS = ("c1", "c1", "functions.probe:0", "call_2_0", "c00000001", "", None, 7, "a b", "i" * 90, "é")
NAMES = ("probe", "late", "", None, "functions.probe<|channel|>x", "n" * 90, "mcp.tool", "ñ\0")
ARGUMENTS = (
    *('{"a": 1}', "{}", "", " ", "null", None, "{", '{"a": "He said "hi""}', "[]", "5", "NaN"),
    *('{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud83d"}', '"{\\"a\\": 1}"', '"text"', '"', '""'),
    *({"a": 1}, '{"a": "\\u0000"}', '{"a": "\n"}', json.dumps(json.dumps('{"a": 1}'))),
)
IMAGE = Image.from_url("https://example.com/a.png", "image/png")


def _spec(name: str) -> ToolSpec:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    return ToolSpec(name, "For tests.", schema)


def chat_codec(**profile: Any) -> Codec:
    """Returns a codec for Chat Completions and a server with this profile."""
    options = CodecOptions(
        model="m", changes_role="user", origin="here", profile=ServerProfile(**profile)
    )
    return ChatCodec(options, "openai")


def responses_codec(**extra: Any) -> Codec:
    """Returns a codec for Responses; `extra` is added to every request."""
    return ResponsesCodec(CodecOptions(model="m", extra=extra), "openai")


def messages_codec() -> Codec:
    """Returns a codec for Messages."""
    options = MessagesOptions(
        model="m", max_tokens=9, tool_changes="list", strict_tools=False, cache="5m"
    )
    return MessagesCodec(options, "anthropic")


def _chat_reply(random: Random) -> Any:
    calls = []
    for _ in range(random.choice((0, 0, 1, 2, 3))):
        function = {"name": random.choice(NAMES), "arguments": random.choice(ARGUMENTS)}
        calls.append({"id": random.choice(IDS), "type": "function", "function": function})
        if random.random() < 0.2:
            del calls[-1]["type"]
    message: dict[str, Any] = {"role": "assistant", "content": random.choice((*TEXTS, None))}
    if random.random() < 0.1:
        message["content"] = [{"type": "text", "text": random.choice(TEXTS)}]
    if calls:
        message["tool_calls"] = calls
    if random.random() < 0.3:
        message[random.choice(("reasoning", "reasoning_content"))] = random.choice(TEXTS)
    if random.random() < 0.1:
        message["refusal"] = random.choice(TEXTS)
    finish = random.choice(("stop", "tool_calls", "length", "content_filter"))
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def _responses_reply(random: Random) -> Any:
    items: list[Any] = []
    for _ in range(random.randint(0, 4)):
        item_id = random.choice(("i1", "i2", f"i{random.random()}", None))
        match random.choice(("reasoning", "message", "function_call", "web_search_call")):
            case "reasoning":
                content = random.choice((None, "xyz"))
                items.append({"type": "reasoning", "summary": [], "encrypted_content": content})
            case "message":
                part = random.choice(
                    (
                        {"type": "output_text", "text": random.choice((*TEXTS, None))},
                        {"type": "refusal", "refusal": random.choice(TEXTS)},
                    )
                )
                items.append({"type": "message", "role": "assistant", "content": [part]})
            case "function_call":
                call = {"name": random.choice(NAMES), "arguments": random.choice(ARGUMENTS)}
                items.append({"type": "function_call", "call_id": random.choice(IDS), **call})
            case kind:
                items.append({"type": kind, "status": "completed"})
        items[-1]["id"] = item_id
    reply: dict[str, Any] = {"status": "completed", "output": items}
    if random.random() < 0.3:
        reason = random.choice(("max_output_tokens", "content_filter"))
        reply |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    return reply


def _messages_reply(random: Random) -> Any:
    blocks: list[Any] = []
    for _ in range(random.randint(0, 4)):
        match random.choice(("text", "thinking", "redacted_thinking", "tool_use")):
            case "text":
                blocks.append({"type": "text", "text": random.choice(TEXTS)})
            case "thinking":
                signature = random.choice(("", "sig"))
                blocks.append({"type": "thinking", "thinking": "hm", "signature": signature})
            case "redacted_thinking":
                blocks.append({"type": "redacted_thinking", "data": "x"})
            case _:
                call = {"name": random.choice(NAMES), "input": random.choice(ARGUMENTS)}
                blocks.append({"type": "tool_use", "id": random.choice(IDS), **call})
    reason = random.choice(("end_turn", "tool_use", "max_tokens", "refusal", "pause_turn"))
    if reason == "pause_turn":  # one of the provider's own tools takes long
        blocks = [block for block in blocks if block["type"] != "tool_use"]
        blocks.append({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}})
        blocks = blocks if random.random() < 0.9 else []
    return {"content": blocks, "stop_reason": reason}


FORMATS: dict[str, tuple[Callable[[], Codec], Callable[[Random], Any]]] = {
    "chat": (chat_codec, _chat_reply),
    "responses": (responses_codec, _responses_reply),
    "messages": (messages_codec, _messages_reply),
}


def _answer(random: Random, usual: str) -> AssistantMessage | None:
    """Returns a model's message, usually in one format, or `None` for a malformed reply."""
    name = usual if random.random() < 0.7 else random.choice([*FORMATS, "neutral"])
    if name == "neutral":
        calls = tuple(
            ToolCall(f"n{number}", random.choice(NAMES) or "", "{}")
            for number in range(random.choice((0, 1, 2)))
        )
        answer = AssistantMessage(text=random.choice(TEXTS), tool_calls=calls)
    else:
        codec, reply = FORMATS[name]
        try:
            answer = decode_reply(codec(), reply(random))
        except PromptEvaluationError:
            return None
    return without_surrogates(answer)


def _results(random: Random, answer: AssistantMessage) -> list[Message]:
    """Returns the answers to the calls, some of which a limit may have stopped."""
    ended = answer.finish in ("length", "content_filter", "refusal")
    results: list[Message] = []
    for call in answer.tool_calls:
        ended |= random.random() < 0.1
        result = ToolMessage(
            call.call_id,
            "Not run." if ended else random.choice(("", " ", "ok", "nul\0", "x" * 300)),
            success=not ended and random.random() < 0.8,
            media=(IMAGE,) if not ended and random.random() < 0.2 else (),
            refused=random.random() < 0.05,
        )
        results.append(result)
    if random.random() < 0.2:
        results.append(random.choice((ToolsAdded((_spec("late"),)), ToolsRemoved(("late",)))))
    return results


def _next(random: Random) -> list[Message]:
    """Returns the messages with which a conversation continues."""
    said: list[Message] = []
    if random.random() < 0.2:
        said.append(Instructions(random.choice(("Changed.", " ")), (IMAGE,), refused=True))
    if random.random() < 0.2:
        said.append(UserMessage("Rejected.", refused=True))
    content = random.choice(("Hi.", "", " \n", ("See:", IMAGE), (IMAGE, " "), ("", " ")))
    return [*said, UserMessage(content, repair=random.random() < 0.2)]


def conversation(seed: int, usual: str) -> list[list[Message]]:
    """Returns the messages added by each request; most replies have the format `usual`."""
    random = Random(seed)  # noqa: S311 - to reproduce the conversation
    first: list[Message] = [UserMessage(random.choice(("Go.", "", ("See:", IMAGE))))]
    if random.random() < 0.6:
        first = [Instructions(random.choice(("Help.", ""))), *_next(random)]
    steps = [first]
    for _ in range(random.randint(1, 6)):
        answer = _answer(random, usual)
        if answer is None:  # the run ends with an error, and the user writes again
            steps[-1] += _next(random)
            continue
        added: list[Message] = [answer, *_results(random, answer)]
        stops = not answer.tool_calls or answer.finish != "tool_calls" or random.random() < 0.2
        if stops and not (answer.finish == "pause" and random.random() < 0.5):
            added += _next(random) if random.random() < 0.9 else []
        steps.append(added)
    return [_stored(step) for step in steps] if random.random() < 0.2 else steps


def _stored(messages: list[Message]) -> list[Message]:
    """Returns the messages after a conversation with them was saved and loaded."""
    whole = Conversation(ns="t", key="t", messages=(UserMessage("first"), *messages))
    whole = replace(whole.extended(()), tool_changes=())
    positions = [
        n for n, m in enumerate(whole.messages) if isinstance(m, ToolsAdded | ToolsRemoved)
    ]
    loaded = Conversation.from_json(replace(whole, tool_changes=tuple(positions)).to_json())
    return list(loaded.messages[1:])
