"""A template's tree of sections, flattened in pre-order and checked once, when the template is built."""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

from .. import serde
from ..errors import SerdeError
from ..resources import ResourceRegistry
from ..visibility import SectionPath, SectionVisibility
from .errors import PromptValidationError
from .markdown import CompiledTemplate
from .overrides.model import TextId
from .sections import AnySection, Section
from .selectors import BoundSelector, normalise
from .tool import AnyTool, ToolExample

__all__ = ["RESERVED_TOOL_NAMES", "RegistrySnapshot", "SectionNode", "tool_example_text", "tool_examples"]

RESERVED_TOOL_NAMES = frozenset({"read_section", "open_sections", "close_section"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SectionNode:
    """One section in its place: `sections[index + 1 : end]` of the registry is its subtree.

    `enabled` is `None` when the section is always shown. `visibility` is its own while no `selector` decides it.
    `default` is what its params are when none are bound; `whole` its heading and body, where that is a template; `body`
    and `summary` are texts that override the section's own.
    """

    section: AnySection
    path: SectionPath
    depth: int
    number: str
    heading: str
    index: int
    end: int
    key: str
    tools: tuple[AnyTool, ...]
    # Any: each section has params of its own type.
    params_type: type[Any] | None
    default: object
    enabled: BoundSelector | bool | None
    visibility: SectionVisibility
    selector: BoundSelector | None
    child_keys: tuple[str, ...]
    tools_in_subtree: bool
    examples: str
    whole: CompiledTemplate | None
    body: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RegistrySnapshot:
    """All sections of a template in pre-order, with what can be looked up about them.

    Built from root sections; raises `PromptValidationError` with the section's path for keys, tools, placeholders and
    selectors that cannot work in this tree.
    """

    roots: tuple[AnySection, ...]
    sections: tuple[SectionNode, ...] = field(init=False)
    params_types: frozenset[type[Any]] = field(init=False)  # Any: see SectionNode
    tool_paths: Mapping[str, SectionPath] = field(init=False)
    resources: ResourceRegistry = field(init=False)
    _by_path: Mapping[SectionPath, SectionNode] = field(init=False, repr=False)
    _by_key: Mapping[str, SectionNode] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        builder = _Builder(self.roots)
        assign = object.__setattr__
        assign(self, "sections", builder.nodes)
        assign(self, "params_types", frozenset(node.params_type for node in builder.nodes if node.params_type))
        assign(self, "tool_paths", builder.tool_paths)
        assign(self, "resources", builder.resources)
        assign(self, "_by_path", {node.path: node for node in builder.nodes})
        assign(self, "_by_key", {node.key: node for node in builder.nodes})

    def get_section(self, path: SectionPath) -> SectionNode | None:
        """The section at `path`, or `None` for an unknown one."""
        return self._by_path.get(path)

    def find(self, key: str) -> SectionNode | None:
        """The section that the dotted `key`, as a prompt shows it, stands for, or `None` for an unknown one."""
        return self._by_key.get(key)

    def ancestors(self, node: SectionNode) -> tuple[SectionNode, ...]:
        """The sections above `node`, from the root down."""
        return tuple(self._by_path[node.path[:depth]] for depth in range(1, node.depth + 1))

    def tool(self, name: str) -> AnyTool | None:
        """The tool of that name, wherever in the tree it stands, or `None`."""
        path = self.tool_paths.get(name)
        if path is None:
            return None
        return next(tool for tool in self._by_path[path].tools if tool.name == name)

    def with_sections(self, sections: tuple[SectionNode, ...]) -> "RegistrySnapshot":
        """This tree with other nodes for the same sections; nothing is checked again."""
        changed = copy(self)
        assign = object.__setattr__
        assign(changed, "sections", sections)
        assign(changed, "_by_path", {node.path: node for node in sections})
        assign(changed, "_by_key", {node.key: node for node in sections})
        return changed


class _Builder:
    """Walks the tree once, depth first, and checks each section against what came before it."""

    def __init__(self, roots: Iterable[AnySection]) -> None:
        self._places: list[SectionNode | None] = []
        self.tool_paths: dict[str, SectionPath] = {}
        self.resources = ResourceRegistry()
        self._keys: dict[str, SectionPath] = {}
        # Any: see SectionNode
        self._fields: dict[type[Any], frozenset[str]] = {}
        roots = tuple(roots)
        self._defaults: dict[type[Any], object] = {}
        for root in roots:
            self._collect_defaults(root)
        for position, root in enumerate(roots, start=1):
            self._add(root, (), str(position))
        self.nodes = tuple(node for node in self._places if node is not None)

    def _collect_defaults(self, section: AnySection) -> None:
        if not isinstance(section, Section):
            raise PromptValidationError(
                f"sections holds {section!r}, which is no Section; reuse a prompt's parts through children"
            )
        if section.default_params is not None:
            self._defaults.setdefault(type(section.default_params), section.default_params)
        for child in section.children:
            self._collect_defaults(child)

    def _add(self, section: AnySection, above: SectionPath, number: str) -> None:
        path = (*above, section.key)
        key = self._check_key(path)
        tools_before = len(self.tool_paths)
        tools = self._check_tools(section, path)
        bound = section.resources()
        if not isinstance(bound, ResourceRegistry):
            raise PromptValidationError(f"resources() gave {bound!r}; return ResourceRegistry.of(…)", section_path=path)
        self.resources |= bound
        self._check_templates(section, path)
        index = len(self._places)
        self._places.append(None)  # kept for the node, which needs its subtree's end
        for position, child in enumerate(section.children, start=1):
            self._add(child, path, f"{number}.{position}")
        end = len(self._places)
        params_type = section.params_type
        enabled = section.enabled
        visibility = section.visibility
        heading = f"{'#' * (len(path) + 1)} {number}. {section.title.strip()}"
        examples = tool_examples(tools, path)
        self._places[index] = SectionNode(
            section=section,
            path=path,
            depth=len(above),
            number=number,
            heading=heading,
            index=index,
            end=end,
            key=key,
            tools=tools,
            params_type=params_type,
            default=None
            if params_type is None
            else section.default_params
            if section.default_params is not None
            else self._defaults.get(params_type),
            enabled=enabled if enabled is None or isinstance(enabled, bool) else _selector(section, path, "enabled"),
            visibility=visibility if isinstance(visibility, SectionVisibility) else SectionVisibility.FULL,
            selector=None if isinstance(visibility, SectionVisibility) else _selector(section, path, "visibility"),
            child_keys=tuple(child.key for child in section.children),
            tools_in_subtree=len(self.tool_paths) > tools_before,
            examples=examples,
            whole=None if examples else section.whole_template(heading),
        )

    def _check_key(self, path: SectionPath) -> str:
        key = ".".join(path)
        taken = self._keys.setdefault(key, path)
        if taken is not path:
            how = "is used twice" if taken == path else f"reads the same as that of {taken!r} once joined by dots"
            raise PromptValidationError(f"section path {path!r} {how}; give it another key", section_path=path)
        return key

    def _check_tools(self, section: AnySection, path: SectionPath) -> tuple[AnyTool, ...]:
        tools = section.tools()
        for tool in tools:
            if tool.name in RESERVED_TOOL_NAMES:
                raise PromptValidationError(
                    f"tool name {tool.name!r} is reserved for disclosure; rename the tool", section_path=path
                )
            other = self.tool_paths.setdefault(tool.name, path)
            if other is not path or sum(one.name == tool.name for one in tools) > 1:
                raise PromptValidationError(
                    f"tool name {tool.name!r} is used twice, in section {'.'.join(other)!r} and here; names are "
                    f"unique over the whole tree",
                    section_path=path,
                )
            try:
                serde.json_schema(tool.params_type)
            except SerdeError as error:
                raise PromptValidationError(
                    f"tool {tool.name!r}: its params type has no JSON schema: {error}", section_path=path
                ) from error
        return tools

    def _check_templates(self, section: AnySection, path: SectionPath) -> None:
        for template in section.templates():
            if template.malformed is not None:
                near = template.source[template.malformed :][:10]
                raise PromptValidationError(
                    f"a '$' starts no placeholder, at {near!r}; write '$$' for a dollar sign",
                    section_path=path,
                    placeholder="$",
                )
            if not template.names:
                continue
            known = self._fields_of(section.params_type)
            for name in sorted(template.names - known):
                remedy = (
                    f"write the section as {type(section).__name__}[Params](…)"
                    if section.params_type is None
                    else f"{section.params_type.__name__} has {', '.join(sorted(known)) or 'no fields'}"
                )
                raise PromptValidationError(
                    f"no params field for a placeholder; {remedy}", section_path=path, placeholder=f"${name}"
                )

    def _fields_of(self, params_type: type[Any] | None) -> frozenset[str]:  # Any: see SectionNode
        if params_type is None:
            return frozenset()
        known = self._fields.get(params_type)
        if known is None:  # `fields` leaves out ClassVar and InitVar, which instances do not hold
            known = self._fields[params_type] = frozenset(one.name for one in fields(params_type))
        return known


def _selector(section: AnySection, path: SectionPath, which: str) -> BoundSelector:
    try:
        selector = normalise(getattr(section, which))
    except TypeError as error:
        raise PromptValidationError(f"{which}: {error}", section_path=path) from error
    if selector.needs_params and section.params_type is None:
        raise PromptValidationError(
            f"{which} takes params, but the section has none; write it as {type(section).__name__}[Params](…)",
            section_path=path,
        )
    return selector


def tool_examples(tools: tuple[AnyTool, ...], path: SectionPath, texts: Mapping[TextId, str] | None = None) -> str:
    """The tools' examples as the Markdown that follows their section's body; empty without any.

    `texts` stand in place of the examples' own, where a tool accepts that.
    """
    blocks: list[str] = []
    for tool in tools:
        if not tool.examples:
            continue
        lines = [f"Examples of `{tool.name}`:\n"]
        for index, example in enumerate(tool.examples):
            other = texts and tool.accepts_overrides and texts.get(TextId("tool-example", f"{tool.name}#{index}"))
            try:
                lines.append(f"- {other if isinstance(other, str) else tool_example_text(example)}")
            except SerdeError as error:
                raise PromptValidationError(
                    f"tool {tool.name!r}: an example fails: {error}", section_path=path
                ) from error
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


# Any: examples of every tool.
def tool_example_text(example: ToolExample[Any, Any]) -> str:
    """One example as a list item without its `-`. Raises `SerdeError` for values that JSON cannot hold."""
    given, answer = serde.dump_json(example.input), serde.dump_json(example.output)
    return f"{example.description}\n  - input: `{given}`\n  - output: `{answer}`"
