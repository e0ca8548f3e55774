"""Sections are the nodes of a prompt's tree, with text, tools, children and conditions.

A section checks its own arguments; `registry` checks the section's place in the tree.
"""

import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypedDict, Unpack

from ..generics import Parametrized
from ..protocols import DeclaredState, StateSlice, StateView
from ..record_types import RECORD_TYPES, is_instance, is_record_type, record_class
from ..resources import ResourceRegistry
from ..signatures import AnyFunction, with_remedies
from ..visibility import SectionPath, SectionVisibility
from .errors import PromptRenderError, PromptValidationError
from .text_template import compiled, dedented
from .tool import AnyTool, Tool

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from .approval_rules import Approval

    # Any: sections without params have no subscript.
    type _AnyParams = Any
    ParamsT = TypeVar("ParamsT", default=_AnyParams)
else:  # the default is for type checkers; the TypeVar of Python 3.12 does not support it
    from typing import TypeVar

    ParamsT = TypeVar("ParamsT")

__all__ = [
    "AnySection",
    "MarkdownSection",
    "ParamsByType",
    "ParamsType",
    "Section",
    "SectionArguments",
    "Selector",
]

_NO_RESOURCES = ResourceRegistry()
KEY = r"[a-z0-9][a-z0-9._-]{0,63}"

# Any: the positional and keyword arguments of a subclass's own constructor.
type _Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _SessionSelector[R](Protocol):
    def __call__(self, *, session: StateView) -> R: ...


class _ParamsSessionSelector[P, R](Protocol):
    def __call__(self, params: P, /, *, session: StateView) -> R: ...


type Selector[P, R] = (
    Callable[[], R] | Callable[[P], R] | _SessionSelector[R] | _ParamsSessionSelector[P, R]
)
"""A section's condition, called with no arguments, with params, with `session=`, or with both."""


class SectionArguments[P](TypedDict, total=False):
    """The arguments that all section types share, in addition to title, text and params."""

    key: str | None
    summary: str | None
    children: Iterable["AnySection"] | None
    tools: Iterable[AnyTool | AnyFunction] | None
    enabled: Selector[P, bool] | bool | None
    visibility: Selector[P, SectionVisibility] | SectionVisibility
    accepts_overrides: bool
    params_from: Callable[[StateView], P] | None
    state: Iterable[DeclaredState] | None
    approval: "Approval | None"


class Section(Parametrized, ABC, Generic[ParamsT]):
    """A part of a prompt; subclass it and implement `render_body`, or use `MarkdownSection`.

    `Section[Params]` sets the record type that the text and the conditions receive: a dataclass, a
    pydantic model or a TypedDict. `key` defaults to the title's slug and must match
    `[a-z0-9][a-z0-9._-]{0,63}`. `summary` is a `$field` template shown while the section is
    summarized. `params_from` creates the params from the session's state if none are bound. `state`
    declares slices for every session that evaluates the prompt. `approval` applies to the section's
    own tools that do not set `approval`; `"effects"` skips `"pure"` tools, which do not change
    anything. Raises `PromptValidationError` for arguments that cannot work in any prompt.
    """

    type_fields = ("params_type",)

    literal = False
    """Whether each `$` in the section's texts and overrides is a plain dollar sign."""

    _arguments: _Arguments  # the constructor's arguments, for `clone`

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # Any: subclasses have any signature
        section = super().__new__(cls)
        section._arguments = args, kwargs
        return section

    @with_remedies
    def __init__(
        self,
        *,
        title: str,
        key: str | None = None,
        summary: str | None = None,
        children: Iterable["AnySection"] | None = None,
        tools: Iterable[AnyTool | AnyFunction] | None = None,
        enabled: Selector[ParamsT, bool] | bool | None = None,
        visibility: Selector[ParamsT, SectionVisibility]
        | SectionVisibility = SectionVisibility.FULL,
        default_params: ParamsT | None = None,
        accepts_overrides: bool = True,
        params_type: type[ParamsT] | None = None,
        params_from: Callable[[StateView], ParamsT] | None = None,
        state: Iterable[DeclaredState] | None = None,
        approval: "Approval | None" = None,
    ) -> None:
        params_type = record_class(params_type or self.inherited_arguments.get("params_type"))
        self.title = title
        self.key = slug(title) if key is None else key
        self.summary = summary
        self.children = self._sequence("children", children)
        self.enabled = enabled
        self.visibility = visibility
        self.default_params = default_params
        self.accepts_overrides = accepts_overrides
        self.params_type: type[ParamsT] | None = params_type
        self.params_from = params_from
        self.state = tuple(map(record_class, self._sequence("state", state)))
        self.approval = approval
        self._tools = tuple(map(self._tool, self._sequence("tools", tools)))
        self._compile()
        sequences = {"children": self.children, "tools": self._tools, "state": self.state}
        for name, items in sequences.items():
            if isinstance(
                self._arguments[1].get(name), Iterator
            ):  # an iterator is consumed here, but `clone` needs the items
                self._arguments[1][name] = items

    def tools(self) -> tuple[AnyTool, ...]:
        """The section's own tools, in declaration order."""
        return self._tools

    def resources(self) -> ResourceRegistry:
        """The bindings that this section contributes for all tools of the prompt."""
        return _NO_RESOURCES

    def templates(self) -> tuple[str, ...]:
        """The texts whose placeholders are checked when a tree is built."""
        return () if self.summary is None else (self.summary,)

    def check_tools(self, tool: Callable[[str], AnyTool | None], path: SectionPath) -> None:
        """Raises `PromptValidationError` if the section does not match the tree's tools.

        `tool` returns a tool in the tree by name.
        """

    @abstractmethod
    def render_body(self, params: ParamsT, *, path: SectionPath) -> str:
        """Renders the section's text without its heading.

        Raises `PromptRenderError` if it cannot be rendered.
        """

    def body_text(self) -> str:
        """The text that an override of the body would replace; empty if code generates the body."""
        return ""

    def example_texts(self) -> tuple[str, ...]:
        """The texts of the task examples in the body; an override can replace each of them."""
        return ()

    def with_example_texts(self, texts: tuple[str, ...]) -> Self:
        """Returns this section with other `example_texts`."""
        return self

    def render_override(self, override_body: str, params: ParamsT, *, path: SectionPath) -> str:
        """Renders an override, a `$field` template that replaces the entire body."""
        return self.fill(self._text("override", override_body), params, path)

    def render_summary(self, params: ParamsT, *, path: SectionPath) -> str:
        """Renders the text shown while the section is summarized; empty if there is no summary."""
        return "" if self.summary is None else self.fill(self.summary, params, path)

    def fill(self, template: str, params: ParamsT, path: SectionPath) -> str:
        """Fills the placeholders in one of the section's texts; literal sections have none."""
        return template if self.literal else substitute(template, params, path)

    def problems(self) -> Iterable[tuple[str, str]]:
        """Yields problems with the section's source, each with a remedy.

        `wink check` reports these problems; a section written in code has none.
        """
        return ()

    def clone(self, **changes: object) -> Self:
        """Returns a new section with this section's constructor arguments and `changes`.

        The children are cloned, and the tools are shared. Among the arguments, lists, dicts, sets,
        tuples and dataclasses are copied, and other objects, such as clients, are shared. `changes`
        can also name attributes that the constructor sets itself, such as a title. Raises
        `PromptValidationError` for an unknown argument, and for an argument that was an iterator,
        because iterators cannot be read again.
        """
        parameters = signature(type(self).__init__).parameters
        positional, arguments = _by_name(parameters, self._arguments)
        attributes: dict[str, object] = {}
        for name, value in changes.items():
            attribute = "_tools" if name == "tools" else name
            if name in arguments or name in parameters:
                arguments[name] = value
            elif not name.startswith("_") and attribute in vars(self):
                attributes[attribute] = value
            else:
                raise self._refusal(f"cannot clone: {type(self).__name__} has no argument {name!r}")
        for name in arguments.keys() - changes.keys():
            if isinstance(arguments[name], Iterator):
                raise self._refusal(
                    f"cannot clone: {name} is an iterator that was already consumed; pass a list"
                )
            arguments[name] = _copied(arguments[name])
        clone = type(self)(*_copied(positional), **arguments)
        vars(clone).update(attributes)
        if "children" not in changes:  # the constructor may have used the same children again
            children = [
                child.clone() if child in self.children else child for child in clone.children
            ]
            clone.children = tuple(children)
        clone._compile()  # noqa: SLF001 - its own class
        return clone

    def __repr__(self) -> str:
        """Returns the key and the contents, without texts, even if `__init__` failed."""
        values = vars(self)
        parts = [type(self).__name__, reprlib.repr(values.get("key"))]
        if (params_type := values.get("params_type")) is not None:
            parts.append(f"params={getattr(params_type, '__name__', '?')}")
        if values.get("visibility") is SectionVisibility.SUMMARY:
            parts.append("visibility=summary")
        for label, attribute in (("tools", "_tools"), ("children", "children")):
            items = values.get(attribute) or ()
            names = [getattr(item, "name", getattr(item, "key", "?")) for item in items]
            parts += [f"{label}={reprlib.repr(names)}"] if names else []
        return f"<{' '.join(parts)}>"

    def _compile(self) -> None:
        """Dedents the texts and runs the checks that do not need a tree; runs again for clones."""
        title, key, params = self.title, self.key, self.params_type
        self.children = self._sequence("children", self.children)
        self._tools = tuple(map(self._tool, self._sequence("tools", self._tools)))
        if not isinstance(title, str) or not title.strip() or len(title.splitlines()) > 1:
            raise self._refusal(f"title must be one line of text, got {title!r}")
        if not isinstance(key, str) or re.fullmatch(KEY, key) is None:
            raise self._refusal(
                f"invalid key {key!r} of section {title!r}: pass key= with 1 to 64 characters "
                "from a-z, 0-9, '.', '_' and '-', and start with a letter or digit"
            )
        for child in self.children:
            if not isinstance(child, Section):
                raise self._refusal(
                    f"children must contain Section objects, got {child!r}; wrap text in "
                    "MarkdownSection(…), or add another prompt's sections instead of the prompt"
                )
        if params is not None and not is_record_type(params):
            raise self._refusal(f"params type must be {RECORD_TYPES}, got {params!r}")
        self._check_state()
        default = self.default_params
        if default is not None and (params is None or not is_instance(default, params)):
            if params is None:
                problem = f"requires a section written as {type(self).__name__}[Params](…)"
            else:
                problem = f"must be of type {params.__name__}"
            raise self._refusal(f"default_params {problem}, got {default!r}")
        if self.summary is not None:
            self.summary = self._text("summary", self.summary)

    def _check_state(self) -> None:
        if self.approval is not None:
            from .approval_rules import check_approval

            check_approval(f"section {self.key!r}", self.approval)
        for declared in self.state:
            if not isinstance(declared, type | StateSlice):
                raise self._refusal(
                    "state must contain classes or StateSlice objects with reducers, got "
                    f"{declared!r}"
                )
        source = self.params_from
        if source is not None and (self.params_type is None or not callable(source)):
            raise self._refusal(
                "params_from must be a function of the session, in a section written as "
                f"{type(self).__name__}[Params](…), got {source!r}"
            )

    def _tool(self, tool: AnyTool | AnyFunction) -> AnyTool:
        if isinstance(tool, Tool):
            return tool
        if not callable(tool):
            raise self._refusal(f"tools must contain functions and Tool objects, got {tool!r}")
        from .function_tools import as_tool

        try:
            return as_tool(tool)
        except PromptValidationError as error:
            raise self._refusal(error.message) from error

    def _sequence[Item](self, name: str, items: Iterable[Item] | None) -> tuple[Item, ...]:
        try:
            return () if items is None else tuple(items)
        except TypeError as error:
            message = f"{name} must be a list, such as {name}=[…], got {items!r}"
            raise self._refusal(message) from error

    def _text(self, name: str, text: object) -> str:
        if not isinstance(text, str):
            raise self._refusal(f"{name} must be a string with $field placeholders, got {text!r}")
        return text if self.literal else dedented(text)

    def _refusal(self, message: str) -> PromptValidationError:
        path = (self.key,) if isinstance(self.key, str) and self.key else None
        return PromptValidationError(message, section_path=path)


# Any: a tree contains sections with every params type.
type AnySection = Section[Any]
type ParamsType = type[Any]
type ParamsByType = Mapping[ParamsType, object]


class MarkdownSection(Section[ParamsT]):
    """A section whose body is a Markdown `template` with `$field` placeholders for its params.

    Common indentation and surrounding blank lines are removed from the template and the summary.
    `$$` is a dollar sign; values are inserted unchanged. If `literal` is true, the texts and their
    overrides are used unchanged, including each `$`. The other arguments are the same as for
    `Section`.
    """

    def __init__(
        self,
        *,
        title: str,
        template: str,
        default_params: ParamsT | None = None,
        params_type: type[ParamsT] | None = None,
        literal: bool = False,
        **others: Unpack[SectionArguments[ParamsT]],
    ) -> None:
        self.template, self.literal = template, literal
        super().__init__(
            title=title, default_params=default_params, params_type=params_type, **others
        )

    def templates(self) -> tuple[str, ...]:
        return (self.template, *super().templates())

    def body_text(self) -> str:
        return self.template if type(self).render_body is MarkdownSection.render_body else ""

    def render_body(self, params: ParamsT, *, path: SectionPath) -> str:
        """Fills the template from `params`.

        Raises `PromptRenderError` with the name of a placeholder that is missing from `params`.
        """
        return self.fill(self.template, params, path)

    def _compile(self) -> None:
        super()._compile()
        self.template = self._text("template", self.template)


def substitute(template: str, params: object, path: SectionPath) -> str:
    """Fills `template`; `PromptRenderError` names the path and the placeholder that failed."""
    try:
        return compiled(template).substitute(params)
    except (KeyError, ValueError) as error:
        placeholder = f"${error.args[0]}" if isinstance(error, KeyError) else "$"
        raise PromptRenderError(
            "Failed to render section template.", section_path=path, placeholder=placeholder
        ) from error


def _by_name(parameters: Mapping[str, Parameter], arguments: _Arguments) -> _Arguments:
    """Returns the arguments by name, unless the constructor has positional-only arguments."""
    positional, keywords = arguments
    after_self = list(parameters.values())[1:]
    by_position = {Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL}
    if any(parameter.kind in by_position for parameter in after_self):
        return positional, keywords.copy()
    names = [parameter.name for parameter in after_self]
    return (), dict(zip(names, positional, strict=False)) | keywords


def _copied(value: object) -> Any:  # Any: see `_Arguments`
    """Copies plain data and clones sections; returns any other object itself."""
    match value:
        case Section():
            return value.clone()
        case Tool():
            return value
        case list() | set() | tuple() | frozenset() if type(value) in {list, set, tuple, frozenset}:
            return type(value)(map(_copied, value))
        case dict() if type(value) is dict:
            return {key: _copied(item) for key, item in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            twin = copy(value)
            for field in fields(value):
                if hasattr(value, field.name):
                    object.__setattr__(twin, field.name, _copied(getattr(value, field.name)))
            return twin
        case _:
            return value


def slug(title: object) -> str:
    """Returns the default key for a title; empty if the title has no letters a-z."""
    if not isinstance(title, str):
        return ""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:64].strip("-")
