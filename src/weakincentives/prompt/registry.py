"""`RegistrySnapshot` is a flat, validated table of a template's sections, built only once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import chain

from .. import serde
from ..errors import SerdeError
from ..protocols import DeclaredState, SliceType, StateReducer, StateSlice
from ..record_types import field_names, is_typed_dict, requires
from ..resources import ResourceRegistry
from ..visibility import SectionPath, SectionVisibility
from .conditions import BoundSelector, bind_selector
from .errors import PromptValidationError
from .handlers import handler_place
from .sections import AnySection, MarkdownSection, Section
from .text_template import CompiledTemplate, compiled
from .tool import NON_REPEATABLE, AnyTool, Effect, PromptHandler

__all__ = [
    "RESERVED_TOOL_NAMES",
    "RegistrySnapshot",
    "SectionNode",
    "check_placeholders",
    "example_text",
    "tool_examples",
]

READ_SECTION, OPEN_SECTIONS, CLOSE_SECTION = "read_section", "open_sections", "close_section"
RESERVED_TOOL_NAMES = frozenset({READ_SECTION, OPEN_SECTIONS, CLOSE_SECTION})


class SectionNode:
    """One section at its position in the tree; never changes once the tree is built.

    Nodes are in pre-order, so `registry.sections[node.index : node.end]` is the subtree. `key` is
    the path joined with dots, and `number` is the position, such as `2.1`. `default_params` are
    used if no params are bound. `template` combines the heading and the body; it is `None` if code
    generates the body. `examples` contains the tools' examples as Markdown. `body_override` and
    `summary_override` replace the section's own texts. Raises `PromptValidationError` for invalid
    examples and conditions.
    """

    # A plain class, because a dataclass with this many fields adds 1 ms to each import.
    def __init__(
        self,
        section: AnySection,
        path: SectionPath,
        number: str,
        index: int,
        tools: tuple[AnyTool, ...],
    ) -> None:
        self.section = section
        self.path = path
        self.number = number
        self.heading = f"{'#' * (len(path) + 1)} {number}. {section.title.strip()}"
        self.index = index
        self.end = index + 1
        self.key = ".".join(path)
        self.tools = tools
        self.tools_in_subtree = False
        self.params_type = section.params_type
        self.default_params: object = section.default_params
        self.params_from = section.params_from
        self.examples = tool_examples(tools, path)
        self.enabled: BoundSelector | bool = section.enabled is None or _condition(
            section, path, "enabled", bool
        )
        self.visibility = _condition(section, path, "visibility", SectionVisibility)
        self.template = None if self.examples else _template(section, self.heading)
        self.body_override: str | None = None
        self.summary_override: str | None = None

    @property
    def depth(self) -> int:
        """The number of sections above this one."""
        return len(self.path) - 1

    @property
    def listed_key(self) -> str:
        """The key under which the parent's summary lists this section.

        A root's child is listed by its own key, and a deeper section by its dotted key.
        """
        return self.key if self.depth > 1 else self.section.key


class RegistrySnapshot:
    """All sections of a template in pre-order, with indexes; never changes once it is built.

    `required_params` are the params types that must be bound: they have no default and cannot be
    built without arguments. `tool_paths` maps each tool to its section, `effects` contains the
    effects of all tools, and `state` contains the slices that sections declare. `reads_session`
    means that a condition or a params source takes the session. Raises `PromptValidationError` with
    the section's path for invalid keys, tools, placeholders and conditions.
    """

    __slots__ = (
        "_by_key",
        "effects",
        "params_types",
        "reads_session",
        "required_params",
        "resources",
        "sections",
        "state",
        "tool_paths",
    )

    def __init__(self, roots: Iterable[AnySection]) -> None:
        self.tool_paths: dict[str, SectionPath] = {}
        self.effects = set[Effect]()
        self.resources = ResourceRegistry()
        self.state: dict[SliceType, DeclaredState] = {}
        self._by_key: dict[str, SectionNode] = {}
        self._add(roots, (), "")
        self.sections = tuple(self._by_key.values())
        kinds = {node.params_type for node in self.sections}
        self.params_types = frozenset([kind for kind in kinds if kind is not None])
        # All sections with the same params type use that type's first default and source.
        defaults = {
            node.params_type
            if isinstance(node.default_params, dict)
            else type(node.default_params): (node.default_params)
            for node in reversed(self.sections)
            if node.default_params is not None
        }
        sources = {
            node.params_type: node.params_from
            for node in reversed(self.sections)
            if node.params_from is not None
        }
        unbound = self.params_types - defaults.keys() - sources.keys()
        self.required_params = frozenset([kind for kind in unbound if requires(kind)])
        self.reads_session = bool(sources) or any(
            isinstance(selector, BoundSelector) and selector.needs_session
            for node in self.sections
            for selector in (node.enabled, node.visibility)
        )
        for node in self.sections:
            node.params_from = node.params_from or sources.get(node.params_type)
            if node.default_params is None and node.params_type is not None:
                node.default_params = defaults.get(node.params_type)
            node.section.check_tools(self.get_tool, node.path)

    @property
    def has_non_repeatable_tools(self) -> bool:
        """Whether there is a tool whose calls must not run twice."""
        return not self.effects.isdisjoint(NON_REPEATABLE)

    def get_section(self, path: SectionPath) -> SectionNode | None:
        """Returns the section at `path`, or `None` if it is unknown."""
        node = self._by_key.get(".".join(path))
        return node if node is not None and node.path == path else None

    def get_section_by_key(self, key: str) -> SectionNode | None:
        """Returns the section with the dotted `key` shown in a prompt, or `None` if unknown."""
        return self._by_key.get(key)

    def get_tool(self, name: str) -> AnyTool | None:
        """Returns the tool with the given name in any section, or `None` if it is unknown."""
        node = self.get_section(self.tool_paths.get(name, ()))
        return None if node is None else next(tool for tool in node.tools if tool.name == name)

    def ancestors(self, node: SectionNode) -> tuple[SectionNode, ...]:
        """Returns the ancestors of `node`, from the root down."""
        return tuple(
            [self._by_key[".".join(node.path[:depth])] for depth in range(1, len(node.path))]
        )

    def children(self, node: SectionNode) -> Iterator[SectionNode]:
        """Yields the direct children of `node`, in order."""
        index = node.index + 1
        while index < node.end:
            child = self.sections[index]
            yield child
            index = child.end

    def with_sections(self, sections: tuple[SectionNode, ...]) -> "RegistrySnapshot":
        """Returns this tree with new nodes for the same sections, without checking them again."""
        changed = copy(self)
        changed.sections = sections
        changed._by_key = {node.key: node for node in sections}  # noqa: SLF001 - its own class
        return changed

    def _add(self, sections: Iterable[AnySection], above: SectionPath, prefix: str) -> None:
        for position, section in enumerate(sections, start=1):
            if not isinstance(section, Section):
                raise PromptValidationError(
                    f"sections must contain Section objects, got {section!r}; wrap text in "
                    "MarkdownSection(…), or add another prompt's sections instead of the prompt"
                )
            tool_count = len(self.tool_paths)
            node = self._node(section, (*above, section.key), f"{prefix}{position}")
            self._by_key[node.key] = node
            self._add(section.children, node.path, f"{node.number}.")
            node.end = len(self._by_key)
            node.tools_in_subtree = len(self.tool_paths) > tool_count

    def _node(self, section: AnySection, path: SectionPath, number: str) -> SectionNode:
        key, tools = ".".join(path), _tools(section)
        if other := self._by_key.get(key):
            problem = f"equals that of {other.path!r} when both are joined with dots"
            if other.path == path:
                problem = "is used twice"
            raise PromptValidationError(
                f"section path {path!r} {problem}; give it another key", section_path=path
            )
        self._add_tools(tools, path)
        self._add_resources(section, path)
        for state in (section.state, *map(_nested_state, tools)):
            self._add_state(state, path)
        for text in section.templates():
            check_placeholders(text, section, path)
        return SectionNode(section, path, number, len(self._by_key), tools)

    def _add_resources(self, section: AnySection, path: SectionPath) -> None:
        resources: object = section.resources()
        if not isinstance(resources, ResourceRegistry):
            raise PromptValidationError(
                f"resources() must return ResourceRegistry.of(…), got {resources!r}",
                section_path=path,
            )
        self.resources |= resources

    def _add_state(self, state: Iterable[DeclaredState], path: SectionPath) -> None:
        for declared in state:
            kind = declared if isinstance(declared, type) else declared.slice_type
            before = self.state.setdefault(kind, declared)
            if before is declared:
                continue
            reducers = _reducers(before), _reducers(declared)
            shared = reducers[0].keys() & reducers[1].keys()
            if any(reducers[0][event] is not reducers[1][event] for event in shared) or not all(
                reducers
            ):
                others = [
                    node.key
                    for node in self._by_key.values()
                    if before in (*node.section.state, *chain(*map(_nested_state, node.tools)))
                ]
                other = next(iter(others), path[-1])
                raise PromptValidationError(
                    f"state {kind.__name__} has different reducers in section {other!r}; declare "
                    "them once",
                    section_path=path,
                )
            self.state[kind] = StateSlice(kind, {**reducers[0], **reducers[1]})

    def _add_tools(self, tools: tuple[AnyTool, ...], path: SectionPath) -> None:
        for tool in tools:
            if tool.name in RESERVED_TOOL_NAMES:
                raise PromptValidationError(
                    f"tool name {tool.name!r} is reserved for disclosure; rename the tool",
                    section_path=path,
                )
            if other := self.tool_paths.get(tool.name):
                before = self._by_key.get(".".join(other))
                both = [*(before.tools if before else ()), *tools]
                places = [handler_place(item.handler) for item in both if item.name == tool.name]
                raise PromptValidationError(
                    f"tool names must be unique in the whole prompt, got {tool.name!r} here and "
                    f"in section {'.'.join(other)!r} (handlers {' and '.join(places)}); rename one "
                    "of the tools",
                    section_path=path,
                )
            self.tool_paths[tool.name] = path
            self.effects.add(tool.effect)
            if tool.schema is not None:
                continue
            try:
                tool.params_schema()
            except SerdeError as error:
                raise PromptValidationError(
                    f"tool {tool.name!r}: its params type has no JSON schema: {error}",
                    section_path=path,
                ) from error


def _tools(section: AnySection) -> tuple[AnyTool, ...]:
    """Returns the section's own tools, with its approval added to tools that declare none."""
    tools, approval = tuple(section.tools()), section.approval
    if approval is None:
        return tools
    return tuple(
        [
            tool
            if tool.approval is not None or (approval == "effects" and tool.effect == "pure")
            else replace(tool, approval=approval)
            for tool in tools
        ]
    )


def _nested_state(tool: AnyTool) -> Iterable[DeclaredState]:
    """Returns the state of the template that the tool evaluates, if any."""
    handler = tool.handler
    return handler.template.registry.state.values() if isinstance(handler, PromptHandler) else ()


def _reducers(declared: DeclaredState) -> Mapping[SliceType, StateReducer]:
    """Returns a declaration's reducers; empty for a class, whose methods declare its reducers."""
    return {} if isinstance(declared, type) else declared.reducers


def _template(section: AnySection, heading: str) -> CompiledTemplate | None:
    """Returns the heading and body as one template; `None` if code generates the body."""
    text = section.body_text()
    # A value at the start of the body can start with blank lines, which a template would keep.
    if type(section).render_body is not MarkdownSection.render_body or text.startswith("$"):
        return None
    if section.params_type is not None and is_typed_dict(section.params_type):
        return None  # a compiled template can only read attributes
    if section.literal:
        text = text.replace("$", "$$")
    return CompiledTemplate(f"{heading.replace('$', '$$')}\n\n{text}")


def check_placeholders(text: str, section: AnySection, path: SectionPath) -> None:
    """Raises `PromptValidationError` if the section's params lack one of the placeholders."""
    if section.literal:
        return
    template, names = compiled(text), field_names(section.params_type)
    if template.malformed is not None:
        near = text[template.malformed :][:10]
        raise PromptValidationError(
            f"a '$' must start a placeholder, got {near!r}; write '$$' for a dollar sign",
            section_path=path,
            placeholder="$",
        )
    if not template.names <= names:
        if section.params_type is None:
            remedy = f"write the section as {type(section).__name__}[Params](…)"
        else:
            known = ", ".join(sorted(names)) or "no fields"
            remedy = f"{section.params_type.__name__} has {known}"
        raise PromptValidationError(
            f"the params have no field for a placeholder; {remedy}",
            section_path=path,
            placeholder=f"${min(template.names - names)}",
        )


_CONSTANTS = {"enabled": "True, False", "visibility": "SectionVisibility.FULL, .SUMMARY"}


def _condition[C](
    section: AnySection, path: SectionPath, name: str, constant: type[C]
) -> BoundSelector | C:
    condition = getattr(section, name)
    if isinstance(condition, constant):
        return condition
    try:
        selector = bind_selector(condition)
    except TypeError as error:
        constants = "" if callable(condition) else f"{_CONSTANTS[name]} or "
        message = f"{name} must be {constants}{error}"
        raise PromptValidationError(message, section_path=path) from error
    if selector.needs_params and section.params_type is None:
        raise PromptValidationError(
            f"{name} takes params, but the section has none; write the section as "
            f"{type(section).__name__}[Params](…)",
            section_path=path,
        )
    return selector


def example_text(tool: AnyTool, index: int) -> str:
    """Returns one example as a Markdown list item, without the `-`.

    Raises `SerdeError` for values that cannot be converted to JSON.
    """
    example = tool.examples[index]
    parts = [example.description] if example.description else []
    parts.append(f"input: `{serde.dump_json(example.input)}`")
    if example.output is not ...:
        parts.append(f"output: `{serde.dump_json(example.output)}`")
    return "\n  - ".join(parts)


def tool_examples(
    tools: tuple[AnyTool, ...],
    path: SectionPath,
    text: Callable[[AnyTool, int], str] = example_text,
) -> str:
    """Returns the tools' examples as Markdown, to append to the section; `""` if there are none."""
    blocks: list[str] = []
    for tool in tools:
        try:
            items = [f"- {text(tool, index)}" for index in range(len(tool.examples))]
        except SerdeError as error:
            raise PromptValidationError(
                f"tool {tool.name!r}: invalid example: {error}", section_path=path
            ) from error
        if items:
            blocks.append("\n".join([f"Examples of `{tool.name}`:\n", *items]))
    return "\n\n".join(blocks)
