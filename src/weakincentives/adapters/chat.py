"""The Chat Completions codec: what OpenAI and most compatible servers (llama.cpp, vLLM, Ollama, …)
speak.
"""

from io import StringIO
from operator import itemgetter
from typing import Any

from ..evaluation.messages import AssistantMessage, Finish, ToolCall, ToolMessage
from ..evaluation.schemas import OutputSpec, ToolSpec
from .codec import Codec, Wire, call_of, malformed, provider_failed, usage_of

__all__ = ["ChatCodec"]

_USAGE = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
# else as its calls say
_FINISH: dict[str, Finish] = {"length": "length", "content_filter": "content_filter"}


class ChatCodec(Codec):
    """One conversation as Chat Completions messages."""

    streaming = {"stream": True, "stream_options": {"include_usage": True}}  # noqa: RUF012 - never changed

    def text_of(self, event: Any) -> str:  # Any: as in `decode`
        return "".join([_text(delta.get("content")) for delta, _ in _pieces(event)])

    def joined(self, events: list[Any]) -> object:  # Any: as in `decode`
        message: Wire = {}
        choice: Wire = {}
        usage: object = None
        for event in events:
            for delta, rest in _pieces(event):
                _add(message, delta)
                choice |= {key: value for key, value in rest.items() if value is not None}
            usage = event.get("usage") or usage
        if "finish_reason" not in choice:
            return None
        whole = {
            key: _in_order(value) if isinstance(value, list) else value
            for key, value in message.items()
        }
        return {"choices": [{"message": _written(whole), **choice}], "usage": usage}

    # Any: read key by key, each checked where it matters
    def decode(self, reply: Any) -> AssistantMessage:
        """The choice of a reply whose index is 0."""
        match reply, _choices(reply):
            case ({"error": {"message": said}}, _) | (_, [{"error": {"message": said}}, *_]):
                # some gateways report a failure with status 200
                raise provider_failed(self.provider, said)
            case _, [{"message": dict() as message, **choice}, *_]:
                pass
            case _:
                raise malformed(self.provider, "no choice of index 0 with a message")
        wire: Wire = {key: value for key, value in message.items() if value not in (None, "", [])}
        wire.setdefault("role", "assistant")
        calls: list[ToolCall] = []
        for index, item in enumerate(wire.get("tool_calls", ())):
            match item:
                case {"function": {"name": name, **function}}:
                    fallback = f"call_{len(self.items)}_{index}"
                    call = call_of(
                        item.get("id"), name, function.get("arguments"), fallback_id=fallback
                    )
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
                return [
                    wire if "content" in wire or "tool_calls" in wire else {**wire, "content": ""}
                ]
        calls = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
        return [
            {
                "role": "assistant",
                "content": message.text,
                **({"tool_calls": calls} if calls else {}),
            }
        ]

    def answer(self, message: ToolMessage) -> Wire:
        return dict(message.as_dict())


_WHOLE = frozenset({"id", "name", "role", "type"})  # not in pieces, though some servers repeat them


def _choices(reply: Any) -> list[Wire]:  # Any: a reply or an event of a stream, of whatever shape
    """The choices of index 0.

    Others come only where `options` ask for them by `n`; an index may be left out.
    """
    match reply:
        case {"choices": [*choices]}:
            return [
                one for one in choices if isinstance(one, dict) and one.get("index") in (0, None)
            ]
        case _:
            return []


def _pieces(event: Any) -> list[tuple[Wire, Wire]]:  # Any: as above
    """The deltas that an event of a stream brings for the choice of index 0, each with what stands
    beside it.
    """
    return [
        (choice["delta"], {key: value for key, value in choice.items() if key != "delta"})
        for choice in _choices(event)
        if isinstance(choice.get("delta"), dict)
    ]


def _add(whole: Wire, delta: Wire) -> None:
    """Adds `delta` to `whole`: text to text, and to the items of lists by their `index`.

    Texts are kept in buffers until all pieces are there; adding to a `str` each time would take
    quadratic time.
    """
    for key, piece in delta.items():
        match whole.get(key), piece:
            case _, None:
                whole.setdefault(key, None)
            case (StringIO() | str(), ""):
                pass
            case StringIO() as text, str():
                text.write(piece)
            case None, str() if key not in _WHOLE:
                whole[key] = text = StringIO()
                text.write(piece)
            case before, dict():
                whole[key] = inner = before if isinstance(before, dict) else {}
                _add(inner, piece)
            case before, list():
                whole[key] = items = before if isinstance(before, list) else []
                if key == "tool_calls" or any(
                    isinstance(item, dict) and "index" in item for item in piece
                ):
                    _add_items(items, piece)
                else:  # annotations and the like come whole
                    items += piece
            case _:
                whole[key] = piece


def _add_items(items: list[Wire], pieces: list[Any]) -> None:  # Any: as the server has them
    for place, piece in enumerate(pieces):
        same = [
            item
            for at, item in enumerate(items)
            if item.get("index", at) == piece.get("index", place)
        ]
        if same and not _begins(piece, same[-1].get("id")):
            _add(same[-1], piece)
        else:
            item: Wire = {}
            _add(item, piece)
            items.append(item)


def _in_order(items: list[Any]) -> list[Any]:  # Any: as the server has them
    """Items of a list by their `index`, which is of pieces alone; as they came, where it does not
    tell them apart.
    """
    if not all(isinstance(item, dict) for item in items):
        return items
    places = [item.pop("index", at) for at, item in enumerate(items)]
    if len(set(places)) < len(items):
        return items
    return [item for _, item in sorted(zip(places, items, strict=True), key=itemgetter(0))]


def _written(value: Any) -> Any:  # Any: JSON with buffers in place of texts, and JSON
    if isinstance(value, dict):
        return {key: _written(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_written(item) for item in value]
    return value.getvalue() if isinstance(value, StringIO) else value


def _begins(piece: Any, before: object) -> bool:
    """Whether a call begins although its index was there `before`, with an id: some servers give
    all calls the same.
    """
    return bool(
        before
        and piece.get("id") not in (None, "", before)
        and (piece.get("function") or {}).get("name")
    )


def _text(content: Any) -> str:  # Any: a text, null, or from some servers a list of parts
    """The text that `content` holds."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )
