"""`OpenAIAdapter`: the only module that imports the `openai` SDK. Retries are the SDK's own.

Requests go through the client's public `post` and stay plain JSON both ways: the typed methods
check each item of the history against dozens of shapes at every request, which the codecs have no
use for. Every reply is asked for as a stream, because the SDK reads any other one whole before we
can bound it.
"""

import asyncio
import json
import weakref
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from ...evaluation.errors import PromptEvaluationError
from ...evaluation.inner_loop import InnerLoopConfig
from ...limits import Clock, utc_now
from ...redaction import Redactor, header_credentials
from ..chat import ChatCodec
from ..codec import Codec, CodecAdapter, CodecOptions, Wire, malformed, provider_failed
from ..provider_errors import check_key, error_from_request, error_from_status
from ..replies import (
    ACCEPTED_ENCODINGS,
    MAX_REPLY_BYTES,
    ReplyTooLargeError,
    bound_reply,
    redirect_error,
)
from .responses import ResponsesCodec

if TYPE_CHECKING:
    import openai

__all__ = ["OpenAIAdapter"]

type _Client = openai.OpenAI | openai.AsyncOpenAI
# Any: finalizers of whatever is finalized.
type _HeldClients = dict[
    asyncio.AbstractEventLoop, tuple["openai.AsyncOpenAI", weakref.finalize[..., Any]]
]

_PROVIDER = "openai"
_NO_KEY = "<missing API key>"  # of the SDK's clients for Azure that have a token instead
_APIS: Mapping[str, tuple[type[Codec], str]] = {
    "responses": (ResponsesCodec, "/responses"),
    "chat": (ChatCodec, "/chat/completions"),
}
"""Codecs, and paths under the client's base URL."""


class OpenAIAdapter(CodecAdapter):
    """Evaluates prompts on OpenAI, or on a compatible server at `base_url`.

    `api` is `"responses"` or `"chat"` (Chat Completions, which most compatible servers speak).
    `api_key` is by default `OPENAI_API_KEY`; `timeout` is in seconds for one request, `max_retries`
    the SDK's. `client` and `async_client` take ready clients, then the four before are theirs.
    `max_reply_bytes` bounds a reply, as decompressed. `options` go into every request, such as
    `{"temperature": 0}`. The other arguments are those of `CodecOptions` and `LoopAdapter`. Raises
    `ImportError` without the extra `openai`.
    """

    name = _PROVIDER

    def __init__(
        self,
        model: str,
        *,
        api: Literal["responses", "chat"] = "responses",
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        max_retries: int = 2,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        client: "openai.OpenAI | None" = None,
        async_client: "openai.AsyncOpenAI | None" = None,
        prompt_role: Literal["user", "system", "developer"] = "user",
        structured_output: Literal["native", "prompted"] = "native",
        tools_in_conversation: bool = False,
        options: Mapping[str, object] | None = None,
        config: InnerLoopConfig | None = None,
        clock: Clock = utc_now,
    ) -> None:
        if find_spec("openai") is None:
            raise ImportError(
                "OpenAIAdapter needs the openai SDK: pip install 'weakincentives[openai]'"
            )
        if api not in _APIS:
            raise ValueError(f"api is {api!r}; use 'responses' or 'chat'")
        codec, self._path = _APIS[api]
        codec_options = CodecOptions(
            model=model,
            prompt_role=prompt_role,
            structured_output=structured_output,
            tools_in_conversation=tools_in_conversation,
            extra=dict(options or {}),
        )
        super().__init__(codec, codec_options, config=config, clock=clock)
        self._client_arguments: Wire = {
            "base_url": base_url,
            "api_key": api_key,
            "timeout": timeout,
            "max_retries": max_retries,
        }
        if max_reply_bytes < 1:
            raise ValueError(
                f"max_reply_bytes is {max_reply_bytes}; give a number of bytes above 0"
            )
        self._max_reply_bytes = max_reply_bytes
        self._given_clients = [given for given in (client, async_client) if given is not None]
        self._client = client
        self._given_async_client = async_client
        self._async_clients: _HeldClients = {}
        self._lock = Lock()

    def client(self) -> "openai.OpenAI":
        """The client, made on first use. Raises `openai.OpenAIError` when there is no key."""
        import openai

        with self._lock:
            if self._client is None:
                self._client = openai.OpenAI(**self._client_arguments)
                _bound_errors(self._client, self._max_reply_bytes)
            return self._client

    async def async_client(self) -> "openai.AsyncOpenAI":
        """The client of the running event loop, made on first use: connections cannot move between
        loops.

        It is closed with the loop, as `asyncio.run` does it; a given client is the caller's to
        close.
        """
        if self._given_async_client is not None:
            return self._given_async_client
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            held = _hold_client(
                self._async_clients, loop, self._client_arguments, self._max_reply_bytes
            )
            client = await anext(held)
            # It keeps the client alive until the adapter has gone: as garbage, connections would
            # end in any order.
            finalizer = weakref.finalize(self, _end_client, loop, held)
            finalizer.atexit = False
            self._async_clients[loop] = client, finalizer
        return self._async_clients[loop][0]

    @property
    def cancellable(self) -> bool:
        return not self._given_clients  # one that is given is for its owner's threads or event loop

    def send(self, body: Wire, left: float | None, *, stream: bool) -> Any:
        import openai

        client = self.client()
        arguments = _arguments(client, body, left)
        if left is not None:
            # they would go on in a thread that is left behind
            arguments["options"]["max_retries"] = 0
        reply = client.post(self._path, **arguments, stream_cls=openai.Stream[Any])
        bound_reply(reply.response, self._max_reply_bytes)
        if stream:
            return reply
        try:
            return b"".join(reply.response.iter_bytes())
        finally:
            reply.close()

    async def send_async(self, body: Wire, left: float | None, *, stream: bool) -> Any:
        import openai

        client = await self.async_client()
        reply = await client.post(
            self._path, **_arguments(client, body, left), stream_cls=openai.AsyncStream[Any]
        )
        bound_reply(reply.response, self._max_reply_bytes)
        if stream:
            return reply
        try:
            return b"".join([piece async for piece in reply.response.aiter_bytes()])
        finally:
            await reply.close()

    def fault(self, error: Exception) -> PromptEvaluationError:
        import openai

        match error:
            case ReplyTooLargeError():
                return error_from_request(
                    _PROVIDER,
                    "reply_too_large",
                    str(error),
                    "raise max_reply_bytes",
                    phase="response",
                )
            case openai.APITimeoutError() | TimeoutError():
                return _timed_out()
            case openai.APIConnectionError():
                return _not_connected(error.__cause__ or error)
            case openai.APIStatusError() if error.response.is_redirect:
                location = error.response.headers.get("location", "")
                return redirect_error(_PROVIDER, error.status_code, location, self._redactor(error))
            case openai.APIStatusError():
                body = error.body if isinstance(error.body, dict) else {"message": error.body}
                return error_from_status(
                    _PROVIDER,
                    error.status_code,
                    message=self._redactor(error)(str(body.get("message") or "no message")),
                    code=None if error.code is None else str(error.code),
                    retry_after=error.response.headers.get("retry-after"),
                )
            case (
                openai.APIResponseValidationError()
                | json.JSONDecodeError()
                | UnicodeDecodeError()
                | RecursionError()
            ):
                return malformed(_PROVIDER, "it is no JSON of this API")
            case zlib.error():
                return malformed(_PROVIDER, str(error))
            case openai.APIError():  # said in the middle of a stream
                return provider_failed(_PROVIDER, self._redactor(error)(error.message))
            case openai.OpenAIError():
                return error_from_request(
                    _PROVIDER, "authentication", str(error), "pass api_key or set OPENAI_API_KEY"
                )
            case _ if _is_http_error(error, "TimeoutException"):
                return _timed_out()
            case _ if _is_http_error(error, "TransportError"):
                return _not_connected(error)
            case _:
                told = self._redactor(error)(f"{type(error).__name__}: {error}")
                return error_from_request(
                    _PROVIDER, "client_error", told, "check the adapter's options"
                )

    def without_keys(self, text: str) -> str:
        return self._redactor()(text)

    def safe_cause(self, error: Exception) -> Exception | None:
        """`error`, unless it or its causes could quote the request's headers and with them the key."""
        return (
            None
            if isinstance(error.__cause__, Exception) or self._redactor(error).quoted_in(error)
            else error
        )

    def _redactor(self, error: Exception | None = None) -> Redactor:
        """Masks what the clients send as credentials, and what the request of `error` did."""
        held = [client for client, _ in list(self._async_clients.values())]
        clients = [
            client
            for client in (self._client, self._given_async_client, *held)
            if client is not None
        ]
        redactor = Redactor()
        for client in clients:
            sent = {name: str(value) for name, value in client.default_headers.items()}
            redactor = redactor.adding([client.api_key, *header_credentials(sent)])
        request = getattr(error, "request", None)
        return redactor if request is None else redactor.adding(header_credentials(request.headers))


async def _hold_client(
    clients: _HeldClients, loop: asyncio.AbstractEventLoop, arguments: Wire, max_reply_bytes: int
) -> "AsyncGenerator[openai.AsyncOpenAI]":
    """A generator, because these are what a loop ends before it closes."""
    import openai

    async with openai.AsyncOpenAI(**arguments) as client:
        _bound_errors(client, max_reply_bytes)
        try:
            yield client
        finally:
            _, finalizer = clients.pop(loop)
            finalizer.detach()


def _end_client(
    loop: asyncio.AbstractEventLoop, held: "AsyncGenerator[openai.AsyncOpenAI]"
) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: loop.create_task(_close(held)))


async def _close(held: "AsyncGenerator[openai.AsyncOpenAI]") -> None:
    await held.aclose()


def _arguments(client: _Client, body: Wire, left: float | None) -> Wire:
    """What `post` takes: the client's own time-out, but no more than the seconds `left`, and no
    redirects.
    """
    if client.api_key != _NO_KEY:
        check_key(_PROVIDER, client.api_key)
    own = client.timeout
    seconds = own if left is None else min(own, left) if isinstance(own, int | float) else left
    headers = {"Accept-Encoding": ACCEPTED_ENCODINGS}
    options = {"timeout": seconds, "follow_redirects": False, "headers": headers}
    return {"body": body, "cast_to": object, "options": options, "stream": True}


def _bound_errors(client: _Client, max_bytes: int) -> None:
    """Bounds the bodies of error replies, which the SDK reads whole.

    The HTTP client is the SDK's own: one that we passed would not be closed with the SDK's client.
    """
    hooks = client._client.event_hooks  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def bound(response: Any) -> None:  # Any: of httpx or httpx2, as the SDK's version has it
        bound_reply(response, max_bytes)

    async def bound_async(response: Any) -> None:  # Any: as above
        bound_reply(response, max_bytes)

    import openai

    hooks["response"].append(bound if isinstance(client, openai.OpenAI) else bound_async)


def _timed_out() -> PromptEvaluationError:
    return error_from_request(
        _PROVIDER, "timeout", "the provider did not answer in time", "raise timeout"
    )


def _not_connected(error: BaseException) -> PromptEvaluationError:
    told = f"no connection ({type(error).__name__})"
    return error_from_request(_PROVIDER, "connection", told, "check base_url and the network")


def _is_http_error(error: Exception, name: str) -> bool:
    """Compares names, since the SDK's version decides whether the HTTP library is httpx or httpx2."""
    return any(base.__name__ == name for base in type(error).__mro__)
