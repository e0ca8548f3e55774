"""Walks a prompt's sections to find the visible ones, and their texts and tools.

A `PromptView` is one conversation's view of a tree of sections. It consists of the tree, the bound
params, the session, and `SectionDecisions`, which contain the visibility overrides and the results
of conditions. Everything else is derived from these, in the following order:

1. `visible_sections` walks the tree. A disabled section hides its subtree; a summarized section is
   visible and hides the sections below it.
2. `render` turns visible sections into texts and tools. A summarized section becomes its summary
   and a line that names the tool to open it, without the section's own tools.
3. `disclosure_tool` returns the name of that tool for one section.

Rendering, disclosure, analysis and snapshots all use a view; conditions are called nowhere else.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from inspect import iscoroutine
from types import MappingProxyType
from typing import Any, NamedTuple

from ..content import Document, Image, shown_in
from ..protocols import StateView
from ..record_types import build, field_names, is_instance
from ..visibility import SectionDecisions, SectionPath, SectionVisibility, VisibilityOverrides
from .conditions import BoundSelector
from .errors import PromptError, PromptRenderError
from .registry import OPEN_SECTIONS, READ_SECTION, RegistrySnapshot, SectionNode
from .sections import ParamsByType, ParamsType
from .tool import AnyTool

__all__ = [
    "EMPTY",
    "Disclosure",
    "PromptView",
    "RenderedParts",
    "VisibleSections",
    "session_overrides",
    "tools_of",
]

# Any: an empty mapping can have any type.
EMPTY: Mapping[Any, Any] = MappingProxyType({})

_MARKERS = tuple([f"[{kind.__name__.lower()} " for kind in (Image, Document)])
_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


class Disclosure(Enum):
    """The tool that the model calls to see a summarized section.

    `READ`: `read_section`, which returns the content. The section's tools are added to the current
    conversation if the adapter supports this; otherwise, a new evaluation starts. `OPEN`:
    `open_sections`, which always starts a new evaluation. `SPLIT`: `open_sections` for sections
    with tools in their subtree, and `read_section` for all other sections.
    """

    READ = "read"
    OPEN = "open"
    SPLIT = "split"


type VisibleSections = Mapping[SectionNode, SectionVisibility]
"""The visible sections in tree order, and the visibility of each."""


class RenderedParts(NamedTuple):
    """The texts of visible sections, the tools of `FULL` sections, and the summarized sections."""

    texts: list[str]
    tools: list[AnyTool]
    summarized: list[SectionNode]


class PromptView:
    """One conversation's view of the sections; see the module's docstring.

    `decisions` caches the results of conditions, so that a conversation calls each condition only
    once. In a `closable` view, the model can close a section that it has read, so reading a section
    opens it.
    """

    def __init__(
        self,
        *,
        registry: RegistrySnapshot,
        params: ParamsByType,
        decisions: SectionDecisions,
        session: StateView | None = None,
        disclosure: Disclosure = Disclosure.READ,
        closable: bool = False,
    ) -> None:
        self.registry = registry
        self.params = params
        self.decisions = decisions
        self.session = session
        self.disclosure = disclosure
        self.closable = closable
        # params that are not bound but were built without arguments
        self._built: dict[ParamsType, object] = {}

    def with_visibility(self, changes: Mapping[SectionPath, SectionVisibility]) -> "PromptView":
        """Returns this view with `changes`, the sections that the model opened and closed.

        Both views share the cached results of conditions, including later ones.
        """
        return self._with_decisions(self.decisions.changed(changes))

    def copy(self) -> "PromptView":
        """Returns a copy for another conversation, which caches its own results from then on."""
        return self._with_decisions(self.decisions.copy())

    def for_event(self) -> "PromptView":
        """Returns this view, without the session if the view does not read it.

        A session keeps its events, so an event with a reference to the session would form a cycle,
        which only the garbage collector can free.
        """
        if self.session is None or self.registry.reads_session:
            return self
        view = self._with_decisions(self.decisions)
        view.session = None
        return view

    def _with_decisions(self, decisions: SectionDecisions) -> "PromptView":
        view = PromptView.__new__(PromptView)  # `copy` takes ten times as long
        view.__dict__.update(self.__dict__)
        view.decisions = decisions
        return view

    def fully_expanded(self) -> "PromptView":
        """Returns a copy in which the model has opened every section."""
        return self.copy().with_visibility({node.path: _FULL for node in self.registry.sections})

    def minimal_expansions(self) -> list[tuple[SectionPath, ...]]:
        """Returns the smallest sets of sections to open that together show every text.

        The first set is empty. Each other set contains a summarized section and its summarized
        ancestors. Larger sets do not show any further texts or tools.
        """
        view = self.copy()
        paths = [
            node.path
            for node in view.fully_expanded().visible_sections()
            if view.visibility_of(node) is _SUMMARY
        ]
        with_ancestors = [
            tuple(path for path in paths if target[: len(path)] == path) for target in paths
        ]
        return [(), *with_ancestors]

    def visible_sections(self, root: SectionNode | None = None) -> VisibleSections:
        """Returns the visible sections of the entire tree, or of the subtree at `root`.

        Conditions below a disabled or summarized section are not called. Raises `PromptRenderError`
        if a condition fails or its params are missing.
        """
        nodes, overrides = self.registry.sections, self.decisions.overrides
        index, end = (0, len(nodes)) if root is None else (root.index, root.end)
        visible: dict[SectionNode, SectionVisibility] = {}
        while index < end:
            node = nodes[index]
            # Most sections have no condition, and skipping the call halves the rendering time.
            if node.enabled is not True and not self._enabled(node):
                index = node.end
                continue
            visibility = node.visibility
            if overrides or visibility is not _FULL:
                visibility = self.visibility_of(node)
            visible[node] = visibility
            index = index + 1 if visibility is _FULL else node.end
        return visible

    def render(self, sections: VisibleSections) -> RenderedParts:
        """Renders the texts of `sections` and collects their tools.

        Raises `PromptRenderError` if a section's params are missing or its code fails.
        """
        texts: list[str] = []
        tools: list[AnyTool] = []
        summarized: list[SectionNode] = []
        get_params = self.params.get
        for node, visibility in sections.items():
            try:
                kind, params = node.params_type, None
                if kind is not None and (params := get_params(kind)) is None:
                    params = self._params(node)
                if visibility is _SUMMARY:
                    summarized.append(node)
                    text = self._summary(node, params)
                else:
                    if node.tools:
                        tools += node.tools
                    template = node.template
                    if template is not None:
                        # The registry has checked that all placeholders are fields of the params.
                        text = (template.format % template.values(params)).rstrip()
                    else:
                        text = _full_text(node, params)
            except PromptError as error:
                override = node.summary_override if visibility is _SUMMARY else node.body_override
                if isinstance(error, PromptRenderError) and override is not None:
                    error.detail = error.detail or "The text is an override; correct the override."
                raise
            except Exception as error:  # raised by the section's code; its author needs the path
                raise PromptRenderError(
                    f"cannot render {type(node.section).__name__}: {type(error).__name__}: {error}",
                    section_path=node.path,
                ) from error
            texts.append(text)
        return RenderedParts(texts, tools, summarized)

    def media(self, sections: VisibleSections, text: str) -> tuple[Image | Document, ...]:
        """Returns the images and documents from section params whose markers are in `text`."""
        if not any(marker in text for marker in _MARKERS):
            return ()
        media: list[Image | Document] = []
        for node in sections:
            params = self._params(node)
            values = params.get if isinstance(params, Mapping) else partial(getattr, params)
            for value in [values(name) for name in field_names(params)]:
                items = value if isinstance(value, list | tuple) else (value,)
                media += [item for item in items if isinstance(item, Image | Document)]
        return shown_in(text, media)

    def is_enabled(self, node: SectionNode) -> bool:
        """Whether the section and all its ancestors are enabled, regardless of visibility."""
        return all(self._enabled(section) for section in (*self.registry.ancestors(node), node))

    def visibility_of(self, node: SectionNode) -> SectionVisibility:
        """Returns an enabled section's visibility, unless an ancestor hides it."""
        visibility = self.decisions.overrides.get(node.path, node.visibility)
        if not isinstance(visibility, BoundSelector):
            return visibility
        answers = self.decisions.visibility
        if node.path not in answers:
            answer = self._ask(visibility, node)
            if not isinstance(answer, SectionVisibility):
                raise PromptRenderError(
                    f"visibility must be SectionVisibility.FULL or .SUMMARY, got {answer!r}",
                    section_path=node.path,
                )
            answers[node.path] = answer
        return answers[node.path]

    def disclosure_tool(self, node: SectionNode) -> str:
        """Returns the name of the tool that opens the section."""
        opens = self.disclosure is Disclosure.OPEN or (
            self.disclosure is Disclosure.SPLIT and self._has_tools(node)
        )
        return OPEN_SECTIONS if opens else READ_SECTION

    def missing_params(self, sections: VisibleSections) -> Mapping[SectionPath, ParamsType]:
        """Returns the unbound params types that hidden sections need, by section.

        Types that can be built without arguments are omitted. Conditions are not called.
        """
        missing: dict[SectionPath, ParamsType] = {}
        required = self.registry.required_params - self.params.keys()
        if not required:
            return missing
        for node, visibility in sections.items():
            if visibility is not _SUMMARY:
                continue
            for section in self._subsections(node, ask=False):
                if section.params_type in required:
                    missing[section.path] = section.params_type
        return missing

    def _has_tools(self, node: SectionNode) -> bool:
        """Whether an enabled section in the subtree has tools, regardless of visibility."""
        if node.tools or not node.tools_in_subtree:
            return bool(node.tools)
        return any(section.tools for section in self._subsections(node))

    def _subsections(self, node: SectionNode, *, ask: bool = True) -> Iterator[SectionNode]:
        """Yields the enabled sections below `node`, regardless of visibility."""
        for child in self.registry.children(node):
            if self._may_be_enabled(child, ask=ask):
                yield child
                yield from self._subsections(child, ask=ask)

    def _may_be_enabled(self, node: SectionNode, *, ask: bool = True) -> bool:
        """Whether the section is enabled; `True` if its condition fails or must not be called."""
        if not ask and isinstance(node.enabled, BoundSelector):
            return self.decisions.enabled.get(node.path, True)
        try:
            return self._enabled(node)
        except PromptRenderError:
            return True

    def _enabled(self, node: SectionNode) -> bool:
        if not isinstance(node.enabled, BoundSelector):
            return node.enabled
        answers = self.decisions.enabled
        if node.path not in answers:
            answers[node.path] = bool(self._ask(node.enabled, node))
        return answers[node.path]

    def _ask(self, condition: BoundSelector, node: SectionNode) -> object:
        params = self._params(node) if condition.needs_params else None
        return condition(params, self.session, node.path)

    def _params(self, node: SectionNode) -> object:
        """Returns the bound params, else those from the session, the default or a new instance."""
        kind = node.params_type
        if kind is None:
            return None
        params = self.params.get(kind)
        if params is None and node.params_from is not None and self.session is not None:
            return self._params_from_session(node, node.params_from, self.session)
        params = params or node.default_params
        if params is None:
            params = self._built.get(kind)
        if params is None:
            try:
                params = self._built[kind] = build(kind)
            except Exception as error:  # fields are missing, or `__post_init__` raised an error
                unbound = PromptRenderError(
                    f"no {kind.__name__} is bound and it cannot be built without arguments "
                    f"({error}).",
                    detail=f"Bind one: prompt.bind({kind.__name__}(…))",
                    section_path=node.path,
                )
                unbound.missing = kind
                raise unbound from error
        return params

    def _params_from_session(
        self, node: SectionNode, params_from: Callable[[StateView], object], session: StateView
    ) -> object:
        try:
            params = params_from(session)
        except Exception as error:  # raised by the author's function; the author needs the path
            raise PromptRenderError(
                f"params_from raised {type(error).__name__}: {error}", section_path=node.path
            ) from error
        if node.params_type is None or not is_instance(params, node.params_type):
            kind = getattr(node.params_type, "__name__", "params")
            raise PromptRenderError(
                f"params_from must return a {kind}, got {params!r:.200}", section_path=node.path
            )
        return params

    def _summary(self, node: SectionNode, params: object) -> str:
        """Renders the heading, the summary, and a line with the tool to call and the children."""
        if node.summary_override is None:
            summary = node.section.render_summary(params, path=node.path)
        else:
            summary = node.section.fill(node.summary_override, params, node.path)
        keys = [
            child.listed_key
            for child in self.registry.children(node)
            if self._may_be_enabled(child)
        ]
        tool, key = self.disclosure_tool(node), node.key
        line = f'To view full content, call `{tool}` with key "{key}"'
        if keys:
            line = (
                f'Call `{tool}` with key "{key}" to view full content including subsections: '
                f"{', '.join(keys)}"
            )
        return _join(node.heading, _trim(summary), f"---\n[This section is summarized. {line}.]")


def tools_of(sections: VisibleSections) -> list[AnyTool]:
    """Returns the tools of `sections` without rendering their texts."""
    return [tool for node, how in sections.items() if how is _FULL for tool in node.tools]


def session_overrides(session: StateView | None) -> Mapping[SectionPath, SectionVisibility]:
    """Returns the visibility overrides in `session`; empty if there is no session."""
    latest = None if session is None else session[VisibilityOverrides].latest()
    return EMPTY if latest is None else latest.overrides


def _full_text(node: SectionNode, params: object) -> str:
    """Renders the heading, the body and the tool examples."""
    if node.body_override is None:
        body = node.section.render_body(params, path=node.path)
    else:
        body = node.section.render_override(node.body_override, params, path=node.path)
    return _join(node.heading, _trim(body), node.examples)


def _join(*blocks: str) -> str:
    return "\n\n".join(filter(None, blocks))


def _trim(text: object) -> str:
    """Returns `text` without surrounding blank lines; the first line keeps its indentation.

    Raises `TypeError` for any other type, which a section's own code may return.
    """
    if not isinstance(text, str):
        if iscoroutine(text):
            text.close()
        raise TypeError(f"it must return a string, without awaiting, got a {type(text).__name__}")
    text = text.rstrip()
    indentation_end = len(text) - len(text.lstrip())
    first_line = text.rfind("\n", 0, indentation_end) + 1
    return text[first_line:]
