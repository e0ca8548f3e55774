"""Counts, for each section, the tests in which the model could read it in full.

Counts are plain values, so that pytest-xdist workers can send them.
"""

from collections.abc import Iterable, Iterator

from ..runtime.events import PromptRendered, SectionTexts, ToolInvoked
from ..visibility import SectionPath, SectionVisibility

__all__ = ["Counts", "add_counts", "count_sections", "report"]

type Counts = dict[str, dict[str, list[int]]]
"""The full length and the number of tests, by prompt and dotted path; "" counts all tests."""

_FULL = SectionVisibility.FULL


def count_sections(events: Iterable[object]) -> Counts:
    """Counts the sections that the model could read in full in one test."""
    full_paths: dict[str, set[SectionPath]] = {}
    newest: dict[str, PromptRendered] = {}
    by_name: dict[str, PromptRendered] = {}
    for event in events:
        match event:
            case PromptRendered():
                prompt = f"{event.ns}/{event.key}"
                by_name[event.name] = newest[prompt] = event
                states = event.visibility.items()
                paths = [path for path, visibility in states if visibility is _FULL]
                full_paths.setdefault(prompt, set()).update(paths)
            case ToolInvoked(success=True, prompt_name=name) if name in by_name:
                rendered = by_name[name]
                opened = full_paths[f"{rendered.ns}/{rendered.key}"]
                for path in rendered.visibility:
                    if ".".join(path) in event.requested_sections:
                        opened.add(path)
                        for texts in _texts(rendered):
                            if texts.path == path:
                                opened.update(texts.opens)
            case _:
                pass
    return {prompt: _rows(rendered, full_paths[prompt]) for prompt, rendered in newest.items()}


def _texts(rendered: PromptRendered) -> tuple[SectionTexts, ...]:
    try:
        return rendered.measure()
    except Exception:  # a section that is never shown in a test may raise
        return ()


def _rows(rendered: PromptRendered, full_paths: set[SectionPath]) -> dict[str, list[int]]:
    sizes = {texts.path: len(texts.full) for texts in _texts(rendered)}
    sections = {
        ".".join(path): [sizes.get(path, 0), path in full_paths] for path in rendered.visibility
    }
    return {"": [0, 1], **sections}


def add_counts(total: Counts, more: Counts) -> None:
    """Adds `more` to `total` in place."""
    for prompt, rows in more.items():
        total_rows = total.setdefault(prompt, {})
        for path, (size, tests) in rows.items():
            old_size, old_tests = total_rows.get(path, (0, 0))
            total_rows[path] = [max(size, old_size), tests + old_tests]


def report(total: Counts) -> Iterator[str]:
    """Yields a line for each prompt and section."""
    for prompt, rows in sorted(total.items()):
        _, all_tests = rows.pop("")
        table = [(path, -(-size // 4), tests) for path, (size, tests) in rows.items()]
        opened = [tokens for _, tokens, tests in table if tests]
        tests_word = "test" if all_tests == 1 else "tests"
        yield (
            f"{prompt}: {len(opened)} of {len(table)} sections opened in {all_tests} {tests_word}, "
            f"{sum(opened):,} of {sum(tokens for _, tokens, _ in table):,} tokens"
        )
        width = max(map(len, rows), default=0)
        yield f"  {'':{width}} tokens  tests"
        for path, tokens, tests in table:
            yield f"  {path:{width}} {tokens:>6,} {tests:>6}{'' if tests else '  never opened'}"
    yield "tests: how many showed that section in full; a token is estimated at 4 characters"
