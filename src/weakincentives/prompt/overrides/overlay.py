"""Overrides laid over a tree: a registry in which the overridden texts stand in the place of the
author's.

Everything that renders reads the registry, so a text that is replaced here is replaced on every
path.
"""

from collections.abc import Mapping
from dataclasses import replace
from operator import is_not
from textwrap import dedent
from typing import Any

from ...visibility import SectionPath
from ..registry import RegistrySnapshot, SectionNode, example_text, tool_examples
from ..tool import AnyTool
from .descriptors import param_texts
from .model import Override, SectionOverride, TextId, ToolOverride, texts_of

__all__ = ["apply_overrides", "inline_overrides", "param_descriptions"]

type Texts = Mapping[TextId, str]


def inline_overrides(bodies: Mapping[SectionPath, str], tools: Mapping[str, ToolOverride]) -> Texts:
    """The texts of overrides that no store holds."""
    given: list[Override] = [SectionOverride(path=path, body=body) for path, body in bodies.items()]
    given += [replace(override, tool_name=name) for name, override in tools.items()]
    return {one: text for override in given for one, text in texts_of(override).items()}


def apply_overrides(registry: RegistrySnapshot, texts: Texts) -> RegistrySnapshot:
    """The tree with other texts; each section looks up its own, so the number of overrides does not
    matter.
    """
    return registry.with_sections(tuple([_section(node, texts) for node in registry.sections]))


def param_descriptions(registry: RegistrySnapshot, texts: Texts) -> dict[str, Mapping[str, str]]:
    """The other descriptions of params, by tool and field."""
    found: dict[str, Mapping[str, str]] = {}
    for tool in [
        tool for node in registry.sections for tool in node.tools if tool.accepts_overrides
    ]:
        others = {
            param: texts.get(TextId("param", f"{tool.name}.{param}")) for param in param_texts(tool)
        }
        if told := {param: text for param, text in others.items() if text is not None}:
            found[tool.name] = told
    return found


def _section(node: SectionNode, texts: Texts) -> SectionNode:
    section, key, get = node.section, node.key, texts.get
    changes: dict[str, Any] = {}  # Any: the node's fields by name
    if section.accepts_overrides:
        body, summary = get(TextId("body", key)), get(TextId("summary", key))
        if body is not None:
            changes = {"body": body, "whole": None}
        if summary is not None:
            changes["summary"] = dedent(summary).strip()  # as the author's own is
        own = section.example_texts()
        shown = tuple(
            [get(TextId("task-example", f"{key}#{index}"), text) for index, text in enumerate(own)]
        )
        if shown != own:
            changes["section"] = section.with_example_texts(shown)
    tools = tuple([_tool(tool, texts) for tool in node.tools])
    if any(map(is_not, tools, node.tools)):
        changes["tools"] = tools
    if node.examples:
        changes["examples"] = tool_examples(
            tools, node.path, lambda tool, index: _example(tool, index, texts)
        )
    return replace(node, **changes) if changes else node


def _tool(tool: AnyTool, texts: Texts) -> AnyTool:
    other = texts.get(TextId("tool", tool.name)) if tool.accepts_overrides else None
    return tool if other is None else replace(tool, description=other)


def _example(tool: AnyTool, index: int, texts: Texts) -> str:
    other = (
        texts.get(TextId("tool-example", f"{tool.name}#{index}"))
        if tool.accepts_overrides
        else None
    )
    return example_text(tool, index) if other is None else other
