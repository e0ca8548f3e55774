"""The Chat Completions codec, for OpenAI and most compatible servers."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from ..citations import Citation
from ..content import IMAGE_TYPES, MAX_CONTENT_BYTES, Image, Media, MediaSupport, Part
from ..evaluation.inner_loop import ProviderRequest
from ..evaluation.messages import AssistantMessage, ToolCall, ToolMessage
from ..evaluation.schemas import OutputSpec, ToolSpec
from ..limits import TokenUsage
from .chat_chunks import dicts, joined, merge
from .cited_text import CitedText, read_citation
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
from .deltas import HIDDEN, ReasoningPiece, thinking_pieces
from .provider_errors import (
    error_from_failure,
    error_from_reply,
    reported_failure,
    unfinished_reply,
)
from .schema_dialects import encode_output
from .server_profile import ServerProfile

__all__ = ["ChatCodec", "text_of"]

# The assistant message fields that every server accepts.
_FIELDS = frozenset({"role", "content", "tool_calls"})
_REASONING = ("reasoning_content", "reasoning")
# Sent between a tool result and a user message.
_SOURCES = ("citations", "search_results")
_WAITING = "(Waiting for the next message.)"


class ChatCodec(Codec):
    """One conversation in the Chat Completions format."""

    wire_format = "chat"
    instructions_role = "system"
    reasoning_fields = frozenset({*_REASONING, "reasoning_details", "thinking_blocks"})
    stream_options: ClassVar[JsonObject] = {
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # developers.openai.com/api/docs/guides/file-inputs: only PDF files, smaller than 50 MB, and no
    # URLs
    media = MediaSupport(
        types=dict.fromkeys((*IMAGE_TYPES, "application/pdf"), MAX_CONTENT_BYTES), urls=(Image,)
    )

    output_field = "response_format"
    api_name = "Chat Completions"
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
        first = options.profile.reasoning_field
        self._fields = sorted(_REASONING, key=lambda name: name != first)

    def read_text(self, event: AnyJson) -> str:
        return "".join(
            [text_of(_message_part(choice).get("content")) for choice in _choices(event)]
        )

    def read_reasoning(self, event: AnyJson) -> Iterable[ReasoningPiece]:
        parts = [_message_part(choice) for choice in _choices(event)]
        return [
            piece
            for part in parts
            if not self.reasoning_fields.isdisjoint(part) or isinstance(part.get("content"), list)
            for piece in _reasoning_pieces(part, self._fields)
        ]

    def join_events(self, events: list[AnyJson]) -> object:
        message: JsonObject = {}
        choice: JsonObject = {}
        model: object = None
        for event in events:
            for item in _choices(event):
                if isinstance(item.get("message"), dict) and not item.get("delta"):
                    return event  # a complete reply
                merge(message, _message_part(item))
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
        message = joined(message)
        match message.get("content"):
            case [{"type": "text", "text": str() as text, **more}] if not more:
                message["content"] = text  # every server accepts a string
            case _:
                pass
        choices = [{"message": message, **choice}]
        reply = {"choices": choices, "usage": read_counts(events), "model": model}
        return {**_last_sources(events), **reply}

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
        cited = CitedText(in_bytes=self.options.profile.citations_in_bytes)
        cited.add(text_of(content), message.get("annotations"))
        text = refusal or self.shown(cited.text)
        return AssistantMessage(
            text=text,
            tool_calls=tuple(calls),
            finish="refusal" if refusal else finish,
            usage=self.usage_of([reply]),
            wire=(item,),
            model=str(reply.get("model") or ""),
            wire_format=self.wire_format,
            requested_model=self.options.model,
            reasoning=self.reasoning_in([{"choices": [choice]}], cited.text),
            citations=() if refusal else self.read_citations(reply, message, cited.citations(text)),
        )

    def read_citations(
        self, reply: JsonObject, message: JsonObject, cited: tuple[Citation, ...]
    ) -> tuple[Citation, ...]:
        """Returns the message's citations, and further sources in the reply, which have no span."""
        if not any(map(reply.get, _SOURCES)) and not message.get("citations"):
            return cited
        known = {citation.url for citation in cited}
        sources = _read_sources(reply, message)
        return (*cited, *dict.fromkeys([it for it in sources if it.url not in known]))

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

    def encode_setting(self, name: str, value: object, tools: Collection[str]) -> JsonObject:
        others = {
            "max_output_tokens": ("max_tokens", "max_completion_tokens"),
            "reasoning": ("reasoning_effort",),
        }  # what `options` may contain instead
        cleared = dict.fromkeys(others.get(name, ()))
        return cleared | super().encode_setting(name, value, tools)

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
        item = self._with_reasoning(_without_unsigned(item), message)
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
        item = {key: value for key, value in item.items() if key not in _REASONING}
        field = profile.reasoning_field or _REASONING[0]
        if profile.reasoning == "require":
            needs = bool(message.tool_calls)
            return item | {field: text or profile.missing_reasoning} if needs else item
        return item | {field: text} if text else item

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


def _reasoning_pieces(message: JsonObject, fields: Sequence[str]) -> Iterator[ReasoningPiece]:
    """Yields the reasoning in a message or its chunk, the most detailed form first."""
    for block in dicts(message.get("thinking_blocks")):
        if block.get("type") == "redacted_thinking":
            yield ReasoningPiece("blocks", "", HIDDEN, ends=True)
        else:
            yield from thinking_pieces(block, "", ends=True)
    for part in dicts(message.get("content")):
        if part.get("type") == "thinking":
            thought = part.get("thinking")
            yield ReasoningPiece("content", "", text_of(thought))
    for detail in dicts(message.get("reasoning_details")):
        text = detail.get("text") or detail.get("summary")
        place, ends = f"{detail.get('type')}/{detail.get('index')}", bool(detail.get("signature"))
        yield ReasoningPiece("details", place, text if isinstance(text, str) else "", ends=ends)
    for name in fields:
        if isinstance(reasoning := message.get(name), str):
            yield ReasoningPiece(name, "", reasoning)


def _without_unsigned(item: JsonObject) -> JsonObject:
    """Returns the model's message without interrupted thinking, which has no signature."""
    for name in ("thinking_blocks", "reasoning_details"):
        entries = item.get(name)
        if isinstance(entries, list):
            signed = [entry for entry in entries if not _is_unsigned(entry)]
            if len(signed) < len(entries):
                item = {key: value for key, value in item.items() if key != name or signed}
                item |= {name: signed} if signed else {}
    return item


def _is_unsigned(entry: AnyJson) -> bool:
    """Returns whether an entry is Claude's thinking without its signature."""
    match entry:
        case {"type": "thinking"} | {"type": "reasoning.text", "format": "anthropic-claude-v1"}:
            return not entry.get("signature")
        case _:
            return False


def _last_sources(events: Iterable[AnyJson]) -> JsonObject:
    """Returns the last lists of sources in a stream; some servers repeat them in each event."""
    return {
        name: event[name]
        for event in events
        if isinstance(event, dict)
        for name in _SOURCES
        if event.get(name)
    }


def _read_sources(reply: JsonObject, message: JsonObject) -> Iterator[Citation]:
    """Yields the sources that servers such as Perplexity and xAI list next to the text."""
    results = dicts(reply.get("search_results"))
    titles = {
        url: title
        for result in results
        if isinstance(url := result.get("url"), str)
        and isinstance(title := result.get("title"), str)
    }
    listed = reply.get("citations") or message.get("citations") or results
    for source in listed if isinstance(listed, list) else ():
        named = {"url": source} if isinstance(source, str) else source
        if citation := read_citation(named):
            yield replace(citation, title=citation.title or titles.get(citation.url, ""))


def text_of(content: AnyJson) -> str:
    """Returns the text in `content`: a string, null or, from some servers, a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join([text for text in texts if isinstance(text, str)])
