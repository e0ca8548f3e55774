"""Spans and metrics exported by the real SDK, in memory and to a collector on this machine."""

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from contextvars import copy_context
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Barrier, Thread
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from support.agents import Args, Note, ok, prompt, tool
from support.commands import environment
from support.deadlines import SOON
from support.durable_runs import WatchedTable
from weakincentives import MarkdownSection, Prompt, PromptTemplate, SectionVisibility, TokenUsage
from weakincentives.contrib.durable import MemoryLogTable, durable, execute_run, to_input
from weakincentives.contrib.otel import instrument
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import ExpansionLimitError, MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall
from weakincentives.evaluation.response import TextDelta
from weakincentives.evaluation.stored_log import Place
from weakincentives.limits import Prices
from weakincentives.prompt import (
    Disclosure,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.protocols import EventBus
from weakincentives.runtime.events import InProcessEventBus, Operation, PromptRendered, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, SeenRequest, call, say

ISOLATED = RunConfig(parallel_tool_calls="isolated")

# A span's name, with its children in the order of their start.
type Tree = dict[str, list["Tree"]]


class Telemetry:
    """A real SDK that exports into memory, and a session instrumented with it."""

    def __init__(
        self,
        *,
        bus: EventBus | None = None,
        capture_content: bool = False,
        prices: Prices | None = None,
    ) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.session = Session(bus=bus)
        self.end = instrument(
            self.session.bus,
            tracer_provider=self.tracers,
            meter_provider=self.meters,
            capture_content=capture_content,
            prices=prices,
        )

    def evaluate(
        self, asked: Prompt[Any], *replies: Reply, how: str = "sync", **options: Any
    ) -> None:
        """Evaluates a prompt with a model that gives these replies."""
        adapter = ScriptedAdapter(replies, **options)
        if how == "async":
            asyncio.run(adapter.evaluate_async(asked, session=self.session))
        else:
            adapter.evaluate(asked, session=self.session)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The finished spans, in the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def only(self, name: str) -> ReadableSpan:
        """Returns the only span with that name."""
        [span] = [span for span in self.spans if span.name == name]
        return span

    @property
    def attributes(self) -> list[dict[str, object]]:
        return [dict(span.attributes or {}) for span in self.spans]

    @property
    def errors(self) -> list[object]:
        """The error type of each span; a span has one if and only if its status is an error."""
        errors = [attributes.get("error.type") for attributes in self.attributes]
        failed = [span.status.status_code is StatusCode.ERROR for span in self.spans]
        assert failed == [error is not None for error in errors]
        return errors

    @property
    def metrics_json(self) -> str:
        data = self.reader.get_metrics_data()
        assert data is not None
        return str(data.to_json())

    @property
    def tree(self) -> list[Tree]:
        """All spans; a child whose parent was not exported would be missing."""
        trees = self.children(None)
        assert len(self.spans) == count(trees)
        return trees

    def children(self, parent: ReadableSpan | None) -> list[Tree]:
        above = None if parent is None else identity(parent)
        return [
            {span.name: self.children(span)}
            for span in self.spans
            if (span.parent.span_id if span.parent else None) == above
        ]

    @property
    def metrics(self) -> dict[tuple[str, str], Any]:
        """Returns each data point by its metric's name and a few of its attributes.

        Any: from any instrument.
        """
        data = self.reader.get_metrics_data()
        points: dict[tuple[str, str], Any] = {}
        for resource in data.resource_metrics if data else ():
            for metric in [metric for scope in resource.scope_metrics for metric in scope.metrics]:
                for point in metric.data.data_points:
                    keys = ("gen_ai.tool.name", "gen_ai.token.type", "error.type")
                    labels = [(point.attributes or {}).get(key) for key in keys]
                    points[metric.name, " ".join(str(label) for label in labels if label)] = point
        return points

    def counted(self, name: str) -> int:
        """Returns the value of a counter without attributes."""
        point = self.metrics.get((name, ""))
        return 0 if point is None else int(point.value)

    def inside(self, name: str) -> None:
        """Creates a span, as an instrumented library does in a handler."""
        with self.tracers.get_tracer("library").start_as_current_span(name):
            pass


def identity(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def count(trees: list[Tree]) -> int:
    return sum(1 + count(children) for tree in trees for children in tree.values())


def leaf(*names: str) -> list[Tree]:
    return [{name: []} for name in names]


def disclosing(*, mode: Disclosure = Disclosure.READ, tools: int = 2) -> Prompt[Any]:
    """Returns a prompt with a summarized section that has that many tools, and one without."""
    summarized = SectionVisibility.SUMMARY
    tool_list = [tool(ok, name=f"tool_{number}") for number in range(tools)]
    box = MarkdownSection(
        title="Box", template="Full.", summary="Short.", visibility=summarized, tools=tool_list
    )
    text = MarkdownSection(title="Text", template="Full.", summary="Short.", visibility=summarized)
    return Prompt(
        PromptTemplate(ns="tests", key="disclosing", sections=[box, text], disclosure=mode)
    )


READ = ("read_section", {"section_key": "box"})
OPEN = ("open_sections", {"section_keys": ["box"], "reason": "need it"})

# --- spans


def test_request_spans_have_their_cost_or_mark_it_unknown() -> None:
    def prices(usage: TokenUsage, model: str) -> float | None:
        return usage.input_tokens / 100 if model == "known" else None

    telemetry = Telemetry(prices=prices)
    replies = [replace(call(("probe", {})), model="known"), replace(say("x"), model="new")]
    telemetry.evaluate(prompt(tool()), *replies)
    first, second = [
        attributes for attributes in telemetry.attributes if "chat" in attributes.values()
    ]
    assert (first["wink.cost.usd"], "wink.cost.unknown" in first) == (0.1, False)
    assert (second["wink.cost.unknown"], "wink.cost.usd" in second) == (True, False)
    assert '"name": "wink.cost"' in telemetry.metrics_json


def test_evaluation_is_an_agent_span_with_chat_and_tool_spans() -> None:
    telemetry = Telemetry()
    adapter = ScriptedAdapter(
        [
            call(("probe", {}), ("probe", {}), usage=TokenUsage(7, 3, 2, 1, 2)),
            replace(say("Done.", usage=TokenUsage(11, 4)), model="model-1-2026"),
        ]
    )
    adapter.model = "model-1"
    adapter.evaluate(prompt(tool()), session=telemetry.session)
    inner = leaf("chat model-1", "execute_tool probe", "execute_tool probe", "chat model-1")
    assert telemetry.tree == [{"invoke_agent agent": inner}]
    agent, chat, probe, _, last = telemetry.attributes
    (run_id,) = {event.run_id for event in telemetry.session[PromptRendered].all()}
    assert run_id
    common = {
        "gen_ai.conversation.id": telemetry.session.session_id,
        "wink.run.id": run_id,
        "wink.run.path": "",
    }
    details = {
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.cache_creation.input_tokens": 1,
        "gen_ai.usage.reasoning.output_tokens": 2,
    }
    assert agent == common | {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "agent",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "model-1",
        "gen_ai.usage.input_tokens": 18,
        "gen_ai.usage.output_tokens": 7,
        **details,
    }
    assert chat == common | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "model-1",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        **details,
        "gen_ai.response.finish_reasons": ("tool_calls",),
    }
    assert probe == common | {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "probe",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.tool.type": "function",
    }
    assert last["gen_ai.response.finish_reasons"] == ("stop",)
    assert (last["gen_ai.response.model"], "gen_ai.response.model" in chat) == (
        "model-1-2026",
        False,
    )
    assert [span.kind for span in telemetry.spans[:3]] == [
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
    ]
    assert telemetry.errors == [None] * 5


def test_spans_started_by_a_handler_are_children_of_its_tool_span() -> None:
    telemetry = Telemetry()

    def plain(params: Args, *, context: ToolContext) -> ToolResult[object]:
        telemetry.inside("http")
        return ToolResult(message="ok")

    async def later(params: Args, *, context: ToolContext) -> ToolResult[object]:
        await asyncio.sleep(0)
        telemetry.inside("http")
        return ToolResult(message="ok")

    asked = prompt(tool(plain, name="plain"), tool(later, name="later"))
    turn = [call(("plain", {}), ("later", {})), say("Done.")]
    expected = {
        "invoke_agent agent": [
            {"chat": []},
            {"execute_tool plain": leaf("http")},
            {"execute_tool later": leaf("http")},
            {"chat": []},
        ]
    }
    adapter = ScriptedAdapter(turn * 3)
    adapter.evaluate(asked, session=telemetry.session)
    asyncio.run(adapter.evaluate_async(asked, session=telemetry.session))
    list(adapter.stream(asked, session=telemetry.session))
    assert telemetry.tree == [expected] * 3


def test_nested_evaluation_is_a_child_of_its_tool_span() -> None:
    telemetry = Telemetry()

    def asks(params: Args, *, context: ToolContext) -> ToolResult[object]:
        response = context.adapter.evaluate(prompt(tool(name="inner")), session=context.session)
        telemetry.inside("after")
        return ToolResult(message=response.text)

    adapter = ScriptedAdapter(
        [call(("asks", {})), call(("inner", {})), say("Inside."), say("Done.")]
    )
    with telemetry.tracers.get_tracer("app").start_as_current_span("request"):
        adapter.evaluate(prompt(tool(asks, name="asks")), session=telemetry.session)
    nested: Tree = {
        "invoke_workflow agent": [
            {"invoke_agent agent": leaf("chat", "execute_tool inner", "chat")}
        ]
    }
    asked: Tree = {"execute_tool asks": [nested, {"after": []}]}
    assert telemetry.tree == [
        {"request": [{"invoke_agent agent": [{"chat": []}, asked, {"chat": []}]}]}
    ]


def test_spans_have_the_run_id_and_the_path_of_nested_runs() -> None:
    telemetry = Telemetry()
    delegate = Tool.from_prompt(prompt(tool()).template, name="delegate")
    turns = [call(("delegate", {"message": "Hi."})), call(("probe", {})), say("In."), say("Done.")]
    MainLoop(ScriptedAdapter(turns)).execute(prompt(delegate), session=telemetry.session)
    (run_id,) = {event.run_id for event in telemetry.session[PromptRendered].all()}
    outside, inside = "", "1/call_1/1:"
    assert [
        (span.name, (span.attributes or {})["wink.run.path"])
        for span in telemetry.spans
        if (span.attributes or {})["wink.run.id"] == run_id
    ] == [
        ("invoke_workflow agent", outside),
        ("invoke_agent agent", outside),
        ("chat", outside),
        ("execute_tool delegate", outside),
        ("invoke_workflow agent", inside),
        ("invoke_agent agent", inside),
        ("chat", inside),
        ("execute_tool probe", inside),
        ("chat", inside),
        ("chat", outside),
    ]


@pytest.mark.claim("DT-32")
@pytest.mark.parametrize(("mode", "asked"), [(Disclosure.READ, READ), (Disclosure.OPEN, OPEN)])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_restarted_evaluations_share_one_workflow_span(
    mode: Disclosure, asked: tuple[str, object], how: str
) -> None:
    telemetry = Telemetry()
    adapter = ScriptedAdapter(
        [call(asked), call(("tool_0", {})), say("Done.")], dynamic_tools=mode is Disclosure.OPEN
    )
    loop = MainLoop(adapter)
    if how == "async":
        asyncio.run(loop.execute_async(disclosing(mode=mode), session=telemetry.session))
    else:
        loop.execute(disclosing(mode=mode), session=telemetry.session)
    first: Tree = {"invoke_agent disclosing": leaf("chat", f"execute_tool {asked[0]}")}
    second: Tree = {"invoke_agent disclosing": leaf("chat", "execute_tool tool_0", "chat")}
    assert telemetry.tree == [{"invoke_workflow disclosing": [first, second]}]
    assert set(telemetry.errors) == {None}
    assert telemetry.attributes[0]["gen_ai.usage.input_tokens"] == 30
    assert telemetry.counted("wink.disclosure.restarts") == 1
    assert (
        telemetry.counted("wink.tools.injected")
        == telemetry.counted("wink.disclosure.dynamic")
        == 0
    )


# --- failures


def test_failed_request_marks_every_enclosing_span_as_an_error() -> None:
    telemetry = Telemetry()
    failure = PromptEvaluationError("down", phase="request", code="server_error")
    adapter = ScriptedAdapter([call(("probe", {})), failure])
    with pytest.raises(PromptEvaluationError):
        MainLoop(adapter).execute(prompt(tool()), session=telemetry.session)
    evaluation: Tree = {"invoke_agent agent": leaf("chat", "execute_tool probe", "chat")}
    assert telemetry.tree == [{"invoke_workflow agent": [evaluation]}]
    error = "PromptEvaluationError"
    assert telemetry.errors == [error, error, None, None, error]
    assert {span.status.description for span in telemetry.spans} == {None, "request/server_error"}
    assert telemetry.attributes[1]["gen_ai.usage.input_tokens"] == 10
    assert ("gen_ai.client.operation.duration", error) in telemetry.metrics


def test_failed_tool_call_is_an_error_but_its_evaluation_is_not() -> None:
    def raises(params: Args, *, context: ToolContext) -> ToolResult[object]:
        raise LookupError("no such thing")

    def refuses(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(message="no", success=False)

    telemetry = Telemetry()
    asked = prompt(tool(raises, name="raises"), tool(refuses, name="refuses"))
    calls = call(("raises", {}), ("refuses", {}), ("unknown", {}), ("raises", '{"a": "x"}'))
    telemetry.evaluate(asked, calls, say("Done."))
    names = [span.name for span in telemetry.spans]
    assert list(zip(names, telemetry.errors, strict=True)) == [
        ("invoke_agent agent", None),
        ("chat", None),
        ("execute_tool raises", "LookupError"),
        ("execute_tool refuses", "tool_failed"),
        ("execute_tool unknown", "ToolValidationError"),
        ("execute_tool raises", "ToolValidationError"),
        ("chat", None),
    ]


def interrupts(params: Args, *, context: ToolContext) -> ToolResult[object]:
    raise KeyboardInterrupt


async def cancels(params: Args, *, context: ToolContext) -> ToolResult[object]:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()
    raise AssertionError("it was cancelled")


@pytest.mark.parametrize(("how", "stops"), [("sync", interrupts), ("async", cancels)])
def test_interrupted_run_ends_its_open_spans_as_errors(how: str, stops: Callable[..., Any]) -> None:
    telemetry = Telemetry()
    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)) as stopped:
        telemetry.evaluate(prompt(tool(stops)), call(("probe", {})), how=how)
    assert telemetry.tree == [{"invoke_agent agent": leaf("chat", "execute_tool probe")}]
    assert telemetry.errors == [stopped.typename, None, stopped.typename]
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.claim("DT-32")
def test_visibility_expansion_is_not_recorded_as_an_error() -> None:
    telemetry = Telemetry()
    adapter = ScriptedAdapter([call(READ)], dynamic_tools=False)
    with pytest.raises(VisibilityExpansionRequired):
        adapter.evaluate(disclosing(), session=telemetry.session)
    assert telemetry.errors == [None] * 3
    loop = MainLoop(ScriptedAdapter([call(READ)], dynamic_tools=False), max_expansions=0)
    with pytest.raises(ExpansionLimitError):
        loop.execute(disclosing(), session=telemetry.session)
    workflow = telemetry.only("invoke_workflow disclosing")
    assert workflow.status.description == "limit/expansions"
    assert telemetry.counted("wink.disclosure.restarts") == 0


# --- threads, tasks, streams


def taking_turns(
    telemetry: Telemetry, name: str, meet: Callable[[], Any]
) -> tuple[ScriptedAdapter, Prompt[Any]]:
    """An evaluation that meets another one in its handler."""
    adapter = ScriptedAdapter([call((name, {})), say("Done.")])
    adapter.model = name

    def plain(params: Args, *, context: ToolContext) -> ToolResult[object]:
        meet()
        telemetry.inside(f"http {name}")
        return ToolResult(message="ok")

    return adapter, prompt(tool(plain, name=name))


def by_model(name: str) -> Tree:
    return {
        "invoke_agent agent": [
            {f"chat {name}": []},
            {f"execute_tool {name}": leaf(f"http {name}")},
            {f"chat {name}": []},
        ]
    }


@pytest.mark.parametrize("how", ["sync", "async"])
def test_concurrent_evaluations_on_one_bus_do_not_mix(how: str) -> None:
    telemetry = Telemetry()
    barrier = Barrier(2, timeout=SOON)
    runs = [taking_turns(telemetry, name, barrier.wait) for name in ("one", "two")]
    if how == "async":

        async def both() -> None:
            await asyncio.gather(
                *(
                    adapter.evaluate_async(asked, session=Session(bus=telemetry.session.bus))
                    for adapter, asked in runs
                )
            )

        asyncio.run(both())
    else:
        with ThreadPoolExecutor(2) as pool:
            bus = telemetry.session.bus
            list(pool.map(lambda run: run[0].evaluate(run[1], session=Session(bus=bus)), runs))
    assert sorted(telemetry.tree, key=str) == sorted([by_model("one"), by_model("two")], key=str)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_parallel_calls_have_overlapping_spans_with_their_own_children(how: str) -> None:
    telemetry = Telemetry()
    barrier = Barrier(2, timeout=SOON)
    inner = ScriptedAdapter([say("Inside.")] * 2)

    def meets(params: Args, *, context: ToolContext) -> ToolResult[object]:
        barrier.wait()  # passed only if both run concurrently
        context.evaluate(prompt(), adapter=inner)
        telemetry.inside("http")
        return ToolResult(message="ok")

    asked, calls = prompt(tool(meets, name="meets")), call(("meets", {}), ("meets", {}))
    telemetry.evaluate(asked, calls, say("Done."), how=how, config=ISOLATED)
    run = {"invoke_workflow agent": [{"invoke_agent agent": leaf("chat")}]}
    meeting: Tree = {"execute_tool meets": [run, {"http": []}]}
    assert telemetry.tree == [
        {"invoke_agent agent": [{"chat": []}, meeting, meeting, {"chat": []}]}
    ]
    meetings = [span for span in telemetry.spans if span.name == "execute_tool meets"]
    ids = {str((span.attributes or {})["gen_ai.tool.call.id"]) for span in meetings}
    assert ids == {"call_1", "call_2"}
    (first, second), [_, *_, last] = meetings, telemetry.spans
    assert (second.start_time or 0) < (first.end_time or 0) < (last.start_time or 0)


def test_repeated_parallel_call_has_two_spans_without_an_error() -> None:
    def reads(params: Args, *, context: ToolContext) -> ToolResult[object]:
        length = len(context.session[Note])
        context.session[Note].append(Note(str(length)))
        return ToolResult(message=str(length))

    def refuses(params: Args, *, context: ToolContext) -> ToolResult[object]:
        # which parallel calls must not read
        return ToolResult(message=str(len(context.session[ToolInvoked])))

    telemetry = Telemetry()
    asked = prompt(tool(reads, name="reads"), tool(refuses, name="refuses"))
    calls = call(("reads", {}), ("reads", {}), ("refuses", {}))
    telemetry.evaluate(asked, calls, say("Done."), config=ISOLATED)
    assert telemetry.session[Note].all() == (Note("0"), Note("1"))
    assert sorted(
        span.name for span in telemetry.spans if span.name.startswith("execute_tool")
    ) == [
        *["execute_tool reads"] * 3,
        *["execute_tool refuses"] * 2,
    ]
    assert set(telemetry.errors) == {None}


def test_interleaved_streams_do_not_mix_or_change_the_current_span() -> None:
    telemetry = Telemetry()
    runs = [taking_turns(telemetry, name, lambda: None) for name in ("one", "two")]
    bus = telemetry.session.bus
    streams = [adapter.stream(asked, session=Session(bus=bus)) for adapter, asked in runs]
    while streams:
        for stream in list(streams):
            if next(stream, None) is None:
                streams.remove(stream)
            assert trace.get_current_span() is trace.INVALID_SPAN
    assert telemetry.tree == [by_model("one"), by_model("two")]
    assert telemetry.attributes[-1]["gen_ai.request.stream"] is True


type Streams = tuple[Callable[[], AsyncGenerator[Any]], Callable[[], Generator[Any]]]


def streams_of(kind: str, telemetry: Telemetry) -> Streams:
    """Returns an async and a plain stream of a `MainLoop` or a `Chat`, each with one restart."""
    replies = [call(OPEN), say("Done."), say("Done.")]
    loop, session = MainLoop(ScriptedAdapter(replies, dynamic_tools=False)), telemetry.session
    asked = disclosing(mode=Disclosure.OPEN)
    if kind == "loop":
        return (
            lambda: loop.stream_async(asked, session=session),
            lambda: loop.stream(asked, session=session),
        )
    chat = Chat(loop, asked, session=session)
    return lambda: chat.stream_async("Hi"), lambda: chat.stream("Hi")


RESTARTED: list[Tree] = [
    {
        "invoke_workflow disclosing": [
            {"invoke_agent disclosing": leaf("chat", "execute_tool open_sections")},
            {"invoke_agent disclosing": leaf("chat")},
        ]
    }
]


@pytest.mark.parametrize("kind", ["loop", "chat"])
def test_reader_of_a_streamed_run_keeps_its_current_span(kind: str) -> None:
    telemetry = Telemetry()
    stream_async, _ = streams_of(kind, telemetry)

    async def read() -> None:
        async with aclosing(stream_async()) as events:
            async for _ in events:
                assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(read())
    assert telemetry.tree == RESTARTED


@pytest.mark.parametrize("kind", ["loop", "chat"])
def test_streamed_run_read_by_several_threads_has_a_complete_span_tree(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = Telemetry()
    _, stream = streams_of(kind, telemetry)
    events, end = stream(), object()
    with ThreadPoolExecutor(4) as pool:
        while pool.submit(next, events, end).result() is not end:
            pass
    assert telemetry.tree == RESTARTED
    assert not caplog.records


@pytest.mark.parametrize("kind", ["loop", "chat"])
def test_stream_closed_by_another_task_or_break_logs_nothing(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = Telemetry()
    stream_async, _ = streams_of(kind, telemetry)

    async def run() -> None:
        events = stream_async()
        await asyncio.create_task(anext(events))
        await asyncio.create_task(events.aclose())
        async for _ in stream_async():
            break
        assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(run())
    gc.collect()
    assert not [record for record in caplog.records if "detach" in record.getMessage()]


def test_stream_closed_early_is_not_an_error() -> None:
    telemetry = Telemetry()

    async def first() -> None:
        events = ScriptedAdapter([say("Hello.")]).stream_async(prompt(), session=telemetry.session)
        assert await anext(events) == TextDelta("Hello.")
        await events.aclose()

    asyncio.run(first())
    assert telemetry.tree == [{"invoke_agent agent": leaf("chat")}]
    assert set(telemetry.errors) == {None}


def test_retried_transactional_call_has_all_attempts_in_its_span() -> None:
    class Elsewhere(MemoryLogTable):
        def transact(
            self, name: str, place: Place, perform: Callable[[], bool], append: Callable[[], None]
        ) -> None:
            with ThreadPoolExecutor(1) as pool:
                for _ in range(2):  # as if the database were unavailable at first
                    assert pool.submit(copy_context().run, perform).result()
            append()

    def plain(params: Args, *, context: ToolContext) -> ToolResult[object]:
        telemetry.inside("http")
        return ToolResult(message="ok")

    telemetry = Telemetry()
    pay = replace(tool(plain), effect="transactional")
    agent = durable(
        MainLoop(ScriptedAdapter([call(("probe", {})), say("Done.")])),
        lambda: prompt(pay),
        session=lambda _: telemetry.session,
    )
    execute_run(agent, to_input(), Elsewhere(), "run")
    inner: list[Tree] = [{"chat": []}, {"execute_tool probe": leaf("http", "http")}, {"chat": []}]
    assert telemetry.tree == [{"invoke_workflow agent": [{"invoke_agent agent": inner}]}]


def spans_of_run(table: MemoryLogTable, asked: Prompt[None], *replies: AssistantMessage) -> Tree:
    telemetry = Telemetry()
    loop = MainLoop(ScriptedAdapter(replies))
    agent = durable(loop, lambda: asked, session=lambda _: telemetry.session)
    execute_run(agent, to_input(), table, "run")
    [tree] = telemetry.tree
    return tree


def test_resumed_run_has_spans_for_its_remaining_work() -> None:
    first, asked = WatchedTable(), prompt(tool())
    evaluation: Tree = {"invoke_agent agent": leaf("chat", "execute_tool probe", "chat")}
    whole = spans_of_run(first, asked, call(("probe", {})), say("Done."))
    assert whole == {"invoke_workflow agent": [evaluation]}
    rest = spans_of_run(WatchedTable(first.held[-2]), asked, say("Done."))
    assert rest == {"invoke_workflow agent": [{"invoke_agent agent": leaf("chat")}]}


def test_resumed_nested_run_has_no_spans_for_answered_requests() -> None:
    delegate = Tool.from_prompt(prompt(tool()).template, name="delegate")
    asked, first = prompt(delegate), WatchedTable()
    begins, ends = call(("delegate", {"message": "Hi."})), say("Done.")
    spans_of_run(first, asked, begins, call(("probe", {})), say("Inside."), ends)
    cut = WatchedTable(first.held[-4])
    last = cut.rows["run"][-1]
    assert (last.path, last.position) == ("1/call_1/1:", 2)  # the call of the nested run
    inner: Tree = {"invoke_agent agent": leaf("execute_tool probe", "chat")}
    called: Tree = {"execute_tool delegate": [{"invoke_workflow agent": [inner]}]}
    outer: list[Tree] = [called, {"chat": []}]
    rest = spans_of_run(cut, asked, say("Inside."), ends)
    assert rest == {"invoke_workflow agent": [{"invoke_agent agent": outer}]}


# --- metrics


@pytest.mark.claim("DT-31", "DT-33")
def test_injected_tools_and_dynamic_disclosures_are_counted_once() -> None:
    telemetry = Telemetry()
    again = ("read_section", {"section_key": "text"})
    telemetry.evaluate(disclosing(tools=2), call(READ, READ), call(READ, again), say("Done."))
    assert telemetry.counted("wink.tools.injected") == 2
    assert telemetry.counted("wink.disclosure.dynamic") == 1
    assert telemetry.counted("wink.disclosure.restarts") == 0


def test_token_usage_and_durations_are_recorded() -> None:
    telemetry = Telemetry()
    turns = [call(("probe", {}), usage=TokenUsage(100, 7)), say("Done.", usage=TokenUsage(120, 5))]
    MainLoop(ScriptedAdapter(turns)).execute(prompt(tool()), session=telemetry.session)
    points = telemetry.metrics
    tokens = [points["gen_ai.client.token.usage", key] for key in ("input", "output")]
    assert [(point.count, point.sum) for point in tokens] == [(2, 220), (2, 12)]
    assert tokens[0].attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.token.type": "input",
    }
    assert points["gen_ai.client.operation.duration", ""].count == 2
    assert points["gen_ai.execute_tool.duration", "probe"].count == 1
    assert points["gen_ai.workflow.duration", ""].count == 1
    duration = points["gen_ai.invoke_agent.duration", ""]
    agent = telemetry.only("invoke_agent agent")
    seconds = ((agent.end_time or 0) - (agent.start_time or 0)) / 1e9
    assert (duration.count, duration.sum) == (1, pytest.approx(seconds, abs=0.05))


# --- content


MARKER = "s3cr3t-m4rker"


def talkative(telemetry: Telemetry, config: RunConfig | None = None) -> None:
    """Runs evaluations, including failures, in which every possible content contains the marker."""

    def answers(params: Note, *, context: ToolContext) -> ToolResult[object]:
        if params.text.endswith("!"):
            raise ValueError(f"bad {params.text}")
        return ToolResult(message=f"got {params.text}")

    refusal = AssistantMessage(text=f"never {MARKER}", finish="refusal")

    def down(request: SeenRequest) -> Exception:
        return RuntimeError(f"down {MARKER}")

    asked = prompt(tool(answers, params=Note), text=f"Do {MARKER}.")
    talk = call(
        ("probe", {"text": MARKER}),
        ("probe", {"text": f"{MARKER}!"}),
        ("probe", f'{{"text": "{MARKER}'),
    )
    for last in (say(f"Done {MARKER}."), refusal, down):
        with suppress(PromptEvaluationError, RuntimeError):
            MainLoop(ScriptedAdapter([talk, last], config=config)).execute(
                asked, session=telemetry.session
            )


@pytest.mark.parametrize("config", [RunConfig(), ISOLATED])
def test_content_is_not_exported_by_default(config: RunConfig) -> None:
    telemetry = Telemetry()
    talkative(telemetry, config)
    assert len(telemetry.spans) == 3 * 7
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in telemetry.metrics_json


def test_unknown_tool_name_is_not_exported() -> None:
    telemetry = Telemetry()
    calls = call((f"send {MARKER}", {}), (MARKER * 10_000, {}))
    telemetry.evaluate(prompt(tool()), calls, say("Done."))
    assert [span.name for span in telemetry.spans].count("execute_tool unknown") == 2
    assert MARKER not in "".join(
        [telemetry.metrics_json, *(span.to_json() for span in telemetry.spans)]
    )


def test_content_is_exported_with_capture_content() -> None:
    telemetry = Telemetry(capture_content=True)
    talkative(telemetry)
    _, agent, first, probe, raising, *_ = telemetry.attributes
    text = {"type": "text", "content": prompt(text=f"Do {MARKER}.").render().text}
    assert json.loads(str(agent["gen_ai.input.messages"])) == [{"role": "user", "parts": [text]}]
    answer = {"type": "text", "content": f"Done {MARKER}."}
    assert json.loads(str(agent["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [answer], "finish_reason": "stop"}
    ]
    [message] = json.loads(str(first["gen_ai.output.messages"]))
    assert message["finish_reason"] == "tool_calls"
    arguments = f'{{"text": "{MARKER}"}}'
    assert message["parts"][0] == {
        "type": "tool_call",
        "id": "call_1",
        "name": "probe",
        "arguments": arguments,
    }
    assert probe["gen_ai.tool.call.arguments"] == arguments
    assert probe["gen_ai.tool.call.result"] == f"got {MARKER}"
    assert raising["gen_ai.tool.call.result"] == f"bad {MARKER}!"
    raised = [event for span in telemetry.spans for event in span.events]
    assert {event.name for event in raised} == {"exception"}
    texts = [str((event.attributes or {})["exception.message"]) for event in raised]
    assert any(f"down {MARKER}" in text for text in texts)


def test_lone_surrogates_are_replaced_before_export() -> None:
    def answers(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(message="odd \ud800")

    telemetry = Telemetry(capture_content=True)
    odd = AssistantMessage(
        text="odd \ud800",
        tool_calls=(ToolCall("1", "odd\ud800", '"\ud800"'), ToolCall("\ud800", "probe", "{}")),
        finish="tool_calls",
    )
    for config in (RunConfig(), ISOLATED):
        asked = prompt(tool(answers), text="Do \ud800.")
        telemetry.evaluate(asked, odd, say("Done \ud800."), config=config)
    sent = ExportTraceServiceRequest.FromString(encode_spans(telemetry.spans).SerializeToString())
    assert len(sent.resource_spans[0].scope_spans[0].spans) == len(telemetry.spans) == 2 * 5


def test_unserializable_result_leaves_no_span_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unspeakable:
        pass

    def answers(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(message="ok", value=Unspeakable())

    telemetry = Telemetry(capture_content=True)
    calls = call(("probe", {}), ("probe", {}))
    telemetry.evaluate(prompt(tool(answers)), calls, say("Done."), config=ISOLATED)
    assert telemetry.tree == [
        {"invoke_agent agent": leaf("chat", "execute_tool probe", "execute_tool probe", "chat")}
    ]
    assert [record.message for record in caplog.records].count("Event handler failed") == 2


# --- a collector


@pytest.fixture
def collector() -> Generator[tuple[str, list[tuple[str, bytes]]]]:
    """Yields the URL of an OTLP endpoint on this machine, and the paths and bodies it received."""
    posts: list[tuple[str, bytes]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", posts
        server.shutdown()
        thread.join()


def test_collector_receives_spans_and_metrics_over_otlp(
    collector: tuple[str, list[tuple[str, bytes]]],
) -> None:
    url, posts = collector
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics"))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    session = Session()
    instrument(session.bus, tracer_provider=tracers, meter_provider=meters)
    adapter = ScriptedAdapter([call(READ), call(("tool_1", {})), say("Done.")])
    adapter.evaluate(disclosing(), session=session)
    tracers.shutdown()
    meters.shutdown()
    traces = [
        ExportTraceServiceRequest.FromString(body) for path, body in posts if "traces" in path
    ]
    spans = [trace.resource_spans[0].scope_spans[0].spans[0] for trace in traces]
    tools = [span.name for span in spans if span.name.startswith("execute_tool")]
    assert tools == ["execute_tool read_section", "execute_tool tool_1"]
    *inner, agent = spans
    assert agent.name == "invoke_agent disclosing"
    assert {span.parent_span_id for span in inner} == {agent.span_id}
    assert {span.trace_id for span in inner} == {agent.trace_id}
    [body] = [body for path, body in posts if "metrics" in path]
    exported = ExportMetricsServiceRequest.FromString(body)
    metrics = exported.resource_metrics[0].scope_metrics[0].metrics
    counters = {
        metric.name: metric.sum.data_points[0].as_int
        for metric in metrics
        if metric.HasField("sum")
    }
    assert counters == {"wink.tools.injected": 2, "wink.disclosure.dynamic": 1}


# --- ending the instrumentation


def test_ending_instrumentation_stops_spans_and_metrics() -> None:
    telemetry = Telemetry()
    adapter = ScriptedAdapter([call(READ), say("Done.")] * 2)
    adapter.evaluate(disclosing(), session=telemetry.session)
    before = len(telemetry.spans), telemetry.counted("wink.tools.injected")
    telemetry.end()
    adapter.evaluate(disclosing(), session=Session(bus=telemetry.session.bus))
    assert (len(telemetry.spans), telemetry.counted("wink.tools.injected")) == before


def test_ending_instrumentation_during_a_run_leaves_no_span_open() -> None:
    def stops(params: Args, *, context: ToolContext) -> ToolResult[object]:
        telemetry.end()
        return ToolResult(message="ok")

    telemetry = Telemetry()
    telemetry.evaluate(prompt(tool(stops)), call(("probe", {})), say("Done."))
    assert telemetry.tree == [{"invoke_agent agent": leaf("chat", "execute_tool probe")}]
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_instrument_without_a_configured_sdk_does_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session()
    instrument(session.bus)
    response = ScriptedAdapter([call(("probe", {})), say("Done.")]).evaluate(
        prompt(tool()), session=session
    )
    assert response.text == "Done."
    assert not caplog.records


@pytest.mark.parametrize("calls", [1, 50])
def test_operation_without_an_end_listener_publishes_no_child_operations(calls: int) -> None:
    bus, begun = InProcessEventBus(), list[Operation]()
    bus.subscribe(
        Operation, begun.append
    )  # receives the beginning, and does not subscribe to the end
    adapter = ScriptedAdapter([*[call(("probe", {}))] * calls, say("Done.")])
    adapter.evaluate(prompt(tool()), session=Session(bus=bus))
    assert [(work.kind, work.observed) for work in begun] == [("evaluation", False)]


def test_opentelemetry_is_not_imported_by_default() -> None:
    code = """
import sys
import weakincentives.contrib
from weakincentives import MarkdownSection, Prompt
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say
task = MarkdownSection(title="Task", template="Do it.")
prompt = Prompt(ns="tests", key="light", sections=[task])
ScriptedAdapter([say("Done.")]).evaluate(prompt, session=Session())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
