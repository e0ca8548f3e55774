"""`FallbackAdapter` over real SDKs and failing servers, with its laws."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Args, prompt, tool, without_provider_items
from support.deadlines import NEVER, SOON, with_growing_limit
from support.provider_formats import Ids, provider_format, render
from support.scripted_server import Call, Drop, Fail, Raw, Request, Say, ScriptedServer
from weakincentives.adapters.core import PromptEvaluationError, PromptResponse, ProviderAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.provider_errors import error_from_request, error_from_status
from weakincentives.evaluation.errors import BudgetExceededError, DeadlineExceededError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import AnswerRejected, Completed, TextDelta
from weakincentives.limits import Budget, Deadline, TokenUsage, utc_now
from weakincentives.prompt import MarkdownSection, Prompt, ToolContext, ToolResult
from weakincentives.runtime.events import ProviderCalled, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility

KEY = "sk-marked-0123456789-secret"
CALL = Say("See:", (Call("probe", {"a": 1}, "call_p"),), reasoning="hm")

# Any: results and events of every kind
type Run = Callable[..., tuple[PromptResponse[Any], list[Any]]]


def connect(server: ScriptedServer, api: Any = "chat", **options: Any) -> OpenAIAdapter:
    url = server.openai_url
    return OpenAIAdapter("m", api=api, base_url=url, api_key=KEY, max_retries=0, **options)


def evaluate(
    adapter: ProviderAdapter, asked: Prompt[Any], **options: Any
) -> tuple[PromptResponse[Any], list[Any]]:
    return adapter.evaluate(asked, **options), []


def evaluate_async(
    adapter: ProviderAdapter, asked: Prompt[Any], **options: Any
) -> tuple[PromptResponse[Any], list[Any]]:
    return asyncio.run(adapter.evaluate_async(asked, **options)), []


def stream(
    adapter: ProviderAdapter, asked: Prompt[Any], **options: Any
) -> tuple[PromptResponse[Any], list[Any]]:
    events = list(adapter.stream(asked, **options))
    completed = events.pop()
    assert isinstance(completed, Completed)
    return completed.response, events


def stream_async(
    adapter: ProviderAdapter, asked: Prompt[Any], **options: Any
) -> tuple[PromptResponse[Any], list[Any]]:
    async def main() -> list[Any]:
        return [event async for event in adapter.stream_async(asked, **options)]

    events = asyncio.run(main())
    return events.pop().response, events


ways = pytest.mark.parametrize("run", [evaluate, evaluate_async, stream, stream_async])
streams = pytest.mark.parametrize("run", [stream, stream_async])
apis = pytest.mark.parametrize("api", ["responses", "chat"])


def broken_off(request: Request) -> Raw:
    """Returns a streamed answer that ends in the middle of its text."""
    form: Any = provider_format(request.path)  # Any: it is one
    whole = render(Say("Half of the answer"), form, request.json, Ids())
    assert isinstance(whole, Raw)
    return replace(whole, body=whole.body[: whole.body.index(b"he answer")])


# --- Real SDKs


@ways
@apis
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Fail(429), "throttled"),
        (Fail(529), "server_error"),
        (Fail(503), "server_error"),
        (Drop(), "connection"),
        (Raw(b"{}", delay=NEVER), "timeout"),
    ],
)
def test_run_continues_with_the_next_adapter_after_a_failed_request(
    run: Run, api: Any, failure: Any, code: str
) -> None:
    other = "chat" if api == "responses" else "responses"

    # Any: results and events of every kind
    def attempt(seconds: float) -> tuple[PromptResponse[Any], list[Any], Session, Request] | None:
        session, timeout = Session(), seconds if code == "timeout" else SOON
        bad, good = ScriptedServer(CALL, failure, strict=False), ScriptedServer(Say("done"))
        with bad, good:
            adapter = FallbackAdapter(connect(bad, api, timeout=timeout), connect(good, other))
            response, events = run(adapter, prompt(tool()), session=session, message="Hi")
        return (response, events, session, good.requests[0]) if len(bad.requests) == 2 else None

    response, events, session, request = with_growing_limit(attempt, 0.4)
    assert response.text == "done"
    assert (response.usage, response.turns) == (TokenUsage(20, 10), 2)
    assert len(session[ToolInvoked].all()) == 1
    assert b"hm" not in request.body
    assert b"See:" in request.body
    assert request.body.count(b'"ok"') == 1
    called = session[ProviderCalled].all()
    assert [(event.turn, event.error is None) for event in called] == [
        *((1, True), (2, False), (2, True)),
    ]
    assert f"/{code}]" in str(called[1].error)
    assert not any(isinstance(event, AnswerRejected) for event in events)
    assert [message.kind for message in response.transcript] == [
        *("instructions", "user", "assistant", "tool", "assistant"),
    ]


@streams
@apis
def test_interrupted_answer_yields_answer_rejected_before_the_fallback(run: Run, api: Any) -> None:
    with ScriptedServer(broken_off) as bad, ScriptedServer(Say("All of it.")) as good:
        adapter = FallbackAdapter(connect(bad, api), connect(good, api))
        response, events = run(adapter, prompt(), session=Session())
    rejections = [index for index, event in enumerate(events) if isinstance(event, AnswerRejected)]
    assert len(rejections) == 1
    before, after = events[: rejections[0]], events[rejections[0] + 1 :]
    assert "".join([event.text for event in before if isinstance(event, TextDelta)]) == "Half of t"
    assert "".join([event.text for event in after if isinstance(event, TextDelta)]) == "All of it."
    assert response.text == "All of it."
    assert [message.kind for message in response.transcript] == ["user", "assistant"]


def test_error_notes_name_the_provider_of_a_refused_answer() -> None:
    refusal = AssistantMessage(text="I cannot.", finish="refusal")
    down = PromptEvaluationError("down", phase="request", code="server_error")
    adapters = ScriptedAdapter([refusal]), ScriptedAdapter([down])
    adapter, session = FallbackAdapter(*adapters, on="refused"), Session()
    with pytest.raises(PromptEvaluationError, match="down") as caught:
        adapter.evaluate(prompt(), session=session)
    first, _ = session[ProviderCalled].all()
    [note] = caught.value.__notes__
    assert note.startswith(f"{first.adapter} failed before: ")
    assert "I cannot." in note


@apis
def test_last_failure_is_raised_with_earlier_failures_as_notes(api: Any) -> None:
    session = Session()
    with (
        ScriptedServer(CALL, Fail(429, f"slow down, {KEY}")) as first,
        ScriptedServer(Fail(500, "broken")) as second,
        ScriptedServer(Fail(503, "away")) as third,
    ):
        adapter = FallbackAdapter(*[connect(server, api) for server in (first, second, third)])
        with pytest.raises(PromptEvaluationError, match="away") as caught:
            adapter.evaluate(prompt(tool()), session=session)
    notes = caught.value.__notes__
    assert [note.partition(" failed before: ")[2].split("; ")[0] for note in notes] == [
        *("openai 429: slow down, ***", "openai 500: broken"),
    ]
    assert KEY not in "".join(notes)
    assert caught.value.usage == TokenUsage(10, 5)
    assert caught.value.conversation is not None
    assert len(session[ToolInvoked].all()) == 1


@apis
def test_failure_with_another_code_ends_the_run(api: Any) -> None:
    with ScriptedServer(Fail(400)) as bad, ScriptedServer() as unused:
        adapter = FallbackAdapter(connect(bad, api), connect(unused, api))
        with pytest.raises(PromptEvaluationError, match="bad_request"):
            adapter.evaluate(prompt(), session=Session())


def test_fallback_adapter_is_used_for_the_rest_of_the_run_only() -> None:
    with (
        ScriptedServer(Fail(500), Say("first again")) as first,
        ScriptedServer(CALL, Say("one")) as second,
    ):
        adapter, session = FallbackAdapter(connect(first), connect(second)), Session()
        one = adapter.evaluate(prompt(tool()), session=session, message="Hi")
        two = adapter.evaluate(
            prompt(tool()), session=session, message="So?", conversation=one.conversation
        )
    assert (one.text, two.text) == ("one", "first again")


def test_response_names_the_model_that_answered() -> None:
    with (
        ScriptedServer(Fail(500), Fail(500)) as bad,
        ScriptedServer(Say("one"), Say("two")) as good,
    ):
        second = OpenAIAdapter("second", api="chat", base_url=good.openai_url, api_key=KEY)
        adapter = FallbackAdapter(connect(bad), second)
        done = MainLoop(adapter).execute(prompt())
        assert (done.text, done.model, done.response.model) == ("one", "second", "second")
        *_, completed = adapter.stream(prompt())
        assert isinstance(completed, Completed)
        assert completed.response.model == "second"


# --- What counts and what ends


def failing(code: str = "throttled") -> PromptEvaluationError:
    return error_from_request("it", code, "failed")


def cut_off(finish: Any, tokens: int = 15) -> AssistantMessage:
    return replace(say("Half of", usage=TokenUsage(tokens, 0)), finish=finish)


@ways
@pytest.mark.parametrize(
    ("finish", "code"),
    [("refusal", "refused"), ("length", "truncated"), ("content_filter", "content_filter")],
)
def test_unusable_answer_falls_back_if_its_code_is_listed(run: Run, finish: Any, code: str) -> None:
    session = Session()
    adapter = FallbackAdapter(
        ScriptedAdapter([cut_off(finish)]), ScriptedAdapter([say("All.")]), on={code}
    )
    response, events = run(adapter, prompt(), session=session)
    assert response.text == "All."
    assert response.usage == TokenUsage(25, 5)
    assert [event.usage.input_tokens for event in session[ProviderCalled].all()] == [15, 10]
    rejections = [event for event in events if isinstance(event, AnswerRejected)]
    assert len(rejections) == (1 if events else 0)
    assert [message.kind for message in response.transcript] == ["user", "assistant"]


def test_tokens_of_a_discarded_answer_are_reported_and_budgeted() -> None:
    def adapter(last: Any) -> FallbackAdapter:
        first = ScriptedAdapter([cut_off("refusal")])
        return FallbackAdapter(first, ScriptedAdapter([last]), on={"refused", "throttled"})

    with pytest.raises(PromptEvaluationError, match="throttled") as caught:
        adapter(failing()).evaluate(prompt(), session=Session())
    assert caught.value.usage == TokenUsage(15, 0)
    with pytest.raises(BudgetExceededError) as limit:
        adapter(say("never")).evaluate(prompt(), session=Session(), budget=Budget(max_tokens=15))
    assert (limit.value.usage, limit.value.turns) == (TokenUsage(15, 0), 1)


def test_fallback_takes_one_turn_and_one_call() -> None:
    config = RunConfig(max_turns=1)
    adapter = FallbackAdapter(
        ScriptedAdapter([failing()]), ScriptedAdapter([say("done")]), config=config
    )
    response = adapter.evaluate(prompt(), session=Session(), budget=Budget(max_calls=1))
    assert (response.text, response.turns) == ("done", 1)


def test_no_adapter_is_called_after_the_deadline() -> None:
    now = utc_now()
    times = iter([now, now, now, now + timedelta(hours=1)])

    def clock() -> Any:
        return next(times, now + timedelta(hours=1))

    adapter = FallbackAdapter(ScriptedAdapter([failing()]), ScriptedAdapter([]), clock=clock)
    with pytest.raises(DeadlineExceededError):
        adapter.evaluate(prompt(), session=Session(), deadline=Deadline.after(60, now=now))


def test_section_opens_by_a_restart_if_one_adapter_lacks_dynamic_tools() -> None:
    hidden = MarkdownSection(
        title="More",
        key="more",
        template="The rest.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="late")],
    )
    asked = Prompt(ns="tests", key="layers", sections=[hidden])
    read = call(("read_section", {"section_key": "more"}))
    first, second = ScriptedAdapter([failing()]), ScriptedAdapter([read], dynamic_tools=False)
    adapter = FallbackAdapter(first, second)
    assert not adapter.supports_dynamic_tools
    first.replies = iter([failing(), call(("late", {"a": 1})), failing()])
    second.replies = iter([read, say("done")])
    execution = MainLoop(adapter).execute(asked, session=Session(), message="Hi")
    assert (execution.text, execution.restarts) == ("done", 1)


def test_nested_fallbacks_are_tried_before_the_next_adapter() -> None:
    inner = FallbackAdapter(ScriptedAdapter([failing()]), ScriptedAdapter([failing()]))
    adapter = FallbackAdapter(inner, ScriptedAdapter([say("third")]))
    assert adapter.evaluate(prompt(), session=Session()).text == "third"


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ([ScriptedAdapter([])], {}, ValueError, "at least two adapters"),
        (
            [ScriptedAdapter([]), 3],
            {},
            TypeError,
            "takes adapters of this library and names of models, .* got 3",
        ),
        (
            [ScriptedAdapter([])] * 2,
            {"on": {"throtled"}},
            ValueError,
            "on must contain error codes from .*, got 'throtled'",
        ),
    ],
)
def test_invalid_arguments_are_rejected_on_creation(
    arguments: Any, options: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        FallbackAdapter(*arguments, **options)


# --- A law


@pytest.mark.claim("N-19")
@given(
    turns=st.lists(st.integers(0, 3), max_size=4),
    failures=st.dictionaries(st.integers(0, 4), st.integers(1, 2), max_size=2),
)
def test_run_with_failures_matches_the_run_without_failures(
    turns: list[int], failures: dict[int, int]
) -> None:
    """In each turn, some adapters fail; after each failure, the next adapter continues the run."""
    replies = [call(*[("probe", {"a": n})] * n) if n else say("mid") for n in turns]
    replies = [reply for reply in replies if reply.tool_calls] + [say("end")]
    for turn, reply in enumerate(replies):
        calls = [
            replace(each, call_id=f"call_{turn}_{n}") for n, each in enumerate(reply.tool_calls)
        ]
        replies[turn] = replace(reply, tool_calls=tuple(calls))
    scripts: list[list[Any]] = [[]]
    for turn, reply in enumerate(replies):
        for _ in range(failures.get(turn, 0)):
            scripts[-1].append(error_from_status("it", 503, message="away"))
            scripts.append([])
        scripts[-1].append(reply)
    ran: list[int] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params.a)
        return ToolResult("ok")

    asked = prompt(tool(handler))
    whole = ScriptedAdapter(replies).evaluate(asked, session=Session(), message="Hi")
    once, ran[:] = list(ran), []
    adapters = [ScriptedAdapter(script) for script in (*scripts, [])]
    session = Session()
    response = FallbackAdapter(*adapters).evaluate(asked, session=session, message="Hi")
    assert list(map(without_provider_items, response.transcript)) == list(
        map(without_provider_items, whole.transcript)
    )
    assert (response.text, response.usage, response.turns) == (
        *(whole.text, whole.usage, whole.turns),
    )
    assert ran == once
    assert len(session[ProviderCalled].all()) == len(replies) + len(scripts) - 1
