"""OpenAI and every server that speaks its Responses or Chat Completions API.

Needs the extra `openai`.
"""

from .adapter import OpenAIAdapter

__all__ = ["OpenAIAdapter"]
