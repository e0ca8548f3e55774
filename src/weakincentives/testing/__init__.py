"""Test utilities for prompts and agents: adapters that need no provider, and recorded events."""

from ..inspection.states import PromptState, render_states
from ..network_guard import NetworkRefusedError
from .cassettes import Cassette, CassetteMiss
from .fixtures import Cassettes, PromptsWithOverrides, ScriptedAdapters
from .recorded_events import Events, RecordedEvents
from .scripted import Reply, ScriptedAdapter, ScriptExhaustedError, SeenRequest, call, say
from .tool_contract import ToolContractError, assert_tool_contract

__all__ = [
    "Cassette",
    "CassetteMiss",
    "Cassettes",
    "Events",
    "NetworkRefusedError",
    "PromptState",
    "PromptsWithOverrides",
    "RecordedEvents",
    "Reply",
    "ScriptExhaustedError",
    "ScriptedAdapter",
    "ScriptedAdapters",
    "SeenRequest",
    "ToolContractError",
    "assert_tool_contract",
    "call",
    "render_states",
    "say",
]
