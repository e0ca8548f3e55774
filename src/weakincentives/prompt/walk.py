"""The one walk of the section tree: which sections are shown, how, and the text and tools that they give.

Rendering, disclosure, descriptors and analysis read what it decides; nothing else looks at conditions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..ports import StateView
from ..visibility import SectionPath, SectionVisibility, VisibilityOverrides
from .disclosure import Disclosure, summary_suffix
from .errors import PromptError, PromptRenderError
from .registry import RegistrySnapshot, SectionNode

if TYPE_CHECKING:
    from .tool import AnyTool

__all__ = ["Scene", "Visit", "Written"]


class Visit(NamedTuple):
    """The decision about one section that is shown."""

    node: SectionNode
    params: object
    visibility: SectionVisibility


class Written(NamedTuple):
    """What some visited sections gave: one text each, and the tools of those that are `FULL`."""

    parts: list[str]
    tools: "list[AnyTool]"

    @property
    def text(self) -> str:
        """The parts, a blank line between them."""
        return "\n\n".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that the walk's decisions depend on: the tree, the params by type, overrides and the session.

    `visibility` holds the overrides in force; `bodies` override bodies by path.
    """

    registry: RegistrySnapshot
    # Any: params of every type, each looked up by its own.
    params: Mapping[type[Any], object]
    visibility: Mapping[SectionPath, SectionVisibility] = field(default_factory=dict[SectionPath, SectionVisibility])
    bodies: Mapping[SectionPath, str] = field(default_factory=dict[SectionPath, str])
    session: StateView | None = None
    disclosure: Disclosure = Disclosure.READ

    def visits(self, start: int = 0, end: int | None = None) -> list[Visit]:
        """The sections shown among `registry.sections[start:end]`, in order.

        What a disabled or summarized section hides is not looked at: its params are not needed, its selectors not
        asked. Raises `PromptRenderError` for missing params and failing selectors.
        """
        nodes = self.registry.sections
        get_params, overrides = self.params.get, self.visibility
        stop = len(nodes) if end is None else end
        index = start
        found: list[Visit] = []
        built: dict[type[Any], object] = {}  # Any: as in `params`
        while index < stop:
            node = nodes[index]
            enabled = node.enabled
            if enabled is not None and not self._enabled(node, built):
                index = node.end
                continue
            params = None
            if node.params_type is not None:
                params = get_params(node.params_type)
                if params is None:
                    params = node.default if node.default is not None else _build(node, built)
            shown = overrides.get(node.path) if overrides else None
            if shown is None:
                shown = node.visibility if node.selector is None else _selected(node, params, self.session)
            found.append(Visit(node, params, shown))
            index = index + 1 if shown is SectionVisibility.FULL else node.end
        return found

    def write(self, visits: Sequence[Visit]) -> Written:
        """Text and tools of the visited sections. Raises `PromptRenderError` when a section cannot be rendered."""
        parts: list[str] = []
        tools: list[AnyTool] = []
        bodies = self.bodies
        for node, params, visibility in visits:
            section, path = node.section, node.path
            try:
                if visibility is SectionVisibility.SUMMARY:
                    body = section.render_summary(params, path=path).rstrip()
                    suffix = summary_suffix(self.disclosure, node)
                    body = f"{body}\n\n{suffix}" if body else suffix
                else:
                    if bodies and path in bodies and section.accepts_overrides:
                        body = section.render_override(bodies[path], params, path=path).rstrip()
                    else:
                        body = section.render_body(params, path=path).rstrip()
                    if node.examples:
                        body = f"{body}\n\n{node.examples}" if body else node.examples
                    if node.tools:
                        tools += node.tools
            except PromptError:
                raise
            except Exception as error:  # a section's own code; its author needs the path
                raise PromptRenderError(
                    f"{type(section).__name__} failed to render: {type(error).__name__}: {error}", section_path=path
                ) from error
            parts.append(f"{node.heading}\n\n{body}" if body else node.heading)
        return Written(parts, tools)

    def is_enabled(self, node: SectionNode) -> bool:
        """Whether the section and all those above it are enabled, at whatever visibility."""
        built: dict[type[Any], object] = {}  # Any: as in `params`
        return all(self._enabled(one, built) for one in (*self.registry.ancestors(node), node))

    def visibility_of(self, node: SectionNode) -> SectionVisibility:
        """The effective visibility of an enabled section by itself, whatever is above it."""
        return Scene.visits(self, node.index, node.index + 1)[0].visibility

    def _enabled(self, node: SectionNode, built: dict[type[Any], object]) -> bool:
        enabled = node.enabled
        if enabled is None or isinstance(enabled, bool):
            return enabled is not False
        params = self._params(node, built) if enabled.needs_params else None
        return bool(enabled(params, self.session, node.path))

    def _params(self, node: SectionNode, built: dict[type[Any], object]) -> object:
        params = None if node.params_type is None else self.params.get(node.params_type)
        if params is None:
            params = node.default if node.default is not None else _build(node, built)
        return params


def session_overrides(session: StateView | None) -> Mapping[SectionPath, SectionVisibility]:
    """The visibility overrides that `session` holds; none without a session."""
    latest = None if session is None else session[VisibilityOverrides].latest()
    return {} if latest is None else latest.overrides


def _build(node: SectionNode, built: dict[type[Any], object]) -> object:
    """The params type built with no arguments, once a walk."""
    kind = node.params_type
    if kind is None:
        return None
    if kind not in built:
        try:
            built[kind] = kind()
        except Exception as error:  # missing fields, or whatever __post_init__ raises
            raise PromptRenderError(
                f"no {kind.__name__} is bound and it cannot be built without arguments ({error}); "
                f"bind one: prompt.bind({kind.__name__}(…))",
                section_path=node.path,
            ) from error
    return built[kind]


def _selected(node: SectionNode, params: object, session: StateView | None) -> SectionVisibility:
    answer = node.selector and node.selector(params, session, node.path)
    if not isinstance(answer, SectionVisibility):
        raise PromptRenderError(
            f"visibility selector answered {answer!r}; return SectionVisibility.FULL or .SUMMARY",
            section_path=node.path,
        )
    return answer
