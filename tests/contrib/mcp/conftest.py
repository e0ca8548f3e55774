"""Every test with servers must leave no process and no thread behind."""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from support import sdk_mcp_server
from support.deadlines import SOON
from support.mcp_prompts import children, listed
from weakincentives.contrib.mcp.lock import ServerLock
from weakincentives.event_loops import portal, run_to_end

import_module(
    "weakincentives.contrib.mcp.client"
)  # slow; otherwise, it would be part of the first call's time


def descriptors() -> Counter[str]:
    """Counts this process's open descriptors by kind, such as `socket`."""
    counts = Counter[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            counts[str(descriptor.readlink()).partition(":")[0]] += 1
    return counts


@pytest.fixture(autouse=True)
def nothing_left_over() -> Generator[None]:
    """Counts the processes and threads that a test leaves behind."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + SOON
    while children() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children() == []
    left = {thread.name for thread in set(threading.enumerate()) - before}
    # The process has one event loop and one pool for handlers, and resolves names in threads.
    assert not {name for name in left if not name.startswith(("weakincentives", "asyncio_"))}


@pytest.fixture
def no_descriptor_left() -> Generator[None]:
    """Counts the sockets, pipes and files that a test leaves open."""
    portal.loop()  # has some descriptors, and stays open
    run_to_end(asyncio.sleep(0))  # so does the event loop for the handlers of synchronous runs
    before = descriptors()
    yield
    assert descriptors() <= before


@pytest.fixture(scope="session")
def modern() -> ServerLock:
    """Returns the lock of a server that uses the newer protocol."""
    command = (sys.executable, str(Path(sdk_mcp_server.__file__)))
    return listed(ServerLock(name="plain", command=command, headers={}))
