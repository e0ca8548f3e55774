"""Prompts: templates, sections, tools, rendering and disclosure."""

from typing import TYPE_CHECKING

from ..content import Document, Image
from ..lazy_exports import lazy_exports
from ..visibility import SectionPath, SectionVisibility, SetVisibilityOverride, VisibilityOverrides
from .context import ToolContext
from .errors import (
    OutputParseError,
    OutputRejected,
    OverridesStoreError,
    PromptError,
    PromptRenderError,
    PromptValidationError,
    ToolError,
    ToolValidationError,
    VisibilityExpansionRequired,
)
from .registry import RegistrySnapshot, SectionNode
from .sections import MarkdownSection, Section
from .template import Prompt, PromptTemplate
from .tool import JsonParams, Tool, ToolExample, ToolHandler, ToolRenderableResult, ToolResult
from .walk import Disclosure

__all__ = [
    "Approval",
    "ApprovalMode",
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
    "Resource",
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
    "ToolError",
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

# Modules that only declare sections and tools do not need these imports.
if TYPE_CHECKING:
    from .approval_rules import Approval, ApprovalMode
    from .function_tools import Resource
    from .output import StructuredOutputConfig, parse_structured_output
    from .overrides.model import ToolOverride
    from .renderer import PromptRenderer, RenderedPrompt, Span
    from .task_examples import TaskExample, TaskExamplesSection, TaskStep
    from .workspace import HostMount, WorkspaceSection
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "Approval": ".approval_rules",
            "ApprovalMode": ".approval_rules",
            "HostMount": ".workspace",
            "PromptRenderer": ".renderer",
            "RenderedPrompt": ".renderer",
            "Resource": ".function_tools",
            "Span": ".renderer",
            "StructuredOutputConfig": ".output",
            "TaskExample": ".task_examples",
            "TaskExamplesSection": ".task_examples",
            "TaskStep": ".task_examples",
            "ToolOverride": ".overrides.model",
            "WorkspaceSection": ".workspace",
            "parse_structured_output": ".output",
        },
    )
