"""The one walk over a prompt's sections: which are visible, and the text and tools that they give.

A `PromptView` is a tree of sections as one conversation sees it: the tree, the bound params, the
session, and `SectionDecisions`, which hold the visibility overrides and the answers that conditions
gave. From these alone follow, in this order:

1. `visible_sections` walks the tree. A disabled section hides its subtree; a summarized section is
   visible and hides what is below it.
2. `render` turns visible sections into texts and tools. A summarized section gives its summary and
   a line that names the tool which discloses it, and no tools.
3. `disclosure_tool` names that tool for one section.

Rendering, disclosure, analysis and snapshots all read a view; nothing else calls a condition.
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

# Any: it stands for an empty mapping of any type.
EMPTY: Mapping[Any, Any] = MappingProxyType({})

_MARKERS = tuple([f"[{kind.__name__.lower()} " for kind in (Image, Document)])
_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


class Disclosure(Enum):
    """Which tool the model calls to see a summarized section.

    `READ`: `read_section`, which answers with the content. The section's tools are added to the
    running conversation if the adapter supports that; otherwise a new evaluation starts. `OPEN`:
    `open_sections`, after which a new evaluation always starts. `SPLIT`: `open_sections` for
    sections with tools in their subtree, `read_section` for the others.
    """

    READ = "read"
    OPEN = "open"
    SPLIT = "split"


type VisibleSections = Mapping[SectionNode, SectionVisibility]
"""The sections that are visible, in the order of the tree, and how each one is shown."""


class RenderedParts(NamedTuple):
    """One text for each visible section, the tools of the `FULL` ones, and the summarized ones."""

    texts: list[str]
    tools: list[AnyTool]
    summarized: list[SectionNode]


class PromptView:
    """The sections as one conversation sees them; see the module for what is derived from it.

    `decisions` stores the answers of conditions, so that a conversation calls each condition once.
    In a `closable` view the model can close what it has read, so reading opens it.
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
        # params that nobody bound and that were built without arguments
        self._built: dict[ParamsType, object] = {}

    def with_visibility(self, changes: Mapping[SectionPath, SectionVisibility]) -> "PromptView":
        """This view with `changes`, the sections that the model opened and closed.

        Both views share the stored answers of conditions, later ones included.
        """
        return self._with_decisions(self.decisions.changed(changes))

    def copy(self) -> "PromptView":
        """A copy for another conversation, which stores its own later answers of conditions."""
        return self._with_decisions(self.decisions.copy())

    def for_event(self) -> "PromptView":
        """This view without its session, if it does not read that.

        A session keeps its events, which would otherwise keep it until the garbage collector comes.
        """
        if self.session is None or self.registry.reads_session:
            return self
        view = self._with_decisions(self.decisions)
        view.session = None
        return view

    def _with_decisions(self, decisions: SectionDecisions) -> "PromptView":
        view = PromptView.__new__(PromptView)  # `copy` costs ten times as much
        view.__dict__.update(self.__dict__)
        view.decisions = decisions
        return view

    def fully_expanded(self) -> "PromptView":
        """A copy in which the model has opened every section."""
        return self.copy().with_visibility({node.path: _FULL for node in self.registry.sections})

    def minimal_expansions(self) -> list[tuple[SectionPath, ...]]:
        """The smallest sets of sections to open that together show every text.

        The first set is empty. Each other set holds a summarized section and the summarized ones
        around it. Larger sets show no other texts and tools.
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
        """The visible sections of the whole tree, or of the subtree at `root`.

        Does not call conditions below a disabled or summarized section. Raises `PromptRenderError`
        for a condition that fails, or that takes params which are missing.
        """
        nodes, overrides = self.registry.sections, self.decisions.overrides
        index, end = (0, len(nodes)) if root is None else (root.index, root.end)
        visible: dict[SectionNode, SectionVisibility] = {}
        while index < end:
            node = nodes[index]
            # Most sections have no condition; without calls for them a render takes half the time.
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

        Raises `PromptRenderError` for a section whose params are missing or whose code fails.
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
                        # The registry has checked that the params have all placeholders as fields.
                        text = (template.format % template.values(params)).rstrip()
                    else:
                        text = _full_text(node, params)
            except PromptError as error:
                override = node.summary_override if visibility is _SUMMARY else node.body_override
                if isinstance(error, PromptRenderError) and override is not None:
                    error.detail = error.detail or "The text is an override; correct the override."
                raise
            except Exception as error:  # the section's own code; its author needs the path
                raise PromptRenderError(
                    f"cannot render {type(node.section).__name__}: {type(error).__name__}: {error}",
                    section_path=node.path,
                ) from error
            texts.append(text)
        return RenderedParts(texts, tools, summarized)

    def media(self, sections: VisibleSections, text: str) -> tuple[Image | Document, ...]:
        """Returns the images and documents among the params of `sections` that `text` names."""
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
        """Whether the section and all sections above it are enabled, at whatever visibility."""
        return all(self._enabled(section) for section in (*self.registry.ancestors(node), node))

    def visibility_of(self, node: SectionNode) -> SectionVisibility:
        """How an enabled section is shown unless a section above hides it."""
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
        """The name of the tool that discloses the section."""
        opens = self.disclosure is Disclosure.OPEN or (
            self.disclosure is Disclosure.SPLIT and self._has_tools(node)
        )
        return OPEN_SECTIONS if opens else READ_SECTION

    def missing_params(self, sections: VisibleSections) -> Mapping[SectionPath, ParamsType]:
        """The params types that hidden sections need and that are not bound, by section.

        Leaves out types that can be built without arguments. Calls no condition.
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
        """Whether an enabled section of the subtree has tools, at whatever visibility."""
        if node.tools or not node.tools_in_subtree:
            return bool(node.tools)
        return any(section.tools for section in self._subsections(node))

    def _subsections(self, node: SectionNode, *, ask: bool = True) -> Iterator[SectionNode]:
        """The enabled sections below `node`, at whatever visibility."""
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
        """The bound params, else the session's, the default, or an instance without arguments."""
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
            except Exception as error:  # missing fields, or whatever __post_init__ raises
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
        except Exception as error:  # the author's function; its author needs the path
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
        """Heading, summary, and the line that names the tool and the children it discloses."""
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
    """The tools of `sections`, without rendering their texts."""
    return [tool for node, how in sections.items() if how is _FULL for tool in node.tools]


def session_overrides(session: StateView | None) -> Mapping[SectionPath, SectionVisibility]:
    """The visibility overrides that `session` holds; none without a session."""
    latest = None if session is None else session[VisibilityOverrides].latest()
    return EMPTY if latest is None else latest.overrides


def _full_text(node: SectionNode, params: object) -> str:
    """Heading, body and tool examples."""
    if node.body_override is None:
        body = node.section.render_body(params, path=node.path)
    else:
        body = node.section.render_override(node.body_override, params, path=node.path)
    return _join(node.heading, _trim(body), node.examples)


def _join(*blocks: str) -> str:
    return "\n\n".join(filter(None, blocks))


def _trim(text: object) -> str:
    """`text` without blank lines around it; the first line keeps its indentation.

    Raises `TypeError` for another type, which a section's own code may return.
    """
    if not isinstance(text, str):
        if iscoroutine(text):
            text.close()
        raise TypeError(f"it must return a string, without awaiting, got a {type(text).__name__}")
    text = text.rstrip()
    indentation_end = len(text) - len(text.lstrip())
    first_line = text.rfind("\n", 0, indentation_end) + 1
    return text[first_line:]
