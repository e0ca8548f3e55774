"""The scripted adapter is an adapter like any other, except for its model."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from support.agents import prompt, tool
from weakincentives import ModelSettings
from weakincentives.adapters.core import ProviderAdapter
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.messages import AssistantMessage, ToolCall, UserMessage
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Prompt
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, ScriptExhaustedError, SeenRequest, call, say


@dataclass(frozen=True)
class Point:
    x: int
    y: int


def test_say_accepts_text_and_serializes_values_as_json() -> None:
    assert say("hi").text == "hi"
    assert say(Point(1, 2)).text == '{"x":1,"y":2}'
    assert say([Point(1, 2)]).text == '[{"x":1,"y":2}]'
    assert say().finish == "stop"
    assert say("hi", usage=TokenUsage(1, 2)).usage == TokenUsage(1, 2)


def test_call_takes_dicts_dataclasses_and_raw_text() -> None:
    message = call(("a", {"x": 1}), ("b", Point(1, 2)), ("c", '{"broken'), usage=TokenUsage(3))
    assert [tool_call.arguments for tool_call in message.tool_calls] == [
        '{"x": 1}',
        '{"x":1,"y":2}',
        '{"broken',
    ]
    assert (message.finish, message.usage) == ("tool_calls", TokenUsage(3))


def test_call_requires_pairs_of_name_and_arguments() -> None:
    for wrong in (("find_order", {"order_id": "A-7"}), (("find_order",),)):
        arguments: Any = wrong
        with pytest.raises(
            TypeError,
            match=r"call takes pairs of a tool name and arguments, .*, got .*find_order",
        ):
            call(*arguments)


def test_invalid_reply_is_reported_with_its_position_in_the_script() -> None:
    script: Any = [call(("probe", {})), "Hello.", None, say("x")]
    error = r"reply 2 of the script must be say\(…\) or call\(…\), got 'Hello\.'"
    with pytest.raises(TypeError, match=error):
        ScriptedAdapter(script)
    lazily: ScriptedAdapter = ScriptedAdapter(iter(script))
    with pytest.raises(TypeError, match=error):
        lazily.evaluate(prompt(tool()), session=Session())
    with pytest.raises(TypeError, match=r"reply 3 of the script must be .*, got None"):
        lazily.evaluate(prompt(), session=Session())
    assert lazily.evaluate(prompt(), session=Session()).text == "x"


@pytest.mark.parametrize("reply", [say("Hello."), "Hello.", OSError("gone"), lambda _: say("x")])
def test_script_must_be_a_list_of_replies(reply: Any) -> None:
    with pytest.raises(
        TypeError,
        match=r"the script must be a list of replies, such as ScriptedAdapter\(\[…\]\), got",
    ):
        ScriptedAdapter(reply)


def test_exhausted_script_raises_an_assertion_error() -> None:
    adapter = ScriptedAdapter([say("one")])
    adapter.evaluate(prompt(), session=Session())
    with pytest.raises(ScriptExhaustedError, match="no reply for request 2") as raised:
        adapter.evaluate(prompt(), session=Session())
    assert isinstance(raised.value, AssertionError)


def test_scripted_error_carries_turns_usage_and_transcript() -> None:
    error = PromptEvaluationError("down", phase="request", code="server_error", status=500)
    adapter = ScriptedAdapter([call(("probe", {})), error, error])
    session = Session()
    with pytest.raises(PromptEvaluationError, match="down") as raised:
        adapter.evaluate(prompt(tool()), session=session)
    first = raised.value
    assert (first.turns, first.usage, len(first.transcript)) == (2, TokenUsage(10, 5), 3)
    with pytest.raises(PromptEvaluationError, match="down") as raised:
        adapter.evaluate(prompt(text="Again."), session=session)
    assert (raised.value.turns, len(raised.value.transcript)) == (1, 1)
    assert (error.turns, len(error.transcript)) == (0, 0), "the script's own error stays as it was"
    assert [event.error for event in session[ProviderCalled].all() if event.error] == [
        "PromptEvaluationError: 500: down [request/server_error]"
    ] * 2


def test_reply_function_receives_the_request_and_can_return_an_error() -> None:
    def reply(request: SeenRequest) -> AssistantMessage:
        return say(str(len(request.messages)))

    def fail(request: SeenRequest) -> Exception:
        return OSError("gone")

    adapter = ScriptedAdapter([reply, fail])
    assert adapter.evaluate(prompt(), session=Session()).text == "1"
    with pytest.raises(OSError, match="gone"):
        adapter.evaluate(prompt(), session=Session())


def test_seen_request_contains_the_conversation_up_to_that_request() -> None:
    adapter = ScriptedAdapter([call(("probe", {})), say("done")])
    adapter.evaluate(prompt(tool()), session=Session())
    first, second = adapter.requests
    assert [type(message) for message in first.messages] == [UserMessage]
    assert len(second.messages) == 3
    assert first.tool_names == second.tool_names == ("probe",)


def test_missing_call_ids_are_generated() -> None:
    reply = AssistantMessage(
        tool_calls=(ToolCall("first", "probe", "{}"), ToolCall("", "probe", "{}"))
    )
    adapter = ScriptedAdapter([reply, call(("probe", {})), say("done")])
    response = adapter.evaluate(prompt(tool()), session=Session())
    replies = [message for message in response.transcript if isinstance(message, AssistantMessage)]
    assert [tool_call.call_id for reply in replies for tool_call in reply.tool_calls] == [
        "first",
        "call_1",
        "call_2",
    ]


def test_one_script_can_be_used_by_many_threads() -> None:
    adapter = ScriptedAdapter([say(str(index)) for index in range(64)])
    with ThreadPoolExecutor(8) as pool:
        texts = list(
            pool.map(lambda _: adapter.evaluate(prompt(), session=Session()).text, range(64))
        )
    assert sorted(map(int, texts)) == list(range(64))


@pytest.mark.claim("DT-01")
def test_minimal_adapter_has_no_dynamic_tools_and_evaluates_async_in_a_thread() -> None:
    class Minimal(ProviderAdapter):
        # Any: the arguments are not used.
        def evaluate(self, prompt: Any, /, **rest: Any) -> Any:
            return prompt, sorted(rest)

    adapter: Any = Minimal()
    assert adapter.supports_dynamic_tools is False
    with pytest.raises(AttributeError):
        adapter.supports_dynamic_tools = True
    a_prompt: Prompt[Any] = prompt()
    result = asyncio.run(
        adapter.evaluate_async(a_prompt, session=Session(), bus=None, deadline=None, budget=None)
    )
    assert (result[0].template, result[1]) == (
        a_prompt.template,
        ["budget", "bus", "deadline", "session"],
    )


@pytest.mark.parametrize(
    ("choice", "reply", "problem"),
    [
        ("required", say("Hello."), "must have a tool call .*, which providers enforce; got 'Hel"),
        ("probe", say("Hello."), "must have a tool call"),
        ("probe", call(("look", {})), "must have a call of 'probe' .*; got look"),
        ("none", call(("probe", {})), "must have no tool call because of tool_choice='none'"),
        ("required", call(("look", {})), None),
        ("probe", call(("look", {}), ("probe", {})), None),
        ("none", say("Hello."), None),
        ("required", AssistantMessage(text="I will not.", finish="content_filter"), None),
    ],
)
def test_reply_that_the_tool_choice_does_not_allow_fails_the_test(
    choice: str, reply: AssistantMessage, problem: str | None
) -> None:
    adapter = ScriptedAdapter([reply, say("Done.")], settings=ModelSettings(tool_choice=choice))
    asked = prompt(tool(), tool(name="look"))
    if problem is None:
        with suppress(PromptEvaluationError):
            adapter.evaluate(asked)
        return
    with pytest.raises(AssertionError, match=f"reply 1 {problem}"):
        adapter.evaluate(asked)
