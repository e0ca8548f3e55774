"""Overrides carried over to a prompt that has changed: a three-way merge of each text, and the conflicts to review."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from textwrap import indent

from ..errors import PromptValidationError
from .descriptors import check_text
from .model import PromptDescriptor, TextId
from .store import Entries, StoredOverride

__all__ = ["Conflict", "Rebase", "merge", "rebase"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """An override that could not be carried over: why, and its text, with conflict marks where a merge was tried."""

    id: TextId
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Rebase:
    """The stale overrides that apply again, and those that need a decision; `str` gives these as Markdown."""

    merged: tuple[TextId, ...]
    conflicts: tuple[Conflict, ...]

    def __str__(self) -> str:
        parts = [f"## {one.id}\n\n{one.reason}\n\n{indent(one.text, '    ', lambda _: True)}" for one in self.conflicts]
        return "\n\n".join(["# Overrides to settle", *parts]) + "\n"


def rebase(descriptor: PromptDescriptor, stored: Entries) -> Rebase:
    """Brings `stored` up to date where that goes without conflict, and says what was done."""
    merged: list[TextId] = []
    conflicts: list[Conflict] = []
    for one, override in stored.items():
        if override.held_against(descriptor) is None:
            continue
        text, obstacle = _carried(descriptor, one, override)
        if obstacle:
            conflicts.append(Conflict(one, obstacle, text))
        else:
            merged.append(one)
            stored[one] = StoredOverride.against(descriptor, one, text)
    return Rebase(tuple(merged), tuple(conflicts))


def _carried(descriptor: PromptDescriptor, one: TextId, override: StoredOverride) -> tuple[str, str]:
    """The text of `override` for the prompt as it is now, and what stands in the way; empty when nothing does."""
    now, text = descriptor.texts.get(one), "\n".join(override.text)
    if now is None:
        return text, "The prompt has no such text any more."
    if not now.accepts_overrides:
        return text, "The text accepts no overrides now."
    lines, clean = merge(override.base, override.text, now.text.split("\n"))
    text = "\n".join(lines)
    if not clean:
        return text, "Both have changed: the override above `=======`, the code below."
    try:
        check_text(descriptor, one, text)
    except PromptValidationError as error:
        return text, f"The merged text does not fit the prompt: {error}"
    return text, ""


def merge(base: Sequence[str], mine: Sequence[str], theirs: Sequence[str]) -> tuple[list[str], bool]:
    """The lines with the changes of both, and whether they went together; marks stand around what did not.

    Changes to neighbouring lines conflict, as they do in `diff3`.
    """
    lines: list[str] = []
    clean = True
    at, at_mine, at_theirs = 0, 0, 0
    for start, in_mine, in_theirs, size in _common(base, mine, theirs):
        before, ours, others = list(base[at:start]), list(mine[at_mine:in_mine]), list(theirs[at_theirs:in_theirs])
        if others in (before, ours):
            lines += ours
        elif ours == before:
            lines += others
        else:
            clean = False
            lines += ["<<<<<<< override", *ours, "||||||| written against", *before, "=======", *others, ">>>>>>> code"]
        lines += base[start : start + size]
        at, at_mine, at_theirs = start + size, in_mine + size, in_theirs + size
    return lines, clean


def _common(base: Sequence[str], mine: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int, int, int]]:
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
