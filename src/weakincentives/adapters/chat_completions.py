"""The Chat Completions codec: what OpenAI and most compatible servers speak."""

import json
from collections.abc import Sequence
from io import StringIO
from operator import itemgetter
from typing import ClassVar

from ..content import IMAGE_TYPES, MAX_CONTENT_BYTES, Image, Media, MediaSupport, Part
from ..evaluation.inner_loop import ProviderRequest
from ..evaluation.messages import AssistantMessage, ToolCall, ToolMessage
from ..evaluation.schemas import OutputSpec, ToolSpec
from ..limits import TokenUsage
from .codec import (
    AnyJson,
    Codec,
    CodecOptions,
    Wire,
    read_call,
    read_counts,
    read_finish,
    read_usage,
)
from .provider_errors import (
    error_from_failure,
    error_from_reply,
    reported_failure,
    unfinished_reply,
)
from .schema_dialects import encode_output

__all__ = ["ChatCodec", "text_of"]

# texts that come whole; some servers repeat them in later events
_WHOLE_TEXTS = frozenset({"id", "name", "role", "type"})
# the fields of the model's messages that every server accepts
_FIELDS = frozenset({"role", "content", "tool_calls"})
_REASONING = ("reasoning_content", "reasoning")
_NO_REASONING = "(no reasoning)"
# between the result of a tool and a message of the user
_WAITING = "(Waiting for the next message.)"
_MAX_CHECKED = 20_000  # characters of arguments


class ChatCodec(Codec):
    """One conversation as Chat Completions messages."""

    wire_format = "chat"
    instructions_role = "system"
    stream_options: ClassVar[Wire] = {"stream": True, "stream_options": {"include_usage": True}}
    # developers.openai.com/api/docs/guides/file-inputs: of files only PDF, below 50 MB, no URLs
    media = MediaSupport(
        types=dict.fromkeys((*IMAGE_TYPES, "application/pdf"), MAX_CONTENT_BYTES), urls=(Image,)
    )

    def __init__(self, options: CodecOptions, provider: str) -> None:
        super().__init__(options, provider)
        self._names: dict[str, str] = {}  # of calls, by id

    def read_text(self, event: AnyJson) -> str:
        return "".join([text_of(_added(choice).get("content")) for choice in _choices(event)])

    def join_events(self, events: list[AnyJson]) -> object:
        message: Wire = {}
        choice: Wire = {}
        model: object = None
        for event in events:
            for item in _choices(event):
                if isinstance(item.get("message"), dict) and not item.get("delta"):
                    return event  # a whole reply
                _add(message, _added(item))
                for key, value in item.items():
                    if value is not None:
                        choice[key] = value
            model = (event.get("model") if isinstance(event, dict) else None) or model
        if not choice:
            return events[-1] if events else None
        if not isinstance(choice.pop("delta", {}), dict):  # the message has all of them
            raise error_from_reply(self.provider, "a delta is not an object")
        if "finish_reason" not in choice:
            raise unfinished_reply(self.provider, "the finish_reason")
        for key, value in message.items():
            if isinstance(value, list):
                message[key] = _sort_by_index(value)
        message = _join_texts(message)
        match message.get("content"):
            case [{"type": "text", "text": str() as text, **more}] if not more:
                message["content"] = text  # every server takes a text
            case _:
                pass
        choices = [{"message": message, **choice}]
        return {"choices": choices, "usage": read_counts(events), "model": model}

    def usage_of(self, events: list[AnyJson]) -> TokenUsage:
        return read_usage(read_counts(events), "prompt_tokens", "completion_tokens")

    def decode(self, reply: AnyJson) -> AssistantMessage:
        """Reads the choice of index 0."""
        choice: Wire = next(iter(_choices(reply)), {})
        message = choice.get("message")
        if failure := choice.get("error") or reported_failure(reply):
            raise error_from_failure(self.provider, failure)
        if not isinstance(message, dict):
            reason = "no choice of index 0 with a message"
            raise error_from_reply(self.provider, reason, of_this_api=False)
        wire: Wire = {key: value for key, value in message.items() if value not in (None, "", [])}
        wire.setdefault("role", "assistant")
        calls = [
            self._read_call(item, index) for index, item in enumerate(wire.get("tool_calls", ()))
        ]
        content, refusal = message.get("content"), text_of(message.get("refusal"))
        if not isinstance(content, str | list | None):
            raise error_from_reply(self.provider, "the content is not text")
        finish = read_finish(self.provider, choice.get("finish_reason"), calls)
        return AssistantMessage(
            text=refusal or self.shown(text_of(content)),
            tool_calls=tuple(calls),
            finish="refusal" if refusal else finish,
            usage=self.usage_of([reply]),
            wire=(wire,),
            model=str(reply.get("model") or ""),
            wire_format=self.wire_format,
        )

    def _read_call(self, item: AnyJson, index: int) -> ToolCall:
        match item:
            case {"function": {"name": name, **function}}:
                fallback_id = f"c{len(self.items):05}{index:03}"
                arguments = function.get("arguments")
                return read_call(item.get("id"), name, arguments, fallback_id=fallback_id)
            case _:
                raise error_from_reply(self.provider, "a tool call without a function")

    def encode_items(self, output: OutputSpec | None) -> Wire:
        body: Wire = {"messages": self.items}
        if output is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": encode_output(output, self.options.profile.dialect),
            }
        return body

    def encode_tool(self, spec: ToolSpec) -> Wire:
        return {"type": "function", "function": self.encode_function(spec)}

    def encode(self, request: ProviderRequest) -> Wire:
        written = len(self.items)
        body = super().encode(request)
        self.items[written:] = self._arrange(self.items[written:], self.items[:written][-1:])
        return body

    def _arrange(self, new: list[Wire], before: list[Wire]) -> list[Wire]:
        """Returns new items in an order that every server takes; `before` is the one before them.

        Neighbours of one role become one message, since many chat templates let roles alternate.
        """
        profile = self.options.profile
        items: list[Wire] = []
        role = before[0]["role"] if before else ""
        for item in new:
            earlier, role = role, item["role"]
            joins = profile.alternating_roles and role in ("user", "system", "developer")
            if items and role == earlier and joins:
                content = self._join(items[-1]["content"], item["content"])
                items[-1] = {**item, "content": content}
                continue
            follows = role in ("tool", "assistant") or profile.user_after_tool
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
        received: AnyJson = None
        for wire in message.wire:
            if isinstance(wire, dict) and wire.get("role") == "assistant":
                own: AnyJson = wire.get("tool_calls") or []
                if len(own) == len(calls):
                    item, sent, received = {**wire}, own, wire
                break
        item = self._with_reasoning(item, message)
        if _is_blank(item.get("content")):
            item["content"] = message.text
            if not message.text:  # beside calls
                del item["content"]
        if calls:
            item["tool_calls"] = [_encode_call(*pair) for pair in zip(calls, sent, strict=True)]
        if self.options.profile.named_results:
            self._names |= {call.call_id: call.name for call in calls}
        return [received if item == received else item]  # no second copy of what is kept anyway

    def _with_reasoning(self, item: Wire, message: AssistantMessage) -> Wire:
        """Returns a message of the model with the reasoning that the server takes."""
        profile = self.options.profile
        if profile.reasoning == "drop":
            item = {key: value for key, value in item.items() if key in _FIELDS}
            return item | {"content": message.text} if profile.think_tags else item
        if profile.reasoning == "send" and profile.reasoning_field is None:
            return item
        texts = [text for key in _REASONING if isinstance(text := item.get(key), str)]
        text = next(filter(str.strip, texts), "")
        if not text and profile.reasoning == "require" and message.tool_calls:
            text = _NO_REASONING
        item = {key: value for key, value in item.items() if key not in _REASONING}
        return item | {profile.reasoning_field or _REASONING[0]: text} if text else item

    def encode_answer(self, message: ToolMessage) -> Wire:
        """Returns a tool message; its media follow in a user message if it can have only text."""
        item: Wire = dict(message.as_dict())
        if self.options.profile.named_results:
            item["name"] = self._names[message.call_id]
        if self.options.profile.media_in_results and message.media:
            parts: Sequence[Part] = (message.content, *message.media)
            return item | {"content": [self.encode_part(part) for part in parts]}
        for media in message.media:
            self._after_answers += [f"The tool call {message.call_id} returned {media}:", media]
        return item

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


def _added(choice: Wire) -> Wire:
    """Returns what a choice of an event, or of a whole reply, adds to the message."""
    added = choice.get("delta") or choice.get("message")
    return added if isinstance(added, dict) else {}


def _add(message: Wire, delta: Wire) -> None:
    """Adds `delta` to `message`: text to text, and to the items of lists by their `index`.

    Texts grow in buffers until all chunks are there; adding to a `str` takes quadratic time.
    """
    for key, chunk in delta.items():
        before = message.get(key)
        if isinstance(chunk, list) or (isinstance(before, list) and isinstance(chunk, str | dict)):
            message[key] = items = _to_list(before)
            add = _add_calls if key == "tool_calls" else _add_parts
            add(items, _to_list(chunk))
        elif isinstance(chunk, str):
            if isinstance(before, StringIO):
                before.write(chunk)
            elif before is None and key not in _WHOLE_TEXTS:
                message[key] = text = StringIO()
                text.write(chunk)
            elif chunk or not isinstance(before, str):
                message[key] = chunk
        elif chunk is None:
            message.setdefault(key, None)
        elif isinstance(chunk, dict):
            message[key] = inner = before if isinstance(before, dict) else {}
            _add(inner, chunk)
        else:
            message[key] = chunk


def _to_list(value: AnyJson) -> list[AnyJson]:
    """Returns what has come as a list of parts."""
    if isinstance(value, str | StringIO):
        is_empty = not (value if isinstance(value, str) else value.tell())
        return [] if is_empty else [{"type": "text", "text": value}]
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []


def _add_parts(items: list[AnyJson], chunks: list[AnyJson]) -> None:
    """Adds parts of a list that is not one of calls: texts to a text, others by their `index`."""
    for part in chunks:
        if not isinstance(part, dict):
            items.append(part)
            continue
        last: Wire = items[-1] if items and isinstance(items[-1], dict) else {}
        if _is_written(part) and part.keys() == last.keys() and part["type"] == last["type"]:
            _add(last, part)
            continue
        if (index := part.get("index")) is None:
            same: list[Wire] = []
        else:
            same = [it for it in items if isinstance(it, dict) and it.get("index") == index]
        if not same:
            items.append({})
        _add(same[-1] if same else items[-1], part)


def _is_written(part: Wire) -> bool:
    """Whether a part is a piece of what the model writes, which continues the part before."""
    return part.keys() in ({"type", "text"}, {"type", "thinking"})


def _add_calls(calls: list[Wire], chunks: list[AnyJson]) -> None:
    """Adds chunks of calls, which servers tell apart by index, by id, by name or by order."""
    for place, chunk in enumerate(chunks):
        if not isinstance(chunk, dict):
            raise TypeError("a chunk of a tool call is not an object")
        call = _call_of(chunk, calls, place if len(chunks) > 1 else None)
        if call is None:
            calls.append(call := {})
        _add(call, chunk)


def _call_of(chunk: Wire, calls: list[Wire], place: int | None) -> Wire | None:
    """Returns the call that `chunk` continues, `None` if it begins another one."""
    index, call_id, name = chunk.get("index"), chunk.get("id"), _name(chunk)
    last = calls[-1] if calls else None
    if index is not None:
        call = next((call for call in reversed(calls) if call.get("index") == index), None)
    elif call_id:
        call = next((call for call in reversed(calls) if call.get("id") == call_id), None)
    elif place is not None and not name:
        call = calls[place] if place < len(calls) else None
    else:
        call = last
    if call is None:
        # without an id and a name it cannot begin a call
        return None if call_id or name else last
    same_id = call_id and call_id == call.get("id")
    if not name or same_id:
        return call
    other_id = call_id and call.get("id")
    other_name = _name(call) not in ("", name)
    return None if other_id or other_name or _is_complete(call, chunk) else call


def _name(call: Wire) -> str:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _is_complete(call: Wire, chunk: Wire) -> bool:
    """Whether `call` has all its arguments, so that those in `chunk` are another call's."""
    arguments, further = call.get("function"), chunk.get("function")
    text = arguments.get("arguments") if isinstance(arguments, dict) else None
    if not isinstance(text, StringIO) or not isinstance(further, dict):
        return False
    # a server that repeats the name in each chunk would make reading long arguments slow
    if not further.get("arguments") or not text.tell() or text.tell() > _MAX_CHECKED:
        return False
    try:
        json.loads(text.getvalue())
    except (ValueError, RecursionError):
        return False
    return True


def _sort_by_index(items: list[AnyJson]) -> list[AnyJson]:
    """Removes `index` from items, and sorts the items by it if each has its own number."""
    if not all(isinstance(item, dict) for item in items):
        return items
    places = [item.pop("index", None) for item in items]
    if not all(isinstance(place, int) for place in places) or len(set(places)) < len(items):
        return items
    return [item for _, item in sorted(zip(places, items, strict=True), key=itemgetter(0))]


def _join_texts(value: AnyJson) -> AnyJson:
    if isinstance(value, dict):
        return {key: _join_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_join_texts(item) for item in value]
    return value.getvalue() if isinstance(value, StringIO) else value


def text_of(content: AnyJson) -> str:
    """Returns the text of `content`: a text, null, or from some servers a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join([text for text in texts if isinstance(text, str)])
