"""weakincentives: typed, composable prompts for agents. The names that a user meets first; nothing
is defined here.

Each is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from .lazy import door

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            ".limits": "Budget Deadline TokenUsage",
            ".prompt": "MarkdownSection Prompt PromptTemplate SectionVisibility Tool ToolContext ToolResult",
            ".version": "__version__",
        },
    )

__all__ = [
    "Budget",
    "Deadline",
    "MarkdownSection",
    "Prompt",
    "PromptTemplate",
    "SectionVisibility",
    "TokenUsage",
    "Tool",
    "ToolContext",
    "ToolResult",
    "__version__",
]
