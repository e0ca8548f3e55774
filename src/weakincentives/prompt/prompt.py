"""Exports `Prompt` and `RenderedPrompt` from the modules that define them."""

from typing import Any

from .renderer import RenderedPrompt
from .template import Prompt

__all__ = ["AnyRenderedPrompt", "Prompt", "RenderedPrompt"]

type AnyRenderedPrompt = RenderedPrompt[Any]  # Any: prompts of every output
