"""A portal runs coroutines for callers that wait no longer than they want, and is gone when nobody
uses it.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Generator
from contextvars import ContextVar

import pytest

from weakincentives.adapters.portal import Portal, pieces_from_thread

SOON = 10


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_callers_share_a_loop_while_somebody_uses_it() -> None:
    portal = Portal()

    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with portal.open() as run, portal.open() as run_too:
        assert run(loop(), SOON) is run_too(loop(), SOON)
    with portal.open() as run_later:
        assert run_later(loop(), SOON) is run(loop(), SOON)
    portal.close()


def test_an_idle_loop_ends_with_its_thread_and_starts_anew() -> None:
    portal = Portal(idle=0.05)

    async def thread() -> threading.Thread:
        return threading.current_thread()

    with portal.open() as run:
        first = run(thread(), SOON)
        first.join(0.3)
        assert first.is_alive()  # in use, however long
    first.join(SOON)
    assert not first.is_alive()
    with portal.open() as run:
        assert run(thread(), SOON) is not first
    portal.close()


def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    portal, cancelled = Portal(), threading.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with portal.open() as run:
        with pytest.raises(TimeoutError):
            run(endless(), 0.05)
        assert cancelled.wait(SOON)
    portal.close()


def test_an_error_and_the_context_pass_between_caller_and_coroutine() -> None:
    portal = Portal()
    word: ContextVar[str] = ContextVar("word")

    async def fail() -> None:
        raise KeyError(word.get())

    word.set("mine")
    with portal.open() as run, pytest.raises(KeyError, match="mine"):
        run(fail(), SOON)
    portal.close()


def test_code_on_the_loop_itself_gets_another_one() -> None:
    portal = Portal()

    async def nested() -> tuple[str, asyncio.AbstractEventLoop]:
        with portal.open() as run:
            return run(name_of_thread(), SOON), run(loop_here(), SOON)

    async def loop_here() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with portal.open() as run:
        name, inner = run(nested(), SOON)
        assert name == "weakincentives-portal"
        assert inner is not run(loop_here(), SOON)
    portal.close()


def test_work_can_be_started_from_anywhere_and_is_dropped_after_the_end() -> None:
    portal, done = Portal(), threading.Event()

    async def work() -> None:
        done.set()

    async def start_on_the_loop() -> None:
        run.start(work())

    with portal.open() as run:
        run(start_on_the_loop(), SOON)
        assert done.wait(SOON)
    portal.close()
    run.start(work())


def test_closing_ends_what_the_clients_left_open() -> None:
    portal, ended = Portal(), threading.Event()

    async def client() -> AsyncGenerator[str]:
        try:
            yield "open"
        finally:
            ended.set()

    held = client()

    async def first() -> str:
        return await anext(held)

    with portal.open() as run:
        assert run(first(), SOON) == "open"
    portal.close()
    assert ended.wait(SOON)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_starts_a_loop_of_its_own() -> None:
    from weakincentives.adapters.portal import portal

    with portal.open() as run:
        assert run(name_of_thread(), SOON) == "weakincentives-portal"
    if (child := os.fork()) == 0:
        with portal.open() as run:
            os._exit(0 if run(name_of_thread(), SOON) == "weakincentives-portal" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_pieces_come_from_a_thread_as_they_are_made() -> None:
    def pieces() -> Generator[str]:
        yield threading.current_thread().name
        raise KeyError("at last")

    made = pieces_from_thread(pieces, lambda: SOON)
    assert next(made) == "weakincentives-request"
    with pytest.raises(KeyError, match="at last"):
        next(made)


def test_a_thread_that_is_left_behind_closes_its_generator() -> None:
    go_on, closed = threading.Event(), threading.Event()

    def pieces() -> Generator[int]:
        try:
            yield 1
            go_on.wait(SOON)
            yield 2
            yield 3
        finally:
            closed.set()

    waits = iter([SOON, 0.05])
    made = pieces_from_thread(pieces, lambda: next(waits))
    assert next(made) == 1
    with pytest.raises(TimeoutError):
        next(made)
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(SOON)
