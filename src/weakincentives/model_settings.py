"""`ModelSettings` sets how a model answers; `Layered` is how settings and configs are combined."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Literal, Self, get_args

from .redaction import Redactor, credentials_in
from .signatures import check_names

__all__ = [
    "TOOL_CHOICES",
    "CacheTTL",
    "Effort",
    "Layered",
    "ModelSettings",
    "merged",
    "unsupported",
]

type Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model reasons before it answers; no provider has all of these."""

type CacheTTL = Literal["5m", "30m", "1h", "24h"]
"""How long a provider keeps a prompt in its cache; no provider has all of these."""


TOOL_CHOICES = ("auto", "none", "required")
"""The values of `tool_choice` that are not the name of a tool."""

_OWN = ("_given", "_layers")
_OWN_FIELDS = {"input", "messages", "stream", "stream_options"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered:
    """A record of options that knows with which of them it was created.

    Raises `TypeError` for an option that does not exist.
    """

    _given: frozenset[str] = field(init=False, repr=False, compare=False)
    _layers: "tuple[Self, ...]" = field(init=False, repr=False, compare=False)

    def __new__(cls, **given: object) -> Self:
        names = cls.__dataclass_fields__
        if not given.keys() <= names.keys() or not given.keys().isdisjoint(_OWN):
            known = [name for name in names if name not in _OWN]
            check_names(f"{cls.__name__}()", given, known)
        record = object.__new__(cls)
        object.__setattr__(record, "_given", frozenset(given))
        object.__setattr__(record, "_layers", ())
        return record

    @property
    def layers(self) -> "tuple[Self, ...]":
        """The records that were combined in this one, farthest first."""
        return self._layers or (self,)

    @property
    def given(self) -> frozenset[str]:
        """The names of the options with which the record was created."""
        return self._given

    def over(self, base: Self) -> Self:
        """Returns a record with the options that were given here, and otherwise those of `base`.

        Records inside are combined in the same way, and mappings at every depth.
        """
        if not self._given:
            return base
        values = {name: getattr(base, name) for name in base.given}
        for name in self._given:
            values[name] = _nearer(getattr(self, name), values.get(name))
        combined = type(self)(**values)
        object.__setattr__(combined, "_layers", (*base.layers, *self.layers))
        return combined

    def without(self, *names: str) -> Self:
        """Returns a record that was not given these options."""
        kept = type(self)(**{name: getattr(self, name) for name in self._given.difference(names)})
        layers = tuple([layer.without(*names) for layer in self._layers])
        object.__setattr__(kept, "_layers", layers)
        return kept


def _nearer(value: object, base: object) -> object:
    match value, base:
        case Layered(), Layered():
            return value.over(base)
        case Mapping(), Mapping():
            return merged(base, value)
        case _:
            return value


def merged(base: Mapping[str, object], nearer: Mapping[str, object]) -> dict[str, object]:
    """Returns both mappings combined at every depth; of other values, the nearer one applies."""
    return {**base, **{key: _nearer(value, base.get(key)) for key, value in nearer.items()}}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelSettings(Layered):
    """How a model answers. A setting that you do not pass is not sent.

    Adapters and templates have `settings`, and each call accepts them, also in a `RunConfig`. For
    each setting, the nearest one applies: a call's, then the template's, then the adapter's. `None`
    removes a farther setting, including one in the adapter's `options`.

    `max_output_tokens` limits one answer, including its reasoning. `reasoning` is the effort that
    the model spends on reasoning. `tool_choice` is `"auto"`, `"none"`, `"required"` or a tool's
    name; a required call is required until the run's first tool call. `parallel_tool_calls=False`
    limits the model to one call per answer. Without tools, both are left out. `cache_ttl` is the
    time for which the provider caches a prompt. `timeout` limits each request, in seconds,
    including retries and the time that you take to read a stream. `extra` is added to the request
    at every depth; its lists replace other lists, except that its `tools` are added.

    To change one setting, use `over`: `dataclasses.replace` would pass all of them.

    A run raises `ValueError` before its first request if the adapter or the server's profile does
    not support a setting. If only the model does not, the server rejects the request. Raises
    `TypeError` and `ValueError` for invalid values, and `TypeError` for a setting that does not
    exist.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning: Effort | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    cache_ttl: CacheTTL | None = None
    service_tier: str | None = None
    timeout: float | None = None
    extra: Mapping[str, object] = field(default_factory=dict[str, object], hash=False)
    _given: frozenset[str] = field(init=False, repr=False)  # unset and `None` are not equal

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "timeout"):
            _check(name, getattr(self, name), (int, float), "a number")
        for name in ("max_output_tokens", "seed"):
            _check(name, getattr(self, name), (int,), "an int")
        for name in ("tool_choice", "service_tier"):
            _check(name, getattr(self, name), (str,), "a str")
        _check("parallel_tool_calls", self.parallel_tool_calls, (bool,), "a bool")
        for name, form in (("reasoning", Effort), ("cache_ttl", CacheTTL)):
            values, value = get_args(form.__value__), getattr(self, name)
            if value is not None and value not in values:
                raise ValueError(f"{name} must be one of {', '.join(values)}, got {value!r}")
        for name in ("max_output_tokens", "timeout"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, got {value!r}")
        if self.tool_choice == "":
            raise ValueError("tool_choice must not be empty")
        self._check_collections()

    def _check_collections(self) -> None:
        if self.stop is not None:
            _check("stop", self.stop, (str, tuple, list), "a str or several")
            stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
            for text in stop:
                _check("stop", text, (str,), "a str or several")
            object.__setattr__(self, "stop", tuple(filter(None, stop)))
        if not isinstance(self.extra, Mapping):
            raise TypeError(f"extra must be a mapping, got {self.extra!r}")
        if names := sorted(self.extra.keys() & _OWN_FIELDS):
            raise ValueError(f"extra cannot contain {names[0]!r} because the adapter sets it")
        if not isinstance(self.extra.get("tools", []), list | tuple):
            raise TypeError(f"extra['tools'] must be a list, got {self.extra['tools']!r}")
        object.__setattr__(self, "extra", _copied(self.extra))

    def __repr__(self) -> str:
        given = [
            f"{it.name}={getattr(self, it.name)!r}" for it in fields(self) if it.name in self.given
        ]
        mask = Redactor().extend(credentials_in(self.extra))
        return mask(f"ModelSettings({', '.join(given)})")

    @property
    def forces_call(self) -> bool:
        """Whether the model must call a tool."""
        return self.tool_choice not in (None, "auto", "none")

    def without_forced_call(self) -> "ModelSettings":
        """Returns the settings with which the model may answer without a tool call."""
        return ModelSettings(tool_choice="auto").over(self) if self.forces_call else self


def unsupported(names: Collection[str], by: str, remedy: str = "remove it") -> ValueError:
    """Returns the error for settings that `by` does not support."""
    plural = "s" if len(names) > 1 else ""
    shown = ", ".join(sorted(names))
    return ValueError(f"{by} does not support the setting{plural} {shown}; {remedy}")


def _copied(value: object) -> object:
    match value:
        case Mapping():
            return {key: _copied(inner) for key, inner in value.items()}
        case list():
            return [_copied(item) for item in value]
        case _:
            return value


def _check(name: str, value: object, types: tuple[type, ...], words: str) -> None:
    if value is None:
        return
    is_bool = isinstance(value, bool) and bool not in types
    if is_bool or not isinstance(value, types):
        raise TypeError(f"{name} must be {words}, got {value!r}")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
