"""Limits on replies: redirects are rejected, and bytes are limited while they arrive."""

import gc
import gzip
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.agents import prompt
from support.entry_points import EntryPoint, evaluate, evaluate_async, stream, stream_async
from support.hostile_server import HostileServer, compressed, redirect
from support.scripted_server import Raw, Say, ScriptedServer
from support.sdk_clients import APIS, AnyAdapter, sdk_adapter, sdk_client
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session

KEY = "sk-marked-0123456789-secret"

apis = pytest.mark.parametrize("api", APIS)
deadlines = pytest.mark.parametrize("deadline", [None, 60], ids=["no deadline", "deadline"])


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


entry_points = pytest.mark.parametrize(
    "entry_point", [evaluate, stream, evaluate_async, stream_async]
)


@pytest.fixture(params=["own client", "ready client"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., AnyAdapter]]:
    """Creates adapters with their own clients, or with given ones."""
    clients: list[Any] = []

    def make(url: str, api: Any, **options: Any) -> AnyAdapter:
        if request.param == "own client":
            adapter = sdk_adapter(api, url, api_key=KEY, max_retries=0, **options)
            clients.append(adapter.client())
            return adapter
        clients.append(sdk_client(api, url, api_key=KEY, max_retries=0))
        ready = sdk_client(api, url, "Async", api_key=KEY, max_retries=0)
        return sdk_adapter(api, client=clients[-1], async_client=ready, **options)

    yield make
    for client in clients:
        client.close()


def failure(
    entry_point: EntryPoint, adapter: Any, deadline: float | None = None
) -> tuple[PromptEvaluationError, str]:
    """Returns an evaluation's error, and every report of it."""
    session = Session()
    with pytest.raises(PromptEvaluationError) as caught:
        entry_point(adapter, session, None if deadline is None else Deadline.after(deadline))
    error = caught.value
    report = [
        str(error),
        repr(error),
        *traceback.format_exception(error),
        repr(session[ProviderCalled].all()),
    ]
    return error, "\n".join(report)


@apis
@entry_points
@deadlines
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_rejected_without_leaking_the_key_or_the_prompt(
    api: str,
    entry_point: EntryPoint,
    deadline: float | None,
    status: int,
    connect: Callable[..., AnyAdapter],
) -> None:
    with ScriptedServer() as elsewhere:
        to = f"{elsewhere.url}/v1/{KEY}?key={KEY}"
        with HostileServer(redirect(to, status, f"go to {to}".encode())) as server:
            error, report = failure(entry_point, connect(server.url, api), deadline)
        assert (error.code, error.phase, error.status) == ("redirect", "request", status)
        assert elsewhere.url.removeprefix("http://") in error.message
        assert "base_url" in error.remedy
        assert KEY not in report
    assert elsewhere.requests == ()


@pytest.mark.parametrize(
    "to",
    [f"http://{KEY}.test/", f"//{KEY}@other.test/x", f"http://[{KEY}]/", f"/{KEY}", "http://["],
)
def test_key_in_a_redirect_location_is_not_leaked(
    to: str, connect: Callable[..., AnyAdapter]
) -> None:
    with HostileServer(redirect(to)) as server:
        error, report = failure(evaluate, connect(server.url, "chat"))
    assert error.code in ("redirect", "connection")  # httpx rejects some URLs itself
    assert KEY not in report


@apis
@entry_points
@deadlines
def test_reply_larger_than_max_reply_bytes_raises(
    api: str, entry_point: EntryPoint, deadline: float | None, connect: Callable[..., AnyAdapter]
) -> None:
    kind = "text/event-stream" if "stream" in entry_point.__name__ else "application/json"
    with HostileServer(compressed(3_000_000, kind=kind)) as server:
        error, report = failure(
            entry_point, connect(server.url, api, max_reply_bytes=1_000_000), deadline
        )
    assert (error.code, error.phase) == ("reply_too_large", "response")
    assert "max_reply_bytes=1000000" in error.message
    assert "max_reply_bytes" in error.remedy
    assert len(report) < 20_000


@apis
@entry_points
def test_max_reply_bytes_applies_to_error_bodies(api: str, entry_point: EntryPoint) -> None:
    with HostileServer(compressed(3_000_000, "500 Oops")) as server:
        adapter = sdk_adapter(
            api, server.url, api_key=KEY, max_retries=0, max_reply_bytes=1_000_000
        )
        error, _ = failure(entry_point, adapter)
        adapter.client().close()
    assert error.code == "reply_too_large"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate", "identity"])
def test_compressed_reply_within_max_reply_bytes_is_decoded(
    encoding: str, connect: Callable[..., AnyAdapter]
) -> None:
    plain = (
        b'{"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}'
        + b" " * 100_000
    )
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    bodies = {
        "gzip": gzip.compress(plain),
        "deflate": zlib.compress(plain),
        "raw deflate": raw.compress(plain) + raw.flush(),
        "identity": plain,
    }
    name = encoding.removeprefix("raw ")
    reply = Raw(bodies[encoding], headers=(("content-encoding", name),))
    with ScriptedServer(reply) as server:
        adapter = connect(server.url, "chat", max_reply_bytes=len(plain))
        assert adapter.evaluate(prompt(), session=Session()).text == "Hello."
        assert server.requests[0].header("accept-encoding") == "gzip, deflate"


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x" * 1000])
def test_reply_with_an_unaccepted_encoding_is_malformed(
    encoding: str, connect: Callable[..., AnyAdapter]
) -> None:
    with ScriptedServer(Raw(b"{}", headers=(("content-encoding", encoding),))) as server:
        error, _ = failure(evaluate, connect(server.url, "chat"))
    assert error.code == "malformed"
    assert "did not accept" in error.message


def test_broken_compressed_reply_is_malformed(connect: Callable[..., AnyAdapter]) -> None:
    with ScriptedServer(Raw(b"no gzip", headers=(("content-encoding", "gzip"),))) as server:
        error, _ = failure(evaluate, connect(server.url, "chat"))
    assert error.code == "malformed"


@apis
@pytest.mark.parametrize("size", [0, -1])
def test_max_reply_bytes_must_be_positive(api: str, size: int) -> None:
    with pytest.raises(ValueError, match="max_reply_bytes"):
        sdk_adapter(api, max_reply_bytes=size)


@apis
def test_long_reply_is_accepted(api: str, connect: Callable[..., AnyAdapter]) -> None:
    with ScriptedServer(Say("word " * 200_000)) as server:
        adapter = connect(server.url, api)
        assert len(adapter.evaluate(prompt(), session=Session()).text) == 1_000_000


# not `stream_async`, because OpenAI's SDK leaves its event generators to the end of the loop
@apis
@pytest.mark.parametrize("entry_point", [evaluate, stream, evaluate_async])
def test_decoded_reply_is_freed_without_garbage_collection(
    api: str, entry_point: EntryPoint
) -> None:
    def replies() -> int:
        kinds = [type(it) for it in gc.get_objects()]  # httpx's replies refer to themselves
        return sum(kind.__name__ == "Response" and "httpx2" in kind.__module__ for kind in kinds)

    with ScriptedServer(*[Say("Hello.")] * 3) as server:
        adapter = sdk_adapter(api, server.url, api_key=KEY, max_retries=0)
        entry_point(adapter, Session(), None)  # creates clients and the like, which stay
        gc.collect()
        gc.disable()
        try:
            before = replies()
            for _ in range(2):
                entry_point(adapter, Session(), None)
            assert replies() == before
        finally:
            gc.enable()
            adapter.client().close()


BOMB = """
import resource, sys
sys.path.insert(0, "tests")
from support.agents import prompt
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.runtime.session import Session

adapter = OpenAIAdapter("m", base_url=sys.argv[1], api_key="test", max_retries=0)
adapter.client()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for run in (adapter.evaluate, lambda *given, **named: list(adapter.stream(*given, **named))):
    try:
        run(prompt(), session=Session())
    except PromptEvaluationError as error:
        print(error.code)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.fixture(scope="module")
def ten_gigabytes() -> bytes:
    """A gzip body of 10 MB: the same compressed zeros, repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    piece = bytes(10_000_000)
    first = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + again * 999


def test_decompression_bomb_of_ten_gigabytes_takes_little_memory(ten_gigabytes: bytes) -> None:
    assert len(ten_gigabytes) < 12_000_000
    with HostileServer(
        lambda connection: connection.send(
            "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n"
            f"content-length: {len(ten_gigabytes)}\r\n\r\n".encode(),
            ten_gigabytes,
        )
    ) as server:
        ran = subprocess.run(
            [sys.executable, "-c", BOMB, server.openai_url],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    *codes, megabytes = ran.stdout.split()
    assert codes == ["reply_too_large"] * 2
    assert int(megabytes) < 300
