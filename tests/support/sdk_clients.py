"""Adapters and clients of the SDKs that share `SDKAdapter`, by the name of the API.

`APIS` omits an API whose SDK is not installed; `make test` installs both SDKs.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.sdk_adapter import SDKAdapter

__all__ = ["APIS", "AnyAdapter", "sdk_adapter", "sdk_client"]

# Any: the clients of both SDKs
type AnyAdapter = SDKAdapter[Any, Any]

# imported here, because it can take seconds, which no deadline should include
_SDKS: dict[str, Any] = {"openai": import_module("openai")}
if find_spec("anthropic"):
    _SDKS["anthropic"] = import_module("anthropic")

APIS = ["responses", "chat", *["messages" for name in _SDKS if name == "anthropic"]]


def sdk_adapter(api: Any, url: str = "", **options: Any) -> AnyAdapter:
    """Returns an adapter for the API; `url` is its server's root, if it creates its own clients."""
    if api == "messages":
        return AnthropicAdapter("m", base_url=url or None, **options)
    return OpenAIAdapter("m", api=api, base_url=f"{url}/v1" if url else None, **options)


def sdk_client(api: str, url: str, kind: str = "", **options: Any) -> Any:
    """Returns a client from the API's SDK; `kind` is `"Async"` or empty."""
    if api == "messages":
        return getattr(_SDKS["anthropic"], f"{kind}Anthropic")(base_url=url, **options)
    return getattr(_SDKS["openai"], f"{kind}OpenAI")(base_url=f"{url}/v1", **options)
