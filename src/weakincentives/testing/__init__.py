"""Doubles for tests of prompts and agents: adapters that need no provider."""

from .scripted import Reply, ScriptedAdapter, ScriptExhaustedError, call, say
from .states import PromptState, render_states

__all__ = ["PromptState", "Reply", "ScriptExhaustedError", "ScriptedAdapter", "call", "render_states", "say"]
