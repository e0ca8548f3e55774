"""Small prompts, tools and request bodies for tests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from weakincentives import content
from weakincentives.adapters.core import LoopAdapter
from weakincentives.evaluation.main_loop import NestedAdapter
from weakincentives.evaluation.messages import AssistantMessage, Message, ToolMessage, UserMessage
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import InProcessEventBus
from weakincentives.runtime.session import Session

# Any: handlers and outputs of all types.
type Handler = Callable[..., Any]


@dataclass(frozen=True)
class Args:
    a: int = 3


@dataclass(frozen=True)
class Note:
    """State that handlers write."""

    text: str


def without_provider_items(message: Message) -> Message:
    """Returns the message without the items and the format of its provider."""
    if isinstance(message, AssistantMessage):
        return replace(message, wire=(), wire_format="", requested_model="")
    return message


def ok(params: object, *, context: ToolContext) -> ToolResult[object]:
    """Answers `ok` to everything."""
    return ToolResult(message="ok")


def tool(
    handler: Handler | None = ok, *, name: str = "probe", params: type[Any] = Args
) -> Tool[Any, Any]:
    """Returns a tool with this handler; its params are `Args` unless given."""
    return Tool[Any, Any](
        name=name,
        description="For tests.",
        handler=handler,
        params_type=params,
        result_type=object,
        effect="repeatable",
    )


def prompt(*tools: Tool[Any, Any], text: str = "Do it.", output: Any = None) -> Prompt[Any]:
    """Returns a prompt with one section, which has these tools, and with this output type."""
    section = MarkdownSection(title="Task", key="task", template=text, tools=tools)
    return Prompt(PromptTemplate(ns="tests", key="agent", sections=[section], output_type=output))


def nested_adapter(context: ToolContext) -> NestedAdapter:
    """Returns the adapter that a handler gets, whose evaluations belong to the tool call."""
    adapter: object = context.adapter  # type checkers assume that an `Evaluator` cannot be one
    assert isinstance(adapter, NestedAdapter)
    return adapter


def answers(messages: Sequence[Message]) -> list[ToolMessage]:
    """Returns the answers to tool calls among `messages`."""
    return [message for message in messages if isinstance(message, ToolMessage)]


def text_of(message: Message) -> str:
    """Returns the text of a message that the library sends to the model."""
    assert isinstance(message, UserMessage)
    return content.text_of(message.content)


def only_answer(
    adapter: LoopAdapter, asked: Prompt[Any], session: Session | None = None
) -> ToolMessage:
    """Evaluates the prompt and returns the only answer to a tool call."""
    [message] = answers(adapter.evaluate(asked, session=session or Session()).transcript)
    return message


def check_answered(transcript: Sequence[Message]) -> None:
    """Checks that each tool call has one answer, in order, before any other message."""
    at = 0
    while at < len(transcript):
        message = transcript[at]
        at += 1
        assert not isinstance(message, ToolMessage), "an answer without a call"
        if isinstance(message, AssistantMessage):
            wanted = [call.call_id for call in message.tool_calls]
            given = transcript[at : at + len(wanted)]
            assert [answer.call_id for answer in given if isinstance(answer, ToolMessage)] == wanted
            at += len(wanted)


def recorded[E](bus: InProcessEventBus | Any, kind: type[E]) -> list[E]:
    """Returns a list that collects the bus's events of one type."""
    events: list[E] = []
    bus.subscribe(kind, events.append)
    return events


def fields_but(event: Any, *left_out: str) -> Mapping[str, object]:
    """Returns an event's fields, except those that differ from run to run."""
    ids = {"event_id", "session_id", "run_id", "run_path"}
    skipped = {*ids, "created_at", "seconds", "timestamp", *left_out}
    return {
        field.name: getattr(event, field.name)
        for field in fields(event)
        if field.compare and field.name not in skipped
    }
