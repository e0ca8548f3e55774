"""The keys of runs and scores: a digest of everything that can change them, and of nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256

from .. import serde
from ..content import to_content
from ..evaluation.adapter import ConnectingAdapter
from ..evaluation.config import RunConfig
from ..evaluation.messages import sendable_content
from ..model_settings import ModelSettings
from ..prompt.template import AnyPrompt
from ..record_types import is_record_type
from .cases import Case

__all__ = [
    "case_digests",
    "changed_parts",
    "combined",
    "digest",
    "halves",
    "prompt_parts",
    "variant_parts",
]

type Parts = dict[str, str]
"""Digests by name; their names say what has changed."""

_NOT_OF_ANSWERS = ("deadline", "budget", "prices", "settings", "supports_dynamic_tools")


def digest(*values: object) -> str:
    """Returns a short digest of values, which is the same in every process."""
    text = serde.dump_json([_stable(value) for value in values])
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def halves(digests: str) -> tuple[str, str]:
    """Returns the two digests that were joined in one text."""
    return digests[: len(digests) // 2], digests[len(digests) // 2 :]


def combined(*texts: str) -> str:
    """Returns a digest of texts, such as digests."""
    return sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _stable(value: object) -> object:
    """Returns a value as JSON, without anything that differs between processes."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return sha256(value).hexdigest()
        case Mapping():
            return [[str(key), _stable(item)] for key, item in sorted(value.items(), key=str)]
        case frozenset() | set():
            return sorted(str(_stable(item)) for item in value)
        case list() | tuple():
            return [_stable(item) for item in value]
        case type():
            return f"{value.__module__}.{value.__qualname__}"
        case _ if is_dataclass(value):
            known = {item.name: getattr(value, item.name) for item in fields(value)}
            return [type(value).__qualname__, _stable(known)]
        case _ if is_record_type(type(value)):
            return [type(value).__qualname__, serde.dump(value)]
        case _ if callable(value):
            return getattr(value, "__qualname__", type(value).__qualname__)
        case _:
            return serde.dump(value)


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
        for tool in node.tools:
            contract = [tool.name, tool.description, tool.params_schema(), tool.effect]
            parts[f"tool {tool.name}"] = digest(contract)
    output = template.structured_output
    schema = None if output is None else serde.json_schema(output.output_type)
    parts["output"] = digest(schema, prompt.output_type)
    parts["prompt"] = digest(
        *(descriptor.ns, descriptor.key, [section.path for section in descriptor.sections]),
        *(template.disclosure.name, template.closable),
    )
    return parts


def variant_parts(
    adapter: ConnectingAdapter,
    config: RunConfig | None,
    settings: Sequence[ModelSettings | None],
) -> Parts:
    """Returns the digests of a variant's model, settings and limits; `settings` nearest first."""
    own = config or RunConfig()
    merged = ModelSettings()
    for layer in (*settings, own.settings, adapter.config.settings):
        if layer is not None:
            merged = merged.over(layer)
    base = adapter.config
    limits = {
        item.name: getattr(own if item.name in own.given else base, item.name)
        for item in fields(RunConfig)
        if item.name not in _NOT_OF_ANSWERS and not item.name.startswith("_")
    }
    return {
        "model": digest(adapter.identity()),
        **{
            f"setting {name}": digest(getattr(merged, name))
            for name in sorted(merged.given - {"timeout"})
        },
        "limits": digest(limits),
    }


def changed_parts(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns the names of the parts that differ."""
    return [
        name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)
    ]


def case_digests(case: Case) -> tuple[str, str]:
    """Returns the digest of a case's input, and one of what only evaluators read."""
    message = None if case.message is None else sendable_content(to_content(case.message))
    given = digest(message, case.params, case.state, case.files)
    return given, digest(case.expected, case.metadata)
