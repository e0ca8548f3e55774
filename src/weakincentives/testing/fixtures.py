"""What the pytest plugin's fixtures give beside doubles and events: a maker of adapters, and
prompts with overrides.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice, repeat
from os import PathLike
from typing import Any

from ..evaluation.inner_loop import InnerLoopConfig
from ..evaluation.messages import AssistantMessage
from ..limits import Clock, utc_now
from ..prompt.overrides.model import PromptDescriptor, PromptOverride
from ..prompt.overrides.store import LocalPromptOverridesStore
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..prompt.template import PromptTemplate
from ..runtime.session.session import Session
from .events import RecordedEvents, line
from .scripted import Reply, ScriptedAdapter, SeenRequest

__all__ = ["PromptsWithOverrides", "ScriptedAdapters"]

_MANY = 20
_WHY = {
    "changed": "the code's text has changed",
    "gone": "the code has no such text",
    "fixed": "it is not overridable",
}


class _Heard(ScriptedAdapter):  # Any: prompts of every output
    """Has the events of every session that it evaluates with recorded."""

    events: RecordedEvents

    def connect(self, rendered: RenderedPrompt[Any], /) -> ScriptedAdapter:
        session = rendered.view.session
        if isinstance(session, Session):
            self.events.watch(session.bus)
        return super().connect(rendered)


@dataclass(frozen=True, slots=True)
class ScriptedAdapters:
    """Makes adapters whose replies a script lists or a function decides; see the fixtures of these
    names.
    """

    events: RecordedEvents = field(repr=False)
    _scripts: list[_Heard] = field(default_factory=list[_Heard], repr=False)

    def __call__(
        self,
        replies: Iterable[Reply] | Callable[[SeenRequest], AssistantMessage | Exception],
        /,
        *,
        dynamic_tools: bool = True,
        config: InnerLoopConfig | None = None,
        clock: Clock = utc_now,
    ) -> ScriptedAdapter:
        adapter = _Heard(
            repeat(replies) if callable(replies) else replies,
            dynamic_tools=dynamic_tools,
            config=config,
            clock=clock,
        )
        adapter.events = self.events
        if not callable(replies):
            self._scripts.append(adapter)
        return adapter

    def leftovers(self) -> str | None:
        """What scripts still hold, in words; they are empty then."""
        for adapter in self._scripts:
            if left := [line(reply) for reply in islice(adapter.replies, _MANY)]:
                return (
                    f"the script goes on after request {len(adapter.requests)}, the last that the model was asked; "
                    "shorten it. Left over:\n  " + "\n  ".join(left)
                )
        return None


class _StrictStore(LocalPromptOverridesStore):
    """Fails for stale overrides, whoever asks for them."""

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride:
        found = super().resolve(descriptor, tag)
        if found.stale:
            told = "\n  ".join(f"{one.id}: {_WHY[one.reason]}" for one in found.stale)
            raise AssertionError(
                f"stale overrides of {descriptor.ns}/{descriptor.key}, tag {tag!r}, in '{self.folder}'; "
                f"run `wink overrides rebase TARGET --tag {tag}`, or delete them:\n  {told}"
            )
        return found


class PromptsWithOverrides:
    """Makes prompts whose texts `store` replaces by what it holds under `tag`; it fails for what is
    stale.
    """

    def __init__(self, root: PathLike[str], tag: str = "latest", *, needed: bool = False) -> None:
        self.store = _StrictStore(root)
        self.tag = tag
        self._needed = needed

    def __call__[Out](self, of: PromptTemplate[Out] | Prompt[Out], /) -> Prompt[Out]:
        """A new prompt with the params and resources of `of`.

        Raises `AssertionError` for stale overrides and, where they are `needed`, for none.
        """
        template = of.template if isinstance(of, Prompt) else of
        prompt = Prompt(template, overrides_store=self.store, overrides_tag=self.tag)
        if isinstance(of, Prompt):
            prompt.bind(*of.params.values(), resources=of.resources.registry)
        if not self.store.resolve(prompt.descriptor, self.tag).texts and self._needed:
            tags = ", ".join(
                one.tag for one in self.store.list() if (one.ns, one.key) == (prompt.ns, prompt.key)
            )
            raise AssertionError(
                f"marked wink_overrides, but nothing is stored for {prompt.ns}/{prompt.key} under tag {self.tag!r} "
                f"in '{self.store.folder}'; tags there: {tags or 'none'}"
            )
        return prompt
