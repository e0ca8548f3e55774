"""Sections: the nodes of a prompt's tree. A section owns its text, tools, children and conditions.

What a section says is checked where it can be seen first: by itself here, against its place in the tree in `registry`.
"""

import copy
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack

from ..ports import StateView
from ..resources import ResourceRegistry
from ..specialised import Specialised
from ..visibility import SectionPath, SectionVisibility
from .errors import PromptRenderError, PromptValidationError
from .markdown import compiled
from .tool import AnyTool, Tool

if TYPE_CHECKING:
    from typing import Protocol, TypedDict

    from typing_extensions import TypeVar

    # Any: sections without params are written without a subscript.
    ParamsT = TypeVar("ParamsT", default=Any)

    class SectionArguments[P](TypedDict, total=False):
        """What sections of all kinds can be given beside title, text and params; see `Section.__init__`."""

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


type Selector[P, R] = Callable[[], R] | Callable[[P], R] | _SessionSelector[R] | _ParamsSessionSelector[P, R]
"""A condition of a section: it takes nothing, its params, the session (by keyword), or both."""


class Section(Specialised, ABC, Generic[ParamsT]):
    """A part of a prompt: subclass it and write `render_body`, or use `MarkdownSection`.

    `Section[Params]` fixes the dataclass that its text and selectors are given. `key` is by default the title's slug
    and matches `[a-z0-9][a-z0-9._-]{0,63}`. `summary` is a `$field` template shown while the section is summarized.
    Raises `PromptValidationError` for what cannot work in any prompt.
    """

    type_fields = ("params_type",)

    def __init__(
        self,
        *,
        title: str,
        key: str | None = None,
        summary: str | None = None,
        children: Iterable["AnySection"] | None = None,
        tools: Iterable[AnyTool] | None = None,
        enabled: Selector[ParamsT, bool] | bool | None = None,
        visibility: Selector[ParamsT, SectionVisibility] | SectionVisibility = SectionVisibility.FULL,
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
        self.params_type: type[ParamsT] | None = params_type or self.inherited_arguments.get("params_type")
        self._tools = self._sequence("tools", tools)
        self._compile()

    def tools(self) -> tuple[AnyTool, ...]:
        """The tools of this section itself, in order of declaration."""
        return self._tools

    def resources(self) -> ResourceRegistry:
        """What this section itself binds for the tools of the whole prompt; override it to contribute."""
        return _NO_RESOURCES

    def templates(self) -> tuple[str, ...]:
        """Every template text of this section; their placeholders are checked when a tree is built."""
        return () if self.summary is None else (self.summary,)

    def check_tools(self, tool: Callable[[str], AnyTool | None], path: SectionPath) -> None:
        """Raises `PromptValidationError` for what does not fit the tree's tools, which `tool` gives by name."""

    @abstractmethod
    def render_body(self, params: ParamsT, *, path: SectionPath) -> str:
        """The section's text without its heading. Raises `PromptRenderError` when it cannot be made."""

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
        """The text that stands for the whole body when an override exists; `$field` placeholders are filled."""
        return substitute(self._text("override", override_body), params, path)

    def render_summary(self, params: ParamsT, *, path: SectionPath) -> str:
        """The text shown while the section is summarized; empty when it has no summary."""
        return "" if self.summary is None else substitute(self.summary, params, path)

    def clone(self, **changes: Any) -> Self:  # Any: constructor arguments of whatever type; `_compile` checks them
        """A copy with `changes`, constructor arguments by keyword; its children are cloned too, tools are shared.

        Raises `PromptValidationError` for an unknown argument.
        """
        clone = copy.copy(self)
        clone.children = tuple(child.clone() for child in self.children)
        for name, value in changes.items():
            attribute = "_tools" if name == "tools" else name
            if name.startswith("_") or attribute not in vars(self):
                raise PromptValidationError(
                    f"clone: a {type(self).__name__} has no argument {name!r}", section_path=(self.key,)
                )
            setattr(clone, attribute, value)
        clone._compile()  # noqa: SLF001 - its own class
        return clone

    def __repr__(self) -> str:
        """The key and what the section holds, without its texts; it works where the construction has failed, too."""
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
        if not isinstance(self.title, str) or not self.title.strip() or len(self.title.splitlines()) > 1:
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
                raise self._refusal(f"children holds {child!r}, which is no Section; reuse a prompt's sections instead")
        if self.params_type is not None and not (isinstance(self.params_type, type) and is_dataclass(self.params_type)):
            raise self._refusal(f"params type {self.params_type!r} is no dataclass; declare the params as a dataclass")
        if self.default_params is not None and not isinstance(self.default_params, self.params_type or ()):
            wanted = "no params" if self.params_type is None else self.params_type.__name__
            raise self._refusal(f"default_params is {self.default_params!r}, and the section takes {wanted}; give that")
        if self.summary is not None:
            self.summary = self._text("summary", self.summary)

    def _sequence[Item](self, what: str, items: Iterable[Item] | None) -> tuple[Item, ...]:
        """`items` as a tuple, which is empty for `None`."""
        try:
            return () if items is None else tuple(items)
        except TypeError as error:
            raise self._refusal(f"{what} is {items!r}, which is no list; write {what}=[…]") from error

    def _text(self, what: str, text: object) -> str:
        """`text` dedented and stripped."""
        if not isinstance(text, str):
            raise self._refusal(f"{what} {text!r} is no text; write a string with $field placeholders")
        from textwrap import dedent  # on first use: its patterns are slow to compile

        return dedent(text).strip()

    def _refusal(self, message: str) -> PromptValidationError:
        place = (self.key,) if isinstance(self.key, str) and self.key else None
        return PromptValidationError(message, section_path=place)


# Any: a tree holds sections of all params types.
type AnySection = Section[Any]


class MarkdownSection(Section[ParamsT]):
    """A section whose body is a Markdown `template` with `$field` placeholders, filled from its params.

    Template and summary are dedented and stripped. `$$` is a dollar sign; values are put in as they are. The other
    arguments are those of `Section`.
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
        super().__init__(title=title, default_params=default_params, params_type=params_type, **others)

    def templates(self) -> tuple[str, ...]:
        return (self.template, *super().templates())

    def body_text(self) -> str:
        return self.template if type(self).render_body is MarkdownSection.render_body else ""

    def render_body(self, params: ParamsT, *, path: SectionPath) -> str:
        """The template filled from `params`. Raises `PromptRenderError` naming a placeholder that `params` lacks."""
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


def _slug(title: object) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:64].strip("-") if isinstance(title, str) else ""
