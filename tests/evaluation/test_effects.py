"""Effects are performed one after another, and the performer returns the generator's result."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from weakincentives.evaluation.effects import Effects, run


class Later:
    """An awaitable that is not a coroutine."""

    def __await__(self) -> Generator[Any, None, int]:  # Any: what the event loop waits for
        yield from asyncio.sleep(0).__await__()
        return 3


async def later() -> int:
    return await Later()


@pytest.mark.parametrize("handler", [lambda: 3, later, Later])
def test_run_returns_the_result_of_effects_whose_handlers_may_return_any_awaitable(
    handler: Any,  # Any: a function of any kind
) -> None:
    def effects() -> Effects[str]:
        number, error = yield handler
        return f"{number} {error}"

    assert run(effects()) == "3 None"
