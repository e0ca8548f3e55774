"""What holds for every test with servers: no process and no thread is left."""

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

import_module("weakincentives.contrib.mcp.client")  # slow, and else a part of a first call's time


def descriptors() -> Counter[str]:
    """Counts the open descriptors of this process by their kind, such as `socket`."""
    counts = Counter[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing
            counts[str(descriptor.readlink()).partition(":")[0]] += 1
    return counts


@pytest.fixture(autouse=True)
def nothing_left_over() -> Generator[None]:
    """Counts the processes and threads that a test leaves."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + SOON
    while children() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert children() == []
    left = {thread.name for thread in set(threading.enumerate()) - before}
    # The process has one event loop and one pool for handlers, which look up names in threads.
    assert not {name for name in left if not name.startswith(("weakincentives", "asyncio_"))}


@pytest.fixture
def no_descriptor_left() -> Generator[None]:
    """Counts the sockets, pipes and files that a test leaves open."""
    portal.loop()  # which has some, and stays
    run_to_end(asyncio.sleep(0))  # as does the loop of the handlers of synchronous runs
    before = descriptors()
    yield
    assert descriptors() <= before


@pytest.fixture(scope="session")
def modern() -> ServerLock:
    """The lock of a server of the newer protocol."""
    command = (sys.executable, str(Path(sdk_mcp_server.__file__)))
    return listed(ServerLock(name="plain", command=command, headers={}))
