"""A redactor masks the credentials of an adapter's requests in whatever the adapter reports."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

__all__ = ["Redactor", "causes", "header_credentials"]

_MASK = "***"
_SHORTEST = 8
_CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
_CREDENTIAL_WORDS = (
    "api-key",
    "apikey",
    "token",
    "secret",
    "password",
    "credential",
    "subscription-key",
    "auth-key",
)


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replaces `credentials` in texts by `***`.

    Pass what a request sends as credentials: keys, tokens, values of `header_credentials`. Values of
    fewer than 8 characters stay readable: local servers accept words as keys, and a word may occur
    in any text.
    """

    credentials: tuple[str, ...] = ()

    def __call__(self, text: str) -> str:
        """Returns `text` with each credential masked, also where it is escaped for a URL."""
        values = {value.strip() for value in self.credentials}
        values = {value for value in values if len(value) >= _SHORTEST}
        spellings = values | {quote(value, safe="") for value in values}
        # a credential may be a part of another one
        for spelling in sorted(spellings, key=len, reverse=True):
            text = text.replace(spelling, _MASK)
        return text

    def adding(self, credentials: Iterable[str | None]) -> "Redactor":
        """Returns a redactor that masks `credentials` too, except `None` and empty values."""
        added = [value for value in credentials if value]
        if not added:
            return self
        return replace(self, credentials=tuple(dict.fromkeys([*self.credentials, *added])))

    def quoted_in(self, error: BaseException) -> bool:
        """Tells whether the text of `error` or of an error that led to it has a credential."""
        texts = [f"{cause} {cause!r}" for cause in causes(error)]
        return any(self(text) != text for text in texts)


def header_credentials(headers: Mapping[str, str]) -> Iterator[str]:
    """Yields the credentials in request headers: whole values, and those after a `Bearer` scheme."""
    for header, value in headers.items():
        name = header.lower().replace("_", "-")
        if name in _CREDENTIAL_HEADERS or any(word in name for word in _CREDENTIAL_WORDS):
            yield value
            scheme, _, credential = value.partition(" ")
            if scheme.isalpha() and credential:
                yield credential.strip()


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields `error` and the errors that led to it, as a traceback shows them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
