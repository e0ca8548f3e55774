"""From a checked tree and its params to a `RenderedPrompt`: all that an adapter needs, as one
value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..generics import Parametrized
from ..protocols import StateView
from ..visibility import SectionDecisions, SectionPath, SectionVisibility
from .errors import PromptRenderError
from .registry import RegistrySnapshot
from .tool import AnyTool
from .walk import NOTHING, Disclosure, PromptView, VisibleSection, session_overrides

if TYPE_CHECKING:
    from ..limits import Deadline
    from .output import Container, StructuredOutputConfig
    from .overrides.model import PromptDescriptor, PromptOverride, ToolOverride
    from .prompt import Prompt

__all__ = ["PromptRenderer", "RenderedPrompt", "Span"]


class Span(NamedTuple):
    """The range `text[start:end]` that the section at `path` gave, its children not included."""

    path: SectionPath
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RenderedPrompt[Out](Parametrized):
    """A prompt's text and tools at one moment.

    `tool_param_descriptions` holds overridden texts by tool and field, those of tools that are not
    open yet included; `overrides` is what a store held for the prompt. `missing_params` has the
    sections that cannot be opened because nothing is bound for their params type, and that type.
    `visibility` is what each shown section was rendered as, `tool_paths` where each tool came from;
    the disclosure tools belong to no section.
    """

    text: str
    tools: tuple[AnyTool, ...]
    structured_output: "StructuredOutputConfig[Out] | None"
    tool_param_descriptions: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )
    deadline: "Deadline | None" = None
    prompt: "Prompt[Out] | None" = None
    overrides: "PromptOverride | None" = None
    missing_params: Mapping[SectionPath, type[Any]] = field(
        default_factory=dict[SectionPath, type[Any]]
    )
    view: PromptView = field(repr=False)
    visits: tuple[VisibleSection, ...] = field(repr=False)
    parts: tuple[str, ...] = field(repr=False)

    @property
    def output_type(self) -> type[Any] | None:  # Any: see StructuredOutputConfig.item_type
        """`T` for `T` and for `list[T]`; `None` when the prompt asks for text."""
        return None if self.structured_output is None else self.structured_output.item_type

    @property
    def container(self) -> "Container | None":
        """`"object"`, `"array"`, or `None` when the prompt asks for text."""
        return None if self.structured_output is None else self.structured_output.container

    @property
    def descriptor(self) -> "PromptDescriptor | None":
        """The texts and hashes of the prompt as its code has it; `None` when rendered by a bare
        `PromptRenderer`.
        """
        return None if self.prompt is None else self.prompt.descriptor

    @property
    def registry(self) -> RegistrySnapshot:
        """The tree that was rendered, overridden texts in place."""
        return self.view.registry

    @property
    def visibility(self) -> Mapping[SectionPath, SectionVisibility]:
        """What each shown section was rendered as; hidden and disabled ones are absent."""
        return {node.path: visibility for node, _, visibility in self.visits}

    @property
    def tool_paths(self) -> Mapping[str, SectionPath]:
        """The section that contributed each tool."""
        paths = self.registry.tool_paths
        return {tool.name: paths[tool.name] for tool in self.tools if tool.name in paths}

    @property
    def spans(self) -> tuple[Span, ...]:
        """The part of `text` that each shown section gave, in order."""
        spans: list[Span] = []
        start = 0
        for (node, _, _), part in zip(self.visits, self.parts, strict=True):
            length = len(part)
            spans.append(Span(node.path, start, start + length))
            start += length + 2
        return tuple(spans)


class PromptRenderer[Out](Parametrized):
    """Renders one tree."""

    def __init__(
        self,
        registry: RegistrySnapshot,
        structured_output: "StructuredOutputConfig[Out] | None" = None,
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
        # Any: params of every type, each looked up by its own.
        param_lookup: Mapping[type[Any], object],
        overrides: Mapping[SectionPath, str] | None = None,
        tool_overrides: "Mapping[str, ToolOverride] | None" = None,
        stored: "PromptOverride | None" = None,
        session: StateView | None = None,
        visibility_overrides: Mapping[SectionPath, SectionVisibility] | None = None,
        decisions: SectionDecisions | None = None,
        deadline: "Deadline | None" = None,
        prompt: "Prompt[Out] | None" = None,
    ) -> RenderedPrompt[Out]:
        """The prompt for these params. `overrides` are section bodies by path, `tool_overrides`
        texts by tool name.

        Both beat the texts that are `stored`. `visibility_overrides` beat those of the session,
        which beat the sections' own selectors; the `decisions` of a conversation that goes on stand
        for all of these. Raises `PromptRenderError` with the section's path.
        """
        if decisions is None:
            remembered = session_overrides(session)
            visibility = (
                {**remembered, **visibility_overrides} if visibility_overrides else remembered
            )
            decisions = SectionDecisions(visibility, remembered)
        for path, one in decisions.overrides.items() if decisions.overrides else ():
            if not isinstance(path, tuple) or not isinstance(one, SectionVisibility):
                raise PromptRenderError(
                    f"a visibility override is {path!r}: {one!r}; give a tuple of keys and a SectionVisibility, "
                    f"such as ('context',): SectionVisibility.FULL"
                )
        registry, descriptions = self.registry, NOTHING
        texts = NOTHING if stored is None else stored.texts
        if overrides or tool_overrides or texts:
            from .overrides.apply import apply_overrides, inline_overrides, param_descriptions

            if overrides or tool_overrides:
                texts = {
                    **texts,
                    **inline_overrides(overrides or NOTHING, tool_overrides or NOTHING),
                }
            registry, descriptions = (
                apply_overrides(registry, texts),
                param_descriptions(registry, texts),
            )
        view = PromptView(
            registry=registry,
            params=param_lookup,
            decisions=decisions,
            session=session,
            disclosure=self.disclosure,
        )
        visits = view.visits()
        parts, tools, summarized = view.write(visits)
        missing = NOTHING
        if summarized and (required := registry.required_params - param_lookup.keys()):
            missing = view.missing_params(summarized, required)
        if summarized or self.closable:
            from .progressive_disclosure import disclosure_tools

            tools += disclosure_tools(view, visits, closable=self.closable)
        return RenderedPrompt(
            text="\n\n".join(parts),
            tools=tuple(tools),
            structured_output=self.structured_output,
            tool_param_descriptions=descriptions,
            deadline=deadline,
            prompt=prompt,
            overrides=stored,
            missing_params=missing,
            view=view,
            visits=tuple(visits),
            parts=tuple(parts),
        )
