"""Measures a prompt's sections: full texts, summaries, and tools as JSON."""

import json

from ..runtime.events import SectionTexts
from ..visibility import SectionVisibility
from .errors import PromptRenderError
from .registry import SectionNode
from .tool import AnyTool
from .walk import PromptView, VisibleSections

__all__ = ["measure", "tool_text"]

_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


def measure(view: PromptView) -> tuple[SectionTexts, ...]:
    """Renders the texts of every enabled section, in order, without changing `view`.

    Omits all hidden sections if one of them cannot be rendered.
    """
    view = view.copy()
    shown = view.visible_sections()
    try:
        expanded = view.fully_expanded().visible_sections()
        return tuple(_texts(view, node, _FULL, shown) for node in expanded)
    except PromptRenderError:  # a hidden section's params may be missing
        return tuple(_texts(view, node, visibility, shown) for node, visibility in shown.items())


def tool_text(tool: AnyTool) -> str:
    """Returns the tool as JSON: its name, its description and its params schema."""
    schema = tool.params_schema()
    text = {"name": tool.name, "description": tool.description, "parameters": schema}
    return json.dumps(text, ensure_ascii=False)


def _texts(
    view: PromptView, node: SectionNode, visibility: SectionVisibility, shown: VisibleSections
) -> SectionTexts:
    opened = view.with_visibility({node.path: _FULL})
    try:
        sections = opened.visible_sections(node)
        parts, tools, _ = opened.render(sections)
    except PromptRenderError:  # as in `measure`
        sections = {node: visibility}
        parts, tools, _ = view.render(sections)
    can_be_summarized = (
        node.visibility is not _FULL
        or node.section.summary is not None
        or view.visibility_of(node) is _SUMMARY
    )
    summary = view.render({node: _SUMMARY}).texts[0] if can_be_summarized else None
    return SectionTexts(
        path=node.path,
        visibility=shown.get(node),
        full=parts[0],
        summary=summary,
        tools={tool.name: tool_text(tool) for tool in node.tools},
        opens=tuple(section.path for section, how in sections.items() if how is _FULL),
        expanded_size=len("\n\n".join(parts)) + sum(len(tool_text(tool)) for tool in tools),
    )
