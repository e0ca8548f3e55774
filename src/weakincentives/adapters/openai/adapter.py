"""`OpenAIAdapter`: the only module that imports the `openai` SDK. Retries are the SDK's own.

Requests go through the client's public `post` and stay plain JSON both ways: the typed methods check each item of the
history against dozens of shapes at every request, which the codecs have no use for.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from ...limits import Clock, utc_now
from ..chat import ChatCodec
from ..codec import Codec, CodecAdapter, CodecOptions, Wire, malformed, provider_failed
from ..core import OutputT
from ..errors import PromptEvaluationError
from ..faults import check_key, request_fault, status_fault, without_keys
from ..inner_loop import InnerLoopConfig
from .responses import ResponsesCodec

if TYPE_CHECKING:
    import openai

__all__ = ["OpenAIAdapter"]

type _HeldClient = tuple[AsyncGenerator["openai.AsyncOpenAI"], "openai.AsyncOpenAI"]

_PROVIDER = "openai"
_NO_KEY = "<missing API key>"  # of the SDK's clients for Azure that have a token instead
_APIS: Mapping[str, tuple[type[Codec], str]] = {
    "responses": (ResponsesCodec, "/responses"),
    "chat": (ChatCodec, "/chat/completions"),
}
"""Codecs, and paths under the client's base URL."""


class OpenAIAdapter(CodecAdapter[OutputT]):
    """Evaluates prompts on OpenAI, or on a compatible server at `base_url`.

    `api` is `"responses"` or `"chat"` (Chat Completions, which most compatible servers speak). `api_key` is by default
    `OPENAI_API_KEY`; `timeout` is in seconds for one request, `max_retries` the SDK's. `client` and `async_client` take
    ready clients, then the four before are theirs. `options` go into every request, such as `{"temperature": 0}`.
    The other arguments are those of `CodecOptions` and `LoopAdapter`. Raises `ImportError` without the extra `openai`.
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
            raise ImportError("OpenAIAdapter needs the openai SDK: pip install 'weakincentives[openai]'")
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
        self._client = client
        self._given_async_client = async_client
        self._async_clients: dict[asyncio.AbstractEventLoop, _HeldClient] = {}
        self._lock = Lock()

    def client(self) -> "openai.OpenAI":
        """The client, made on first use. Raises `openai.OpenAIError` when there is no key."""
        import openai

        with self._lock:
            if self._client is None:
                self._client = openai.OpenAI(**self._client_arguments)
            return self._client

    async def async_client(self) -> "openai.AsyncOpenAI":
        """The client of the running event loop, made on first use: connections cannot move between loops.

        It is closed with the loop, as `asyncio.run` does it; a given client is the caller's to close.
        """
        if self._given_async_client is not None:
            return self._given_async_client
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            held = self._hold_client(loop)
            self._async_clients[loop] = held, await anext(held)
        return self._async_clients[loop][1]

    async def _hold_client(self, loop: asyncio.AbstractEventLoop) -> "AsyncGenerator[openai.AsyncOpenAI]":
        """A generator, because these are what a loop ends before it closes."""
        import openai

        async with openai.AsyncOpenAI(**self._client_arguments) as client:
            try:
                yield client
            finally:
                self._async_clients.pop(loop, None)

    def send(self, body: Wire, left: float | None, *, stream: bool) -> Any:
        import openai

        client = self.client()
        arguments = _arguments(client, body, left, openai.Stream[Any] if stream else None)
        return client.post(self._path, **arguments)

    async def send_async(self, body: Wire, left: float | None, *, stream: bool) -> Any:
        import openai

        client = await self.async_client()
        arguments = _arguments(client, body, left, openai.AsyncStream[Any] if stream else None)
        return await client.post(self._path, **arguments)

    def fault(self, error: Exception) -> PromptEvaluationError:
        import openai

        match error:
            case openai.APITimeoutError() | TimeoutError():
                return request_fault(_PROVIDER, "timeout", "the provider did not answer in time", "raise timeout")
            case openai.APIConnectionError():
                cause = type(error.__cause__ or error).__name__
                return request_fault(
                    _PROVIDER, "connection", f"no connection ({cause})", "check base_url and the network"
                )
            case openai.APIStatusError():
                body = error.body if isinstance(error.body, dict) else {"message": error.body}
                return status_fault(
                    _PROVIDER,
                    error.status_code,
                    message=str(body.get("message") or "no message"),
                    code=None if error.code is None else str(error.code),
                    retry_after=error.response.headers.get("retry-after"),
                    secret=_sent_key(error),
                )
            case openai.APIResponseValidationError() | json.JSONDecodeError() | UnicodeDecodeError() | RecursionError():
                return malformed(_PROVIDER, "it is no JSON of this API")
            case openai.APIError():  # said in the middle of a stream
                return provider_failed(_PROVIDER, self.without_keys(error.message))
            case openai.OpenAIError():
                return request_fault(_PROVIDER, "authentication", str(error), "pass api_key or set OPENAI_API_KEY")
            case _:
                return request_fault(
                    _PROVIDER, "client_error", f"{type(error).__name__}: {error}", "check the adapter's options"
                )

    def without_keys(self, text: str) -> str:
        held = [client for _, client in list(self._async_clients.values())]
        clients = self._client, self._given_async_client, *held
        return without_keys(text, [client.api_key for client in clients if client is not None])

    def harmless(self, error: Exception) -> Exception | None:
        """`error`, unless it or its causes could quote the request's headers and with them the key."""
        import openai

        key = _sent_key(error) if isinstance(error, openai.APIError) else ""
        return None if isinstance(error.__cause__, Exception) or (key and key in str(error)) else error


def _arguments(client: "openai.OpenAI | openai.AsyncOpenAI", body: Wire, left: float | None, stream: object) -> Wire:
    """What `post` takes: the client's own time-out, but no more than the seconds `left`, and the class of a stream."""
    if client.api_key != _NO_KEY:
        check_key(_PROVIDER, client.api_key)
    own = client.timeout
    seconds = own if left is None else min(own, left) if isinstance(own, int | float) else left
    streamed = {} if stream is None else {"stream": True, "stream_cls": stream}
    return {"body": body, "cast_to": object, "options": {"timeout": seconds}, **streamed}


def _sent_key(error: "openai.APIError") -> str:
    """The key in the headers of the request that failed."""
    headers = error.request.headers
    return headers.get("authorization", "").removeprefix("Bearer ") or headers.get("api-key", "")
