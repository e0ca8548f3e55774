"""One template string compiled once, so that substitution is attribute reads and one format.

What it gives and raises is exactly what `string.Template.substitute` gives and raises.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

__all__ = ["CompiledTemplate"]


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """A `string.Template` text, ready to be filled from a dataclass instance.

    `names` are its placeholders; `malformed` is where the first `$` stands that starts none (`$$` is a dollar sign).
    """

    source: str
    names: frozenset[str] = field(init=False)
    malformed: int | None = field(init=False, default=None)
    _format: str = field(init=False, repr=False)
    _values: Callable[[object], object] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names: list[str] = []
        parts: list[str] = []
        start = 0
        for match in string.Template.pattern.finditer(self.source):
            parts.append(self.source[start : match.start()].replace("%", "%%"))
            start = match.end()
            if name := match["named"] or match["braced"]:
                names.append(name)
                parts.append("%s")
            elif match["escaped"] is not None:
                parts.append("$")
            elif self.malformed is None:
                object.__setattr__(self, "malformed", match.start())
        parts.append(self.source[start:].replace("%", "%%"))
        object.__setattr__(self, "names", frozenset(names))
        object.__setattr__(self, "_format", "".join(parts))
        object.__setattr__(self, "_values", _reader(names))

    def __reduce__(self) -> tuple[type["CompiledTemplate"], tuple[str]]:
        return CompiledTemplate, (self.source,)

    def substitute(self, params: object) -> str:
        """The text with each placeholder replaced by `str` of the field of that name.

        Raises `KeyError` with the name of a field that `params` lacks, `ValueError` for a malformed placeholder.
        """
        if self.malformed is None:
            if self._values is None:
                return self._format % ()
            try:
                return self._format % self._values(params)
            except AttributeError:
                pass
        names = getattr(params, "__dataclass_fields__", ())
        return string.Template(self.source).substitute({name: getattr(params, name) for name in names})


def _reader(names: list[str]) -> Callable[[object], object] | None:
    """Reads the named attributes as one tuple."""
    match names:
        case []:
            return None
        case [name]:
            read = attrgetter(name)
            return lambda params: (read(params),)
        case _:
            return attrgetter(*names)
