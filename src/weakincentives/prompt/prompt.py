"""Exports `Prompt` and `RenderedPrompt` from the modules that define them."""

from .renderer import AnyRenderedPrompt, RenderedPrompt
from .template import AnyPrompt, Prompt

__all__ = ["AnyPrompt", "AnyRenderedPrompt", "Prompt", "RenderedPrompt"]
