"""JSON text without duplicate keys, and patterns that match in linear time."""

import json
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial

from ..errors import SerdeError, ValidationIssue
from .json_types import AnyJson

__all__ = ["check_unique_keys", "line_matcher", "load_unique"]


def load_unique(subject: str, text: str | bytes) -> AnyJson:
    """Parses the JSON `text`; raises `SerdeError` if an object contains a duplicate key.

    Raises `ValueError` for text that is not JSON.
    """
    return json.loads(text, object_pairs_hook=partial(_unique_keys, subject))


def check_unique_keys(subject: str, text: str | bytes) -> None:
    """Raises `SerdeError` about `subject` if an object in the JSON `text` has a duplicate key.

    Parsers silently keep the last value. Text that is not JSON passes, because a parser reports it
    better.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        strings = text.split('"')[1::2]
        # Equal strings may also be keys of different objects, or values.
        if "\\" in text or len(set(strings)) < len(strings):
            _unique_decoder(subject).raw_decode(text.lstrip())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return


@lru_cache(maxsize=64)
def _unique_decoder(subject: str) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=partial(_unique_keys, subject), parse_int=str)


def _unique_keys(subject: str, pairs: list[tuple[str, AnyJson]]) -> dict[str, AnyJson]:
    values = dict(pairs)
    if len(values) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        message = f"the key {key!r:.200} stands twice in one object; remove one of them"
        raise SerdeError(subject, (ValidationIssue((), message),))
    return values


def line_matcher(pattern: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Returns a function that searches a text for `pattern`, in time linear in the text's length.

    It uses the engine behind pydantic's string patterns, which supports neither look-around nor
    back-references. Raises `ValueError` for a pattern that the engine does not support.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    regex = ("(?i)" if ignore_case else "") + pattern
    try:
        schema = core_schema.str_schema(pattern=regex, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        reason = " ".join(f"{error}".split())
        raise ValueError(
            f"invalid pattern {pattern!r:.200} ({reason:.300}); look-around and back-references "
            "are not supported"
        ) from error
