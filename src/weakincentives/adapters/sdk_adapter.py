"""`SDKAdapter`: what the adapters over OpenAI's and Anthropic's SDKs have in common.

Stainless generates both SDKs, so clients, errors and streams are alike. Requests go through the
client's public `post` and stay plain JSON both ways: the SDK's typed methods would check each item
of the history against dozens of shapes at every request. The SDK hands over the response unread, so
that its body can be bounded while it is read. Retries are the SDK's own.
"""

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from threading import Lock
from typing import Any
from weakref import finalize

from ..errors import missing_extra
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import RunConfig
from ..limits import Clock
from ..redaction import Redactor, credentials_in
from .codec import AnyJson, Codec, CodecOptions, Wire
from .codec_adapter import AnyReply, CodecAdapter
from .event_stream import EventDecoder, read_events
from .http_clients import (
    ACCEPTED_ENCODINGS,
    LoopClients,
    bound_reply,
    check_max_reply_bytes,
    error_from_http,
    read_address,
)
from .provider_errors import (
    check_key,
    error_from_failure,
    error_from_redirect,
    error_from_reply,
    error_from_request,
)

__all__ = ["AnySDK", "SDKAdapter"]

# Any: the SDK's module, clients, replies and errors; this module serves several SDKs.
type AnySDK = Any

_NO_KEY = "<missing API key>"  # the key of OpenAI's Azure clients that use a token instead
_CONNECT_SECONDS = 5.0
_REST_SECONDS = 0.1
_UNREAD = {"X-Stainless-Raw-Response": "stream"}
"""The header by which the SDK's `with_streaming_response` asks `post` for the unread response."""


class SDKAdapter[Client, AsyncClient](CodecAdapter):
    """Sends requests with the clients of an SDK that Stainless generated.

    `name` is the name of the provider, of the SDK's module and of the extra that installs it.
    `sdk_name` is the prefix of its classes. `arguments` are those of the clients that the adapter
    makes for itself.

    Raises `ImportError` when the SDK is not installed.
    """

    sdk_name: str
    path: str

    def __init__(
        self,
        codec: type[Codec],
        options: CodecOptions,
        *,
        arguments: Mapping[str, object],
        client: Client | None,
        async_client: AsyncClient | None,
        max_reply_bytes: int,
        config: RunConfig | None,
        clock: Clock,
    ) -> None:
        if find_spec(self.name) is None:
            raise missing_extra(type(self).__name__, f"the {self.name} SDK", self.name)
        super().__init__(codec, options, config=config, clock=clock)
        self._max_reply_bytes = check_max_reply_bytes(max_reply_bytes)
        self._client_arguments = arguments
        self._client: AnySDK = client
        self._lock = Lock()
        self._async_client: AnySDK = async_client
        self._async_clients = LoopClients(
            partial(_client, self.sdk, f"Async{self.sdk_name}", arguments, max_reply_bytes)
        )
        self._has_ready_client = client is not None or async_client is not None
        self._check_clients(client, async_client)

    def _check_clients(self, client: AnySDK, async_client: AnySDK) -> None:
        """Raises `ValueError` for arguments that name different servers."""
        bases = {each.base_url for each in (client, async_client) if each is not None}
        if len(bases) > 1:
            raise ValueError(
                "client and async_client must have the same base_url, got"
                f" {' and '.join(sorted(map(str, bases)))}"
            )
        own = [name for name in ("base_url", "api_key") if self._client_arguments[name] is not None]
        if own and self._has_ready_client:
            raise ValueError(
                f"{own[0]} cannot be combined with a ready client, which has its own; pass either "
                f"{own[0]} or client= and async_client="
            )

    @staticmethod
    @abstractmethod
    def sdk() -> AnySDK:
        """Imports and returns the SDK's module."""

    def client(self) -> Client:
        """Returns the client, made on first use.

        Raises the SDK's own error without a key, and `PromptEvaluationError` if only
        `async_client` was passed.
        """
        with self._lock:
            if self._client is None:
                self._check_missing("client", "synchronous")
                self._client = _client(
                    self.sdk, self.sdk_name, self._client_arguments, self._max_reply_bytes
                )
            client: Client = self._client
            return client

    async def async_client(self) -> AsyncClient:
        """Returns the client of the running event loop, made on first use and closed with the loop.

        A client that was passed as `async_client` is the caller's to close.
        """
        if self._async_client is None:
            self._check_missing("async_client", "asynchronous")
        client: AsyncClient = self._async_client or await self._async_clients.get()
        return client

    def _check_missing(self, missing: str, kind: str) -> None:
        """Raises `PromptEvaluationError` rather than use another server than the ready client's."""
        if self._has_ready_client:
            raise error_from_request(
                self.name,
                "client_error",
                f"{missing} is missing: this run is {kind}, and the other client cannot send its"
                " requests",
                f"pass {missing}= too, with the same base_url and key",
            )

    @property
    def cancellable(self) -> bool:
        return not self._has_ready_client  # it belongs to its owner's threads or event loop

    def headers(self, body: Wire) -> Wire:
        """Returns further headers of a request; it may take them out of `body`."""
        return {}

    def send(self, body: Wire, left: float | None, *, stream: bool) -> AnyReply:
        client: AnySDK = self.client()
        reply = client.post(self.path, **self._arguments(client, body, left, stream=stream))
        if (response := getattr(reply, "http_response", None)) is None:
            return _plain(reply)
        bound_reply(response, self._max_reply_bytes, is_stream=stream)
        if stream:
            return _Events(client, response)
        try:
            if response.is_stream_consumed:
                return response.content
            return b"".join(response.iter_raw())  # `read` would look for a decoder again
        finally:
            response.close()

    async def send_async(self, body: Wire, left: float | None, *, stream: bool) -> AnyReply:
        client: AnySDK = await self.async_client()
        reply = await client.post(self.path, **self._arguments(client, body, left, stream=stream))
        if (response := getattr(reply, "http_response", None)) is None:
            return _plain(reply)
        bound_reply(response, self._max_reply_bytes, is_stream=stream)
        if stream:
            return _AsyncEvents(client, response)
        try:
            if response.is_stream_consumed:
                return response.content
            return b"".join([chunk async for chunk in response.aiter_raw()])
        finally:
            await response.aclose()

    def _arguments(self, client: AnySDK, body: Wire, left: float | None, *, stream: bool) -> Wire:
        """Returns the arguments of `post`.

        The client's time-out applies unless fewer seconds are `left`.
        """
        for key in (getattr(client, "api_key", None), getattr(client, "auth_token", None)):
            if isinstance(key, str) and key != _NO_KEY:
                check_key(self.name, key)
        seconds = client.timeout
        if left is not None:
            if not self._has_ready_client:
                seconds = self._client_arguments["timeout"]
            seconds = min(seconds, left) if isinstance(seconds, int | float) else left
            if not self._has_ready_client:
                seconds = _timeout(self.sdk(), seconds)
        headers = {"Accept-Encoding": ACCEPTED_ENCODINGS, **_UNREAD, **self.headers(body)}
        options: Wire = {"timeout": seconds, "follow_redirects": False, "headers": headers}
        if left is not None and self._client is client:
            # retries would continue in the abandoned thread after the deadline
            options["max_retries"] = 0
        arguments: Wire = {"body": body, "cast_to": object, "options": options}
        if stream:
            arguments |= {"stream": True, "stream_cls": self._stream_class(client)}
        return arguments

    def _stream_class(self, client: AnySDK) -> AnySDK:
        sdk = self.sdk()
        return (sdk.Stream if client is self._client else sdk.AsyncStream)[object]

    def read_status_error(self, error: AnySDK) -> PromptEvaluationError:
        """Returns the library's error for the SDK's `APIStatusError`."""
        body = error.body
        with suppress(Exception):  # the SDK takes the value of `error` out, whatever it is
            body = error.response.json() if body is True else body
        failure = error_from_failure(
            self.name,
            body,
            status=error.status_code,
            retry_after=error.response.headers.get("retry-after"),
        )
        if failure.code == "not_found" and "base_url" in failure.remedy:
            failure.remedy += f"; the request went to {read_address(error).url}"
        return failure

    def translate(self, error: Exception) -> PromptEvaluationError:
        sdk = self.sdk()
        match error:
            case sdk.APITimeoutError(__cause__=cause) if type(cause).__name__ != "ConnectTimeout":
                error = TimeoutError()
            case sdk.APIConnectionError(__cause__=Exception() as cause):
                error = cause
            case sdk.APIStatusError(status_code=status, response=response):
                if response.is_redirect:
                    location = response.headers.get("location", "")
                    return error_from_redirect(self.name, status, location)
                return self.read_status_error(error)
            case (
                sdk.APIResponseValidationError()
                | json.JSONDecodeError()
                | UnicodeDecodeError()
                | RecursionError()
            ):
                return error_from_reply(self.name, "it is not JSON of this API", of_this_api=False)
            case _:
                pass
        if self.is_key_missing(error):
            remedy = f"pass api_key or set {self.name.upper()}_API_KEY"
            return error_from_request(self.name, "authentication", "the API key is missing", remedy)
        text = f"{type(error).__name__}: {error}"
        return error_from_http(self.name, error) or error_from_request(
            self.name, "client_error", text
        )

    @abstractmethod
    def is_key_missing(self, error: Exception) -> bool:
        """Tells whether the SDK raised `error` because it has no key."""

    def redactor(self, error: Exception | None = None) -> Redactor:
        redactor = Redactor()
        for client in (self._client, self._async_client, *self._async_clients):
            if client is not None:
                redactor = redactor.extend(credentials_in(client.default_headers))
                redactor = redactor.extend(credentials_in(vars(client)))
        with suppress(RuntimeError):  # the HTTP library's errors may have no request yet
            if (request := getattr(error, "request", None)) is not None:
                return redactor.extend(credentials_in(request.headers))
        return redactor

    def safe_cause(self, error: Exception) -> Exception | None:
        # the HTTP library's own errors may quote headers in other spellings
        return None if isinstance(error.__cause__, Exception) else super().safe_cause(error)


@dataclass(slots=True)
class _Events:
    """The events of a streamed reply, as JSON."""

    client: AnySDK
    response: AnySDK

    def __iter__(self) -> Iterator[AnyJson]:
        chunks = self.response.iter_bytes()
        if not _is_framed(self.response):
            return read_events(chunks)
        return (json.loads(event.data) for event in _sdk_decoder(self.client).iter_bytes(chunks))

    def close(self) -> None:
        self.response.close()


@dataclass(slots=True)
class _AsyncEvents:
    """Like `_Events`, without blocking the event loop."""

    client: AnySDK
    response: AnySDK

    async def __aiter__(self) -> AsyncIterator[AnyJson]:
        chunks = self.response.aiter_bytes()
        if _is_framed(self.response):
            async for event in _sdk_decoder(self.client).aiter_bytes(chunks):
                yield json.loads(event.data)
            return
        decoder = EventDecoder()
        async for chunk in chunks:
            for event in decoder.feed(chunk):
                yield event
            if decoder.done:
                await _read_rest(chunks)
                return
        for event in decoder.end():
            yield event

    async def close(self) -> None:
        await self.response.aclose()


async def _read_rest(chunks: AsyncIterator[bytes]) -> None:
    """Reads on to the end of a reply whose last event has come, so that its connection is kept.

    Waits for 0.1 seconds at most, as OpenAI's SDK does: a server may leave the reply open.
    """
    with suppress(Exception):  # the reply is whole, whatever follows
        async with asyncio.timeout(_REST_SECONDS):
            async for _ in chunks:
                pass


def _is_framed(response: AnySDK) -> bool:
    """Whether the events are in Amazon's binary frames."""
    return "amazon.eventstream" in response.headers.get("content-type", "")


def _sdk_decoder(client: AnySDK) -> AnySDK:
    return client._make_sse_decoder()  # noqa: SLF001 - it has no public way


def _plain(reply: AnySDK) -> AnyJson:
    """Returns the reply of a tool that answers in place of the SDK, as JSON."""
    return reply.model_dump(mode="json") if hasattr(reply, "model_dump") else reply


def _timeout(sdk: AnySDK, seconds: object) -> AnySDK:
    """Returns the timeout of a request, which waits for a connection as long as SDKs usually do."""
    if not isinstance(seconds, int | float):  # none, or a Timeout that has its own
        return seconds
    return sdk.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))


def _client(
    load: Callable[[], AnySDK], class_name: str, arguments: Mapping[str, object], max_bytes: int
) -> AnySDK:
    """Makes a client that bounds the bodies of error replies, which the SDK reads whole.

    The hook goes on the SDK's own HTTP client: the SDK would not close one that we pass.
    """
    sdk = load()
    timeout = _timeout(sdk, arguments["timeout"])
    client: AnySDK = getattr(sdk, class_name)(**{**arguments, "timeout": timeout})

    def bound(response: AnySDK) -> None:
        if response.is_error:
            bound_reply(response, max_bytes)

    async def bound_async(response: AnySDK) -> None:
        bound(response)

    http_client: AnySDK = client._client  # noqa: SLF001 - it has no public way
    if class_name.startswith("Async"):
        http_client.event_hooks["response"].append(bound_async)
        return client  # `LoopClients` closes it
    http_client.event_hooks["response"].append(bound)
    # The finalizer keeps the connections alive until the client is gone: the garbage collector
    # would end them in any order.
    finalize(client, http_client.close).atexit = False
    return client
