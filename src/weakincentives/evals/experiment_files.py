"""Saves experiments as JSON with all scores by case and repeat, and loads them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from .. import serde
from ..atomic_writes import replacing
from ..displays import escape_hidden
from ..serde.json_types import AnyJson
from .results import Experiment, VariantResults

__all__ = ["experiment_json", "load_experiment", "parse_experiment", "save_baseline"]

_VERSION = 1


def save_baseline(experiment: Experiment, path: str | Path) -> None:
    """Writes an experiment to a file, which is replaced atomically."""
    with replacing(path) as file:
        file.writelines(part.encode() for part in experiment_json(experiment))


def experiment_json(experiment: Experiment, by: str = "") -> Iterator[str]:
    """Yields the parts of an experiment's JSON, with each run on a line of its own.

    In addition to the scores, the JSON has their summaries by variant, and for groups of cases by
    their values of the metadata key `by`.
    """
    head = asdict(replace(experiment, variants={}))
    yield _head({"version": _VERSION, **head}, "variants", "{")
    for index, (name, variant) in enumerate(experiment.variants.items()):
        head = {**asdict(replace(variant, results=())), "summaries": _summaries(variant)}
        if by:
            head["groups"] = {key: _summaries(it) for key, it in variant.groups(by).items()}
        yield f"{',' * bool(index)}\n{_line(name)}: "
        yield _head(head, "results", "[")
        for number, result in enumerate(variant.results):
            yield f"{',' * bool(number)}\n{_line(asdict(result))}"
        yield "]}"
    yield "}}\n"


def _summaries(variant: VariantResults) -> dict[str, AnyJson]:
    return {score: asdict(variant.summary(score)) for score in variant.evaluators}


def load_experiment(path: str | Path) -> Experiment:
    """Reads an experiment from a file that `save_baseline` or `wink eval --json` has written.

    Raises `ValueError` if the file has another format, or no scores by case and repeat: means are
    not enough for a comparison.
    """
    try:
        experiment = parse_experiment(Path(path).read_text(encoding="utf-8"))
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        cause = error if isinstance(error, ValueError) else "it is not an experiment"
        raise ValueError(
            f"{path} cannot be compared: {cause}; write it with wink eval --json or "
            "--write-baseline, which save the scores of each case and repeat"
        ) from error
    for variant in experiment.variants.values():
        if not variant.results or not variant.cases.keys() >= {it.case for it in variant.results}:
            raise ValueError(f"{path}: variant {variant.name!r} must have results of its cases")
    return experiment


def parse_experiment(text: str) -> Experiment:
    """Reads an experiment from its JSON; raises various errors if it is not an experiment's."""
    has_surrogates = re.search(r"\\u[dD]", text) is not None
    data = json.loads(_with_bytes(text) if has_surrogates else text)
    version = data.pop("version")
    for variant in data["variants"].values():
        variant.pop("summaries", None)
        variant.pop("groups", None)
    if version != _VERSION:
        raise ValueError(f"version must be {_VERSION}, got {version!r}")
    parsed = serde.parse(Experiment, data)
    experiment: Experiment = _from_bytes(parsed) if has_surrogates else parsed
    return experiment


def _head(values: Mapping[str, AnyJson], last: str, bracket: str) -> str:
    """Returns the text of an object that continues with its last value."""
    text = _line({**{key: values[key] for key in values if key != last}, last: 0})
    return text.removesuffix("0}") + bracket


def _line(value: AnyJson) -> str:
    return escape_hidden(json.dumps(value, ensure_ascii=False, allow_nan=False))


# pydantic rejects lone surrogates, which models and JSON can contain, and replaces those in keys.
# For it, each character becomes the characters of its UTF-8 bytes, which leaves ASCII as it is.
def _with_bytes(text: str) -> str:
    plain = json.dumps(json.loads(text), ensure_ascii=False)
    return plain.encode("utf-8", "surrogatepass").decode("latin-1")


# Any: values of every type
def _from_bytes(value: Any) -> Any:
    """Returns a copy of a value in which all characters are restored."""
    match value:
        case str():
            return value.encode("latin-1").decode("utf-8", "surrogatepass")
        case Mapping():
            return {_from_bytes(key): _from_bytes(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(map(_from_bytes, value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            parts = {it.name: _from_bytes(getattr(value, it.name)) for it in fields(value)}
            return replace(value, **parts)
        case _:
            return value
