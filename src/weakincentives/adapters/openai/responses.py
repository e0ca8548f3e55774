"""The Responses codec, for OpenAI's own API, which can add tools during the conversation."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar

from ...content import IMAGE_TYPES, MAX_CONTENT_BYTES, Document, Image, Media, MediaSupport, Part
from ...evaluation.messages import AssistantMessage, Finish, ToolCall, ToolMessage
from ...evaluation.schemas import OutputSpec, ToolSpec
from ...limits import TokenUsage
from ..cited_text import CitedText
from ..codec import AnyJson, Codec, CodecOptions, JsonObject, read_call, read_counts, read_usage
from ..deltas import ReasoningPiece
from ..provider_errors import (
    error_from_failure,
    error_from_reply,
    error_from_request,
    reported_failure,
    unfinished_reply,
)
from ..schema_dialects import encode_output

__all__ = ["ResponsesCodec"]

_ADDED_TOOLS = "additional_tools"
_EARLY = frozenset({"response.created", "response.in_progress", "response.queued"})
_OFFICE = "application/vnd.openxmlformats-officedocument"
_TEXTS = (  # file types whose text the API extracts
    "application/json",
    "application/rtf",
    f"{_OFFICE}.wordprocessingml.document",
    f"{_OFFICE}.presentationml.presentation",
    f"{_OFFICE}.spreadsheetml.sheet",
)


# Items that a client must answer, from tools that `options` may have added.
_ASKING = {
    *("custom_tool_call", "mcp_approval_request", "computer_call", "local_shell_call"),
    *("shell_call", "apply_patch_call"),
}


class ResponsesCodec(Codec):
    """One conversation as Responses items; all output items, including reasoning, are sent back."""

    wire_format = "responses"
    instructions_role = "developer"
    stream_options: ClassVar[JsonObject] = {"stream": True}
    # developers.openai.com/api/docs/guides/file-inputs: all files together must be smaller than 50
    # MB; the limit for a single image is UNVERIFIED
    media = MediaSupport(
        types=dict.fromkeys(
            (*IMAGE_TYPES, "application/pdf", "text/*", *_TEXTS), MAX_CONTENT_BYTES
        ),
        urls=(Image, Document),
    )
    call_ids = r"(?s:.{1,64})"
    reasoning_types = ("reasoning",)
    reasoning_fields = frozenset({"id"})  # the server looks for the reasoning of an id
    output_field = "text.format"
    api_name = "Responses"
    setting_fields: ClassVar[Mapping[str, str]] = {
        "temperature": "temperature",
        "top_p": "top_p",
        "max_output_tokens": "max_output_tokens",
        "reasoning": "reasoning.effort",
        "tool_choice": "tool_choice",
        "parallel_tool_calls": "parallel_tool_calls",
        "cache_ttl": "prompt_cache_options.ttl",
        "service_tier": "service_tier",
    }

    def __init__(self, options: CodecOptions, provider: str) -> None:
        super().__init__(options, provider)
        self._item_ids: set[str] = set()

    def read_text(self, event: AnyJson) -> str:
        match event:
            case {"type": "response.output_text.delta", "delta": str() as text}:
                return text
            case _:
                return ""

    def read_reasoning(self, event: AnyJson) -> Iterable[ReasoningPiece]:
        kind = event.get("type") if isinstance(event, dict) else None
        if kind == "response.output_item.done":
            match event:
                case {"item": {"type": "reasoning"} as item}:
                    return _summary_pieces(item, _place(event, item.get("id")))
                case _:
                    return ()
        if isinstance(kind, str) and kind.startswith("response.reasoning_"):
            return _reasoning_pieces(kind, event)
        return ()

    def join_events(self, events: list[AnyJson]) -> object:
        """Returns the reply in the last event, with items from earlier events if it has none."""
        items: list[AnyJson] = []
        event: AnyJson = None  # `match` would narrow it to a mapping of objects
        for event in events:
            match event:
                case {"type": "response.output_item.done", "item": dict() as item}:
                    items.append(item)
                case {"type": str() as kind, "response": dict() as reply} if kind not in _EARLY:
                    return self._with_items(reply, items, events)
                case {"output": list()} | {"object": "response"}:
                    return event  # a complete reply
                case _:
                    pass
        if any(isinstance(event, dict) and "type" in event for event in events):
            raise unfinished_reply(self.provider, "the response.completed event")
        return event

    def _with_items(
        self, reply: JsonObject, items: list[AnyJson], events: list[AnyJson]
    ) -> JsonObject:
        if reply.get("output"):
            return _with_annotations(reply, events)
        text = "".join(map(self.read_text, events))
        if text and not any(item.get("type") == "message" for item in items):
            part = {"type": "output_text", "text": text, "annotations": []}
            items.append({"type": "message", "role": "assistant", "content": [part]})
        return _with_annotations({**reply, "output": items}, events)

    def usage_of(self, events: list[AnyJson]) -> TokenUsage:
        return read_usage(read_counts(events), "input_tokens", "output_tokens")

    def decode(self, reply: AnyJson) -> AssistantMessage:
        if failure := reported_failure(reply):
            raise error_from_failure(self.provider, failure)
        match reply:
            case {"status": "failed" | "cancelled" | "queued" | "in_progress" as status}:
                message = f"the response is {status}"
                raise error_from_request(self.provider, "provider_failed", message)
            case {"output": list() as items}:
                pass
            case _:
                raise error_from_reply(self.provider, "no output items", of_this_api=False)
        cited, refusals = CitedText(), list[str]()
        calls: list[ToolCall] = []
        for index, item in enumerate(items):
            match item:
                case {"type": "message", "content": parts} if parts is not None:
                    self._read_parts(parts, cited, refusals)
                case {"type": "function_call"}:
                    fields = (item.get(key) for key in ("call_id", "name", "arguments"))
                    fallback_id = f"c{len(self.items):05}{index:03}"
                    calls.append(read_call(*fields, fallback_id=fallback_id))
                case {"type": str() as kind} if kind in _ASKING:
                    message = f"the model made a {kind!r}, and only functions can be answered"
                    remedy = "leave the tool that it belongs to out of options"
                    raise error_from_request(self.provider, "client_error", message, remedy)
                case {"type": _}:
                    pass  # reasoning and built-in tool items are sent back unchanged
                case _:
                    raise error_from_reply(self.provider, "an output item has no type")
        text = "".join(refusals) or self.shown(cited.text)
        done = [
            {"type": "response.output_item.done", "output_index": index, "item": item}
            for index, item in enumerate(items)
            if item["type"] == "reasoning"
        ]
        return AssistantMessage(
            text=text,
            tool_calls=tuple(calls),
            finish="refusal" if refusals else self._finish(reply, calls),
            usage=self.usage_of([reply]),
            wire=tuple(items),
            model=str(reply.get("model") or ""),
            wire_format=self.wire_format,
            requested_model=self.options.model,
            reasoning=self.reasoning_in(done, cited.text),
            citations=() if refusals else cited.citations(text),
        )

    def _finish(self, reply: JsonObject, calls: list[ToolCall]) -> Finish:
        match reply:
            case {"incomplete_details": {"reason": "content_filter"}}:
                return "content_filter"
            case {"status": "incomplete"} | {"incomplete_details": {"reason": str()}}:
                return "length"
            case _:
                return "tool_calls" if calls else "stop"

    def _read_parts(self, parts: AnyJson, cited: CitedText, refusals: list[str]) -> None:
        """Adds a message's texts to `cited`, and its refusals to `refusals`."""
        if not isinstance(parts, list):
            raise error_from_reply(self.provider, "the content of a message is not a list")
        for part in parts:
            match part:
                case {"type": "output_text" | "text", "text": str() as text}:
                    cited.add(text, part.get("annotations"))
                case {"type": "refusal", "refusal": str() as text}:
                    refusals.append(text)
                case {"type": "output_text", "text": value} if value is not None:
                    raise error_from_reply(self.provider, "a text is not a string")
                case _:
                    pass

    def encode_items(self, output: OutputSpec | None) -> JsonObject:
        body: JsonObject = {"input": self.items}
        if output is not None:
            form = encode_output(output, self.options.profile.dialect)
            body["text"] = {"format": {"type": "json_schema", **form}}
        return body

    def encode_tool(self, spec: ToolSpec) -> JsonObject:
        return {"type": "function", **self.encode_function(spec)}

    def encode_named_choice(self, name: str) -> JsonObject:
        return {"type": "function", "name": name}

    def encode_assistant(self, message: AssistantMessage) -> list[JsonObject]:
        items: list[JsonObject] = []
        calls = iter(message.tool_calls)
        item: AnyJson  # `match` would narrow it to a mapping of objects
        for item in message.wire:
            match item:
                case {"type": "function_call"} if call := next(calls, None):
                    items.append({**item, **_encode_call(call)})
                case {"type": "message"} if _is_blank(item):
                    while items and items[-1].get("type") == "reasoning":  # of the blank message
                        del items[-1]
                case {"type": "message", "content": list() as parts}:
                    items.append({**item, "content": list(filter(None, map(_valid_part, parts)))})
                case _:
                    items.append(item)
        items = self._with_valid_ids(items)
        while items and items[-1].get("type") == "reasoning":  # it must be followed by an item
            del items[-1]
        if not items and message.text:
            items.append({"role": "assistant", "content": message.text})
        return items + [{"type": "function_call", **_encode_call(call)} for call in calls]

    def _with_valid_ids(self, items: list[JsonObject]) -> list[JsonObject]:
        """Removes item ids that the request already contains or that the server cannot know.

        Reasoning must have an id. If the server does not store items, reasoning also needs its
        encrypted content. Reasoning without that content is dropped, and later items lose their ids
        because they refer to it.
        """
        stateless = self.options.extra.get("store") is False
        valid: list[JsonObject] = []
        is_lost = False
        for item in items:
            is_reasoning, item_id = item.get("type") == "reasoning", item.get("id")
            is_lost |= is_reasoning and stateless and not item.get("encrypted_content")
            if isinstance(item_id, str) and not is_lost and item_id not in self._item_ids:
                self._item_ids.add(item_id)
                valid.append(item)
            elif not is_reasoning:
                valid.append({key: value for key, value in item.items() if key != "id"})
        return valid

    def encode_answer(self, message: ToolMessage) -> JsonObject:
        item: JsonObject = {"type": "function_call_output", "call_id": message.call_id}
        if not message.media:
            return item | {"output": message.content}
        parts: list[Part] = [message.content, *message.media]
        return item | {"output": [self.encode_part(part) for part in parts if part != ""]}

    def encode_text(self, text: str) -> JsonObject:
        return {"type": "input_text", "text": text}

    def encode_media(self, media: Media) -> JsonObject:
        if isinstance(media, Image):
            return {"type": "input_image", "image_url": self.data_url(media), "detail": "auto"}
        if media.url:
            return {"type": "input_file", "file_url": media.url}
        # The API requires a name for data.
        name = media.name or "document"
        return {"type": "input_file", "filename": name, "file_data": self.data_url(media)}

    def add_tools(self, added: Mapping[str, JsonObject]) -> None:
        if not self.options.tools_in_conversation:
            super().add_tools(added)
            return
        tools = list(added.values())
        self.items.append({"type": _ADDED_TOOLS, "role": "developer", "tools": tools})

    def remove_tools(self, names: Collection[str]) -> None:
        super().remove_tools(names)
        for item in self.items:
            # Removing a tool changes the item that added it, and the cached prefix ends at that
            # item.
            if item.get("type") == _ADDED_TOOLS:
                item["tools"] = [tool for tool in item["tools"] if tool["name"] not in names]
        self.items[:] = [
            item for item in self.items if item.get("type") != _ADDED_TOOLS or item["tools"]
        ]


def _encode_call(call: ToolCall) -> JsonObject:
    return {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}


def _with_annotations(reply: JsonObject, events: list[AnyJson]) -> JsonObject:
    """Returns a reply; parts without annotations get those that only earlier events contain."""
    found: dict[tuple[int, int], list[AnyJson]] = {}
    for event in events:
        match event:
            case {
                "type": "response.output_text.annotation.added",
                "output_index": int() as index,
                "content_index": int() as place,
                "annotation": dict() as annotation,
            }:
                found.setdefault((index, place), []).append(annotation)
            case _:
                pass
    for index, item in enumerate(reply["output"] if found else ()):
        parts: AnyJson = item.get("content") if isinstance(item, dict) else None
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and not part.get("annotations") and (index, place) in found:
                part["annotations"] = found[index, place]
    return reply


def _place(event: JsonObject, item_id: AnyJson) -> str:
    """Returns the item that an event belongs to; some servers omit its index."""
    index = event.get("output_index")
    return f"{item_id if index is None else index}"


def _reasoning_pieces(kind: str, event: JsonObject) -> Iterator[ReasoningPiece]:
    """Yields the pieces in an event about a reasoning item."""
    place = _place(event, event.get("item_id"))
    match kind.removeprefix("response.reasoning_"), event:
        case "summary_text.delta", {"delta": str() as text}:
            yield ReasoningPiece("summary", f"{place}/{event.get('summary_index', 0)}", text)
        case ("summary_text.done", {"text": str() as text}) | (
            "summary_part.done",
            {"part": {"text": str() as text}},
        ):
            part = f"{place}/{event.get('summary_index', 0)}"
            yield ReasoningPiece("summary", part, text, is_whole=True)
        case "text.delta", {"delta": str() as text}:
            yield ReasoningPiece("text", f"{place}/{event.get('content_index', 0)}", text)
        case "text.done", {"text": str() as text}:
            part = f"{place}/{event.get('content_index', 0)}"
            yield ReasoningPiece("text", part, text, is_whole=True)
        case _:
            pass


def _summary_pieces(item: JsonObject, place: str) -> Iterator[ReasoningPiece]:
    """Yields the pieces of a complete reasoning item: its summary, or its text on open servers."""
    for source, name in (("summary", "summary"), ("text", "content")):
        parts = item.get(name)
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            match part:
                case {"text": str() as text}:
                    yield ReasoningPiece(source, f"{place}/{index}", text, is_whole=True)
                case _:
                    pass


def _valid_part(part: AnyJson) -> JsonObject | None:
    """Returns a message part in the API's form, or `None` if `decode` does not read it."""
    match part:
        case {"type": "output_text" | "text", "text": str()}:
            return {**part, "type": "output_text"}
        case {"type": "refusal", "refusal": str()}:
            return {**part}
        case _:
            return None


def _is_blank(item: AnyJson) -> bool:
    """Returns whether one of the model's messages contains only blank text."""
    parts = [part for part in item.get("content") or () if isinstance(part, dict)]
    texts = [part.get("text") or part.get("refusal") for part in parts]
    return not "".join([text for text in texts if isinstance(text, str)]).strip()
