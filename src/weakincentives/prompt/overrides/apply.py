"""Applies overrides to a tree: the result is a registry that contains the overriding texts.

All rendering uses the registry, so an override applies everywhere.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from ...visibility import SectionPath
from ..registry import RegistrySnapshot, SectionNode, example_text, tool_examples
from ..text_template import dedented
from ..tool import AnyTool
from .descriptors import param_texts
from .model import Override, SectionOverride, TextId, ToolOverride, texts_of

__all__ = ["apply_overrides", "inline_overrides", "param_descriptions"]

type Texts = Mapping[TextId, str]


def inline_overrides(bodies: Mapping[SectionPath, str], tools: Mapping[str, ToolOverride]) -> Texts:
    """Returns the texts of overrides that are passed directly instead of being stored."""
    overrides: list[Override] = [
        *(SectionOverride(path=path, body=body) for path, body in bodies.items()),
        *(override._replace(tool_name=name) for name, override in tools.items()),
    ]
    return {text_id: text for override in overrides for text_id, text in texts_of(override).items()}


def apply_overrides(registry: RegistrySnapshot, texts: Texts) -> RegistrySnapshot:
    """Returns the tree with the overriding texts.

    Each section looks up its own texts, so the time does not depend on the number of overrides.
    """
    return registry.with_sections(tuple([_section(node, texts) for node in registry.sections]))


def param_descriptions(registry: RegistrySnapshot, texts: Texts) -> dict[str, Mapping[str, str]]:
    """Returns the overridden param descriptions, by tool and field."""
    descriptions: dict[str, Mapping[str, str]] = {}
    for tool in [tool for node in registry.sections for tool in node.tools]:
        if tool.accepts_overrides:
            ids = {param: TextId("param", f"{tool.name}.{param}") for param in param_texts(tool)}
            if by_param := {param: texts[id_] for param, id_ in ids.items() if id_ in texts}:
                descriptions[tool.name] = by_param
    return descriptions


def _section(node: SectionNode, texts: Texts) -> SectionNode:
    changed, section, key = copy(node), node.section, node.key
    if section.accepts_overrides:
        if (body := texts.get(TextId("body", key))) is not None:
            changed.body_override, changed.template = body, None
        if (summary := texts.get(TextId("summary", key))) is not None:
            changed.summary_override = dedented(summary)  # like the author's own summary
        before = section.example_texts()
        ids = [TextId("task-example", f"{key}#{index}") for index in range(len(before))]
        after = tuple(map(texts.get, ids, before))
        if after != before:
            changed.section = section.with_example_texts(after)
    changed.tools = tuple([_tool(tool, texts) for tool in node.tools])
    if node.examples:

        def example(tool: AnyTool, index: int) -> str:
            text_id = TextId("tool-example", f"{tool.name}#{index}")
            text = texts.get(text_id) if tool.accepts_overrides else None
            return example_text(tool, index) if text is None else text

        changed.examples = tool_examples(changed.tools, node.path, example)
    return changed


def _tool(tool: AnyTool, texts: Texts) -> AnyTool:
    description = texts.get(TextId("tool", tool.name)) if tool.accepts_overrides else None
    return tool if description is None else replace(tool, description=description)
