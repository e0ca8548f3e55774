"""Objects that LiteLLM leaves open do not fail these tests, and are closed with the module."""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

_KNOWN = (
    # it keeps its clients in a cache and closes neither them nor its event loop
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning",  # it requests the current event loop where none exists
    "ignore::UserWarning",  # pydantic warns about its types when they are first used
    "ignore::pytest.PytestUnraisableExceptionWarning",  # how pytest reports the first of these
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings(*_KNOWN))


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Collects objects here, where the warnings are expected, and not at the end of the run."""
    yield
    litellm: Any = import_module("litellm")  # Any: its types are not needed here
    aiohttp: Any = import_module("aiohttp")  # Any: as above
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm.in_memory_llm_clients_cache.flush_cache()
        asyncio.set_event_loop(None)
        gc.collect()
        for session in [
            item for item in gc.get_objects() if isinstance(item, aiohttp.ClientSession)
        ]:
            session.detach()  # its loop has ended, and with it its connections
        session = None
        for _ in range(5):
            gc.collect()
