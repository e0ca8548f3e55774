"""The typed answer that a prompt asks for: declared once, parsed strictly."""

from dataclasses import dataclass, field, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from .. import serde
from ..errors import SerdeError
from ..generics import Parametrized
from .errors import OutputParseError, PromptValidationError
from .model_json import json_text, read_without_nulls, unwrap_items

if TYPE_CHECKING:
    from .renderer import RenderedPrompt

__all__ = ["Container", "StructuredOutputConfig", "parse_output", "parse_structured_output"]

type Container = Literal["object", "array"]


@dataclass(frozen=True, slots=True)
class StructuredOutputConfig[Out](Parametrized):
    """The declared output: `T`, a dataclass, asks for one JSON object; `list[T]` for an array of
    objects.

    Keys that the dataclass does not have are refused unless `allow_extra_keys`. Raises
    `PromptValidationError` for any other type.
    """

    output_type: type[Out]
    allow_extra_keys: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not (isinstance(self.item_type, type) and is_dataclass(self.item_type)):
            raise PromptValidationError(
                f"output type {self.output_type!r} is neither a dataclass nor a list of one; declare a dataclass"
            )

    @property
    def container(self) -> Container:
        """`"array"` for `list[T]`, else `"object"`."""
        return "array" if get_origin(self.output_type) is list else "object"

    # Any: for `list[T]` the item's type is no function of Out that a type checker could follow.
    @property
    def item_type(self) -> type[Any]:
        """`T` for `T` and for `list[T]`."""
        item: type[Any] = (
            get_args(self.output_type)[0] if self.container == "array" else self.output_type
        )
        return item


def parse_structured_output[Out](output_text: str, rendered: "RenderedPrompt[Out]") -> Out:
    """The typed answer in `output_text`: its first fenced JSON block, else the whole text.

    Accepts what an evaluation accepts: a null for a field that the model leaves out, and an array
    in an object with the one property `items`. Raises `OutputParseError` with every fault when it
    is not what the prompt declares, and when it declares nothing.
    """
    if rendered.structured_output is None:
        raise OutputParseError(
            "the prompt declares no output type; use PromptTemplate[Output](…)",
            raw_response=output_text,
        )
    return parse_output(output_text, rendered.structured_output)[0]


def parse_output[Out](output_text: str, config: StructuredOutputConfig[Out]) -> tuple[Out, str]:
    """What `config` declares, read from `output_text` as `parse_structured_output` does, and its
    JSON alone.
    """
    read = partial(_parse_exactly, config=config, output_text=output_text)
    return read_without_nulls(
        read, unwrap_items(output_text) if config.container == "array" else output_text
    )


def _parse_exactly[Out](text: str, config: StructuredOutputConfig[Out], output_text: str) -> Out:
    text = json_text(text)
    expected = "{" if config.container == "object" else "["
    if text[:1] in ("{", "[") and text[:1] != expected:
        raise OutputParseError(
            f"the answer must be a JSON {config.container}, not an {'array' if expected == '{' else 'object'}",
            raw_response=output_text,
        )
    try:
        return serde.parse_json(config.output_type, text, allow_extra=config.allow_extra_keys)
    except SerdeError as error:
        raise OutputParseError(str(error), raw_response=output_text) from error
