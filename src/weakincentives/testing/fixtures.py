"""The values of the pytest plugin's fixtures: factories for adapters and overridden prompts."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice, repeat
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evaluation.inner_loop import RunConfig
from ..evaluation.messages import AssistantMessage
from ..limits import Clock, utc_now
from ..model_settings import ModelSettings
from ..prompt.overrides.model import PromptDescriptor, PromptOverride
from ..prompt.overrides.store import LocalPromptOverridesStore
from ..prompt.renderer import AnyRenderedPrompt
from ..prompt.template import Prompt, PromptTemplate
from .recorded_events import RecordedEvents, event_line
from .scripted import Reply, ScriptedAdapter, SeenRequest

if TYPE_CHECKING:
    from ..adapters.core import LoopAdapter
    from .cassettes import Cassette, Mode

__all__ = ["Cassettes", "PromptsWithOverrides", "ScriptedAdapters"]

_MAX_DESCRIBED = 20
_REASONS = {
    "changed": "the code's text has changed",
    "gone": "the code has no such text",
    "fixed": "it is not overridable",
}


class _RecordedAdapter(ScriptedAdapter):
    """Records the events of every session in which it evaluates a prompt."""

    events: RecordedEvents

    def connect(self, rendered: AnyRenderedPrompt, /) -> ScriptedAdapter:
        self.events.watch_run(rendered)
        return super().connect(rendered)


_RESERVED = {"con", "prn", "aux", "nul", *(f"{it}{n}" for it in ("com", "lpt") for n in range(10))}
_MAX_NAME = 80


def file_name(name: str) -> str:
    """Returns a test's name as a file's name, which differs even without upper case.

    A name with other characters, and a long one, ends with a part of its hash.
    """
    if re.fullmatch(r"[a-z0-9_]+", name) and len(name) <= _MAX_NAME and name not in _RESERVED:
        return name
    plain = re.sub(r"[^a-z0-9_]+", "-", name.lower())[:_MAX_NAME].strip("-")
    return f"{plain}-{sha256(name.encode()).hexdigest()[:8]}"


@dataclass(slots=True)
class Cassettes:
    """Creates the cassettes of one test; see the fixture."""

    events: RecordedEvents = field(repr=False)
    folder: Path
    name: str
    mode: "Mode | None" = None
    cassettes: "list[Cassette]" = field(default_factory=list["Cassette"])

    def __call__(
        self, adapter: "LoopAdapter | str", path: str | PathLike[str] | None = None, **options: Any
    ) -> "Cassette":
        from .cassettes import Cassette

        count = len(self.cassettes)
        name = f"{file_name(self.name)}{f'.{count + 1}' if count else ''}.jsonl"
        options.setdefault("mode", self.mode)
        cassette = Cassette(adapter, path or self.folder / name, **options)
        cassette.events = self.events
        self.cassettes.append(cassette)
        return cassette

    def end(self, *, passed: bool) -> list[str]:
        """Writes what a passed test recorded; returns the files with answers that did not play."""
        left: list[str] = []
        for cassette in self.cassettes:
            if cassette.records and passed:
                cassette.save()
            elif not cassette.records and (count := cassette.recordings.left):
                left.append(f"{cassette.recordings.path}: {count} answers were not played")
        return left if passed else []


@dataclass(frozen=True, slots=True)
class ScriptedAdapters:
    """Creates adapters whose replies come from a script or a function; see the fixtures."""

    events: RecordedEvents = field(repr=False)
    _scripts: list[_RecordedAdapter] = field(default_factory=list[_RecordedAdapter], repr=False)

    def __call__(
        self,
        replies: Iterable[Reply] | Callable[[SeenRequest], AssistantMessage | Exception],
        /,
        *,
        dynamic_tools: bool = True,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> ScriptedAdapter:
        adapter = _RecordedAdapter(
            repeat(replies) if callable(replies) else replies,
            dynamic_tools=dynamic_tools,
            config=config,
            settings=settings,
            clock=clock,
        )
        adapter.events = self.events
        if not callable(replies):
            self._scripts.append(adapter)
        return adapter

    def remaining_replies(self) -> str | None:
        """Consumes and describes any replies that are left in a script."""
        for adapter in self._scripts:
            if lines := [event_line(reply) for reply in islice(adapter.replies, _MAX_DESCRIBED)]:
                return (
                    f"the script has replies left after request {len(adapter.requests)}, "
                    "which was the last; shorten it. Remaining:\n  " + "\n  ".join(lines)
                )
        return None


class _StrictStore(LocalPromptOverridesStore):
    """Raises for stale overrides, no matter who requests them."""

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride:
        override = super().resolve(descriptor, tag)
        if override.stale:
            lines = "\n  ".join(f"{text.id}: {_REASONS[text.reason]}" for text in override.stale)
            raise AssertionError(
                f"overrides of {descriptor.ns}/{descriptor.key}, tag {tag!r}, in '{self.folder}' "
                f"are out of date; run `wink overrides rebase TARGET --tag {tag}`, or delete "
                f"them:\n  {lines}"
            )
        return override


class PromptsWithOverrides:
    """Creates prompts with the overrides in `store` under `tag`; stale overrides raise."""

    def __init__(self, root: PathLike[str], tag: str = "latest", *, needed: bool = False) -> None:
        self.store = _StrictStore(root)
        self.tag = tag
        self._needed = needed

    def __call__[Out](self, source: PromptTemplate[Out] | Prompt[Out], /) -> Prompt[Out]:
        """Returns a new prompt with the params and resources of `source`.

        Raises `AssertionError` for stale overrides, and for missing ones if they are `needed`.
        """
        template = source.template if isinstance(source, Prompt) else source
        prompt = Prompt(template, overrides_store=self.store, overrides_tag=self.tag)
        if isinstance(source, Prompt):
            prompt.bind(*source.params.values(), resources=source.resources.registry)
        if not self.store.resolve(prompt.descriptor, self.tag).texts and self._needed:
            name = prompt.ns, prompt.key
            tags = [entry.tag for entry in self.store.list() if (entry.ns, entry.key) == name]
            raise AssertionError(
                f"the test is marked wink_overrides, but no overrides of {prompt.ns}/{prompt.key} "
                f"are stored under tag {self.tag!r} in '{self.store.folder}'; stored tags: "
                f"{', '.join(tags) or 'none'}"
            )
        return prompt
