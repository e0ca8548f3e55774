"""Names of models, such as `openai:gpt-5.2`: a provider, a colon, and the provider's own name."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

from .core import ProviderAdapter

__all__ = ["MODEL_VARIABLE", "adapter_for", "provider_names"]

MODEL_VARIABLE = "WINK_MODEL"
_ADAPTERS = "weakincentives.adapters"


class _Provider(NamedTuple):
    module: str
    adapter: str
    arguments: Mapping[str, str]


_PROVIDERS = {
    "openai": _Provider("openai", "OpenAIAdapter", {}),
    "openai-chat": _Provider("openai", "OpenAIAdapter", {"api": "chat"}),
    "anthropic": _Provider("anthropic", "AnthropicAdapter", {}),
    "claude": _Provider("claude_agent_sdk", "ClaudeAgentSDKAdapter", {}),
    "litellm": _Provider("litellm", "LiteLLMAdapter", {}),
}


def provider_names() -> list[str]:
    """Returns the providers: the five adapters, then the predefined server profiles."""
    profiles = import_module(f"{_ADAPTERS}.profiles")
    return [*_PROVIDERS, *[name.lower().replace("_", "-") for name in profiles.__all__]]


# Any: the arguments of the provider's adapter
def adapter_for(model: str | None = None, **arguments: Any) -> ProviderAdapter:
    """Returns the adapter for a model, such as `adapter_for("anthropic:claude-sonnet-5")`.

    The name is a provider, a colon, and the provider's own name of the model, which may contain
    further colons and slashes. Providers are `openai` (Responses API), `openai-chat` (Chat
    Completions), `anthropic`, `claude` (Claude Agent SDK), `litellm`, and the server profiles in
    `weakincentives.adapters.profiles`, in lower case (ollama, openrouter). Without a name, the
    variable `WINK_MODEL` has it. `arguments` are those of the adapter.

    Raises `ValueError` for a missing name and an unknown provider, `ImportError` if the provider's
    extra is not installed, and the errors of the adapter.
    """
    name = os.environ.get(MODEL_VARIABLE, "").strip() if model is None else model
    if not name:
        raise ValueError(
            f"a model is missing; pass its name, such as 'openai:gpt-5.2', or set {MODEL_VARIABLE}"
        )
    provider, colon, own_name = name.partition(":")
    known = _PROVIDERS.get(provider)
    if known is None:
        names = provider_names()
        if not colon or provider not in names:
            raise ValueError(_problem(name, names))
        profile = getattr(
            import_module(f"{_ADAPTERS}.profiles"), provider.upper().replace("-", "_")
        )
        known, arguments = _PROVIDERS["openai"], {"profile": profile, **arguments}
    if not own_name.strip():
        raise ValueError(f"the model is missing in {name!r}; write it after the colon")
    make = getattr(import_module(f"{_ADAPTERS}.{known.module}"), known.adapter)
    adapter: ProviderAdapter = make(own_name, **{**known.arguments, **arguments})
    return adapter


def _problem(name: str, names: list[str]) -> str:
    """Returns what is wrong with a name whose provider is not known, and the remedy."""
    provider, colon, own_name = name.partition(":")
    if not colon:
        problem, nearest = "names no provider", ["openai"]
        own_name = name
    else:
        problem = f"has the unknown provider {provider!r}"
        nearest = get_close_matches(provider.strip().lower(), names, 1)
    hint = f"; did you mean {f'{nearest[0]}:{own_name}'!r}?" if nearest else ";"
    return f"model {name!r} {problem}{hint} The providers are {', '.join(names)}"
