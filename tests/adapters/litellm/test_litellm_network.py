"""Deadlines, redirects and huge replies over the real LiteLLM, for two provider formats."""

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from support import litellm_routes
from support.deadlines import SOON, with_growing_limit
from support.entry_points import EntryPoint, evaluate, evaluate_async, stream, stream_async
from support.hostile_server import BEHAVIOURS, HostileServer, compressed, redirect, retry_later
from support.litellm_routes import ANTHROPIC, KEY, OPENAI, routes
from support.scripted_server import Say, ScriptedServer
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.evaluation.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session

# with the adapter's own retries
connect = partial(litellm_routes.connect, max_retries=2)

ENTRY_POINTS: list[EntryPoint] = [evaluate, stream, evaluate_async, stream_async]
entry_points = pytest.mark.parametrize("entry_point", ENTRY_POINTS)


def all_at_once(adapter: Any, seconds: float) -> None:  # Any: as above
    """Runs concurrent evaluations that must end by a deadline."""

    def evaluate_by(entry_point: EntryPoint) -> None:
        with pytest.raises(DeadlineExceededError):
            entry_point(adapter, Session(), Deadline.after(seconds))

    with ThreadPoolExecutor(len(ENTRY_POINTS)) as pool:
        list(pool.map(evaluate_by, ENTRY_POINTS))


@pytest.fixture(autouse=True, scope="module")
def warm() -> None:
    """LiteLLM imports many modules at the first call of a route."""
    for model in (OPENAI, ANTHROPIC):
        with ScriptedServer(*[Say("Hello.")] * 4) as server:
            for entry_point in ENTRY_POINTS:
                entry_point(connect(server, model), Session(), Deadline.after(120))


@routes
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_deadline_ends_every_evaluation_and_its_connection(model: str, behaviour: str) -> None:
    def attempt(seconds: float) -> bool | None:
        with HostileServer(BEHAVIOURS[behaviour]) as server:
            # a flood could reach the usual limit before the deadline
            all_at_once(connect(server, model, max_reply_bytes=10**12), seconds)
            assert server.left()
        return len(server.requests) >= len(ENTRY_POINTS) or None

    with_growing_limit(attempt)
    assert [
        thread for thread in threading.enumerate() if thread.name == "weakincentives-request"
    ] == []


@routes
def test_deadline_ends_retries(model: str) -> None:
    def attempt(seconds: float) -> bool | None:
        with HostileServer(retry_later(seconds + 4)) as server:
            adapter = connect(server, model)
            if model == ANTHROPIC:  # LiteLLM does not retry there
                for entry_point in ENTRY_POINTS:
                    with pytest.raises(PromptEvaluationError, match="throttled"):
                        entry_point(adapter, Session(), Deadline.after(SOON))
            else:
                all_at_once(adapter, seconds)
            if len(server.requests) < len(ENTRY_POINTS):
                return None
            assert not server.asked(len(ENTRY_POINTS) + 1, timeout=4.5)
        return True

    with_growing_limit(attempt)


# Any: as above
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


@routes
@entry_points
@pytest.mark.parametrize("deadline", [None, 60], ids=["no deadline", "deadline"])
@pytest.mark.parametrize("status", [302, 307, 308])
def test_redirect_is_rejected_without_leaking_the_key_or_the_prompt(
    model: str, entry_point: EntryPoint, deadline: float | None, status: int
) -> None:
    with ScriptedServer() as elsewhere:
        to = f"{elsewhere.url}/v1/{KEY}?key={KEY}"
        with HostileServer(redirect(to, status, f"go to {to}".encode())) as server:
            error, report = failure(entry_point, connect(server, model), deadline)
            assert len(server.requests) == 1
        assert (error.code, error.phase, error.status) == ("redirect", "request", status)
        assert elsewhere.url.removeprefix("http://") in error.message
        assert "base_url" in error.remedy
        assert KEY not in report
    assert elsewhere.requests == ()


@routes
@entry_points
def test_redirect_without_a_location_is_reported_as_a_redirect(
    model: str, entry_point: EntryPoint
) -> None:
    with HostileServer(redirect(None, 302)) as server:
        error, _ = failure(entry_point, connect(server, model))
    assert (error.code, error.status) == ("redirect", 302)


@routes
@entry_points
@pytest.mark.parametrize("status", ["200 OK", "500 Oops"])
def test_reply_larger_than_max_reply_bytes_raises(
    model: str, entry_point: EntryPoint, status: str
) -> None:
    kind = (
        "text/event-stream"
        if "stream" in entry_point.__name__ and status == "200 OK"
        else "application/json"
    )
    with HostileServer(compressed(30_000_000, status, kind)) as server:
        adapter = connect(server, model, max_reply_bytes=1_000_000, max_retries=0)
        error, report = failure(entry_point, adapter)
    assert len(report) < 50_000
    if (model, entry_point, status) in [
        (ANTHROPIC, stream, "500 Oops"),
        (ANTHROPIC, stream_async, "500 Oops"),
    ]:
        # LiteLLM continues without the body that it could not read
        assert error.code == "server_error"
    else:
        assert error.code == "reply_too_large"
        assert "max_reply_bytes=1000000" in error.message


def test_max_reply_bytes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_reply_bytes"):
        LiteLLMAdapter(OPENAI, max_reply_bytes=0)
