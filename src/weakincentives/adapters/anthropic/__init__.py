"""Support for Anthropic's Messages API.

Needs the `anthropic` extra. In these modules, UNVERIFIED marks behaviour that is taken from the
documentation or from other projects' notes and was never tested against the live API.
"""

from .adapter import AnthropicAdapter

__all__ = ["AnthropicAdapter"]
