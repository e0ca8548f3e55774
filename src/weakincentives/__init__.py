"""weakincentives: typed, composable prompts for agents; the names that a user meets first."""

from importlib import import_module
from typing import TYPE_CHECKING

from .limits import Budget, Deadline, TokenUsage
from .prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from .version import __version__

__all__ = [
    "Approve",
    "Budget",
    "Chat",
    "Deadline",
    "Deny",
    "MainLoop",
    "MarkdownSection",
    "Prompt",
    "PromptTemplate",
    "ReplaceArguments",
    "RunConfig",
    "RunSuspended",
    "SectionVisibility",
    "Session",
    "TokenUsage",
    "Tool",
    "ToolContext",
    "ToolResult",
    "__version__",
]

# What runs prompts costs more to import than all of the above, and a module of prompts does not
# need it: these names are imported when they are first used (PEP 562). Type checkers read the
# imports; they must not see `__getattr__`, or every misspelt name would exist for them.
if TYPE_CHECKING:
    from .evaluation.approval import Approve, Deny, ReplaceArguments
    from .evaluation.chat import Chat
    from .evaluation.config import RunConfig
    from .evaluation.main_loop import MainLoop
    from .evaluation.suspension import RunSuspended
    from .runtime.session import Session
else:
    _MODULES = {
        "Approve": ".evaluation.approval",
        "Chat": ".evaluation.chat",
        "Deny": ".evaluation.approval",
        "MainLoop": ".evaluation.main_loop",
        "ReplaceArguments": ".evaluation.approval",
        "RunConfig": ".evaluation.config",
        "RunSuspended": ".evaluation.suspension",
        "Session": ".runtime.session",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})
