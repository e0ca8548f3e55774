"""Texts that replace an author's own without a change of code."""

from .model import ToolOverride

__all__ = ["ToolOverride"]
