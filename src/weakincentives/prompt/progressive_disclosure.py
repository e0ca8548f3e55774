"""Tools that let a model open and close sections.

The handlers of `read_section`, `open_sections` and `close_section` render the conversation's
`PromptView`, so the model sees the same text as in a prompt with the section open. The handlers do
not change anything: the tool executor records which sections their results open and close.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..protocols import StateView
from ..visibility import (
    SectionDecisions,
    SectionPath,
    SectionVisibility,
    ShownSection,
    VisibilityOverrides,
)
from .context import ToolContext
from .errors import PromptRenderError, ToolValidationError, VisibilityExpansionRequired
from .registry import CLOSE_SECTION, OPEN_SECTIONS, READ_SECTION, RegistrySnapshot, SectionNode
from .sections import ParamsByType
from .tool import AnyTool, AnyToolHandler, Tool, ToolResult
from .walk import Disclosure, PromptView, VisibleSections, session_overrides

__all__ = [
    "CloseSectionParams",
    "CloseSectionResult",
    "Disclosure",
    "OpenSectionsParams",
    "ReadSectionParams",
    "ReadSectionResult",
    "combine_requests",
    "create_read_section_handler",
    "disclosure_handler",
    "disclosure_tool",
    "disclosure_tools",
    "how_to_open",
]

_MAX_REASON = 256
_MAX_KEY = 500
_FULL = SectionVisibility.FULL
_NOTHING: Mapping[SectionPath, SectionVisibility] = {}


_DOTTED = "Nested sections use dot notation (e.g., 'parent.child')."


@dataclass(slots=True, frozen=True)
class ReadSectionParams:
    """Arguments of `read_section`."""

    section_key: str = field(
        metadata={
            "description": "Key of the summarized section, exactly as its summary shows it. "
            + _DOTTED
        }
    )


@dataclass(slots=True, frozen=True)
class ReadSectionResult:
    """A section's full text, its tools, and the paths of the sections that open with them.

    `shown` contains the sections whose texts appear in `content`.
    """

    content: str
    expanded_tools: tuple[AnyTool, ...] = ()
    opened: tuple[SectionPath, ...] = ()
    shown: tuple[ShownSection, ...] = ()

    def render(self) -> str:
        """Returns only the content, because the model receives the tools separately."""
        return self.content


@dataclass(slots=True, frozen=True)
class OpenSectionsParams:
    """Arguments of `open_sections`."""

    section_keys: tuple[str, ...] = field(
        metadata={
            "description": "Keys of the summarized sections to open, exactly as their summaries "
            "show them. " + _DOTTED
        }
    )
    reason: str = field(
        metadata={
            "description": "Why these sections are needed, in at most 256 characters.",
            # this limit is only for the model; a longer text is truncated, not rejected
            "json_schema_extra": {"maxLength": _MAX_REASON},
        }
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", self.reason[:_MAX_REASON])


@dataclass(slots=True, frozen=True)
class CloseSectionParams:
    """Arguments of `close_section`."""

    section_key: str = field(
        metadata={"description": "Key of a section that was opened and is no longer needed."}
    )


@dataclass(slots=True, frozen=True)
class CloseSectionResult:
    """The section that was closed, and the names of the tools in its subtree."""

    section_key: str
    closed_tools: tuple[str, ...]
    closed: SectionPath


def _find(view: PromptView, key: str) -> SectionNode | None:
    """Returns the section with the given key, or `None` if it is unknown or disabled."""
    node = view.registry.get_section_by_key(key)
    return node if node is not None and view.is_enabled(node) else None


def _sections_to_open(view: PromptView, node: SectionNode) -> list[SectionNode]:
    """Returns the summarized sections among `node` and its ancestors, from the root down."""
    sections = (*view.registry.ancestors(node), node)
    return [section for section in sections if view.visibility_of(section) is not _FULL]


# The docstrings of the next three functions are the tools' descriptions, which the model sees.


def _read_section(
    view: PromptView,
    params: ReadSectionParams,
    also_open: Mapping[SectionPath, SectionVisibility] = _NOTHING,
) -> ToolResult[ReadSectionResult]:
    """Read the full content of a summarized section."""
    key = params.section_key
    node = _find(view, key)
    if node is None:
        return ToolResult(message=f"Unknown section key: '{key:.{_MAX_KEY}}'", success=False)
    to_open = _sections_to_open(view, node)
    # the texts and tools that the prompt would have if the section were FULL
    opened = view.with_visibility({**also_open, node.path: _FULL})
    sections = opened.visible_sections(node)
    texts, tools, _ = opened.render(sections)
    content = "\n\n".join(texts)
    media = view.media(sections, content)
    if not to_open:
        return ToolResult(
            message="Section is already expanded.", value=ReadSectionResult(content), media=media
        )
    if tools and view.disclosure is Disclosure.SPLIT:  # reading does not add tools
        return ToolResult(
            message=f"Content of section '{key}', whose tools come with `{OPEN_SECTIONS}`:",
            value=ReadSectionResult(content),
            media=media,
        )
    paths: dict[SectionPath, None] = {}
    if tools or view.closable:  # open the section, its ancestors, and descendants with tools
        paths = dict.fromkeys([*[section.path for section in to_open], node.path])
        if to_open[0] is not node:  # opening the ancestors also adds their tools
            opened = view.with_visibility({**also_open, **dict.fromkeys(paths, _FULL)})
            tools = opened.render(opened.visible_sections(to_open[0])).tools
        paths.update(dict.fromkeys(view.registry.tool_paths[tool.name] for tool in tools))
    shown = [
        ShownSection(section.path, visibility, text)
        for (section, visibility), text in zip(sections.items(), texts, strict=True)
    ]
    return ToolResult(
        message=f"Content of section '{key}':",
        value=ReadSectionResult(content, tuple(tools), tuple(paths), tuple(shown)),
        media=media,
    )


def _open_sections(view: PromptView, params: OpenSectionsParams) -> ToolResult[object]:
    """Open summarized sections so that their full content and tools become available."""
    nodes: dict[SectionPath, SectionNode] = {}
    for key in params.section_keys:
        node = _find(view, key)
        if node is None:
            raise ToolValidationError(f"Unknown section key: '{key}'")
        nodes[node.path] = node
    for node in nodes.values():
        to_open = _sections_to_open(view, node)
        if not to_open:
            raise ToolValidationError(f"Section '{node.key}' is already expanded.")
        for section in to_open:
            if section.path not in nodes:
                raise ToolValidationError(
                    f"Section '{node.key}' is inside '{section.key}': open '{section.key}' first."
                )
    if not nodes:
        raise ToolValidationError("section_keys is empty: name at least one summarized section.")
    requested = dict.fromkeys(nodes, _FULL)
    opened = view.with_visibility(requested)
    # If rendering fails, it must fail here: the model can continue without this section.
    for node in nodes.values():
        opened.render(opened.visible_sections(node))
    raise VisibilityExpansionRequired(
        requested_overrides=requested, reason=params.reason, section_keys=params.section_keys
    )


def _close_section(view: PromptView, params: CloseSectionParams) -> ToolResult[CloseSectionResult]:
    """Close a section that you opened, when its content and tools are no longer needed."""
    key = params.section_key
    node = _find(view, key)
    if node is None:
        raise ToolValidationError(f"Unknown section key: '{key}'")
    if view.decisions.opened.get(node.path) is not _FULL or _sections_to_open(view, node):
        raise ToolValidationError(f"Section '{key}' is not one that you opened.")
    # include the entire subtree, because another call in the turn may have opened a section in it
    subtree = view.registry.sections[node.index : node.end]
    names = tuple([tool.name for section in subtree for tool in section.tools])
    return ToolResult(
        message=f"Closed section '{key}'.",
        value=CloseSectionResult(key, names, node.path),
        exclude_value_from_context=True,
    )


# Any: functions for the params and results of three tools.
type _Answer = Callable[[PromptView, Any], ToolResult[object]]


def _define_tool(name: str, answer: _Answer, params_type: type, result_type: type) -> AnyTool:
    return Tool(
        name=name,
        description=answer.__doc__,
        params_type=params_type,
        result_type=result_type,
        accepts_overrides=False,
        effect="repeatable",
    )


_ANSWERS: Mapping[str, _Answer] = {
    OPEN_SECTIONS: _open_sections,
    READ_SECTION: _read_section,
    CLOSE_SECTION: _close_section,
}
# in the order in which prompts list them
_TOOLS = (
    _define_tool(OPEN_SECTIONS, _open_sections, OpenSectionsParams, object),
    _define_tool(READ_SECTION, _read_section, ReadSectionParams, ReadSectionResult),
    _define_tool(CLOSE_SECTION, _close_section, CloseSectionParams, CloseSectionResult),
)


def disclosure_handler(
    name: str, view: PromptView, also_open: Mapping[SectionPath, SectionVisibility] = _NOTHING
) -> AnyToolHandler:
    """Returns the handler of the disclosure tool `name`, which renders sections of `view`.

    `also_open` contains sections that were already read in the same turn. The handler opens them as
    well.
    """
    answer = _ANSWERS[name]
    if also_open and name == READ_SECTION:
        answer = partial(_read_section, also_open=also_open)

    # Any: see `_Answer`
    def handler(params: Any, /, *, context: ToolContext) -> ToolResult[object]:  # noqa: ARG001 - every handler takes it
        try:
            return answer(view, params)
        except PromptRenderError as error:  # the text is for the prompt's author
            raise PromptRenderError(
                "This section cannot be shown in this conversation; go on without it."
            ) from error

    return handler


def disclosure_tools(
    view: PromptView, sections: VisibleSections, *, closable: bool = False
) -> tuple[AnyTool, ...]:
    """Returns the disclosure tools for a prompt with these visible sections.

    If a section is open or can be opened, a `closable` prompt also has `close_section` and the tool
    that reopens the section.
    """
    opened = view.decisions.opened
    names = {
        view.disclosure_tool(node)
        for node, visibility in sections.items()
        if visibility is not _FULL or (closable and opened.get(node.path) is _FULL)
    }
    if closable and names:
        names.add(CLOSE_SECTION)
    return tuple([_bind_handler(tool, view) for tool in _TOOLS if tool.name in names])


def disclosure_tool(name: str, view: PromptView) -> AnyTool:
    """Returns the disclosure tool `name`, which renders sections of `view`."""
    return _bind_handler(next(tool for tool in _TOOLS if tool.name == name), view)


def create_read_section_handler(
    *,
    registry: RegistrySnapshot,
    current_visibility: VisibilityOverrides,
    param_lookup: ParamsByType,
    session: StateView | None,
    disclosure: Disclosure = Disclosure.READ,
) -> Tool[ReadSectionParams, ReadSectionResult]:
    """Returns the `read_section` tool for a prompt that was rendered with these arguments.

    `current_visibility` contains the overrides that applied at that time.
    """
    view = PromptView(
        registry=registry,
        params=param_lookup,
        decisions=SectionDecisions(current_visibility.overrides, session_overrides(session)),
        session=session,
        disclosure=disclosure,
    )
    return _bind_handler(_TOOLS[1], view)


def how_to_open(view: PromptView, tool_name: str) -> str | None:
    """Returns the call that makes a closed section's tool available; `None` for any other tool.

    Raises `PromptRenderError` if a condition fails.
    """
    node = view.registry.get_section(view.registry.tool_paths.get(tool_name, ()))
    to_open = [] if node is None or not view.is_enabled(node) else _sections_to_open(view, node)
    if not to_open:
        return None
    tool = view.disclosure_tool(to_open[-1])
    if tool == READ_SECTION or len(to_open) == 1:  # reading a section also opens its ancestors
        return f"call {tool} with key '{to_open[-1].key}' first"
    return f"call {tool} with keys {', '.join([repr(node.key) for node in to_open])} first"


def combine_requests(
    requests: Sequence[VisibilityExpansionRequired],
) -> VisibilityExpansionRequired:
    """Returns a single request for all sections that were requested in a turn."""
    if len(requests) == 1:
        return requests[0]
    return VisibilityExpansionRequired(
        requested_overrides={
            path: visibility
            for request in requests
            for path, visibility in request.requested_overrides.items()
        },
        reason="; ".join(dict.fromkeys([request.reason for request in requests]))[:_MAX_REASON],
        section_keys=tuple([key for request in requests for key in request.section_keys]),
    )


def _bind_handler(tool: AnyTool, view: PromptView) -> AnyTool:
    bound = copy(tool)  # the constructor's checks would be the same for every view
    object.__setattr__(bound, "handler", disclosure_handler(tool.name, view))
    return bound
