"""Sections: the nodes of a prompt's tree. A section owns its text, tools, children and conditions.

What a section says is checked where it can be seen first: by itself here, against its place in the
tree in `registry`.
"""

import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack

from ..generics import Parametrized
from ..protocols import StateView
from ..resources import ResourceRegistry
from ..visibility import SectionPath, SectionVisibility
from .errors import PromptRenderError, PromptValidationError
from .text_template import compiled
from .tool import AnyTool, Tool

if TYPE_CHECKING:
    from typing import Protocol, TypedDict

    from typing_extensions import TypeVar

    # Any: sections without params are written without a subscript.
    ParamsT = TypeVar("ParamsT", default=Any)

    class SectionArguments[P](TypedDict, total=False):
        """What sections of all kinds can be given beside title, text and params; see
        `Section.__init__`.
        """

        key: str | None
        summary: str | None
        children: Iterable["AnySection"] | None
        tools: Iterable[AnyTool] | None
        enabled: "Selector[P, bool] | bool | None"
        visibility: "Selector[P, SectionVisibility] | SectionVisibility"
        accepts_overrides: bool

    class _SessionSelector[R](Protocol):
        def __call__(self, *, session: StateView) -> R: ...

    class _ParamsSessionSelector[P, R](Protocol):
        def __call__(self, params: P, /, *, session: StateView) -> R: ...

else:  # the default is for type checkers; 3.12's own TypeVar knows none
    from typing import TypeVar

    ParamsT = TypeVar("ParamsT")

__all__ = ["AnySection", "MarkdownSection", "Section", "Selector"]

_NO_RESOURCES = ResourceRegistry()
KEY = r"[a-z0-9][a-z0-9._-]{0,63}"


type Selector[P, R] = (
    Callable[[], R] | Callable[[P], R] | _SessionSelector[R] | _ParamsSessionSelector[P, R]
)
"""A condition of a section: it takes nothing, its params, the session (by keyword), or both."""


class Section(Parametrized, ABC, Generic[ParamsT]):
    """A part of a prompt: subclass it and write `render_body`, or use `MarkdownSection`.

    `Section[Params]` fixes the dataclass that its text and selectors are given. `key` is by default
    the title's slug and matches `[a-z0-9][a-z0-9._-]{0,63}`. `summary` is a `$field` template shown
    while the section is summarized. Raises `PromptValidationError` for what cannot work in any
    prompt.
    """

    type_fields = ("params_type",)

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]  # Any: as in `__new__`

    # Any: the arguments of a subclass's own constructor
    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        section = super().__new__(cls)
        section._arguments = args, kwargs  # what `clone` builds another one from
        return section

    def __init__(
        self,
        *,
        title: str,
        key: str | None = None,
        summary: str | None = None,
        children: Iterable["AnySection"] | None = None,
        tools: Iterable[AnyTool] | None = None,
        enabled: Selector[ParamsT, bool] | bool | None = None,
        visibility: Selector[ParamsT, SectionVisibility]
        | SectionVisibility = SectionVisibility.FULL,
        default_params: ParamsT | None = None,
        accepts_overrides: bool = True,
        params_type: type[ParamsT] | None = None,
    ) -> None:
        self.title = title
        self.key = _slug(title) if key is None else key
        self.summary = summary
        self.children = self._sequence("children", children)
        self.enabled = enabled
        self.visibility = visibility
        self.default_params = default_params
        self.accepts_overrides = accepts_overrides
        self.params_type: type[ParamsT] | None = params_type or self.inherited_arguments.get(
            "params_type"
        )
        self._tools = self._sequence("tools", tools)
        self._compile()
        for name, items in (("children", self.children), ("tools", self._tools)):
            # for `clone`, since it is used up
            if isinstance(self._arguments[1].get(name), Iterator):
                self._arguments[1][name] = items

    def tools(self) -> tuple[AnyTool, ...]:
        """The tools of this section itself, in order of declaration."""
        return self._tools

    def resources(self) -> ResourceRegistry:
        """What this section itself binds for the tools of the whole prompt; override it to
        contribute.
        """
        return _NO_RESOURCES

    def templates(self) -> tuple[str, ...]:
        """Every template text of this section; their placeholders are checked when a tree is built."""
        return () if self.summary is None else (self.summary,)

    def check_tools(self, tool: Callable[[str], AnyTool | None], path: SectionPath) -> None:
        """Raises `PromptValidationError` for what does not fit the tree's tools, which `tool` gives
        by name.
        """

    @abstractmethod
    def render_body(self, params: ParamsT, *, path: SectionPath) -> str:
        """The section's text without its heading.

        Raises `PromptRenderError` when it cannot be made.
        """

    def body_text(self) -> str:
        """The text that an override of the body stands for; empty where code writes the body."""
        return ""

    def example_texts(self) -> tuple[str, ...]:
        """The texts of the task examples that the body shows, each of which can be overridden."""
        return ()

    def with_example_texts(self, texts: tuple[str, ...]) -> Self:
        """This section showing other `example_texts`."""
        return self

    def render_override(self, override_body: str, params: ParamsT, *, path: SectionPath) -> str:
        """The text that stands for the whole body when an override exists; `$field` placeholders
        are filled.
        """
        return substitute(self._text("override", override_body), params, path)

    def render_summary(self, params: ParamsT, *, path: SectionPath) -> str:
        """The text shown while the section is summarized; empty when it has no summary."""
        return "" if self.summary is None else substitute(self.summary, params, path)

    # Any: constructor arguments of whatever type; `_compile` checks them
    def clone(self, **changes: Any) -> Self:
        """A section of its own, built anew from the constructor arguments of this one and
        `changes`, by keyword.

        Children are cloned too and tools are shared. Lists, dicts, sets, tuples and dataclasses
        among the arguments are copied, other objects, such as clients, are shared. What the
        constructor sets by itself, such as a title, can be changed as well. Raises
        `PromptValidationError` for an unknown argument, and where the section was given an
        iterator, which cannot be read again.
        """
        parameters = signature(type(self).__init__).parameters
        positional, arguments = _by_name(parameters, *self._arguments)
        attributes: dict[str, Any] = {}  # Any: as above
        for name, value in changes.items():
            if name in arguments or name in parameters:
                arguments[name] = value
            elif not name.startswith("_") and ("_tools" if name == "tools" else name) in vars(self):
                attributes["_tools" if name == "tools" else name] = value
            else:
                raise PromptValidationError(
                    f"clone: a {type(self).__name__} has no argument {name!r}",
                    section_path=(self.key,),
                )
        for name in arguments.keys() - changes.keys():
            if isinstance(arguments[name], Iterator):
                raise self._refusal(
                    f"clone: {name} was given as an iterator, which is used up; give a list of it"
                )
            arguments[name] = _copied(arguments[name])
        clone = type(self)(*_copied(positional), **arguments)
        vars(clone).update(attributes)
        if "children" not in changes:  # the constructor may have used the same ones again
            clone.children = tuple(
                [one.clone() if one in self.children else one for one in clone.children]
            )
        clone._compile()  # noqa: SLF001 - its own class
        return clone

    def __repr__(self) -> str:
        """The key and what the section holds, without its texts; it works where the construction
        has failed, too.
        """
        has = vars(self)
        parts = [type(self).__name__, reprlib.repr(has.get("key"))]
        if has.get("params_type") is not None:
            parts.append(f"params={getattr(self.params_type, '__name__', '?')}")
        if has.get("visibility") is SectionVisibility.SUMMARY:
            parts.append("visibility=summary")
        for label, held in (("tools", has.get("_tools")), ("children", has.get("children"))):
            names = [getattr(item, "name", getattr(item, "key", "?")) for item in held or ()]
            parts += [f"{label}={reprlib.repr(names)}"] if names else []
        return f"<{' '.join(parts)}>"

    def _compile(self) -> None:
        """Checks what can be seen without the tree and dedents the texts; runs again for a clone."""
        self.children = self._sequence("children", self.children)
        self._tools = self._sequence("tools", self._tools)
        if (
            not isinstance(self.title, str)
            or not self.title.strip()
            or len(self.title.splitlines()) > 1
        ):
            raise self._refusal(f"title {self.title!r} is not valid; use one line of text")
        if not isinstance(self.key, str) or re.fullmatch(KEY, self.key) is None:
            raise self._refusal(
                f"key {self.key!r} of section {self.title!r} is not valid; give it key= with 1 to 64 of a-z, 0-9, "
                f"'.', '_' and '-', the first a letter or digit"
            )
        for tool in self._tools:
            if not isinstance(tool, Tool):
                raise self._refusal(
                    f"tools holds {tool!r}, which is no Tool; wrap a function as Tool(name=…, handler=…)"
                )
        for child in self.children:
            if not isinstance(child, Section):
                raise self._refusal(
                    f"children holds {child!r}, which is no Section; reuse a prompt's sections instead"
                )
        if self.params_type is not None and not (
            isinstance(self.params_type, type) and is_dataclass(self.params_type)
        ):
            raise self._refusal(
                f"params type {self.params_type!r} is no dataclass; declare the params as a dataclass"
            )
        if self.default_params is not None and not isinstance(
            self.default_params, self.params_type or ()
        ):
            wanted = "no params" if self.params_type is None else self.params_type.__name__
            raise self._refusal(
                f"default_params is {self.default_params!r}, and the section takes {wanted}; give that"
            )
        if self.summary is not None:
            self.summary = self._text("summary", self.summary)

    def _sequence[Item](self, what: str, items: Iterable[Item] | None) -> tuple[Item, ...]:
        """`items` as a tuple, which is empty for `None`."""
        try:
            return () if items is None else tuple(items)
        except TypeError as error:
            raise self._refusal(
                f"{what} is {items!r}, which is no list; write {what}=[…]"
            ) from error

    def _text(self, what: str, text: object) -> str:
        """`text` dedented and stripped."""
        if not isinstance(text, str):
            raise self._refusal(
                f"{what} {text!r} is no text; write a string with $field placeholders"
            )
        from textwrap import dedent  # on first use: its patterns are slow to compile

        return dedent(text).strip()

    def _refusal(self, message: str) -> PromptValidationError:
        place = (self.key,) if isinstance(self.key, str) and self.key else None
        return PromptValidationError(message, section_path=place)


# Any: a tree holds sections of all params types.
type AnySection = Section[Any]


class MarkdownSection(Section[ParamsT]):
    """A section whose body is a Markdown `template` with `$field` placeholders, filled from its
    params.

    Template and summary are dedented and stripped. `$$` is a dollar sign; values are put in as they
    are. The other arguments are those of `Section`.
    """

    def __init__(
        self,
        *,
        title: str,
        template: str,
        default_params: ParamsT | None = None,
        params_type: type[ParamsT] | None = None,
        **others: "Unpack[SectionArguments[ParamsT]]",
    ) -> None:
        self.template = template
        super().__init__(
            title=title, default_params=default_params, params_type=params_type, **others
        )

    def templates(self) -> tuple[str, ...]:
        return (self.template, *super().templates())

    def body_text(self) -> str:
        return self.template if type(self).render_body is MarkdownSection.render_body else ""

    def render_body(self, params: ParamsT, *, path: SectionPath) -> str:
        """The template filled from `params`.

        Raises `PromptRenderError` naming a placeholder that `params` lacks.
        """
        return substitute(self.template, params, path)

    def _compile(self) -> None:
        super()._compile()
        self.template = self._text("template", self.template)


def substitute(template: str, params: object, path: SectionPath) -> str:
    """Fills `template`; what does not fit becomes a `PromptRenderError` with path and placeholder."""
    try:
        return compiled(template).substitute(params)
    except (KeyError, ValueError) as error:
        placeholder = f"${error.args[0]}" if isinstance(error, KeyError) else "$"
        raise PromptRenderError(
            "Failed to render section template.", section_path=path, placeholder=placeholder
        ) from error


# Any: constructor arguments of every type.
def _by_name(
    parameters: Mapping[str, Parameter], positional: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments, each by its name unless the constructor takes some by position alone."""
    after_self = list(parameters.values())[1:]
    if any(one.kind in {Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL} for one in after_self):
        return positional, keywords.copy()
    return (), {
        one.name: value for one, value in zip(after_self, positional, strict=False)
    } | keywords


def _copied(value: Any) -> Any:
    """Plain data as a copy, sections as their clones, and any other object itself."""
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
            for one in [one for one in fields(value) if hasattr(value, one.name)]:
                object.__setattr__(twin, one.name, _copied(getattr(value, one.name)))
            return twin
        case _:
            return value


def _slug(title: object) -> str:
    return (
        re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:64].strip("-")
        if isinstance(title, str)
        else ""
    )
