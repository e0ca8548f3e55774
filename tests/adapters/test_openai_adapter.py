"""The adapter over the real SDK against a scripted server: requests and replies of both APIs."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from support.agents import Args, nested_adapter, prompt, tool
from support.scripted_server import Call, Raw, Request, Say, ScriptedServer, Usage
from weakincentives.adapters.core import PromptResponse
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.server_profile import ServerProfile
from weakincentives.errors import missing_extra
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.messages import ToolMessage
from weakincentives.limits import TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, ToolContext, ToolResult
from weakincentives.runtime.events import ProviderCalled, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.visibility import SectionVisibility

KEY = "sk-test-key"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OPENAI_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


# Any: prompts with any output type, options of all types.
def connect(server: ScriptedServer, **options: Any) -> OpenAIAdapter:
    arguments: dict[str, Any] = {
        "base_url": server.openai_url,
        "api_key": KEY,
        "max_retries": 0,
        **options,
    }
    return OpenAIAdapter("test-model", **arguments)


def evaluate(
    adapter: OpenAIAdapter, asked: Prompt[Any], session: Session | None = None
) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=session or Session())


def evaluate_async(
    adapter: OpenAIAdapter, asked: Prompt[Any], session: Session | None = None
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=session or Session()))


apis = pytest.mark.parametrize("api", ["responses", "chat"])
drivers = pytest.mark.parametrize("run", [evaluate, evaluate_async])
type Run = Callable[..., PromptResponse[Any]]


def history(request: Request) -> list[Any]:
    """Returns the conversation in a request of either API."""
    items: list[Any] = request.json.get("input") or request.json.get("messages")
    return items


def tool_names(request: Request) -> list[str]:
    return [tool.get("name") or tool["function"]["name"] for tool in request.json.get("tools", [])]


def outputs(request: Request) -> list[str]:
    """Returns the tool results in the recorded request."""
    return [
        item["output"] if item.get("type") == "function_call_output" else item["content"]
        for item in history(request)
        if item.get("type") == "function_call_output" or item.get("role") == "tool"
    ]


def layered(output: Any = None) -> Prompt[Any]:
    hidden = MarkdownSection(
        title="More",
        key="more",
        template="The rest.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="late")],
    )
    shown = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool()])
    return Prompt(ns="tests", key="layers", sections=[shown, hidden], structured_output=output)


# --- A conversation


@apis
@drivers
def test_run_executes_tools_and_returns_the_answer(api: Any, run: Run) -> None:
    session = Session()
    calls = (Call("probe", {"a": 1}), Call("probe", {"a": 2}))
    with ScriptedServer(
        Say(calls=calls, usage=Usage(20, 8, cached=5, reasoning=2, written=3)),
        Say("Both done.", model="test-model-2026-11-01"),
    ) as server:
        response = run(connect(server, api=api), prompt(tool()), session)
        first, second = server.requests
    assert (response.text, response.turns, response.output) == ("Both done.", 2, None)
    assert response.usage == TokenUsage(30, 13, 5, cache_write_tokens=3, reasoning_tokens=2)
    models = [event.model for event in session[ProviderCalled].all()]
    assert models == ["test-model", "test-model-2026-11-01"]
    assert first.json["model"] == "test-model"
    assert first.header("authorization") == f"Bearer {KEY}"
    assert first.path == ("/v1/chat/completions" if api == "chat" else "/v1/responses")
    assert outputs(second) == ["ok", "ok"]
    assert [event.params for event in session[ToolInvoked].all()] == [Args(1), Args(2)]


@pytest.mark.claim("DT-19")
@apis
def test_each_request_extends_the_previous_one(api: Any) -> None:
    read = Call("read_section", {"section_key": "more"})
    script = (
        Say(calls=(Call("probe"),), reasoning="hm"),
        Say(calls=(read,)),
        Say("w", (Call("late"),)),
        Say("done"),
    )
    with ScriptedServer(*script) as server:
        evaluate(connect(server, api=api), layered())
        requests = server.requests
    for before, after in pairwise(requests):
        items = history(before)
        assert history(after)[: len(items)] == items
        assert after.json["tools"][: len(before.json["tools"])] == before.json["tools"]
    assert [tool_names(request) for request in requests] == [["probe", "read_section"]] * 2 + [
        ["probe", "read_section", "late"]
    ] * 2
    rest = [
        {
            key: value
            for key, value in request.json.items()
            if key not in {"input", "messages", "tools"}
        }
        for request in requests
    ]
    assert all(body == rest[0] for body in rest)


@pytest.mark.claim("TL-09")
@apis
def test_tool_invoked_content_matches_the_request_byte_for_byte(api: Any) -> None:
    texts = iter(["plain", "ünïcödé 🙂", 'quotes " and \\ and \n', "a\ud800b", "\u2028\x7f", ""])

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(next(texts))

    session = Session()
    calls = (*[Call("probe")] * 6, Call("unknown"), Call("probe", "{"))
    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        evaluate(connect(server, api=api), prompt(tool(handler)), session)
        sent = outputs(server.requests[1])
    contents = [event.content or "(no output)" for event in session[ToolInvoked].all()]
    assert [content.encode() for content in contents] == [text.encode() for text in sent]


@pytest.mark.claim("TL-30")
@apis
def test_tool_context_has_the_adapter_and_the_prompt_that_was_sent(api: Any) -> None:
    seen: list[ToolContext] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        seen.append(context)
        return ToolResult("ok")

    with ScriptedServer(Say(calls=(Call("probe"),)), Say("done")) as server:
        adapter = connect(server, api=api)
        evaluate(adapter, prompt(tool(handler)))
        assert nested_adapter(seen[0]).adapter is adapter
        assert seen[0].rendered_prompt is not None
        assert history(server.requests[0])[0] == {
            "role": "user",
            "content": seen[0].rendered_prompt.text,
        }


@apis
@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1', "", "null", "[]", '{"b": 1}', '{"a": "\ud800"}', "[" * 50_000, "x" * 1_000_000],
)
def test_calls_with_any_arguments_are_answered(api: Any, arguments: str) -> None:
    with ScriptedServer(
        Say(calls=(Call("pro\ud800be", arguments), Call("probe", arguments))), Say("done")
    ) as server:
        response = evaluate(connect(server, api=api), prompt(tool()))
        assert len(outputs(server.requests[1])) == 2
    assert response.text == "done"


@apis
def test_every_tool_declares_whether_it_is_strict(api: Any) -> None:
    @dataclass(frozen=True)
    class Open:
        anything: dict[str, Any]

    with ScriptedServer(Say("done")) as server:
        adapter = connect(server, api=api, profile=ServerProfile(strict="each"))
        evaluate(adapter, prompt(tool(), tool(name="open", params=Open)))
        tools = [request.get("function", request) for request in server.requests[0].json["tools"]]
    assert [(tool["name"], tool["strict"]) for tool in tools] == [("probe", True), ("open", False)]
    assert tools[0]["parameters"]["required"] == ["a"]
    assert tools[0]["parameters"]["additionalProperties"] is False


def test_reasoning_and_unknown_items_are_sent_back_unchanged() -> None:
    items = [
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [],
            "encrypted_content": "x",
            "content": None,
            "status": None,
        },
        {"type": "brand_new", "payload": {"n": 1.0, "deep": [None, {"x": "ü"}]}},
        {
            "type": "function_call",
            "id": "fc",
            "call_id": "c1",
            "name": "probe",
            "arguments": "{}",
            "async": True,
            "phase": "commentary",
        },
    ]
    with ScriptedServer(
        Raw.json({"id": "r", "status": "completed", "output": items}), Say("done")
    ) as server:
        evaluate(connect(server), prompt(tool()))
        assert server.requests[1].json["input"][1:4] == items


@pytest.mark.parametrize("placed", [False, True])
def test_tools_in_conversation_option_places_later_tools(placed: bool) -> None:
    read = Call("read_section", {"section_key": "more"})
    with ScriptedServer(Say(calls=(read,)), Say(calls=(Call("late"),)), Say("done")) as server:
        evaluate(connect(server, tools_in_conversation=placed), layered())
        _, second, third = server.requests
    items = [item for item in history(second) if item.get("type") == "additional_tools"]
    names = [[tool["name"] for tool in item["tools"]] for item in items]
    assert names == ([["late"]] if placed else [])
    assert tool_names(second) == ["probe", "read_section", *([] if placed else ["late"])]
    assert outputs(third) == ["Content of section 'more':\n\n## 2. More\n\nThe rest.", "ok"]
    assert history(third)[: len(history(second))] == history(second)


# --- Options


@drivers
def test_compaction_and_caching_options_are_sent_and_items_sent_back(
    run: Run,
) -> None:
    options = {
        "context_management": [{"type": "compaction", "compact_threshold": 200_000}],
        "prompt_cache_key": "agent-1",
        "prompt_cache_retention": "24h",
    }
    compaction = {
        "type": "compaction",
        "id": "cmp_1",
        "encrypted_content": "opaque",
        "created_by": None,
    }
    called = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "probe",
        "arguments": "{}",
        "status": "completed",
    }
    reply = {"id": "r", "status": "completed", "output": [compaction, called]}
    with ScriptedServer(Raw.json(reply), Say("done")) as server:
        run(connect(server, options=options), prompt(tool()))
        first, second = server.requests
    for request in (first, second):
        assert {key: request.json[key] for key in options} == options
    assert second.json["input"][1:3] == [compaction, called]


def test_caching_options_are_sent_with_chat_requests() -> None:
    options = {"prompt_cache_key": "agent-1", "prompt_cache_retention": "24h"}
    with ScriptedServer(Say(calls=(Call("probe"),)), Say("done")) as server:
        evaluate(connect(server, api="chat", options=options), prompt(tool()))
        assert all(options.items() <= request.json.items() for request in server.requests)


@apis
def test_options_and_prompt_role_are_sent_with_every_request(api: Any) -> None:
    with ScriptedServer(Say(calls=(Call("probe"),)), Say("done")) as server:
        adapter = connect(
            server, api=api, prompt_role="developer", options={"temperature": 0, "seed": None}
        )
        evaluate(adapter, prompt(tool()))
        for request in server.requests:
            assert request.json["temperature"] == 0
            assert request.json["seed"] is None
            assert history(request)[0]["role"] == "developer"


@apis
def test_tools_in_options_are_sent_with_the_prompts_tools(api: Any) -> None:
    search = {"type": "web_search"}
    with ScriptedServer(Say(calls=(Call("probe"),)), Say("done"), Say("done")) as server:
        adapter = connect(server, api=api, options={"tools": [search]})
        assert evaluate(adapter, prompt(tool())).text == "done"
        evaluate(adapter, prompt())
        asked = [request.json["tools"] for request in server.requests]
    assert [[tool["type"] for tool in tools] for tools in asked] == [
        ["web_search", "function"]
    ] * 2 + [["web_search"]]


def test_text_option_is_merged_with_the_declared_output_format() -> None:
    with ScriptedServer(Say('{"text": "hi"}')) as server:
        adapter = connect(server, options={"text": {"verbosity": "low"}})
        evaluate(adapter, typed(Answer))
        text = server.requests[0].json["text"]
    assert (text["verbosity"], text["format"]["type"]) == ("low", "json_schema")


@apis
@pytest.mark.parametrize("key", ["input", "messages", "stream"])
def test_option_set_by_the_adapter_is_rejected(api: Any, key: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"options \['{key}'\] cannot be passed because the adapter sets them; remove them",
    ):
        OpenAIAdapter("m", api=api, options={"temperature": 0, key: []})


def test_unknown_prompt_role_is_rejected() -> None:
    wrong: Any = "assistant"
    with pytest.raises(
        ValueError, match="prompt_role must be 'user', 'system' or 'developer', got 'assistant'"
    ):
        OpenAIAdapter("m", prompt_role=wrong)


def test_unknown_api_is_rejected() -> None:
    wrong: Any = "completions"
    with pytest.raises(ValueError, match="must be 'responses' or 'chat', got"):
        OpenAIAdapter("m", api=wrong)


def test_unknown_structured_output_value_is_rejected() -> None:
    wrong: Any = "json"
    with pytest.raises(ValueError, match="must be 'native' or 'prompted', got"):
        OpenAIAdapter("m", structured_output=wrong)


def test_custom_clients_are_used_unchanged() -> None:
    with ScriptedServer(Say("sync"), Say("async")) as server:
        client = openai.OpenAI(base_url=server.openai_url, api_key="its-own", max_retries=0)
        async_client = openai.AsyncOpenAI(
            base_url=server.openai_url, api_key="its-own-too", max_retries=0
        )
        adapter = OpenAIAdapter("m", client=client, async_client=async_client)
        assert evaluate(adapter, prompt()).text == "sync"

        async def main() -> str:
            response = await adapter.evaluate_async(prompt(), session=Session())
            await async_client.close()
            return response.text

        assert asyncio.run(main()) == "async"
        client.close()
        keys = [request.header("authorization") for request in server.requests]
    assert keys == ["Bearer its-own", "Bearer its-own-too"]


def test_azure_client_can_use_a_token_instead_of_a_key() -> None:
    with ScriptedServer(Say("done")) as server:
        client = openai.AzureOpenAI(
            base_url=server.openai_url,
            azure_ad_token_provider=lambda: "t",
            api_version="v",
            max_retries=0,
        )
        assert evaluate(OpenAIAdapter("m", client=client), prompt()).text == "done"
        client.close()
        assert server.requests[0].header("authorization") == "Bearer t"


def test_api_key_and_base_url_default_to_environment_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer(Say("done")) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        assert evaluate(OpenAIAdapter("m"), prompt()).text == "done"
        assert server.requests[0].header("authorization") == "Bearer from-environment"


# --- Structured output


@dataclass(frozen=True)
class Answer:
    text: str
    score: int = 0


def typed(output: Any) -> Prompt[Any]:
    return prompt(output=output)


def schema_of(request: Request) -> Any:
    body = request.json
    return body["response_format"]["json_schema"] if "messages" in body else body["text"]["format"]


@apis
@drivers
def test_object_output_is_requested_strictly_and_parsed(api: Any, run: Run) -> None:
    with ScriptedServer(Say('{"text": "hi", "score": 3}')) as server:
        response = run(connect(server, api=api), typed(Answer))
        asked = schema_of(server.requests[0])
    assert response.output == Answer("hi", 3)
    assert (asked["name"], asked["strict"]) == ("Answer", True)
    assert asked["schema"]["required"] == ["text", "score"]


@apis
@pytest.mark.parametrize("mode", ["native", "prompted"])
@pytest.mark.parametrize("fence", ["{}", "```json\n{}\n```", "Sure:\n```\n{}\n```"])
def test_array_output_is_wrapped_in_an_object_in_both_modes(
    api: Any, mode: Any, fence: str
) -> None:
    body = json.dumps({"items": [{"text": "a", "score": 1}, {"text": "b", "score": 2}]})
    with ScriptedServer(Say(fence.replace("{}", body))) as server:
        response = evaluate(connect(server, api=api, structured_output=mode), typed(list[Answer]))
        request = server.requests[0]
    assert response.output == [Answer("a", 1), Answer("b", 2)]
    if mode == "native":
        assert list(schema_of(request)["schema"]["properties"]) == ["items"]
    else:
        assert "response_format" not in request.json
        assert "text" not in request.json
        assert '"items"' in history(request)[0]["content"]


LEFT_OUT = '{"text": "hi", "score": null}'


@apis
def test_null_for_an_omitted_default_is_parsed_as_the_default(api: Any) -> None:
    with ScriptedServer(
        Say(f"```json\n{LEFT_OUT}\n```"), Say(f'{{"items": [{LEFT_OUT}]}}')
    ) as server:
        assert evaluate(connect(server, api=api), typed(Answer)).output == Answer("hi", 0)
        assert evaluate(connect(server, api=api), typed(list[Answer])).output == [Answer("hi", 0)]


# --- Concurrent requests


def test_adapter_serves_two_event_loops_in_turn_and_closes_its_clients() -> None:
    with ScriptedServer(Say("one"), Say("two")) as server:
        adapter = connect(server)
        assert evaluate_async(adapter, prompt()).text == "one"
        assert list(adapter._async_clients) == []
        assert evaluate_async(adapter, prompt()).text == "two"


@apis
def test_adapter_serves_concurrent_conversations_in_one_event_loop(api: Any) -> None:
    def reply(request: Request) -> Say:
        items = history(request)
        if any(
            item.get("role") == "tool" or item.get("type") == "function_call_output"
            for item in items
        ):
            return Say(items[0]["content"])
        return Say(calls=(Call("probe"),))

    async def main(adapter: OpenAIAdapter) -> list[str]:
        responses = await asyncio.gather(
            *[
                adapter.evaluate_async(prompt(tool(), text=f"Number {n}."), session=Session())
                for n in range(8)
            ]
        )
        return [response.text for response in responses]

    with ScriptedServer(*[reply] * 16) as server:
        texts = asyncio.run(main(connect(server, api=api)))
    assert all(f"Number {n}." in text for n, text in enumerate(texts))


def test_adapter_serves_sixteen_threads() -> None:
    def reply(request: Request) -> Say:
        return Say(history(request)[0]["content"])

    with ScriptedServer(*[reply] * 64) as server, ThreadPoolExecutor(16) as pool:
        adapter = connect(server)
        texts = list(
            pool.map(lambda n: evaluate(adapter, prompt(text=f"Number {n}.")).text, range(64))
        )
    assert all(f"Number {n}." in text for n, text in enumerate(texts))


def test_async_handler_can_evaluate_nested_prompts() -> None:
    async def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        inner = prompt(text="Inner.")
        response = await context.adapter.evaluate_async(
            inner, session=context.session, bus=context.event_bus
        )
        return ToolResult(response.text)

    for run in (evaluate, evaluate_async):
        with ScriptedServer(Say(calls=(Call("probe"),)), Say("from inside"), Say("done")) as server:
            response = run(connect(server), prompt(tool(handler)))
            assert outputs(server.requests[2]) == ["from inside"]
        assert response.text == "done"


# --- Transport


def test_long_conversation_grows_by_the_same_size_each_turn() -> None:
    turns = 30
    script: Iterator[Say] = (
        Say(calls=(Call("probe", {"a": 1}, id=f"call_{n:03}"),)) for n in range(turns)
    )
    with ScriptedServer(*script, Say("done")) as server:
        evaluate(connect(server, config=RunConfig(max_turns=None)), prompt(tool()))
        sizes = [len(json.dumps(history(request))) for request in server.requests]
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps[9:]) == min(steps[9:]), "from id 10 on all have the same width"


def test_response_transcript_contains_tool_messages() -> None:
    with ScriptedServer(Say(calls=(Call("probe", id="mine"),)), Say("done")) as server:
        response = evaluate(connect(server), prompt(tool()))
    assert ToolMessage("mine", "ok") in response.transcript


# --- Without the SDK

BLOCKED = """
import sys
sys.modules["openai"] = None
from weakincentives.adapters.openai import OpenAIAdapter
try:
    OpenAIAdapter("m")
except ImportError as error:
    print(error)
"""
LAZY = """
import sys
from weakincentives.adapters.openai import OpenAIAdapter
OpenAIAdapter("m", api_key="k")
print("openai" in sys.modules)
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (BLOCKED, str(missing_extra("OpenAIAdapter", "the openai SDK", "openai"))),
        (LAZY, "False"),
    ],
    ids=["blocked", "lazy"],
)
def test_sdk_is_imported_on_first_use_and_a_missing_extra_is_named(
    program: str, printed: str
) -> None:
    source = str(Path(sys.modules["weakincentives"].__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.stdout.strip() == printed
