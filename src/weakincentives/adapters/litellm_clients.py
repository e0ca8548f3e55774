"""HTTP clients for LiteLLM that limit the size of replies and do not follow redirects.

LiteLLM accepts a client for each call: the SDK's client for OpenAI and compatible servers, and
LiteLLM's own handler for most other providers. Azure and custom providers need other kinds of
clients, so LiteLLM creates its own clients for them.
"""

import os
import weakref
from functools import partial
from importlib import import_module
from threading import Lock
from typing import Any

from .codec import JsonObject
from .http_clients import (
    ACCEPTED_ENCODINGS,
    LoopClients,
    RedirectError,
    ReplyTooLargeError,
    bound_reply,
)

__all__ = ["AnyLiteLLM", "LiteLLMClients"]

# Providers for which LiteLLM accepts its HTTP handler.
_HANDLER_PROVIDERS = (
    "anthropic bedrock deepseek fireworks_ai gemini groq hosted_vllm mistral ollama ollama_chat"
    " openrouter together_ai vertex_ai xai"
)

# Any: modules, classes and instances from LiteLLM, openai and httpx, which are often not installed
# where types are checked.
type AnyLiteLLM = Any


class LiteLLMClients:
    """One adapter's clients: one for threads, and one for each event loop.

    They raise `RedirectError` for a redirect, and `ReplyTooLargeError` for a reply of more than
    `max_reply_bytes`; LiteLLM wraps both in its own errors.
    """

    def __init__(self, litellm: AnyLiteLLM, max_reply_bytes: int) -> None:
        self._litellm = litellm
        self._http: AnyLiteLLM = import_module("litellm.llms.custom_httpx.http_handler")
        self._openai: AnyLiteLLM = import_module("openai")
        self._limit = _Limit(self._openai.OpenAIError, max_reply_bytes)
        self._lock = Lock()
        self._handler: AnyLiteLLM = None
        self._async_handlers: LoopClients[AnyLiteLLM] = LoopClients(
            partial(_set_up, self._http.AsyncHTTPHandler, self._limit.check_async)
        )

    def client(self, arguments: JsonObject) -> JsonObject:
        """Returns the `client` argument for a `completion` call, or `{}` to use LiteLLM's own."""
        with self._lock:
            if self._handler is None:
                self._handler = _set_up(self._http.HTTPHandler, self._limit.check)
                weakref.finalize(self, self._handler.close).atexit = False
        return self._for_route(arguments, self._handler, self._openai.OpenAI)

    async def async_client(self, arguments: JsonObject) -> JsonObject:
        """Like `client`, for an `acompletion` call in the running event loop."""
        handler = await self._async_handlers.get()
        return self._for_route(arguments, handler, self._openai.AsyncOpenAI)

    def _for_route(
        self, arguments: JsonObject, handler: AnyLiteLLM, sdk_client: AnyLiteLLM
    ) -> JsonObject:
        litellm = self._litellm
        own_clients = arguments.keys() & {"client", "shared_session", "mock_response"}
        if own_clients or litellm.client_session or litellm.aclient_session:
            return {}
        base, key = arguments.get("api_base") or arguments.get("base_url"), arguments.get("api_key")
        try:
            _, provider, found_key, found_base = litellm.get_llm_provider(
                model=arguments["model"],
                custom_llm_provider=arguments.get("custom_llm_provider"),
                api_base=base,
                api_key=key,
            )
        except Exception:  # LiteLLM reports the problem with the model's name
            return {}
        if provider in _HANDLER_PROVIDERS.split():
            return {"client": handler}
        if provider == "openai":
            found_key = (
                key or litellm.api_key or litellm.openai_key or os.environ.get("OPENAI_API_KEY")
            )
            variables = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
            found_base = base or litellm.api_base or variables or "https://api.openai.com/v1"
        elif provider not in litellm.openai_compatible_providers:
            return {}
        if not found_key or not found_base:
            return {}
        arguments = {"api_key": found_key, "base_url": found_base, "http_client": handler.client}
        return {"client": sdk_client(**arguments)}


class _Limit:
    """A response hook for HTTP clients that rejects redirects and limits replies."""

    def __init__(self, base: type[Exception], max_reply_bytes: int) -> None:
        # The SDK raises its own errors unchanged, but treats any other error as a lost connection
        # and retries.
        self._redirected = type("RedirectError", (RedirectError, base), {})
        self._too_large = type("ReplyTooLargeError", (ReplyTooLargeError, base), {})
        self._max_reply_bytes = max_reply_bytes

    def check(self, response: AnyLiteLLM) -> None:
        if response.is_redirect:
            location = response.headers.get("location", "")
            raise self._redirected(response.status_code, location)
        bound_reply(response, self._max_reply_bytes, self._too_large)

    async def check_async(self, response: AnyLiteLLM) -> None:
        self.check(response)


def _set_up(kind: AnyLiteLLM, check: AnyLiteLLM) -> AnyLiteLLM:
    handler = kind(follow_redirects=False)
    handler.client.event_hooks = {"response": [check]}
    handler.client.headers["accept-encoding"] = ACCEPTED_ENCODINGS
    return handler
