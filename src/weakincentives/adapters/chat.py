"""The Chat Completions codec: what OpenAI and most compatible servers (llama.cpp, vLLM, Ollama, …) speak."""

from typing import Any

from .codec import Codec, Wire, call_of, malformed, provider_failed, usage_of
from .tool_spec import OutputSpec, ToolSpec
from .transcript import AssistantMessage, Finish, ToolCall, ToolMessage

__all__ = ["ChatCodec"]

_USAGE = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
_FINISH: dict[str, Finish] = {"length": "length", "content_filter": "content_filter"}  # else as its calls say


class ChatCodec(Codec):
    """One conversation as Chat Completions messages."""

    streaming = {"stream": True, "stream_options": {"include_usage": True}}  # noqa: RUF012 - never changed

    def text_of(self, event: Any) -> str:  # Any: as in `decode`
        match event:
            case {"choices": [{"delta": {"content": content}}, *_]}:
                return _text(content)
            case _:
                return ""

    def joined(self, events: list[Any]) -> object:  # Any: as in `decode`
        message: Wire = {}
        choice: Wire = {}
        usage: object = None
        for event in events:
            match event:
                case {"choices": [{"delta": dict() as delta, **rest}, *_]}:
                    message = _joined(message, delta)
                    choice |= {f"{key}": value for key, value in rest.items() if value is not None}
                case _:
                    pass
            usage = event.get("usage") or usage
        for items in message.values():
            for item in items if isinstance(items, list) else ():
                item.pop("index", None)  # which is of pieces alone
        return {"choices": [{"message": message, **choice}], "usage": usage} if "finish_reason" in choice else None

    def decode(self, reply: Any) -> AssistantMessage:  # Any: read key by key, each checked where it matters
        """The first choice of a reply."""
        match reply:
            case {"error": {"message": said}} | {"choices": [{"error": {"message": said}}, *_]}:
                raise provider_failed(self.provider, said)  # some gateways report a failure with status 200
            case {"choices": [{"message": dict() as message, **choice}, *_]}:
                pass
            case _:
                raise malformed(self.provider, "no choices with a message")
        wire: Wire = {key: value for key, value in message.items() if value not in (None, "", [])}
        wire.setdefault("role", "assistant")
        calls: list[ToolCall] = []
        for index, item in enumerate(wire.get("tool_calls", ())):
            match item:
                case {"function": {"name": name, **function}}:
                    fallback = f"call_{len(self.items)}_{index}"
                    call = call_of(item.get("id"), name, function.get("arguments"), fallback_id=fallback)
                    item["id"] = call.call_id
                    calls.append(call)
                case _:
                    raise malformed(self.provider, "a tool call without a function")
        refusal = _text(message.get("refusal"))
        finish = _FINISH.get(str(choice.get("finish_reason")), "tool_calls" if calls else "stop")
        return AssistantMessage(
            text=refusal or _text(message.get("content")),
            tool_calls=tuple(calls),
            finish="refusal" if refusal else finish,
            usage=usage_of(reply.get("usage"), _USAGE),
            wire=(wire,),
        )

    def body(self, output: OutputSpec | None) -> Wire:
        if output is None:
            return {"messages": self.items}
        wanted = {"type": "json_schema", "json_schema": output.as_dict()}
        return {"messages": self.items, "response_format": wanted}

    def tool(self, spec: ToolSpec) -> Wire:
        return {"type": "function", "function": spec.as_dict()}

    def assistant(self, message: AssistantMessage) -> list[Wire]:
        """The provider's own message where we have it: it may hold fields that must come back."""
        for wire in message.wire:
            if isinstance(wire, dict) and wire.get("role") == "assistant":
                return [wire if "content" in wire or "tool_calls" in wire else {**wire, "content": ""}]
        calls = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        return [{"role": "assistant", "content": message.text, **({"tool_calls": calls} if calls else {})}]

    def answer(self, message: ToolMessage) -> Wire:
        return dict(message.as_dict())


_WHOLE = frozenset({"id", "name", "role", "type"})  # not in pieces, though some servers repeat them


def _joined(old: Wire, delta: Wire) -> Wire:
    """`old` with what `delta` adds: text to text, and to the items of lists by their `index`."""
    new = dict(old)
    for key, piece in delta.items():
        match old.get(key), piece:
            case (_, None) | (str(), ""):
                pass
            case str() as before, str() if key not in _WHOLE:
                new[key] = before + piece
            case dict() as before, dict():
                new[key] = _joined(before, piece)
            case before, list():
                new[key] = _items(before or [], piece)
            case _:
                new[key] = piece
    return new


def _items(old: list[Any], pieces: list[Any]) -> list[Any]:  # Any: as the server has them
    new = list(old)
    for place, piece in enumerate(pieces):
        same = [at for at, one in enumerate(new) if one.get("index", at) == piece.get("index", place)]
        if same and not _begins(piece, new[same[-1]].get("id")):
            new[same[-1]] = _joined(new[same[-1]], piece)
        else:
            new.append(piece)
    return new


def _begins(piece: Any, before: object) -> bool:
    """Whether a call begins although its index was there `before`, with an id: some servers give all calls the same."""
    return bool(before and piece.get("id") not in (None, "", before) and (piece.get("function") or {}).get("name"))


def _text(content: Any) -> str:  # Any: a text, null, or from some servers a list of parts
    """The text that `content` holds."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
