"""Texts that replace an author's own without a change of code."""

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
