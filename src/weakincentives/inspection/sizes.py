"""How long the parts of a prompt are: each section's text in full and summarized, and its tools as
JSON.

The texts are those of the one walk.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import serde
from ..prompt.errors import PromptRenderError
from ..prompt.tool import AnyTool
from ..prompt.walk import PromptView, VisibleSection
from ..visibility import SectionPath, SectionVisibility

__all__ = ["SectionTexts", "measure", "tool_text"]

_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True, slots=True)
class SectionTexts:
    """One enabled section: how it is shown (`None`: hidden), its own text in full and, if it can
    be, summarized.

    `tools` holds its tools as JSON, roughly what a provider is sent; `weight` is the number of
    characters that a summary hides: texts and tools of all that is shown once the section is open.
    Where that cannot be rendered, `full` and `weight` are of what is shown.
    """

    path: SectionPath
    visibility: SectionVisibility | None
    full: str
    summary: str | None
    tools: Mapping[str, str]
    expanded_size: int

    @property
    def shown(self) -> str:
        """What the prompt holds of it now."""
        return {_FULL: self.full, _SUMMARY: self.summary or "", None: ""}[self.visibility]


def measure(view: PromptView) -> tuple[SectionTexts, ...]:
    """The texts of every enabled section of a rendered prompt's `scene`; hidden ones only if they
    can be rendered.
    """
    view = view.apart()  # to look at a section is not to open it
    shown = {node.path: visibility for node, _, visibility in view.visits()}
    try:
        return tuple(_texts(view, visit, shown) for visit in view.everything().visits())
    except PromptRenderError:  # what is hidden may lack its params
        return tuple(_texts(view, visit, shown) for visit in view.visits())


def tool_text(tool: AnyTool) -> str:
    """The tool as JSON: its name, its description and the schema of its params."""
    params_type: Any = tool.params_type  # Any: a schema can be asked for of any type
    schema = serde.json_schema(params_type)
    return json.dumps(
        {"name": tool.name, "description": tool.description, "parameters": schema},
        ensure_ascii=False,
    )


def _texts(
    view: PromptView, visit: VisibleSection, shown: Mapping[SectionPath, SectionVisibility]
) -> SectionTexts:
    node, params, visibility = visit
    opened = view.opening({node.path: _FULL})
    try:
        parts, tools, _ = opened.write(opened.visits(node.index, node.end))
    except PromptRenderError:  # as in `measure`
        parts, tools, _ = view.write([(node, params, visibility)])
    short = (
        node.visibility is not _FULL
        or node.section.summary is not None
        or view.visibility_of(node) is _SUMMARY
    )
    return SectionTexts(
        path=node.path,
        visibility=shown.get(node.path),
        full=parts[0],
        summary=view.write([(node, params, _SUMMARY)])[0][0] if short else None,
        tools={tool.name: tool_text(tool) for tool in node.tools},
        expanded_size=len("\n\n".join(parts)) + sum(len(tool_text(tool)) for tool in tools),
    )
