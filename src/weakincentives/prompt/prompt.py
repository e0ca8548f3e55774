"""Exports `Prompt` and `RenderedPrompt` from the modules that define them."""

from typing import Any

from .renderer import RenderedPrompt
from .template import Prompt

__all__ = ["AnyPrompt", "AnyRenderedPrompt", "Prompt", "RenderedPrompt"]

# Any: prompts of every output
type AnyPrompt = Prompt[Any]
type AnyRenderedPrompt = RenderedPrompt[Any]
