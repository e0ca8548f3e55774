"""Which sections the model had before it in full, and in how many tests.

Counts alone are kept, as plain values that pytest-xdist's workers can send.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..prompt.renderer import RenderedPrompt
from ..runtime.events import PromptRendered, ToolInvoked
from ..visibility import SectionPath, SectionVisibility

__all__ = ["Counts", "add", "count", "report"]

type Counts = dict[str, dict[str, list[int]]]
"""By prompt and dotted path: characters in full, and tests with these; "" counts all tests."""

_FULL = SectionVisibility.FULL

# Any below: prompts of every output.


def count(events: Iterable[object]) -> Counts:
    """What one test's events tell."""
    newest: dict[str, RenderedPrompt[Any]] = {}
    full: defaultdict[str, set[SectionPath]] = defaultdict(set)
    named: dict[str, str] = {}
    for event in events:
        match event:
            case PromptRendered(ns=ns, key=key, name=name, rendered=RenderedPrompt() as rendered):
                prompt = named[name] = f"{ns}/{key}"
                newest[prompt] = rendered
                full[prompt].update(
                    path for path, how in rendered.visibility.items() if how is _FULL
                )
            case ToolInvoked(success=True, prompt_name=name) if name in named:
                for section in event.requested_sections:
                    full[named[name]] |= _opened(
                        newest[named[name]], section, event.current_visibility_state
                    )
            case _:
                pass
    return {prompt: _rows(rendered, full[prompt]) for prompt, rendered in newest.items()}


def _opened(
    rendered: RenderedPrompt[Any], key: str, before: Mapping[SectionPath, SectionVisibility]
) -> set[SectionPath]:
    """The section and those inside that it shows in full."""
    node = rendered.registry.find(key)
    found = set[SectionPath]()
    if node is not None:
        found.add(node.path)
        with suppress(Exception):  # conditions of sections inside, which are asked once more
            inside = rendered.view.apart().opening({**before, node.path: _FULL})
            found.update(
                one.path for one, _, how in inside.visits(node.index, node.end) if how is _FULL
            )
    return found


def _rows(rendered: RenderedPrompt[Any], full: set[SectionPath]) -> dict[str, list[int]]:
    whole = rendered.view.everything()
    sizes: dict[SectionPath, int] = {}
    with suppress(Exception):  # what no test showed may lack its params
        visits = whole.visits()
        sizes = {
            node.path: len(part)
            for (node, _, _), part in zip(visits, whole.write(visits)[0], strict=True)
        }
    sections = rendered.registry.sections
    return {
        "": [0, 1],
        **{node.key: [sizes.get(node.path, 0), node.path in full] for node in sections},
    }


def add(total: Counts, more: Counts) -> None:
    """Adds `more` to `total`, in place."""
    for prompt, rows in more.items():
        known = total.setdefault(prompt, {})
        for path, (size, tests) in rows.items():
            before = known.get(path, [0, 0])
            known[path] = [max(size, before[0]), tests + before[1]]


def report(total: Counts) -> Iterator[str]:
    """A line for each prompt and each section."""
    for prompt, rows in sorted(total.items()):
        _, all_tests = rows.pop("")
        table = [(path, -(-size // 4), tests) for path, (size, tests) in rows.items()]
        opened = [tokens for _, tokens, tests in table if tests]
        yield (
            f"{prompt}: {len(opened)} of {len(table)} sections opened in {all_tests} tests, "
            f"{sum(opened):,} of {sum(tokens for _, tokens, _ in table):,} tokens"
        )
        width = max(map(len, rows), default=0)
        yield f"  {'':{width}} tokens  tests"
        for path, tokens, tests in table:
            yield f"  {path:{width}} {tokens:>6,} {tests:>6}{'' if tests else '  never opened'}"
    yield "tests: in how many the model could read that in full; a token is taken for four characters"
