"""Creates the text for the model from a tool's result, and finds the sections that it opens."""

from dataclasses import replace

from ..content import Document, Image
from ..errors import plain_text
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.progressive_disclosure import (
    CloseSectionParams,
    CloseSectionResult,
    OpenSectionsParams,
    ReadSectionParams,
    ReadSectionResult,
)
from ..prompt.tool import ToolResult
from ..visibility import SectionVisibility
from .messages import ToolExecutionOutcome

__all__ = [
    "check_restart",
    "failed",
    "requested_sections",
    "result_text",
    "shorten",
    "with_sections",
    "without_bytes",
]

_MAX_FAILURE = 1_000


def result_text(tool: str, result: object) -> str:
    """Returns the text of a tool's result; raises `TypeError` if it is not a `ToolResult`."""
    if not isinstance(result, ToolResult):
        kind = "None" if result is None else type(result).__name__
        raise TypeError(
            f"the handler of {tool!r} must return a ToolResult, got {kind}; return "
            "ToolResult(message=…, value=…)"
        )
    message: object = result.message
    if not isinstance(message, str):
        raise TypeError(f"ToolResult.message must be a string, got {type(message).__name__}")
    for media in result.media:
        if not isinstance(media, Image | Document):
            raise TypeError(
                f"ToolResult.media must contain images and documents, got {media!r:.200}"
            )
    return plain_text(result.content())


def without_bytes(result: ToolResult[object]) -> ToolResult[object]:
    """Returns the result with references instead of media bytes."""
    if not result.media:
        return result
    return replace(result, media=tuple([media.reference for media in result.media]))


def shorten(content: str, limit: int | None) -> str:
    """Returns at most `limit` characters of `content`, with a note on how much is missing."""
    total = len(content)
    if limit is None or total <= limit:
        return content
    note = (
        f"\n\n[Cut here: the result has {total:,} characters, of which {{:,}} are not shown. "
        "Ask for less at once, or for another part, to see the rest.]"
    )
    # the number of missing characters has no more digits than the total
    shown = limit - len(note.format(total))
    return content[:shown] + note.format(total - shown)


def failed(message: str) -> ToolResult[object]:
    """Returns the result of a failed call, with at most 1,000 characters of the message."""
    return ToolResult(message=message[:_MAX_FAILURE], success=False)


def check_restart(value: object, params: object) -> None:
    """Raises `VisibilityExpansionRequired` if a section's tools need a new evaluation."""
    if isinstance(value, ReadSectionResult) and value.expanded_tools:
        raise VisibilityExpansionRequired(
            "Section expansion requires restart",
            requested_overrides=dict.fromkeys(value.opened, SectionVisibility.FULL),
            reason="Adapter does not support dynamic tools",
            section_keys=(params.section_key,) if isinstance(params, ReadSectionParams) else (),
        )


def with_sections(
    outcome: ToolExecutionOutcome, value: object, params: object
) -> ToolExecutionOutcome:
    """Returns the outcome with the sections that a disclosure tool has opened or closed."""
    match value, params:
        case ReadSectionResult(_, tools, opened, shown), ReadSectionParams(key):
            return replace(
                outcome, expanded_tools=tools, section_key=key, opened=opened, shown=shown
            )
        case CloseSectionResult(key, names, closed), CloseSectionParams():
            return replace(outcome, section_key=key, closed_tools=names, closed=closed)
        case _:
            return outcome


def requested_sections(params: object) -> tuple[str, ...]:
    """Returns the section keys from a disclosure tool's params."""
    match params:
        case OpenSectionsParams(section_keys=keys):
            return keys
        case ReadSectionParams(section_key=key) | CloseSectionParams(section_key=key):
            return (key,)
        case _:
            return ()
