"""Keys of JSON objects are unique, and patterns are matched in linear time."""

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.typed_values import TEXT
from weakincentives.errors import SerdeError
from weakincentives.serde import check_unique_keys, line_matcher


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("b", "abc", True),
        ("^b", "abc", False),
        (r"\d{2}$", "a12", True),
        ("", "", True),
        ("É", "é", False),
        (".", "\n", False),
    ],
)
def test_line_matcher_searches_anywhere_in_the_text(
    pattern: str, text: str, *, found: bool
) -> None:
    assert line_matcher(pattern)(text) is found


def test_line_matcher_can_ignore_case() -> None:
    assert line_matcher("É|x", ignore_case=True)("é")
    assert line_matcher("a|B", ignore_case=True)("b")


def test_line_matcher_takes_linear_time() -> None:
    started = process_time()
    assert not line_matcher("(a+)+$")("a" * 100_000 + "b")
    assert process_time() - started < 10


@pytest.mark.parametrize(
    "pattern", ["(", "[", "(?=a)", "(?<!a)b", r"(a)\1", "a{1000}{1000}{1000}", "*"]
)
def test_unsupported_pattern_raises_value_error_with_a_remedy(pattern: str) -> None:
    with pytest.raises(ValueError, match="look-around and back-references are not supported"):
        line_matcher(pattern)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


@given(value=JSON_VALUES, key=TEXT, place=st.lists(st.sampled_from(["list", "dict"]), max_size=4))
def test_duplicate_key_is_rejected_at_any_depth(value: object, key: str, place: list[str]) -> None:
    text, name = json.dumps(value), json.dumps(key)
    check_unique_keys("file", text)
    text = f"{{{name}: 1, {name}: {text}}}"
    for outer in place:
        text = f"[1, {text}]" if outer == "list" else f'{{"a": {text}}}'
    with pytest.raises(
        SerdeError, match=r"file: the key .* stands twice in one object; remove one of them"
    ):
        check_unique_keys("file", text)


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": 1, "a": 2', b"\xff", "[" * 100_000, '{"a": NaN}', "1" * 5_000]
)
def test_check_unique_keys_ignores_malformed_json(text: str | bytes) -> None:
    check_unique_keys("file", text)
