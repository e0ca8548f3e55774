"""The context passed to a handler."""

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from weakincentives.prompt import ToolContext


@pytest.mark.claim("TL-29")
def test_tool_context_is_frozen_slotted_and_starts_with_the_runtime_fields() -> None:
    names = [field.name for field in fields(ToolContext)]
    assert names[:5] == ["prompt", "rendered_prompt", "adapter", "session", "event_bus"]
    context = ToolContext(*(Any,) * 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert not hasattr(context, "__dict__")
    with pytest.raises(FrozenInstanceError):
        context.session = None  # type: ignore[misc, assignment]  # pyright: ignore[reportAttributeAccessIssue]
