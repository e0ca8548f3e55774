"""Runs code that a trace function interrupts, so that none of its state outlives the test."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_own_thread[T](function: Callable[[], T]) -> T:
    """Calls `function` in a new thread; returns its result or raises its error.

    If a trace function raises at the end of an `except` block, CPython keeps that block's error as
    the thread's current error forever. In pytest's own thread, every later error of the test run
    would have it as its context.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
