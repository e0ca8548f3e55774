"""Runs code that is interrupted by a trace function, so that nothing of it outlives the test."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_own_thread[T](function: Callable[[], T]) -> T:
    """Returns what `function` returns, or raises what it raises, in a thread that ends with it.

    An error that a trace function raises at the end of an `except` block makes CPython keep the
    error of that block as the thread's current one for ever. In pytest's own thread, every later
    error of the test run would carry it as its context.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()
