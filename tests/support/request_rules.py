"""Validators for requests: the rules of Chat Completions, Responses and Messages.

They follow each API's documentation, and public reports about compatible servers (Mistral, Groq,
Kimi, MiniMax, Gemma on vLLM). Each validator raises `AssertionError` with the rule that a body
breaks. `provider_rules` has the validators for tool schemas.
"""

import json
import re
from collections import Counter
from typing import Any

__all__ = ["check_chat", "check_messages", "check_responses"]

# Any: requests are read key by key.
type Body = dict[str, Any]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CHAT_FIELDS = {"role", "content", "tool_calls"}
REASONING_FIELDS = {"reasoning", "reasoning_content"}


def check_chat(
    body: Body,
    *,
    call_ids: str = "(?s:.+)",
    reasoning: bool = True,
    reasoning_field: str = "",
    blank_reasoning: bool = False,
    user_after_tool: bool = False,
    alternating_roles: bool = True,
    named_results: bool = False,
    media_in_results: bool = False,
) -> None:
    """Fails for messages that a strict server rejects: roles alternate, and no text is blank.

    Call ids must match `call_ids`. Without `reasoning`, the model's messages may have only the
    documented fields.
    If `reasoning_field` is given, a message with calls must have that field, which can be blank
    only with `blank_reasoning`.
    """
    _check_json(body)
    messages = body["messages"]
    assert messages, "no message"
    while messages and messages[0]["role"] in ("system", "developer"):
        assert messages[0]["content"].strip(), "blank system message"
        messages = messages[1:]
    assert messages, "no message of the user"
    before, waiting, seen = "system", list[str](), set[str]()
    names: dict[str, str] = {}
    for message in messages:
        role = message["role"]
        if role == "tool":
            assert message["tool_call_id"] in waiting, "a result without a call"
            waiting.remove(message["tool_call_id"])
            is_text = isinstance(message["content"], str)
            assert is_text or media_in_results, "a result is not a text"
            _check_content(message["content"])
            name = names[message["tool_call_id"]] if named_results else None
            assert message.get("name") == name, "the name of a result"
        else:
            assert not waiting, f"calls without results: {waiting}"
        if role == "user":
            allowed = {"system", "assistant"} | ({"tool"} if user_after_tool else set())
            allowed |= set() if alternating_roles else {"user"}
            assert before in allowed, f"role user after {before}"
            _check_content(message["content"])
        elif role == "assistant":
            assert before in ("user", "tool"), f"role assistant after {before}"
            calls = message.get("tool_calls", [])
            assert calls or "content" in message, "the message must not be empty"
            assert calls or "tool_calls" not in message, "tool_calls must not be empty"
            if "content" in message:
                _check_content(message["content"])
            assert reasoning or message.keys() <= CHAT_FIELDS, f"unsupported: {[*message]}"
            if reasoning_field:
                thought = message[reasoning_field] if calls else "any"
                assert blank_reasoning or thought.strip(), "reasoning is missing"
                assert not REASONING_FIELDS - {reasoning_field} & message.keys(), [*message]
            for call in calls:
                assert call["type"] == "function"
                assert call["id"] not in seen, "duplicate id of a call"
                assert re.fullmatch(call_ids, call["id"]), call["id"]
                _check_call(call["function"]["name"], call["function"]["arguments"])
                names[call["id"]] = call["function"]["name"]
                seen.add(call["id"])
                waiting.append(call["id"])
        else:
            assert role == "tool", f"role {role} after the beginning"
        before = role
    assert not waiting, f"calls without results: {waiting}"
    assert before != "assistant", "the last message must be of the user or a tool"


def check_responses(body: Body, *, stored: bool = True) -> None:
    """Fails for input items that the Responses API rejects; `stored` if it keeps answers."""
    _check_json(body)
    items = body["input"]
    assert items, "no input"
    ids = Counter(item["id"] for item in items if "id" in item)
    assert all(isinstance(item_id, str) for item_id in ids), "an id is not a string"
    assert not ids or ids.most_common(1)[0][1] == 1, f"duplicate item {ids.most_common(1)}"
    waiting, seen = list[str](), set[str]()
    for item, after in zip(items, [*items[1:], {}], strict=True):
        kind = item.get("type", "message")
        if item.get("role") in ("user", "developer", "system"):
            assert not waiting, f"calls without outputs: {waiting}"
        match kind:
            case "message":
                assert item["role"] in ("user", "assistant", "developer", "system")
                _check_content(item["content"])
            case "reasoning":
                is_output = after.get("type") == "function_call_output"
                is_models = "type" in after or after.get("role") == "assistant"
                assert is_models, "reasoning without its following item"
                assert not is_output, "reasoning without its following item"
                assert isinstance(item["id"], str), "reasoning without an id"
                assert stored or item.get("encrypted_content"), "item not found"
            case "function_call":
                assert 1 <= len(item["call_id"]) <= 64, "length of call_id"
                assert item["call_id"] not in seen, "duplicate call_id"
                _check_call(item["name"], item["arguments"])
                seen.add(item["call_id"])
                waiting.append(item["call_id"])
            case "function_call_output":
                assert item["call_id"] in waiting, "an output without a call"
                waiting.remove(item["call_id"])
                assert item["output"], "an empty output"
                if isinstance(item["output"], list):
                    _check_content(item["output"])
            case _:
                pass
    assert not waiting, f"calls without outputs: {waiting}"
    last = items[-1]
    assert last.get("role") != "assistant", "the last item is the model's"


def check_messages(body: Body) -> None:
    """Fails for messages that Anthropic's Messages API rejects."""
    _check_json(body)
    if "system" in body:
        _check_content(body["system"])
    messages = body["messages"]
    assert messages, "messages: at least one message is required"
    assert messages[0]["role"] == "user", "the first message must be of the user"
    seen, waiting, before, paused = set[str](), list[str](), "", False
    for message in messages:
        role, blocks = message["role"], message["content"]
        assert blocks, "content must be non-empty"
        assert role in ("user", "assistant")
        assert role != before or paused, f"two messages of {role}"
        paused = role == "assistant" and blocks[-1]["type"] == "server_tool_use"
        results = [block for block in blocks if block["type"] == "tool_result"]
        assert blocks[: len(results)] == results, "results must come first"
        if role == "user":
            assert sorted(block["tool_use_id"] for block in results) == sorted(waiting)
            waiting = []
        else:
            assert not results
            assert not waiting, "uses without results"
            thinking = ("thinking", "redacted_thinking")
            assert blocks[-1]["type"] not in thinking, "the final block cannot be thinking"
        for block in blocks:
            match block["type"]:
                case "text":
                    assert block["text"].strip(), "text must contain non-whitespace text"
                case "thinking":
                    assert block["signature"], "signature: field required"
                case "tool_use":
                    assert block["id"] not in seen, "`tool_use` ids must be unique"
                    assert re.fullmatch("[a-zA-Z0-9_-]+", block["id"]), block["id"]
                    assert NAME.fullmatch(block["name"]), block["name"]
                    assert isinstance(block["input"], dict), "input must be a dictionary"
                    seen.add(block["id"])
                    waiting.append(block["id"])
                case "tool_result" if block.get("is_error"):
                    assert block["content"].strip(), "content cannot be empty if is_error is true"
                case _:
                    pass
        before = role
    assert before == "user" or paused, "prefilling is not supported"


def _check_json(body: Body) -> None:
    """Fails for values that requests cannot contain: NaN and lone surrogates."""
    json.dumps(body, allow_nan=False, ensure_ascii=False).encode()


def _check_content(content: object) -> None:
    if isinstance(content, str):
        assert content.strip(), "blank text"
        return
    assert isinstance(content, list), "content is neither text nor parts"
    assert content, "empty content"
    for part in content:
        assert part.get("text", "x").strip(), "blank text"


def _check_call(name: str, arguments: str) -> None:
    assert NAME.fullmatch(name), f"name {name!r} does not match the pattern"

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in arguments")

    assert isinstance(json.loads(arguments, parse_constant=refuse), dict), arguments
