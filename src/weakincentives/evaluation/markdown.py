"""Renders messages as Markdown for notebooks, with each text in a code block."""

from collections.abc import Sequence

from ..content import text_of
from ..displays import code_block, code_span
from .messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
)

__all__ = ["messages_markdown"]

_MESSAGES = 50


def messages_markdown(messages: Sequence[Message]) -> str:
    """Renders the prompt and the last 50 messages after it as Markdown."""
    earlier = len(messages) - 1 - _MESSAGES
    parts = [_markdown(messages[0])]
    if earlier > 0:
        parts.append(f"… {earlier} more messages")
    parts += [_markdown(message) for message in messages[1:][-_MESSAGES:]]
    return "\n\n".join(parts)


def _markdown(message: Message) -> str:
    match message:
        case Instructions(content):
            return _said("Instructions", content)
        case UserMessage(content, repair):
            return _said("Rejected" if repair else "User", text_of(content))
        case ToolMessage(_, content, success):
            return _said("Tool" if success else "Tool, failed", content)
        case AssistantMessage(text=text, tool_calls=calls):
            parts = [_said("Model", text)] if text or not calls else []
            parts += [
                f"**Model** calls {code_span(call.name)}\n\n{code_block(call.arguments)}"
                for call in calls
            ]
            return "\n\n".join(parts)
        case ToolsAdded(tools):
            return f"**New tools**: {', '.join([code_span(tool.name) for tool in tools])}"
        case ToolsRemoved(names):
            return f"**Tools withdrawn**: {', '.join(map(code_span, names))}"


def _said(speaker: str, text: str) -> str:
    return f"**{speaker}**\n\n{code_block(text)}"
