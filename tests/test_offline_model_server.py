"""The offline model over HTTP: both provider formats through the real SDK, and bad requests."""

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from examples.offline_model import (
    MODEL,
    BadRequest,
    Tool,
    respond,
    start_offline_model,
)
from support.deadlines import SOON
from support.offline_library import (
    ANSWER,
    DOCS,
    OPEN,
    QUESTIONS,
    READ,
    SEARCH,
    run_tool,
    suffix,
)


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with start_offline_model() as url:
        yield url


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        yield client


PROMPT = (
    f"## 1. Library\n\nTools to search and read the documents.\n\n{suffix('library')}\n\n"
    "## 2. Question\n\n"
)


def chat_agent(client: openai.OpenAI, question: str) -> tuple[dict[str, Any], list[str]]:
    """Runs a minimal agent loop in which opening the section adds the tools."""

    def spec(tool: Tool) -> dict[str, object]:
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": True,
        }
        return {"type": "function", "function": function}

    tools, messages, names = (
        [spec(OPEN)],
        [{"role": "user", "content": PROMPT + question}],
        list[str](),
    )
    form = {
        "type": "json_schema",
        "json_schema": {"name": "Answer", "schema": ANSWER, "strict": True},
    }
    while True:
        # plain dicts for its many parameter types
        create: Callable[..., Any] = client.chat.completions.create
        reply = create(model="any", messages=messages, tools=tools, response_format=form)
        choice = reply.choices[0]
        assert (
            reply.usage.total_tokens
            == reply.usage.prompt_tokens + reply.usage.completion_tokens
            > 0
        )
        if choice.finish_reason == "stop":
            return json.loads(choice.message.content), names
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in choice.message.tool_calls:
            names.append(call.function.name)
            tools = [spec(OPEN), spec(SEARCH), spec(READ)]
            text = run_tool(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def responses_agent(client: openai.OpenAI, question: str) -> tuple[dict[str, Any], list[str]]:
    """As above; the tools come as an `additional_tools` item of the conversation."""

    def spec(tool: Tool) -> dict[str, object]:
        shape = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "strict": True, **shape}

    items: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": PROMPT + question}]}
    ]
    names: list[str] = []
    form = {"format": {"type": "json_schema", "name": "Answer", "schema": ANSWER, "strict": True}}
    while True:
        create: Callable[..., Any] = client.responses.create  # as above
        reply = create(model="any", input=items, tools=[spec(OPEN)], text=form, store=False)
        assert reply.status == "completed"
        assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens > 0
        if reply.output_text:
            return json.loads(reply.output_text), names
        items += [item.model_dump(exclude_none=True) for item in reply.output]
        for call in reply.output:
            names.append(call.name)
            text = run_tool(call.name, json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": text})
            if call.name == "read_section":
                more = {
                    "type": "additional_tools",
                    "role": "developer",
                    "tools": [spec(SEARCH), spec(READ)],
                }
                items.append(more)


@pytest.mark.parametrize("question", QUESTIONS)
def test_agent_finds_the_answer_and_cites_its_file_over_both_apis(
    client: openai.OpenAI, question: str
) -> None:
    source, words = QUESTIONS[question]
    answer, calls = chat_agent(client, question)
    assert answer["sources"][0] == source
    assert words in answer["answer"]
    assert calls[:3] == ["read_section", "search_docs", "read_doc"]
    assert responses_agent(client, question) == (answer, calls)


BODY = {"model": "any", "messages": [{"role": "user", "content": PROMPT + "Why tea?"}]}


def test_equal_requests_get_equal_responses() -> None:
    path = "/v1/chat/completions"
    assert respond(path, BODY) == respond(path, json.loads(json.dumps(BODY)))
    assert respond(path, BODY)["id"] != respond(path, {**BODY, "user": "another"})["id"]


def test_responses_do_not_depend_on_the_hash_seed() -> None:
    bodies = [{"input": PROMPT + question} for question in QUESTIONS] + [
        {"input": f"{text}\n\nWhy?"} for text in DOCS.values()
    ]
    program = "import json, sys; from examples.offline_model import respond\n"
    program += (
        "for body in json.loads(sys.argv[1]): print(json.dumps(respond('/v1/responses', body)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, json.dumps(bodies)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_server_states_that_it_is_not_an_llm(client: openai.OpenAI) -> None:
    assert [(model.id, model.owned_by) for model in client.models.list()] == [
        (MODEL, "offline, no LLM")
    ]
    reply = client.responses.create(model="gpt-5", input="Hello")
    assert reply.model == MODEL
    assert reply.metadata is not None
    assert re.search(r"no LLM.*estimates", reply.metadata["note"])


USER = {"role": "user", "content": "Why?"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}


def test_streamed_response_arrives_word_by_word(client: openai.OpenAI) -> None:
    question = "What is a section?"
    whole = client.responses.create(model=MODEL, input=question)
    pieces: list[str] = []
    for event in client.responses.create(model=MODEL, input=question, stream=True):
        if event.type == "response.output_text.delta":
            pieces.append(event.delta)
        else:
            assert event.type == "response.completed"
            assert event.response.output_text == whole.output_text
    assert len(pieces) == len(whole.output_text.split()) > 1
    assert "".join(pieces) == whole.output_text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", [], "body"),
        ("chat/completions", {}, "messages"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": ["x"]}, "messages[0]"),
        ("chat/completions", {"messages": [{"role": "king"}]}, "messages[0].role"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages[0]"),
        ("chat/completions", {"messages": [{"role": "tool", "tool_call_id": "c0"}]}, "messages[0]"),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [CALLED]}, USER]},
            "messages",
        ),
        ("chat/completions", {"messages": [USER], "tools": [3]}, "tools[0]"),
        ("chat/completions", {"messages": [USER], "stream": True}, "stream"),
        ("responses", {}, "input"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ("responses", {"input": "Why?", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"input": "Why?", "text": {"format": {"type": "json_schema"}}}, "schema"),
    ],
)
def test_malformed_request_is_rejected_with_the_invalid_param(
    path: str, body: object, param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        respond(f"/v1/{path}", body)
    assert (caught.value.param, caught.value.status) == (param, 400)


def test_rejections_reach_the_sdk_as_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="any", input="Why?", previous_response_id="resp_1")
    assert (caught.value.param, caught.value.type) == (
        "previous_response_id",
        "invalid_request_error",
    )
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="any", input="tea")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


@pytest.mark.parametrize(
    ("headers", "data", "says"),
    [
        ({}, b"{", "not JSON"),
        ({"content-length": "many"}, b"", "content-length"),
        ({"content-length": str(10**9)}, b"", "content-length"),
    ],
)
def test_invalid_http_body_gets_an_error_response(
    base_url: str, headers: dict[str, str], data: bytes, says: str
) -> None:
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=SOON)
    try:
        connection.request("POST", "/v1/responses", data, headers)
        reply = connection.getresponse()
        error = json.loads(reply.read())["error"]
    finally:
        connection.close()
    assert reply.status == 400
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


def test_invalid_arguments_in_the_history_do_not_fail_the_request() -> None:
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "c1", "content": "?"},
    ]
    reply: Any = respond("/v1/chat/completions", {"messages": messages})
    assert reply["choices"][0]["finish_reason"] == "stop"
