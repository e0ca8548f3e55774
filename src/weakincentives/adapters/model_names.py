"""Names of models, such as `openai:gpt-5.2`: a provider, a colon, and the provider's own name."""

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from ..model_settings import ModelSettings
from . import profiles
from .core import LoopAdapter

__all__ = ["MODEL_VARIABLE", "adapter_for", "read_name"]

MODEL_VARIABLE = "WINK_MODEL"

# Any, in all functions: the arguments of the provider's adapter


def _openai(model: str, **arguments: Any) -> LoopAdapter:
    from .openai import OpenAIAdapter

    return OpenAIAdapter(model, **arguments)


def _anthropic(model: str, **arguments: Any) -> LoopAdapter:
    from .anthropic import AnthropicAdapter

    return AnthropicAdapter(model, **arguments)


def _claude(model: str, **arguments: Any) -> LoopAdapter:
    from .claude_agent_sdk import ClaudeAgentSDKAdapter

    return ClaudeAgentSDKAdapter(model, **arguments)


def _litellm(model: str, **arguments: Any) -> LoopAdapter:
    from .litellm import LiteLLMAdapter

    return LiteLLMAdapter(model, **arguments)


_PROVIDERS: dict[str, Callable[..., LoopAdapter]] = {
    "openai": _openai,
    "openai-chat": partial(_openai, api="chat"),
    "anthropic": _anthropic,
    "claude": _claude,
    "litellm": _litellm,
    **{
        name.lower().replace("_", "-"): partial(_openai, profile=getattr(profiles, name))
        for name in profiles.__all__
    },
}

_OTHER_NAMES = {  # of these providers in other libraries
    "google": "gemini",
    "google-gla": "gemini",
    "grok": "xai",
    "moonshotai": "kimi",
    "openai-responses": "openai",
    "zai": "glm",
}


def adapter_for(model: str | None = None, **arguments: Any) -> LoopAdapter:
    """Returns the adapter for a model, such as `adapter_for("anthropic:claude-sonnet-5")`.

    The name is a provider, a colon, and the provider's own name of the model, which may contain
    further colons and slashes. Providers are `openai` (Responses API), `openai-chat` (Chat
    Completions), `anthropic`, `claude` (Claude Agent SDK), `litellm`, and the server profiles in
    `weakincentives.adapters.profiles`, in lower case (ollama, openrouter). Without a name, the
    variable `WINK_MODEL` has it. `arguments` are those of the adapter.

    Raises `ValueError` for a missing name and an unknown provider, `ImportError` if the provider's
    extra is not installed, and the errors of the adapter.
    """
    provider, own_name = read_name(model)
    if misplaced := sorted(arguments.keys() & (ModelSettings.__annotations__.keys() - {"timeout"})):
        raise TypeError(
            f"{misplaced[0]} is a setting; pass settings=ModelSettings({misplaced[0]}=…)"
        )
    return _PROVIDERS[provider](own_name, **arguments)


def read_name(model: str | None) -> tuple[str, str]:
    """Returns the provider in a model's name, and the provider's own name of the model.

    Raises `ValueError` for a missing name and an unknown provider.
    """
    name: Any = os.environ.get(MODEL_VARIABLE, "").strip() if model is None else model
    if not isinstance(name, str):
        raise TypeError(f"a model is named by a string, such as 'openai:gpt-5.2', got {name!r}")
    if not name:
        raise ValueError(
            f"a model is missing; pass its name, such as 'openai:gpt-5.2', or set {MODEL_VARIABLE}"
        )
    provider, colon, own_name = name.partition(":")
    if not colon or provider not in _PROVIDERS:
        raise ValueError(_problem(name, f" in {MODEL_VARIABLE}" if model is None else ""))
    if not own_name.strip():
        raise ValueError(f"the model is missing in {name!r}; write it after the colon")
    return provider, own_name


def _problem(name: str, place: str) -> str:
    """Returns what is wrong with a name whose provider is not known, and the remedy."""
    provider, colon, own_name = name.partition(":")
    problem = f"has the unknown provider {provider!r}" if colon else "names no provider"
    head, slash, tail = name.partition("/")
    if slash and head in _PROVIDERS:
        nearest = f"{head}:{tail}"
    elif not colon or provider == "ft":  # a fine-tuned model
        nearest = f"openai:{name}"
    elif re.search(r"[\d./]", provider):  # a model with a tag
        nearest = f"ollama:{name}"
    else:
        spelled = provider.strip().lower()
        found = get_close_matches(_OTHER_NAMES.get(spelled, spelled), _PROVIDERS, 1)
        nearest = f"{found[0]}:{own_name}" if found else ""
    hint = f"did you mean {nearest!r}? The" if nearest else "the"
    known = f"providers are {', '.join(_PROVIDERS)}"
    if not nearest:
        known += f"; if LiteLLM has the model, use 'litellm:{provider}/{own_name}'"
    return f"model {name!r}{place} {problem}; {hint} {known}"
