"""The keys of runs and scores: a digest of everything that can change them, and of nothing else.

A function is described by its source, its defaults, the arguments of a `partial`, its closure, and
the constants and functions of its own module that it uses. Other modules are not followed.
"""

import ast
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from hashlib import sha256
from textwrap import dedent
from types import CodeType, FunctionType, MethodType

from .. import serde
from ..content import to_content
from ..errors import SerdeError
from ..evaluation.adapter import ConnectingAdapter
from ..evaluation.config import RunConfig
from ..evaluation.messages import sendable_content
from ..model_settings import ModelSettings
from ..prompt.function_tools import FunctionHandler
from ..prompt.template import AnyPrompt, Prompt, PromptTemplate
from ..prompt.tool import PromptHandler
from ..record_types import AnyType
from ..serde.json_types import AnyJson, AnyValue
from .cases import Case
from .scores import Evaluator, JudgeModel

__all__ = [
    "case_digests",
    "digest",
    "halves",
    "key_of",
    "prompt_parts",
    "variant_parts",
]

type Parts = dict[str, str]
"""Digests by name; their names say what has changed."""

_NOT_OF_ANSWERS = ("deadline", "budget", "prices", "settings", "supports_dynamic_tools")
_CONSTANTS = (bool, int, float, str, bytes, tuple, frozenset, re.Pattern)
_LIBRARY = f"{__name__.partition('.')[0]}."


def digest(*values: object) -> str:
    """Returns a short digest of values, which is the same in every process.

    Raises `SerdeError` for an object that is not a value.
    """
    return _Description().digest(values)


def halves(digests: str) -> tuple[str, str]:
    """Returns the two digests that were joined in one text."""
    return digests[: len(digests) // 2], digests[len(digests) // 2 :]


def case_digests(case: Case) -> tuple[str, str]:
    """Returns the digest of a case's input, and one of what only evaluators read."""
    message = None if case.message is None else sendable_content(to_content(case.message))
    given = digest(message, case.params, case.state, sorted(case.files.items()))
    return given, digest(case.expected, sorted(case.metadata.items()))


def key_of(evaluator: Evaluator, model: JudgeModel = None) -> str:
    """Returns a key that changes with the evaluator's source and settings.

    For a judge, it also changes with the prompt, including its overrides, and with the judge's
    model, which is `model` if it was given none. The name, the direction and the margin of a score
    are not included. Of an object that is not a value, such as a client, only the type is included.
    """
    parts = [evaluator.function, evaluator.settings, evaluator.scale.bounds, evaluator.on_failure]
    if evaluator.is_judge:
        parts.append(model if evaluator.model is None else evaluator.model)
    return _Description(is_lenient=True).digest(parts)[:16]


def prompt_parts(prompt: AnyPrompt) -> Parts:
    """Returns the digests of a prompt's sections, tools and output, with its overrides."""
    template, descriptor = prompt.template, prompt.descriptor
    stored = prompt.overrides
    texts: dict[str, list[object]] = {}
    for text_id, text in descriptor.texts.items():
        shown = stored.texts.get(text_id, text.text) if stored else text.text
        texts.setdefault(".".join(text.path), []).append([*text_id, shown])
    parts = {f"section {path}": digest(path, items) for path, items in texts.items()}
    for node in template.registry.sections:
        section = node.section
        rules = [_code(section.enabled), _code(section.visibility), _code(section.params_from)]
        path = f"section {node.key}"
        parts[path] = digest(parts.get(path), rules)
        for tool in node.tools:
            contract = [tool.name, tool.description, tool.params_schema(), tool.effect]
            parts[f"tool {tool.name}"] = digest(contract, _code(tool.handler))
    output = template.structured_output
    schema = None if output is None else serde.json_schema(output.output_type)
    parts["output"] = digest(schema, prompt.output_type)
    parts["prompt"] = digest(
        *(descriptor.ns, descriptor.key, [section.path for section in descriptor.sections]),
        *(template.disclosure.name, template.closable, _code(template.accept)),
    )
    return parts


def _code(value: AnyValue) -> object:
    """Returns a function's source without comments, the parts of a nested prompt, or a value."""
    if isinstance(value, FunctionHandler):
        value = value.function
    if isinstance(value, PromptHandler):
        template: AnyValue = value.template
        return [template.ns, template.key, template.descriptor.hash]
    function = inspect.unwrap(value) if callable(value) else value
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        return getattr(value, "name", type(value).__qualname__)
    with suppress(OSError, TypeError, SyntaxError):  # such as a lambda inside a call
        return ast.dump(ast.parse(dedent(inspect.getsource(function))))
    return function.__code__


def variant_parts(
    adapter: ConnectingAdapter,
    config: RunConfig | None = None,
    settings: Sequence[ModelSettings | None] = (),
) -> Parts:
    """Returns the digests of a variant's model, settings and limits; `settings` nearest first."""
    config = adapter.config if config is None else config.over(adapter.config)
    merged = ModelSettings()
    for layer in (*settings, config.settings):
        if layer is not None:
            merged = merged.over(layer)
    limits = {
        item.name: getattr(config, item.name)
        for item in fields(RunConfig)
        if item.name not in _NOT_OF_ANSWERS and not item.name.startswith("_")
    }
    return {
        "model": digest(adapter.identity()),
        **{f"setting {name}": digest(value) for name, value in _given(merged).items()},
        "limits": digest(limits),
    }


@dataclass(slots=True)
class _Description:
    """Describes values as JSON; an object is replaced by its digest, so that it can be shared."""

    is_lenient: bool = False
    known: dict[int, tuple[object, str]] = field(default_factory=dict[int, tuple[object, str]])

    def digest(self, value: object) -> str:
        return sha256(json.dumps(self.of(value)).encode()).hexdigest()[:24]

    def of(self, value: AnyValue) -> AnyJson:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case bytes():
                return sha256(value).hexdigest()
            case re.Pattern():
                return [value.pattern, value.flags]
            case list() | tuple():
                return [self.of(item) for item in value]
            case set() | frozenset():
                return sorted(json.dumps(self.of(item)) for item in value)
            case Mapping():
                return {"items": [[self.of(key), self.of(item)] for key, item in value.items()]}
            case _:
                return self._object(value)

    def _object(self, value: object) -> str:
        if id(value) not in self.known:
            self.known[id(value)] = value, "itself"
            try:
                parts = _parts(value)
            except SerdeError:
                if not self.is_lenient:
                    raise
                parts = [type(value).__qualname__]
            self.known[id(value)] = value, self.digest(parts)
        return self.known[id(value)][1]


def _parts(value: AnyValue) -> Sequence[object]:
    """Returns what determines the behaviour of an object."""
    kind: AnyType = type(value)
    match value:
        case ModelSettings():
            return [_given(value)]
        case ConnectingAdapter():
            return [variant_parts(value)]
        case PromptTemplate():
            return [Prompt(value)]
        case Prompt():
            return [prompt_parts(value), value.settings, value.template.accept]
        case partial():
            return [value.func, value.args, value.keywords]
        case MethodType():
            return [value.__func__, value.__self__]
        case FunctionType():
            return _function(value)
        case CodeType():
            return [value.co_code, value.co_names, value.co_consts]
        case _ if hasattr(value, "__qualname__"):
            return [f"{getattr(value, '__module__', '')}.{value.__qualname__}"]
        case _ if is_dataclass(value):
            state = {item.name: getattr(value, item.name) for item in fields(value)}
            return [kind.__qualname__, state, callable(value) and kind.__call__]
        case _ if callable(value):
            return [kind.__qualname__, getattr(value, "__dict__", None), kind.__call__]
        case _:
            return [kind.__qualname__, serde.dump(value)]


def _given(settings: ModelSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in sorted(settings.given - {"timeout"})}


def _function(function: FunctionType) -> Sequence[object]:
    """Describes a function; one of this library only by its name, so that releases may edit it."""
    closure = inspect.getclosurevars(function).nonlocals
    bound = [function.__defaults__, function.__kwdefaults__, closure]
    if f"{function.__module__}".startswith(_LIBRARY):
        return [function.__module__, function.__qualname__, *bound]
    code = function.__code__
    source: object = code
    if function.__name__ != "<lambda>":  # whose source may lack lines
        with suppress(OSError, TypeError):  # the source of code in a shell is not available
            source = inspect.getsource(code)
    used = {
        name: value
        for name, value in ((name, function.__globals__.get(name)) for name in _names(code))
        if isinstance(value, _CONSTANTS)
        or (isinstance(value, FunctionType) and value.__module__ == function.__module__)
    }
    return [source, *bound, used]


def _names(code: CodeType) -> list[str]:
    """Returns the global names in a function and in the functions inside it."""
    inside = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [*code.co_names, *[name for inner in inside for name in _names(inner)]]
