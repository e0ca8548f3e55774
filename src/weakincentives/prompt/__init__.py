"""Prompts: templates, sections, tools, rendering and disclosure."""

from ..content import Document, Image
from ..visibility import SectionPath, SectionVisibility, SetVisibilityOverride, VisibilityOverrides
from .context import ToolContext
from .errors import (
    OutputParseError,
    OutputRejected,
    OverridesStoreError,
    PromptError,
    PromptRenderError,
    PromptValidationError,
    ToolValidationError,
    VisibilityExpansionRequired,
)
from .output import StructuredOutputConfig, parse_structured_output
from .overrides.model import ToolOverride
from .registry import RegistrySnapshot, SectionNode
from .renderer import PromptRenderer, RenderedPrompt, Span
from .sections import MarkdownSection, Section
from .task_examples import TaskExample, TaskExamplesSection, TaskStep
from .template import Prompt, PromptTemplate
from .tool import JsonParams, Tool, ToolExample, ToolHandler, ToolRenderableResult, ToolResult
from .walk import Disclosure
from .workspace import HostMount, WorkspaceSection

__all__ = [
    "Disclosure",
    "Document",
    "HostMount",
    "Image",
    "JsonParams",
    "MarkdownSection",
    "OutputParseError",
    "OutputRejected",
    "OverridesStoreError",
    "Prompt",
    "PromptError",
    "PromptRenderError",
    "PromptRenderer",
    "PromptTemplate",
    "PromptValidationError",
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
