"""Renders a template's tree with params into a `RenderedPrompt`, the input for adapters."""

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

    `tool_param_descriptions` contains overridden texts by tool and field, including tools that are
    not available yet. `overrides` contains the prompt's stored overrides. `sections` maps each
    visible section to its visibility, and `section_texts` contains their texts. `media` contains
    the images and documents whose markers appear in the text.
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
        """Renders the text and the tools as Markdown for notebooks."""
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
        """`T` for both `T` and `list[T]`; `None` if the prompt asks for text."""
        return None if self.structured_output is None else self.structured_output.item_type

    @property
    def container(self) -> Container | None:
        """The form of the answer, such as `"object"`; `None` if the prompt asks for text."""
        return None if self.structured_output is None else self.structured_output.container

    @property
    def descriptor(self) -> "PromptDescriptor | None":
        """The texts and hashes of the prompt's code; `None` if there is no prompt."""
        return None if self.prompt is None else self.prompt.descriptor

    @property
    def registry(self) -> RegistrySnapshot:
        """The rendered tree, including overridden texts."""
        return self.view.registry

    @property
    def visibility(self) -> Mapping[SectionPath, SectionVisibility]:
        """The visibility of each visible section by path; omits hidden and disabled sections."""
        return {node.path: visibility for node, visibility in self.sections.items()}

    @property
    def missing_params(self) -> Mapping[SectionPath, ParamsType]:
        """The sections that cannot be opened, with the types of their unbound params."""
        return self.view.missing_params(self.sections)

    @property
    def tool_paths(self) -> Mapping[str, SectionPath]:
        """The section of each tool; disclosure tools do not belong to any section."""
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
    """Renders a tree of sections."""

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

        `overrides` contains section bodies by path, and `tool_overrides` contains texts by tool
        name; both take precedence over `stored` texts. `visibility_overrides` take precedence over
        the session's overrides, which take precedence over the sections' own visibility. A
        continued conversation passes its `decisions`, which replace all three. Raises
        `PromptRenderError`, with the section's path.
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
            # imported here, because it takes a tenth of the package's import time and some prompts
            # do not need it
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
        """Returns the sections with overridden texts, and the overridden param descriptions."""
        if not (overrides or tool_overrides or stored):
            return self.registry, EMPTY
        # imported here, because hashing loads OpenSSL and few prompts have overrides
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


type AnyRenderedPrompt = RenderedPrompt[Any]  # Any: prompts of every output type
