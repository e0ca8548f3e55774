"""weakincentives: typed, composable prompts for agents. Exports the most common names."""

from typing import TYPE_CHECKING

from .lazy_exports import lazy_exports
from .prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
)

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
    "Resource",
    "RunConfig",
    "RunSuspended",
    "SectionVisibility",
    "Session",
    "TokenUsage",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "__version__",
    "tool",
]

# The modules that run prompts take longer to import than all of the above, and a module that only
# defines prompts does not need them.
if TYPE_CHECKING:
    from .evaluation.approval import Approve, Deny, ReplaceArguments
    from .evaluation.chat import Chat
    from .evaluation.config import RunConfig
    from .evaluation.main_loop import MainLoop
    from .evaluation.suspension import RunSuspended
    from .limits import Budget, Deadline, TokenUsage
    from .prompt.function_tools import Resource, tool
    from .runtime.session import Session
    from .version import __version__
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "Approve": ".evaluation.approval",
            "Budget": ".limits",
            "Chat": ".evaluation.chat",
            "Deadline": ".limits",
            "Deny": ".evaluation.approval",
            "MainLoop": ".evaluation.main_loop",
            "ReplaceArguments": ".evaluation.approval",
            "Resource": ".prompt.function_tools",
            "RunConfig": ".evaluation.config",
            "RunSuspended": ".evaluation.suspension",
            "Session": ".runtime.session",
            "TokenUsage": ".limits",
            "__version__": ".version",
            "tool": ".prompt.function_tools",
        },
    )
