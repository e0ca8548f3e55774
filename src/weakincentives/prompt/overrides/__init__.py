"""Overrides replace a prompt's texts without changing code."""

from .model import (
    OverridesTag,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesStore,
    SectionOverride,
    TaskExampleOverride,
    TextId,
    ToolExampleOverride,
    ToolOverride,
)

__all__ = [
    "OverridesTag",
    "PromptDescriptor",
    "PromptOverride",
    "PromptOverridesStore",
    "SectionOverride",
    "TaskExampleOverride",
    "TextId",
    "ToolExampleOverride",
    "ToolOverride",
]
