"""The typed answer that a prompt asks for: declared once, parsed strictly."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from .. import serde
from ..errors import SerdeError
from ..specialised import Specialised
from .errors import OutputParseError, PromptValidationError

if TYPE_CHECKING:
    from .renderer import RenderedPrompt

__all__ = ["Container", "StructuredOutputConfig", "json_text", "parse_output", "parse_structured_output"]

type Container = Literal["object", "array"]

# Lines that begin and end a fenced block, compiled on first use; possessive, since a model can write what makes a
# pattern go back for hours.
_START = r"[ \t]*+(`{3,}+)[ \t]*+([^`\s]*+)[^`]*+"
_END = r"[ \t]*+(`{3,}+)[ \t\r]*+"


@dataclass(frozen=True, slots=True)
class StructuredOutputConfig[Out](Specialised):
    """The declared output: `T`, a dataclass, asks for one JSON object; `list[T]` for an array of objects.

    Keys that the dataclass does not have are refused unless `allow_extra_keys`. Raises `PromptValidationError` for any
    other type.
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
        item: type[Any] = get_args(self.output_type)[0] if self.container == "array" else self.output_type
        return item


def parse_structured_output[Out](output_text: str, rendered: "RenderedPrompt[Out]") -> Out:
    """The typed answer in `output_text`: its first fenced JSON block, else the whole text.

    Raises `OutputParseError` with every fault when it is not what the prompt declares, and when it declares nothing.
    """
    if rendered.structured_output is None:
        raise OutputParseError(
            "the prompt declares no output type; use PromptTemplate[Output](…)", raw_response=output_text
        )
    return parse_output(output_text, rendered.structured_output)


def parse_output[Out](output_text: str, config: StructuredOutputConfig[Out]) -> Out:
    """`output_text` as `config` declares it; see `parse_structured_output`."""
    text = json_text(output_text)
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


def json_text(output_text: str) -> str:
    """The first fenced block that says it is JSON, else the first that names no language, else the whole text."""
    found: dict[str, str] = {}
    for language, text in _fenced(output_text):
        found.setdefault(language.lower(), text)
    return found.get("json", found.get("", output_text)).strip()


def _fenced(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block, in time linear in the text."""
    lines = text.split("\n")
    ends = [len(found[1]) if (found := re.fullmatch(_END, line)) else 0 for line in lines]
    longest = [*accumulate(reversed(ends), max)]  # among the last line, the last two, …
    at = 0
    while at < len(lines) - 1:
        start = re.fullmatch(_START, lines[at])
        at += 1
        if start and len(start[1]) <= longest[-1 - at]:
            end = next(line for line in range(at, len(lines)) if ends[line] >= len(start[1]))
            yield start[2], "\n".join(lines[at:end])
            at = end + 1
