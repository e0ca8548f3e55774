"""The tools by which a model opens summarized sections, `read_section` and `open_sections`, and `close_section`.

They render by the same walk as the prompt itself, so what a model reads is what a prompt with that section open shows.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..ports import StateView
from ..visibility import SectionPath, SectionVisibility
from ..visibility_overrides import SetVisibilityOverride, VisibilityOverrides
from .errors import ToolValidationError, VisibilityExpansionRequired
from .registry import CLOSE_SECTION, OPEN_SECTIONS, READ_SECTION, RegistrySnapshot, SectionNode
from .tool import AnyTool, Tool, ToolContext, ToolResult
from .walk import NOTHING, Disclosure, Scene, Visit, disclosure_tool, session_overrides

__all__ = [
    "CloseSectionParams",
    "CloseSectionResult",
    "Disclosure",
    "OpenSectionsParams",
    "ReadSectionParams",
    "ReadSectionResult",
    "create_read_section_handler",
    "disclosure_tools",
]

_MAX_REASON, _MAX_KEY = 256, 500
_FULL = SectionVisibility.FULL


@dataclass(slots=True, frozen=True)
class ReadSectionParams:
    """Arguments of `read_section`."""

    section_key: str = field(
        metadata={
            "description": (
                "Key of the summarized section, exactly as its summary shows it. Nested sections use dot notation "
                "(e.g., 'parent.child')."
            )
        }
    )


@dataclass(slots=True, frozen=True)
class ReadSectionResult:
    """A section's full text, the tools that became visible with it, and the sections that opened for that."""

    content: str
    expanded_tools: tuple[AnyTool, ...] = ()
    opened: tuple[SectionPath, ...] = ()

    def render(self) -> str:
        """The content alone; tools reach the model as tools."""
        return self.content


@dataclass(slots=True, frozen=True)
class OpenSectionsParams:
    """Arguments of `open_sections`."""

    section_keys: tuple[str, ...] = field(
        metadata={
            "description": (
                "Keys of the summarized sections to open, exactly as their summaries show them. Nested sections use "
                "dot notation (e.g., 'parent.child')."
            )
        }
    )
    reason: str = field(
        metadata={
            "description": "Why these sections are needed, in at most 256 characters.",
            "json_schema_extra": {"maxLength": _MAX_REASON},  # told to the model; a longer text is cut, not refused
        }
    )


@dataclass(slots=True, frozen=True)
class CloseSectionParams:
    """Arguments of `close_section`."""

    section_key: str = field(metadata={"description": "Key of a section that was opened and is no longer needed."})


@dataclass(slots=True, frozen=True)
class CloseSectionResult:
    """The section that was closed, the tools that went with it, and the tool that opens it again."""

    section_key: str
    closed_tools: tuple[str, ...]
    opened_by: str


def _find(scene: Scene, key: str) -> SectionNode | None:
    """The enabled section that `key` names; a disabled one is as unknown as one that does not exist."""
    node = scene.registry.find(key)
    return node if node is not None and scene.is_enabled(node) else None


def _summarized_above(scene: Scene, node: SectionNode) -> tuple[SectionNode, ...]:
    """The summarized ancestors of `node`, from the root down."""
    above = scene.registry.ancestors(node)
    return tuple(one for one in above if scene.visibility_of(one) is SectionVisibility.SUMMARY)


# The docstrings of the next three are what the model is told of the tools.


def _read_section(scene: Scene, params: ReadSectionParams, _: ToolContext) -> ToolResult[ReadSectionResult]:
    """Read the full content of a summarized section."""
    node = _find(scene, params.section_key)
    if node is None:
        return ToolResult(message=f"Unknown section key: '{params.section_key:.{_MAX_KEY}}'", success=False)
    above = _summarized_above(scene, node)
    # what the prompt would show were the section FULL, and the tools that it would have then
    opened_scene = scene.opening({node.path: _FULL})
    parts, tools = opened_scene.write(opened_scene.visits(node.index, node.end))[:2]
    content = "\n\n".join(parts)
    if not above and scene.visibility_of(node) is _FULL:
        return ToolResult(message="Section is already expanded.", value=ReadSectionResult(content))
    opened: dict[SectionPath, None] = {}
    if tools:  # enough overrides to show the section and to keep its tools where they are
        opened = dict.fromkeys((*(one.path for one in above), node.path))
        if above:  # these open too, and so their tools come along
            around = scene.opening(dict.fromkeys(opened, _FULL))
            tools = around.tools(around.visits(above[0].index, above[0].end))
        opened.update(dict.fromkeys(scene.registry.tool_paths[tool.name] for tool in tools))
    return ToolResult(
        message=f"Content of section '{params.section_key}':",
        value=ReadSectionResult(content, tuple(tools), tuple(opened)),
    )


def _open_sections(scene: Scene, params: OpenSectionsParams, _: ToolContext) -> ToolResult[object]:
    """Open summarized sections so that their full content and tools become available."""
    wanted: dict[SectionPath, SectionNode] = {}
    for key in params.section_keys:
        node = _find(scene, key)
        if node is None:
            raise ToolValidationError(f"Unknown section key: '{key}'")
        wanted[node.path] = node
    for node in wanted.values():
        above = _summarized_above(scene, node)
        missing = [one.key for one in above if one.path not in wanted]
        if missing:
            raise ToolValidationError(f"Section '{node.key}' is inside '{missing[0]}': open '{missing[0]}' first.")
        if not above and scene.visibility_of(node) is _FULL:
            raise ToolValidationError(f"Section '{node.key}' is already expanded.")
    if not wanted:
        raise ToolValidationError("section_keys is empty: name at least one summarized section.")
    raise VisibilityExpansionRequired(
        requested_overrides=dict.fromkeys(wanted, _FULL),
        reason=params.reason[:_MAX_REASON],
        section_keys=params.section_keys,
    )


def _close_section(scene: Scene, params: CloseSectionParams, context: ToolContext) -> ToolResult[CloseSectionResult]:
    """Close a section that you opened, when its content and tools are no longer needed."""
    node = _find(scene, params.section_key)
    if node is None:
        raise ToolValidationError(f"Unknown section key: '{params.section_key}'")
    if session_overrides(context.session).get(node.path) is not _FULL or _summarized_above(scene, node):
        raise ToolValidationError(f"Section '{params.section_key}' is not one that you opened.")
    names = tuple([tool.name for tool in scene.tools(scene.visits(node.index, node.end))])
    context.session.dispatch(SetVisibilityOverride(path=node.path, visibility=SectionVisibility.SUMMARY))
    return ToolResult(
        message=f"Closed section '{params.section_key}'.",
        value=CloseSectionResult(params.section_key, names, disclosure_tool(scene.disclosure, node)),
        exclude_value_from_context=True,
    )


# In the order in which a prompt has them. Any: handlers of three tools.
_TOOLS: Mapping[str, tuple[Callable[[Scene, Any, ToolContext], ToolResult[Any]], type, type]] = {
    OPEN_SECTIONS: (_open_sections, OpenSectionsParams, object),
    READ_SECTION: (_read_section, ReadSectionParams, ReadSectionResult),
    CLOSE_SECTION: (_close_section, CloseSectionParams, CloseSectionResult),
}


@cache
def _without_handler(name: str) -> AnyTool:
    answer, params_type, result_type = _TOOLS[name]
    return Tool(
        name=name,
        description=answer.__doc__,
        params_type=params_type,
        result_type=result_type,
        accepts_overrides=False,
    )


def _tool(name: str, rendered: Scene) -> AnyTool:
    answer = _TOOLS[name][0]

    # Any: see `_TOOLS`.
    def handler(params: Any, *, context: ToolContext) -> ToolResult[Any]:
        return answer(rendered.now(), params, context)

    tool = copy(_without_handler(name))
    object.__setattr__(tool, "handler", handler)
    return tool


def create_read_section_handler(
    *,
    registry: RegistrySnapshot,
    current_visibility: VisibilityOverrides,
    # Any: params of every type, each looked up by its own.
    param_lookup: Mapping[type[Any], object],
    session: StateView | None,
    disclosure: Disclosure = Disclosure.READ,
) -> Tool[ReadSectionParams, ReadSectionResult]:
    """The `read_section` tool of a prompt rendered with these; `current_visibility` were the overrides in force."""
    rendered = Scene(
        registry=registry,
        params=param_lookup,
        visibility=current_visibility.overrides,
        session=session,
        seen=session_overrides(session),
        disclosure=disclosure,
    )
    return _tool(READ_SECTION, rendered)


def disclosure_tools(scene: Scene, visits: Sequence[Visit], *, closable: bool = False) -> tuple[AnyTool, ...]:
    """The disclosure tools that the sections shown need.

    `close_section` comes in where the template allows it and something is or can be opened; what is closed can be
    opened again.
    """
    opened = session_overrides(scene.session) if closable else NOTHING
    needed = {
        disclosure_tool(scene.disclosure, node)
        for node, _, visibility in visits
        if visibility is not _FULL or opened.get(node.path) is _FULL
    }
    if closable and needed:
        needed.add(CLOSE_SECTION)
    return tuple([_tool(name, scene) for name in _TOOLS if name in needed])
