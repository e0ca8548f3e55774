"""The Chat Completions codec: what OpenAI and most compatible servers speak."""

from io import StringIO
from operator import itemgetter

from ..content import IMAGE_TYPES, MAX_CONTENT_BYTES, Image, Media, MediaSupport
from ..evaluation.inner_loop import ProviderRequest
from ..evaluation.messages import AssistantMessage, Finish, ToolCall, ToolMessage
from ..evaluation.schemas import OutputSpec, ToolSpec
from .codec import AnyJson, Codec, Wire, read_call, read_usage
from .provider_errors import error_from_reply, error_from_request
from .schema_dialects import OPENAI, encode_function, encode_output

__all__ = ["ChatCodec"]

# every other reason means `tool_calls` if the message has calls, else `stop`
_FINISH: dict[str, Finish] = {"length": "length", "content_filter": "content_filter"}
# texts that come whole; some servers repeat them in later events
_WHOLE_TEXTS = frozenset({"id", "name", "role", "type"})
# the fields of the model's messages that every server accepts
_FIELDS = frozenset({"role", "content", "tool_calls"})
# between the result of a tool and a message of the user
_WAITING = "(Waiting for the next message.)"


class ChatCodec(Codec):
    """One conversation as Chat Completions messages."""

    wire_format = "chat"
    instructions_role = "system"
    stream_options = {"stream": True, "stream_options": {"include_usage": True}}  # noqa: RUF012 - never changed
    # developers.openai.com/api/docs/guides/file-inputs: of files only PDF, below 50 MB, no URLs
    media = MediaSupport(
        types=dict.fromkeys((*IMAGE_TYPES, "application/pdf"), MAX_CONTENT_BYTES), urls=(Image,)
    )

    def read_text(self, event: AnyJson) -> str:
        return "".join([_text(item["delta"].get("content")) for item in _with_delta(event)])

    def join_events(self, events: list[AnyJson]) -> object:
        message: Wire = {}
        choice: Wire = {}
        usage: object = None
        model: object = None
        for event in events:
            for item in _with_delta(event):
                _add(message, item["delta"])
                for key, value in item.items():
                    if value is not None:
                        choice[key] = value
            usage = event.get("usage") or usage
            model = event.get("model") or model
        choice.pop("delta", None)  # the message has all of them
        if "finish_reason" not in choice:
            return None
        for key, value in message.items():
            if isinstance(value, list):
                message[key] = _sort_by_index(value)
        choices = [{"message": _join_texts(message), **choice}]
        return {"choices": choices, "usage": usage, "model": model}

    def decode(self, reply: AnyJson) -> AssistantMessage:
        """Reads the choice of index 0."""
        match reply, _choices(reply):
            case ({"error": {"message": failure}}, _) | (_, [{"error": {"message": failure}}, *_]):
                # some gateways report a failure with status 200
                raise error_from_request(self.provider, "provider_failed", str(failure))
            case _, [{"message": dict() as message, **choice}, *_]:
                pass
            case _:
                raise error_from_reply(self.provider, "no choice of index 0 with a message")
        wire: Wire = {key: value for key, value in message.items() if value not in (None, "", [])}
        wire.setdefault("role", "assistant")
        calls = [
            self._read_call(item, index) for index, item in enumerate(wire.get("tool_calls", ()))
        ]
        content, refusal = message.get("content"), _text(message.get("refusal"))
        if not isinstance(content, str | list | None):
            raise error_from_reply(self.provider, "the content is no text")
        finish = _FINISH.get(str(choice.get("finish_reason")), "tool_calls" if calls else "stop")
        return AssistantMessage(
            text=refusal or _text(content),
            tool_calls=tuple(calls),
            finish="refusal" if refusal else finish,
            usage=read_usage(reply.get("usage"), "prompt_tokens", "completion_tokens"),
            wire=(wire,),
            model=str(reply.get("model") or ""),
            wire_format=self.wire_format,
        )

    def _read_call(self, item: AnyJson, index: int) -> ToolCall:
        """Reads a call and writes its id into `item`, which goes back to the provider."""
        match item:
            case {"function": {"name": name, **function}}:
                call = read_call(
                    item.get("id"),
                    name,
                    function.get("arguments"),
                    fallback_id=f"c{len(self.items):05}{index:03}",
                )
                item["id"] = call.call_id
                return call
            case _:
                raise error_from_reply(self.provider, "a tool call without a function")

    def encode_items(self, output: OutputSpec | None) -> Wire:
        body: Wire = {"messages": self.items}
        if output is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": encode_output(output, OPENAI),
            }
        return body

    def encode_tool(self, spec: ToolSpec) -> Wire:
        return {"type": "function", "function": encode_function(spec, OPENAI)}

    def encode(self, request: ProviderRequest) -> Wire:
        written = len(self.items)
        body = super().encode(request)
        self.items[written:] = self._arrange(self.items[written:], self.items[:written][-1:])
        return body

    def _arrange(self, new: list[Wire], before: list[Wire]) -> list[Wire]:
        """Returns new items in an order that every server takes; `before` is the one before them.

        Neighbours of one role become one message, since many chat templates let roles alternate.
        """
        items: list[Wire] = []
        role = before[0]["role"] if before else ""
        for item in new:
            earlier, role = role, item["role"]
            if items and role == earlier and role in ("user", "system", "developer"):
                content = self._join(items[-1]["content"], item["content"])
                items[-1] = {**item, "content": content}
                continue
            follows = role in ("tool", "assistant") or self.options.profile.user_after_tool
            if earlier == "tool" and not follows:
                items.append({"role": "assistant", "content": _WAITING})
            items.append(item)
        return items

    def _join(self, first: AnyJson, second: AnyJson) -> AnyJson:
        if isinstance(first, str) and isinstance(second, str):
            return f"{first}\n\n{second}"
        return [
            part
            for content in (first, second)
            for part in ([self.encode_text(content)] if isinstance(content, str) else content)
        ]

    def encode_assistant(self, message: AssistantMessage) -> list[Wire]:
        calls = message.tool_calls
        item: Wire = {"role": "assistant", "content": message.text}
        sent: list[Wire] = [{}] * len(calls)
        for wire in message.wire:
            if isinstance(wire, dict) and wire.get("role") == "assistant":
                own: AnyJson = wire.get("tool_calls") or []
                if len(own) == len(calls):
                    item, sent = {**wire}, own
                break
        if self.options.profile.reasoning == "drop":
            item = {key: value for key, value in item.items() if key in _FIELDS}
        if _is_blank(item.get("content")):
            item["content"] = message.text
            if not message.text:  # beside calls
                del item["content"]
        if calls:
            item["tool_calls"] = [_encode_call(*pair) for pair in zip(calls, sent, strict=True)]
        return [item]

    def encode_answer(self, message: ToolMessage) -> Wire:
        """Returns a tool message; its media follow in a user message, since it holds text alone."""
        for media in message.media:
            self._after_answers += [f"The tool call {message.call_id} returned {media}:", media]
        return dict(message.as_dict())

    def encode_media(self, media: Media) -> Wire:
        if isinstance(media, Image):
            return {"type": "image_url", "image_url": {"url": self.data_url(media)}}
        name = media.name or "document.pdf"
        return {"type": "file", "file": {"filename": name, "file_data": self.data_url(media)}}


def _encode_call(call: ToolCall, wire: Wire) -> Wire:
    """Returns a call with all that the server has sent of it."""
    function = {**wire.get("function", {}), "name": call.name, "arguments": call.arguments}
    return {**wire, "id": call.call_id, "type": "function", "function": function}


def _is_blank(content: AnyJson) -> bool:
    """Tells whether `content` contains nothing but blank texts."""
    if isinstance(content, list):
        return all(_is_blank(part.get("text", part)) for part in content if isinstance(part, dict))
    return content is None or (isinstance(content, str) and not content.strip())


def _choices(reply: AnyJson) -> list[Wire]:
    """Returns the choices of index 0, or without an index, in a reply or an event.

    Further choices come only if `options` set `n`.
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list):
        return []
    return [item for item in choices if isinstance(item, dict) and item.get("index") in (0, None)]


def _with_delta(event: AnyJson) -> list[Wire]:
    """Returns the choices of index 0 that add something to the message."""
    return [choice for choice in _choices(event) if isinstance(choice.get("delta"), dict)]


def _add(message: Wire, delta: Wire) -> None:
    """Adds `delta` to `message`: text to text, and to the items of lists by their `index`.

    Texts grow in buffers until all pieces are there; adding to a `str` takes quadratic time.
    """
    for key, piece in delta.items():
        before = message.get(key)
        if isinstance(piece, str):
            if isinstance(before, StringIO):
                before.write(piece)
            elif before is None and key not in _WHOLE_TEXTS:
                message[key] = text = StringIO()
                text.write(piece)
            elif piece or not isinstance(before, str):
                message[key] = piece
        elif piece is None:
            message.setdefault(key, None)
        elif isinstance(piece, dict):
            message[key] = inner = before if isinstance(before, dict) else {}
            _add(inner, piece)
        elif isinstance(piece, list):
            message[key] = items = before if isinstance(before, list) else []
            if key == "tool_calls" or any(
                isinstance(item, dict) and "index" in item for item in piece
            ):
                _add_items(items, piece)
            else:  # annotations and the like come whole
                items += piece
        else:
            message[key] = piece


def _add_items(items: list[Wire], pieces: list[AnyJson]) -> None:
    for place, piece in enumerate(pieces):
        index = piece.get("index", place)
        same = [item for at, item in enumerate(items) if item.get("index", at) == index]
        if same and not _begins_call(piece, same[-1].get("id")):
            _add(same[-1], piece)
        else:
            item: Wire = {}
            _add(item, piece)
            items.append(item)


def _begins_call(piece: AnyJson, id_before: object) -> bool:
    """Tells whether `piece` begins another call: some servers use one index for all calls."""
    return bool(
        id_before
        and piece.get("id") not in (None, "", id_before)
        and (piece.get("function") or {}).get("name")
    )


def _sort_by_index(items: list[AnyJson]) -> list[AnyJson]:
    """Removes `index` from items, and sorts the items by it if no two share one."""
    if not all(isinstance(item, dict) for item in items):
        return items
    places = [item.pop("index", at) for at, item in enumerate(items)]
    if len(set(places)) < len(items):
        return items
    return [item for _, item in sorted(zip(places, items, strict=True), key=itemgetter(0))]


def _join_texts(value: AnyJson) -> AnyJson:
    if isinstance(value, dict):
        return {key: _join_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_join_texts(item) for item in value]
    return value.getvalue() if isinstance(value, StringIO) else value


def _text(content: AnyJson) -> str:
    """Returns the text of `content`: a text, null, or from some servers a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join([text for text in texts if isinstance(text, str)])
