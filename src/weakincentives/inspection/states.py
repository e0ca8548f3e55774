"""Renders a prompt in every state that the model can reach by opening sections."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from ..evaluation.conversation import rendered_tools
from ..evaluation.schemas import OutputSpec, ToolSpec, output_to_spec
from ..prompt.renderer import AnyRenderedPrompt
from ..prompt.template import AnyPrompt, AnyTemplate, PromptTemplate
from ..prompt.walk import session_overrides
from ..runtime.session.session import Session
from ..visibility import SectionPath, SectionVisibility, VisibilityOverrides

__all__ = ["PromptState", "render_states"]

type _Paths = tuple[SectionPath, ...]


@dataclass(frozen=True, slots=True)
class PromptState:
    """A prompt after the model has opened the sections at `opened`, which is sorted.

    `name` is `closed` if no section is open, and otherwise lists the open sections' keys, such as
    `guide+guide.deep`. The state with all sections open is called `all`, unless it is one of the
    smallest states.
    """

    name: str
    opened: tuple[SectionPath, ...]
    rendered: AnyRenderedPrompt

    @property
    def text(self) -> str:
        """The text that the model receives."""
        return self.rendered.text

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model can call, in the form that every adapter uses."""
        return rendered_tools(self.rendered)

    @property
    def output(self) -> OutputSpec | None:
        """The type of answer that the model must give, or `None` for text."""
        declared = self.rendered.structured_output
        return None if declared is None else output_to_spec(declared)


def render_states(
    target: AnyTemplate | AnyPrompt, *, session: Session | None = None, limit: int = 64
) -> tuple[PromptState, ...]:
    """Renders the prompt in each state that a model can reach, `closed` first.

    Each section that can be opened independently doubles the number of states. If there are more
    than `limit`, the result contains only the smallest states, one for each summarized section with
    its parents, and the state in which everything is open. Together, these states show every text
    and tool, unless a selector depends on which sections are open. `limit=0` always returns only
    these states. `session`, by default a new one, is passed to the selectors; sections that are
    open in it are open from the start. Raises `PromptRenderError` with the path of a section that
    cannot be rendered, even if it is hidden.
    """
    prompt = target.bind() if isinstance(target, PromptTemplate) else target
    start = Session() if session is None else session
    snapshot, overrides = start.snapshot(), session_overrides(start)

    def render(opened: _Paths) -> AnyRenderedPrompt:
        copy = Session()
        copy.restore(snapshot)
        full = dict.fromkeys(opened, SectionVisibility.FULL)
        copy[VisibilityOverrides].seed(VisibilityOverrides({**overrides, **full}))
        return prompt.render(session=copy)

    states = dict(islice(_reachable(render), 1 + max(limit, 0)))
    smallest = states[()].view.minimal_expansions()
    everything = tuple(sorted({path for opened in smallest for path in opened}))
    if len(states) > limit:
        selection = dict.fromkeys((*smallest, everything))
        states = {opened: states.get(opened) or render(opened) for opened in selection}
    names = {opened: "+".join(map(".".join, opened)) or "closed" for opened in states}
    if everything not in smallest:
        names[everything] = "all"
    return tuple(
        PromptState(names[opened], opened, rendered) for opened, rendered in states.items()
    )


def _reachable(
    render: Callable[[_Paths], AnyRenderedPrompt],
) -> Iterator[tuple[_Paths, AnyRenderedPrompt]]:
    """Renders all states, starting with those that have the fewest open sections."""
    queue: list[_Paths] = [()]
    seen: set[_Paths] = set()
    for opened in queue:  # the loop extends the list
        rendered = render(opened)
        yield opened, rendered
        for path, visibility in rendered.visibility.items():
            wider = tuple(sorted((*opened, path)))
            if visibility is SectionVisibility.SUMMARY and wider not in seen:
                seen.add(wider)
                queue.append(wider)
