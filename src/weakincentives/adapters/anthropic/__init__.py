"""Anthropic's Messages API, natively.

Needs the extra `anthropic`. In these modules the word UNVERIFIED marks what follows the
documentation, or others' notes, and was never seen on the live API.
"""

from .adapter import AnthropicAdapter

__all__ = ["AnthropicAdapter"]
