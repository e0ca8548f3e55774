"""The import path of `Prompt` and `RenderedPrompt`, which stand beside what makes them."""

from .renderer import RenderedPrompt
from .template import Prompt

__all__ = ["Prompt", "RenderedPrompt"]
