"""One template string compiled once, so that substitution is attribute reads and one format.

What it gives and raises is exactly what `string.Template.substitute` gives and raises.
"""

import string
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from operator import attrgetter

__all__ = ["CompiledTemplate", "compiled", "field_names"]


class CompiledTemplate:
    """A `string.Template` text, ready to be filled from a dataclass instance; a value, not changed
    once made.

    `names` are its placeholders; `malformed` is where the first `$` stands that starts none (`$$`
    is a dollar sign). For params that have all of the names as fields the text is `format %
    values(params)`.
    """

    __slots__ = ("format", "malformed", "names", "source", "values")

    def __init__(self, source: str) -> None:
        self.source = source
        self.malformed: int | None = None
        names: list[str] = []
        parts: list[str] = []
        start = 0
        for match in string.Template.pattern.finditer(source):
            parts.append(source[start : match.start()].replace("%", "%%"))
            start = match.end()
            if name := match["named"] or match["braced"]:
                names.append(name)
                parts.append("%s")
            elif match["escaped"] is not None:
                parts.append("$")
            elif self.malformed is None:
                self.malformed = match.start()
        parts.append(source[start:].replace("%", "%%"))
        self.names = frozenset(names)
        self.format = "".join(parts)
        self.values = _reader(names)

    def __reduce__(self) -> tuple[type["CompiledTemplate"], tuple[str]]:
        return CompiledTemplate, (self.source,)

    def substitute(self, params: object) -> str:
        """The text with each placeholder replaced by `str` of the field of that name.

        Raises `KeyError` with the name of a field that `params` lacks, `ValueError` for a malformed
        placeholder.
        """
        known = field_names(params) if self.names else self.names
        if self.malformed is None and self.names <= known:
            return self.format % self.values(params)
        return string.Template(self.source).substitute(
            {name: getattr(params, name) for name in self.names & known}
        )


# a text of a section, or an override, is filled many times
compiled = lru_cache(maxsize=4096)(CompiledTemplate)


def field_names(params: object) -> frozenset[str]:
    """The fields of a dataclass or an instance; those of anything else are none."""
    # `fields` leaves out ClassVar and InitVar, which instances do not hold.
    return frozenset([one.name for one in fields(params)]) if is_dataclass(params) else frozenset()


def _reader(names: list[str]) -> Callable[[object], object]:
    """Reads the named attributes as one tuple."""
    match names:
        case []:
            return lambda _params: ()
        case [name]:
            read = attrgetter(name)
            return lambda params: (read(params),)
        case _:
            return attrgetter(*names)
