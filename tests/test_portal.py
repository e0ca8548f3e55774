"""A portal runs coroutines for synchronous callers, who can stop waiting at any time."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from contextvars import ContextVar

import pytest

from support.deadlines import SOON, with_growing_limit
from weakincentives.event_loops import Portal, run_on, start_on, yield_from_thread
from weakincentives.event_loops import portal as portal_of_process


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


async def thread_name() -> str:
    return threading.current_thread().name


def test_all_callers_share_a_loop(portal: Portal) -> None:
    loop = portal.loop()
    assert run_on(loop, thread_name(), SOON) == "weakincentives-portal"
    assert portal.loop() is loop


def test_closed_portal_creates_a_new_loop() -> None:
    portal = Portal()
    portal.close()
    first = portal.loop()
    portal.close()
    assert first.is_closed()
    assert portal.loop() is not first
    portal.close()


def test_coroutine_that_times_out_is_cancelled(portal: Portal) -> None:
    def attempt(seconds: float) -> threading.Event | None:
        begun, cancelled = threading.Event(), threading.Event()

        async def endless() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        with pytest.raises(TimeoutError):
            run_on(portal.loop(), endless(), seconds)
        return cancelled if begun.is_set() else None

    assert with_growing_limit(attempt, 0.05).wait(SOON)


def test_errors_and_context_variables_pass_between_caller_and_coroutine(portal: Portal) -> None:
    word: ContextVar[str] = ContextVar("word")

    async def fail() -> None:
        raise KeyError(word.get())

    word.set("mine")
    with pytest.raises(KeyError, match="mine"):
        run_on(portal.loop(), fail(), SOON)


def test_code_on_the_portal_loop_gets_another_loop(portal: Portal) -> None:
    async def nested() -> tuple[str, asyncio.AbstractEventLoop]:
        inner = portal.loop()
        return run_on(inner, thread_name(), SOON), inner

    name, inner = run_on(portal.loop(), nested(), SOON)
    assert name == "weakincentives-portal"
    assert inner is not portal.loop()


def test_start_on_works_on_any_thread_and_drops_work_after_close(portal: Portal) -> None:
    done, loop = threading.Event(), portal.loop()

    async def work() -> None:
        done.set()

    async def start_on_the_loop() -> None:
        start_on(loop, work())

    run_on(loop, start_on_the_loop(), SOON)
    assert done.wait(SOON)
    portal.close()
    start_on(loop, work())


def test_close_ends_open_async_generators(portal: Portal) -> None:
    ended = threading.Event()

    async def client() -> AsyncGenerator[str]:
        try:
            yield "open"
        finally:
            ended.set()

    generator = client()

    async def first() -> str:
        return await anext(generator)

    assert run_on(portal.loop(), first(), SOON) == "open"
    portal.close()
    assert ended.wait(SOON)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_child_process_starts_its_own_loop() -> None:
    portal_of_process.loop()
    if (child := os.fork()) == 0:
        name = run_on(portal_of_process.loop(), thread_name(), SOON)
        os._exit(0 if name == "weakincentives-portal" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_yield_from_thread_yields_values_and_raises_errors() -> None:
    def make() -> Generator[str]:
        yield threading.current_thread().name
        raise KeyError("at last")

    values = yield_from_thread(make, lambda: SOON)
    assert next(values) == "weakincentives-request"
    with pytest.raises(KeyError, match="at last"):
        next(values)


def test_abandoned_thread_closes_its_generator() -> None:
    go_on, closed = threading.Event(), threading.Event()

    def make() -> Generator[int]:
        try:
            yield 1
            go_on.wait(SOON)
            yield 2
            yield 3
        finally:
            closed.set()

    waits = iter([SOON, 0.05])
    values = yield_from_thread(make, lambda: next(waits))
    assert next(values) == 1
    with pytest.raises(TimeoutError):
        next(values)
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(SOON)
