"""One template string compiled once, so that substitution is attribute reads and one format.

What it gives and raises is exactly what `string.Template.substitute` gives and raises.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
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
    format: str = field(init=False, repr=False)
    values: Callable[[object], object] = field(init=False, repr=False, compare=False)
    fits: type | None = field(init=False, default=None, repr=False, compare=False)

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
        object.__setattr__(self, "format", "".join(parts))
        object.__setattr__(self, "values", _reader(names))

    def __reduce__(self) -> tuple[type["CompiledTemplate"], tuple[str]]:
        return CompiledTemplate, (self.source,)

    def substitute(self, params: object) -> str:
        """The text with each placeholder replaced by `str` of the field of that name.

        Raises `KeyError` with the name of a field that `params` lacks, `ValueError` for a malformed placeholder.
        """
        if type(params) is self.fits or self._fit(params):
            return self.format % self.values(params)
        names = self.names & _field_names(params)
        return string.Template(self.source).substitute({name: getattr(params, name) for name in names})

    def _fit(self, params: object) -> bool:
        """Whether each placeholder is a field of `params`; looked up once for a run of params of one type."""
        fits = self.malformed is None and self.names <= _field_names(params)
        if fits:
            object.__setattr__(self, "fits", type(params))
        return fits


def _field_names(params: object) -> set[str]:
    return {one.name for one in fields(params)} if is_dataclass(params) else set()


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
