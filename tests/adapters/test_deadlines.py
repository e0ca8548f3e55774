"""A deadline is kept in each of the four ways to evaluate, whatever the server does in the
meantime.
"""

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import repeat
from signal import SIGINT, default_int_handler, pthread_kill, signal
from time import monotonic
from typing import Any

import pytest

from support.agents import prompt
from support.deadlines import NEVER, SOON, with_growing_limit
from support.entry_points import EntryPoint, evaluate, evaluate_async, stream, stream_async
from support.hostile_server import BEHAVIOURS, SSE, Connection, HostileServer, retry_later
from support.scripted_server import Say, ScriptedServer
from support.sdk_clients import APIS, AnyAdapter, sdk_adapter, sdk_client
from weakincentives.evaluation.errors import DeadlineExceededError
from weakincentives.evaluation.response import Completed, TextDelta
from weakincentives.event_loops import portal, run_on
from weakincentives.limits import Deadline
from weakincentives.runtime.session import Session

NO_BOUND = 10**12
"""A flood could reach the usual reply limit before the deadline."""

apis = pytest.mark.parametrize("api", APIS)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


ENTRY_POINTS: list[EntryPoint] = [evaluate, stream, evaluate_async, stream_async]


def at_once(
    entry_points: list[EntryPoint],
    adapter: Any,  # Any: as above
    seconds: float,
) -> list[tuple[str, int]]:
    """Returns the codes and turns of evaluations that must end at a deadline."""

    def evaluate_by(entry_point: EntryPoint) -> tuple[str, int]:
        with pytest.raises(DeadlineExceededError) as caught:
            entry_point(adapter, Session(), Deadline.after(seconds))
        return caught.value.code, caught.value.turns

    with ThreadPoolExecutor(len(entry_points)) as pool:
        return list(pool.map(evaluate_by, entry_points))


def request_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "weakincentives-request"]


def join_request_threads() -> None:
    for thread in request_threads():
        thread.join(SOON)
    assert request_threads() == []


@apis
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_deadline_ends_every_evaluation_and_its_connection(api: Any, behaviour: str) -> None:
    before = request_threads()  # of other tests

    def attempt(seconds: float) -> list[tuple[str, int]] | None:
        with HostileServer(BEHAVIOURS[behaviour]) as server:
            adapter = sdk_adapter(api, server.url, api_key="test", max_reply_bytes=NO_BOUND)
            ends = at_once(ENTRY_POINTS, adapter, seconds)
            assert server.left()
        return ends if len(server.requests) >= len(ENTRY_POINTS) else None

    assert with_growing_limit(attempt) == [("deadline", 1)] * len(ENTRY_POINTS)
    assert set(request_threads()) <= set(before)


@apis
def test_deadline_ends_the_sdks_retries(api: Any) -> None:
    def attempt(seconds: float) -> list[tuple[str, int]] | None:
        with HostileServer(retry_later(seconds + 2)) as server:
            ends = at_once(ENTRY_POINTS, sdk_adapter(api, server.url, api_key="test"), seconds)
            if len(server.requests) < len(ENTRY_POINTS):
                return None
            assert not server.asked(len(ENTRY_POINTS) + 1, timeout=2.5)
        return ends

    assert with_growing_limit(attempt) == [("deadline", 1)] * len(ENTRY_POINTS)


@pytest.fixture
def given() -> Iterator[list[Any]]:
    clients: list[Any] = []
    yield clients
    for client in clients:
        client.close()


@pytest.fixture(params=["own client", "ready client"])
def connect(request: pytest.FixtureRequest, given: list[Any]) -> Callable[..., AnyAdapter]:
    """Creates adapters with their own client, or with a given one."""

    def make(server: HostileServer | ScriptedServer, api: Any = "responses") -> AnyAdapter:
        if request.param == "own client":
            return sdk_adapter(api, server.url, api_key="test")
        given.append(sdk_client(api, server.url, api_key="test"))
        return sdk_adapter(api, client=given[-1])

    return make


@pytest.mark.parametrize("api", sorted({"responses", "messages"} & {*APIS}))
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_deadline_applies_to_a_custom_sync_client_and_leaves_it_open(
    behaviour: str, api: str, given: list[Any]
) -> None:
    def attempt(seconds: float) -> list[tuple[str, int]] | None:
        with HostileServer(BEHAVIOURS[behaviour]) as server:
            given.append(sdk_client(api, server.url, api_key="test"))
            adapter = sdk_adapter(api, client=given[-1], max_reply_bytes=NO_BOUND)
            ends = at_once([evaluate, stream], adapter, seconds)
            assert not given[-1].is_closed()
            asked = len(server.requests)
        join_request_threads()
        return ends if asked >= 2 else None

    assert with_growing_limit(attempt) == [("deadline", 1)] * 2


@apis
def test_custom_client_is_not_retried_with_a_deadline(api: str, given: list[Any]) -> None:
    with HostileServer(retry_later(1)) as server:
        given.append(sdk_client(api, server.url, api_key="test"))
        adapter = sdk_adapter(api, client=given[0])
        with pytest.raises(Exception, match="throttled"):
            evaluate(adapter, Session(), Deadline.after(SOON))
        assert not server.asked(2, timeout=1.5)


@apis
def test_response_within_the_deadline_is_the_same_as_without_one(
    api: Any, connect: Callable[..., AnyAdapter]
) -> None:
    with ScriptedServer(*[Say("Hello there.")] * 4) as server:
        adapter = connect(server, api)
        seen = []
        for deadline in (None, Deadline.after(60)):
            response = adapter.evaluate(prompt(), session=Session(), deadline=deadline)
            *pieces, last = adapter.stream(prompt(), session=Session(), deadline=deadline)
            assert isinstance(last, Completed)
            texts = [piece.text for piece in pieces if isinstance(piece, TextDelta)]
            assert len(texts) > 1
            seen.append((response.text, response.usage, texts, last.response.usage))
        assert seen[0] == seen[1]
        bodies = [request.body for request in server.requests]
        assert bodies[:2] == bodies[2:]


def test_closing_a_stream_early_closes_its_connection(
    connect: Callable[..., AnyAdapter],
) -> None:
    def one_word(connection: Connection) -> None:
        connection.send(SSE, b'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\n')
        connection.trickle(repeat(b'data: {"choices": [{"delta": {}}]}\n\n'))

    with HostileServer(one_word) as server:
        adapter = connect(server, "chat")
        with closing(
            adapter.stream(prompt(), session=Session(), deadline=Deadline.after(60))
        ) as events:
            assert next(events) == TextDelta("Hello")
        assert server.left()


def test_deadline_can_be_the_latest_possible_datetime(
    connect: Callable[..., AnyAdapter],
) -> None:
    far = Deadline(datetime.max.replace(tzinfo=UTC))
    with ScriptedServer(Say("Hello"), Say("Hello")) as server:
        adapter = connect(server, "chat")
        assert adapter.evaluate(prompt(), session=Session(), deadline=far).text == "Hello"
        *_, last = adapter.stream(prompt(), session=Session(), deadline=far)
        assert isinstance(last, Completed)


def test_garbage_collected_streams_do_not_block_the_event_loop() -> None:
    def one_word(connection: Connection) -> None:
        connection.send(SSE, b'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\n')
        connection.trickle(repeat(b'data: {"choices": [{"delta": {}}]}\n\n'))

    class Holder:
        def __init__(self, events: object) -> None:
            self.events, self.itself = events, self

    async def collect() -> float:
        started = monotonic()
        gc.collect()  # on the portal's own thread
        return monotonic() - started

    with HostileServer(one_word) as server:
        adapter = sdk_adapter("chat", server.url, api_key="test")
        for _ in range(100):
            events = adapter.stream(prompt(), session=Session(), deadline=Deadline.after(60))
            next(events)
            Holder(events)
            del events
        assert run_on(portal.loop(), collect(), SOON) < 20  # each of them took half a second
        assert server.left()


def test_keyboard_interrupt_does_not_wait_for_the_server(
    connect: Callable[..., AnyAdapter],
) -> None:
    with HostileServer(BEHAVIOURS["silence"]) as server:
        adapter = connect(server)
        started, ended = monotonic(), threading.Event()

        def interrupt() -> None:
            assert server.asked(1)
            while not ended.is_set():  # Python misses a signal just before it waits
                pthread_kill(threading.main_thread().ident or 0, SIGINT)
                ended.wait(5)

        interrupting = threading.Thread(target=interrupt)
        # a background process may ignore it
        before = signal(SIGINT, default_int_handler)
        try:
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                evaluate(adapter, Session(), Deadline.after(NEVER))
            ended.set()
            interrupting.join()
        finally:
            signal(SIGINT, before)
        assert monotonic() - started < 2 * SOON
    join_request_threads()


def test_context_variables_of_the_caller_reach_the_sdk(connect: Callable[..., AnyAdapter]) -> None:
    trace: ContextVar[str] = ContextVar("trace", default="none")
    seen: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(trace.get())

    logger, listener = logging.getLogger("openai._base_client"), Listener()
    logger.addHandler(listener)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    trace.set("mine")
    try:
        with ScriptedServer(Say("Hello."), Say("Hello.")) as server:
            adapter = connect(server)
            evaluate(adapter, Session(), Deadline.after(60))
            stream(adapter, Session(), Deadline.after(60))
    finally:
        logger.removeHandler(listener)
        logger.setLevel(level)
    assert set(seen) == {"mine"}
