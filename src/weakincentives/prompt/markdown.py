"""One template string compiled once, so that substitution is attribute reads and one format.

What it gives and raises is exactly what `string.Template.substitute` gives and raises.
"""

import string
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter

__all__ = ["CompiledTemplate"]


class CompiledTemplate:
    """A `string.Template` text, ready to be filled from a dataclass instance; a value, not changed once made.

    `names` are its placeholders; `malformed` is where the first `$` stands that starts none (`$$` is a dollar sign).
    For params of the type `fits` the text is `format % values(params)`; unless it is `ragged`, no white space ends it.
    """

    __slots__ = ("fits", "format", "malformed", "names", "ragged", "source", "values")

    def __init__(self, source: str, fits: type | None = None) -> None:
        self.source = source
        self.malformed: int | None = None
        self.fits = fits
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
        self.ragged = self.format.rstrip() != self.format or self.format.endswith("%s")
        self.values = _reader(names)

    def under(self, heading: str, params_type: type | None) -> "CompiledTemplate":
        """This text under a heading line, for params of one type, which has all its fields; `None` for no params."""
        whole = CompiledTemplate.__new__(CompiledTemplate)  # from the parts, without compiling again
        whole.source = f"{heading.replace('$', '$$')}\n\n{self.source}"
        whole.format = f"{heading.replace('%', '%%')}\n\n{self.format}"
        whole.ragged = self.ragged or not self.format
        whole.fits = type(None) if params_type is None else params_type
        whole.names, whole.malformed, whole.values = self.names, self.malformed, self.values
        return whole

    def __reduce__(self) -> tuple[type["CompiledTemplate"], tuple[str, type | None]]:
        return CompiledTemplate, (self.source, self.fits)

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
            self.fits = type(params)
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
