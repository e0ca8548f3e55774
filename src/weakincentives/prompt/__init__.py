"""Prompts: templates, sections, tools, rendering and disclosure."""

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
from .overrides import ToolOverride
from .progressive_disclosure import OpenSectionsParams, ReadSectionParams, ReadSectionResult
from .prompt import Prompt
from .registry import RegistrySnapshot, SectionNode
from .renderer import PromptRenderer, RenderedPrompt, Span
from .sections import MarkdownSection, Section
from .structured_output import StructuredOutputConfig, parse_structured_output
from .task_examples import TaskExample, TaskExamplesSection, TaskStep
from .template import PromptTemplate
from .tool import Tool, ToolContext, ToolExample, ToolHandler, ToolRenderableResult, ToolResult
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
