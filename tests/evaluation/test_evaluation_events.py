"""However an evaluation ends, one event reports it, and it is the evaluation's last event."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.media import PNG
from weakincentives import MainLoop
from weakincentives.content import Image
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.conversation import begin
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.evaluation_events import opening_events
from weakincentives.evaluation.messages import Instructions
from weakincentives.evaluation.run_log import RunLog
from weakincentives.evaluation.suspension import RunSuspended
from weakincentives.limits import Budget, Deadline, TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import (
    ApprovalDecided,
    EvaluationStopped,
    Event,
    InProcessEventBus,
    Operation,
    PromptExecuted,
    PromptRendered,
    VisibilityExpanded,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

LATE = datetime(2030, 1, 2, tzinfo=UTC)
NO_ROUTE = PromptEvaluationError("no route", phase="request", code="connection")


@dataclass(frozen=True)
class Order:
    tea: str


@dataclass(frozen=True)
class Picture:
    shown: Image


def order(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Order a tea."""
    context.session[Order].append(params)
    return ToolResult(message="Ordered.")


def ask(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Ask another agent, which fails."""
    context.evaluate(template(name="inner").bind())
    return ToolResult(message="Never.")


def interrupt(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Stop it all."""
    raise KeyboardInterrupt


def template(name: str = "clerk") -> PromptTemplate[None]:
    tools = [
        Tool(name="order", handler=order, approval="effects", effect="repeatable"),
        Tool(name="ask", handler=ask),
        Tool(name="interrupt", handler=interrupt),
    ]
    more = MarkdownSection(
        title="More", template="More.", summary="More?", visibility=SectionVisibility.SUMMARY,
        tools=[Tool(name="help", handler=order)],
    )  # fmt: skip
    task = MarkdownSection(title="Task", template="Help.", tools=tools)
    return PromptTemplate(ns="tests", key=name, sections=[task, more])


TEA = {"tea": "Assam"}
ORDER, ASK, INTERRUPT = (call((name, TEA)) for name in ("order", "ask", "interrupt"))
READ = call(("read_section", {"section_key": "more"}))
WAYS = ["execute", "execute_async", "stream", "stream_async"]


def run(way: str, loop: MainLoop, session: Session, **options: Any) -> BaseException | None:
    """Runs the prompt to its end in one of four ways; returns the error that it raised."""
    evaluate: Callable[..., Any] = getattr(loop, way)

    async def last() -> None:
        running = evaluate(template().bind(), session=session, **options)
        if way == "execute_async":
            await running
        else:
            async with aclosing(running) as events:
                async for _ in events:
                    pass

    try:
        if way.endswith("async"):
            asyncio.run(last())
        elif way == "stream":
            with closing(evaluate(template().bind(), session=session, **options)) as events:
                for _ in events:
                    pass
        else:
            evaluate(template().bind(), session=session, **options)
    except BaseException as error:
        return error
    return None


def ends(session: Session) -> list[EvaluationStopped]:
    return list(session[EvaluationStopped].all())


@dataclass(frozen=True)
class Ending:
    """A model's output, the run's limits, and the expected report of its end."""

    replies: list[Any]
    options: dict[str, Any]
    reason: str
    code: str
    turns: int


ENDINGS = {
    "deadline": Ending(
        [say("Late.")], {"deadline": Deadline(LATE - timedelta(days=1))}, "limit", "deadline", 0
    ),
    "budget": Ending([ASK], {"budget": Budget(max_tokens=5)}, "limit", "budget", 1),
    "provider": Ending([NO_ROUTE], {}, "failed", "connection", 1),
    "defect": Ending([RuntimeError("a defect")], {}, "failed", "", 1),
    "approval": Ending([ORDER], {}, "suspended", "", 1),
    "interrupt": Ending([INTERRUPT], {}, "cancelled", "", 1),
    "expansions": Ending([READ], {}, "limit", "expansions", 1),
}


def with_usage(reply: Any) -> Any:
    if isinstance(reply, Exception):
        return reply
    return replace(reply, usage=TokenUsage(input_tokens=6, output_tokens=2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ENDINGS)
def test_evaluation_without_a_response_publishes_one_stopped_event(way: str, name: str) -> None:
    ending, session = ENDINGS[name], Session()
    replies = [with_usage(reply) for reply in ending.replies]
    adapter = ScriptedAdapter(replies, dynamic_tools=name != "expansions")
    adapter.clock = lambda: LATE
    loop = MainLoop(adapter, max_expansions=0, clock=lambda: LATE)
    error = run(way, loop, session, **ending.options)
    [stopped] = ends(session)
    expected = ending.reason, ending.code, ending.turns
    assert (stopped.reason, stopped.code, stopped.turns) == expected
    assert stopped.session_id == session.session_id
    assert type(error).__name__ in stopped.error
    assert not session[PromptExecuted].all()
    if isinstance(error, PromptEvaluationError):
        assert (stopped.usage, stopped.turns) == (error.usage, error.turns)
    waiting = error.suspension.pending if isinstance(error, RunSuspended) else ()
    assert stopped.pending == tuple([str(preview) for preview in waiting])


@pytest.mark.parametrize("way", WAYS)
def test_restarted_run_with_a_response_publishes_no_stopped_event(way: str) -> None:
    session = Session()
    kinds: list[type[Event]] = []
    session.bus.subscribe(Event, lambda event: kinds.append(type(event)))
    loop = MainLoop(ScriptedAdapter([READ, say("Done.")], dynamic_tools=False))
    assert run(way, loop, session) is None
    ended = (PromptRendered, VisibilityExpanded, PromptExecuted, EvaluationStopped)
    assert [kind for kind in kinds if kind in ended] == [
        PromptRendered,
        VisibilityExpanded,
        PromptRendered,
        PromptExecuted,
    ]


def test_nested_evaluation_stopped_is_published_before_tool_invoked() -> None:
    session = Session()
    kinds: list[tuple[str, str]] = []
    session.bus.subscribe(
        Event, lambda event: kinds.append((type(event).__name__, getattr(event, "name", "")))
    )
    adapter = ScriptedAdapter([ASK, NO_ROUTE, say("Done.")])
    assert run("execute", MainLoop(adapter), session) is None
    names = [name for name, _ in kinds]
    assert names.index("EvaluationStopped") < names.index("ToolInvoked")
    assert names[-1] == "PromptExecuted"
    assert [stopped.prompt_name for stopped in ends(session)] == ["inner"]


def test_closed_stream_is_reported_as_cancelled() -> None:
    session = Session()
    events = MainLoop(ScriptedAdapter([say("One two.")])).stream(template().bind(), session=session)
    next(events)
    events.close()
    [stopped] = ends(session)
    assert (stopped.reason, stopped.error) == ("cancelled", "GeneratorExit")


def test_approval_decided_contains_the_text_of_the_preview() -> None:
    session, shown = Session(), list[str]()

    def approver(preview: Any) -> Approve:
        shown.append(str(preview))
        return Approve()

    loop = MainLoop(ScriptedAdapter([ORDER, say("Done.")]))
    assert run("execute", loop, session, approver=approver) is None
    [decided] = session[ApprovalDecided].all()
    assert [decided.preview] == shown
    assert '+ [0] = {"tea": "Assam"}' in decided.preview


def test_prompt_rendered_contains_the_changes_sent_to_the_model() -> None:
    def agent(text: str) -> PromptTemplate[None]:
        section = MarkdownSection(title="Task", template=text)
        return PromptTemplate(ns="tests", key="agent", sections=[section])

    session, rendered = Session(), list[PromptRendered]()
    session.bus.subscribe(PromptRendered, rendered.append)
    loop, conversation = MainLoop(ScriptedAdapter([say("One."), say("Two."), say("Three.")])), None
    for text in ("Make tea.", "Make tea.", "Make coffee."):
        conversation = loop.execute(
            agent(text).bind(), session=session, message="Go.", conversation=conversation
        ).conversation
    assert conversation is not None
    [_, told] = [item for item in conversation.messages if isinstance(item, Instructions)]
    assert "Make coffee." in told.content
    assert [event.changes for event in rendered] == ["", "", told.content]


def test_prompt_rendered_has_the_media_of_a_new_conversation() -> None:
    picture = Image.from_bytes(PNG, name="tea.png")
    section = MarkdownSection[Picture](title="Tea", template="Order $shown")
    prompt = PromptTemplate[None](ns="tests", key="tea", sections=[section]).bind(Picture(picture))
    rendered, log = prompt.render(), RunLog("run")
    event = next(
        opening_events(
            rendered,
            prompt,
            Operation(bus=InProcessEventBus(), kind="evaluation", name="tea"),
            begin(rendered, (), None),
            {"log": log},
            ids=log.ids(None),
        )
    )
    assert isinstance(event, PromptRendered)
    assert event.media == (picture,)
