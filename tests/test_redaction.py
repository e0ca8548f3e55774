"""The redactor masks credentials wherever they are quoted, and leaves other text unchanged."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.redaction import Redactor, causes, credentials_in

KEY = "sk-marked-0123456789+secret/"
KEYS = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"),
    min_size=8,
    max_size=40,
)


@given(before=st.text(), key=KEYS, after=st.text())
def test_credential_does_not_appear_in_redacted_text(before: str, key: str, after: str) -> None:
    shown = Redactor((key,))(before + key + after)
    assert key not in shown
    assert "***" in shown


@given(text=st.text(), keys=st.lists(KEYS))
def test_text_without_credentials_is_unchanged(text: str, keys: list[str]) -> None:
    absent = [key for key in keys if key not in text and quote(key, safe="") not in text]
    assert Redactor(tuple(absent))(text) == text


def test_credential_that_contains_another_is_masked_completely() -> None:
    assert (
        Redactor(("marked-key", "Bearer marked-key-2"))("a Bearer marked-key-2 b marked-key")
        == "a *** b ***"
    )


def test_url_encoded_credential_is_masked() -> None:
    assert Redactor((KEY,))(f"GET /v1?key={quote(KEY, safe='')}") == "GET /v1?key=***"


@pytest.mark.parametrize("word", ["", "unused", "ollama", "       x"])
def test_placeholder_key_is_not_masked(word: str) -> None:
    text = f"the model {word} is overloaded"
    assert Redactor((word,))(text) == text


def test_extend_ignores_empty_values() -> None:
    redactor = Redactor((KEY,))
    assert redactor.extend([None, ""]) == redactor
    assert redactor.extend([None, "another-key"]).credentials == (KEY, "another-key")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", f"Bearer {KEY}"),
        ("authorization", KEY),
        ("x-api-key", KEY),
        ("api-key", KEY),
        ("X-Goog-Api-Key", KEY),
        ("x_api_key", KEY),
        ("X-Auth-Token", KEY),
        ("Ocp-Apim-Subscription-Key", KEY),
        ("Cookie", KEY),
    ],
)
def test_credential_header_is_recognized_by_its_name(name: str, value: str) -> None:
    assert KEY in credentials_in({"content-type": "application/json", name: value})


def test_no_other_header_is_a_credential() -> None:
    headers = {
        "content-type": "application/json",
        "user-agent": "openai",
        "idempotency-key": "abc",
        "x-request-id": "1",
    }
    assert list(credentials_in(headers)) == []


def test_credentials_are_found_in_bytes() -> None:
    headers = {"authorization": f"Bearer {KEY}".encode(), "content-type": b"application/json"}
    assert list(credentials_in(headers)) == [f"Bearer {KEY}", KEY]


def test_credential_is_found_in_the_cause_of_an_error() -> None:
    redactor, error = Redactor((KEY,)), RuntimeError("failed")
    error.__cause__ = ValueError(f"no capacity for {KEY}")
    assert list(causes(error)) == [error, error.__cause__]
    assert redactor.finds_in(error)
    assert not Redactor(("another-key",)).finds_in(error)


def test_cyclic_causes_are_followed_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]


def test_suppressed_context_is_not_followed() -> None:
    error = RuntimeError("failed")
    error.__context__ = ValueError(KEY)
    error.__suppress_context__ = True
    assert list(causes(error)) == [error]
