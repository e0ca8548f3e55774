"""Which model answers: a named one, OpenAI's if there is a key, else an offline one, which is no
LLM.
"""

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
    """What the command line says about the model."""

    model: str | None = None
    base_url: str | None = None
    api: Literal["responses", "chat"] | None = None
    local: bool = False


@dataclass(frozen=True, slots=True)
class Offline:
    """What answers without a key: `decide` gives each step by rules, and `name` says so to whoever
    watches.
    """

    name: str
    decide: Policy


EXTRACTIVE = Offline("the offline extractive model (no LLM: it quotes what it finds)", extract)


@contextmanager
def chosen_model(
    choice: Choice, offline: Offline = EXTRACTIVE
) -> Generator[tuple[str, OpenAIAdapter]]:
    """What to call the model, and an adapter for it while the context lasts."""
    if choice.local:
        from .local import local_model

        with local_model() as (name, adapter):
            yield name, adapter
    elif choice.model or choice.base_url or os.environ.get("OPENAI_API_KEY"):
        model = choice.model or _DEFAULT_MODEL
        api = choice.api or ("chat" if choice.base_url else "responses")
        key = os.environ.get("OPENAI_API_KEY") or ("none" if choice.base_url else None)
        place = f" at {choice.base_url}" if choice.base_url else ""
        yield (
            f"{model}{place}",
            OpenAIAdapter(model, api=api, base_url=choice.base_url, api_key=key),
        )
    else:
        with start_offline_model(offline.decide) as url:
            adapter = OpenAIAdapter(
                "offline", api=choice.api or "responses", base_url=url, api_key="none"
            )
            yield offline.name, adapter
