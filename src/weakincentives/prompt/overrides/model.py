"""What overrides are, as values: texts by id, what they were written against, and what a store does
with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, assert_never

from ...visibility import SectionPath
from ..errors import PromptValidationError

if TYPE_CHECKING:
    from ..prompt import Prompt
    from ..sections import AnySection
    from ..template import PromptTemplate

type TextKind = Literal["body", "summary", "task-example", "tool", "param", "tool-example"]


class TextId(NamedTuple):
    """Which text of a prompt: its kind, and the dotted path, `path#index`, `tool`, `tool.param` or
    `tool#index`.
    """

    kind: TextKind
    at: str

    def __str__(self) -> str:
        return f"{self.kind} {self.at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionOverride:
    """Another body, another summary or both for the section at `path`; `$field` placeholders are
    filled in both.
    """

    path: SectionPath
    body: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverride:
    """Other texts for a tool: its description, and the descriptions of its params by field name.

    A store needs `tool_name`; in a mapping by name it may be left out.
    """

    description: str | None = None
    param_descriptions: Mapping[str, str] = field(default_factory=dict[str, str])
    tool_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolExampleOverride:
    """Another text for one example of a tool, counted from 0: the list item that the prompt shows,
    without its `-`.
    """

    tool_name: str
    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskExampleOverride:
    """Another text for one example of a `TaskExamplesSection`, counted from 0, without its number."""

    path: SectionPath
    index: int
    text: str


type Override = SectionOverride | ToolOverride | ToolExampleOverride | TaskExampleOverride


def texts_of(override: Override) -> dict[TextId, str]:
    """The texts that `override` brings. Raises `PromptValidationError` when it is made wrongly."""
    texts: dict[TextId, str | None] = {}
    if isinstance(getattr(override, "path", ()), str):  # its letters would pass for keys
        raise PromptValidationError(f"{override!r}: path is a text; write it as a tuple of keys")
    match override:
        case SectionOverride(path=path, body=body, summary=summary):
            texts = {
                TextId("body", ".".join(path)): body,
                TextId("summary", ".".join(path)): summary,
            }
        case ToolOverride(tool_name=name, description=description, param_descriptions=params):
            texts = {TextId("tool", name): description} if name else {}
            texts |= {
                TextId("param", f"{name}.{param}"): text for param, text in params.items() if name
            }
        case ToolExampleOverride(tool_name=name, index=index, text=text):
            texts = {TextId("tool-example", f"{name}#{index}"): text}
        case TaskExampleOverride(path=path, index=index, text=text):
            texts = {TextId("task-example", f"{'.'.join(path)}#{index}"): text}
        case other:
            assert_never(other)
    found = {one: text for one, text in texts.items() if text is not None}
    if not found:
        raise PromptValidationError(
            f"{override!r} replaces nothing; give it a text, and a tool its tool_name"
        )
    return found


@dataclass(frozen=True, slots=True)
class OverridableText:
    """A text as the code has it. `hash` stands for all that an author sees of the part that it
    belongs to.

    `section` has the params whose fields an override may use as placeholders; `None` where `$`
    means nothing.
    """

    text: str
    hash: str
    path: SectionPath
    accepts_overrides: bool
    section: "AnySection | None" = None


class SectionDescriptor(NamedTuple):
    """A section by the hash of its body, summary and task examples."""

    path: SectionPath
    content_hash: str


class ToolDescriptor(NamedTuple):
    """A tool by the hash of what a model is told: name, description and the schema of its params."""

    path: SectionPath
    name: str
    contract_hash: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PromptDescriptor:
    """All that an author can see of a prompt, and each text that an override can replace; `hash`
    stands for it all.
    """

    ns: str
    key: str
    sections: tuple[SectionDescriptor, ...]
    tools: tuple[ToolDescriptor, ...]
    texts: Mapping[TextId, OverridableText]
    hash: str


@dataclass(frozen=True, slots=True)
class StaleOverride:
    """A stored text that does not apply: the code's own has changed, is gone, or accepts no
    overrides.

    `base` is what it was written against, `current` what the code has now.
    """

    id: TextId
    reason: Literal["changed", "gone", "fixed"]
    base: str
    text: str
    current: str | None


@dataclass(frozen=True, slots=True)
class PromptOverride:
    """What a store holds for one prompt and tag: the texts that apply, and what no longer does.
    False when empty.
    """

    tag: str
    texts: Mapping[TextId, str] = field(default_factory=dict[TextId, str])
    stale: tuple[StaleOverride, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.texts or self.stale)


class OverridesTag(NamedTuple):
    """One set of stored overrides."""

    ns: str
    key: str
    tag: str = "latest"


class PromptOverridesStore(Protocol):
    """Keeps overrides by prompt and tag.

    Raises `OverridesStoreError` for what cannot be read or written.
    """

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride:
        """What is stored, held against the prompt as its code has it now."""
        ...

    def upsert(
        self, descriptor: PromptDescriptor, override: Override, tag: str = "latest"
    ) -> tuple[StaleOverride, ...]:
        """Stores the texts of `override`, each in place of one of the same id; gives those that do
        not apply.

        Raises `PromptValidationError` for a text that the prompt could not be rendered with.
        """
        ...

    def delete(self, stored: OverridesTag, text: TextId | None = None) -> bool:
        """Forgets one text, by default all of them; whether there was any."""
        ...

    # Any: prompts of every output type.
    def seed(
        self, prompt: "PromptTemplate[Any] | Prompt[Any]", tag: str = "latest"
    ) -> PromptOverride:
        """Stores the code's own texts where none are stored, ready to be edited."""
        ...

    def list(self) -> tuple[OverridesTag, ...]:
        """What is stored, sorted."""
        ...
