"""OpenAI's SDK over `aiohttp`, which `running.md` recommends for many concurrent runs: replies,
limits and deadlines are the same as over its own transport.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAioHttpClient

from support.agents import prompt
from support.hostile_server import BEHAVIOURS, HostileServer, compressed, redirect
from support.scripted_server import Say, ScriptedServer
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.response import Completed
from weakincentives.limits import Deadline
from weakincentives.runtime.session import Session

pytest.importorskip("aiohttp")

KEY = "sk-marked-0123456789-secret"

type EntryPoint = Callable[..., Awaitable[str]]


async def evaluate(adapter: OpenAIAdapter, **options: Any) -> str:
    return (await adapter.evaluate_async(prompt(), session=Session(), **options)).text


async def stream(adapter: OpenAIAdapter, **options: Any) -> str:
    events = adapter.stream_async(prompt(), session=Session(), **options)
    *_, last = [event async for event in events]
    assert isinstance(last, Completed)
    return last.response.text


entry_points = pytest.mark.parametrize("entry_point", [evaluate, stream])


def over_aiohttp(url: str, entry_point: EntryPoint, **options: Any) -> str:
    async def main() -> str:
        http = DefaultAioHttpClient()
        async with AsyncOpenAI(
            base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=http
        ) as client:
            adapter = OpenAIAdapter("m", async_client=client, max_reply_bytes=1_000_000)
            return await entry_point(adapter, **options)

    return asyncio.run(main())


@entry_points
def test_replies_over_aiohttp_are_decoded(entry_point: EntryPoint) -> None:
    with ScriptedServer(Say("Hello there.")) as server:
        assert over_aiohttp(server.url, entry_point) == "Hello there."


@entry_points
@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (compressed(3_000_000), "reply_too_large"),
        (redirect(f"http://127.0.0.1:9/{KEY}"), "redirect"),
    ],
)
def test_oversized_replies_and_redirects_over_aiohttp_raise(
    behaviour: Any, code: str, entry_point: EntryPoint
) -> None:
    with HostileServer(behaviour) as server:
        with pytest.raises(PromptEvaluationError) as caught:
            over_aiohttp(server.url, entry_point)
        assert (caught.value.code, KEY in str(caught.value)) == (code, False)


@entry_points
@pytest.mark.parametrize("behaviour", ["silence", "comments", "headers byte by byte"])
def test_deadline_ends_the_request_and_its_connection(
    behaviour: str, entry_point: EntryPoint
) -> None:
    with HostileServer(BEHAVIOURS[behaviour]) as server:
        with pytest.raises(PromptEvaluationError) as caught:
            over_aiohttp(server.url, entry_point, deadline=Deadline.after(0.5))
        assert caught.value.code == "deadline"
        assert server.left()
