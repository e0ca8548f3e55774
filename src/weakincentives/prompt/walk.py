"""The one walk of the section tree: which sections are shown, how, and the text and tools that they
give.

Rendering, disclosure, descriptors and analysis read what it decides; nothing else looks at
conditions.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from enum import Enum
from inspect import iscoroutine
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..protocols import StateView
from ..visibility import SectionDecisions, SectionPath, SectionVisibility, VisibilityOverrides
from .conditions import BoundSelector
from .errors import PromptError, PromptRenderError
from .registry import OPEN_SECTIONS, READ_SECTION, RegistrySnapshot, SectionNode
from .sections import substitute

if TYPE_CHECKING:
    from .tool import AnyTool

__all__ = [
    "NOTHING",
    "Disclosure",
    "PromptView",
    "RenderedParts",
    "VisibleSection",
    "session_overrides",
]

# Any: an empty mapping of whatever to whatever.
NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Disclosure(Enum):
    """What the model calls to see a summarized section.

    `READ`: `read_section`, which answers with the content; the section's tools arrive in the
    running conversation where the adapter can do that, else evaluation starts again. `OPEN`:
    `open_sections`, after which evaluation always starts again. `SPLIT`: `open_sections` for
    sections with tools in their subtree, `read_section` for the others.
    """

    READ = "read"
    OPEN = "open"
    SPLIT = "split"


type VisibleSection = tuple[SectionNode, object, SectionVisibility]
"""The decision about one section that is shown: its node, its params and how; a bare tuple, one is
made per section.
"""


type RenderedParts = tuple[list[str], "list[AnyTool]", list[SectionNode]]
"""What some visited sections gave: a text each, the tools of the `FULL` ones, and which ones are
summarized.
"""


class PromptView:
    """All that the walk's decisions depend on: the tree, the params by type, the session, and what
    was decided before.

    `built` holds the params that were made without arguments. Conditions are asked once:
    `decisions` keeps the answers, also those that a copy made by `opening` gets.
    """

    __slots__ = ("built", "decisions", "disclosure", "params", "registry", "session")

    def __init__(
        self,
        *,
        registry: RegistrySnapshot,
        # Any: params of every type, each looked up by its own.
        params: Mapping[type[Any], object],
        decisions: SectionDecisions | None = None,
        session: StateView | None = None,
        disclosure: Disclosure = Disclosure.READ,
    ) -> None:
        self.registry = registry
        self.params = params
        self.decisions = SectionDecisions(NOTHING, NOTHING) if decisions is None else decisions
        self.session = session
        self.disclosure = disclosure
        self.built: dict[type[Any], object] = {}

    def opening(self, changes: Mapping[SectionPath, SectionVisibility]) -> "PromptView":
        """This scene after the model opened and closed what `changes` says; both share later
        answers of conditions.
        """
        view = copy(self)
        view.decisions = self.decisions.changed(changes)
        return view

    def apart(self) -> "PromptView":
        """This scene for another conversation, or for a look at what could be: later answers are
        kept apart.
        """
        view = copy(self)
        view.decisions = self.decisions.copy()
        return view

    def everything(self) -> "PromptView":
        """This scene once the model has opened all there is; later answers of conditions are kept
        apart.
        """
        return self.apart().opening(
            {node.path: SectionVisibility.FULL for node in self.registry.sections}
        )

    def smallest(self) -> list[tuple[SectionPath, ...]]:
        """What to open so that each text is shown once: nothing, then each summarized section and
        those around it.

        Opening more shows the same texts and tools side by side.
        """
        view = self.apart()
        nodes = [node for node, _, _ in view.everything().visits()]
        closed = [
            node.path for node in nodes if view.visibility_of(node) is SectionVisibility.SUMMARY
        ]
        return [(), *(tuple(one for one in closed if path[: len(one)] == one) for path in closed)]

    def visits(self, start: int = 0, end: int | None = None) -> list[VisibleSection]:
        """The sections shown among `registry.sections[start:end]`, in order.

        What a disabled or summarized section hides is not looked at: its params are not needed.
        Raises `PromptRenderError` for missing params and failing selectors.
        """
        nodes = self.registry.sections
        get_params, overrides = self.params.get, self.decisions.overrides
        full = SectionVisibility.FULL
        stop = len(nodes) if end is None else end
        index = start
        found: list[VisibleSection] = []
        while index < stop:
            node = nodes[index]
            enabled = node.enabled
            if enabled is not True and not self._enabled(node):
                index = node.end
                continue
            params = None
            kind = node.params_type
            if kind is not None:
                params = get_params(kind)
                if params is None:
                    params = self._params(node)
            own = node.visibility
            if overrides:
                own = overrides.get(node.path, own)
            if own is full:
                found.append((node, params, full))
                index += 1
                continue
            shown = self._selected(node, own, params) if isinstance(own, BoundSelector) else own
            found.append((node, params, shown))
            index = index + 1 if shown is full else node.end
        return found

    def write(self, visits: Sequence[VisibleSection]) -> RenderedParts:
        """Text and tools of the visited sections.

        Raises `PromptRenderError` when a section cannot be rendered.
        """
        parts: list[str] = []
        tools: list[AnyTool] = []
        summarized: list[SectionNode] = []
        full = SectionVisibility.FULL
        for node, params, visibility in visits:
            whole = node.whole
            try:
                if visibility is full:
                    if node.tools:
                        tools += node.tools
                    # its placeholders were found to be fields when the tree was built
                    if whole is not None:
                        parts.append((whole.format % whole.values(params)).rstrip())
                        continue
                    body = _body(node, params)
                else:
                    body = self._summary(node, params)
                    summarized.append(node)
            except PromptError as error:
                replaced = node.body if visibility is full else node.summary
                if replaced is not None and isinstance(error, PromptRenderError):
                    error.detail = (
                        error.detail
                        or "An override stands in for the code's text; mend the override."
                    )
                raise
            except Exception as error:  # a section's own code; its author needs the path
                raise PromptRenderError(
                    f"{type(node.section).__name__} failed to render: {type(error).__name__}: {error}",
                    section_path=node.path,
                ) from error
            parts.append(f"{node.heading}\n\n{body}" if body else node.heading)
        return parts, tools, summarized

    @staticmethod
    def tools(visits: Sequence[VisibleSection]) -> "list[AnyTool]":
        """The tools of the visited sections, without their text."""
        return [
            tool
            for node, _, visibility in visits
            if visibility is SectionVisibility.FULL
            for tool in node.tools
        ]

    def is_enabled(self, node: SectionNode) -> bool:
        """Whether the section and all those above it are enabled, at whatever visibility."""
        return all(self._enabled(one) for one in (*self.registry.ancestors(node), node))

    def visibility_of(self, node: SectionNode) -> SectionVisibility:
        """The effective visibility of an enabled section by itself, whatever is above it."""
        return self.visits(node.index, node.index + 1)[0][2]

    def disclosure_tool(self, node: SectionNode) -> str:
        """The name of the tool that discloses the section at `node`."""
        opens = self.disclosure is Disclosure.OPEN or (
            self.disclosure is Disclosure.SPLIT and self._has_tools(node)
        )
        return OPEN_SECTIONS if opens else READ_SECTION

    # Any: as `params`.
    def missing_params(
        self, summarized: Sequence[SectionNode], required: AbstractSet[type[Any]]
    ) -> Mapping[SectionPath, type[Any]]:
        """The sections below `summarized` ones that need params of a `required` type, and that
        type.
        """
        missing: dict[SectionPath, type[Any]] = {}
        for node in summarized:
            for below in self._below(node, ask=False):
                kind = below.params_type
                if kind is not None and kind in required:
                    missing[below.path] = kind
        return missing

    def _has_tools(self, node: SectionNode) -> bool:
        """Whether an enabled section of the subtree has tools, at whatever visibility."""
        if not node.tools_in_subtree or node.unconditional or node.tools:
            return node.tools_in_subtree
        return any(below.tools for below in self._below(node))

    def _below(
        self, node: SectionNode, *, children: bool = False, ask: bool = True
    ) -> Iterator[SectionNode]:
        """The enabled sections below `node`, or its enabled `children`, in order and at whatever
        visibility.

        A condition that fails, or is not to be asked now, does not hide its section.
        """
        nodes = self.registry.sections
        index = node.index + 1
        while index < node.end:
            below = nodes[index]
            try:
                enabled = self._enabled(below) if ask else self._known_as_enabled(below)
            except PromptRenderError:
                enabled = True
            if enabled:
                yield below
            index = index + 1 if enabled and not children else below.end

    def _known_as_enabled(self, node: SectionNode) -> bool:
        return (
            node.enabled
            if isinstance(node.enabled, bool)
            else self.decisions.enabled.get(node.path, True)
        )

    def _suffix(self, node: SectionNode) -> str:
        """The rule and the line that end a summarized section; they name the children that opening
        it shows.
        """
        tool = self.disclosure_tool(node)
        if not node.unconditional:
            return _suffix(tool, node, list(self._below(node, children=True)))
        if tool not in node.suffixes:
            node.suffixes[tool] = _suffix(tool, node, list(self._below(node, children=True)))
        return node.suffixes[tool]

    def _summary(self, node: SectionNode, params: object) -> str:
        if node.summary is None:
            summary = node.section.render_summary(params, path=node.path)
        else:
            summary = substitute(node.summary, params, node.path)
        return "\n\n".join(filter(None, (_trimmed(_text(summary)), self._suffix(node))))

    def _enabled(self, node: SectionNode) -> bool:
        condition = node.enabled
        if isinstance(condition, bool):
            return condition
        enabled = self.decisions.enabled.get(node.path)
        if enabled is None:
            params = self._params(node) if condition.needs_params else None
            enabled = self.decisions.enabled[node.path] = bool(
                condition(params, self.session, node.path)
            )
        return enabled

    def _selected(
        self, node: SectionNode, selector: BoundSelector, params: object
    ) -> SectionVisibility:
        visibility = self.decisions.visibility.get(node.path)
        if visibility is None:
            answer = selector(params, self.session, node.path)
            if not isinstance(answer, SectionVisibility):
                raise PromptRenderError(
                    f"visibility is {answer!r}; use SectionVisibility.FULL or .SUMMARY",
                    section_path=node.path,
                )
            visibility = self.decisions.visibility[node.path] = answer
        return visibility

    def _params(self, node: SectionNode) -> object:
        """What is bound, else the default, else the type built with no arguments, once a rendered
        prompt.
        """
        kind = node.params_type
        params = node.default if kind is None else self.params.get(kind, node.default)
        if params is not None or kind is None:
            return params
        if kind not in self.built:
            try:
                self.built[kind] = kind()
            except Exception as error:  # missing fields, or whatever __post_init__ raises
                unbound = PromptRenderError(
                    f"no {kind.__name__} is bound and it cannot be built without arguments ({error}).",
                    detail=f"Bind one: prompt.bind({kind.__name__}(…))",
                    section_path=node.path,
                )
                unbound.missing = kind
                raise unbound from error
        return self.built[kind]


def session_overrides(session: StateView | None) -> Mapping[SectionPath, SectionVisibility]:
    """The visibility overrides that `session` holds; none without a session."""
    if session is None:
        return NOTHING
    latest = session[VisibilityOverrides].latest()
    return NOTHING if latest is None else latest.overrides


def _suffix(tool: str, node: SectionNode, children: Sequence[SectionNode]) -> str:
    # Below the roots, where a child's own key would not tell which section is meant, keys are
    # dotted.
    keys = ", ".join([child.key if node.depth else child.section.key for child in children])
    if not keys:
        return f'---\n[This section is summarized. To view full content, call `{tool}` with key "{node.key}".]'
    return (
        f'---\n[This section is summarized. Call `{tool}` with key "{node.key}" to view full content '
        f"including subsections: {keys}.]"
    )


def _body(node: SectionNode, params: object) -> str:
    if node.body is None:
        body = node.section.render_body(params, path=node.path)
    else:
        body = node.section.render_override(node.body, params, path=node.path)
    return "\n\n".join(filter(None, (_trimmed(_text(body)), node.examples)))


def _text(written: object) -> str:
    """What a section's own code has written. Raises `TypeError` when it is no text."""
    if isinstance(written, str):
        return written
    if iscoroutine(written):
        written.close()
    raise TypeError(f"it gave a {type(written).__name__}; return a string, and await nothing")


def _trimmed(text: str) -> str:
    """Without blank lines around it; the first line keeps its indentation."""
    text = text.rstrip()
    return text[text.rfind("\n", 0, len(text) - len(text.lstrip())) + 1 :]
