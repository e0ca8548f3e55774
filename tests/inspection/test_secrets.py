"""Text in a log that looks like a secret is masked, and other text does not change."""

import pytest

from weakincentives.inspection.secrets import mask_secrets


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('{"password": "hunter2", "seats": 1}', '{"password": "***", "seats": 1}'),
        (r"{\"apiKey\": \"abcdefgh\"}", r"{\"apiKey\": \"***\"}"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("curl -H 'X: Bearer abcdefghijklmnop'", "curl -H 'X: Bearer ***'"),
        ("export SHOP_TOKEN=abcdefgh", "export SHOP_TOKEN=***"),
        ("postgres://bob:pw12@db/shop", "postgres://bob:***@db/shop"),
        ("use sk-proj-12345678901234567890 now", "use sk-*** now"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n", "-----BEGIN PRIVATE KEY-----***"),
        ("input_tokens: 1000000, section_key: refunds", None),
        ("The token is blue; token_count: 5000000", None),
        ("def f(token: str) -> None", None),
    ],
)
def test_only_text_that_looks_like_a_secret_is_masked(text: str, masked: str | None) -> None:
    assert mask_secrets(text) == (text if masked is None else masked)


def test_field_named_like_a_secret_is_masked_completely() -> None:
    assert mask_secrets("short", "client_secret") == "***"
    assert mask_secrets("refunds", "section_key") == "refunds"
    assert mask_secrets("5", "max_tokens") == "5"
