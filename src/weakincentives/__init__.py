"""weakincentives: typed, composable prompts for agents. The names that a user meets first; nothing is defined here."""

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
]
