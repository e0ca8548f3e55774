"""The three-way merge of overrides with changed code: laws over lines, and stored files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool
from weakincentives.prompt.overrides import OverridesTag, SectionOverride, TextId
from weakincentives.prompt.overrides.model import PromptDescriptor, ToolOverride
from weakincentives.prompt.overrides.rebase import merge
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore

BODY = TextId("body", "a")
LINES = st.lists(st.sampled_from("abc"), max_size=6)


@dataclass(frozen=True)
class Who:
    name: str = "Ada"


# -------------------------------------------------------------------------------------------------
# lines


@given(LINES, LINES)
def test_merge_takes_a_change_made_on_only_one_side(base: list[str], changed: list[str]) -> None:
    assert merge(base, changed, base) == (changed, True)
    assert merge(base, base, changed) == (changed, True)


@given(LINES, LINES)
def test_merge_takes_an_identical_change_on_both_sides_once(
    base: list[str], changed: list[str]
) -> None:
    assert merge(base, changed, changed) == (changed, True)


@given(LINES, LINES, LINES)
def test_merge_is_symmetric_in_its_sides(
    base: list[str], ours: list[str], theirs: list[str]
) -> None:
    merged, clean = merge(base, ours, theirs)
    exchanged, also_clean = merge(base, theirs, ours)
    assert clean == also_clean
    if clean:
        assert merged == exchanged


@given(LINES, LINES, LINES)
def test_conflict_keeps_all_lines_of_both_sides(
    base: list[str], ours: list[str], theirs: list[str]
) -> None:
    lines, clean = merge(base, ours, theirs)
    if not clean:
        assert {*ours, *theirs} <= {*lines, *base}
        assert lines.count("<<<<<<< override") == lines.count(">>>>>>> code") >= 1


def test_repeated_lines_merge_like_other_lines() -> None:
    base = ["x", ""] * 200
    ours, theirs = ["ours", *base[1:]], [*base[:-1], "theirs"]
    assert merge(base, ours, theirs) == (["ours", *base[1:-1], "theirs"], True)


type Edit = tuple[int, Sequence[str]]
"""A line of the base, and the lines that replace it."""


@st.composite
def disjoint_edits(draw: st.DrawFn) -> tuple[list[str], list[Edit], list[Edit]]:
    """Draws distinct lines and two sides' edits; between two edits, one line does not change."""
    base = [f"line {number}" for number in range(draw(st.integers(1, 12)))]
    sides: tuple[list[Edit], list[Edit]] = ([], [])
    position = 0
    while position < len(base):
        side = draw(st.sampled_from((None, 0, 1)))
        if side is not None:
            lines = draw(st.lists(st.integers(0, 99), max_size=2))
            sides[side].append((position, [f"edit {position} {number}" for number in lines]))
            position += 1
        position += 1
    return base, *sides


def applied(base: list[str], edits: Sequence[Edit]) -> list[str]:
    changed = [[line] for line in base]
    for position, lines in edits:
        changed[position] = list(lines)
    return [line for lines in changed for line in lines]


@given(disjoint_edits())
def test_edits_separated_by_a_line_merge_cleanly(
    edits: tuple[list[str], list[Edit], list[Edit]],
) -> None:
    base, ours, theirs = edits
    both = applied(base, [*ours, *theirs])
    assert merge(base, applied(base, ours), applied(base, theirs)) == (both, True)


def test_different_changes_to_the_same_line_conflict() -> None:
    lines, clean = merge(
        ["one", "two", "three"], ["one", "ours", "three"], ["one", "theirs", "three"]
    )
    assert not clean
    assert lines == [
        "one",
        "<<<<<<< override",
        "ours",
        "||||||| written against",
        "two",
        "=======",
        "theirs",
        ">>>>>>> code",
        "three",
    ]


# -------------------------------------------------------------------------------------------------
# files


def describe(body: str, summary: str = "Short.", **more: Any) -> PromptDescriptor:
    section = MarkdownSection[Who](title="A", template=body, summary=summary, **more)
    return PromptTemplate(ns="tests", key="rebase", sections=[section]).descriptor


@pytest.fixture
def store(tmp_path: Path) -> LocalPromptOverridesStore:
    return LocalPromptOverridesStore(tmp_path)


PLACE = OverridesTag("tests", "rebase")


def test_stale_override_applies_again_after_a_clean_rebase(
    store: LocalPromptOverridesStore,
) -> None:
    then, now = describe("One.\n\nTwo."), describe("One.\n\nTwo, $name.")
    store.upsert(then, SectionOverride(path=("a",), body="First.\n\nTwo.", summary="Shorter."))
    assert store.resolve(now).texts == {}
    result = store.rebase(now)
    assert result.merged == (BODY, TextId("summary", "a"))
    assert result.conflicts == ()
    resolved = store.resolve(now)
    assert resolved.texts == {BODY: "First.\n\nTwo, $name.", TextId("summary", "a"): "Shorter."}
    assert resolved.stale == ()
    assert store.rebase(now).merged == ()


def test_rebased_override_can_be_rebased_again(store: LocalPromptOverridesStore) -> None:
    store.upsert(describe("1\n\n2\n\n3"), SectionOverride(path=("a",), body="one\n\n2\n\n3"))
    for body, merged in [
        ("1\n\ntwo\n\n3", "one\n\ntwo\n\n3"),
        ("1\n\ntwo\n\nthree", "one\n\ntwo\n\nthree"),
    ]:
        store.rebase(describe(body))
        assert store.resolve(describe(body)).texts == {BODY: merged}


def test_conflict_is_written_for_review_and_leaves_the_override_unchanged(
    store: LocalPromptOverridesStore,
) -> None:
    store.upsert(describe("Hello."), SectionOverride(path=("a",), body="Hi."))
    before = store.path(PLACE).read_bytes()
    now = describe("Good day.")
    result = store.rebase(now)
    assert [(conflict.id, conflict.reason[:17]) for conflict in result.conflicts] == [
        (BODY, "Both have changed")
    ]
    assert store.path(PLACE).read_bytes() == before
    review = store.path(PLACE, ".conflicts.md")
    assert review.name == "latest.conflicts.md"
    text = review.read_text()
    assert text.startswith("# Overrides to settle\n\n## body a\n\nBoth have changed")
    assert (
        "    <<<<<<< override\n    Hi.\n    ||||||| written against\n    Hello.\n    =======\n    "
        "Good day.\n" in text
    )
    store.upsert(describe("Hello.\n\nBye."), SectionOverride(path=("a",), body="Hi.\n\nBye."))
    assert all(
        line.startswith("    ") for line in str(store.rebase(now)).split("\n\n", 3)[-1].splitlines()
    )
    assert store.list() == (PLACE,)
    store.upsert(now, SectionOverride(path=("a",), body="Hi and good day."))
    assert store.rebase(now).conflicts == ()
    assert not review.exists()
    assert store.resolve(now).texts == {BODY: "Hi and good day."}


def test_deleting_an_override_set_removes_its_conflicts(store: LocalPromptOverridesStore) -> None:
    store.upsert(describe("Hello."), SectionOverride(path=("a",), body="Hi."))
    assert store.rebase(describe("Good day.")).conflicts
    review = store.path(PLACE, ".conflicts.md")
    assert review.exists()
    store.delete(PLACE)
    assert not review.exists()


def test_merged_override_applies_despite_a_conflict_in_another_text(
    store: LocalPromptOverridesStore,
) -> None:
    then, now = describe("Hello."), describe("Good day.", "Short now.")
    store.upsert(then, SectionOverride(path=("a",), body="Hello."))
    store.upsert(then, SectionOverride(path=("a",), summary="Tiny."))
    result = store.rebase(now)
    assert result.merged == (BODY,)
    assert [conflict.id for conflict in result.conflicts] == [TextId("summary", "a")]
    resolved = store.resolve(now)
    assert resolved.texts == {BODY: "Good day."}
    assert [(stale.id.kind, stale.base, stale.text, stale.current) for stale in resolved.stale] == [
        ("summary", "Short.", "Tiny.", "Short now.")
    ]


def test_merged_text_that_cannot_be_rendered_is_a_conflict(
    store: LocalPromptOverridesStore,
) -> None:
    store.upsert(
        describe("Hello.\n\nBye."), SectionOverride(path=("a",), body="Hello $name.\n\nBye.")
    )
    section = MarkdownSection(title="A", template="Hello.\n\nGood bye.", summary="Short.")
    now = PromptTemplate(ns="tests", key="rebase", sections=[section]).descriptor
    (conflict,) = store.rebase(now).conflicts
    assert "'$name'" in conflict.reason
    assert conflict.text == "Hello $name.\n\nGood bye."


def test_override_of_removed_or_fixed_text_is_a_conflict(
    store: LocalPromptOverridesStore,
) -> None:
    tool = Tool[Who, None](name="greet")
    then = describe("Hello.", tools=[tool])
    store.upsert(then, SectionOverride(path=("a",), body="Hi."))
    store.upsert(then, ToolOverride(tool_name="greet", description="Says hello."))
    now = describe("Hello.", accepts_overrides=False)
    result = store.rebase(now)
    assert result.merged == ()
    assert [
        (str(conflict.id), conflict.reason, conflict.text) for conflict in result.conflicts
    ] == [
        ("body a", "The text accepts no overrides now.", "Hi."),
        ("tool greet", "The prompt has no such text any more.", "Says hello."),
    ]
    assert [(str(stale.id), stale.reason) for stale in store.resolve(now).stale] == [
        ("body a", "fixed"),
        ("tool greet", "gone"),
    ]


def test_rebase_without_overrides_does_nothing(store: LocalPromptOverridesStore) -> None:
    result = store.rebase(describe("Hello."))
    assert (result.merged, result.conflicts) == ((), ())
    assert store.list() == ()
