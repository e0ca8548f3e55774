"""Doubles for tests of prompts and agents: adapters that need no provider."""

from .scripted import Reply, ScriptedAdapter, ScriptExhaustedError, call, say

__all__ = ["Reply", "ScriptExhaustedError", "ScriptedAdapter", "call", "say"]
