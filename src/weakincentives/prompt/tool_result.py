"""The results that the handlers of tools return."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .. import serde
from ..content import Document, Image
from ..generics import Parametrized

__all__ = ["ToolRenderableResult", "ToolResult"]


@runtime_checkable
class ToolRenderableResult(Protocol):
    """A result value that renders itself for the model."""

    def render(self) -> str:
        """Returns the text for the model; equal values return equal text."""
        ...


@dataclass(frozen=True, slots=True)
class ToolResult[R](Parametrized):
    """A handler's answer: a `message` for the model and a typed `value`.

    `success=False` rolls back what the handler changed; `value` is then an error payload or `None`.
    With `exclude_value_from_context` the model receives the message alone, events and session still
    receive the value. The model sees `media` after the text, which ends with their markers.
    """

    message: str
    value: R | None = None
    success: bool = True
    exclude_value_from_context: bool = False
    media: Sequence[Image | Document] = ()

    def render(self) -> str:
        """Returns the value's own `render()`, else its JSON without `None` fields; `""` for `None`.

        Raises `TypeError` if `render()` returns no string and `SerdeError` for a value that JSON
        cannot hold.
        """
        if self.value is None:
            return ""
        # As isinstance(…, ToolRenderableResult), at a fortieth of its cost. Looking at the type
        # excludes a field of that name.
        render = getattr(type(self.value), "render", None)
        if not callable(render):
            return serde.dump_json(self.value, exclude_none=True)
        text = render(self.value)
        if not isinstance(text, str):
            raise TypeError(
                f"{type(self.value).__name__}.render() must return a string, "
                f"got {type(text).__name__}"
            )
        return text

    def content(self) -> str:
        """Returns the model's text: message, blank line, and the value unless excluded or empty.

        Markers of media follow that the text does not have yet.
        """
        body = "" if self.exclude_value_from_context else self.render()
        text = f"{self.message}\n\n{body}" if body else self.message
        for marker in [str(media) for media in self.media]:
            text = text if marker in text else f"{text}\n\n{marker}"
        return text
