"""Support for OpenAI and servers with a compatible Responses or Chat Completions API.

Needs the `openai` extra.
"""

from .adapter import OpenAIAdapter

__all__ = ["OpenAIAdapter"]
