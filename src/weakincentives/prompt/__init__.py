"""Prompts: templates, sections, tools, rendering and disclosure.

What few prompts use is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from ..lazy import door
from ..visibility import SectionPath, SectionVisibility
from .context import ToolContext
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
from .template import PromptTemplate
from .tool import Tool, ToolExample, ToolHandler, ToolRenderableResult, ToolResult
from .walk import Disclosure

if TYPE_CHECKING:
    from ..visibility_overrides import SetVisibilityOverride, VisibilityOverrides
    from .output import StructuredOutputConfig, parse_structured_output
    from .overrides.model import ToolOverride
    from .progressive_disclosure import OpenSectionsParams, ReadSectionParams, ReadSectionResult
    from .task_examples import TaskExample, TaskExamplesSection, TaskStep
    from .workspace import HostMount, WorkspaceSection
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "..visibility_overrides": "SetVisibilityOverride VisibilityOverrides",
            ".overrides.model": "ToolOverride",
            ".progressive_disclosure": "OpenSectionsParams ReadSectionParams ReadSectionResult",
            ".output": "StructuredOutputConfig parse_structured_output",
            ".task_examples": "TaskExample TaskExamplesSection TaskStep",
            ".workspace": "HostMount WorkspaceSection",
        },
    )

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
