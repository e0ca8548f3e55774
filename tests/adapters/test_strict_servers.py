"""Chats over strict servers continue, whatever the model or the server did in the preceding turn.

Each row is a public report: the first reply has the fault, and from then on the server rejects the
same requests as the real one.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from support.provider_formats import provider_format
from support.request_rules import check_chat, check_messages, check_responses
from support.script import Fail, Raw, Request, Step
from support.scripted_server import ScriptedServer
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.server_profile import ServerProfile
from weakincentives.content import Image
from weakincentives.evaluation.adapter import ProviderAdapter
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.response import Completed
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session

# Any throughout: replies and requests as JSON.
type Json = dict[str, Any]

NINE = "[a-zA-Z0-9]{9}"


@dataclass(frozen=True)
class City:
    city: str = "Oslo"


def weather(params: City, *, context: ToolContext) -> ToolResult[object]:
    """Tells the weather."""
    return ToolResult(f"Sunny in {params.city}.")


def quiet(params: City, *, context: ToolContext) -> ToolResult[object]:
    """Says nothing."""
    return ToolResult(" \n")


def fails(params: City, *, context: ToolContext) -> ToolResult[object]:
    """Fails without a message."""
    return ToolResult("", success=False)


def look(params: City, *, context: ToolContext) -> ToolResult[object]:
    """Takes a picture."""
    return ToolResult("Here.", media=[Image.from_url("https://example.com/a.png", "image/png")])


TEMPLATE = PromptTemplate[str](
    ns="tests",
    key="strict",
    sections=[
        MarkdownSection(
            title="Task",
            template="Help.",
            tools=[
                Tool(name=tool.__name__, handler=tool) for tool in (weather, quiet, fails, look)
            ],
        )
    ],
)


def chat_reply(finish: str = "tool_calls", **message: Any) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def calls(*arguments: object, name: str = "weather", call_id: str = "call_abc") -> Json:
    """Returns a reply with a call for each of these arguments."""
    made = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        for text in arguments
    ]
    return chat_reply(tool_calls=made)


def untyped(reply: Json) -> Json:
    [call] = reply["choices"][0]["message"]["tool_calls"]
    del call["type"]
    return reply


def without_arguments(reply: Json) -> Json:
    [call] = reply["choices"][0]["message"]["tool_calls"]
    del call["function"]["arguments"]
    return reply


def responses_reply(*items: Json, **more: Any) -> Json:
    head = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    return {**head, "error": None, "incomplete_details": None, "output": [*items], **more}


def words(text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "m1", "role": "assistant", "content": [part]}


def messages_reply(*blocks: Json, stop: str = "end_turn") -> Json:
    head = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {**head, "content": [*blocks], "stop_reason": stop, "usage": usage}


def use(name: str = "weather", **arguments: object) -> Json:
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": arguments}


CALL = {"type": "function_call", "id": "f", "call_id": "c", "name": "weather", "arguments": "{}"}
REASONING: Json = {"type": "reasoning", "id": "rs_1", "summary": []}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig=="}
CUT: Json = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


@dataclass(frozen=True)
class Row:
    """A report: the faulty reply, and anything else that the case needs.

    `code` is the code of the error in the first turn. `city` is the argument that the tool must
    have received.
    """

    reply: Json
    check: Callable[[Json], None] = check_chat
    code: str = ""
    city: str = ""
    profile: ServerProfile | None = None
    budget: Budget | None = None
    options: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def api(self) -> str:
        if "choices" in self.reply:
            return "chat"
        return "responses" if "output" in self.reply else "messages"


MISTRAL = partial(check_chat, call_ids=NINE)
BROKEN = '{"city": "He said "hi""}'
ROWS = {
    "w06-null": Row(calls(None), city="Oslo"),
    "w06-missing": Row(without_arguments(calls("{}")), city="Oslo"),
    "w06-empty": Row(calls(""), city="Oslo"),
    "w06-null-text": Row(calls("null"), city="Oslo"),
    "w06-object": Row(calls({"city": "Rome"}), city="Rome"),
    "w06-no-type": Row(untyped(calls("{}")), city="Oslo"),
    "w08-broken": Row(calls(BROKEN)),
    "w08-list": Row(calls("[1]")),
    "w09-cut-call": Row(
        chat_reply(
            "length",
            content="I look.",
            tool_calls=calls('{"ci')["choices"][0]["message"]["tool_calls"],
        ),
        code="truncated",
    ),
    "w09-cut-text": Row(chat_reply("length", content="I lo"), code="truncated"),
    "w09-filtered": Row(chat_reply("content_filter", content=""), code="content_filter"),
    "w10-empty": Row(chat_reply("stop", content=""), code="output"),
    "w10-reasoning": Row(
        chat_reply("stop", content="", reasoning_content="I should greet."), code="output"
    ),
    "w13-reasoning": Row(
        chat_reply(reasoning="hm", tool_calls=calls("{}")["choices"][0]["message"]["tool_calls"]),
        partial(check_chat, reasoning=False),
        profile=ServerProfile(reasoning="drop"),
    ),
    "w22-no-id": Row(calls("{}", call_id=""), MISTRAL),
    "w22-long-id": Row(
        calls("{}", call_id="call_Xq7VbXlWQ1c8pKrjO3pFzQ2s"),
        MISTRAL,
        profile=ServerProfile(call_ids=NINE),
    ),
    "w25-channel": Row(calls("{}", name="functions.weather<|channel|>commentary")),
    "w25-empty": Row(calls("{}", name="")),
    "w25-responses": Row(responses_reply({**CALL, "name": "browser.tabs.open"}), check_responses),
    "w25-messages": Row(messages_reply(use("a.b"), stop="tool_use"), check_messages),
    "w27-stopped": Row(calls("{}"), budget=Budget(max_calls=1), code="budget"),
    "w27-image": Row(calls("{}", name="look")),
    "w31-chat": Row(calls('{"city": "Rome"}', '{"city": "Paris"}'), city="Paris"),
    "w31-limit": Row(calls("{}", "{}"), budget=Budget(max_tool_calls=1), code="budget"),
    "w31-messages": Row(
        messages_reply(use(city="Rome"), use(city="Paris"), stop="tool_use"),
        check_messages,
        city="Paris",
    ),
    "w37-blank-result": Row(calls("{}", name="quiet")),
    "w37-blank-failure": Row(calls("{}", name="fails")),
    "w42-twice": Row(calls(json.dumps('{"city": "Rome"}')), city="Rome"),
    "w42-thrice": Row(calls(json.dumps(json.dumps('{"city": "Rome"}'))), city="Rome"),
    "w18-reasoning": Row(responses_reply(REASONING, **CUT), check_responses, code="truncated"),
    "w18-half-call": Row(
        responses_reply(REASONING, {**CALL, "arguments": '{"ci'}, **CUT),
        check_responses,
        code="truncated",
    ),
    "w35-not-stored": Row(
        responses_reply(REASONING, CALL),
        partial(check_responses, stored=False),
        options={"store": False},
    ),
    "w23-before-a-call": Row(
        messages_reply({"type": "text", "text": "\n\n"}, use(), stop="tool_use"), check_messages
    ),
    "w23-blank": Row(messages_reply({"type": "text", "text": "\n"}), check_messages, code="output"),
    "w24-failing-tool": Row(messages_reply(use("fails"), stop="tool_use"), check_messages),
    "w36-thinking": Row(messages_reply(THINKING, use(), stop="tool_use"), check_messages),
    "thinking-only": Row(messages_reply(THINKING), check_messages, code="output"),
    "thinking-unsigned": Row(
        messages_reply({**THINKING, "signature": ""}, use(), stop="tool_use"), check_messages
    ),
    "cut-thinking": Row(
        messages_reply(THINKING, stop="max_tokens"), check_messages, code="truncated"
    ),
}


def _events(request: Request, reply: Json) -> Raw:
    form = provider_format(request.path)
    assert form is not None
    if "choices" not in reply:
        return Raw(form.encode(form.events(reply, request.json)), content_type=form.stream_type)
    [choice] = reply["choices"]
    delta = {**choice["message"]}
    if made := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(made)]
    chunks = [
        {**reply, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**reply, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
    ]
    body = form.encode([(None, chunk) for chunk in chunks]) + form.end_of_stream
    return Raw(body, content_type=form.stream_type)


def play(request: Request, *, reply: Json, check: Callable[[Json], None] | None = None) -> Step:
    """Replies, as a stream if requested; a request that `check` rejects gets status 400."""
    try:
        if check is not None:
            check(request.json)
    except AssertionError as error:
        return Fail(400, f"{error}", "invalid_request_error")
    return _events(request, reply) if request.json.get("stream") else Raw.json(reply)


DONE = {
    "chat": chat_reply("stop", content="Done."),
    "responses": responses_reply({**words("Done."), "id": "m9"}),
    "messages": messages_reply({"type": "text", "text": "Done."}),
}


def connect(server: ScriptedServer, row: Row) -> ProviderAdapter:
    if row.api == "messages":
        return AnthropicAdapter("m", base_url=server.url, api_key="sk-test", max_retries=0)
    return OpenAIAdapter(
        "m",
        api="chat" if row.api == "chat" else "responses",
        base_url=server.openai_url,
        api_key="sk-test",
        max_retries=0,
        profile=row.profile,
        options=row.options,
    )


def _last(events: list[Any]) -> str:
    assert isinstance(events[-1], Completed)
    return events[-1].response.text or ""


async def _send_async(chat: Chat[str], message: str, budget: Budget | None) -> str:
    return (await chat.send_async(message, budget=budget)).text or ""


async def _stream_async(chat: Chat[str], message: str, budget: Budget | None) -> str:
    return _last([event async for event in chat.stream_async(message, budget=budget)])


type Send = Callable[[asyncio.Runner, Chat[str], str, Budget | None], str]
WAYS: dict[str, Send] = {
    "sync": lambda _, chat, message, budget: chat.send(message, budget=budget).text or "",
    "stream": lambda _, chat, message, budget: _last([*chat.stream(message, budget=budget)]),
    "async": lambda runner, *arguments: runner.run(_send_async(*arguments)),
    "async-stream": lambda runner, *arguments: runner.run(_stream_async(*arguments)),
}


@pytest.mark.claim("N-21")
@pytest.mark.parametrize("name", ROWS)
def test_chat_continues_after_the_fault(name: str) -> None:
    row = ROWS[name]

    def reply(request: Request) -> Step:
        is_first = not any(word in request.body for word in (b"Second.", b"Third.", b"tool_result"))
        is_first &= b'"tool"' not in request.body and b"_call_output" not in request.body
        fault = partial(play, reply=row.reply)
        return (fault if is_first else partial(play, reply=DONE[row.api], check=row.check))(request)

    with ScriptedServer(*[reply] * 32, strict=False) as server, asyncio.Runner() as runner:
        adapter = connect(server, row)
        for send in WAYS.values():
            chat = Chat(MainLoop(adapter), TEMPLATE.bind(), session=Session())
            if row.code:
                with pytest.raises(PromptEvaluationError) as caught:
                    send(runner, chat, "First.", row.budget)
                assert caught.value.code == row.code
            else:
                send(runner, chat, "First.", None)
            said = [send(runner, chat, text, None) for text in ("Second.", "Third.")]
            assert said == ["Done.", "Done."]
            sent = json.dumps(server.requests[-1].json)
            assert f"Sunny in {row.city}." in sent or not row.city
            if name.startswith("w09-cut"):
                assert "I lo" in sent
                assert "cut off at the length limit" in sent
