"""Exports `Prompt` and `RenderedPrompt` from the modules that define them."""

from .renderer import RenderedPrompt
from .template import Prompt

__all__ = ["Prompt", "RenderedPrompt"]
