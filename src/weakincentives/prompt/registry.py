"""A template's tree of sections, flattened in pre-order and checked once, when the template is
built.
"""

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from .. import serde
from ..errors import SerdeError
from ..resources import ResourceRegistry
from ..visibility import SectionPath, SectionVisibility
from .conditions import BoundSelector, normalise
from .errors import PromptValidationError
from .sections import AnySection, MarkdownSection, Section
from .text_template import CompiledTemplate, compiled, field_names
from .tool import AnyTool

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


# not frozen, which takes twice the time to make
@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SectionNode:
    """One section in its place, not changed once the tree is; `sections[index + 1 : end]` of it is
    the subtree.

    `default` is what its params are when none are bound; `whole` its heading and body, where that
    is a template; `body` and `summary` are texts that override the section's own. `unconditional`
    says that all sections below it are enabled in every conversation; `suffixes` then keeps how its
    summary ends, by disclosure tool.
    """

    section: AnySection
    path: SectionPath
    number: str
    heading: str
    index: int
    key: str
    tools: tuple[AnyTool, ...]
    # Any: each section has params of its own type.
    params_type: type[Any] | None
    default: object
    enabled: BoundSelector | bool
    visibility: BoundSelector | SectionVisibility
    examples: str
    whole: CompiledTemplate | None
    end: int = 0
    tools_in_subtree: bool = False
    unconditional: bool = True
    body: str | None = None
    summary: str | None = None
    suffixes: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def depth(self) -> int:
        """How many sections are above it."""
        return len(self.path) - 1


class RegistrySnapshot:
    """All sections of a template in pre-order, with what can be looked up about them; not changed
    once made.

    `required_params` are the params types that must be bound: they have no default and cannot be
    built without fields. Built from root sections; raises `PromptValidationError` with the
    section's path for keys, tools, placeholders and selectors that cannot work in this tree.
    """

    __slots__ = (
        "_by_key",
        "params_types",
        "required_params",
        "resources",
        "sections",
        "tool_paths",
    )

    def __init__(self, roots: Iterable[AnySection]) -> None:
        self.tool_paths: dict[str, SectionPath] = {}
        self.resources = ResourceRegistry()
        self._by_key: dict[str, SectionNode] = {}
        self._add(roots, (), "")
        self.sections = tuple(self._by_key.values())
        self.params_types = frozenset(
            [node.params_type for node in self.sections if node.params_type is not None]
        )
        defaults = {
            type(node.default): node.default
            for node in reversed(self.sections)
            if node.default is not None
        }
        self.required_params = frozenset(
            [one for one in self.params_types - defaults.keys() if _has_required_field(one)]
        )
        for node in self.sections:
            if node.default is None and node.params_type is not None:
                node.default = defaults.get(node.params_type)
            node.section.check_tools(self.tool, node.path)

    def get_section(self, path: SectionPath) -> SectionNode | None:
        """The section at `path`, or `None` for an unknown one."""
        node = self._by_key.get(".".join(path))
        return node if node is not None and node.path == path else None

    def find(self, key: str) -> SectionNode | None:
        """The section that the dotted `key`, as a prompt shows it, stands for, or `None` for an
        unknown one.
        """
        return self._by_key.get(key)

    def ancestors(self, node: SectionNode) -> tuple[SectionNode, ...]:
        """The sections above `node`, from the root down."""
        return tuple(
            [self._by_key[".".join(node.path[:depth])] for depth in range(1, len(node.path))]
        )

    def tool(self, name: str) -> AnyTool | None:
        """The tool of that name, wherever in the tree it stands, or `None`."""
        node = self.get_section(self.tool_paths.get(name, ()))
        return None if node is None else next(tool for tool in node.tools if tool.name == name)

    def with_sections(self, sections: tuple[SectionNode, ...]) -> "RegistrySnapshot":
        """This tree with other nodes for the same sections; nothing is checked again."""
        changed = copy(self)
        changed.sections, changed._by_key = sections, {node.key: node for node in sections}  # noqa: SLF001 - its own class
        return changed

    def _add(self, sections: Iterable[AnySection], above: SectionPath, prefix: str) -> bool:
        """Adds the sections and all below them; whether these are enabled in every conversation."""
        unconditional = True
        for position, section in enumerate(sections, start=1):
            if not isinstance(section, Section):
                raise PromptValidationError(
                    f"sections holds {section!r}, which is no Section; reuse a prompt's parts through children"
                )
            tools_before = len(self.tool_paths)
            node = self._node(section, (*above, section.key), f"{prefix}{position}")
            self._by_key[node.key] = node
            node.unconditional = self._add(section.children, node.path, f"{node.number}.")
            node.end = len(self._by_key)
            node.tools_in_subtree = len(self.tool_paths) > tools_before
            unconditional = unconditional and node.unconditional and node.enabled is True
        return unconditional

    def _node(self, section: AnySection, path: SectionPath, number: str) -> SectionNode:
        key, tools = ".".join(path), tuple(section.tools())
        if other := self._by_key.get(key):
            same = f"reads the same as that of {other.path!r} once joined by dots"
            how = "is used twice" if other.path == path else same
            raise PromptValidationError(
                f"section path {path!r} {how}; give it another key", section_path=path
            )
        self._check_tools(tools, path)
        self.resources |= _resources(section, path)
        for text in section.templates():
            check_placeholders(text, section, path)
        heading = f"{'#' * (len(path) + 1)} {number}. {section.title.strip()}"
        examples = tool_examples(tools, path)
        text = section.body_text()
        is_template = type(section).render_body is MarkdownSection.render_body and not examples
        # a value there may bring blank lines, which come off
        is_template &= not text.startswith("$")
        return SectionNode(
            section=section,
            path=path,
            number=number,
            heading=heading,
            index=len(self._by_key),
            key=key,
            tools=tools,
            params_type=section.params_type,
            default=section.default_params,
            enabled=section.enabled is None or _condition(section, path, "enabled", bool),
            visibility=_condition(section, path, "visibility", SectionVisibility),
            examples=examples,
            whole=CompiledTemplate(f"{heading.replace('$', '$$')}\n\n{text}")
            if is_template
            else None,
        )

    def _check_tools(self, tools: tuple[AnyTool, ...], path: SectionPath) -> None:
        for tool in tools:
            if tool.name in RESERVED_TOOL_NAMES:
                raise PromptValidationError(
                    f"tool name {tool.name!r} is reserved for disclosure; rename the tool",
                    section_path=path,
                )
            if tool.name in self.tool_paths:
                raise PromptValidationError(
                    f"tool name {tool.name!r} is used twice, in section {'.'.join(self.tool_paths[tool.name])!r} and "
                    f"here; names are unique over the whole tree",
                    section_path=path,
                )
            self.tool_paths[tool.name] = path
            try:
                serde.json_schema(tool.params_type)
            except SerdeError as error:
                raise PromptValidationError(
                    f"tool {tool.name!r}: its params type has no JSON schema: {error}",
                    section_path=path,
                ) from error


# Any: params of every type.
def _has_required_field(kind: type[Any]) -> bool:
    return any(
        one.init and one.default is MISSING and one.default_factory is MISSING
        for one in fields(kind)
    )


def _resources(section: AnySection, path: SectionPath) -> ResourceRegistry:
    bound: object = section.resources()
    if not isinstance(bound, ResourceRegistry):
        raise PromptValidationError(
            f"resources() gave {bound!r}; return ResourceRegistry.of(…)", section_path=path
        )
    return bound


def check_placeholders(text: str, section: AnySection, path: SectionPath) -> None:
    """Raises `PromptValidationError` for a template that the section's params cannot fill."""
    template, known = compiled(text), field_names(section.params_type)
    if template.malformed is not None:
        near = text[template.malformed :][:10]
        raise PromptValidationError(
            f"a '$' starts no placeholder, at {near!r}; write '$$' for a dollar sign",
            section_path=path,
            placeholder="$",
        )
    if not template.names <= known:
        remedy = (
            f"write the section as {type(section).__name__}[Params](…)"
            if section.params_type is None
            else f"{section.params_type.__name__} has {', '.join(sorted(known)) or 'no fields'}"
        )
        raise PromptValidationError(
            f"no params field for a placeholder; {remedy}",
            section_path=path,
            placeholder=f"${min(template.names - known)}",
        )


_CONSTANTS = {"enabled": "True or False", "visibility": "SectionVisibility.FULL or .SUMMARY"}


def _condition[C](
    section: AnySection, path: SectionPath, which: str, constant: type[C]
) -> BoundSelector | C:
    condition = getattr(section, which)
    if isinstance(condition, constant):
        return condition
    try:
        selector = normalise(condition)
    except TypeError as error:
        constants = "" if callable(condition) else f", or {_CONSTANTS[which]}"
        raise PromptValidationError(f"{which}: {error}{constants}", section_path=path) from error
    if selector.needs_params and section.params_type is None:
        raise PromptValidationError(
            f"{which} takes params, but the section has none; write it as {type(section).__name__}[Params](…)",
            section_path=path,
        )
    return selector


def example_text(tool: AnyTool, index: int) -> str:
    """One example as a list item without its `-`.

    Raises `SerdeError` for values that JSON cannot hold.
    """
    example = tool.examples[index]
    given, answer = serde.dump_json(example.input), serde.dump_json(example.output)
    return f"{example.description}\n  - input: `{given}`\n  - output: `{answer}`"


def tool_examples(
    tools: tuple[AnyTool, ...],
    path: SectionPath,
    text: Callable[[AnyTool, int], str] = example_text,
) -> str:
    """The tools' examples as the Markdown that follows their section's body; empty without any."""
    blocks: list[str] = []
    for tool in tools:
        if tool.examples:
            try:
                lines = [f"- {text(tool, index)}" for index in range(len(tool.examples))]
            except SerdeError as error:
                raise PromptValidationError(
                    f"tool {tool.name!r}: an example fails: {error}", section_path=path
                ) from error
            blocks.append("\n".join([f"Examples of `{tool.name}`:\n", *lines]))
    return "\n\n".join(blocks)
