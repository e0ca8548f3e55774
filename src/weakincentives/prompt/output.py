"""The typed answer of a prompt: declared once, parsed strictly."""

from dataclasses import dataclass, field, is_dataclass
from functools import partial
from typing import Any, Literal, Protocol, get_args, get_origin

from .. import serde
from ..errors import SerdeError
from ..generics import Parametrized
from .errors import OutputParseError, PromptValidationError
from .model_json import json_text, read_without_nulls, unwrap_items

__all__ = ["Container", "StructuredOutputConfig", "parse_output", "parse_structured_output"]

type Container = Literal["object", "array"]
# Any: for `list[T]` the item's type is no function of Out that a type checker could follow.
type ItemType = type[Any]


@dataclass(frozen=True, slots=True)
class StructuredOutputConfig[Out](Parametrized):
    """Declares the output: a dataclass `T` for one JSON object, `list[T]` for an array of objects.

    Keys that the dataclass does not have are refused unless `allow_extra_keys` is set. Raises
    `PromptValidationError` for any other type.
    """

    output_type: type[Out]
    allow_extra_keys: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not (isinstance(self.item_type, type) and is_dataclass(self.item_type)):
            raise PromptValidationError(
                f"output type {self.output_type!r} is neither a dataclass nor a list of one; "
                "declare a dataclass"
            )

    @property
    def container(self) -> Container:
        """`"array"` for `list[T]`, else `"object"`."""
        return "array" if get_origin(self.output_type) is list else "object"

    @property
    def item_type(self) -> ItemType:
        """`T` for `T` and for `list[T]`."""
        is_array = self.container == "array"
        item: ItemType = get_args(self.output_type)[0] if is_array else self.output_type
        return item


class _DeclaresOutput[Out](Protocol):
    @property
    def structured_output(self) -> StructuredOutputConfig[Out] | None: ...


def parse_structured_output[Out](output_text: str, rendered: _DeclaresOutput[Out]) -> Out:
    """Parses the typed answer in `output_text`: its first fenced JSON block, else the whole text.

    Accepts what an evaluation accepts: a null for an absent field, and an array in an object with
    the one property `items`. Raises `OutputParseError` with every issue for any other answer, and
    for a prompt that declares no output.
    """
    if rendered.structured_output is None:
        raise OutputParseError(
            "the prompt declares no output type; use PromptTemplate[Output](…)",
            raw_response=output_text,
        )
    return parse_output(output_text, rendered.structured_output)[0]


def parse_output[Out](output_text: str, config: StructuredOutputConfig[Out]) -> tuple[Out, str]:
    """Parses as `parse_structured_output` does; returns the answer and its JSON text."""
    text = unwrap_items(output_text) if config.container == "array" else output_text
    return read_without_nulls(partial(_parse, config=config, output_text=output_text), text)


def _parse[Out](text: str, config: StructuredOutputConfig[Out], output_text: str) -> Out:
    text = json_text(text)
    container = {"{": "object", "[": "array"}.get(text[:1], config.container)
    if container != config.container:
        message = f"the answer must be a JSON {config.container}, not an {container}"
        raise OutputParseError(message, raw_response=output_text)
    try:
        return serde.parse_json(config.output_type, text, allow_extra=config.allow_extra_keys)
    except SerdeError as error:
        raise OutputParseError(str(error), raw_response=output_text) from error
