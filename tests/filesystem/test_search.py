"""The size of a pattern, which limits a search."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.filesystem.search import pattern_size
from weakincentives.serde import line_matcher


@dataclass(frozen=True)
class Sample:
    """A pattern, and its number of atoms when each repeat is written out."""

    text: str
    atoms: int


ATOMS = st.sampled_from(
    ["a", "b", ".", r"\w", "[ab]", "[(]", "[)]", "[{5}]", r"\{", r"\)", r"\x{41}", r"\p{L}", ""]
)


def joined(parts: list[Sample]) -> Sample:
    return Sample("".join(part.text for part in parts), sum(part.atoms for part in parts))


def alternatives(parts: list[Sample]) -> Sample:
    return Sample(f"(?:{'|'.join(part.text for part in parts)})", sum(part.atoms for part in parts))


def repeated(part: Sample, least: int, more: int | None) -> Sample:
    most = "" if more is None else str(least + more)
    count = f"{{{least}}}" if more == 0 else f"{{{least},{most}}}"
    return Sample(f"(?:{part.text}){count}", part.atoms * max(1, least + (more or 0)))


def starred(part: Sample, sign: str) -> Sample:
    return Sample(f"(?:{part.text}){sign}", part.atoms)


def grown(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    several = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        several.map(joined),
        several.map(alternatives),
        st.builds(repeated, inner, st.integers(0, 6), st.none() | st.integers(0, 6)),
        st.builds(starred, inner, st.sampled_from(["*", "+?", "?"])),
    )


PATTERNS = st.recursive(
    ATOMS.map(lambda text: Sample(text, 1 if text else 0)), grown, max_leaves=12
)


@given(PATTERNS)
def test_pattern_size_is_never_underestimated(sample: Sample) -> None:
    pattern = f"{sample.text}[?]"  # always a pattern, never plain text
    line_matcher(pattern)
    assert pattern_size(pattern) > sample.atoms


@pytest.mark.parametrize(
    ("pattern", "atoms"),
    [
        ("a{5}{6}", 30),
        ("a{5}?{6}", 30),
        ("a*{6}", 6),
        ("a{ 5 , 9 }b", 10),
        ("(a{0,10}){1000}", 10_000),
        (r"\({20}", 20),
        ("(?i)a{60}", 60),
        ("[]a]{7}", 7),
    ],
)
def test_repeats_multiply_the_pattern_size(pattern: str, atoms: int) -> None:
    line_matcher(pattern)
    assert atoms <= pattern_size(pattern) <= 4 * atoms + 40


@pytest.mark.parametrize("pattern", ["needle", "a" * 9_000, "TODO: x", "päth/to-it"])
def test_plain_text_has_pattern_size_one(pattern: str) -> None:
    assert pattern_size(pattern) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        r"def (\w+)\(self.*\) -> .*Match",
        r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}",
        r"(\d{1,3}\.){3}\d{1,3}",
    ],
)
def test_ordinary_patterns_have_a_small_size(pattern: str) -> None:
    assert pattern_size(pattern) < 100
