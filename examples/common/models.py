"""Chooses the model: a named one, OpenAI's if a key is set, otherwise an offline one (no LLM)."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from examples.offline_model import Policy, extract, start_offline_model
from weakincentives.adapters.openai import OpenAIAdapter

__all__ = ["EXTRACTIVE", "Choice", "Offline", "chosen_model"]

_DEFAULT_MODEL = "gpt-5.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The command-line options that choose the model."""

    model: str | None = None
    base_url: str | None = None
    api: Literal["responses", "chat"] | None = None
    local: bool = False


@dataclass(frozen=True, slots=True)
class Offline:
    """A policy that answers without a key; `name` tells the user that it is not an LLM."""

    name: str
    policy: Policy


EXTRACTIVE = Offline("the offline extractive model (no LLM: it quotes what it finds)", extract)


@contextmanager
def chosen_model(
    choice: Choice, offline: Offline = EXTRACTIVE
) -> Generator[tuple[str, OpenAIAdapter]]:
    """Yields the model's name, and an adapter for it that works until the block ends."""
    key, base_url = os.environ.get("OPENAI_API_KEY"), choice.base_url
    if choice.local:
        from .local import local_model  # needs an extra

        with local_model() as named_adapter:
            yield named_adapter
    elif choice.model or base_url or key:
        model = choice.model or _DEFAULT_MODEL
        if base_url:
            api, key, name = choice.api or "chat", key or "none", f"{model} at {base_url}"
        else:
            api, name = choice.api or "responses", model
        yield name, OpenAIAdapter(model, api=api, base_url=base_url, api_key=key)
    else:
        with start_offline_model(offline.policy) as url:
            api = choice.api or "responses"
            yield offline.name, OpenAIAdapter("offline", api=api, base_url=url, api_key="none")
