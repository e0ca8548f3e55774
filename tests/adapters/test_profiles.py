"""Each ready profile works with a server that rejects the same requests as the real one."""

import json
import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from support.agents import prompt, tool
from support.compatible_servers import RULES, Rules
from support.provider_formats import provider_format
from support.script import Call, Fail, Raw, Request, Say, Step
from support.scripted_server import ScriptedServer
from weakincentives.adapters import profiles
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.server_profile import ServerProfile
from weakincentives.adapters.think_tags import ThoughtFilter, split_thoughts
from weakincentives.content import Image
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall, ToolMessage
from weakincentives.evaluation.response import Completed, TextDelta
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session

READY: Mapping[str, ServerProfile] = {name: getattr(profiles, name) for name in profiles.__all__}
LOCAL = ("LLAMA_CPP", "LM_STUDIO", "OLLAMA", "VLLM")
PAGE = Path(__file__).parents[2] / "docs/how-to/adapters.md"


@dataclass(frozen=True)
class City:
    city: str = "Oslo"


@dataclass(frozen=True)
class Labels:
    labels: dict[str, str]


@dataclass(frozen=True)
class Answer:
    city: str


def weather(params: City, *, context: ToolContext) -> ToolResult[object]:
    """Tells the weather."""
    return ToolResult(f"Sunny in {params.city}.")


def label(params: Labels, *, context: ToolContext) -> ToolResult[object]:
    """Labels a city; its schema cannot be strict."""
    return ToolResult("Done.")


# Any: outputs of both types
def template(output: Any) -> PromptTemplate[Any]:
    section = MarkdownSection(
        title="Task",
        template="Help.",
        tools=[Tool(name="weather", handler=weather), Tool(name="label", handler=label)],
    )
    return PromptTemplate[output](ns="tests", key="profiles", sections=[section])


def say(request: Request, rules: Rules, text: str = "", *calls: Call) -> Step:
    """Answers as the server does, with reasoning; a request that it rejects gets status 400."""
    try:
        rules.check(request.json)
    except AssertionError as error:
        return Fail(400, f"{error}", "invalid_request_error")
    form = provider_format(request.path)
    assert form is not None
    if "/responses" in request.path:
        return Say(text, calls=calls, reasoning="Hm.")
    if rules.tags:
        text = f"<think>\nHm.\n</think>\n\n{text}"
    made: list[dict[str, Any]] = [
        {
            "id": call.id or f"call_{index}_of_a_length",
            "type": "function",
            "function": {"name": call.name, "arguments": call.text},
        }
        for index, call in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text, rules.field: "Hm."}
    message |= {"tool_calls": made} if made else {}
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop"}
    reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    if not request.json.get("stream"):
        return Raw.json({**reply, "choices": [{**choice, "message": message}]})
    for index, call in enumerate(made):
        call["index"] = index
    pieces = re.findall(r"(?s).{1,5}", text)
    deltas = [message | {"content": ""}, *({"content": piece} for piece in pieces)]
    chunks: list[Any] = [
        {**reply, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks.append({**reply, "choices": [{**choice, "delta": {}}]})
    body = form.encode([(None, chunk) for chunk in chunks]) + form.end_of_stream
    return Raw(body, content_type=form.stream_type)


CALLS = (Call("weather", {"city": "Rome"}), Call("label", {"labels": {"a": "b"}}))
# arguments that no schema allows, in a call of a tool that does not exist
FAULT = (Call("functions.nothing<|x|>", '{"city": "He said "hi""}', id="a:0"),)


def answers(rules: Rules, text: str, *calls: Call) -> list[Callable[[Request], Step]]:
    """Two turns: one with calls, one without."""
    return [
        lambda request: say(request, rules, "I look.", *calls),
        lambda request: say(request, rules, text),
    ]


# Any: prompts with any output type
def evaluate(adapter: OpenAIAdapter, asked: Any) -> Any:
    return adapter.evaluate(asked, session=Session())


def connect(server: ScriptedServer, name: str, **options: Any) -> OpenAIAdapter:
    return OpenAIAdapter(
        "m",
        profile=READY[name],
        base_url=server.openai_url,
        api_key="sk-test",
        max_retries=0,
        options={"max_tokens": 100, "parallel_tool_calls": True} if name != "AZURE" else {},
        instructions_role="developer",
        **options,
    )


@pytest.mark.parametrize("name", READY)
def test_profile_server_accepts_tools_streams_output_and_faulty_chats(
    name: str,
) -> None:
    rules = RULES[name]
    typed = '{"city": "Rome"}'
    steps = [
        *answers(rules, "Sunny.", *CALLS),
        *answers(rules, "Sunny.", *CALLS),
        *answers(rules, typed, *CALLS),
        *answers(rules, typed, *CALLS),
        *answers(rules, "Sorry.", *FAULT),
        *answers(rules, "Better.", *CALLS),
    ]
    with ScriptedServer(*steps) as server:
        adapter = connect(server, name)
        plain, answer = template(str).bind(), template(Answer).bind()
        assert adapter.evaluate(plain, session=Session()).text == "Sunny."
        events = [*adapter.stream(plain, session=Session())]
        shown = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert shown == "I look.Sunny."
        assert adapter.evaluate(answer, session=Session()).output == Answer("Rome")
        last = [*adapter.stream(answer, session=Session())][-1]
        assert isinstance(last, Completed)
        assert last.response.output == Answer("Rome")
        chat = Chat(MainLoop(adapter), template(str).bind(), session=Session())
        assert chat.send("First.").text == "Sorry."
        assert chat.send("Second.").text == "Better."
        tools = (
            [each["function"]["name"] for each in server.requests[0].json["tools"]]
            if ("messages" in server.requests[0].json)
            else []
        )
        assert tools in ([], ["weather", "label"])


@pytest.mark.parametrize("name", READY)
def test_conversation_of_another_provider_continues_with_the_profile(name: str) -> None:
    """Its calls have other ids, and no reasoning."""
    rules = RULES[name]
    with ScriptedServer(
        Say(calls=(Call("weather", {"city": "Rome"}, id="toolu_01:x"),)),
        Say("Sunny."),
        *answers(rules, "Still sunny.", *CALLS),
    ) as server:
        first = OpenAIAdapter("m", base_url=server.openai_url, api_key="sk-test", max_retries=0)
        asked, session = template(str).bind(), Session()
        said = first.evaluate(asked, session=session, message="Rome?")
        again = connect(server, name).evaluate(
            asked, session=session, message="And now?", conversation=said.conversation
        )
        assert again.text == "Still sunny."


# --- Connection


@contextmanager
def environment(**variables: str) -> Generator[None]:
    """Sets only these variables among those that a profile or the SDK reads."""
    names = {"OPENAI_BASE_URL", "OPENAI_API_KEY"}
    for profile in READY.values():
        names |= {profile.base_url_variable, profile.key_variable}
    kept = dict(os.environ)
    try:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def connection(profile: ServerProfile, **arguments: Any) -> tuple[str, str]:
    """Returns the base URL and the key of the adapter's client."""
    client = OpenAIAdapter("m", profile=profile, **arguments).client()
    return str(client.base_url).rstrip("/"), str(client.api_key)


@pytest.mark.parametrize("name", [name for name in READY if READY[name].base_url])
def test_profile_sets_the_base_url_and_reads_its_own_key_variable(name: str) -> None:
    profile = READY[name]
    variables = {profile.key_variable: "sk-own"} if profile.key_variable else {}
    with environment(OPENAI_API_KEY="sk-openai", OPENAI_BASE_URL="http://elsewhere", **variables):
        assert connection(profile) == (profile.base_url, "sk-own" if variables else "unused")


@pytest.mark.parametrize("name", READY)
def test_profile_key_is_not_sent_to_another_server(name: str) -> None:
    profile, other = READY[name], "http://127.0.0.1:9/v1"
    variables = {profile.key_variable: "sk-own"} if profile.key_variable else {}
    with environment(OPENAI_API_KEY="sk-openai", **variables):
        if name in LOCAL:
            assert connection(profile, base_url=other) == (other, "unused")
        else:
            with pytest.raises(ValueError, match=f"api_key is missing; pass api_key= for {other}"):
                OpenAIAdapter("m", profile=profile, base_url=other)
        assert connection(profile, base_url=other, api_key="sk-mine") == (other, "sk-mine")


def test_missing_key_or_base_url_error_names_the_variable() -> None:
    with environment(OPENAI_API_KEY="sk-openai"):
        with pytest.raises(ValueError, match="api_key is missing; pass api_key= or set GROQ_API_K"):
            OpenAIAdapter("m", profile=profiles.GROQ)
        with pytest.raises(ValueError, match="base_url= or set AZURE_OPENAI_ENDPOINT"):
            OpenAIAdapter("m", profile=profiles.AZURE, api_key="sk-test")


@pytest.mark.parametrize(
    ("profile", "value", "url"),
    [
        (profiles.OLLAMA, "127.0.0.1", "http://127.0.0.1:11434/v1"),
        (profiles.OLLAMA, "0.0.0.0:5000", "http://127.0.0.1:5000/v1"),
        (profiles.OLLAMA, "http://gpu:11434/", "http://gpu:11434/v1"),
        (profiles.OLLAMA, "https://gpu/ollama/v1", "https://gpu/ollama/v1"),
        (profiles.AZURE, "https://a.openai.azure.com", "https://a.openai.azure.com/openai/v1"),
        (profiles.AZURE, "https://a.openai.azure.com/openai/v1/", None),
        (profiles.DATABRICKS, "dbc.cloud.databricks.com", None),
    ],
)
def test_base_url_variable_can_omit_scheme_port_and_path(
    profile: ServerProfile, value: str, url: str | None
) -> None:
    expected = (
        url
        or {
            profiles.AZURE: "https://a.openai.azure.com/openai/v1",
            profiles.DATABRICKS: "https://dbc.cloud.databricks.com/serving-endpoints",
        }[profile]
    )
    variables = {profile.base_url_variable: value}
    if profile.key_variable:
        variables[profile.key_variable] = "sk-own"
    with environment(**variables):
        key = "sk-own" if profile.key_variable else "unused"
        assert connection(profile) == (expected, key)


def test_ollama_needs_only_its_profile() -> None:
    """The variable with its host may omit the scheme and the path."""
    rules = RULES["OLLAMA"]
    with ScriptedServer(*answers(rules, "Sunny.", Call("weather", {"city": "Rome"}))) as server:
        with environment(OLLAMA_HOST=server.url.removeprefix("http://"), OPENAI_API_KEY="sk-open"):
            adapter = OpenAIAdapter("qwen3", profile=profiles.OLLAMA)
            assert evaluate(adapter, template(str).bind()).text == "Sunny."
        assert [request.path for request in server.requests] == ["/v1/chat/completions"] * 2
        assert server.requests[0].header("authorization") == "Bearer unused"


def test_profile_without_a_server_reads_the_variables_of_the_sdk() -> None:
    variables = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "sk-openai"}
    with environment(**variables):
        assert connection(ServerProfile()) == ("http://127.0.0.1:9/v1", "sk-openai")
        assert connection(ServerProfile(needs_key=False))[1] == "unused"


# --- Options and tags


@pytest.mark.parametrize(
    ("option", "sent"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": None}, None),
        ({"stream_options": {}}, {}),
        ({"stream_options": {"include_usage": False}}, {"include_usage": False}),
    ],
)
def test_options_replace_the_stream_options_of_the_adapter(option: Any, sent: object) -> None:
    with ScriptedServer(Say("Hi."), Say("Hi.")) as server:
        adapter = OpenAIAdapter(
            "m", api="chat", base_url=server.openai_url, api_key="sk-test", options=option
        )
        list(adapter.stream(prompt(), session=Session()))
        evaluate(adapter, prompt())
        streamed, whole = [request.json for request in server.requests]
    assert streamed.get("stream_options") == sent
    assert "stream_options" not in whole


def test_option_set_to_none_omits_the_adapters_field() -> None:
    with ScriptedServer(Say("Hi.")) as server:
        adapter = OpenAIAdapter(
            "m", api="chat", base_url=server.openai_url, api_key="k", options={"tools": None}
        )
        evaluate(adapter, prompt(tool()))
        assert "tools" not in server.requests[0].json


def test_non_strict_tool_makes_all_tools_non_strict_unless_strict_is_each() -> None:
    def sent(profile: ServerProfile) -> list[object]:
        steps = [Say(calls=(Call("probe", {"a": "1"}),)), Say("Done.")]
        with ScriptedServer(*steps) as server:
            adapter = OpenAIAdapter(
                "m", api="chat", base_url=server.openai_url, api_key="k", profile=profile
            )
            evaluate(adapter, prompt(tool(), tool(name="open", params=Labels)))
            bodies = [request.json["tools"] for request in server.requests]
        assert bodies[0] == bodies[1]
        return [each["function"].get("strict") for each in bodies[0]]

    assert sent(ServerProfile(strict="each")) == [True, False]
    assert sent(ServerProfile()) == [None, None]
    assert sent(ServerProfile(strict="never")) == [None, None]


def test_media_in_results_profile_sends_media_in_the_tool_result() -> None:
    image = Image.from_url("https://example.com/a.png", "image/png")
    codec = OpenAIAdapter(
        "m", api="chat", api_key="k", profile=ServerProfile(media_in_results=True)
    ).codec(prompt().render())
    call = ToolCall("c00000001", "probe", "{}")
    codec.encode_assistant(AssistantMessage(tool_calls=(call,)))
    item = codec.encode_answer(ToolMessage("c00000001", "Here.", media=(image,)))
    assert [part["type"] for part in item["content"]] == ["text", "image_url"]


THOUGHTS = {
    "<think>Hm.</think>Yes.": "Yes.",
    "\n<Think>\nHm.\n</THINK>\n\nYes.": "Yes.",
    "<thinking>Hm.</thinking> Yes.": "Yes.",
    "<think>Hm.": "",
    "<think></think>\n": "",
    "Yes.": "Yes.",
    "  Yes.": "  Yes.",
    "<thi": "<thi",
    "<table>": "<table>",
    "Use <think> and </think>.": "Use <think> and </think>.",
    "<think>a</think> b <think>c</think>": "b <think>c</think>",
}


@pytest.mark.parametrize("text", THOUGHTS)
def test_leading_thoughts_are_separated_for_every_chunk_size(text: str) -> None:
    thought, rest = split_thoughts(text)
    assert rest == THOUGHTS[text]
    for size in (1, 2, 3, 7, 100):
        feed = ThoughtFilter().feed
        pairs = [feed(text[at : at + size]) for at in range(0, len(text), size)]
        thoughts, shown = ["".join(parts) for parts in zip(*pairs, strict=True)]
        # text that could still become a tag is only shown with the complete answer
        assert shown == THOUGHTS[text] or (shown == "" and text == "<thi")
        assert thought.startswith(thoughts)
        assert thought == thoughts or not shown


def test_thoughts_without_an_opening_tag_end_only_at_a_tag_on_its_own_line() -> None:
    assert split_thoughts("Hm.\nSo:\n</think>\n\nYes.") == ("Hm.\nSo:", "Yes.")
    text = "Write </think> at the end."
    assert split_thoughts(text) == ("", text)
    code = "Like this:\n<think>\nHm.\n</think>\n"
    assert split_thoughts(code) == ("", code)


def test_thought_tags_are_kept_without_a_profile() -> None:
    with ScriptedServer(Say("<think>Hm.</think>Yes.")) as server:
        adapter = OpenAIAdapter("m", api="chat", base_url=server.openai_url, api_key="k")
        assert evaluate(adapter, prompt()).text == "<think>Hm.</think>Yes."


def test_stream_ending_within_its_thoughts_has_no_text() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "<think>Hm"}, "finish_reason": None}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    with ScriptedServer(Raw(body, content_type="text/event-stream")) as server:
        adapter = OpenAIAdapter(
            "m", base_url=server.openai_url, max_retries=0, profile=profiles.LLAMA_CPP
        )
        with pytest.raises(PromptEvaluationError) as caught:
            list(adapter.stream(prompt(), session=Session()))
    assert caught.value.conversation is not None
    assert "Hm" not in str(caught.value.conversation.messages[-1])


# --- The value itself, and its page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"strict": "always"}, "strict must be 'each', 'uniform' or 'never', got 'always'"),
        ({"reasoning": "keep"}, "reasoning must be 'send', 'require' or 'drop', got 'keep'"),
        ({"api": "completions"}, "api must be 'responses' or 'chat', got 'completions'"),
        ({"call_ids": "["}, r"call_ids must be a regular expression, got '\['"),
    ],
)
def test_invalid_profile_value_is_rejected_with_the_valid_ones(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ServerProfile(**arguments)


def test_profile_supports_replace_equality_and_hashing() -> None:
    changed = replace(profiles.VLLM, base_url="http://gpu:8000/v1")
    assert changed != profiles.VLLM
    assert changed == replace(profiles.VLLM, base_url="http://gpu:8000/v1")
    assert len({changed, *READY.values()}) == len(READY) + 1


def test_documentation_lists_each_profile_and_each_field() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, profile in READY.items():
        server = profile.base_url or profile.base_url_variable
        if profile.base_url and profile.base_url_variable:
            server = f"{profile.base_url_variable}`, `{server}"
        key = f"`{profile.key_variable}`" if profile.key_variable else "none"
        key += " if set" if profile.key_variable and not profile.needs_key else ""
        assert f"| `{name}` | `{server}` | {key} |" in page
    for field in fields(ServerProfile):
        assert f"| `{field.name}` |" in page
