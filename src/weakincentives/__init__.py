"""weakincentives: typed, composable prompts for agents; the names that a user meets first."""

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
