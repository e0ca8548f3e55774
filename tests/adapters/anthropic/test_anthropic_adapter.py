"""The adapter over the real SDK, against a server that checks the rules of the Messages API."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

import anthropic
import pytest
from pydantic import Field

from support.agents import Args, prompt, tool
from support.codecs import Talk
from support.messages_api import MessagesAPI, prompt_text
from support.scripted_server import Call, Raw, Request, Say, ScriptedServer, Usage
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.anthropic.adapter import _family_and_version, _tool_changes
from weakincentives.adapters.anthropic.codec import MessagesCodec, MessagesOptions
from weakincentives.adapters.core import PromptResponse
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall, ToolMessage
from weakincentives.evaluation.response import Completed, TextDelta
from weakincentives.limits import TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    SectionVisibility,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import ProviderCalled, ToolInvoked
from weakincentives.runtime.session import Session

KEY = "sk-ant-test-0123456789"
MODEL = "claude-opus-5-5"
IS_OLD = anthropic.__version__.startswith(("0.", "1."))

ways = pytest.mark.parametrize("way", ["inline", "deferred", "list"])


# Any: prompts with any output type, options of all types.
def connect(server: ScriptedServer, model: str = MODEL, **options: Any) -> AnthropicAdapter:
    arguments: dict[str, Any] = {
        "base_url": server.url,
        "api_key": KEY,
        "max_retries": 0,
        **options,
    }
    return AnthropicAdapter(model, **arguments)


def evaluate(
    adapter: AnthropicAdapter, asked: Prompt[Any], session: Session
) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=session)


def evaluate_async(
    adapter: AnthropicAdapter, asked: Prompt[Any], session: Session
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=session))


def stream(adapter: AnthropicAdapter, asked: Prompt[Any], session: Session) -> PromptResponse[Any]:
    *_, last = adapter.stream(asked, session=session)
    assert isinstance(last, Completed)
    return last.response


drivers = pytest.mark.parametrize("run", [evaluate, evaluate_async, stream])
type Run = Callable[..., PromptResponse[Any]]


def results(request: Request) -> list[Any]:
    return [
        block
        for message in request.json["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    ]


def layered(sections: int = 1, output: Any = None, tools: int = 1) -> Prompt[Any]:
    """A full section with a tool, and summarized ones with their own tools."""
    hidden = [
        MarkdownSection(
            title=f"More {number}",
            key=f"more{number}",
            template=f"The rest of {number}.",
            summary="There is more.",
            visibility=SectionVisibility.SUMMARY,
            tools=[tool(name=f"late{number}_{at}") for at in range(tools)],
        )
        for number in range(sections)
    ]
    shown = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool()])
    return Prompt(
        ns="tests", key="layers", sections=[shown, *hidden], structured_output=output, closable=True
    )


def read(number: int) -> Call:
    return Call("read_section", {"section_key": f"more{number}"})


def close(number: int) -> Call:
    return Call("close_section", {"section_key": f"more{number}"})


# --- A conversation


@drivers
def test_run_executes_tools_and_returns_the_answer(run: Run) -> None:
    session = Session()
    calls = (Call("probe", {"a": 1}), Call("probe", {"a": 2}))
    with ScriptedServer(
        Say(calls=calls, usage=Usage(20, 8, 5, 2, written=3, for_hour=1), reasoning="hm"),
        Say("Both done.", model="claude-opus-5-5-20261101"),
    ) as server:
        response = run(connect(server), prompt(tool()), session)
        first, second = server.requests
    assert (response.text, response.turns, response.output) == ("Both done.", 2, None)
    assert response.usage == TokenUsage(30, 13, 5, 3, reasoning_tokens=2, cache_write_1h_tokens=1)
    models = [event.model for event in session[ProviderCalled].all()]
    assert models == [MODEL, "claude-opus-5-5-20261101"]
    assert first.path == "/v1/messages"
    assert first.header("x-api-key" if IS_OLD else "authorization") == (
        KEY if IS_OLD else f"Bearer {KEY}"
    )
    assert first.header("anthropic-beta") is None
    assert [block["content"] for block in results(second)] == ["ok", "ok"]
    assert [event.params for event in session[ToolInvoked].all()] == [Args(1), Args(2)]


def test_stream_yields_text_chunks_and_the_same_response() -> None:
    script = (
        Say("Let me see.", (Call("probe", {"a": 1}, "toolu_1"),), reasoning="hm"),
        Say("Done."),
    )

    def streamed(adapter: AnthropicAdapter) -> list[Any]:
        return [*adapter.stream(prompt(tool()), session=Session())]

    async def streamed_async(adapter: AnthropicAdapter) -> list[Any]:
        return [event async for event in adapter.stream_async(prompt(tool()), session=Session())]

    with ScriptedServer(*script * 3) as server:
        adapter = connect(server)
        whole = evaluate(adapter, prompt(tool()), Session())
        runs = streamed(adapter), asyncio.run(streamed_async(adapter))
        bodies = [request.json for request in server.requests]
    for events in runs:
        pieces = [event.text for event in events if isinstance(event, TextDelta)]
        assert len(pieces) > 2
        assert "".join(pieces) == "Let me see.Done."
        assert events[-1].response == whole
    assert bodies[2] == {**bodies[0], "stream": True}
    assert bodies[3] == {**bodies[1], "stream": True}


def test_every_block_type_is_sent_back_unchanged() -> None:
    blocks = [
        {"type": "thinking", "thinking": "", "signature": "s1"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I see."},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "probe",
            "input": {"a": 1},
            "caller": {"n": 1.0},
        },
        {"type": "thinking", "thinking": "Between.", "signature": "s2"},
        {"type": "brand_new", "payload": {"n": 1.0, "deep": [None, {"x": "ü"}]}},
        {"type": "tool_use", "id": "toolu_2", "name": "probe", "input": {}},
    ]
    reply = {"type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"}
    with ScriptedServer(Raw.json({**reply, "content": blocks}), Say("done")) as server:
        evaluate(connect(server, cache=None), prompt(tool()), Session())
        sent = server.requests[1].json["messages"]
    assert sent[1] == {"role": "assistant", "content": blocks}
    assert [block["tool_use_id"] for block in sent[2]["content"]] == ["toolu_1", "toolu_2"]


def test_empty_answers_are_sent_back_as_placeholder_text() -> None:
    @dataclass(frozen=True)
    class Answer:
        text: str

    reply = {"type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    empty, blank = {**reply, "content": []}, {**reply, "content": [{"type": "text", "text": ""}]}
    with ScriptedServer(Raw.json(empty), Raw.json(blank), Say('{"text": "x"}')) as server:
        response = evaluate(connect(server), prompt(output=Answer), Session())
        sent = server.requests[2].json["messages"]
    assert response.output == Answer("x")
    assert [message["role"] for message in sent] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert [message["content"] for message in sent if message["role"] == "assistant"] == [
        [{"type": "text", "text": "(no text)"}]
    ] * 2


@drivers
@pytest.mark.parametrize("arguments", ['{"a": 1', "[]", "5"])
def test_non_object_arguments_fail_and_are_sent_back_wrapped_in_an_object(
    run: Run, arguments: str
) -> None:
    calls = (Call("probe", arguments, "toolu_1"), Call("probe", {"a": 1}, "toolu_2"))
    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        run(connect(server), prompt(tool()), Session())
        sent = server.requests[1].json["messages"]
    [wrapped] = sent[1]["content"][0]["input"].items()
    assert wrapped[0] == "INVALID_JSON"
    failed, answered = sent[2]["content"]
    assert (failed["is_error"], failed["content"] != "") == (True, True)
    assert (answered.get("is_error"), answered["content"]) == (None, "ok")


@drivers
@pytest.mark.parametrize("number", ["1e999", "NaN"])
def test_non_finite_number_arguments_fail_and_are_sent_back_as_strings(
    run: Run, number: str
) -> None:
    with ScriptedServer(Say(calls=(Call("probe", f'{{"a": {number}}}'),)), Say("done")) as server:
        run(connect(server), prompt(tool()), Session())
        sent = server.requests[1].json["messages"]
    assert isinstance(sent[1]["content"][0]["input"]["a"], str)
    assert sent[2]["content"][0]["is_error"]


def test_empty_tool_result_is_sent_as_placeholder_text() -> None:
    def silent(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult("")

    with ScriptedServer(Say(calls=(Call("probe"),)), Say("done")) as server:
        evaluate(connect(server), prompt(tool(silent)), Session())
        [result] = results(server.requests[1])
    assert result["content"] == "(no output)"


# --- Tools that come and go


def played(
    way: str, *steps: Say, sections: int = 1, tools: int = 1, **options: Any
) -> tuple[list[Any], MessagesAPI, PromptResponse[Any]]:
    """Returns the bodies of all requests, the API that got them, and the response."""
    api = MessagesAPI(growing_tools=way == "list", counts=True)
    with ScriptedServer(*map(api.play, steps)) as server:
        adapter = connect(server, tool_changes=way, **options)
        response = MainLoop(adapter).execute(layered(sections, tools=tools), session=Session())
        return [request.json for request in server.requests], api, response.response


OPEN_AND_CLOSE = (
    Say(calls=(read(0),)),
    Say(calls=(Call("late0_0"), close(0))),
    Say(calls=(Call("late0_0"),)),
    Say(calls=(read(0), read(1))),
    Say(calls=(Call("late0_0"), Call("late1_0"))),
    Say("done"),
)


def test_inline_tools_are_added_and_removed_by_conversation_blocks() -> None:
    bodies, _, response = played("inline", *OPEN_AND_CLOSE, sections=2)
    assert response.text == "done"
    assert all(body["tools"] == bodies[0]["tools"] for body in bodies)
    changes = [
        [(block["type"], str(block["tool"])) for block in message["content"]]
        for message in bodies[-1]["messages"]
        if message["role"] == "system"
    ]
    kinds = [[kind for kind, _ in blocks] for blocks in changes]
    assert kinds == [["tool_addition"], ["tool_removal"], ["tool_addition", "tool_addition"]]
    assert changes[0][0] == changes[2][0], "the same definition again"
    texts = [message.content for message in response.transcript if isinstance(message, ToolMessage)]
    assert texts[3] == "Tool 'late0_0' is closed; call read_section with key 'more0' first."


def test_deferred_tools_are_declared_upfront_and_loaded_by_reference() -> None:
    bodies, _, response = played("deferred", *OPEN_AND_CLOSE, sections=2)
    assert response.text == "done"
    assert all(body["tools"] == bodies[0]["tools"] for body in bodies)
    assert [(tool["name"], tool.get("defer_loading")) for tool in bodies[0]["tools"]] == [
        ("probe", None),
        ("read_section", None),
        ("close_section", None),
        ("late0_0", True),
        ("late1_0", True),
    ]
    opened = bodies[1]["messages"][2]["content"]
    assert opened[0]["content"] == [{"type": "tool_reference", "tool_name": "late0_0"}]
    assert opened[1]["text"].startswith("Content of section 'more0':")
    again = bodies[4]["messages"][-1]["content"]
    # a tool that is already loaded is not loaded again
    assert [block.get("content", "")[0] for block in again if block["type"] == "tool_result"] == [
        "C",
        {"type": "tool_reference", "tool_name": "late1_0"},
    ]


def test_tools_list_grows_and_shrinks_only_at_its_end() -> None:
    bodies, _, _ = played("list", *OPEN_AND_CLOSE, sections=2)
    names = [[tool["name"] for tool in body["tools"][3:]] for body in bodies]
    assert names == [[], ["late0_0"], [], [], ["late0_0", "late1_0"], ["late0_0", "late1_0"]]


def test_beta_header_is_sent_only_if_the_prompts_tools_can_change() -> None:
    with ScriptedServer(*[Say("x")] * 4) as server:
        adapter = connect(server, options={"betas": ["mine-2026"]})
        evaluate(adapter, layered(), Session())
        evaluate(adapter, prompt(tool()), Session())
        evaluate(connect(server), layered(), Session())
        evaluate(connect(server, tool_changes="deferred"), layered(), Session())
        headers = [request.header("anthropic-beta") for request in server.requests]
        assert all("betas" not in request.json for request in server.requests)
    inline = "inline-tools-2026-09-15"
    assert headers == [f"mine-2026,{inline}", "mine-2026", inline, None]


# --- The cache


@ways
@pytest.mark.parametrize("calls", [1, 9, 20, 45])
def test_each_request_reads_the_cache_written_by_the_previous_one(way: str, calls: int) -> None:
    turns = [Say("Now.", tuple([Call("probe", {"a": n}) for n in range(calls)]))] * 3
    opening = [Say(calls=(read(0),)), Say(calls=(Call("late0_0"),))] if way != "list" else []
    bodies, api, response = played(way, *turns, *opening, *turns, Say("done"))
    assert len(api.uses) == len(bodies) > 6
    for before, after in pairwise(api.uses):
        assert after.read == before.stored == before.total
    assert response.usage.cached_tokens == sum(use.read for use in api.uses)
    assert response.usage.cached_tokens > 0.5 * response.usage.input_tokens
    assert response.usage.cache_write_tokens == api.uses[-1].total
    assert api.uses[0].read == 0


def test_second_conversation_reads_the_cached_tools_of_the_first() -> None:
    api = MessagesAPI(counts=True)
    with ScriptedServer(*[api.play(Say("x"))] * 2) as server:
        adapter = connect(server)
        for text in ("One.", "Two."):
            adapter.evaluate(prompt(tool(), text=text), session=Session())
        [definition] = server.requests[0].json["tools"]
    del definition["cache_control"]
    assert [use.read for use in api.uses] == [0, len(json.dumps(definition))]


def test_cache_option_sets_the_ttl_or_disables_caching() -> None:
    bodies, api, _ = played("inline", Say(calls=(Call("probe"),)), Say("x"), cache="1h")
    marks = [
        block["cache_control"]
        for block in (bodies[0]["tools"][2], bodies[0]["messages"][0]["content"][0])
    ]
    assert marks == [{"type": "ephemeral", "ttl": "1h"}] * 2
    bodies, _, _ = played("inline", Say("x"))
    assert bodies[0]["tools"][2]["cache_control"] == {"type": "ephemeral"}
    bodies, api, response = played("inline", Say(calls=(Call("probe"),)), Say("x"), cache=None)
    assert "cache_control" not in json.dumps(bodies)
    assert [use.stored for use in api.uses] == [0, 0]
    assert response.usage.cached_tokens == 0


@ways
def test_opening_sections_processes_only_new_tokens_unless_tools_are_listed(way: str) -> None:
    steps = (Say(calls=(read(0),)), Say(calls=(read(1),)), Say(calls=(Call("late1_0"),)), Say("x"))
    bodies, api, _ = played(way, *steps, sections=3)
    fresh = sum(use.total - use.read for use in api.uses)
    if way == "list":
        assert fresh > api.uses[-1].total
    else:
        assert fresh == api.uses[-1].total == len(prompt_text(bodies[-1]))


# --- Schemas


@dataclass(frozen=True)
class Place:
    name: Annotated[str, Field(pattern="^[A-Z]")]
    floor: Annotated[int, Field(ge=0, le=30)] = 0


@dataclass(frozen=True)
class Query:
    where: Annotated[Place, Field(description="Where to look.")]
    kinds: list[Literal["a", "b"]] = field(default_factory=list[Literal["a", "b"]])
    limit: int | None = None


@dataclass(frozen=True)
class Chain:
    name: str
    rest: "Chain | None" = None


@dataclass(frozen=True)
class Open:
    values: dict[str, int]


def sent_tools(*tools: Any, **options: Any) -> list[Any]:
    api = MessagesAPI()
    with ScriptedServer(api.play(Say("x"))) as server:
        evaluate(connect(server, cache=None, **options), prompt(*tools), Session())
        definitions: list[Any] = server.requests[0].json["tools"]
    return definitions


def test_strict_schema_keeps_optional_fields_and_describes_bounds() -> None:
    [definition] = sent_tools(tool(params=Query))
    schema = definition["input_schema"]
    assert definition["strict"] is True
    assert schema["required"] == ["where"]
    place = schema["properties"]["where"]
    assert (place["type"], place["description"]) == ("object", "Where to look.")
    assert place["properties"]["name"] == {"type": "string", "pattern": "^[A-Z]"}
    assert place["properties"]["floor"] == {
        "type": "integer",
        "description": "default: 0; maximum: 30; minimum: 0",
    }
    assert place["required"] == ["name"]


def test_recursive_and_open_schemas_are_sent_without_strict() -> None:
    definitions = sent_tools(tool(params=Chain), tool(name="open", params=Open))
    assert ["strict" in definition for definition in definitions] == [False, False]
    assert "$ref" in json.dumps(definitions[0])


def test_strict_tools_stop_at_the_limits_of_a_request() -> None:
    many = [tool(name=f"tool_{number}") for number in range(25)]
    assert ["strict" in definition for definition in sent_tools(*many)].count(True) == 20

    @dataclass(frozen=True)
    class Optional:
        a: int | None = None
        b: str | None = None
        c: int = 3

    many = [tool(name=f"tool_{number}", params=Optional) for number in range(12)]
    strict = ["strict" in definition for definition in sent_tools(*many)]
    assert strict == [True] * 8 + [False] * 4
    assert not any("strict" in definition for definition in sent_tools(*many, strict_tools=False))


def test_tools_added_later_share_the_strict_tool_limit() -> None:
    for way in ("inline", "deferred"):
        bodies, _, _ = played(way, Say(calls=(read(0),)), Say(calls=(read(0),)), Say("x"), tools=25)
        strict = json.dumps(bodies[-1]).count('"strict": true')
        assert strict == 20


@drivers
def test_typed_output_is_requested_with_output_config(run: Run) -> None:
    api = MessagesAPI()
    with ScriptedServer(api.play(Say('{"where": {"name": "X"}}'))) as server:
        response = run(
            connect(server, options={"output_config": {"effort": "low"}}),
            prompt(output=Query),
            Session(),
        )
        config = server.requests[0].json["output_config"]
    assert response.output == Query(Place("X"))
    assert (config["effort"], config["format"]["type"]) == ("low", "json_schema")
    assert config["format"]["schema"]["required"] == ["where"]


@pytest.mark.parametrize(
    ("output", "model", "options"),
    [
        (Chain, MODEL, {}),
        (Open, MODEL, {}),
        (Place, "claude-opus-4-1", {}),
        (Place, "some-model", {}),
        (Place, MODEL, {"structured_output": "prompted"}),
    ],
)
def test_typed_output_is_requested_in_the_prompt_if_the_api_lacks_support(
    output: Any, model: str, options: Any
) -> None:
    config = RunConfig(max_repairs=0)
    with (
        ScriptedServer(Say("nothing")) as server,
        pytest.raises(PromptEvaluationError, match="the answer is not the declared output"),
    ):
        evaluate(connect(server, model, config=config, **options), prompt(output=output), Session())
    body = server.requests[0].json
    assert "output_config" not in body
    assert "fits this JSON schema" in body["messages"][0]["content"][0]["text"]


# --- Models and clients


@pytest.mark.parametrize(
    ("model", "own", "elsewhere"),
    [
        ("claude-3-5-sonnet-20241022", "list", "list"),
        ("claude-sonnet-4-20250514", "list", "list"),
        ("claude-opus-4-1-20250805", "list", "list"),
        ("claude-sonnet-4-5-20250929", "deferred", "deferred"),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "deferred", "deferred"),
        ("claude-opus-4-7", "deferred", "deferred"),
        ("claude-opus-4-8", "inline", "deferred"),
        ("claude-opus-5@20260601", "inline", "deferred"),
        ("claude-sonnet-5", "deferred", "deferred"),
        ("claude-sonnet-5-5", "inline", "deferred"),
        ("claude-haiku-5-5", "inline", "deferred"),
        ("claude-fable-5-2", "inline", "deferred"),
        ("claude-nova-6", "inline", "deferred"),
        ("glm-5", "list", "list"),
    ],
)
def test_tool_changes_default_depends_on_model_and_platform(
    model: str, own: str, elsewhere: str
) -> None:
    family, version = _family_and_version(model)
    assert _tool_changes(family, version, is_own_api=True) == own
    assert _tool_changes(family, version, is_own_api=False) == elsewhere


def test_unknown_tool_changes_value_is_rejected() -> None:
    wrong: Any = "append"
    with pytest.raises(ValueError, match="must be 'inline', 'deferred' or 'list', got"):
        AnthropicAdapter(MODEL, tool_changes=wrong)


@pytest.mark.parametrize("key", ["messages", "stream"])
def test_option_set_by_the_adapter_is_rejected(key: str) -> None:
    with pytest.raises(ValueError, match="cannot be passed because the adapter sets them"):
        AnthropicAdapter(MODEL, options={key: []})


def test_options_and_max_tokens_are_sent_with_every_request() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    with ScriptedServer(Say(calls=(Call("probe"),)), Say("x")) as server:
        adapter = connect(
            server, max_tokens=9, options={"thinking": {"type": "adaptive"}, "tools": [search]}
        )
        evaluate(adapter, prompt(tool()), Session())
        for request in server.requests:
            assert request.json["max_tokens"] == 9
            assert request.json["thinking"] == {"type": "adaptive"}
            assert [tool["name"] for tool in request.json["tools"]] == ["web_search", "probe"]


@pytest.mark.parametrize("run", [evaluate, stream])
def test_compaction_options_are_sent_and_compaction_blocks_sent_back(run: Run) -> None:
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 150_000}}
    options = {"betas": ["compact-2026-01-12"], "context_management": {"edits": [edit]}}
    summary = {"type": "compaction", "content": "What was said.", "encrypted_content": "opaque"}
    called = {"type": "tool_use", "id": "toolu_1", "name": "probe", "input": {}}
    whole = {"type": "message", "content": [summary, called], "stop_reason": "tool_use"}
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": {"type": "message", "content": [], "usage": {}}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "compaction", "content": None},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {
                "type": "compaction_delta",
                "content": "What was said.",
                "encrypted_content": "opaque",
            },
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": called},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
        {"type": "message_stop"},
    ]
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    streamed = Raw("".join(lines).encode(), "text/event-stream")
    reply = streamed if run is stream else Raw.json(whole)
    with ScriptedServer(reply, Say("done")) as server:
        run(connect(server, options=options), prompt(tool()), Session())
        first, second = server.requests
    for request in (first, second):
        assert request.header("anthropic-beta") == "compact-2026-01-12"
        assert request.json["context_management"] == {"edits": [edit]}
    assert second.json["messages"][1]["content"] == [summary, called]


def test_custom_clients_are_used_unchanged() -> None:
    with ScriptedServer(Say("sync"), Say("async")) as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="its-own-key", max_retries=0)
        async_client = anthropic.AsyncAnthropic(
            base_url=server.url,
            auth_token="its-own-token",  # noqa: S106 - not a real one
            max_retries=0,
        )
        adapter = AnthropicAdapter(MODEL, client=client, async_client=async_client)
        assert evaluate(adapter, prompt(), Session()).text == "sync"

        async def main() -> str:
            response = await adapter.evaluate_async(prompt(), session=Session())
            await async_client.close()
            return response.text

        assert asyncio.run(main()) == "async"
        client.close()
        first, second = server.requests
    assert "its-own-key" in (first.header("authorization") or first.header("x-api-key") or "")
    assert second.header("authorization") == "Bearer its-own-token"


def test_api_key_and_base_url_default_to_environment_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer(Say("done")) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "from-environment")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        assert evaluate(AnthropicAdapter(MODEL), prompt(), Session()).text == "done"
        headers = dict(server.requests[0].headers)
    assert "from-environment" in headers.get("X-Api-Key", headers.get("Authorization", ""))


def test_conversation_of_another_provider_is_encoded_as_blocks() -> None:
    options = MessagesOptions(
        model="m", max_tokens=9, tool_changes="list", strict_tools=True, cache=None
    )
    talk = Talk(MessagesCodec(options, "anthropic"), "Go.")
    calls = (ToolCall("call_1", "probe", '{"a": 1}'), ToolCall("call_2", "probe", "{"))
    talk.say(
        AssistantMessage(text="See.", tool_calls=calls),
        ToolMessage("call_1", "ok"),
        ToolMessage("call_2", "no", success=False),
    )
    assert [message["content"] for message in talk.request()["messages"][1:]] == [
        [
            {"type": "text", "text": "See."},
            {"type": "tool_use", "id": "c00000001", "name": "probe", "input": {"a": 1}},
            {
                "type": "tool_use",
                "id": "c00000002",
                "name": "probe",
                "input": {"INVALID_JSON": "{"},
            },
        ],
        [
            {"type": "tool_result", "tool_use_id": "c00000001", "content": "ok"},
            {
                "type": "tool_result",
                "tool_use_id": "c00000002",
                "content": "no",
                "is_error": True,
            },
        ],
    ]
