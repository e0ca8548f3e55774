"""Streaming through the real SDK against a scripted server: events that end like `evaluate`."""

import asyncio
import gc
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import AsyncGeneratorType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import Args, Note, ok, prompt, tool
from support.scripted_server import Call, Drop, Fail, Raw, Say, ScriptedServer, Step
from weakincentives.adapters.core import PromptEvaluationError, PromptResponse
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.inner_loop import ProviderRequest, RunConfig
from weakincentives.evaluation.messages import AssistantMessage, ToolsAdded
from weakincentives.evaluation.response import (
    Completed,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.prompt.walk import Disclosure
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.events import Operation, ProviderCalled
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility

# Any: prompts and events of all types.
type Run = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OPENAI_"):
            monkeypatch.delenv(name)


def make_adapter(server: ScriptedServer, api: Any, **options: Any) -> OpenAIAdapter:
    return OpenAIAdapter(
        "test", api=api, base_url=server.openai_url, api_key="k", max_retries=0, **options
    )


def in_order(adapter: Any, asked: Prompt[Any], session: Session, **limits: Any) -> list[Any]:
    return list(adapter.stream(asked, session=session, **limits))


def in_a_loop(adapter: Any, asked: Prompt[Any], session: Session, **limits: Any) -> list[Any]:
    async def run() -> list[Any]:
        return [event async for event in adapter.stream_async(asked, session=session, **limits)]

    return asyncio.run(run())


apis = pytest.mark.parametrize("api", ["responses", "chat"])
drivers = pytest.mark.parametrize("run", [in_order, in_a_loop])


def writes(params: Args, *, context: ToolContext) -> ToolResult[Args]:
    context.session.dispatch(Note(str(params.a)))
    return ToolResult(message="written", value=params)


def agent() -> Prompt[Any]:
    more = MarkdownSection(
        title="More",
        template="More.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="hidden")],
    )
    task = MarkdownSection(title="Task", template="Go.", tools=[tool(writes, name="writes")])
    return Prompt(ns="tests", key="agent", sections=[task, more])


@apis
@drivers
def test_stream_yields_text_deltas_and_tool_call_events(api: str, run: Run) -> None:
    steps = (
        Say("One moment.", calls=(Call("writes", {"a": 1}), Call("writes", {"a": 2}))),
        Say("All is done."),
    )
    with ScriptedServer(*steps) as server:
        session = Session()
        events = run(make_adapter(server, api), agent(), session)
    kinds = [type(event) for event in events]
    assert kinds.count(TextDelta) > 2
    assert (
        "".join(event.text for event in events if isinstance(event, TextDelta))
        == "One moment.All is done."
    )
    between = [event for event in events if isinstance(event, ToolCallStarted | ToolCallFinished)]
    assert [(type(event), event.call.arguments) for event in between] == [
        (kind, f'{{"a": {n}}}') for n in (1, 2) for kind in (ToolCallStarted, ToolCallFinished)
    ]
    assert kinds[-1] is Completed
    assert kinds.count(Completed) == 1
    assert [note.text for note in session[Note]] == ["1", "2"]
    assert all(request.json["stream"] for request in server.requests)
    assert [event.error for event in session[ProviderCalled]] == [None, None]


@apis
@drivers
def test_stream_yields_tools_added_when_a_section_is_opened(api: str, run: Run) -> None:
    steps = (
        Say(calls=(Call("read_section", {"section_key": "more"}),)),
        Say(calls=(Call("hidden"),)),
        Say("ok"),
    )
    with ScriptedServer(*steps) as server:
        events = run(make_adapter(server, api), agent(), Session())
    names = [
        [spec.name for spec in event.tools]
        if isinstance(event, ToolsAdded)
        else type(event).__name__
        for event in events
        if not isinstance(event, TextDelta)
    ]
    called = ["ToolCallStarted", "ToolCallFinished"]
    assert names == [*called, ["hidden"], *called, "Completed"]


@dataclass
class Answer:
    n: int


replies = st.builds(
    Say,
    text=st.text(max_size=12),
    calls=st.lists(
        st.builds(
            Call,
            st.sampled_from(["writes", "read_section", "unknown"]),
            st.sampled_from(["", "{", '{"a": 4}', "{}"]),
        ),
        max_size=3,
    ).map(tuple),
    reasoning=st.none() | st.just("because"),
)


@apis
@settings(max_examples=12, deadline=None)
@given(
    turns=st.lists(replies, max_size=3), last=st.sampled_from(['{"n": 1}', "no JSON", '{"n": "x"}'])
)
def test_stream_gives_the_same_result_as_evaluate(api: str, turns: list[Say], last: str) -> None:
    asked = Prompt[Answer](ns="t", key="k", sections=agent().template.sections)
    turns = [turn if turn.calls else replace(turn, calls=(Call("writes"),)) for turn in turns]
    steps = [*turns, *[Say(last)] * 2]

    def outcome(
        evaluate: Callable[[OpenAIAdapter, Session], PromptResponse[Any]],
    ) -> tuple[object, ...]:
        session = Session()
        with ScriptedServer(*steps, strict=False) as server:
            adapter = make_adapter(server, api, config=RunConfig(max_repairs=1))
            try:
                response: object = evaluate(adapter, session)
            except PromptEvaluationError as error:
                response = (str(error), error.usage, tuple(error.transcript))
            asked_for = [
                {
                    key: value
                    for key, value in request.json.items()
                    if key not in ("stream", "stream_options")
                }
                for request in server.requests
            ]
        return response, session[Note].all(), asked_for

    def streamed(adapter: OpenAIAdapter, session: Session) -> PromptResponse[Any]:
        response: PromptResponse[Any] = in_order(adapter, asked, session)[-1].response
        return response

    assert outcome(streamed) == outcome(
        lambda adapter, session: adapter.evaluate(asked, session=session)
    )


def sse(*lines: str) -> Raw:
    return Raw(
        "".join(f"data: {line}\n\n" for line in lines).encode(), content_type="text/event-stream"
    )


@apis
@drivers
@pytest.mark.parametrize(
    ("step", "code"),
    [
        (Fail(500), "server"),
        (Drop(), "connection"),
        (sse(), "malformed"),
        (sse("{"), "malformed"),
        (sse("[1]"), "malformed"),
        (sse('{"choices": [{"delta": {"tool_calls": ["x"]}}]}'), "malformed"),
        (sse('{"error": {"message": "overloaded"}}'), "provider_failed"),
        (
            sse(
                '{"type": "response.output_text.delta", "delta": "Hal"}',
                '{"choices": [{"delta": {}}]}',
            ),
            "malformed",
        ),
    ],
)
def test_broken_stream_raises_prompt_evaluation_error(
    api: str, run: Run, step: Step, code: str
) -> None:
    session = Session()
    with ScriptedServer(step) as server, pytest.raises(PromptEvaluationError) as caught:
        run(make_adapter(server, api), prompt(), session)
    assert caught.value.provider == "openai"
    assert caught.value.code.startswith(code)
    assert session[ProviderCalled].all()[0].error


@apis
def test_closing_a_stream_stops_the_run_and_keeps_finished_calls(api: str) -> None:
    session = Session()
    closed: list[str] = []

    def taken(events: Iterator[Any]) -> None:
        for event in events:
            if isinstance(event, ToolCallFinished):
                break

    with ScriptedServer(
        Say("Hm.", calls=(Call("writes"),)), Say("never read to its end")
    ) as server:
        events = make_adapter(server, api).stream(agent(), session=session)
        taken(events)
        events.close()

        async def run() -> None:
            async with aclosing(
                make_adapter(server, api).stream_async(agent(), session=session)
            ) as later:
                async for _ in later:
                    closed.append("event")
                    break

        asyncio.run(run())
    assert len(session[Note]) == 1
    assert len(server.requests) == 2
    assert closed == ["event"]


class Held:
    """A resource that records when it is closed."""

    def __init__(self, notices: list[object]) -> None:
        self.notices = notices

    def close(self) -> None:
        self.notices.append("closed")


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_completed_is_yielded_after_the_evaluation_has_ended(in_a_loop: bool) -> None:
    notices: list[object] = []
    asked = agent().bind(
        resources=ResourceRegistry.of(Binding(Held, lambda _: Held(notices), eager=True))
    )
    adapter, session = ScriptedAdapter([say("Done.")]), Session()

    def listen(work: Operation) -> None:
        if work.kind == "evaluation":
            work.on_end(notices.append)

    session.bus.subscribe(Operation, listen)

    async def first_completed() -> Completed[Any]:
        async with aclosing(adapter.stream_async(asked, session=session)) as events:
            return await anext(event async for event in events if isinstance(event, Completed))

    if in_a_loop:
        last = asyncio.run(first_completed())
    else:
        last = next(
            event
            for event in adapter.stream(asked, session=session)
            if isinstance(event, Completed)
        )
    assert last.response.text == "Done."
    assert notices == ["closed", None]


@drivers
def test_deadline_ends_a_stream_between_two_chunks(run: Run) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    ticks = iter(range(1000))

    def clock() -> datetime:
        return start + timedelta(seconds=next(ticks))

    words = sse(*['{"choices": [{"delta": {"content": "word "}}]}'] * 200)
    with ScriptedServer(words) as server, pytest.raises(PromptEvaluationError) as caught:
        run(
            make_adapter(server, "chat", clock=clock),
            prompt(),
            Session(),
            deadline=Deadline(start + timedelta(seconds=20)),
        )
    assert caught.value.code == "deadline"
    # Another thread's garbage collector would finalize them, while the event loop closes them.
    give_up = time.monotonic() + 5  # a portal closes them after the run
    while _open_http_generators() and time.monotonic() < give_up:
        time.sleep(0.01)
    assert _open_http_generators() == []


def _open_http_generators() -> list[AsyncGeneratorType[Any, Any]]:
    kept = [each for each in gc.get_objects() if isinstance(each, AsyncGeneratorType)]
    return [each for each in kept if each.ag_frame and "packages/http" in each.ag_code.co_filename]


@drivers
def test_stream_raises_visibility_expansion_required(run: Run) -> None:
    asked: Prompt[Any] = Prompt(
        ns="tests", key="agent", sections=agent().template.sections, disclosure=Disclosure.OPEN
    )
    opens = call(("open_sections", {"section_keys": ["more"], "reason": "why"}))
    with pytest.raises(VisibilityExpansionRequired):
        run(ScriptedAdapter([opens]), asked, Session())


def test_parallel_call_that_ends_the_evaluation_is_reported_once() -> None:
    def leaves(params: Args, *, context: ToolContext) -> ToolResult[object]:
        raise VisibilityExpansionRequired(requested_overrides={}, reason="", section_keys=())

    started: list[str] = []

    def note(events: Iterator[Any]) -> None:
        started.extend(event.call.name for event in events if isinstance(event, ToolCallStarted))

    adapter = ScriptedAdapter(
        [call(("probe", {}), ("leaves", {}))],
        config=RunConfig(parallel_tool_calls="isolated"),
    )
    with pytest.raises(VisibilityExpansionRequired):
        note(adapter.stream(prompt(tool(), tool(leaves, name="leaves")), session=Session()))
    assert started == ["probe", "leaves"]


@drivers
def test_adapter_without_chunks_yields_each_text_as_one_delta(run: Run) -> None:
    adapter = ScriptedAdapter([call(("probe", Args())), say("Done.")])
    events = run(adapter, prompt(tool(ok)), Session())
    assert [type(event).__name__ for event in events] == [
        "ToolCallStarted",
        "ToolCallFinished",
        "TextDelta",
        "Completed",
    ]


@drivers
def test_adapter_stream_without_a_final_message_raises_type_error(run: Run) -> None:
    class Unfinished(ScriptedAdapter):
        def ask_stream(self, request: ProviderRequest, /) -> Iterator[TextDelta | AssistantMessage]:
            yield TextDelta("Well")

        async def ask_stream_async(
            self, request: ProviderRequest, /
        ) -> AsyncGenerator[TextDelta | AssistantMessage]:
            yield TextDelta("Well")

    session = Session()
    with pytest.raises(
        TypeError, match="stream of Unfinished must end with a complete AssistantMessage"
    ):
        run(Unfinished([]), prompt(), session)
    [event] = session[ProviderCalled].all()
    assert (event.error or "").startswith("TypeError")


@drivers
def test_stream_yields_tools_added_in_the_order_of_the_opened_sections(run: Run) -> None:
    hidden = [
        MarkdownSection(
            title=name,
            template="More.",
            visibility=SectionVisibility.SUMMARY,
            tools=[tool(name=name)],
        )
        for name in ("one", "two")
    ]
    reads = call(*[("read_section", {"section_key": name}) for name in ("one", "two")])
    asked: Prompt[Any] = Prompt(ns="tests", key="agent", sections=hidden)
    events = run(ScriptedAdapter([reads, say("Done.")]), asked, Session())
    assert [
        [spec.name for spec in event.tools] for event in events if isinstance(event, ToolsAdded)
    ] == [
        ["one"],
        ["two"],
    ]


def test_stream_does_not_yield_tools_added_between_two_runs() -> None:
    down = PromptEvaluationError("down", phase="request", code="server_error")
    with pytest.raises(PromptEvaluationError) as caught:
        ScriptedAdapter([down]).evaluate(prompt(), session=Session())
    adapter = ScriptedAdapter([say("done")])
    earlier = caught.value.conversation
    events = list(adapter.stream(prompt(tool()), session=Session(), conversation=earlier))
    assert [type(message) for message in adapter.requests[0].messages][-1] is ToolsAdded
    assert [type(event) for event in events] == [TextDelta, Completed]
