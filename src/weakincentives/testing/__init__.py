"""Doubles for tests of prompts and agents: adapters that need no provider."""

from .scripted import Reply, ScriptedAdapter, ScriptExhaustedError, call, say
from .tool_contract import ToolContractError, assert_tool_contract

__all__ = [
    "Reply",
    "ScriptExhaustedError",
    "ScriptedAdapter",
    "ToolContractError",
    "assert_tool_contract",
    "call",
    "say",
]
