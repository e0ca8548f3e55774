"""The tools by which a model opens summarized sections, `read_section` and `open_sections`, and
`close_section`.

They render by the same walk as the prompt itself, so what a model reads is what a prompt with that
section open shows. They decide by the `PromptView` of the conversation alone and change nothing:
whoever runs them records what they answer.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..protocols import StateView
from ..visibility import SectionDecisions, SectionPath, SectionVisibility, VisibilityOverrides
from .context import ToolContext
from .errors import PromptRenderError, ToolValidationError, VisibilityExpansionRequired
from .registry import CLOSE_SECTION, OPEN_SECTIONS, READ_SECTION, RegistrySnapshot, SectionNode
from .tool import AnyTool, Tool, ToolHandler, ToolResult
from .walk import Disclosure, PromptView, VisibleSection, session_overrides

__all__ = [
    "CloseSectionParams",
    "CloseSectionResult",
    "Disclosure",
    "OpenSectionsParams",
    "ReadSectionParams",
    "ReadSectionResult",
    "create_read_section_handler",
    "disclosure_handler",
    "disclosure_tools",
    "how_to_open",
]

MAX_REASON = 256
_MAX_KEY = 500
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
    """A section's full text, the tools that became visible with it, and the sections that opened
    for that.
    """

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
            # told to the model; a longer text is cut, not refused
            "json_schema_extra": {"maxLength": MAX_REASON},
        }
    )


@dataclass(slots=True, frozen=True)
class CloseSectionParams:
    """Arguments of `close_section`."""

    section_key: str = field(
        metadata={"description": "Key of a section that was opened and is no longer needed."}
    )


@dataclass(slots=True, frozen=True)
class CloseSectionResult:
    """The section that was closed, and the tools that go with it."""

    section_key: str
    closed_tools: tuple[str, ...]
    closed: SectionPath


def _find(view: PromptView, key: str) -> SectionNode | None:
    """The enabled section that `key` names; a disabled one is as unknown as one that does not
    exist.
    """
    node = view.registry.find(key)
    return node if node is not None and view.is_enabled(node) else None


def _summarized_above(view: PromptView, node: SectionNode) -> tuple[SectionNode, ...]:
    """The summarized ancestors of `node`, from the root down."""
    above = view.registry.ancestors(node)
    return tuple(one for one in above if view.visibility_of(one) is SectionVisibility.SUMMARY)


# The docstrings of the next three are what the model is told of the tools.


def _read_section(view: PromptView, params: ReadSectionParams) -> ToolResult[ReadSectionResult]:
    """Read the full content of a summarized section."""
    node = _find(view, params.section_key)
    if node is None:
        return ToolResult(
            message=f"Unknown section key: '{params.section_key:.{_MAX_KEY}}'", success=False
        )
    above = _summarized_above(view, node)
    # what the prompt would show were the section FULL, and the tools that it would have then
    opened_scene = view.opening({node.path: _FULL})
    parts, tools, _ = opened_scene.write(opened_scene.visits(node.index, node.end))
    content = "\n\n".join(parts)
    if not above and view.visibility_of(node) is _FULL:
        return ToolResult(message="Section is already expanded.", value=ReadSectionResult(content))
    if tools and view.disclosure is Disclosure.SPLIT:  # where to read changes nothing
        message = (
            f"Content of section '{params.section_key}', whose tools come with `{OPEN_SECTIONS}`:"
        )
        return ToolResult(message=message, value=ReadSectionResult(content))
    opened: dict[SectionPath, None] = {}
    if tools:  # enough overrides to show the section and to keep its tools where they are
        opened = dict.fromkeys((*(one.path for one in above), node.path))
        if above:  # these open too, and so their tools come along
            around = view.opening(dict.fromkeys(opened, _FULL))
            tools = around.write(around.visits(above[0].index, above[0].end))[1]
        opened.update(dict.fromkeys(view.registry.tool_paths[tool.name] for tool in tools))
    return ToolResult(
        message=f"Content of section '{params.section_key}':",
        value=ReadSectionResult(content, tuple(tools), tuple(opened)),
    )


def _open_sections(view: PromptView, params: OpenSectionsParams) -> ToolResult[object]:
    """Open summarized sections so that their full content and tools become available."""
    wanted: dict[SectionPath, SectionNode] = {}
    for key in params.section_keys:
        node = _find(view, key)
        if node is None:
            raise ToolValidationError(f"Unknown section key: '{key}'")
        wanted[node.path] = node
    for node in wanted.values():
        above = _summarized_above(view, node)
        missing = [one.key for one in above if one.path not in wanted]
        if missing:
            raise ToolValidationError(
                f"Section '{node.key}' is inside '{missing[0]}': open '{missing[0]}' first."
            )
        if not above and view.visibility_of(node) is _FULL:
            raise ToolValidationError(f"Section '{node.key}' is already expanded.")
    if not wanted:
        raise ToolValidationError("section_keys is empty: name at least one summarized section.")
    requested = dict.fromkeys(wanted, _FULL)
    opened = view.opening(requested)
    # what cannot be rendered is refused here, where the model can go on without it
    for node in wanted.values():
        opened.write(opened.visits(node.index, node.end))
    raise VisibilityExpansionRequired(
        requested_overrides=requested,
        reason=params.reason[:MAX_REASON],
        section_keys=params.section_keys,
    )


def _close_section(view: PromptView, params: CloseSectionParams) -> ToolResult[CloseSectionResult]:
    """Close a section that you opened, when its content and tools are no longer needed."""
    node = _find(view, params.section_key)
    if node is None:
        raise ToolValidationError(f"Unknown section key: '{params.section_key}'")
    opened = view.decisions.opened.get(node.path) is _FULL and view.visibility_of(node) is _FULL
    if not opened or _summarized_above(view, node):
        raise ToolValidationError(f"Section '{params.section_key}' is not one that you opened.")
    # All that could be open there: another call of the same turn may have opened some of them.
    names = tuple(
        [
            tool.name
            for inner in view.registry.sections[node.index : node.end]
            for tool in inner.tools
        ]
    )
    return ToolResult(
        message=f"Closed section '{params.section_key}'.",
        value=CloseSectionResult(params.section_key, names, node.path),
        exclude_value_from_context=True,
    )


# In the order in which a prompt has them. Any: handlers of three tools.
_TOOLS: Mapping[str, tuple[Callable[[PromptView, Any], ToolResult[Any]], type, type]] = {
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


# Any: see `_TOOLS`.
def disclosure_handler(name: str, view: PromptView) -> ToolHandler[Any, Any]:
    """The handler of the disclosure tool `name`, which answers as things stand in `scene`."""
    answer = _TOOLS[name][0]

    def handler(params: Any, /, *, context: ToolContext) -> ToolResult[Any]:  # noqa: ARG001 - every handler takes it
        try:
            return answer(view, params)
        # its advice is for the prompt's author, who finds it in the log
        except PromptRenderError as error:
            raise PromptRenderError(
                "This section cannot be shown in this conversation; go on without it."
            ) from error

    return handler


def _tool(name: str, view: PromptView) -> AnyTool:
    tool = copy(_without_handler(name))
    object.__setattr__(tool, "handler", disclosure_handler(name, view))
    return tool


def how_to_open(view: PromptView, tool_name: str) -> str | None:
    """What the model must call to get a tool of a section that is not open; `None` for any other
    tool.

    Raises `PromptRenderError` for failing conditions.
    """
    node = view.registry.get_section(view.registry.tool_paths.get(tool_name, ()))
    if node is None or not view.is_enabled(node):
        return None
    closed = [*_summarized_above(view, node)]
    if view.visibility_of(node) is not _FULL:
        closed.append(node)
    if not closed:
        return None
    tool = view.disclosure_tool(closed[-1])
    if tool == READ_SECTION or len(closed) == 1:  # to read a section opens those around it
        return f"call {tool} with key '{closed[-1].key}' first"
    return f"call {tool} with keys {', '.join([repr(one.key) for one in closed])} first"


def create_read_section_handler(
    *,
    registry: RegistrySnapshot,
    current_visibility: VisibilityOverrides,
    # Any: params of every type, each looked up by its own.
    param_lookup: Mapping[type[Any], object],
    session: StateView | None,
    disclosure: Disclosure = Disclosure.READ,
) -> Tool[ReadSectionParams, ReadSectionResult]:
    """The `read_section` tool of a prompt rendered with these; `current_visibility` were the
    overrides in force.
    """
    view = PromptView(
        registry=registry,
        params=param_lookup,
        decisions=SectionDecisions(current_visibility.overrides, session_overrides(session)),
        session=session,
        disclosure=disclosure,
    )
    return _tool(READ_SECTION, view)


def disclosure_tools(
    view: PromptView, visits: Sequence[VisibleSection], *, closable: bool = False
) -> tuple[AnyTool, ...]:
    """The disclosure tools that the sections shown need.

    `close_section` comes in where the template allows it and something is or can be opened; what is
    closed can be opened again.
    """
    opened = view.decisions.opened
    needed = {
        view.disclosure_tool(node)
        for node, _, visibility in visits
        if visibility is not _FULL or (closable and opened.get(node.path) is _FULL)
    }
    if closable and needed:
        needed.add(CLOSE_SECTION)
    return tuple([_tool(name, view) for name in _TOOLS if name in needed])
