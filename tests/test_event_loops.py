"""The event loop and threads that a run's functions use, and the cancellations that end a run."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import httpx
import pytest

from support.agents import Args, Note, prompt, tool
from support.deadlines import SOON
from weakincentives.evaluation.approval import Approve, Decision, Preview
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.event_loops import run_to_end
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext
from weakincentives.prompt import ToolResult as Result
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

IN_ORDER = RunConfig()
ISOLATED = RunConfig(parallel_tool_calls="isolated")

in_each_order = pytest.mark.parametrize("config", [IN_ORDER, ISOLATED], ids=["order", "isolated"])
SYNC = ["execute", "stream", "evaluate"]
ASYNC = ["execute_async", "stream_async", "evaluate_async"]


def perform(
    face: str, adapter: ScriptedAdapter, asked: Prompt[Any], session: Session, **options: Any
) -> Any:
    """Runs a prompt with one of the methods of a `MainLoop` and an adapter."""
    subject: Any = adapter if face.startswith("evaluate") else MainLoop(adapter)
    running = getattr(subject, face)(asked, session=session, **options)

    async def result() -> Any:
        if face != "stream_async":
            return await running
        async for _ in running:
            pass
        return None

    if face in ASYNC:
        return asyncio.run(result())
    return list(running) if face == "stream" else running


def answers_in(session: Session) -> list[str]:
    return [event.content for event in session[ToolInvoked]]


def bound(resources: ResourceRegistry, *tools: Tool[Any, Any]) -> Prompt[Any]:
    """A prompt with state, resources and tools."""
    section = MarkdownSection(title="Task", template="Do it.", tools=tools, state=[Note])
    return PromptTemplate[None](
        ns="tests", key="agent", sections=[section], resources=resources
    ).bind()


# --- one event loop for synchronous runs


class Doubles(BaseHTTPRequestHandler):
    """Answers with twice the number that it receives, and keeps connections open."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        data = json.dumps(2 * body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - the base class's name


class Api:
    """A client with a pool of connections, and a lock that belongs to one event loop."""

    def __init__(self, url: str) -> None:
        self.client = httpx.AsyncClient(base_url=url, trust_env=False)
        self.lock = asyncio.Lock()

    async def double(self, number: int) -> int:
        async with self.lock:
            reply = await self.client.post("/", json=number)
        return int(reply.json())


@pytest.fixture
def api() -> Iterator[Api]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Doubles)
    server.daemon_threads = True
    with server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        api = Api(f"http://127.0.0.1:{server.server_port}")
        yield api
        run_to_end(api.client.aclose())
        server.shutdown()


async def double(params: Args, *, context: ToolContext) -> Result[object]:
    return Result(str(await context.resources.get(Api).double(params.a)))


CALLS = call(("double", {"a": 1}), ("double", {"a": 2}), ("double", {"a": 3}))


@pytest.mark.claim("N-18")
@in_each_order
@pytest.mark.parametrize("face", SYNC)
def test_pooled_async_client_works_in_all_calls_of_a_sync_run(
    face: str, config: RunConfig, api: Api
) -> None:
    doubling = Tool[Args, object](name="double", description="d", handler=double, effect="pure")
    asked = bound(ResourceRegistry.of(Binding(Api, lambda _: api, eager=True)), doubling)
    session = Session()
    perform(face, ScriptedAdapter([CALLS, CALLS, say("Done.")], config=config), asked, session)
    assert answers_in(session) == ["2", "4", "6"] * 2


def test_pooled_async_client_outlives_runs_turns_and_threads(api: Api) -> None:
    asked = bound(ResourceRegistry.of(Binding(Api, lambda _: api)), tool(double, name="double"))
    session, loop = Session(), MainLoop(ScriptedAdapter([CALLS, say("Done.")] * 3))
    chat = Chat(loop, asked, session=session)
    with asked.resources:
        chat.send("One")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(chat.send, "Two").result()
        events, end = chat.stream("Three"), object()
        while True:
            with ThreadPoolExecutor(1) as pool:  # each event is read by a different thread
                if pool.submit(next, events, end).result() is end:
                    break
    assert answers_in(session) == ["2", "4", "6"] * 3


def test_handlers_approvers_and_nested_runs_share_the_event_loop_of_a_sync_run() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def note(_: Args, *, context: ToolContext) -> Result[object]:
        loops.append(asyncio.get_running_loop())
        return Result("ok")

    async def approve(_: Preview) -> Decision:
        loops.append(asyncio.get_running_loop())
        return Approve()

    async def delegate(_: Args, *, context: ToolContext) -> Result[object]:
        return Result((await context.evaluate_async(inner)).text)

    def delegate_plainly(_: Args, *, context: ToolContext) -> Result[object]:
        return Result(context.evaluate(inner).text)

    inner = prompt(tool(note, name="note"))
    asking = Tool[Args, object](name="ask", description="d", handler=note, approval="arguments")
    outer = prompt(asking, tool(delegate, name="d"), tool(delegate_plainly, name="p"))
    nested = [call(("note", {})), say("Inner.")]
    turns = [call(("ask", {}), ("d", {}), ("p", {})), *nested, *nested, say("Done.")]
    MainLoop(ScriptedAdapter(turns)).execute(outer, session=Session(), approver=approve)
    assert len(loops) == 4
    assert len(set(loops)) == 1


def test_sync_run_inside_an_async_handler_does_not_deadlock() -> None:
    async def note(_: Args, *, context: ToolContext) -> Result[object]:
        await asyncio.sleep(0)
        return Result("inner ok")

    async def blocking(_: Args, *, context: ToolContext) -> Result[object]:
        return Result(context.evaluate(prompt(tool(note, name="note"))).text)

    turns = [call(("probe", {})), call(("note", {})), say("Inner."), say("Done.")]
    session = Session()
    ScriptedAdapter(turns).evaluate(prompt(tool(blocking)), session=session)
    assert answers_in(session) == ["inner ok", "Inner."]


def test_async_handler_of_a_sync_run_sees_context_variables_of_its_task() -> None:
    user, seen = ContextVar[str]("user"), list[str]()

    async def look(_: Args, *, context: ToolContext) -> Result[object]:
        await asyncio.sleep(0)
        seen.append(user.get())
        return Result("ok")

    async def run(name: str) -> None:
        user.set(name)
        adapter = ScriptedAdapter([call(("probe", {})), say("Done.")])
        adapter.evaluate(prompt(tool(look)), session=Session())

    async def both() -> None:
        await asyncio.gather(run("ann"), run("bob"))

    asyncio.run(both())
    assert seen == ["ann", "bob"]


# --- threads for plain functions of asynchronous runs


def test_plain_tools_of_forty_runs_can_wait_concurrently() -> None:
    together = threading.Barrier(40)

    def meet(_: Args, *, context: ToolContext) -> Result[object]:
        together.wait(SOON)
        return Result("ok")

    async def run() -> None:
        adapter = ScriptedAdapter([call(("probe", {})), say("Done.")])
        await MainLoop(adapter).execute_async(prompt(tool(meet)), session=Session())

    async def all_of_them() -> None:
        await asyncio.gather(*[run() for _ in range(40)])

    asyncio.run(all_of_them())


# --- whose cancellation it is


async def foreign_cancellation(params: Args, *, context: ToolContext) -> Result[object]:
    """Awaits a task that was cancelled from outside."""
    context.session.dispatch(Note(f"before {params.a}"))
    shared = asyncio.ensure_future(asyncio.sleep(SOON))
    shared.cancel()
    await shared
    return Result("never")


def plain_cancellation(params: Args, *, context: ToolContext) -> Result[object]:
    context.session.dispatch(Note(f"before {params.a}"))
    raise asyncio.CancelledError


async def works(params: Args, *, context: ToolContext) -> Result[object]:
    context.session.dispatch(Note(f"did {params.a}"))
    return Result(f"did {params.a}")


@in_each_order
@pytest.mark.parametrize("handler", [foreign_cancellation, plain_cancellation])
@pytest.mark.parametrize("face", [*SYNC, *ASYNC])
def test_cancellation_not_sent_to_the_run_fails_only_one_call(
    face: str, handler: Any, config: RunConfig
) -> None:
    tools = [
        Tool[Args, object](name=name, description="d", handler=function, effect="repeatable")
        for name, function in (("works", works), ("fails", handler))
    ]
    calls = call(("works", {"a": 1}), ("fails", {"a": 2}), ("works", {"a": 3}))
    session = Session()
    adapter = ScriptedAdapter([calls, say("Done.")], config=config)
    perform(face, adapter, bound(ResourceRegistry(), *tools), session)
    first, failed, last = answers_in(session)
    assert (first, last) == ("did 1", "did 3")
    assert "was cancelled" in failed
    assert session[Note].all() == (Note("did 1"), Note("did 3"))


@pytest.mark.parametrize("face", [*SYNC, *ASYNC])
def test_cancellation_inside_a_nested_run_fails_only_its_call(face: str) -> None:
    async def delegate(_: Args, *, context: ToolContext) -> Result[object]:
        return Result((await context.evaluate_async(inner)).text)

    inner = prompt(tool(foreign_cancellation, name="fails"))
    session = Session()
    turns = [call(("probe", {})), call(("fails", {})), say("Went on."), say("Done.")]
    perform(face, ScriptedAdapter(turns), prompt(tool(delegate)), session)
    assert answers_in(session)[-1] == "Went on."


@in_each_order
@pytest.mark.parametrize("face", ASYNC)
def test_cancellation_of_the_run_ends_it_and_undoes_the_call(face: str, config: RunConfig) -> None:
    session, ended = Session(), list[str]()

    async def run() -> None:
        started = asyncio.Event()

        async def wait(params: Args, *, context: ToolContext) -> Result[object]:
            context.session.dispatch(Note("undone"))
            started.set()
            try:
                await asyncio.sleep(SOON)
            finally:
                ended.append("handler")
            return Result("never")

        asked = bound(
            ResourceRegistry(),
            Tool[Args, object](name="wait", description="d", handler=wait, effect="repeatable"),
        )
        adapter = ScriptedAdapter([call(("wait", {"a": 1}), ("wait", {"a": 2}))], config=config)
        subject: Any = adapter if face.startswith("evaluate") else MainLoop(adapter)

        async def consume() -> None:
            running = getattr(subject, face)(asked, session=session)
            if face == "stream_async":
                async for _ in running:
                    pass
            else:
                await running

        task = asyncio.create_task(consume())
        await started.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert "handler" in ended
    assert session[Note].all() == ()


# --- clean-up under anyio, which cancels at each `await`


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its rounds."""

    rounds = 0

    def _run_once(self) -> None:  # asyncio calls it once for each round
        self.rounds += 1
        super()._run_once()  # type: ignore[misc]  # pyright: ignore - not declared in typeshed


class Pool:
    def __init__(self, closed: list[str]) -> None:
        self.closed = closed

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed.append("pool")


def pool_of(closed: list[str]) -> Binding[Any]:
    async def make(_: object) -> Pool:
        return Pool(closed)

    return Binding(Pool, make, eager=True)


def manager_of(closed: list[str]) -> Binding[Any]:
    @asynccontextmanager
    async def manage() -> AsyncGenerator[Pool]:
        try:
            yield Pool([])
        finally:
            await asyncio.sleep(0)
            closed.append("manager")

    async def make(_: object) -> Any:
        return manage()

    return Binding(Pool, make, eager=True)


def task_group_of(closed: list[str]) -> Binding[Any]:
    """A resource with its own anyio scope, like MCP's clients."""

    @asynccontextmanager
    async def manage() -> AsyncGenerator[Pool]:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                try:
                    yield Pool([])
                finally:
                    group.cancel_scope.cancel()
        finally:
            await asyncio.sleep(0)
            closed.append("task group")

    async def make(_: object) -> Any:
        return manage()

    return Binding(Pool, make, eager=True)


async def run_until_cancelled(
    face: str, asked: Prompt[Any], started: anyio.Event, session: Session
) -> bool:
    adapter = ScriptedAdapter([call(("probe", {})), say("Done.")])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await started.wait()
                scope.cancel()

            group.start_soon(cancel)
            if face == "stream_async":
                async for _ in MainLoop(adapter).stream_async(asked, session=session):
                    pass
            else:
                await MainLoop(adapter).execute_async(asked, session=session)
    return scope.cancelled_caught


@pytest.mark.parametrize("binding", [pool_of, manager_of, task_group_of])
@pytest.mark.parametrize("face", ["execute_async", "stream_async"])
@pytest.mark.parametrize("cancelled", [True, False])
def test_async_resources_are_closed_whether_anyio_cancels_the_run_or_not(
    face: str, binding: Any, caplog: pytest.LogCaptureFixture, *, cancelled: bool
) -> None:
    closed, session = list[str](), Session()

    async def run() -> bool:
        started = anyio.Event()

        async def wait(_: Args, *, context: ToolContext) -> Result[object]:
            context.session.dispatch(Note("undone"))
            if cancelled:
                started.set()
                await anyio.sleep(SOON)
            return Result("ok")

        asked = bound(ResourceRegistry.of(binding(closed)), tool(wait))
        if cancelled:
            return await run_until_cancelled(face, asked, started, session)
        adapter = ScriptedAdapter([call(("probe", {})), say("Done.")])
        await MainLoop(adapter).execute_async(asked, session=session)
        return False

    assert asyncio.run(run()) is cancelled
    assert len(closed) == 1
    assert session[Note].all() == (() if cancelled else (Note("undone"),))
    assert not [r for r in caplog.records if "Closing" in r.getMessage()]


@in_each_order
def test_anyio_cancelled_wait_for_a_plain_handler_does_not_spin(
    config: RunConfig,
) -> None:
    loop, proceed, session = CountingLoop(), threading.Event(), Session()

    async def run() -> bool:
        started = anyio.Event()

        def work(_: Args, *, context: ToolContext) -> Result[object]:
            loop.call_soon_threadsafe(started.set)
            assert proceed.wait(SOON)
            context.session.dispatch(Note("undone"))
            return Result("ok")

        plain = Tool[Args, object](name="probe", description="d", handler=work, effect="pure")
        calls = call(("probe", {}), ("probe", {}))
        adapter = ScriptedAdapter([calls, say("Done.")], config=config)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def cancel() -> None:
                    await started.wait()
                    scope.cancel()
                    loop.call_later(0.2, proceed.set)

                group.start_soon(cancel)
                await adapter.evaluate_async(bound(ResourceRegistry(), plain), session=session)
        return scope.cancelled_caught

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(run())
    assert loop.rounds < 200
    assert session[Note].all() == ()


def test_provider_stream_is_closed_while_anyio_cancels_the_reader() -> None:
    closed: list[str] = []

    class Slow(ScriptedAdapter):
        """An adapter whose connection closes its stream and itself with an `await`."""

        async def ask_stream_async(self, request: Any) -> AsyncIterator[Any]:  # type: ignore[override]  # pyright: ignore - a generator
            try:
                async for piece in super().ask_stream_async(request):
                    yield piece
            finally:
                await asyncio.sleep(0)
                closed.append("stream")

        async def aclose(self) -> None:
            await asyncio.sleep(0)
            closed.append("connection")

    async def run() -> None:
        with anyio.CancelScope() as scope:
            events = MainLoop(Slow([say("One two.")])).stream_async(prompt(), session=Session())
            async for _ in events:
                scope.cancel()
                try:
                    await anyio.sleep(SOON)
                finally:
                    await events.aclose()

    asyncio.run(run())
    assert closed == ["stream", "connection"]


WITHOUT_THREADS = """
import asyncio, threading
from weakincentives.event_loops import run_to_end

async def note():
    await asyncio.sleep(0)
    print(threading.current_thread().name)

threading.stack_size(1 << 46)  # more memory than there is: no thread can start
run_to_end(note())
run_to_end(note())
"""


def test_coroutine_runs_in_the_callers_thread_if_no_thread_can_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THREADS],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("MainThread\nMainThread\n", "")
