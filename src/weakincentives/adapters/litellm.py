"""`LiteLLMAdapter` supports all of LiteLLM's providers through the Chat Completions codec.

Needs the `litellm` extra. Importing LiteLLM takes several seconds and 150 MB, so only the adapter's
constructor imports it.
"""

import os
import re
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Literal, Self

from ..citations import Citation
from ..content import IMAGE_TYPES, Image, MediaSupport
from ..errors import missing_extra
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import RunConfig
from ..limits import Clock, utc_now
from ..model_settings import ModelSettings
from ..redaction import Redactor, causes, credentials_in
from ..signatures import with_remedies
from .chat_completions import ChatCodec, text_of
from .cited_text import read_citation
from .codec import AnyJson, CodecOptions, JsonObject, PromptRole, merge_counts
from .codec_adapter import AnyReply, CodecAdapter
from .http_clients import MAX_REPLY_BYTES, check_max_reply_bytes, error_from_http, read_origin
from .litellm_clients import AnyLiteLLM, LiteLLMClients
from .provider_errors import (
    check_key,
    error_from_failure,
    error_from_reply,
    error_from_request,
    unfinished_reply,
)
from .server_profile import ServerProfile

__all__ = ["LiteLLMAdapter"]

_PROVIDER = "litellm"
_SERVER_ERROR = 500
# The beginning of LiteLLM's own errors, which have various statuses.
_KEY_IS_MISSING = re.compile(
    r"litellm\.\w+: (\w+: )?(\w+ - )?missing (credentials|\w+ api key)", re.IGNORECASE
)
# Where LiteLLM stores a call's listeners: in its own attributes and in the call's options.
_LISTENERS = (
    "callbacks input_callback success_callback failure_callback service_callback logger_fn"
    " _async_input_callback _async_success_callback _async_failure_callback max_budget"
)
_KEEPS_SYSTEM_MESSAGES = ("openai", "azure")
_KNOWN_CREDENTIALS = 64  # only the most recent, because some providers renew tokens every hour
# Additional prefixes of environment variables, by a part of the provider's name in LiteLLM.
_VARIABLES = {
    "bedrock": ("AWS",),
    "sagemaker": ("AWS",),
    "azure": ("AZURE",),
    "vertex": ("GOOGLE", "VERTEX"),
    "gemini": ("GOOGLE",),
    "watsonx": ("WX",),
    "huggingface": ("HF",),
}


# Limits: 10 MB of base64 for an image and 32 MB for a request (Anthropic's pages on vision and
# PDF).
_ANTHROPIC_MEDIA = MediaSupport(
    types={**dict.fromkeys(IMAGE_TYPES, 7_500_000), "application/pdf": 24_000_000}, urls=(Image,)
)


class LiteLLMAdapter(CodecAdapter):
    """Evaluates prompts on a model that LiteLLM supports, such as `"anthropic/claude-sonnet-4-5"`.

    Without `base_url` and `api_key`, LiteLLM reads its own environment variables. `timeout` is the
    limit for one request, in seconds. `max_retries` is passed to the provider's own client if
    LiteLLM uses one, which it does for OpenAI and compatible servers; other providers' requests are
    not retried. `structured_output="auto"` requests typed output with the API's own parameter if
    LiteLLM reports that the model supports it, and otherwise with instructions in the prompt.
    `options` are added to every request. `max_reply_bytes` limits a reply after decompression.
    `media` describes the images and documents that the model accepts, by default images and PDFs.

    Raises `ImportError` if the `litellm` extra is not installed.
    """

    name = _PROVIDER

    @with_remedies
    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        prompt_role: PromptRole = "user",
        instructions_role: PromptRole | None = None,
        structured_output: Literal["auto", "native", "prompted"] = "auto",
        options: Mapping[str, object] | None = None,
        media: MediaSupport | None = None,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        if find_spec("litellm") is None:
            raise missing_extra("LiteLLMAdapter", "LiteLLM", "litellm")
        # LiteLLM downloads both tables unless these variables select its bundled copies.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
        # Otherwise LiteLLM keeps 100 threads for its log.
        os.environ.setdefault("LOGGING_EXECUTOR_MAX_THREADS", "8")
        self.litellm: AnyLiteLLM = import_module("litellm")
        vars(self.litellm)["suppress_debug_info"] = True  # prints less on errors
        self._internal = _internal_call()
        provider = self._provider(model, base_url)
        self._environment = _provider_prefixes(provider)
        self._sent: deque[str] = deque(maxlen=_KNOWN_CREDENTIALS)
        if structured_output == "auto":
            structured_output = (
                "native" if self.litellm.supports_response_schema(model=model) else "prompted"
            )
        is_own = provider in _KEEPS_SYSTEM_MESSAGES and not base_url
        codec_options = CodecOptions(
            model=model,
            prompt_role=prompt_role,
            instructions_role=instructions_role,
            # For most providers, LiteLLM moves system messages to the beginning or marks them.
            changes_role=None if is_own else "user",
            profile=_profile(provider, is_own=is_own),
            origin="/".join(filter(None, [provider, read_origin(base_url)])),
            structured_output=structured_output,
            extra=dict(options or {}),
            media=_ANTHROPIC_MEDIA if media is None and provider == "anthropic" else media,
        )
        super().__init__(
            _LiteLLMCodec, codec_options, config=config, settings=settings, clock=clock
        )
        self.timeout = timeout
        self._clients = LiteLLMClients(self.litellm, check_max_reply_bytes(max_reply_bytes))
        self.api_key = api_key
        self._arguments: JsonObject = {
            "api_base": base_url,
            "api_key": api_key,
            "max_retries": max_retries,
        }

    def identity(self) -> dict[str, object]:
        return {**super().identity(), "base_url": self._arguments["api_base"]}

    def without_retries(self) -> Self:
        adapter = copy(self)
        adapter._arguments = {**self._arguments, "max_retries": 0}  # noqa: SLF001 - its own class
        return adapter

    def check_settings(self, settings: ModelSettings) -> None:
        """Raises `ValueError` for settings that LiteLLM does not send to the model."""
        super().check_settings(settings)
        known = None
        with suppress(Exception):  # raised by LiteLLM for a model of an unknown provider
            known = self.litellm.get_supported_openai_params(self.model)
        if known:
            missing = frozenset(_LiteLLMCodec.setting_fields.values()).difference(known)
            profile = replace(self._options.profile, rejected_fields=missing)
            _LiteLLMCodec.check_settings(settings, profile, f"LiteLLM for {self.model!r}")

    def redactor(self, error: Exception | None = None) -> Redactor:
        """Returns a redactor for keys, credentials in `options` and variables, and sent headers."""
        options = credentials_in(self._options.extra)
        variables = credentials_in(_variables(self._environment))
        return Redactor().extend([self.api_key, *options, *variables, *self._sent])

    def _call_arguments(self, body: JsonObject, left: float | None) -> JsonObject:
        check_key(_PROVIDER, self.api_key or "")
        seconds = min(self.timeout, left or self.timeout)
        listener = body.get("logger_fn")

        def note(details: JsonObject) -> None:
            """Records the credentials that LiteLLM found for this request, before it sends them."""
            headers = (details.get("additional_args") or {}).get("headers") or {}
            values = {"api_key": details.get("api_key"), "headers": dict(headers)}
            self._sent.extend(value for value in credentials_in(values) if value not in self._sent)
            if callable(listener):
                listener(details)

        return {**self._arguments, "timeout": seconds, **body, "logger_fn": note}

    def send(self, body: JsonObject, left: float | None, *, stream: bool) -> AnyReply:
        arguments = self._call_arguments(body, left)
        with self._without_logging(body):
            reply = self.litellm.completion(**arguments, **self._clients.client(arguments))
        return _Stream(reply) if stream else _to_json(reply)

    async def send_async(self, body: JsonObject, left: float | None, *, stream: bool) -> AnyReply:
        arguments = self._call_arguments(body, left)
        client = await self._clients.async_client(arguments)
        with self._without_logging(body):
            reply = await self.litellm.acompletion(**arguments, **client)
        return _Stream(reply) if stream else _to_json(reply)

    def end(self, events: "_Stream") -> None:
        if callable(close := getattr(events.connection(), "close", None)):
            close()

    async def end_async(self, events: "_Stream") -> None:
        connection = events.connection()
        close: AnyLiteLLM = getattr(connection, "aclose", getattr(connection, "close", None))
        if close is not None:
            await close()

    def translate(self, error: Exception) -> PromptEvaluationError:
        """Converts an error by its status, because LiteLLM's classes differ between routes."""
        status: object = getattr(error, "status_code", None)
        errors = list(causes(error))
        if isinstance(error, self.litellm.Timeout):
            return error_from_request(_PROVIDER, "timeout", "the provider did not answer in time")
        if _KEY_IS_MISSING.match(str(error)):
            remedy = "pass api_key or set the provider's variable"
            return error_from_request(_PROVIDER, "authentication", "the API key is missing", remedy)
        for cause in reversed(errors):
            if (translated := error_from_http(_PROVIDER, cause)) is not None:
                return translated
        if status == _SERVER_ERROR and any(
            isinstance(cause, ValueError | LookupError) for cause in errors
        ):
            return error_from_reply(_PROVIDER, "it is not JSON of this API", of_this_api=False)
        if not isinstance(status, int):
            return error_from_request(_PROVIDER, "client_error", f"{type(error).__name__}: {error}")
        body = getattr(error, "body", None)
        details: JsonObject = body if isinstance(body, dict) else {}
        too_long = isinstance(error, self.litellm.ContextWindowExceededError)
        headers: JsonObject = getattr(error, "litellm_response_headers", None) or {}
        message = str(getattr(error, "message", error))
        code = {"code": "context_length_exceeded"} if too_long else {}
        return error_from_failure(
            _PROVIDER,
            [code, details] if details else [code, message],
            status=status,
            retry_after=headers.get("retry-after"),
        )

    def safe_cause(self, error: Exception) -> Exception | None:
        # A provider that rejects a key may quote part of it.
        refused = getattr(error, "status_code", None) in (401, 403)
        if refused or _KEY_IS_MISSING.match(str(error)):
            return None
        return super().safe_cause(error)

    def _provider(self, model: str, base_url: str | None) -> str:
        """Returns LiteLLM's name for the provider, or `""` for an unknown provider."""
        try:
            return str(self.litellm.get_llm_provider(model=model, api_base=base_url)[1])
        except Exception:  # raised by LiteLLM; the first request will report it
            return ""

    @contextmanager
    def _without_logging(self, body: JsonObject) -> Generator[None]:
        """Turns off LiteLLM's call log unless one of its callbacks or budgets needs it.

        LiteLLM logs each call through threads and a queue, and warns when it moves queue entries to
        another event loop.
        """
        names = _LISTENERS.split()
        listeners = [getattr(self.litellm, name, None) or body.get(name) for name in names]
        if self._internal is None or any(listeners):
            yield
            return
        token = self._internal.set(True)
        try:
            yield
        finally:
            self._internal.reset(token)


def _profile(provider: str, *, is_own: bool) -> ServerProfile:
    return ServerProfile(
        strict="each" if is_own else "uniform",
        user_after_tool=is_own,
        # ai.google.dev, Grounding with Google Search: byte indices (gemini-cli#29039)
        citations_in_bytes=provider.startswith(("gemini", "vertex")),
    )


def _provider_prefixes(provider: str) -> tuple[str, ...]:
    """Returns the prefixes for the provider's environment variables."""
    if not provider:
        return ()
    name = re.sub(r"^text-completion-|[-_](ai|chat)$|[^a-z0-9]", "", provider.lower()).upper()
    more = [prefixes for part, prefixes in _VARIABLES.items() if part in provider]
    return (name, *chain.from_iterable(more))


def _variables(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Returns a provider's variables, except multi-word values, which cannot be keys."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.replace("_", "").startswith(prefixes) and len(value.split()) == 1
    }


def _internal_call() -> ContextVar[bool] | None:
    """Returns LiteLLM's variable that marks inner calls, which are not logged, if it exists."""
    try:
        internal = import_module("litellm._internal_context").is_internal_call
    except (ImportError, AttributeError):
        return None
    return internal if isinstance(internal, ContextVar) else None


class _LiteLLMCodec(ChatCodec):
    """The Chat Completions codec, with LiteLLM's additions to stream chunks."""

    reasoning_fields = ChatCodec.reasoning_fields | {"provider_specific_fields"}

    def join_events(self, events: list[AnyJson]) -> object:
        """Returns `None` for an empty stream, for which LiteLLM invents a final event."""
        choices = [choice for event in events for choice in event["choices"]]
        if not any(event.get("usage") for event in events) and not any(
            choice.get("delta") for choice in choices
        ):
            return None
        extras: JsonObject = {}
        citations: list[AnyJson] = []
        for choice in choices:
            if choice.get("index") == 0:
                added = choice["delta"].pop("provider_specific_fields", None) or {}
                extras |= added
                citations += [[added["citation"]]] if "citation" in added else []
        reply: AnyJson = super().join_events(events)
        for choice in reply["choices"] if reply else ():
            message = choice["message"]
            extras = {key: extras[key] for key in extras if key not in ("citation", *message)}
            extras |= {"citations": citations} if citations else {}
            if extras:
                message["provider_specific_fields"] = extras
        return reply

    def read_citations(
        self, reply: JsonObject, message: JsonObject, cited: tuple[Citation, ...]
    ) -> tuple[Citation, ...]:
        """Returns the citations that LiteLLM gives for whole replies and streams alike.

        For Perplexity, only whole replies have annotations, but both list the sources. Anthropic's
        citations have no position in a stream.
        """
        if reply.get("citations"):
            cited = ()
        listed = (message.get("provider_specific_fields") or {}).get("citations")
        blocks = listed if isinstance(listed, list) else []
        found = [
            read_citation(item) for block in blocks if isinstance(block, list) for item in block
        ]
        more = [citation for citation in found if citation is not None]
        return tuple(dict.fromkeys([*super().read_citations(reply, message, cited), *more]))


@dataclass(frozen=True, slots=True)
class _Stream:
    """A LiteLLM stream as Chat Completions JSON, ending with the provider's own usage.

    This undoes three things that LiteLLM does: it estimates usage that the provider did not report,
    invents an end for a stream that ended early, and rejects an answer with many equal chunks, such
    as a long table, as an endless repetition.
    """

    source: AnyLiteLLM

    def __post_init__(self) -> None:
        with suppress(AttributeError):  # replies from LiteLLM's cache do not have this check
            self.source.raise_on_model_repetition = lambda: None  # only for this stream
            self.source.handle_openai_chat_completion_chunk = partial(
                _read_chunk, self.source.handle_openai_chat_completion_chunk
            )

    def __iter__(self) -> Iterator[JsonObject]:
        for chunk in self.source:
            yield _chunk_to_json(chunk)
        self._check_end()
        yield self._usage()

    async def __aiter__(self) -> AsyncIterator[JsonObject]:
        async for chunk in self.source:
            yield _chunk_to_json(chunk)
        self._check_end()
        yield self._usage()

    def _check_end(self) -> None:
        """Raises `PromptEvaluationError` if the provider did not finish the stream."""
        names = "received_finish_reason", "intermittent_finish_reason"
        if all(getattr(self.source, name, "") is None for name in names):
            raise unfinished_reply(_PROVIDER, "the finish_reason")

    def connection(self) -> AnyLiteLLM:
        """Returns the connection that LiteLLM reads from and then leaves open.

        httpcore can deadlock if the garbage collector closes the connection.
        """
        inner = getattr(self.source, "completion_stream", None)
        return getattr(inner, "streaming_response", inner)

    def _usage(self) -> JsonObject:
        """Returns an event with the counts from all chunks; later counts replace earlier ones."""
        usage: JsonObject = {}
        for chunk in getattr(self.source, "chunks", ()):
            merge_counts(usage, _dump(getattr(chunk, "usage", None)))
        reason = getattr(self.source, "received_finish_reason", None)
        end: JsonObject = {"index": 0, "delta": {}, "finish_reason": reason}
        return {"choices": [end] if reason else [], "usage": usage}


def _read_chunk(read: AnyLiteLLM, chunk: AnyLiteLLM) -> AnyLiteLLM:
    """Reads a chunk from an OpenAI stream; LiteLLM would lose text that is sent as a list."""
    for choice in getattr(chunk, "choices", None) or ():
        if isinstance(getattr(choice.delta, "content", None), list):
            choice.delta.content = text_of(choice.delta.content)
    return read(chunk)


def _chunk_to_json(chunk: AnyLiteLLM) -> JsonObject:
    """Returns a chunk without its usage, which may be LiteLLM's estimate."""
    fields = _dump(chunk)
    fields.pop("usage", None)
    return {**fields, "choices": fields.get("choices") or []}


def _dump(value: AnyLiteLLM) -> JsonObject:
    return {} if value is None else dict(value.model_dump(exclude_none=True))


def _to_json(reply: AnyLiteLLM) -> AnyJson:
    """Returns a reply as Chat Completions JSON, with a refusal in that format's field."""
    body = reply.model_dump()
    for choice in body.get("choices") or ():
        message: JsonObject = choice["message"]
        # LiteLLM reports `stop` for any reason that it does not know.
        native = (choice.get("provider_specific_fields") or {}).get("native_finish_reason")
        if native and choice.get("finish_reason") == "stop":
            choice["finish_reason"] = native
        extras = message.pop("provider_specific_fields", None) or {}
        extras = {key: value for key, value in extras.items() if value}
        message["refusal"] = message.get("refusal") or extras.pop("refusal", None)
        if extras:
            message["provider_specific_fields"] = extras
    return body
