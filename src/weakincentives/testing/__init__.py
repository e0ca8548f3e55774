"""Doubles for tests of prompts and agents: adapters that need no provider, and what the pytest
plugin's fixtures give.

Each name is imported when it is first asked for: pytest opens this door in every run.
"""

from typing import TYPE_CHECKING

from ..lazy import door

if TYPE_CHECKING:
    from ..inspection.states import PromptState, render_states
    from .events import Events, RecordedEvents
    from .fixtures import PromptsWithOverrides, ScriptedAdapters
    from .network import NetworkRefusedError
    from .scripted import Reply, ScriptedAdapter, ScriptExhaustedError, SeenRequest, call, say
    from .tool_contract import ToolContractError, assert_tool_contract
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            ".events": "Events RecordedEvents",
            ".fixtures": "PromptsWithOverrides ScriptedAdapters",
            ".network": "NetworkRefusedError",
            ".scripted": "Reply ScriptExhaustedError ScriptedAdapter SeenRequest call say",
            "..inspection.states": "PromptState render_states",
            ".tool_contract": "ToolContractError assert_tool_contract",
        },
    )

__all__ = [
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
