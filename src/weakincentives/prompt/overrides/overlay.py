"""Overrides laid over a tree: a registry in which the overridden texts stand in the place of the author's.

Everything that renders reads the registry, so a text that is replaced here is replaced on every path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any

from ...visibility import SectionPath
from ..registry import RegistrySnapshot, SectionNode, example_text, tool_examples
from ..tool import AnyTool
from .descriptors import param_texts
from .model import TextId, ToolOverride

__all__ = ["Overlay"]


@dataclass(frozen=True, slots=True)
class Overlay:
    """The overrides of one render; `bodies` and `tools` beat `texts`.

    `descriptions` collects the other descriptions of params, by tool and field.
    """

    bodies: Mapping[SectionPath, str]
    tools: Mapping[str, ToolOverride]
    texts: Mapping[TextId, str]
    descriptions: dict[str, Mapping[str, str]]

    def over(self, registry: RegistrySnapshot) -> RegistrySnapshot:
        """The tree with other texts; each section looks up its own, so the number of overrides does not matter."""
        return registry.with_sections(tuple([self._section(node) for node in registry.sections]))

    def _section(self, node: SectionNode) -> SectionNode:
        section, key, get = node.section, node.key, self.texts.get
        changes: dict[str, Any] = {}  # Any: the node's fields by name
        if section.accepts_overrides:
            body, summary = self.bodies.get(node.path, get(TextId("body", key))), get(TextId("summary", key))
            if body is not None:
                changes = {"body": body, "whole": None}
            if summary is not None:
                changes["summary"] = summary
            own = section.example_texts()
            shown = tuple([get(TextId("task-example", f"{key}#{index}"), text) for index, text in enumerate(own)])
            if shown != own:
                changes["section"] = section.with_example_texts(shown)
        tools = tuple(map(self._tool, node.tools))
        if any(map(is_not, tools, node.tools)):
            changes["tools"] = tools
        examples = [TextId("tool-example", f"{tool.name}#{i}") for tool in tools for i in range(len(tool.examples))]
        if not self.texts.keys().isdisjoint(examples):
            changes["examples"] = tool_examples(tools, node.path, self._example)
        return replace(node, **changes) if changes else node

    def _example(self, tool: AnyTool, index: int) -> str:
        other = self.texts.get(TextId("tool-example", f"{tool.name}#{index}")) if tool.accepts_overrides else None
        return example_text(tool, index) if other is None else other

    def _tool(self, tool: AnyTool) -> AnyTool:
        if not tool.accepts_overrides:
            return tool
        override, get = self.tools.get(tool.name), self.texts.get
        if override is None and self.texts:
            found = {param: get(TextId("param", f"{tool.name}.{param}")) for param in param_texts(tool)}
            params = {param: text for param, text in found.items() if text is not None}
            override = ToolOverride(description=get(TextId("tool", tool.name)), param_descriptions=params)
        if override is None:
            return tool
        if override.param_descriptions:
            self.descriptions[tool.name] = dict(override.param_descriptions)
        return tool if override.description is None else replace(tool, description=override.description)
