"""The Messages codec encodes conversations for Anthropic's API and its prompt cache.

Each request begins with the previous one, apart from cache marks. Newer models reject a request
that changes earlier content, because their thinking blocks are tied to everything that precedes
them.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...content import Image, Media, Part
from ...evaluation.inner_loop import ProviderRequest
from ...evaluation.messages import AssistantMessage, ToolCall, ToolMessage
from ...evaluation.schemas import OutputSpec, ToolSpec
from ...limits import TokenUsage
from ...model_settings import CacheTTL, ModelSettings
from ...prompt.registry import RESERVED_TOOL_NAMES
from ..cited_text import CitedText
from ..claude_media import CLAUDE_MEDIA, MAX_IMAGES, MAX_MEDIA_CHARS, encode_claude_media
from ..codec import (
    AnyJson,
    Codec,
    CodecOptions,
    JsonObject,
    read_call,
    read_count,
    read_counts,
    read_finish,
    read_hour_writes,
)
from ..deltas import HIDDEN, ReasoningPiece, thinking_pieces
from ..provider_errors import (
    error_from_failure,
    error_from_reply,
    reported_failure,
    unfinished_reply,
)
from ..schema_dialects import encode_schema
from ..server_profile import ServerProfile
from ..valid_messages import NO_TEXT
from .strict_schemas import ANTHROPIC, StrictLimits

__all__ = ["MessagesCodec", "MessagesOptions", "ToolChanges"]

type ToolChanges = Literal["inline", "deferred", "list"]
"""How tools are added to a conversation; see `AnthropicAdapter`."""

_INLINE_BETA = "inline-tools-2026-09-15"
_MAX_MARKS = 4  # cache marks in one request
# UNVERIFIED: other clients report that the first change of tools misses the entire cache unless the
# first request declared a deferred tool. The model never sees this placeholder.
_PLACEHOLDER: JsonObject = {
    "name": "unused_placeholder",
    "description": "Not for use.",
    "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
    "defer_loading": True,
}
_ANTHROPIC = ServerProfile(unsupported_settings=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesOptions(CodecOptions):
    """How the Messages codec encodes requests; see `AnthropicAdapter`."""

    max_tokens: int
    tool_changes: ToolChanges
    strict_tools: bool
    cache: Literal["5m", "1h"] | None
    profile: ServerProfile = _ANTHROPIC


class MessagesCodec(Codec):
    """One conversation in the Messages format; `deferred` has all tools, even in closed sections.

    The model's own blocks, including thinking, are sent back unchanged.
    """

    wire_format = "messages"
    instructions_role = "system"
    stream_options: ClassVar[JsonObject] = {"stream": True}
    media = CLAUDE_MEDIA
    call_ids = "[a-zA-Z0-9_-]+"
    reasoning_types = ("thinking", "redacted_thinking")
    output_field = "output_config.format"
    api_name = "Messages"
    setting_fields: ClassVar[Mapping[str, str]] = {
        "temperature": "temperature",
        "top_p": "top_p",
        "max_output_tokens": "max_tokens",
        "reasoning": "output_config.effort",
        "stop": "stop_sequences",
        "tool_choice": "tool_choice",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "service_tier": "service_tier",
        "cache_ttl": "cache_control.ttl",
    }

    def __init__(
        self, options: MessagesOptions, provider: str, deferred: Sequence[ToolSpec] = ()
    ) -> None:
        super().__init__(options, provider)
        self._settings = options
        self._deferred = deferred
        self._discloses = False
        self._limits = StrictLimits()
        self._output_schema: JsonObject | None = None
        self._system: list[JsonObject] = []
        self._specs: dict[str, tuple[ToolSpec, JsonObject]] = {}
        self._disclosure_calls: set[str] = set()
        self._loaded: set[str] = set()
        self._marked: list[JsonObject] = []
        self._images = self._media_chars = 0

    def begin(self, request: ProviderRequest) -> None:
        output = request.output
        if output is not None and self.options.structured_output == "native":
            self._output_schema = self._limits.fit(output.schema, tool=False)
        super().begin(request)
        self.declares_output = self._output_schema is not None
        self._discloses = not self.tools.keys().isdisjoint(RESERVED_TOOL_NAMES)
        if self._discloses and self._settings.tool_changes == "inline":
            self.tools[_PLACEHOLDER["name"]] = _PLACEHOLDER
        elif self._discloses and self._settings.tool_changes == "deferred":
            for spec in self._deferred:
                tool = {**self.encode_tool(spec), "defer_loading": True}
                self.tools.setdefault(spec.name, tool)

    def continues(self, request: ProviderRequest, count: int) -> bool:
        # The output schema uses up part of the limit for all schemas.
        return super().continues(request, count) and request.output == self._output

    def encode(self, request: ProviderRequest) -> JsonObject:
        written = len(self.items)
        body = super().encode(request)
        items = self.items[written:]
        if not written and items and items[0].get("role") == "system":
            self._system = self._blocks(items.pop(0)["content"])
        self.items[written:] = self._join_messages(items)
        if self._system:
            body["system"] = self._system
        if self._discloses and self._settings.tool_changes == "inline":
            body["betas"] = [*body.get("betas", ()), _INLINE_BETA]
        cache: CacheTTL | None = self._settings.cache
        if (settings := request.settings) is not None and "cache_ttl" in settings.given:
            cache = settings.cache_ttl
        if cache is not None:
            # Not every server supports `ttl`, which defaults to five minutes.
            ttl = {"ttl": "1h"} if cache == "1h" else {}
            self._mark_cache(body, {"type": "ephemeral", **ttl})
        return body

    def encode_items(self, output: OutputSpec | None) -> JsonObject:
        body: JsonObject = {"max_tokens": self._settings.max_tokens, "messages": self.items}
        if output is not None:
            form = {"type": "json_schema", "schema": self._output_schema}
            body["output_config"] = {"format": form}
        return body

    @classmethod
    def check_settings(cls, settings: ModelSettings, profile: ServerProfile, by: str) -> None:
        super().check_settings(settings, profile, by)
        if settings.cache_ttl not in (None, "5m", "1h"):
            raise ValueError(f"{by} supports cache_ttl '5m' and '1h', got {settings.cache_ttl!r}")
        if settings.reasoning == "minimal":
            raise ValueError(f"{by} does not support reasoning 'minimal'; use 'low'")
        others: list[str] = ["tool_choice"] if settings.forces_call else []
        others += ["temperature"] if settings.temperature not in (None, 1) else []
        if others and settings.reasoning not in (None, "none"):
            raise ValueError(
                f"{by} does not support reasoning={settings.reasoning!r} together with "
                f"{others[0]}={getattr(settings, others[0])!r}; remove one of them, "
                f"for example with ModelSettings({others[0]}=None)"
            )

    def encode_setting(self, name: str, value: object, tools: Collection[str]) -> JsonObject:
        match name, value:
            case "reasoning", "none":
                return {"thinking": {"type": "disabled"}, "output_config.effort": None}
            case "reasoning", str():  # models before 5.0 think only if they are asked to
                return {"thinking": {"type": "adaptive"}, "output_config.effort": value}
            case "reasoning", _:
                return {"thinking": None, "output_config.effort": None}
            case "parallel_tool_calls", bool():
                value = None if value else True
            case "max_output_tokens", None:
                value = self._settings.max_tokens
            case "cache_ttl", _:
                return {}  # see `encode`
            case _:
                pass
        return super().encode_setting(name, value, tools)

    def add_settings(self, body: JsonObject, request: ProviderRequest) -> JsonObject:
        body = super().add_settings(body, request)
        if isinstance(choice := body.get("tool_choice"), dict):
            body["tool_choice"] = choice = {"type": "auto", **choice}
            if choice["type"] == "none":  # without calls, none are parallel
                choice.pop("disable_parallel_tool_use", None)
        return body

    def encode_choice(self, choice: str) -> JsonObject:
        return {"type": "any" if choice == "required" else choice}

    def encode_named_choice(self, name: str) -> JsonObject:
        return {"type": "tool", "name": name}

    def encode_tool(self, spec: ToolSpec) -> JsonObject:
        """Encodes a tool; caches the entry, because a section can close and reopen."""
        known, tool = self._specs.get(spec.name, (None, {}))
        if known != spec:
            schema = encode_schema(spec.parameters, ANTHROPIC).plain
            tool = {"name": spec.name, "description": spec.description, "input_schema": schema}
            if self._settings.strict_tools and (strict := self._limits.fit(schema, tool=True)):
                tool |= {"input_schema": strict, "strict": True}
            self._specs[spec.name] = spec, tool
        return tool

    def encode_assistant(self, message: AssistantMessage) -> list[JsonObject]:
        self._disclosure_calls.update(
            [call.call_id for call in message.tool_calls if call.name in RESERVED_TOOL_NAMES]
        )
        blocks: list[JsonObject] = []
        calls = iter(message.tool_calls)
        block: AnyJson  # `match` would narrow it to a mapping of objects
        for block in message.wire:
            match block:
                # The API can return blank texts and unsigned thinking, but does not accept them.
                case {"type": "text"} if not (block.get("text") or "").strip():
                    pass
                case {"type": "thinking"} if not block.get("signature"):
                    pass
                case {"type": "tool_use"} if call := next(calls, None):
                    blocks.append({**block, **_encode_call(call)})
                case _:
                    blocks.append(block)
        if not message.wire and message.text:
            blocks.append({"type": "text", "text": message.text})
        blocks += [_encode_call(call) for call in calls]
        return [
            {
                "role": "assistant",
                "content": _without_final_thinking(blocks),
                "finish": message.finish,
            }
        ]

    def encode_answer(self, message: ToolMessage) -> JsonObject:
        block: JsonObject = {"type": "tool_result", "tool_use_id": message.call_id}
        if message.content:
            block["content"] = message.content
        if not message.success:
            return {**block, "is_error": True}  # an error can contain only text
        if message.media:
            parts: list[Part] = [message.content, *message.media]
            block["content"] = [self.encode_part(part) for part in parts if part != ""]
        return block

    def encode_media(self, media: Media) -> JsonObject:
        base64 = "" if media.url else self.base64(media)
        self._images += isinstance(media, Image)
        self._media_chars += len(base64)
        if self._images > MAX_IMAGES or self._media_chars > MAX_MEDIA_CHARS:
            raise self._content_error(
                f"{media} is too much for one request, which can have {MAX_IMAGES} images and "
                f"{MAX_MEDIA_CHARS:,} base64 characters; start another conversation, or pass URLs"
            )
        return encode_claude_media(media, base64)

    def add_tools(self, added: Mapping[str, JsonObject]) -> None:
        match self._settings.tool_changes:
            case "inline":
                self._discloses = True
                for tool in added.values():
                    definition = {"type": "tool_definition", "definition": tool}
                    self.items.append({"type": "tool_addition", "tool": definition})
            case "deferred":
                for name, tool in added.items():
                    if self.tools.get(name) != {**tool, "defer_loading": True}:
                        self.tools[name] = tool  # it is new, or its description has changed
                    elif name not in self._loaded:
                        self._loaded.add(name)
                        self.items.append({"type": "tool_reference", "tool_name": name})
            case "list":
                super().add_tools(added)

    def remove_tools(self, names: Collection[str]) -> None:
        match self._settings.tool_changes:
            case "inline":
                for name in names:
                    reference = {"type": "tool_reference", "name": name}
                    self.items.append({"type": "tool_removal", "tool": reference})
            case "deferred":
                pass  # a loaded tool cannot be unloaded; the loop rejects its calls
            case "list":
                super().remove_tools(names)

    def _join_messages(self, items: list[JsonObject]) -> list[JsonObject]:
        """Joins new items into messages in the order that the API requires.

        The model's message is followed by a user message, which contains the results of all calls
        and then the texts, and by a system message, which contains the tool changes. Only the rest
        of a paused answer directly follows the model's message.
        """
        messages: list[JsonObject] = []
        finish = ""
        results: list[JsonObject] = []
        texts: list[JsonObject] = []
        changes: list[JsonObject] = []
        references: list[JsonObject] = []
        for item in [*items, {"role": "assistant"}]:
            match item:
                case {"type": "tool_result"}:
                    results.append(item)
                case {"type": "tool_reference"}:
                    references.append(item)
                case {"type": "tool_addition" | "tool_removal"}:
                    changes.append(item)
                case {"role": "system", "content": text} if self._settings.tool_changes == "inline":
                    # Models that accept tool changes in system messages also accept texts there,
                    # without a beta header.
                    changes.append({"type": "text", "text": text})
                case {"role": "user" | "system", "content": content}:
                    texts += self._blocks(content)
                case _:
                    content = [*results, *self._place_references(references, results), *texts]
                    if finish == "pause" and content:  # the user interrupts the paused answer
                        messages[-1]["content"] = _without_open_calls(messages[-1]["content"])
                    messages += [{"role": "user", "content": content}] if content else []
                    messages += [{"role": "system", "content": changes}] if changes else []
                    messages.append(item)
                    finish = item.pop("finish", "")
                    results, texts, changes, references = [], [], [], []
        return messages[:-1]

    def _blocks(self, content: str | list[JsonObject]) -> list[JsonObject]:
        return [self.encode_text(content)] if isinstance(content, str) else content

    def _place_references(
        self, references: list[JsonObject], results: list[JsonObject]
    ) -> list[JsonObject]:
        """Moves references to deferred tools into the result of the call that opened their section.

        Returns that result's own blocks, which must follow all results. If there is no such result,
        the tools are listed like any others from then on.
        """
        if not references:
            return []
        for result in reversed(results):
            opened = result["tool_use_id"] in self._disclosure_calls and "is_error" not in result
            if opened and (content := result.get("content")):
                # UNVERIFIED: whether one result can contain both text and references.
                result["content"] = references
                return self._blocks(content)
        for reference in references:
            self.tools[reference["tool_name"]].pop("defer_loading")
        return []

    def _mark_cache(self, body: JsonObject, mark: JsonObject) -> None:
        """Marks the end of the tools, of the previous request and of this request.

        The provider caches the prefix up to a mark. It looks for a cached prefix at most 20 blocks
        before a mark, and one turn can add more blocks than that. It accepts four marks.
        """
        tools: list[JsonObject] = body.get("tools", [])
        for index in range(len(tools) - 1, -1, -1):
            if "defer_loading" not in tools[index]:
                tools[index] = {**tools[index], "cache_control": mark}
                break
        for block in self._marked:
            del block["cache_control"]
        ends, after = [self._system], "assistant"
        for item in reversed(self.items):
            role = item["role"]
            if role != "assistant" and after == "assistant":
                ends.append(item["content"])
                if len(ends) == _MAX_MARKS - 1:  # the fourth mark is for the tools
                    break
            after = role
        self._marked = [blocks[-1] for blocks in ends if blocks]
        for block in self._marked:
            block["cache_control"] = mark

    def decode(self, reply: AnyJson) -> AssistantMessage:
        if failure := reported_failure(reply):
            raise error_from_failure(self.provider, failure)
        match reply:
            case {"content": list() as blocks, "stop_reason": str() as reason}:
                pass
            case {"content": list(), "type": "message"}:
                raise unfinished_reply(self.provider, "the stop_reason")
            case _:
                reason = "content or stop_reason is missing"
                raise error_from_reply(self.provider, reason, of_this_api=False)
        cited = CitedText()
        calls: list[ToolCall] = []
        for index, block in enumerate(blocks):
            match block:
                case {"type": "text", "text": str() as text}:
                    cited.add(text, block.get("citations"), whole_part=True)
                case {"type": "text", "text": value} if value is not None:
                    raise error_from_reply(self.provider, "a text block's text is not a string")
                case {"type": "tool_use"}:
                    fields = (block.get(key) for key in ("id", "name", "input"))
                    fallback_id = f"c{len(self.items):05}{index:03}"
                    calls.append(read_call(*fields, fallback_id=fallback_id))
                case {"type": _}:
                    pass  # thinking and provider tool blocks are sent back unchanged
                case _:
                    raise error_from_reply(self.provider, "a block has no type")
        finish = read_finish(self.provider, reason, calls)
        text = cited.text
        if finish == "refusal" and not text:
            text = str((reply.get("stop_details") or {}).get("explanation") or "")
        starts = [
            {"type": "content_block_start", "index": index, "content_block": block}
            for index, block in enumerate(blocks)
            if block["type"] in self.reasoning_types
        ]
        return AssistantMessage(
            text=text,
            tool_calls=tuple(calls),
            finish=finish,
            usage=self.usage_of([reply]),
            wire=tuple(blocks),
            model=str(reply.get("model") or ""),
            wire_format=self.wire_format,
            requested_model=self.options.model,
            reasoning=self.reasoning_in(starts),
            citations=cited.citations(cited.text),
        )

    def read_text(self, event: AnyJson) -> str:
        match event:
            case {
                "type": "content_block_delta",
                "delta": {"type": "text_delta", "text": str() as text},
            }:
                return text
            case _:
                return ""

    def read_reasoning(self, event: AnyJson) -> Iterable[ReasoningPiece]:
        match event:
            case {"delta": {"type": "text_delta"}}:
                return ()
            case {"type": "content_block_start", "content_block": {"type": "redacted_thinking"}}:
                return [ReasoningPiece("blocks", f"{event.get('index')}", HIDDEN)]
            case {"type": "content_block_start", "content_block": {"type": "thinking"} as block} | {
                "type": "content_block_delta",
                "delta": {"type": "thinking_delta" | "signature_delta"} as block,
            }:
                return thinking_pieces(block, f"{event.get('index')}")
            case _:
                return ()

    def join_events(self, events: list[AnyJson]) -> object:
        reply: JsonObject | None = None
        blocks: dict[int, JsonObject] = {}
        deltas: dict[int, dict[str, list[AnyJson]]] = {}
        event: AnyJson = None  # `match` would narrow it to a mapping of objects
        for event in events:
            match event:
                case {"type": "message_start", "message": dict() as message}:
                    reply = {"stop_reason": None, **message}
                case {"type": "content_block_start", "index": int() as index}:
                    blocks[index], deltas[index] = {**event["content_block"]}, {}
                case {"type": "content_block_delta", "index": int() as index}:
                    for key, value in event["delta"].items():
                        deltas[index].setdefault(key, []).append(value)
                case {"type": "message_delta", "delta": dict() as delta} if reply:
                    reply |= delta
                case {"type": "content_block_start" | "content_block_delta"}:
                    raise error_from_reply(self.provider, "a block has no index")
                case _:
                    pass
        if reply is None:
            return event  # a complete reply, or an event from another API
        if reply["stop_reason"] is None:
            raise unfinished_reply(self.provider, "the stop_reason")
        content = [_join_block(blocks[index], deltas[index]) for index in sorted(blocks)]
        return {**reply, "content": content, "usage": read_counts(events)}

    def usage_of(self, events: list[AnyJson]) -> TokenUsage:
        return _read_usage(read_counts(events))


def _join_block(block: JsonObject, deltas: Mapping[str, list[AnyJson]]) -> JsonObject:
    """Applies deltas to a block: texts, citations and any unknown keys."""
    for key, values in deltas.items():
        match key:
            case "type":
                pass
            case "partial_json":
                text = "".join(values)
                try:
                    block["input"] = json.loads(text) if text else block.get("input", {})
                except (ValueError, RecursionError):
                    block["input"] = text
            case "citation":
                block["citations"] = [*(block.get("citations") or ()), *values]
            case _:
                known = [value for value in values if value is not None]
                is_text = all(isinstance(value, str) for value in known)
                block[key] = "".join([block.get(key) or "", *known]) if is_text else known[-1]
    return block


def _encode_call(call: ToolCall) -> JsonObject:
    arguments = json.loads(call.arguments)
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments}


def _without_open_calls(blocks: list[AnyJson]) -> list[AnyJson]:
    """Removes calls of the provider's own tools that have no result."""
    answered = {block.get("tool_use_id") for block in blocks}
    blocks = [
        block
        for block in blocks
        if block["type"] not in ("server_tool_use", "mcp_tool_use") or block.get("id") in answered
    ]
    return _without_final_thinking(blocks)


def _without_final_thinking(blocks: list[JsonObject]) -> list[JsonObject]:
    """Removes trailing thinking blocks, which cannot end a model's message."""
    while blocks and blocks[-1]["type"] in MessagesCodec.reasoning_types:
        del blocks[-1]
    return blocks or [{"type": "text", "text": NO_TEXT}]


def _read_usage(usage: AnyJson) -> TokenUsage:
    """Reads the usage; Anthropic's `input_tokens` excludes cached tokens."""
    counts: JsonObject = usage if isinstance(usage, dict) else {}
    cached = read_count(counts.get("cache_read_input_tokens"))
    written = read_count(counts.get("cache_creation_input_tokens"))
    details = counts.get("output_tokens_details")
    return TokenUsage(
        read_count(counts.get("input_tokens")) + cached + written,
        read_count(counts.get("output_tokens")),
        cached,
        written,
        read_count(details.get("thinking_tokens")) if isinstance(details, dict) else 0,
        read_hour_writes(counts.get("cache_creation")),
    )
