"""Prompts: templates, sections, tools, rendering and disclosure."""

from importlib import import_module
from typing import TYPE_CHECKING

from ..visibility import SectionPath, SectionVisibility, SetVisibilityOverride, VisibilityOverrides
from .disclosure import Disclosure
from .errors import (
    OutputParseError,
    OverridesStoreError,
    PromptError,
    PromptRenderError,
    PromptValidationError,
    ToolValidationError,
    VisibilityExpansionRequired,
)
from .prompt import Prompt
from .registry import RegistrySnapshot, SectionNode
from .renderer import PromptRenderer, RenderedPrompt, Span
from .sections import MarkdownSection, Section
from .structured_output import StructuredOutputConfig, parse_structured_output
from .template import PromptTemplate
from .tool import Tool, ToolContext, ToolExample, ToolHandler, ToolRenderableResult, ToolResult

if TYPE_CHECKING:
    from .overrides.model import ToolOverride
    from .progressive_disclosure import OpenSectionsParams, ReadSectionParams, ReadSectionResult
    from .task_examples import TaskExample, TaskExamplesSection, TaskStep
    from .workspace import HostMount, WorkspaceSection

__all__ = [
    "Disclosure",
    "HostMount",
    "MarkdownSection",
    "OpenSectionsParams",
    "OutputParseError",
    "OverridesStoreError",
    "Prompt",
    "PromptError",
    "PromptRenderError",
    "PromptRenderer",
    "PromptTemplate",
    "PromptValidationError",
    "ReadSectionParams",
    "ReadSectionResult",
    "RegistrySnapshot",
    "RenderedPrompt",
    "Section",
    "SectionNode",
    "SectionPath",
    "SectionVisibility",
    "SetVisibilityOverride",
    "Span",
    "StructuredOutputConfig",
    "TaskExample",
    "TaskExamplesSection",
    "TaskStep",
    "Tool",
    "ToolContext",
    "ToolExample",
    "ToolHandler",
    "ToolOverride",
    "ToolRenderableResult",
    "ToolResult",
    "ToolValidationError",
    "VisibilityExpansionRequired",
    "VisibilityOverrides",
    "WorkspaceSection",
    "parse_structured_output",
]

# What few prompts use is loaded when it is asked for.
_LATER = {
    **dict.fromkeys(["ToolOverride"], ".overrides.model"),
    **dict.fromkeys(["OpenSectionsParams", "ReadSectionParams", "ReadSectionResult"], ".progressive_disclosure"),
    **dict.fromkeys(["TaskExample", "TaskExamplesSection", "TaskStep"], ".task_examples"),
    **dict.fromkeys(["HostMount", "WorkspaceSection"], ".workspace"),
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name], __name__), name)
