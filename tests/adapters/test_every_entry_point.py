"""Hostile replies end a run in the same way for any adapter and entry point.

The run ends with an answer or with an error of this library, and neither contains the key.

Each adapter gets each reply at a third of the entry points, so that each reply is tried with each
entry point and each adapter. The third changes every day: after three days, an adapter has got each
reply at all entry points, as it does in one run with `EVERY_ENTRY_POINT=yes` in the environment.
"""

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from support.deadlines import with_growing_limit
from support.entry_points import (
    ENTRY_POINTS,
    STREAMED,
    EntryPoint,
    evaluate,
    one_event_loop,
    stream,
)
from support.hostile_replies import KEY, MAX_BYTES, REPLIES
from support.hostile_server import BEHAVIOURS, HostileServer, retry_later
from support.scripted_server import Request, Say, ScriptedServer, Step
from support.sizes import TODAY
from weakincentives.adapters.core import LoopAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.provider_errors import ERROR_CODES
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.runtime.events import EvaluationStopped, ProviderCalled
from weakincentives.runtime.session import Session

if find_spec("litellm"):  # it emits warnings, and closes neither clients nor event loops
    pytestmark = pytest.mark.filterwarnings(
        "ignore::DeprecationWarning",
        "ignore::ResourceWarning",
        "ignore::UserWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    )

NO_BOUND = 10**12
PARTS = 3  # of the entry points; an adapter gets a reply at one part

type Connect = Callable[..., LoopAdapter]


# Any: options of all types
def sdk(url: str, *, api: str, **options: Any) -> LoopAdapter:
    from support.sdk_clients import sdk_adapter

    return sdk_adapter(api, url, api_key=KEY, **options)


def litellm(url: str, *, model: str, **options: Any) -> LoopAdapter:
    from weakincentives.adapters.litellm import LiteLLMAdapter

    url = f"{url}/v1" if model.startswith("openai/") else url
    return LiteLLMAdapter(model, base_url=url, api_key=KEY, **options)


def claude(url: str, **options: Any) -> LoopAdapter:
    from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter

    model, thinking = "claude-sonnet-4-5", {"thinking": {"type": "disabled"}}
    return ClaudeAgentSDKAdapter(model, base_url=url, api_key=KEY, options=thinking, **options)


def fallback(url: str, *, first: Connect, second: Connect, **options: Any) -> LoopAdapter:
    return FallbackAdapter(first(url, **options), second(url, **options))


ADAPTERS: dict[str, Connect] = {}
if find_spec("openai"):
    ADAPTERS["responses"] = partial(sdk, api="responses")
    ADAPTERS["chat"] = partial(sdk, api="chat")
if find_spec("anthropic"):
    ADAPTERS["messages"] = partial(sdk, api="messages")
if find_spec("litellm"):
    ADAPTERS["litellm, openai"] = partial(litellm, model="openai/gpt-4o")
    ADAPTERS["litellm, anthropic"] = partial(litellm, model="anthropic/claude-sonnet-4-5")
if find_spec("claude_agent_sdk"):
    ADAPTERS["claude"] = claude
for one, other in (("responses", "messages"), ("litellm, anthropic", "chat")):
    if {one, other} <= ADAPTERS.keys():
        ADAPTERS[f"{one} or {other}"] = partial(
            fallback, first=ADAPTERS[one], second=ADAPTERS[other]
        )

DECODED_HERE = {"responses", "chat", "messages", "responses or messages"}
"""The adapters whose replies are not read by another library first."""

AT_ALL_ENTRY_POINTS = ("cut at 30%", "duplicate ids", "status 401")
"""Replies of three kinds, which every adapter gets at all entry points."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("ANTHROPIC_", "CLAUDE", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))


@dataclass
class Stage:
    """Adapters for one server, which answers with `reply`; they keep their clients."""

    url: str = ""
    reply: Callable[[Request], Step] = field(default=lambda request: Say("Hello."))
    adapters: dict[str, LoopAdapter] = field(default_factory=dict[str, LoopAdapter])

    def answer(self, request: Request) -> Step:
        return self.reply(request)

    def adapter(self, name: str) -> LoopAdapter:
        if name not in self.adapters:
            connect = ADAPTERS[name]
            self.adapters[name] = connect(self.url, max_retries=0, max_reply_bytes=MAX_BYTES)
        return self.adapters[name]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    made = Stage()
    logging.disable(logging.CRITICAL)  # unknown tools are logged, too
    try:
        with (
            ScriptedServer(*repeat(made.answer, 100_000), strict=False) as server,
            one_event_loop(),
        ):
            made.url = server.url
            yield made
            for adapter in made.adapters.values():
                client: Any = getattr(adapter, "client", None)  # Any: the SDKs' own
                if client is not None:
                    client().close()
    finally:
        logging.disable(logging.NOTSET)


def end_of(entry_point: EntryPoint, adapter: LoopAdapter) -> str:
    """Returns a run's final text, or the code of its error, which is checked."""
    session = Session()
    try:
        return entry_point(adapter, session, None)
    except PromptEvaluationError as error:
        check_report(error, session)
        return error.code


def check_report(error: PromptEvaluationError, session: Session) -> None:
    called = session[ProviderCalled].all()
    assert KEY not in "".join([repr(error), *traceback.format_exception(error), repr(called)])
    assert error.code in ERROR_CODES
    assert error.phase in ("request", "response")
    assert len(error.message) <= 520  # the quoted refusal, and our words
    assert session[EvaluationStopped].all()


def entry_points_of(name: str, reply: str) -> tuple[EntryPoint, ...]:
    if os.environ.get("EVERY_ENTRY_POINT"):
        return ENTRY_POINTS
    if name == "claude":
        return (evaluate,)  # of which each starts a process
    return part_of_entry_points([*ADAPTERS].index(name) + [*REPLIES].index(reply) + TODAY)


def part_of_entry_points(number: int) -> tuple[EntryPoint, ...]:
    return ENTRY_POINTS[number % PARTS :: PARTS]


def allowed(name: str, reply: str) -> frozenset[str]:
    ends = REPLIES[reply].ends
    if name in DECODED_HERE:
        return ends
    # a library that reads a reply first reports its faults differently, and drops unknown values
    places = "text", "delta", "parts", "index", "refusal", "function", "arguments of"
    return ends | ERROR_CODES | ({""} if reply.startswith(places) else set())


def kind_of(name: str, entry_point: EntryPoint) -> tuple[bool, bool]:
    """Entry points of one kind end alike; LiteLLM has its own code for asynchronous ones."""
    return entry_point in STREAMED, name not in DECODED_HERE and "async" in entry_point.__name__


def check(name: str, reply: str, stage: Stage, entry_points: tuple[EntryPoint, ...]) -> None:
    stage.reply = REPLIES[reply].answer
    seen: dict[tuple[bool, bool], dict[str, str]] = {}
    for entry_point in entry_points:
        ends = seen.setdefault(kind_of(name, entry_point), {})
        ends[entry_point.__name__] = end_of(entry_point, stage.adapter(name))
    for ends in seen.values():
        assert set(ends.values()) <= allowed(name, reply), ends
        assert len(set(ends.values())) == 1, ends


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("name", ADAPTERS)
def test_hostile_reply_ends_a_run_alike_from_every_entry_point(
    name: str, reply: str, stage: Stage
) -> None:
    check(name, reply, stage, entry_points_of(name, reply))


@pytest.mark.parametrize("reply", AT_ALL_ENTRY_POINTS)
@pytest.mark.parametrize("name", ADAPTERS)
def test_selected_replies_end_a_run_alike_from_all_entry_points_of_an_adapter(
    name: str, reply: str, stage: Stage
) -> None:
    entry_points = ENTRY_POINTS
    if name == "claude" and not os.environ.get("EVERY_ENTRY_POINT"):
        # Each run starts a process, so the replies share the entry points; `evaluate` is the
        # reference.
        part = part_of_entry_points(AT_ALL_ENTRY_POINTS.index(reply))
        entry_points = (
            evaluate,
            stream,
            *(entry_point for entry_point in part if entry_point not in (evaluate, stream)),
        )
    check(name, reply, stage, entry_points)


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_entry_point_still_answers_after_the_hostile_replies(name: str, stage: Stage) -> None:
    stage.reply = lambda request: Say("Still here.")
    for entry_point in ENTRY_POINTS:
        assert entry_point(stage.adapter(name), Session(), None) == "Still here."


# --- Replies that never end

ENDLESS = {
    **{name: BEHAVIOURS[name] for name in ("silence", "comments", "spaces")},
    "headers byte by byte": BEHAVIOURS["headers byte by byte"],
    "retry later": retry_later(55),  # the SDKs obey less than a minute
}

OVER_SDKS = {"responses", "chat", "messages"}
"""The adapters whose deadlines `test_deadlines` checks at all entry points and behaviours."""


@pytest.mark.parametrize("behaviour", ENDLESS)
@pytest.mark.parametrize("name", [name for name in ADAPTERS if name not in OVER_SDKS])
def test_deadline_applies_from_every_entry_point(name: str, behaviour: str) -> None:
    is_cli = name == "claude"
    entry_points = (evaluate, stream) if is_cli else ENTRY_POINTS

    def attempt(seconds: float) -> set[str] | None:
        with HostileServer(ENDLESS[behaviour]) as server:
            adapter = ADAPTERS[name](server.url, max_retries=2, max_reply_bytes=NO_BOUND)

            def end_by(entry_point: EntryPoint) -> str:
                with pytest.raises(PromptEvaluationError) as caught:
                    entry_point(adapter, Session(), Deadline.after(seconds))
                return caught.value.code

            with ThreadPoolExecutor(len(entry_points)) as pool:
                ends = set(pool.map(end_by, entry_points))
            assert server.left()
        return ends if len(server.requests) >= len(entry_points) else None

    ends = with_growing_limit(attempt, 3 if is_cli else 0.5)
    if behaviour == "retry later" and name.startswith("litellm, anthropic"):
        assert ends <= {"throttled", "deadline"}  # LiteLLM does not retry there
    else:
        assert ends == {"deadline"}
