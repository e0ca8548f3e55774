"""Renders a template's tree with params to a `RenderedPrompt`, the value that adapters need."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..content import Document, Image
from ..generics import Parametrized
from ..protocols import StateView
from ..visibility import SectionDecisions, SectionPath, SectionVisibility
from .context import BoundPrompt
from .errors import PromptRenderError
from .output import Container, StructuredOutputConfig
from .registry import RegistrySnapshot
from .sections import ParamsByType, ParamsType
from .tool import AnyTool
from .walk import EMPTY, Disclosure, PromptView, VisibleSections, session_overrides

if TYPE_CHECKING:
    from ..limits import Deadline
    from .overrides.model import PromptDescriptor, PromptOverride, TextId, ToolOverride

__all__ = ["AnyRenderedPrompt", "PromptRenderer", "RenderedPrompt", "Span"]


class Span(NamedTuple):
    """The range `text[start:end]` of the section at `path`, without its children."""

    path: SectionPath
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RenderedPrompt[Out](Parametrized):
    """A prompt's text and tools at one moment.

    `tool_param_descriptions` holds overridden texts by tool and field, also for tools that are not
    open yet. `overrides` are those that a store held for the prompt. `sections` holds the visible
    sections and how each is shown, `section_texts` the text of each. `media` has the images and
    documents whose markers stand in the text.
    """

    text: str
    tools: tuple[AnyTool, ...]
    structured_output: StructuredOutputConfig[Out] | None
    tool_param_descriptions: Mapping[str, Mapping[str, str]] = EMPTY
    deadline: "Deadline | None" = None
    prompt: BoundPrompt[Out] | None = None
    overrides: "PromptOverride | None" = None
    view: PromptView = field(repr=False)
    sections: VisibleSections = field(repr=False)
    section_texts: tuple[str, ...] = field(repr=False)
    media: tuple[Image | Document, ...] = ()

    def __repr__(self) -> str:
        tools = reprlib.repr([tool.name for tool in self.tools])
        return f"<RenderedPrompt {self._label} characters={len(self.text)} tools={tools}>"

    def _repr_markdown_(self) -> str:
        """Shows text and tools in a notebook."""
        from ..displays import code_block, code_span

        tools = ", ".join([code_span(tool.name) for tool in self.tools]) or "none"
        text = code_block(self.text)
        return f"**Prompt** {code_span(self._label)}\n\n{text}\n\nTools: {tools}"

    @property
    def _label(self) -> str:
        from ..displays import one_line

        return "unnamed" if self.prompt is None else one_line(f"{self.prompt.ns}/{self.prompt.key}")

    @property
    def output_type(self) -> type[Any] | None:  # Any: see StructuredOutputConfig.item_type
        """`T` for `T` and for `list[T]`; `None` when the prompt asks for text."""
        return None if self.structured_output is None else self.structured_output.item_type

    @property
    def container(self) -> Container | None:
        """`"object"`, `"array"`, or `None` when the prompt asks for text."""
        return None if self.structured_output is None else self.structured_output.container

    @property
    def descriptor(self) -> "PromptDescriptor | None":
        """The texts and hashes of the prompt's code; `None` without a prompt."""
        return None if self.prompt is None else self.prompt.descriptor

    @property
    def registry(self) -> RegistrySnapshot:
        """The tree that was rendered, with overridden texts in place."""
        return self.view.registry

    @property
    def visibility(self) -> Mapping[SectionPath, SectionVisibility]:
        """How each visible section is shown, by path; hidden and disabled sections are absent."""
        return {node.path: visibility for node, visibility in self.sections.items()}

    @property
    def missing_params(self) -> Mapping[SectionPath, ParamsType]:
        """The sections that cannot be opened, with the types of their unbound params."""
        return self.view.missing_params(self.sections)

    @property
    def tool_paths(self) -> Mapping[str, SectionPath]:
        """The section of each tool; the disclosure tools belong to no section."""
        paths = self.registry.tool_paths
        return {tool.name: paths[tool.name] for tool in self.tools if tool.name in paths}

    @property
    def spans(self) -> tuple[Span, ...]:
        """The part of `text` that belongs to each visible section, in order."""
        spans: list[Span] = []
        start = 0
        for node, text in zip(self.sections, self.section_texts, strict=True):
            spans.append(Span(node.path, start, start + len(text)))
            start += len(text) + len(_SEPARATOR)
        return tuple(spans)


_SEPARATOR = "\n\n"


class PromptRenderer[Out](Parametrized):
    """Renders one tree of sections."""

    def __init__(
        self,
        registry: RegistrySnapshot,
        structured_output: StructuredOutputConfig[Out] | None = None,
        disclosure: Disclosure = Disclosure.READ,
        *,
        closable: bool = False,
    ) -> None:
        self.registry = registry
        self.structured_output = structured_output
        self.disclosure = disclosure
        self.closable = closable

    def render(
        self,
        *,
        param_lookup: ParamsByType,
        overrides: Mapping[SectionPath, str] | None = None,
        tool_overrides: "Mapping[str, ToolOverride] | None" = None,
        stored: "PromptOverride | None" = None,
        session: StateView | None = None,
        visibility_overrides: Mapping[SectionPath, SectionVisibility] | None = None,
        decisions: SectionDecisions | None = None,
        deadline: "Deadline | None" = None,
        prompt: BoundPrompt[Out] | None = None,
    ) -> RenderedPrompt[Out]:
        """Renders the tree with the params in `param_lookup`.

        `overrides` are section bodies by path and `tool_overrides` texts by tool name; both beat
        the `stored` texts. `visibility_overrides` beat those of the session, which beat the
        sections' own visibility. A continued conversation passes its `decisions`, which replace all
        of these. Raises `PromptRenderError` with the section's path.
        """
        if decisions is None:
            remembered = session_overrides(session)
            visible = {**remembered, **visibility_overrides} if visibility_overrides else remembered
            decisions = SectionDecisions(visible, remembered)
        if decisions.overrides:
            _check_overrides(decisions.overrides)
        registry, descriptions = self._with_texts(
            overrides or EMPTY, tool_overrides or EMPTY, EMPTY if stored is None else stored.texts
        )
        view = PromptView(
            registry=registry,
            params=param_lookup,
            decisions=decisions,
            session=session,
            disclosure=self.disclosure,
            closable=self.closable,
        )
        sections = view.visible_sections()
        section_texts, tools, summarized = view.render(sections)
        if summarized or self.closable:
            # imported here, since it takes a tenth of the package's import and some prompts never
            # need it
            from .progressive_disclosure import disclosure_tools

            tools += disclosure_tools(view, sections, closable=self.closable)
        text = _SEPARATOR.join(section_texts)
        return RenderedPrompt(
            text=text,
            tools=tuple(tools),
            structured_output=self.structured_output,
            tool_param_descriptions=descriptions,
            deadline=deadline,
            prompt=prompt,
            overrides=stored,
            view=view,
            sections=sections,
            section_texts=tuple(section_texts),
            media=view.media(sections, text),
        )

    def _with_texts(
        self,
        overrides: Mapping[SectionPath, str],
        tool_overrides: "Mapping[str, ToolOverride]",
        stored: "Mapping[TextId, str]",
    ) -> tuple[RegistrySnapshot, Mapping[str, Mapping[str, str]]]:
        """Returns the sections with overridden texts, and the overridden texts of tool params."""
        if not (overrides or tool_overrides or stored):
            return self.registry, EMPTY
        # imported here, since hashing loads OpenSSL and few prompts have overrides
        from .overrides.apply import apply_overrides, inline_overrides, param_descriptions

        texts = {**stored, **inline_overrides(overrides, tool_overrides)}
        return apply_overrides(self.registry, texts), param_descriptions(self.registry, texts)


def _check_overrides(overrides: Mapping[SectionPath, SectionVisibility]) -> None:
    for path, visibility in overrides.items():
        if not isinstance(path, tuple) or not isinstance(visibility, SectionVisibility):
            raise PromptRenderError(
                "visibility overrides must be tuples of keys with a SectionVisibility, such as "
                f"('context',): SectionVisibility.FULL, got {path!r}: {visibility!r}"
            )


type AnyRenderedPrompt = RenderedPrompt[Any]  # Any: prompts of every output
