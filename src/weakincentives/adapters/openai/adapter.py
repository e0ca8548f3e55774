"""`OpenAIAdapter`: the only module that imports the `openai` SDK. Retries are the SDK's own.

Requests go through the client's public `post` and stay plain JSON both ways: the SDK's typed
methods would check each item of the history against dozens of shapes at every request. Every
request asks for a stream, because the SDK reads any other reply whole before we can bound it.
"""

import json
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from ...evaluation.errors import PromptEvaluationError
from ...evaluation.inner_loop import InnerLoopConfig
from ...limits import Clock, utc_now
from ...redaction import Redactor, credentials_in
from ..chat import ChatCodec
from ..codec import Codec, CodecOptions, PromptRole, Wire
from ..codec_adapter import AnyReply, CodecAdapter
from ..http_clients import (
    ACCEPTED_ENCODINGS,
    MAX_REPLY_BYTES,
    LoopClients,
    bound_reply,
    check_max_reply_bytes,
    error_from_http,
)
from ..provider_errors import (
    check_key,
    error_from_redirect,
    error_from_reply,
    error_from_request,
    error_from_status,
)
from .responses import ResponsesCodec

if TYPE_CHECKING:
    import openai

__all__ = ["OpenAIAdapter"]

type _Client = openai.OpenAI | openai.AsyncOpenAI

_PROVIDER = "openai"
_NO_KEY = "<missing API key>"  # the key of the SDK's Azure clients that use a token instead
# codecs, and paths under the client's base URL
_APIS: Mapping[str, tuple[type[Codec], str]] = {
    "responses": (ResponsesCodec, "/responses"),
    "chat": (ChatCodec, "/chat/completions"),
}


class OpenAIAdapter(CodecAdapter):
    """Evaluates prompts on OpenAI, or on a compatible server at `base_url`.

    `api` is `"responses"` or `"chat"` (Chat Completions, which most compatible servers speak).
    `api_key` is by default `OPENAI_API_KEY`. `timeout` is in seconds for one request; the SDK does
    the `max_retries`. Clients that you pass as `client` and `async_client` keep their own key,
    timeout, retries and base URL. `max_reply_bytes` bounds a reply after decompression. `options`
    go into every request, such as `{"temperature": 0}`. The other arguments are those of
    `CodecOptions` and `LoopAdapter`.

    Raises `ImportError` without the extra `openai`.
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
        prompt_role: PromptRole = "user",
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
        self._max_reply_bytes = check_max_reply_bytes(max_reply_bytes)
        self._client_arguments: Wire = {
            "base_url": base_url,
            "api_key": api_key,
            "timeout": timeout,
            "max_retries": max_retries,
        }
        self._client = client
        self._lock = Lock()
        self._async_client = async_client
        self._async_clients = LoopClients(
            partial(_async_client, self._client_arguments, max_reply_bytes)
        )
        self._has_ready_client = client is not None or async_client is not None

    def client(self) -> "openai.OpenAI":
        """Returns the client, made on first use.

        Raises `openai.OpenAIError` when there is no key.
        """
        import openai

        with self._lock:
            if self._client is None:
                self._client = openai.OpenAI(**self._client_arguments)
                _bound_errors(self._client, self._max_reply_bytes)
            return self._client

    async def async_client(self) -> "openai.AsyncOpenAI":
        """Returns the client of the running event loop, made on first use and closed with the loop.

        A client that was passed as `async_client` is the caller's to close.
        """
        return self._async_client or await self._async_clients.get()

    @property
    def cancellable(self) -> bool:
        return not self._has_ready_client  # it belongs to its owner's threads or event loop

    def send(self, body: Wire, left: float | None, *, stream: bool) -> AnyReply:
        import openai

        client = self.client()
        arguments = _arguments(client, body, left)
        if left is not None:
            # retries would continue in the abandoned thread after the deadline
            arguments["options"]["max_retries"] = 0
        reply = client.post(self._path, **arguments, stream_cls=openai.Stream[Any])
        bound_reply(reply.response, self._max_reply_bytes)
        if stream:
            return reply
        try:
            return b"".join(reply.response.iter_bytes())
        finally:
            reply.close()

    async def send_async(self, body: Wire, left: float | None, *, stream: bool) -> AnyReply:
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

    def translate(self, error: Exception) -> PromptEvaluationError:
        import openai

        match error:
            case openai.APITimeoutError():
                error = TimeoutError()
            case openai.APIConnectionError(__cause__=Exception() as cause):
                error = cause
            case openai.APIStatusError(status_code=status, response=response):
                if response.is_redirect:
                    location = response.headers.get("location", "")
                    return error_from_redirect(_PROVIDER, status, location)
                body = error.body if isinstance(error.body, dict) else {"message": error.body}
                return error_from_status(
                    _PROVIDER,
                    status,
                    message=str(body.get("message") or "no message"),
                    code=error.code,
                    retry_after=response.headers.get("retry-after"),
                )
            case (
                openai.APIResponseValidationError()
                | json.JSONDecodeError()
                | UnicodeDecodeError()
                | RecursionError()
            ):
                return error_from_reply(_PROVIDER, "it is no JSON of this API")
            case openai.APIError():  # an event of a stream reports it
                return error_from_request(_PROVIDER, "provider_failed", error.message)
            case openai.OpenAIError():
                remedy = "pass api_key or set OPENAI_API_KEY"
                return error_from_request(_PROVIDER, "authentication", str(error), remedy)
            case _:
                pass
        text = f"{type(error).__name__}: {error}"
        return error_from_http(_PROVIDER, error) or error_from_request(
            _PROVIDER, "client_error", text
        )

    def redactor(self, error: Exception | None = None) -> Redactor:
        redactor = Redactor()
        for client in (self._client, self._async_client, *self._async_clients):
            if client is not None:
                headers = credentials_in(client.default_headers)
                redactor = redactor.extend([client.api_key, *headers])
        request = getattr(error, "request", None)
        return redactor if request is None else redactor.extend(credentials_in(request.headers))

    def safe_cause(self, error: Exception) -> Exception | None:
        # the HTTP library's own errors may quote headers in other spellings
        return None if isinstance(error.__cause__, Exception) else super().safe_cause(error)


def _async_client(arguments: Wire, max_reply_bytes: int) -> "openai.AsyncOpenAI":
    import openai

    client = openai.AsyncOpenAI(**arguments)
    _bound_errors(client, max_reply_bytes)
    return client


def _arguments(client: _Client, body: Wire, left: float | None) -> Wire:
    """Returns what `post` takes; the client's time-out holds unless fewer seconds are `left`."""
    if client.api_key != _NO_KEY:
        check_key(_PROVIDER, client.api_key)
    seconds = client.timeout
    if left is not None:
        seconds = min(seconds, left) if isinstance(seconds, int | float) else left
    headers = {"Accept-Encoding": ACCEPTED_ENCODINGS}
    options = {"timeout": seconds, "follow_redirects": False, "headers": headers}
    return {"body": body, "cast_to": object, "options": options, "stream": True}


def _bound_errors(client: _Client, max_bytes: int) -> None:
    """Bounds the bodies of error replies, which the SDK reads whole.

    The hook goes on the SDK's own HTTP client: the SDK would not close one that we pass.
    """
    hooks = client._client.event_hooks  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def bound(response: Any) -> None:  # Any: of httpx or httpx2, as the SDK's version has it
        bound_reply(response, max_bytes)

    async def bound_async(response: Any) -> None:  # Any: as above
        bound_reply(response, max_bytes)

    import openai

    hooks["response"].append(bound if isinstance(client, openai.OpenAI) else bound_async)
