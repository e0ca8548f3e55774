"""Declares a prompt's typed answer, and parses it strictly."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, get_origin

from .. import serde
from ..errors import SerdeError
from ..generics import Parametrized
from ..record_types import is_record_type, unaliased
from .errors import OutputParseError, PromptValidationError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = [
    "Container",
    "DeclaresOutput",
    "StructuredOutputConfig",
    "parse_output",
    "parse_structured_output",
]

type Container = Literal["object", "array", "value", "text"]
"""The form of an answer: JSON of this kind, or for `str`, the model's unchanged text."""

# Any: for `list[T]`, a type checker cannot derive the item type from Out.
type ItemType = Any


@dataclass(frozen=True, slots=True)
class StructuredOutputConfig[Out](Parametrized):
    """Declares the output: any type with a JSON schema, such as a dataclass, a list or a union.

    For `str`, the output is the model's text. Keys that are not fields of a record type are
    rejected unless `allow_extra_keys` is set. Raises `PromptValidationError` for a type without a
    schema, and for a type that accepts everything, such as `Any` or `dict`.
    """

    output_type: "TypeForm[Out]"
    allow_extra_keys: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        try:
            schema = serde.json_schema(self.item_type)
        except SerdeError as error:
            raise PromptValidationError(
                f"output type {self.output_type!r} has no JSON schema ({error}); use types that "
                "JSON can represent and that are already defined"
            ) from error
        if _admits_everything(schema, schema) or self._plain_type in _BARE:
            raise PromptValidationError(
                f"output type {self.output_type!r} accepts every answer; declare a more precise "
                "type"
            )

    @property
    def container(self) -> Container:
        """The form of the answer: `"array"` for `list[T]`, `"text"` for `str`."""
        if self._plain_type is str:
            return "text"
        origin: ItemType = get_origin(self._plain_type)
        if origin is list:
            return "array"
        return "object" if origin is dict or is_record_type(self._plain_type) else "value"

    @property
    def wrapper(self) -> str | None:
        """The only property of the object that wraps the answer; `None` if it is not wrapped."""
        from .model_json import WRAPPED_ITEMS, WRAPPED_VALUE

        return {"array": WRAPPED_ITEMS, "value": WRAPPED_VALUE}.get(self.container)

    @property
    def item_type(self) -> ItemType:
        """`T` for both `T` and `list[T]`."""
        is_array = self.container == "array"
        item: ItemType = get_args(self._plain_type)[0] if is_array else self.output_type
        return item

    @property
    def _plain_type(self) -> ItemType:
        return unaliased(self.output_type)


_BARE = (dict, list, tuple, set, frozenset)
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "$defs"}


def _admits_everything(schema: "serde.JsonSchema", root: "serde.JsonSchema") -> bool:
    """Whether a schema, or a member of its union, has no rules, like the schema of `Any`."""
    from ..serde.json_schemas import resolved

    schema = resolved(schema, root)
    options = schema.get("anyOf", ())
    return not schema.keys() - _ANNOTATIONS or any(
        _admits_everything(option, root) for option in options
    )


class DeclaresOutput[Out](Protocol):
    """A prompt or a rendered prompt whose answer is an `Out`."""

    @property
    def structured_output(self) -> StructuredOutputConfig[Out] | None: ...


def parse_structured_output[Out](output_text: str, rendered: DeclaresOutput[Out]) -> Out:
    """Parses the typed answer in `output_text`: its first fenced JSON block, or the entire text.

    Like an evaluation, this accepts a null for an absent field, and an array or a scalar that is
    wrapped in an object with `items` or `value` as its only property. Raises `OutputParseError`
    with every issue for any other answer, and for a prompt that does not declare an output.
    """
    if rendered.structured_output is None:
        raise OutputParseError(
            "the prompt declares no output type; use PromptTemplate[Output](…)",
            raw_response=output_text,
        )
    return parse_output(output_text, rendered.structured_output)[0]


def parse_output[Out](output_text: str, config: StructuredOutputConfig[Out]) -> tuple[Out, str]:
    """Like `parse_structured_output`, but returns the answer and its JSON text."""
    if config.container == "text":
        # Any: `Out` is `str` here.
        answer: Any = output_text
        return answer, output_text
    from .model_json import json_text, read_without_nulls, unwrap

    text = json_text(output_text)
    try:
        serde.check_unique_keys("answer", text)
    except SerdeError as error:
        raise OutputParseError(f"{error}", raw_response=output_text) from error
    text = unwrap(text, config.wrapper) if config.wrapper else text
    return read_without_nulls(partial(_parse, config=config, output_text=output_text), text)


def _parse[Out](text: str, config: StructuredOutputConfig[Out], output_text: str) -> Out:
    container = {"{": "object", "[": "array"}.get(text[:1], config.container)
    if config.container not in (container, "value"):
        message = f"the answer must be a JSON {config.container}, not an {container}"
        raise OutputParseError(message, raw_response=output_text)
    try:
        return serde.parse_json(config.output_type, text, allow_extra=config.allow_extra_keys)
    except SerdeError as error:
        raise OutputParseError(str(error), raw_response=output_text) from error
