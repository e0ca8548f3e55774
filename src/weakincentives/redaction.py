"""Masks an adapter's credentials in everything that it reports."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

__all__ = ["MASK", "SECRET_NAMES", "Redactor", "causes", "credentials_in"]

MASK = "***"
"""The replacement for a secret in text."""

_SHORTEST = 8
SECRET_NAMES = (
    *("api_key", "api-key", "apiKey", "apikey", "access_key", "private_key", "secret", "password"),
    *("passwd", "passphrase", "credential", "authorization", "cookie", "token", "jwt"),
)
"""A field, header or variable whose name contains one of these words is a secret."""

# "key" in the name of a header, variable or option means a secret; in a data field, it may not.
_CREDENTIAL_NAME = re.compile("|".join(("key", *SECRET_NAMES)), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replaces `credentials` in texts with `***`.

    Values of fewer than 8 characters are not masked: local servers accept ordinary words as keys,
    and such a word may appear in any text.
    """

    credentials: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        """Returns `text` with each credential masked, even if it is escaped for a URL."""
        values = {value.strip() for value in self.credentials}
        plain = {value for value in values if len(value) >= _SHORTEST}
        # longest first, because one credential may be part of another
        for spelling in sorted(plain | {quote(value, safe="") for value in plain}, key=len)[::-1]:
            text = text.replace(spelling, MASK)
        return text

    def extend(self, credentials: Iterable[str | None]) -> "Redactor":
        """Returns a redactor that also masks `credentials`; ignores `None` and empty values."""
        return Redactor((*self.credentials, *[value for value in credentials if value]))

    def finds_in(self, error: BaseException) -> bool:
        """Whether the text of `error`, or of an error that led to it, contains a credential."""
        texts = [f"{cause} {cause!r}" for cause in causes(error)]
        return any(self(text) != text for text in texts)


def credentials_in(values: Mapping[str, object]) -> Iterator[str]:
    """Yields the credentials among headers, variables or options, recognized by their names.

    A value such as `Bearer …` is yielded both with and without its scheme. Nested mappings are also
    searched.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from credentials_in({f"{key}": inner for key, inner in value.items()})
        elif isinstance(value, str | bytes) and _names_credential(name):
            text = value if isinstance(value, str) else value.decode("latin-1")  # as in headers
            yield text
            scheme, _, credential = text.partition(" ")
            if scheme.isalpha() and credential:
                yield credential.strip()


def _names_credential(name: str) -> bool:
    return name.lower() != "idempotency-key" and bool(_CREDENTIAL_NAME.search(name))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields `error` and the errors that led to it, as a traceback shows them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
