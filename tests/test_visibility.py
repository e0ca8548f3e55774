"""Visibility overrides are values, which do not change with the mapping they were created from."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.visibility import (
    SectionPath,
    SectionVisibility,
    SetVisibilityOverride,
    VisibilityOverrides,
)

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY

paths = st.lists(st.sampled_from(["a", "b", "a.b"]), min_size=1, max_size=3).map(tuple)
mappings = st.dictionaries(paths, st.sampled_from(SectionVisibility), max_size=4)


@pytest.mark.claim("PR-15")
def test_section_visibility_has_string_values_full_and_summary() -> None:
    assert {text: SectionVisibility(text) for text in ("full", "summary")} == {
        "full": FULL,
        "summary": SUMMARY,
    }
    assert list(SectionVisibility) == [FULL, SUMMARY]


@given(mappings, paths, st.sampled_from(SectionVisibility))
def test_with_override_returns_a_changed_copy(
    mapping: dict[SectionPath, SectionVisibility], path: SectionPath, visibility: SectionVisibility
) -> None:
    before = VisibilityOverrides(mapping)
    after = before.with_override(path, visibility)
    assert after.overrides == {**mapping, path: visibility}
    assert after.get(path) is visibility
    assert before == VisibilityOverrides(overrides=mapping)


@given(mappings)
def test_equal_overrides_compare_equal_after_copy_and_pickle(
    mapping: dict[SectionPath, SectionVisibility],
) -> None:
    one, other = VisibilityOverrides(mapping), VisibilityOverrides(dict(reversed(mapping.items())))
    assert one == other
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == other


def test_overrides_do_not_change_with_their_mapping() -> None:
    mapping: dict[SectionPath, SectionVisibility] = {("a",): FULL}
    overrides = VisibilityOverrides(mapping)
    mapping["a",] = SUMMARY
    assert overrides.get(("a",)) is FULL
    with pytest.raises(TypeError):
        overrides.overrides["a",] = SUMMARY  # type: ignore[index]  # pyright: ignore[reportIndexIssue]


def test_get_matches_the_complete_path() -> None:
    overrides = VisibilityOverrides({("a", "b"): FULL})
    assert [overrides.get(path) for path in (("a",), ("a.b",), ("b",), ("a", "b"))] == [
        None,
        None,
        None,
        FULL,
    ]


def test_no_overrides_by_default() -> None:
    assert VisibilityOverrides() == VisibilityOverrides({})
    assert VisibilityOverrides().get(("a",)) is None


def test_set_visibility_override_is_a_hashable_value() -> None:
    event = SetVisibilityOverride(path=("a",), visibility=FULL)
    assert event == SetVisibilityOverride(path=("a",), visibility=FULL)
    assert len({event, SetVisibilityOverride(path=("a",), visibility=SUMMARY)}) == 2
