"""Which sections the model had before it in full, and in how many tests.

Counts alone are kept, as plain values that pytest-xdist's workers can send.
"""

from collections.abc import Iterable, Iterator

from ..runtime.events import PromptRendered, SectionTexts, ToolInvoked
from ..visibility import SectionPath, SectionVisibility

__all__ = ["Counts", "add", "count", "report"]

type Counts = dict[str, dict[str, list[int]]]
"""By prompt and dotted path: characters in full, and tests with these; "" counts all tests."""

_FULL = SectionVisibility.FULL


def count(events: Iterable[object]) -> Counts:
    """Counts the sections that the model could read in full in one test."""
    full: dict[str, set[SectionPath]] = {}
    newest: dict[str, PromptRendered] = {}
    by_name: dict[str, PromptRendered] = {}
    for event in events:
        match event:
            case PromptRendered():
                prompt = f"{event.ns}/{event.key}"
                by_name[event.name] = newest[prompt] = event
                paths = [path for path, how in event.visibility.items() if how is _FULL]
                full.setdefault(prompt, set()).update(paths)
            case ToolInvoked(success=True, prompt_name=name) if name in by_name:
                rendered = by_name[name]
                opened = full[f"{rendered.ns}/{rendered.key}"]
                for path in rendered.visibility:
                    if ".".join(path) in event.requested_sections:
                        opened.add(path)
                        opened.update(*(t.opens for t in _texts(rendered) if t.path == path))
            case _:
                pass
    return {prompt: _rows(rendered, full[prompt]) for prompt, rendered in newest.items()}


def _texts(rendered: PromptRendered) -> tuple[SectionTexts, ...]:
    try:
        return rendered.measure()
    except Exception:  # a section that no test showed may fail
        return ()


def _rows(rendered: PromptRendered, full: set[SectionPath]) -> dict[str, list[int]]:
    sizes = {texts.path: len(texts.full) for texts in _texts(rendered)}
    sections = {".".join(path): [sizes.get(path, 0), path in full] for path in rendered.visibility}
    return {"": [0, 1], **sections}


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
