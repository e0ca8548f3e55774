"""Overrides carried over to a prompt that has changed: a three-way merge of each text, and the
conflicts to review.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from textwrap import indent

from ..errors import PromptValidationError
from .descriptors import check_text
from .model import PromptDescriptor, StaleOverride, TextId

__all__ = ["Conflict", "Rebase", "merge", "rebase"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """An override that could not be carried over: why, and its text, with conflict marks where a
    merge was tried.
    """

    id: TextId
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Rebase:
    """The stale overrides that apply again, and those that need a decision; `str` gives these as
    Markdown.
    """

    merged: tuple[TextId, ...]
    conflicts: tuple[Conflict, ...]

    def __str__(self) -> str:
        parts = [
            f"## {one.id}\n\n{one.reason}\n\n{indent(one.text, '    ', lambda _: True)}"
            for one in self.conflicts
        ]
        return "\n\n".join(["# Overrides to settle", *parts]) + "\n"


def rebase(
    descriptor: PromptDescriptor, stale: Iterable[StaleOverride]
) -> tuple[dict[TextId, str], list[Conflict]]:
    """The stale texts that go without conflict with the prompt as it is now, brought up to date,
    and the others.
    """
    merged: dict[TextId, str] = {}
    conflicts: list[Conflict] = []
    for one in stale:
        text, obstacle = _carried(descriptor, one)
        if obstacle:
            conflicts.append(Conflict(one.id, obstacle, text))
        else:
            merged[one.id] = text
    return merged, conflicts


def _carried(descriptor: PromptDescriptor, stale: StaleOverride) -> tuple[str, str]:
    """The text for the prompt as it is now, and what stands in the way; empty when nothing does."""
    if stale.current is None:
        return stale.text, "The prompt has no such text any more."
    if stale.reason == "fixed":
        return stale.text, "The text accepts no overrides now."
    lines, clean = merge(*(text.split("\n") for text in (stale.base, stale.text, stale.current)))
    text = "\n".join(lines)
    if not clean:
        return text, "Both have changed: the override above `=======`, the code below."
    try:
        check_text(descriptor, stale.id, text)
    except PromptValidationError as error:
        return text, f"The merged text does not fit the prompt: {error}"
    return text, ""


def merge(
    base: Sequence[str], mine: Sequence[str], theirs: Sequence[str]
) -> tuple[list[str], bool]:
    """The lines with the changes of both, and whether they went together; marks stand around what
    did not.

    Changes to neighbouring lines conflict, as they do in `diff3`.
    """
    lines: list[str] = []
    clean = True
    at, at_mine, at_theirs = 0, 0, 0
    for start, in_mine, in_theirs, size in _common(base, mine, theirs):
        before, ours, others = (
            list(base[at:start]),
            list(mine[at_mine:in_mine]),
            list(theirs[at_theirs:in_theirs]),
        )
        if others in (before, ours):
            lines += ours
        elif ours == before:
            lines += others
        else:
            clean = False
            lines += [
                "<<<<<<< override",
                *ours,
                "||||||| written against",
                *before,
                "=======",
                *others,
                ">>>>>>> code",
            ]
        lines += base[start : start + size]
        at, at_mine, at_theirs = start + size, in_mine + size, in_theirs + size
    return lines, clean


def _common(
    base: Sequence[str], mine: Sequence[str], theirs: Sequence[str]
) -> list[tuple[int, int, int, int]]:
    """Runs of lines that all three have, as their starts and their length; an empty one at the end."""
    found: list[tuple[int, int, int, int]] = []
    in_theirs = SequenceMatcher(None, base, theirs, autojunk=False).get_matching_blocks()
    for one in SequenceMatcher(None, base, mine, autojunk=False).get_matching_blocks():
        for other in in_theirs:
            start = max(one.a, other.a)
            size = min(one.a + one.size, other.a + other.size) - start
            if size > 0:
                found.append((start, one.b + start - one.a, other.b + start - other.a, size))
    return [*found, (len(base), len(mine), len(theirs), 0)]
