"""Tools whose calls need approval, and records of the previews and changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.agents import Args
from weakincentives.evaluation.approval import (
    Approver,
    Decision,
    Preview,
)
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import (
    Tool,
)


@dataclass(frozen=True)
class Which:
    number: int


def asking(
    handler: Callable[..., Any], approval: Any = "effects", **options: Any
) -> Tool[Any, Any]:
    return Tool[Any, Any](
        name="run",
        handler=handler,
        params_type=options.pop("params", Args),
        result_type=object,
        approval=approval,
        effect=options.pop("effect", "repeatable"),
        **options,
    )


def noting(shown: list[Preview], decision: Decision) -> Approver:
    """Returns an approver that always makes the same decision and records the previews."""

    def decide(preview: Preview) -> Decision:
        shown.append(preview)
        return decision

    return decide


def tree(files: Filesystem) -> dict[str, str | None]:
    """Returns all paths with their texts, or `None` for directories."""
    return {
        item.path: None if item.kind == "directory" else files.read_text(item.path)
        for item in files.walk()
    }
