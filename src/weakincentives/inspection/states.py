"""A prompt in every state that a model can bring it to by opening sections: its text, its tools,
its output.

What a test makes of the states, such as golden files, stands elsewhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..evaluation.schemas import OutputSpec, ToolSpec, output_to_spec, tool_to_spec
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..prompt.template import PromptTemplate
from ..prompt.walk import session_overrides
from ..runtime.session.session import Session
from ..visibility import SectionPath, SectionVisibility, VisibilityOverrides

__all__ = ["PromptState", "render_states"]

type _Opened = tuple[SectionPath, ...]


@dataclass(frozen=True, slots=True)
class PromptState:
    """A prompt once its model has opened the sections at `opened`, which are sorted.

    `name` is `closed` while nothing is open, else the keys of the open sections, as in
    `guide+guide.deep`; `all` where all are open and the smallest states have none such.
    """

    name: str
    opened: tuple[SectionPath, ...]
    # Any: prompts of every output
    rendered: RenderedPrompt[Any]

    @property
    def text(self) -> str:
        """What the model is shown."""
        return self.rendered.text

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that it can call, as every adapter is told of them."""
        texts = self.rendered.tool_param_descriptions
        return tuple(tool_to_spec(tool, texts.get(tool.name)) for tool in self.rendered.tools)

    @property
    def output(self) -> OutputSpec | None:
        """The answer that it must give; `None` for text."""
        declared = self.rendered.structured_output
        return None if declared is None else output_to_spec(declared)


# Any: prompts of every output
def render_states(
    target: PromptTemplate[Any] | Prompt[Any], *, session: Session | None = None, limit: int = 64
) -> tuple[PromptState, ...]:
    """The prompt in each state that a model can bring it to by opening sections, `closed` first.

    Each section that can be opened by itself doubles their number. Where there are more than
    `limit`, only the smallest ones are given, one for each summarized section with those around it,
    and the one where all is open: they hold every text and every tool of the others, unless a
    selector reads what is open. `limit=0` gives just these, however few there are. `session`, by
    default a fresh one, feeds the selectors; what it has open is open from the start. Raises
    `PromptRenderError` with the path of a section that cannot be rendered, be it hidden at first or
    not.
    """
    prompt = target.bind() if isinstance(target, PromptTemplate) else target
    before = Session() if session is None else session
    state, shown = before.snapshot(), session_overrides(before)

    def render(opened: _Opened) -> RenderedPrompt[Any]:
        later = Session()
        later.restore(state)
        later[VisibilityOverrides].seed(
            VisibilityOverrides({**shown, **dict.fromkeys(opened, SectionVisibility.FULL)})
        )
        return prompt.render(session=later)

    reached = dict(islice(_reached(render), 1 + max(limit, 0)))
    smallest = reached[()].view.minimal_expansions()
    whole = tuple(sorted({path for opened in smallest for path in opened}))
    if len(reached) > limit:
        reached = {
            opened: reached.get(opened) or render(opened)
            for opened in dict.fromkeys((*smallest, whole))
        }
    named = {opened: "+".join(map(".".join, opened)) or "closed" for opened in reached}
    if whole not in smallest:
        named[whole] = "all"
    return tuple(
        PromptState(named[opened], opened, rendered) for opened, rendered in reached.items()
    )


# Any: see `PromptState`
def _reached(
    render: Callable[[_Opened], RenderedPrompt[Any]],
) -> Iterator[tuple[_Opened, RenderedPrompt[Any]]]:
    """All states, those with the fewest open sections first."""
    waiting: list[_Opened] = [()]
    seen: set[_Opened] = set()
    for opened in waiting:  # which grows meanwhile
        rendered = render(opened)
        yield opened, rendered
        for path, visibility in rendered.visibility.items():
            wider = tuple(sorted((*opened, path)))
            if visibility is SectionVisibility.SUMMARY and wider not in seen:
                seen.add(wider)
                waiting.append(wider)
