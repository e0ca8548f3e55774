"""Runs that are suspended, at their root or inside a tool, and modified suspensions."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from support.agents import Args, Note, tool
from weakincentives.evaluation.approval import (
    Preview,
)
from weakincentives.evaluation.logged_run import Asked, LoggedEntry
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.evaluation.response import Completed
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import Session


def showing(suspension: Suspension, *previews: Preview) -> Suspension:
    """Returns the run's suspension, as if the model had made these calls instead of its own."""
    asked = [entry for entry in suspension.log.entries if isinstance(entry, Asked)]
    others: list[LoggedEntry] = [
        entry for entry in suspension.log.entries if not isinstance(entry, Asked)
    ]
    shown = [
        replace(entry, preview=preview) for entry, preview in zip(asked, previews, strict=True)
    ]
    return replace(suspension, log=replace(suspension.log, entries=(*others, *shown)))


type Way = Literal["execute", "execute_async", "stream", "stream_async"]
WAYS: list[Way] = ["execute", "execute_async", "stream", "stream_async"]


def run(
    loop: MainLoop, asked: Prompt[Any], at: Session, way: Way, **options: Any
) -> Execution[Any]:
    """Runs a prompt with one of `MainLoop`'s methods."""

    async def last() -> Any:
        return [event async for event in loop.stream_async(asked, session=at, **options)][-1]

    match way:
        case "execute":
            return loop.execute(asked, session=at, **options)
        case "execute_async":
            return asyncio.run(loop.execute_async(asked, session=at, **options))
        case "stream":
            event: Any = list(loop.stream(asked, session=at, **options))[-1]
        case _:
            event = asyncio.run(last())
    assert isinstance(event, Completed)
    response = event.response
    return Execution(response=response, expansions=(), usage=response.usage)


def write_note(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note(str(params.a)))
    return ToolResult(f"wrote {params.a}")


def agent(*tools: Tool[Any, Any], key: str = "inner", text: str = "Inner.") -> PromptTemplate[str]:
    section = MarkdownSection(title="Task", key="task", template=text, tools=tools, state=[Note])
    return PromptTemplate[str](ns="tests", key=key, sections=[section])


def delegating(template: PromptTemplate[str], **options: Any) -> Tool[Any, Any]:
    """Returns a hand-written tool that runs a prompt."""

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(f"delegates {params.a}"))
        return ToolResult(context.evaluate(template.bind()).text)

    return replace(tool(delegate, name="delegate"), **options)


def suspended(loop: MainLoop, asked: Prompt[Any], at: Session, **options: Any) -> Suspension:
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=at, **options)
    return Suspension.from_json(waiting.value.suspension.to_json())


def notes(at: Session) -> list[str]:
    return [note.text for note in at[Note].all()]


def opening(more: Sequence[Tool[Any, Any]], task: Sequence[Tool[Any, Any]]) -> Prompt[Any]:
    """Returns a prompt whose closed section has the tools `more`."""
    closed = MarkdownSection(
        title="More",
        template="Plan.",
        summary="A plan.",
        tools=more,
        visibility=SectionVisibility.SUMMARY,
    )
    shown = MarkdownSection(title="Task", template="Do it.", tools=task)
    return PromptTemplate[str](ns="tests", key="agent", sections=[shown, closed]).bind()
