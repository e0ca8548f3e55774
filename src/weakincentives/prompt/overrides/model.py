"""Defines overrides as values: texts by id, their base texts, and the protocol for a store.

This module uses descriptors and ids, but not templates or sections.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, assert_never

from ...visibility import SectionPath
from ..errors import PromptValidationError

type TextKind = Literal["body", "summary", "task-example", "tool", "param", "tool-example"]


class TextId(NamedTuple):
    """Identifies one text in a prompt by its kind and its place.

    The place, `at`, is a dotted path, `path#index`, `tool`, `tool.param` or `tool#index`.
    """

    kind: TextKind
    at: str

    def __str__(self) -> str:
        return f"{self.kind} {self.at}"


class SectionOverride(NamedTuple):
    """Replaces the body, the summary or both of the section at `path`.

    Both texts can contain `$field` placeholders.
    """

    path: SectionPath
    body: str | None = None
    summary: str | None = None


class ToolOverride(NamedTuple):
    """Replaces a tool's description, and the descriptions of its params by field name.

    `tool_name` is required in a store, but can be omitted in a mapping by tool name.
    """

    description: str | None = None
    param_descriptions: Mapping[str, str] = MappingProxyType({})
    tool_name: str = ""


class ToolExampleOverride(NamedTuple):
    """Replaces one example of a tool, counted from 0.

    `text` is the list item in the prompt, without the `-`.
    """

    tool_name: str
    position: int
    text: str


class TaskExampleOverride(NamedTuple):
    """Replaces one example in a `TaskExamplesSection`, counted from 0; `text` omits the number."""

    path: SectionPath
    position: int
    text: str


type Override = SectionOverride | ToolOverride | ToolExampleOverride | TaskExampleOverride


def texts_of(override: Override) -> dict[TextId, str]:
    """Returns the texts in `override` by id.

    Raises `PromptValidationError` for an override without any text, and for a path that is a
    string.
    """
    texts: dict[TextId, str | None]
    if isinstance(getattr(override, "path", ()), str):  # its letters would be treated as keys
        raise PromptValidationError(f"{override!r}: path must be a tuple of keys, got a string")
    match override:
        case SectionOverride(path=path, body=body, summary=summary):
            key = ".".join(path)
            texts = {TextId("body", key): body, TextId("summary", key): summary}
        case ToolOverride(tool_name=""):
            texts = {}
        case ToolOverride(tool_name=name, description=description, param_descriptions=params):
            texts = {TextId("tool", name): description}
            texts |= {TextId("param", f"{name}.{param}"): text for param, text in params.items()}
        case ToolExampleOverride(tool_name=name, position=position, text=text):
            texts = {TextId("tool-example", f"{name}#{position}"): text}
        case TaskExampleOverride(path=path, position=position, text=text):
            texts = {TextId("task-example", f"{'.'.join(path)}#{position}"): text}
        case other:
            assert_never(other)
    replaced = {text_id: text for text_id, text in texts.items() if text is not None}
    if not replaced:
        raise PromptValidationError(
            f"{override!r} replaces nothing; pass a text, and for a tool its tool_name"
        )
    return replaced


def _accept(_text: str) -> None:
    """Accepts any text; used for examples and param descriptions."""


class OverridableText(NamedTuple):
    """A text in the code.

    `hash` covers all texts of the section or tool to which this text belongs; an example has its
    own hash. `check` raises `PromptValidationError` for a replacement that the prompt could not
    render.
    """

    text: str
    hash: str
    path: SectionPath
    accepts_overrides: bool
    check: Callable[[str], None] = _accept


class SectionDescriptor(NamedTuple):
    """A section and the hash of its body, summary and task examples."""

    path: SectionPath
    content_hash: str


class ToolDescriptor(NamedTuple):
    """A tool and the hash of its name, its description and its params schema."""

    path: SectionPath
    name: str
    contract_hash: str


class PromptDescriptor(NamedTuple):
    """Describes all sections and tools of a prompt, and each text that can be overridden.

    `hash` covers all of them.
    """

    ns: str
    key: str
    sections: tuple[SectionDescriptor, ...]
    tools: tuple[ToolDescriptor, ...]
    texts: Mapping[TextId, OverridableText]
    hash: str

    def check(self, text_id: TextId, text: str) -> None:
        """Raises `PromptValidationError` for a text that the prompt could not render."""
        if text_id in self.texts:
            self.texts[text_id].check(text)


class HasDescriptor(Protocol):
    """A template or a prompt, for a store."""

    @property
    def descriptor(self) -> PromptDescriptor: ...


class StaleOverride(NamedTuple):
    """A stored text that does not apply.

    The text in the code was changed or removed, or does not accept overrides (`"fixed"`). `base` is
    the text for which the override was written, and `current` is the current text in the code.
    """

    id: TextId
    reason: Literal["changed", "gone", "fixed"]
    base: str
    text: str
    current: str | None


class PromptOverride(NamedTuple):
    """The stored texts for one prompt and tag: texts that apply, and stale texts.

    An empty override is falsy.
    """

    tag: str
    texts: Mapping[TextId, str] = MappingProxyType({})
    stale: tuple[StaleOverride, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.texts or self.stale)


class OverridesTag(NamedTuple):
    """Identifies one set of stored overrides."""

    ns: str
    key: str
    tag: str = "latest"


class PromptOverridesStore(Protocol):
    """Stores overrides by prompt and tag.

    Raises `OverridesStoreError` for overrides that cannot be read or written.
    """

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride:
        """Returns the stored texts; texts that were written for different code are stale."""
        ...

    def upsert(
        self, descriptor: PromptDescriptor, override: Override, tag: str = "latest"
    ) -> tuple[StaleOverride, ...]:
        """Stores the texts in `override`, replacing texts with the same ids.

        Returns the stored texts that do not apply. Raises `PromptValidationError` for a text that
        the prompt could not render.
        """
        ...

    def delete(self, stored: OverridesTag, text: TextId | None = None) -> bool:
        """Deletes one text, or all texts by default; returns whether anything was stored."""
        ...

    def seed(self, prompt: HasDescriptor, tag: str = "latest") -> PromptOverride:
        """Stores the texts in the code that are not stored yet, ready to be edited."""
        ...

    def list(self) -> tuple[OverridesTag, ...]:
        """Lists the stored sets of overrides, sorted."""
        ...
