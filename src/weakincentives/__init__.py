"""weakincentives: typed, composable prompts for agents. The names that a user meets first; nothing
is defined here.
"""

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
