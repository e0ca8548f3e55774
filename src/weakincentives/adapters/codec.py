"""Codecs encode conversations in a provider's format and decode the provider's replies.

A codec does not perform any I/O; `codec_adapter` sends the requests that a codec encodes.
"""

import json
from abc import abstractmethod
from binascii import b2a_base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import ClassVar, Literal, assert_never

from ..content import ContentError, ContentStore, Media, MediaSupport, Part
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import ProviderRequest
from ..evaluation.messages import (
    AssistantMessage,
    Finish,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    sendable,
)
from ..evaluation.response import TextDelta
from ..evaluation.schemas import OutputSpec, ToolSpec
from ..limits import TokenUsage
from ..serde import Json
from ..serde.json_types import AnyJson
from .deltas import DeltaReader, ReasoningPiece
from .event_stream import read_events
from .provider_errors import error_from_reply, error_from_request
from .schema_dialects import JsonObject, encode_function
from .server_profile import ServerProfile
from .settings_encoder import SettingsEncoder
from .think_tags import split_thoughts
from .valid_messages import ValidMessages

__all__ = [
    "AnyJson",
    "Codec",
    "CodecOptions",
    "JsonObject",
    "PromptRole",
    "Wire",
    "decode_reply",
    "merge_counts",
    "output_instructions",
    "read_arrived",
    "read_call",
    "read_count",
    "read_counts",
    "read_finish",
    "read_hour_writes",
    "read_usage",
]

type PromptRole = Literal["user", "system", "developer"]

type Wire = JsonObject
"""The name of `JsonObject` in 0.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecOptions:
    """Options that determine how a codec encodes requests.

    `prompt_role` is the prompt's role if the user does not send a message, by default `"user"`,
    because every server accepts a user message. If there is a user message, `instructions_role` is
    the prompt's role, by default the codec's own. `changes_role` is the role for sections that
    change later, by default the same. `origin` names the server if it is not the provider's own;
    items such as reasoning are sent back only to the server that they came from.
    `structured_output` requests typed output with the API's own parameter or, for servers without
    that parameter, with instructions in the prompt. `tools_in_conversation` adds later tools to the
    conversation instead of the tools list, so that the provider's cache stays valid. `extra` is
    added to every request and replaces its values, with two exceptions: its tools are listed before
    the prompt's tools, and in a mapping such as `response_format` the prompt's keys win. The value
    `None` removes a field that the codec would send. `media` describes the images and documents
    that the model accepts, by default all that the API accepts. `profile` describes the requests
    that the server accepts.

    Raises `ValueError` for an unknown role or output mode, and if `extra` contains the conversation
    or `stream`.
    """

    model: str
    prompt_role: PromptRole = "user"
    instructions_role: PromptRole | None = None
    changes_role: PromptRole | None = None
    origin: str = ""
    structured_output: Literal["native", "prompted"] = "native"
    tools_in_conversation: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)
    media: MediaSupport | None = None
    profile: ServerProfile = field(default_factory=ServerProfile)

    def __post_init__(self) -> None:
        if self.structured_output not in ("native", "prompted"):
            raise ValueError(
                f"structured_output must be 'native' or 'prompted', got {self.structured_output!r}"
            )
        roles = {
            "prompt_role": self.prompt_role,
            "instructions_role": self.instructions_role,
            "changes_role": self.changes_role,
        }
        for name, role in roles.items():
            if role not in (None, "user", "system", "developer"):
                raise ValueError(f"{name} must be 'user', 'system' or 'developer', got {role!r}")
        if names := self.extra.keys() & {"input", "messages", "stream"}:
            raise ValueError(
                f"options {sorted(names)} cannot be passed because the adapter sets them; remove "
                "them"
            )

    def apply(self, body: JsonObject) -> JsonObject:
        """Returns the complete request body: the model, the prompt's `body` and `extra`."""
        body = {"model": self.model, **body}
        for key, value in self.extra.items():
            match key, value, body.get(key):
                case "stream_options", _, _:
                    pass  # applies only to streams; see `Codec.streamed`
                case _, None, _ if key in body:
                    del body[key]
                case _, Mapping(), dict() as ours:
                    body[key] = {**value, **ours}
                case "tools", [*theirs], [*ours]:  # ours can change, but a cached prefix must not
                    body[key] = [*theirs, *ours]
                case _:
                    body[key] = value
        return body


class Codec(SettingsEncoder):
    """Encodes the requests of one conversation and decodes the replies.

    Encoding is append-only: `encode` encodes only messages added since its last request. Each
    request therefore begins with the bytes of the previous one, which the provider finds in its
    cache. `items` are the messages encoded so far, and `tools` are the tools by name. Only removing
    a tool changes items that were already encoded.

    `ValidMessages` makes the messages valid before they are encoded. A subclass defines how tools,
    the model's messages and tool results are encoded, and how replies are decoded, either complete
    (`decode`) or as events (`read_text`, `join_events`). If the API shows the model's reasoning,
    `read_reasoning` reads it. A subclass that supports images or documents declares them in `media`
    and defines how they are encoded.
    """

    media: MediaSupport = MediaSupport()
    """The images and documents that the API accepts; `encode_media` never receives any others."""

    stream_options: ClassVar[JsonObject]
    """The request fields that make the server stream its reply."""

    wire_format: str
    """The format of the items in `AssistantMessage.wire`; an instance adds the provider's name."""

    instructions_role: PromptRole
    """The prompt's role if there is a user message."""

    reasoning_types: tuple[str, ...] = ()
    """The types of items that contain reasoning."""

    reasoning_fields: frozenset[str] = frozenset()
    """The fields that contain reasoning, or refer to it, in other items."""

    call_ids: str = r"(?s:.+)"
    """A regular expression for the tool call ids that the API accepts."""

    def __init__(self, options: CodecOptions, provider: str) -> None:
        self.options = options
        self.profile = options.profile
        self.provider = provider
        self.items: list[JsonObject] = []
        self.tools: dict[str, JsonObject] = {}
        self.wire_format = "/".join(filter(None, [self.wire_format, provider, options.origin]))
        self.declares_output = False
        self._encoded = 0
        call_ids = options.profile.call_ids or self.call_ids
        self._valid = ValidMessages(
            self.wire_format, call_ids, options.model, self.without_reasoning
        )
        self._functions: dict[str, ToolSpec] = {}
        self._is_strict = options.profile.strict != "never"
        # Tools in the conversation cannot change later.
        self._is_uniform = options.profile.strict == "uniform" and not options.tools_in_conversation
        self._has_plain_tools = False
        self._output: OutputSpec | None = None
        self._content: ContentStore | None = None
        if options.media is not None:
            self.media = options.media
        # Parts that a tool result cannot contain; they follow the turn's results.
        self._after_answers: list[Part] = []

    def encode(self, request: ProviderRequest) -> JsonObject:
        """Returns the body of a request; its lists belong to the codec.

        The transcript must begin with the previous request's transcript.
        """
        if not self._encoded:
            self.begin(request)
        output = request.output
        declared, prompted = (output, None) if self.declares_output else (None, output)
        self._content = request.content
        first = request.transcript[0]
        for message in self._valid.read(request.transcript[self._encoded :]):
            if not isinstance(message, ToolMessage):
                self._add_after_answers()
            self._encode_message(message, prompted, is_first=message is first)
        self._add_after_answers()
        self._encoded, self._output = len(request.transcript), output
        if self._has_plain_tools and self._is_strict and self._is_uniform:
            self._is_strict = False
            self.tools = {name: self.encode_tool(self._functions[name]) for name in self.tools}
        tools = {"tools": list(self.tools.values())} if self.tools else {}
        body = self.options.apply({**self.encode_items(declared), **tools})
        return body if request.settings is None else self.add_settings(body, request)

    def streamed(self, body: JsonObject) -> JsonObject:
        """Returns the request `body` with the fields that make the server stream its reply."""
        added = {**self.stream_options}
        if "stream_options" in self.options.extra:
            added["stream_options"] = self.options.extra["stream_options"]
        rejected = self.options.profile.rejected_fields
        return body | {
            key: value for key, value in added.items() if value is not None and key not in rejected
        }

    def _encode_message(
        self, message: Message, output: OutputSpec | None, *, is_first: bool
    ) -> None:
        """Encodes one message; the first one also requests `output`."""
        match message:
            case Instructions(content, media):
                role = self.options.instructions_role or self.instructions_role
                if not is_first:
                    role = self.options.changes_role or role
                self._add_text(role, content, output)
                self._add_parts([part for item in media for part in (str(item), item)])
            case UserMessage(content) if isinstance(content, str):
                self._add_text("user" if self.items else self.options.prompt_role, content, output)
            case UserMessage(content):
                asked = [] if output is None or self.items else [output_instructions(output)]
                self._add_parts([*content, *asked])
            case AssistantMessage():
                self.items += self.encode_assistant(message)
            case ToolMessage():
                self.items.append(self.encode_answer(message))
            case ToolsAdded(added):
                self.add_tools({spec.name: self.encode_tool(spec) for spec in added})
            case ToolsRemoved(names):
                self.remove_tools(names)
            case never:
                assert_never(never)

    def begin(self, request: ProviderRequest) -> None:
        """Prepares the first request: encodes the tools and decides how to request the output."""
        self.tools = {spec.name: self.encode_tool(spec) for spec in request.tools}
        self.declares_output = self.options.structured_output == "native"

    def continues(self, request: ProviderRequest, count: int) -> bool:
        """Returns whether the codec has encoded exactly the first `count` messages of `request`.

        The caller ensures that the messages are the same; this method compares only their number
        and the output.
        """
        same_output = self.declares_output or self._output == request.output
        return self._encoded == count and same_output

    def _add_text(self, role: PromptRole, content: str, output: OutputSpec | None = None) -> None:
        if role == "developer" and not self.options.profile.developer_role:
            role = "system"
        if output is not None and not self.items:
            content = f"{content}\n\n{output_instructions(output)}"
        if content.strip():
            self.items.append({"role": role, "content": content})

    def _add_parts(self, parts: Sequence[Part]) -> None:
        """Adds a user message with these parts, if there are any."""
        if parts:
            content = [self.encode_part(part) for part in parts]
            self.items.append({"role": "user", "content": content})

    def _add_after_answers(self) -> None:
        parts, self._after_answers = self._after_answers, []
        self._add_parts(parts)

    def encode_part(self, part: Part) -> JsonObject:
        """Encodes a part of a message; raises `PromptEvaluationError` for unsupported media."""
        if isinstance(part, str):
            return self.encode_text(part)
        if problem := self.media.problem(part):
            raise self._content_error(f"cannot send {part}: {problem}")
        return self.encode_media(part)

    def encode_text(self, text: str) -> JsonObject:
        """Encodes text as a part of a message."""
        return {"type": "text", "text": text}

    def encode_media(self, media: Media) -> JsonObject:
        """Encodes an image or a document as a part of a message."""
        raise NotImplementedError(f"{type(self).__name__} declares media; define encode_media")

    def data_url(self, media: Media) -> str:
        """Returns the URL of `media`, or a data URL that contains its bytes."""
        return media.url or f"data:{media.mime};base64,{self.base64(media)}"

    def base64(self, media: Media) -> str:
        """Returns the bytes of `media` as base64, or raises `PromptEvaluationError`."""
        if self._content is None:
            raise self._content_error(
                f"cannot send {media} because the request has no content store; pass "
                "ProviderRequest(content=…)"
            )
        try:
            return b2a_base64(self._content.load(media), newline=False).decode()
        except ContentError as error:
            raise self._content_error(f"{error}") from error

    def _content_error(self, message: str) -> PromptEvaluationError:
        return error_from_request(self.provider, "content", f"{self.options.model}: {message}")

    @abstractmethod
    def encode_items(self, output: OutputSpec | None) -> JsonObject:
        """Returns the body fields for the items and for the declared output, if any."""

    @abstractmethod
    def encode_tool(self, spec: ToolSpec) -> JsonObject:
        """Encodes a tool as an entry in the tools list."""

    def encode_function(self, spec: ToolSpec) -> JsonObject:
        """Encodes a tool in the format of OpenAI's APIs, strict if the profile allows it."""
        tool = encode_function(spec, self.options.profile.dialect, strict=self._is_strict)
        self._functions[spec.name] = spec
        self._has_plain_tools |= not tool.get("strict")
        return tool

    @abstractmethod
    def encode_assistant(self, message: AssistantMessage) -> list[JsonObject]:
        """Encodes the model's own message as items to send back.

        The provider's items in `message.wire` are sent back unchanged if they are valid. Call ids,
        names and arguments come from `message.tool_calls`, which has one entry for each call in
        `wire`.
        """

    @abstractmethod
    def encode_answer(self, message: ToolMessage) -> JsonObject:
        """Encodes a tool call's result as an item."""

    def add_tools(self, added: Mapping[str, JsonObject]) -> None:
        """Adds tools, by name, to the next and later requests."""
        self.tools |= added

    def remove_tools(self, names: Collection[str]) -> None:
        """Removes these tools from the next and later requests."""
        for name in names:
            self.tools.pop(name, None)

    @abstractmethod
    def decode(self, reply: AnyJson) -> AssistantMessage:
        """Decodes the message in a complete reply.

        Raises `PromptEvaluationError` for a reply without a message. `decode_reply` converts every
        other exception to that error.
        """

    @abstractmethod
    def read_text(self, event: AnyJson) -> str:
        """Returns the text that a stream event adds, or `""`."""

    def read_reasoning(self, event: AnyJson) -> Iterable[ReasoningPiece]:
        """Returns the pieces of reasoning that a stream event adds; none by default."""
        return ()

    def without_reasoning(self, items: tuple[Json, ...]) -> tuple[Json, ...]:
        """Returns items for another model of the same provider, which cannot read the reasoning."""
        return tuple(
            [
                {key: value for key, value in item.items() if key not in self.reasoning_fields}
                for item in items
                if isinstance(item, dict) and item.get("type") not in self.reasoning_types
            ]
        )

    def delta_reader(self) -> DeltaReader:
        """Returns a reader for the events of one reply."""
        think_tags = self.options.profile.think_tags
        return DeltaReader(self.read_text, self.read_reasoning, think_tags=think_tags)

    def reasoning_in(self, events: Iterable[AnyJson], text: str = "") -> str:
        """Returns the reasoning in a reply's events, or in its `text`."""
        pieces = [piece for event in events for piece in self.read_reasoning(event)]
        if self.options.profile.think_tags:
            pieces.append(ReasoningPiece("tags", "", split_thoughts(text)[0]))
        if not pieces:
            return ""
        reader = self.delta_reader()
        for piece in pieces:
            reader.add(piece)
        return reader.reasoning

    @abstractmethod
    def join_events(self, events: list[AnyJson]) -> object:
        """Joins a stream's events into a reply for `decode`; `None` if there are no events."""

    def shown(self, text: str) -> str:
        """Returns the model's text without any reasoning that the server left in it."""
        return split_thoughts(text)[1] if self.options.profile.think_tags else text

    def usage_of(self, events: list[AnyJson]) -> TokenUsage:
        """Returns the usage reported in some of a reply's events, or in a complete reply."""
        return TokenUsage()


def output_instructions(output: OutputSpec) -> str:
    """Returns instructions, for the prompt's text, that request the declared output."""
    schema = json.dumps(output.schema, ensure_ascii=False)
    return (
        "Give your final answer as one JSON value that fits this JSON schema, and nothing beside"
        f" it:\n\n{schema}"
    )


def _read_float(text: str) -> float | str:
    """Returns a number, or its text if the number is too large for JSON."""
    number = float(text)
    return number if isfinite(number) else text


# `json.dumps` and `json.loads` would create a new encoder and decoder for each reply.
_encode_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
_decode_json = json.JSONDecoder(parse_constant=str, parse_float=_read_float).decode


def decode_reply(codec: Codec, reply: AnyJson, *, streamed: bool = False) -> AssistantMessage:
    """Decodes a reply with `codec`; the reply can be JSON bytes, JSON values or stream events.

    Raises `PromptEvaluationError` with code `"malformed"` if the codec cannot read the reply,
    whatever exception it raises.
    """
    try:
        is_plain = False
        if isinstance(reply, bytes):
            reply, streamed = _read_bytes(reply)
            is_plain = not streamed
        if streamed:
            reply = codec.join_events(reply)
        answer = codec.decode(reply if is_plain else _plain(reply))
        model = codec.options.model
        if (answer.wire_format, answer.requested_model) != (codec.wire_format, model):
            answer = replace(answer, wire_format=codec.wire_format, requested_model=model)
        return answer
    except PromptEvaluationError:
        raise
    except Exception as error:
        cause = None if isinstance(error, UnicodeError) else error  # its repr contains the reply
        reason = f"reading it failed with {type(error).__name__}"
        raise error_from_reply(codec.provider, reason, of_this_api=False) from cause


def _read_bytes(body: bytes) -> tuple[AnyJson, bool]:
    """Returns a reply as JSON, or as a list of events if the server streamed it unasked."""
    try:
        return _plain(body), False
    except ValueError:
        if b"data:" not in body:
            raise
        return list(read_events([body])), True


def read_arrived(codec: Codec, events: list[AnyJson]) -> AssistantMessage:
    """Returns the part received so far of an answer that failed or was stopped, and its usage."""
    text, usage, reader = "", TokenUsage(), codec.delta_reader()
    with suppress(Exception):  # a reply can be anything, and the original failure is already known
        parts = [_plain(event) if isinstance(event, bytes) else event for event in events]
        deltas = [delta for event in parts for delta in reader.read(event)]
        texts = [delta.text for delta in deltas if isinstance(delta, TextDelta)]
        text = codec.shown(sendable("".join(texts)))
        usage = codec.usage_of(parts)
    reasoning = sendable(reader.reasoning)
    return AssistantMessage(text=text, finish="error", usage=usage, reasoning=reasoning)


def read_counts(events: list[AnyJson]) -> JsonObject:
    """Returns the token counts in all events or a complete reply, in any place or format."""
    usage: JsonObject = {}
    for event in events:
        if not isinstance(event, dict):
            continue
        choices = event.get("choices")
        inner = choices if isinstance(choices, list) else ()
        for holder in (*inner, event.get("message"), event.get("response"), event):
            if isinstance(holder, dict) and "usage" in holder:
                merge_counts(usage, holder["usage"])
    return usage


def merge_counts(usage: JsonObject, counts: AnyJson) -> None:
    """Merges an event's counts into `usage`; a later zero or null does not replace a count."""
    for key, count in counts.items() if isinstance(counts, dict) else ():
        if isinstance(count, dict):
            inner = usage.get(key)
            usage[key] = dict(inner) if isinstance(inner, dict) else {}
            merge_counts(usage[key], count)
        elif count not in (0, None) or key not in usage:
            usage[key] = count


_REASONS: Mapping[Finish, str] = {
    "stop": "stop end_turn stop_sequence eos eos_token end completed complete stopped",
    "tool_calls": "tool_calls tool_call tool_use function_call function_calls",
    "pause": "pause_turn",
    "length": "length max_tokens model_length max_length max_output_tokens token_limit"
    " model_context_window_exceeded context_length_exceeded context_window_exceeded",
    "content_filter": "content_filter content_filtered sensitive safety recitation spii"
    " prohibited_content blocklist image_safety guardrail_intervened",
    "refusal": "refusal",
}
_FINISH: Mapping[str, Finish] = {
    reason: finish for finish, text in _REASONS.items() for reason in text.split()
}


def read_finish(provider: str, reason: object, calls: Sequence[ToolCall]) -> Finish:
    """Returns why the model stopped, from the reason that a server reports in any format.

    The result is `"tool_calls"` even if a server announces calls but does not send any. Raises
    `PromptEvaluationError` for an unknown reason, or one that reports a failure.
    """
    if not isinstance(reason, str | None):
        raise error_from_reply(provider, "the finish reason is not a string")
    finish = _FINISH.get((reason or "stop").lower())
    if finish is None:
        message = f"the provider ended the answer with the reason {reason!r:.100}"
        raise error_from_request(provider, "provider_failed", message)
    return "tool_calls" if calls and finish in ("stop", "pause") else finish


def _plain(reply: AnyJson) -> AnyJson:
    """Returns a reply as plain JSON, because its message will be sent back to the provider.

    Plain JSON does not contain SDK objects, lone surrogates (which JSON can escape) or infinities
    (which JSON cannot represent).
    """
    if isinstance(reply, bytes):
        text = sendable(reply.decode(json.detect_encoding(reply), "surrogatepass"))
        if "\\ud" not in text and "\\uD" not in text:
            return _decode_json(text)
        reply = _decode_json(text)
    return _decode_json(sendable(_encode_json(reply)))


def read_call(call_id: object, name: object, arguments: object, *, fallback_id: str) -> ToolCall:
    """Returns a tool call, even if the server omits its id or sends its arguments as an object.

    A `fallback_id` of nine letters and digits is valid for every provider.
    """
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    return ToolCall(str(call_id or fallback_id), str(name or ""), arguments)


def read_usage(usage: Json, input_name: str, output_name: str) -> TokenUsage:
    """Returns the token counts with these names, including their details."""
    counts: JsonObject = usage if isinstance(usage, dict) else {}
    cached = _mapping(counts.get(f"{input_name}_details"))
    details = _mapping(counts.get(f"{output_name}_details"))
    return TokenUsage(
        read_count(counts.get(input_name)),
        read_count(counts.get(output_name)),
        read_count(cached.get("cached_tokens")),
        read_count(cached.get("cache_write_tokens")),
        read_count(details.get("reasoning_tokens")),
        read_hour_writes(cached.get("cache_creation_token_details")),
    )


def read_hour_writes(cache_creation: AnyJson) -> int:
    """Returns the tokens that Anthropic caches for an hour, from the cache write details."""
    return read_count(_mapping(cache_creation).get("ephemeral_1h_input_tokens"))


def _mapping(value: AnyJson) -> JsonObject:
    return value if isinstance(value, dict) else {}


def read_count(value: object) -> int:
    """Returns a token count, or 0 for a value that is not a number."""
    # A negative count would extend a budget.
    return max(int(value), 0) if isinstance(value, int | float) else 0
