"""`key_of` describes an evaluator by everything visible that determines its scores.

A function is described by its source, its defaults, the arguments of a `partial`, its closure, and
the constants and functions of its own module that it uses. Other modules are not followed.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
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
from .judges import JudgeModel, model_of
from .scores import Evaluator

__all__ = ["key_of"]

_PLAIN = (bool, int, float, str, bytes, tuple, frozenset, re.Pattern)
_LIBRARY = f"{__name__.partition('.')[0]}."

type _Describe = Callable[[object], AnyJson]


def key_of(evaluator: Evaluator, model: JudgeModel = None) -> str:
    """Returns a key that changes with the evaluator's source and settings.

    For a judge, it also changes with the prompt, including its overrides, and with the judge's
    model, which is `model` if it was given none. The name, the direction and the margin of a score
    are not included.
    """
    seen = set[int]()
    parts = [evaluator.function, evaluator.settings, evaluator.scale.bounds, evaluator.on_failure]
    if evaluator.is_judge and model_of(evaluator) is None:
        parts.append(model)
    text = json.dumps([_describe(part, seen) for part in parts], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


def _describe(value: AnyValue, seen: set[int]) -> AnyJson:
    if id(value) in seen:
        return "repeated"
    if value is not None and not isinstance(value, (*_PLAIN, list, Mapping)):
        seen.add(id(value))  # it could refer to itself

    def inner(part: object) -> AnyJson:
        return _describe(part, seen)

    match value:
        case None | bool() | int() | float() | str() | bytes() | ModelSettings():
            return repr(value)
        case list() | tuple():
            return [inner(part) for part in value]
        case set() | frozenset():
            return sorted(json.dumps(inner(part), sort_keys=True) for part in value)
        case Mapping():
            return {"items": [[inner(key), inner(part)] for key, part in value.items()]}
        case CodeType():
            return [value.co_code.hex(), value.co_names, inner(value.co_consts)]
        case partial():
            return inner([value.func, value.args, value.keywords])
        case MethodType():
            return inner([value.__func__, value.__self__])
        case FunctionType():
            return _function(value, inner)
        case _:
            return _object(value, inner)


def _function(function: FunctionType, describe: _Describe) -> AnyJson:
    """Describes a function; one of this library only by its name, so that releases may edit it."""
    closure = inspect.getclosurevars(function).nonlocals
    bound = describe([function.__defaults__, function.__kwdefaults__, closure])
    if function.__module__.startswith(_LIBRARY):
        return [_name(function), bound]
    code = function.__code__
    source: AnyJson = None
    with suppress(OSError, TypeError):  # the source of code in a shell is not available
        source = inspect.getsource(code)
    if source is None or function.__name__ == "<lambda>":  # whose source may lack lines
        source = describe(code)
    names = {name: function.__globals__.get(name) for name in _names(code)}
    used = {
        name: value
        for name, value in names.items()
        if isinstance(value, _PLAIN)
        or (isinstance(value, FunctionType) and value.__module__ == function.__module__)
    }
    return [source, bound, describe(used)]


def _names(code: CodeType) -> list[str]:
    """Returns the global names in a function and in the functions inside it."""
    inside = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [*code.co_names, *[name for inner in inside for name in _names(inner)]]


def _object(value: AnyValue, describe: _Describe) -> AnyJson:
    """Describes a prompt, an adapter, or any other object as far as possible."""
    kind: AnyType = type(value)
    match value:
        case re.Pattern():
            return [value.pattern, value.flags]
        case PromptTemplate():
            return _template(value, describe)
        case Prompt():
            overrides = value.overrides
            texts = sorted(overrides.texts.items()) if overrides else []
            return describe([value.template, texts])
        case ConnectingAdapter():
            return [_name(kind), value.name, value.model, repr(value.config.settings)]
        case _ if hasattr(value, "__qualname__"):
            return _name(value)
        case _ if is_dataclass(value):
            return [_name(kind), describe([getattr(value, one.name) for one in fields(value)])]
        case _ if callable(value):
            return [_name(kind), describe([kind.__call__, getattr(value, "__dict__", None)])]
        case _:
            with suppress(SerdeError):
                return [_name(kind), serde.dump(value)]
            return _name(kind)


def _template(template: AnyTemplate, describe: _Describe) -> AnyJson:
    output: AnyType = template.output_type
    schema = None if output is None else serde.json_schema(output)
    return describe([template.descriptor.hash, schema, template.settings, template.accept])


def _name(value: AnyValue) -> str:
    return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
