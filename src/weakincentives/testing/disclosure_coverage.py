"""Which sections the model had before it in the tests: in how many in full, in how many as a summary only.

Counts alone are kept, as plain values that pytest-xdist's workers can send.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from ..prompt.renderer import RenderedPrompt
from ..runtime.events import PromptRendered, ToolInvoked
from ..visibility import SectionPath, SectionVisibility

__all__ = ["Counts", "add", "count", "report"]

type Counts = dict[str, dict[str, list[int]]]
"""By prompt and dotted path: characters in full, tests with these, tests with a summary only; "" counts all tests."""

_FULL = SectionVisibility.FULL


class _Seen:
    """One prompt in one test: its newest rendering, and how its sections were shown."""

    def __init__(self) -> None:
        self.full: set[SectionPath] = set()
        self.summary: set[SectionPath] = set()

    def show(self, rendered: RenderedPrompt[Any]) -> None:  # Any: prompts of every output
        self.rendered = rendered
        for path, visibility in rendered.visibility.items():
            (self.full if visibility is _FULL else self.summary).add(path)

    def open(self, key: str) -> None:
        for node in self.rendered.registry.sections:
            if ".".join(node.path) == key:
                self.full.add(node.path)
                with suppress(Exception):  # conditions of sections inside, which are asked once more
                    inside = self.rendered.scene.now().opening({node.path: _FULL})
                    self.full |= {one.path for one, _, how in inside.visits(node.index, node.end) if how is _FULL}

    def counts(self) -> dict[str, list[int]]:
        whole = self.rendered.scene.everything()
        sizes: dict[SectionPath, int] = {}
        with suppress(Exception):  # what no test showed may lack its params
            visits = whole.visits()
            sizes = {node.path: len(part) for (node, _, _), part in zip(visits, whole.write(visits)[0], strict=True)}
        rows = {"": [0, 1, 0]}
        for node in self.rendered.registry.sections:
            full = node.path in self.full
            rows[".".join(node.path)] = [sizes.get(node.path, 0), full, not full and node.path in self.summary]
        return rows


def count(events: Iterable[object]) -> Counts:
    """What one test's events tell."""
    seen: dict[str, _Seen] = {}
    by_name: dict[str, _Seen] = {}
    for event in events:
        match event:
            case PromptRendered(ns=ns, key=key, name=name, rendered=RenderedPrompt() as rendered):
                by_name[name] = seen.setdefault(f"{ns}/{key}", _Seen())
                by_name[name].show(rendered)
            case ToolInvoked(success=True, prompt_name=name) if name in by_name:
                for one in event.requested_sections:
                    by_name[name].open(one)
            case _:
                pass
    return {prompt: one.counts() for prompt, one in seen.items()}


def add(total: Counts, more: Counts) -> None:
    """Adds `more` to `total`, in place."""
    for prompt, rows in more.items():
        known = total.setdefault(prompt, {})
        for path, (size, full, summary) in rows.items():
            before = known.get(path, [0, 0, 0])
            known[path] = [max(size, before[0]), full + before[1], summary + before[2]]


def report(total: Counts, *, details: bool) -> Iterator[str]:
    """A line for each prompt, with `details` one for each section as well."""
    for prompt, rows in sorted(total.items()):
        _, tests, _ = rows.pop("")
        sizes = [-(-size // 4) for size, _, _ in rows.values()]
        shown = [size for size, (_, full, _) in zip(sizes, rows.values(), strict=True) if full]
        yield (
            f"{prompt}: {len(shown)} of {len(rows)} sections opened in {tests} tests, "
            f"{sum(shown):,} of {sum(sizes):,} tokens"
        )
        width = max(map(len, rows), default=0)
        if details:
            yield f"  {'':{width}} tokens  full  summary"
            for size, (path, (_, full, summary)) in zip(sizes, rows.items(), strict=True):
                yield f"  {path:{width}} {size:>6,} {full:>5} {summary:>8}{'' if full else '  never opened'}"
    if details:
        yield "full, summary: in how many tests the model could read that; a token is taken for four characters"
