"""`LiteLLMAdapter`: every provider that LiteLLM reaches, over the Chat Completions codec. Needs the
extra `litellm`.

The only module that imports LiteLLM, which takes seconds and 150 MB: that happens when an adapter
is made.
"""

import os
import re
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import InnerLoopConfig
from ..limits import Clock, utc_now
from ..redaction import Redactor, header_credentials
from .chat import ChatCodec
from .codec import CodecAdapter, CodecOptions, Wire, malformed
from .litellm_clients import LiteLLMClients, refusal
from .provider_errors import check_key, error_from_request, error_from_status
from .replies import MAX_REPLY_BYTES

__all__ = ["LiteLLMAdapter"]

_PROVIDER = "litellm"
_SERVER_ERROR = 500
_OBSERVERS = (
    *(
        "callbacks",
        "input_callback",
        "success_callback",
        "failure_callback",
        "service_callback",
        "logger_fn",
    ),
    *("_async_input_callback", "_async_success_callback", "_async_failure_callback", "max_budget"),
)
"""Where LiteLLM keeps who wants to hear of a call: its own attributes, and options of a call."""

_KNOWN_CREDENTIALS = 64  # the last ones: tokens are renewed by the hour
_CREDENTIAL_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "JWT")
_VARIABLES = {
    "bedrock": ("AWS",),
    "sagemaker": ("AWS",),
    "azure": ("AZURE",),
    "vertex": ("GOOGLE", "VERTEX"),
    "gemini": ("GOOGLE",),
    "watsonx": ("WX",),
    "huggingface": ("HF",),
}
"""By a part of LiteLLM's name of a provider, what its variables begin with besides that name."""


class LiteLLMAdapter(CodecAdapter):
    """Evaluates prompts on the model that LiteLLM knows as `model`, such as
    `"anthropic/claude-sonnet-4-5"`.

    Without `base_url` and `api_key` LiteLLM reads its own environment variables. `timeout` is in
    seconds for a request. `max_retries` goes to the provider's own client where LiteLLM uses one
    (OpenAI and compatible servers); elsewhere nothing is retried. `structured_output="auto"` asks
    for typed output by the API's own means where LiteLLM says that the model has them, else in
    words. `options` go into every call. `max_reply_bytes` bounds a reply after decompression.
    Raises `ImportError` without the extra `litellm`.
    """

    name = _PROVIDER

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        prompt_role: Literal["user", "system", "developer"] = "user",
        structured_output: Literal["auto", "native", "prompted"] = "auto",
        options: Mapping[str, object] | None = None,
        config: InnerLoopConfig | None = None,
        clock: Clock = utc_now,
    ) -> None:
        if find_spec("litellm") is None:
            raise ImportError("LiteLLMAdapter needs LiteLLM: pip install 'weakincentives[litellm]'")
        # LiteLLM fetches both tables from the network unless it is told to take its own copies.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
        # it keeps 100 threads for its log
        os.environ.setdefault("LOGGING_EXECUTOR_MAX_THREADS", "8")
        # Any: often not installed where types are checked
        self.litellm: Any = import_module("litellm")
        vars(self.litellm)["suppress_debug_info"] = True  # it prints at every error
        self._internal = _internal_call()
        self._environment = self._provider_prefixes(model, base_url)
        self._sent: deque[str] = deque(maxlen=_KNOWN_CREDENTIALS)
        if structured_output == "auto":
            structured_output = (
                "native" if self.litellm.supports_response_schema(model=model) else "prompted"
            )
        codec_options = CodecOptions(
            model=model,
            prompt_role=prompt_role,
            structured_output=structured_output,
            extra=dict(options or {}),
        )
        super().__init__(_LiteLLMCodec, codec_options, config=config, clock=clock)
        if max_reply_bytes < 1:
            raise ValueError(
                f"max_reply_bytes is {max_reply_bytes}; give a number of bytes above 0"
            )
        self.timeout = timeout
        self._clients = LiteLLMClients(self.litellm, max_reply_bytes)
        self.api_key = api_key
        self._arguments: Wire = {
            "api_base": base_url,
            "api_key": api_key,
            "max_retries": max_retries,
        }

    @property
    def redactor(self) -> Redactor:
        """Masks what was given or sent as a credential: keys, `options`, headers, the provider's
        own variables.
        """
        return Redactor(tuple(_credentials(self._options.extra))).adding(
            [self.api_key, *_from_environment(self._environment), *self._sent]
        )

    def without_keys(self, text: str) -> str:
        """`text` with the credentials of this adapter masked."""
        return self.redactor(text)

    def call(self, body: Wire, left: float | None) -> Wire:
        """The arguments of one call, with what is left until the deadline as its time-out."""
        check_key(_PROVIDER, self.api_key or "")
        arguments = {**self._arguments, "timeout": min(self.timeout, left or self.timeout), **body}
        listener = body.get("logger_fn")

        def note(details: Wire) -> None:
            """Notes the credentials that LiteLLM found for this request, before it sends them."""
            headers = (details.get("additional_args") or {}).get("headers") or {}
            self._note(
                [
                    details.get("api_key"),
                    *header_credentials({f"{key}": f"{headers[key]}" for key in headers}),
                ]
            )
            if callable(listener):
                listener(details)

        return {**arguments, "logger_fn": note}

    def _note(self, credentials: Iterable[object]) -> None:
        for value in credentials:
            if isinstance(value, str) and value and value not in self._sent:
                self._sent.append(value)

    def send(self, body: Wire, left: float | None, *, stream: bool) -> Any:
        arguments = self.call(body, left)
        with self._unobserved(body):
            reply = self.litellm.completion(**arguments, **self._clients.client(arguments))
        return _Stream(reply) if stream else _plain(reply)

    async def send_async(self, body: Wire, left: float | None, *, stream: bool) -> Any:
        arguments = self.call(body, left)
        client = await self._clients.async_client(arguments)
        with self._unobserved(body):
            reply = await self.litellm.acompletion(**arguments, **client)
        return _Stream(reply) if stream else _plain(reply)

    def _provider_prefixes(self, model: str, base_url: str | None) -> tuple[str, ...]:
        """What the variables of the model's provider begin with; nothing for a model that LiteLLM
        does not know.
        """
        try:
            provider = str(self.litellm.get_llm_provider(model=model, api_base=base_url)[1])
        except Exception:  # LiteLLM's own; the first request will say it
            return ()
        own = re.sub(r"^text-completion-|[-_](ai|chat)$|[^a-z0-9]", "", provider.lower()).upper()
        return (
            own,
            *(prefix for name, more in _VARIABLES.items() if name in provider for prefix in more),
        )

    @contextmanager
    def _unobserved(self, body: Wire) -> Generator[None]:
        """Calls LiteLLM without its logging, unless a callback or a budget of LiteLLM's is there to
        read it.

        LiteLLM logs each call in threads and in a queue, whose entries it carries from an event
        loop to the next with a warning.
        """
        observers = [
            *(getattr(self.litellm, name, None) for name in _OBSERVERS),
            *map(body.get, _OBSERVERS),
        ]
        if self._internal is None or any(observers):
            yield
            return
        token = self._internal.set(True)
        try:
            yield
        finally:
            self._internal.reset(token)

    def end(self, events: Any) -> None:
        if callable(close := getattr(_source(events), "close", None)):
            close()

    async def end_async(self, events: Any) -> None:
        source = _source(events)
        # LiteLLM's own
        close: Any = getattr(source, "aclose", None) or getattr(source, "close", None)
        if close is not None:
            await close()

    def fault(self, error: Exception) -> PromptEvaluationError:
        """By status, since LiteLLM's classes differ from route to route."""
        litellm = self.litellm
        causes = list(_causes(error))
        status = getattr(error, "status_code", None)
        if (refused := refusal(_PROVIDER, causes, self.without_keys)) is not None:
            return refused
        if isinstance(error, TimeoutError | litellm.Timeout):
            return error_from_request(
                _PROVIDER, "timeout", "the provider did not answer in time", "raise timeout"
            )
        if lost := next((type(one).__name__ for one in causes if _is_transport_error(one)), None):
            return error_from_request(
                _PROVIDER, "connection", f"no connection ({lost})", "check base_url and the network"
            )
        if status == _SERVER_ERROR and any(
            isinstance(one, ValueError | LookupError) for one in causes
        ):
            return malformed(_PROVIDER, "it is no JSON of this API")
        if not isinstance(status, int):
            told = self.without_keys(f"{type(error).__name__}: {error}")
            return error_from_request(
                _PROVIDER, "client_error", told, "check the adapter's options"
            )
        body = getattr(error, "body", None)
        said: Wire = body if isinstance(body, dict) else {}
        too_long = isinstance(error, litellm.ContextWindowExceededError)
        return error_from_status(
            _PROVIDER,
            status,
            message=self.without_keys(str(said.get("message") or getattr(error, "message", error))),
            code="context_length_exceeded" if too_long else said.get("code"),
            retry_after=(getattr(error, "litellm_response_headers", None) or {}).get("retry-after"),
        )

    def safe_cause(self, error: Exception) -> Exception | None:
        """`error`, unless it or what led to it quotes a key."""
        refused = getattr(error, "status_code", None) in (401, 403)
        return None if refused or self.redactor.quoted_in(error) else error


def _credentials(options: Mapping[str, object]) -> Iterator[str]:
    """The credentials among `options` of a call, its headers included."""
    for name, value in options.items():
        if isinstance(value, Mapping) and "headers" in name:
            yield from header_credentials({f"{key}": f"{inner}" for key, inner in value.items()})
        elif isinstance(value, str) and any(word in name.upper() for word in _CREDENTIAL_WORDS):
            yield value


def _from_environment(prefixes: Iterable[str]) -> Iterator[str]:
    """The credentials that LiteLLM may read from variables of a provider, to trade them for tokens,
    say.
    """
    for name, value in os.environ.items():
        ours = any(name.replace("_", "").startswith(prefix) for prefix in prefixes)
        if ours and any(word in name for word in _CREDENTIAL_WORDS) and len(value.split()) == 1:
            yield value


def _internal_call() -> ContextVar[bool] | None:
    """What tells LiteLLM that a call is a part of another one, which it does not log; `None` where
    it has none.
    """
    try:
        internal = import_module("litellm._internal_context").is_internal_call
    except (ImportError, AttributeError):
        return None
    return internal if isinstance(internal, ContextVar) else None


class _LiteLLMCodec(ChatCodec):
    """Chat Completions, and what LiteLLM adds to the pieces of a stream."""

    def joined(self, events: list[Any]) -> object:
        """The whole reply; `None` where nothing came, for which LiteLLM would make up an end of its
        own.
        """
        if not any(
            event.get("usage") or any(one.get("delta") for one in event["choices"])
            for event in events
        ):
            return None
        beside: Wire = {}
        for event in events:
            for choice in [one for one in event["choices"] if one.get("index") == 0]:
                beside |= choice["delta"].pop("provider_specific_fields", None) or {}
        reply: Any = super().joined(events)  # Any: JSON of every shape
        for choice in reply["choices"] if reply else ():
            message = choice["message"]
            if blocks := _thinking(message.pop("thinking_blocks", ())):
                message["thinking_blocks"] = blocks
            if rest := {
                key: value for key, value in beside.items() if key not in ("citation", *message)
            }:
                message["provider_specific_fields"] = rest
        return reply


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream of LiteLLM as Chat Completions JSON, with the usage that the provider reported at
    its end.

    LiteLLM replaces usage that was not reported by an estimate of its own, and takes an answer of
    equal pieces, such as a long table, for a model that does not come to an end.
    """

    source: Any  # LiteLLM's own, for both iterations

    def __post_init__(self) -> None:
        with suppress(AttributeError):  # a reply from LiteLLM's cache has no such check
            self.source.raise_on_model_repetition = lambda: None  # of this stream alone

    def __iter__(self) -> Iterator[Wire]:
        for chunk in self.source:
            yield _piece(chunk)
        yield self._usage()

    async def __aiter__(self) -> AsyncIterator[Wire]:
        async for chunk in self.source:
            yield _piece(chunk)
        yield self._usage()

    def _usage(self) -> Wire:
        """An event with the counts of all chunks as they came; a later count replaces an earlier
        one.
        """
        usage: Wire = {}
        for chunk in getattr(self.source, "chunks", ()):
            for key, count in (_dumped(getattr(chunk, "usage", None)) or {}).items():
                usage[key] = (
                    {**usage.get(key, {}), **_counted(count)} if isinstance(count, dict) else count
                )
        return {"choices": [], "usage": usage}


def _piece(chunk: Any) -> Wire:  # Any: LiteLLM's own
    """A chunk as JSON, without usage, which is LiteLLM's estimate where the provider reports none."""
    piece = _dumped(chunk)
    piece.pop("usage", None)
    return {**piece, "choices": piece.get("choices") or []}


def _dumped(value: Any) -> Wire:  # Any: LiteLLM's own
    return {} if value is None else _counted(value.model_dump(exclude_none=True))


def _counted(counts: Wire) -> Wire:
    """`counts` without zeros: Anthropic reports input and output in different events."""
    return {key: value for key, value in counts.items() if value not in (0, None)}


def _thinking(blocks: Iterable[Wire]) -> list[Wire]:
    """Whole blocks of the pieces in which they come; a signature ends one. Without it a block
    cannot be sent back.
    """
    whole: list[Wire] = []
    texts: list[str] = []
    for block in blocks:
        if block.get("type") != "thinking":  # such as redacted thinking, which comes whole
            texts.clear()
            whole.append(block)
            continue
        texts.append(block.get("thinking") or "")
        if signature := block.get("signature"):
            whole.append({"type": "thinking", "thinking": "".join(texts), "signature": signature})
            texts.clear()
    return whole


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and what led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_transport_error(error: BaseException) -> bool:
    """By name: the HTTP library behind a route is httpx, httpx2 or another."""
    return isinstance(error, OSError) or any(
        base.__name__ == "TransportError" for base in type(error).__mro__
    )


def _source(stream: _Stream) -> Any:  # Any: LiteLLM's own
    """What LiteLLM reads a stream from and leaves open: closed by the garbage collector, it can
    deadlock httpcore.
    """
    inner = getattr(stream.source, "completion_stream", None)
    return getattr(inner, "streaming_response", inner)


def _plain(reply: Any) -> Any:  # Any: LiteLLM's own reply, and JSON of every shape
    """The reply as Chat Completions JSON: what LiteLLM puts beside the message goes, or to where it
    belongs.
    """
    body = reply.model_dump()
    for choice in body.get("choices") or ():
        message: Wire = choice["message"]
        beside = {
            key: value
            for key, value in (message.pop("provider_specific_fields", None) or {}).items()
            if value
        }
        message["refusal"] = beside.pop("refusal", None)
        if beside:
            message["provider_specific_fields"] = beside
    return body
