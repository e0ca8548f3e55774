"""weakincentives: typed, composable prompts for agents. Exports the most common names."""

from typing import TYPE_CHECKING

from .lazy_exports import lazy_exports
from .prompt import (
    MarkdownSection,
    OutputRejected,
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
    "ModelSettings",
    "OutputRejected",
    "Preview",
    "Prompt",
    "PromptEvaluationError",
    "PromptTemplate",
    "ReplaceArguments",
    "Resource",
    "RunConfig",
    "RunSuspended",
    "SectionVisibility",
    "Session",
    "Suspension",
    "TokenUsage",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "__version__",
    "adapter_for",
    "tool",
]

# The modules that run prompts take longer to import than all of the above, and a module that only
# defines prompts does not need them.
if TYPE_CHECKING:
    from .adapters.model_names import adapter_for
    from .evaluation.approval import Approve, Deny, Preview, ReplaceArguments
    from .evaluation.chat import Chat
    from .evaluation.config import RunConfig
    from .evaluation.errors import PromptEvaluationError
    from .evaluation.main_loop import MainLoop
    from .evaluation.suspension import RunSuspended, Suspension
    from .limits import Budget, Deadline, TokenUsage
    from .model_settings import ModelSettings
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
            "Preview": ".evaluation.approval",
            "PromptEvaluationError": ".evaluation.errors",
            "ReplaceArguments": ".evaluation.approval",
            "Resource": ".prompt.function_tools",
            "RunConfig": ".evaluation.config",
            "ModelSettings": ".model_settings",
            "RunSuspended": ".evaluation.suspension",
            "Session": ".runtime.session",
            "Suspension": ".evaluation.suspension",
            "TokenUsage": ".limits",
            "__version__": ".version",
            "adapter_for": ".adapters.model_names",
            "tool": ".prompt.function_tools",
        },
    )
