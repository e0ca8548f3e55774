"""What holds for every test with servers: no process and no thread is left."""

import threading
import time
from collections.abc import Generator

import pytest

from support.mcp_prompts import children


@pytest.fixture(autouse=True)
def nothing_left_over() -> Generator[None]:
    """Counts the processes and threads that a test leaves."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 2
    while children() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children() == []
    left = {thread.name for thread in set(threading.enumerate()) - before}
    # The process has one portal, whose event loop looks up names in threads of its own.
    assert not {name for name in left if not name.startswith(("weakincentives-portal", "asyncio_"))}
