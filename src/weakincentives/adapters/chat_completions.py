"""The Chat Completions codec, for OpenAI and most compatible servers."""

import json
from collections.abc import Mapping, Sequence
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
    JsonObject,
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
from .server_profile import ServerProfile

__all__ = ["ChatCodec", "text_of"]

# Strings that are sent in a single chunk; some servers repeat them in later events.
_WHOLE_TEXTS = frozenset({"id", "name", "role", "type"})
# The assistant message fields that every server accepts.
_FIELDS = frozenset({"role", "content", "tool_calls"})
_REASONING = ("reasoning_content", "reasoning")
_NO_REASONING = "(no reasoning)"
# Sent between a tool result and a user message.
_WAITING = "(Waiting for the next message.)"
_MAX_CHECKED = 20_000  # characters of arguments


class ChatCodec(Codec):
    """One conversation in the Chat Completions format."""

    wire_format = "chat"
    instructions_role = "system"
    stream_options: ClassVar[JsonObject] = {
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # developers.openai.com/api/docs/guides/file-inputs: only PDF files, smaller than 50 MB, and no
    # URLs
    media = MediaSupport(
        types=dict.fromkeys((*IMAGE_TYPES, "application/pdf"), MAX_CONTENT_BYTES), urls=(Image,)
    )

    setting_fields: ClassVar[Mapping[str, str]] = {
        "temperature": "temperature",
        "top_p": "top_p",
        "max_output_tokens": "max_tokens",
        "reasoning": "reasoning_effort",
        "seed": "seed",
        "stop": "stop",
        "tool_choice": "tool_choice",
        "parallel_tool_calls": "parallel_tool_calls",
        "cache_ttl": "prompt_cache_options.ttl",
        "service_tier": "service_tier",
    }

    def __init__(self, options: CodecOptions, provider: str) -> None:
        super().__init__(options, provider)
        self._names: dict[str, str] = {}  # tool names by call id

    def read_text(self, event: AnyJson) -> str:
        return "".join(
            [text_of(_message_part(choice).get("content")) for choice in _choices(event)]
        )

    def join_events(self, events: list[AnyJson]) -> object:
        message: JsonObject = {}
        choice: JsonObject = {}
        model: object = None
        for event in events:
            for item in _choices(event):
                if isinstance(item.get("message"), dict) and not item.get("delta"):
                    return event  # a complete reply
                _merge(message, _message_part(item))
                for key, value in item.items():
                    if value is not None:
                        choice[key] = value
            model = (event.get("model") if isinstance(event, dict) else None) or model
        if not choice:
            return events[-1] if events else None
        if not isinstance(choice.pop("delta", {}), dict):  # `message` already contains the deltas
            raise error_from_reply(self.provider, "a delta is not an object")
        if "finish_reason" not in choice:
            raise unfinished_reply(self.provider, "the finish_reason")
        for key, value in message.items():
            if isinstance(value, list):
                message[key] = _sort_by_index(value)
        message = _join_texts(message)
        match message.get("content"):
            case [{"type": "text", "text": str() as text, **more}] if not more:
                message["content"] = text  # every server accepts a string
            case _:
                pass
        choices = [{"message": message, **choice}]
        return {"choices": choices, "usage": read_counts(events), "model": model}

    def usage_of(self, events: list[AnyJson]) -> TokenUsage:
        return read_usage(read_counts(events), "prompt_tokens", "completion_tokens")

    def decode(self, reply: AnyJson) -> AssistantMessage:
        """Decodes the choice with index 0."""
        choice: JsonObject = next(iter(_choices(reply)), {})
        message = choice.get("message")
        if failure := choice.get("error") or reported_failure(reply):
            raise error_from_failure(self.provider, failure)
        if not isinstance(message, dict):
            reason = "no choice of index 0 with a message"
            raise error_from_reply(self.provider, reason, of_this_api=False)
        item: JsonObject = {
            key: value for key, value in message.items() if value not in (None, "", [])
        }
        item.setdefault("role", "assistant")
        calls = [
            self._read_call(call, index) for index, call in enumerate(item.get("tool_calls", ()))
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
            wire=(item,),
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

    def encode_items(self, output: OutputSpec | None) -> JsonObject:
        body: JsonObject = {"messages": self.items}
        if output is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": encode_output(output, self.options.profile.dialect),
            }
        return body

    def encode_tool(self, spec: ToolSpec) -> JsonObject:
        return {"type": "function", "function": self.encode_function(spec)}

    @classmethod
    def supported_settings(cls, profile: ServerProfile) -> Mapping[str, str]:
        own = {"max_output_tokens": profile.output_limit, "reasoning": profile.effort_field}
        fields = super().supported_settings(profile)
        return {name: own.get(name) or field for name, field in fields.items()}

    def encode_named_choice(self, name: str) -> JsonObject:
        return {"type": "function", "function": {"name": name}}

    def encode(self, request: ProviderRequest) -> JsonObject:
        written = len(self.items)
        body = super().encode(request)
        self.items[written:] = self._arrange(self.items[written:], self.items[:written][-1:])
        return body

    def _arrange(self, new: list[JsonObject], before: list[JsonObject]) -> list[JsonObject]:
        """Puts new items in an order that every server accepts; `before` is the preceding item.

        Adjacent messages with the same role are joined, because many chat templates require
        alternating roles.
        """
        profile = self.options.profile
        items: list[JsonObject] = []
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

    def encode_assistant(self, message: AssistantMessage) -> list[JsonObject]:
        calls = message.tool_calls
        item: JsonObject = {"role": "assistant", "content": message.text}
        sent: list[JsonObject] = [{}] * len(calls)
        received: AnyJson = None
        for stored in message.wire:
            if isinstance(stored, dict) and stored.get("role") == "assistant":
                own: AnyJson = stored.get("tool_calls") or []
                if len(own) == len(calls):
                    item, sent, received = {**stored}, own, stored
                break
        item = self._with_reasoning(item, message)
        if _is_blank(item.get("content")):
            item["content"] = message.text
            if not message.text:  # the message contains only calls
                del item["content"]
        if calls:
            item["tool_calls"] = [_encode_call(*pair) for pair in zip(calls, sent, strict=True)]
        if self.options.profile.named_results:
            self._names |= {call.call_id: call.name for call in calls}
        return [received if item == received else item]  # reuse the stored item if nothing changed

    def _with_reasoning(self, item: JsonObject, message: AssistantMessage) -> JsonObject:
        """Returns the model's message with its reasoning in a form that the server accepts."""
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

    def encode_answer(self, message: ToolMessage) -> JsonObject:
        """Returns a tool message; any media that it cannot contain follow in a user message."""
        item: JsonObject = dict(message.as_dict())
        if self.options.profile.named_results:
            item["name"] = self._names[message.call_id]
        if self.options.profile.media_in_results and message.media:
            parts: Sequence[Part] = (message.content, *message.media)
            return item | {"content": [self.encode_part(part) for part in parts]}
        for media in message.media:
            self._after_answers += [f"The tool call {message.call_id} returned {media}:", media]
        return item

    def encode_media(self, media: Media) -> JsonObject:
        if isinstance(media, Image):
            return {"type": "image_url", "image_url": {"url": self.data_url(media)}}
        name = media.name or "document.pdf"
        return {"type": "file", "file": {"filename": name, "file_data": self.data_url(media)}}


def _encode_call(call: ToolCall, sent: JsonObject) -> JsonObject:
    """Returns a call, with all the fields that the server sent for it."""
    function = {**sent.get("function", {}), "name": call.name, "arguments": call.arguments}
    return {**sent, "id": call.call_id, "type": "function", "function": function}


def _is_blank(content: AnyJson) -> bool:
    """Returns whether `content` contains only blank text."""
    if isinstance(content, list):
        return all(_is_blank(part.get("text", part)) for part in content if isinstance(part, dict))
    return content is None or (isinstance(content, str) and not content.strip())


def _choices(reply: AnyJson) -> list[JsonObject]:
    """Returns the choices in a reply or an event that have index 0 or no index.

    There are other choices only if `options` set `n`.
    """
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list):
        return []
    return [item for item in choices if isinstance(item, dict) and item.get("index") in (0, None)]


def _message_part(choice: JsonObject) -> JsonObject:
    """Returns the message, or the part of it, in a choice from a reply or an event."""
    added = choice.get("delta") or choice.get("message")
    return added if isinstance(added, dict) else {}


def _merge(message: JsonObject, delta: JsonObject) -> None:
    """Merges `delta` into `message`: appends text, and matches list items by `index`.

    Text is collected in buffers until the last chunk, because appending to a `str` takes quadratic
    time.
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
            _merge(inner, chunk)
        else:
            message[key] = chunk


def _to_list(value: AnyJson) -> list[AnyJson]:
    """Returns a value as a list of parts, whether it was sent as a string, a part or a list."""
    if isinstance(value, str | StringIO):
        is_empty = not (value if isinstance(value, str) else value.tell())
        return [] if is_empty else [{"type": "text", "text": value}]
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []


def _add_parts(items: list[AnyJson], chunks: list[AnyJson]) -> None:
    """Adds parts other than calls to a list: appends text, and matches other parts by `index`."""
    for part in chunks:
        if not isinstance(part, dict):
            items.append(part)
            continue
        last: JsonObject = items[-1] if items and isinstance(items[-1], dict) else {}
        if _is_text_chunk(part) and part.keys() == last.keys() and part["type"] == last["type"]:
            _merge(last, part)
            continue
        if (index := part.get("index")) is None:
            same: list[JsonObject] = []
        else:
            same = [it for it in items if isinstance(it, dict) and it.get("index") == index]
        if not same:
            items.append({})
        _merge(same[-1] if same else items[-1], part)


def _is_text_chunk(part: JsonObject) -> bool:
    """Returns whether a part is a text or thinking chunk, which continues the preceding part."""
    return part.keys() in ({"type", "text"}, {"type", "thinking"})


def _add_calls(calls: list[JsonObject], chunks: list[AnyJson]) -> None:
    """Adds chunks of calls, which servers identify by index, id, name or order."""
    for place, chunk in enumerate(chunks):
        if not isinstance(chunk, dict):
            raise TypeError("a chunk of a tool call is not an object")
        call = _continued_call(chunk, calls, place if len(chunks) > 1 else None)
        if call is None:
            calls.append(call := {})
        _merge(call, chunk)


def _continued_call(
    chunk: JsonObject, calls: list[JsonObject], place: int | None
) -> JsonObject | None:
    """Returns the call that `chunk` continues, or `None` if it starts a new one."""
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
        # A chunk with neither an id nor a name cannot start a call.
        return None if call_id or name else last
    same_id = call_id and call_id == call.get("id")
    if not name or same_id:
        return call
    other_id = call_id and call.get("id")
    other_name = _name(call) not in ("", name)
    return None if other_id or other_name or _is_complete(call, chunk) else call


def _name(call: JsonObject) -> str:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _is_complete(call: JsonObject, chunk: JsonObject) -> bool:
    """Returns whether a call's arguments are complete; if so, `chunk` belongs to another call."""
    arguments, further = call.get("function"), chunk.get("function")
    text = arguments.get("arguments") if isinstance(arguments, dict) else None
    if not isinstance(text, StringIO) or not isinstance(further, dict):
        return False
    # Parsing long arguments would be slow if a server repeats the name in each chunk.
    if not further.get("arguments") or not text.tell() or text.tell() > _MAX_CHECKED:
        return False
    try:
        json.loads(text.getvalue())
    except (ValueError, RecursionError):
        return False
    return True


def _sort_by_index(items: list[AnyJson]) -> list[AnyJson]:
    """Removes `index` from items, and sorts them by it if each one has a different index."""
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
    """Returns the text in `content`: a string, null or, from some servers, a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join([text for text in texts if isinstance(text, str)])
