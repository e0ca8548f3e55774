"""The clients that adapters over SDKs make for themselves."""

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
    """Holds something in a ring of references, as the traceback of an error does."""

    def __init__(self, held: object) -> None:
        self.held, self.itself = held, self


@pytest.fixture
def no_collections() -> Iterator[None]:
    """None but those that a test asks for."""
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
        gc.collect(0)  # an older object is ended after a younger one
        adapter.evaluate(prompt(), session=Session())
        Ring(adapter)
        del adapter
        gc.collect()  # an unclosed connection would be a ResourceWarning, and with it a failure
        assert client() is None
