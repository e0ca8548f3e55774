"""Measures the sections of a prompt: their texts in full and summarized, and their tools as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from .. import serde
from ..runtime.events import SectionTexts
from ..visibility import SectionPath, SectionVisibility
from .errors import PromptRenderError
from .tool import AnyTool
from .walk import PromptView, VisibleSection

__all__ = ["measure", "tool_text"]

_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


def measure(view: PromptView) -> tuple[SectionTexts, ...]:
    """Renders the texts of every enabled section, in order; `view` stays as it is.

    Leaves out all hidden sections when one of them cannot be rendered.
    """
    view = view.apart()
    shown = {node.path: visibility for node, _, visibility in view.visits()}
    try:
        return tuple(_texts(view, visit, shown) for visit in view.everything().visits())
    except PromptRenderError:  # a hidden section may lack its params
        return tuple(_texts(view, visit, shown) for visit in view.visits())


def tool_text(tool: AnyTool) -> str:
    """Returns the tool as JSON: its name, its description and the schema of its params."""
    params_type: Any = tool.params_type  # Any: a schema can be asked for of any type
    schema = serde.json_schema(params_type)
    text = {"name": tool.name, "description": tool.description, "parameters": schema}
    return json.dumps(text, ensure_ascii=False)


def _texts(
    view: PromptView, visit: VisibleSection, shown: Mapping[SectionPath, SectionVisibility]
) -> SectionTexts:
    node, params, visibility = visit
    opened = view.opening({node.path: _FULL})
    try:
        visits = opened.visits(node.index, node.end)
        parts, tools, _ = opened.write(visits)
    except PromptRenderError:  # as in `measure`
        visits = [(node, params, visibility)]
        parts, tools, _ = view.write(visits)
    can_be_summarized = (
        node.visibility is not _FULL
        or node.section.summary is not None
        or view.visibility_of(node) is _SUMMARY
    )
    summary = view.write([(node, params, _SUMMARY)])[0][0] if can_be_summarized else None
    return SectionTexts(
        path=node.path,
        visibility=shown.get(node.path),
        full=parts[0],
        summary=summary,
        tools={tool.name: tool_text(tool) for tool in node.tools},
        opens=tuple(node.path for node, _, visibility in visits if visibility is _FULL),
        expanded_size=len("\n\n".join(parts)) + sum(len(tool_text(tool)) for tool in tools),
    )
