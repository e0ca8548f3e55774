"""`key_of` describes an evaluator by everything visible that determines its scores.

A function is described by its source, its defaults, the arguments of a `partial`, its closure, and
the constants and functions of its own module that it uses. Other modules are not followed.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import sha256
from types import CodeType, FunctionType, MethodType

from .. import serde
from ..errors import SerdeError
from ..evaluation.adapter import ConnectingAdapter
from ..model_settings import ModelSettings
from ..prompt.template import AnyTemplate, Prompt, PromptTemplate
from ..record_types import AnyType
from ..serde.json_types import AnyJson, AnyValue
from .scores import Evaluator

__all__ = ["key_of"]

_PLAIN = (bool, int, float, str, bytes, tuple, frozenset, re.Pattern)
_OWN = f"{__name__.partition('.')[0]}."

type _Describe = Callable[[object], AnyJson]


def key_of(evaluator: Evaluator) -> str:
    """Returns a key that changes with the evaluator's source and settings.

    For a judge, it also changes with the prompt, including its overrides, and with the model. The
    name, the direction and the margin of a score are not included.
    """
    seen = set[int]()
    parts = [evaluator.function, evaluator.settings, evaluator.scale.bounds, evaluator.on_failure]
    text = json.dumps([_describe(part, seen) for part in parts], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


def _describe(value: AnyValue, seen: set[int]) -> AnyJson:
    if id(value) in seen:
        return "repeated"

    def inner(part: object) -> AnyJson:
        return _describe(part, seen)

    if value is not None and not isinstance(
        value, (*_PLAIN, list, Mapping)
    ):  # objects that can refer to themselves
        seen.add(id(value))
    match value:
        case None | bool() | int() | float() | str() | bytes() | ModelSettings():
            return repr(value)
        case list() | tuple():
            return [inner(part) for part in value]
        case set() | frozenset():
            return sorted(json.dumps(inner(part), sort_keys=True) for part in value)
        case Mapping():
            return [[inner(key), inner(part)] for key, part in value.items()]
        case re.Pattern():
            return [value.pattern, value.flags]
        case partial():
            return [inner(part) for part in (value.func, value.args, value.keywords)]
        case MethodType():
            return [inner(value.__func__), inner(value.__self__)]
        case FunctionType():
            return _function(value, inner)
        case _:
            return _object(value, inner)


def _function(function: FunctionType, describe: _Describe) -> AnyJson:
    """Describes a function; one of this library only by its name, so that releases may edit it."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
    seen = [describe(part) for part in (function.__defaults__, function.__kwdefaults__, cells)]
    if function.__module__.startswith(_OWN):
        return [_name(function), *seen]
    codes = list(_codes(function.__code__))
    source: AnyJson = None
    with suppress(OSError, TypeError):  # the source of code in a shell is not available
        source = inspect.getsource(function.__code__)
    if source is None or function.__name__ == "<lambda>":  # whose source may have other lines
        source = [[code.co_code.hex(), describe(_constants(code)), code.co_names] for code in codes]
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    used = [(name, function.__globals__.get(name)) for name in names]
    return [source, *seen] + [
        [name, describe(value)]
        for name, value in used
        if isinstance(value, _PLAIN)
        or (isinstance(value, FunctionType) and value.__module__ == function.__module__)
    ]


def _is_full(cell: AnyValue) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # its variable has no value yet
        return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a function's code and the code of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _constants(code: CodeType) -> list[object]:
    return [constant for constant in code.co_consts if not isinstance(constant, CodeType)]


def _template(template: AnyTemplate, describe: _Describe) -> AnyJson:
    output: AnyType = template.output_type
    return [
        template.descriptor.hash,
        None if output is None else serde.json_schema(output),
        repr(template.settings),
        describe(template.accept),
    ]


def _object(value: AnyValue, describe: _Describe) -> AnyJson:
    """Describes a prompt, an adapter, a class, or any other object as far as possible."""
    kind: AnyType = type(value)
    match value:
        case PromptTemplate():
            return _template(value, describe)
        case Prompt():
            overrides = value.overrides
            texts = sorted(overrides.texts.items()) if overrides else []
            return [
                describe(value.template),
                describe([[*text_id, text] for text_id, text in texts]),
            ]
        case ConnectingAdapter():
            return [_name(type(value)), value.name, value.model, repr(value.config.settings)]
        case _ if hasattr(value, "__qualname__"):
            return _name(value)
        case _ if is_dataclass(value):
            return [_name(kind), *[describe(getattr(value, one.name)) for one in fields(value)]]
        case _ if callable(value):
            return [
                _name(kind),
                describe(kind.__call__),
                describe(getattr(value, "__dict__", None)),
            ]
        case _:
            with suppress(SerdeError):
                return [_name(kind), serde.dump(value)]
            return _name(kind)


def _name(value: AnyValue) -> str:
    return f"{value.__module__}.{value.__qualname__}"
