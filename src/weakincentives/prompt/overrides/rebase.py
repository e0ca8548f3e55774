"""Rebases overrides onto a changed prompt, with three-way merges and conflicts to review."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from textwrap import indent

from ..errors import PromptValidationError
from .model import PromptDescriptor, StaleOverride, TextId

__all__ = ["Conflict", "Rebase", "merge", "rebase"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """An override that could not be rebased, and the reason.

    If a merge was tried, `text` contains conflict markers.
    """

    id: TextId
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Rebase:
    """The stale overrides that apply again, and the conflicts that need a decision.

    `str` returns the conflicts as Markdown.
    """

    merged: tuple[TextId, ...]
    conflicts: tuple[Conflict, ...]

    def __str__(self) -> str:
        paragraphs = ["# Overrides to settle"]
        for conflict in self.conflicts:
            text = indent(conflict.text, "    ", lambda _: True)
            paragraphs += [f"## {conflict.id}", conflict.reason, text]
        return "\n\n".join(paragraphs) + "\n"


def rebase(
    descriptor: PromptDescriptor, overrides: Iterable[StaleOverride]
) -> tuple[dict[TextId, str], list[Conflict]]:
    """Merges stale texts with the prompt's current texts; returns merged texts and conflicts."""
    merged: dict[TextId, str] = {}
    conflicts: list[Conflict] = []
    for stale in overrides:
        text, obstacle = _merge_override(descriptor, stale)
        if obstacle:
            conflicts.append(Conflict(stale.id, obstacle, text))
        else:
            merged[stale.id] = text
    return merged, conflicts


def _merge_override(descriptor: PromptDescriptor, stale: StaleOverride) -> tuple[str, str]:
    """Returns the text for the current prompt, and the reason for a conflict or `""`."""
    if stale.current is None:
        return stale.text, "The prompt has no such text any more."
    if stale.reason == "fixed":
        return stale.text, "The text accepts no overrides now."
    lines, clean = merge(*(text.split("\n") for text in (stale.base, stale.text, stale.current)))
    text = "\n".join(lines)
    if not clean:
        return text, "Both have changed: the override above `=======`, the code below."
    try:
        descriptor.check(stale.id, text)
    except PromptValidationError as error:
        return text, f"The merged text does not fit the prompt: {error}"
    return text, ""


def merge(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> tuple[list[str], bool]:
    """Merges line changes from both sides; returns the lines, and whether the merge was clean.

    `ours` is the override, and `theirs` is the code; conflicts are surrounded by markers. Changes
    to adjacent lines conflict, as in `diff3`.
    """
    merged: list[str] = []
    clean = True
    at, at_ours, at_theirs = 0, 0, 0
    for start, start_ours, start_theirs, size in _common_runs(base, ours, theirs):
        original = [*base[at:start]]
        override, code = [*ours[at_ours:start_ours]], [*theirs[at_theirs:start_theirs]]
        if code in (original, override):
            merged += override
        elif override == original:
            merged += code
        else:
            clean = False
            merged += ["<<<<<<< override", *override, "||||||| written against", *original]
            merged += ["=======", *code, ">>>>>>> code"]
        merged += base[start : start + size]
        at, at_ours, at_theirs = start + size, start_ours + size, start_theirs + size
    return merged, clean


def _common_runs(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]
) -> list[tuple[int, int, int, int]]:
    """Returns the runs of lines that all three texts share, as three start positions and a length.

    The list ends with an empty run.
    """
    runs: list[tuple[int, int, int, int]] = []
    their_blocks = SequenceMatcher(None, base, theirs, autojunk=False).get_matching_blocks()
    for block in SequenceMatcher(None, base, ours, autojunk=False).get_matching_blocks():
        for their_block in their_blocks:
            start = max(block.a, their_block.a)
            size = min(block.a + block.size, their_block.a + their_block.size) - start
            if size > 0:
                start_theirs = their_block.b + start - their_block.a
                runs.append((start, block.b + start - block.a, start_theirs, size))
    return [*runs, (len(base), len(ours), len(theirs), 0)]
