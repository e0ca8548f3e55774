"""HTTP clients that LiteLLM sends by: they follow no redirect and bound each reply.

LiteLLM takes a client of ours for each call where it knows its kind: the SDK's for OpenAI and
compatible servers, its own handler for others. For routes with clients of yet other kinds (Azure,
custom providers) it keeps its own.
"""

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from importlib import import_module
from threading import Lock
from typing import Any

from ..evaluation.errors import PromptEvaluationError
from .codec import Wire
from .provider_errors import error_from_request
from .replies import ACCEPTED_ENCODINGS, ReplyTooLargeError, bound_reply, redirect_error

__all__ = ["LiteLLMClients", "refusal"]

_HANDLED = frozenset(
    {
        *(
            "anthropic",
            "bedrock",
            "deepseek",
            "fireworks_ai",
            "gemini",
            "groq",
            "hosted_vllm",
            "mistral",
            "ollama",
        ),
        *("ollama_chat", "openrouter", "together_ai", "vertex_ai", "xai"),
    }
)
"""Providers whose routes take LiteLLM's HTTP handler."""


class _RedirectError(Exception):
    """A redirect that was not followed."""

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.location = location


def refusal(
    provider: str, causes: Iterable[BaseException], redact: Callable[[str], str]
) -> PromptEvaluationError | None:
    """Returns the error for what one of these clients refused, if that is among `causes`."""
    for cause in causes:
        if isinstance(cause, _RedirectError):
            return redirect_error(provider, cause.status, cause.location, redact)
        if isinstance(cause, ReplyTooLargeError):
            return error_from_request(
                provider, "reply_too_large", str(cause), "raise max_reply_bytes", phase="response"
            )
    return None


class LiteLLMClients:
    """The clients of one adapter: one for threads, and one for each event loop, closed with it."""

    def __init__(self, litellm: Any, max_reply_bytes: int) -> None:  # Any: LiteLLM's module
        self._litellm = litellm
        self._http: Any = import_module("litellm.llms.custom_httpx.http_handler")  # Any: as above
        self._openai: Any = import_module("openai")  # Any: of the version that LiteLLM wants
        self._max_reply_bytes = max_reply_bytes
        self._lock = Lock()
        self._handler: Any = None  # Any: LiteLLM's own
        # Any: a handler of LiteLLM and its finalizer.
        self._handlers: dict[asyncio.AbstractEventLoop, tuple[Any, Any]] = {}
        # The SDK passes its own errors on; any other it takes for a lost connection, and asks
        # again.
        base = self._openai.OpenAIError
        self._redirected = type("RedirectError", (_RedirectError, base), {})
        self._too_large = type("ReplyTooLargeError", (ReplyTooLargeError, base), {})

    def client(self, arguments: Wire) -> Wire:
        """The argument `client` for a call of `completion`; nothing where LiteLLM must take its
        own.
        """
        with self._lock:
            if self._handler is None:
                self._handler = self._http.HTTPHandler(follow_redirects=False)
                self._set_up(self._handler.client, self._judge)
                finalizer = weakref.finalize(self, self._handler.close)
                finalizer.atexit = False
        return self._for_route(arguments, self._handler, self._openai.OpenAI)

    async def async_client(self, arguments: Wire) -> Wire:
        """As `client`, for `acompletion` in the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._handlers:
            held = _hold(self._handlers, loop, self._http.AsyncHTTPHandler(follow_redirects=False))
            handler = await anext(held)
            self._set_up(handler.client, self._judge_async)
            finalizer = weakref.finalize(self, _end, loop, held)
            finalizer.atexit = False
            self._handlers[loop] = handler, finalizer
        return self._for_route(arguments, self._handlers[loop][0], self._openai.AsyncOpenAI)

    def _set_up(self, client: Any, judge: Any) -> None:  # Any: httpx's, with a hook for it
        client.event_hooks = {"response": [judge]}
        client.headers["accept-encoding"] = ACCEPTED_ENCODINGS

    def _judge(self, response: Any) -> None:  # Any: httpx's
        if response.has_redirect_location:
            raise self._redirected(response.status_code, response.headers["location"])
        bound_reply(response, self._max_reply_bytes, self._too_large)

    async def _judge_async(self, response: Any) -> None:  # Any: httpx's
        self._judge(response)

    # Any: LiteLLM's and the SDK's own
    def _for_route(self, arguments: Wire, handler: Any, sdk: Any) -> Wire:
        litellm, taken = self._litellm, {"client", "shared_session", "mock_response"}
        if taken & arguments.keys() or litellm.client_session or litellm.aclient_session:
            return {}
        base, key = arguments.get("api_base") or arguments.get("base_url"), arguments.get("api_key")
        try:
            _, provider, found_key, found_base = litellm.get_llm_provider(
                model=arguments["model"],
                custom_llm_provider=arguments.get("custom_llm_provider"),
                api_base=base,
                api_key=key,
            )
        except Exception:  # LiteLLM says what is wrong with the model's name
            return {}
        if provider in _HANDLED:
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
        client = sdk(api_key=found_key, base_url=found_base, http_client=handler.client)
        return {"client": client}


# Any: LiteLLM's
async def _hold(
    handlers: Any, loop: asyncio.AbstractEventLoop, handler: Any
) -> AsyncGenerator[Any]:
    """A generator, because these are what a loop ends before it closes."""
    try:
        yield handler
    finally:
        _, finalizer = handlers.pop(loop)
        finalizer.detach()
        await handler.close()


# Any: LiteLLM's handler
def _end(loop: asyncio.AbstractEventLoop, held: AsyncGenerator[Any]) -> None:
    async def close() -> None:
        await held.aclose()

    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: loop.create_task(close()))
