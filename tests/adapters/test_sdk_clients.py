"""The clients that adapters over SDKs create themselves."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from support.agents import prompt
from support.scripted_server import Say, ScriptedServer
from support.sdk_clients import APIS, sdk_adapter
from weakincentives.runtime.session import Session


class Ring:
    """Keeps an object in a reference cycle, as an error's traceback does."""

    def __init__(self, held: object) -> None:
        self.held, self.itself = held, self


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Prevents all collections except those that a test asks for."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("api", APIS)
def test_garbage_collected_client_closes_its_connections(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ScriptedServer(Say("Hello.")) as server:
        adapter = sdk_adapter(api, server.url, api_key="test")
        client = weakref.ref(adapter.client())
        gc.collect(0)  # an older object is finalized after a younger one
        adapter.evaluate(prompt(), session=Session())
        Ring(adapter)
        del adapter
        gc.collect()  # an unclosed connection would fail the test with a ResourceWarning
        assert client() is None
