"""Settings reach the requests of every adapter, or are rejected before the first one."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from support.agents import prompt, tool
from support.deadlines import NEVER, SOON
from support.scripted_server import Call, Fail, Raw, Say, ScriptedServer
from weakincentives import (
    Chat,
    MainLoop,
    ModelSettings,
    RunConfig,
    SectionVisibility,
    ToolContext,
    ToolResult,
)
from weakincentives.adapters import profiles
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.anthropic.codec import MessagesCodec
from weakincentives.adapters.chat_completions import ChatCodec
from weakincentives.adapters.core import Connection, LoopAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.adapters.server_profile import ServerProfile
from weakincentives.evaluation.adapter import ProviderAdapter
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import PromptResponse
from weakincentives.limits import Deadline, TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.prompt.renderer import AnyRenderedPrompt
from weakincentives.runtime.session import Session
from weakincentives.testing.scripted import ScriptedAdapter, call, say

KEY = "sk-test-key"
READY = {name: getattr(profiles, name) for name in profiles.__all__}


# Any: the arguments of several adapters
def responses(server: ScriptedServer, **more: Any) -> LoopAdapter:
    return OpenAIAdapter("m", base_url=server.openai_url, api_key=KEY, max_retries=0, **more)


def chat(server: ScriptedServer, **more: Any) -> LoopAdapter:
    return responses(server, api="chat", profile=READY["AZURE"], **more)


def messages(server: ScriptedServer, **more: Any) -> LoopAdapter:
    return AnthropicAdapter(
        "claude-sonnet-4-6", base_url=server.url, api_key=KEY, max_retries=0, **more
    )


type Connect = Callable[..., LoopAdapter]
ADAPTERS = {"responses": responses, "chat": chat, "messages": messages}
if find_spec("anthropic") is None:
    del ADAPTERS["messages"]
needs_anthropic = pytest.mark.skipif("messages" not in ADAPTERS, reason="anthropic is missing")
adapters = pytest.mark.parametrize("connect", ADAPTERS.values(), ids=ADAPTERS)


def bodies(
    connect: Connect, settings: ModelSettings | None, *steps: Any, asked: Any = None, **more: Any
) -> list[dict[str, Any]]:
    """Returns the requests of a run with these settings."""
    with ScriptedServer(*(steps or [Say("Done.")])) as server:
        adapter = connect(server, **more)
        adapter.evaluate(asked or prompt(tool()), session=Session(), settings=settings)
        return [request.json for request in server.requests]


def everywhere(field: str, value: Any) -> dict[str, dict[str, Any]]:
    return {api: {field: value} for api in ADAPTERS}


SENT: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {
    "temperature": (0, everywhere("temperature", 0)),
    "top_p": (0.5, everywhere("top_p", 0.5)),
    "max_output_tokens": (
        100,
        {
            "responses": {"max_output_tokens": 100},
            "chat": {"max_completion_tokens": 100},
            "messages": {"max_tokens": 100},
        },
    ),
    "reasoning": (
        "high",
        {
            "responses": {"reasoning": {"effort": "high"}},
            "chat": {"reasoning_effort": "high"},
            "messages": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        },
    ),
    "seed": (0, {"chat": {"seed": 0}}),
    "stop": (
        ["END", "STOP"],
        {
            "chat": {"stop": ["END", "STOP"]},
            "messages": {"stop_sequences": ["END", "STOP"]},
        },
    ),
    "tool_choice": (
        "none",
        {
            "responses": {"tool_choice": "none"},
            "chat": {"tool_choice": "none"},
            "messages": {"tool_choice": {"type": "none"}},
        },
    ),
    "parallel_tool_calls": (
        False,
        {
            "responses": {"parallel_tool_calls": False},
            "chat": {"parallel_tool_calls": False},
            "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        },
    ),
    "cache_ttl": (
        "30m",
        {
            "responses": {"prompt_cache_options": {"ttl": "30m"}},
            "chat": {"prompt_cache_options": {"ttl": "30m"}},
        },
    ),
    "service_tier": ("flex", everywhere("service_tier", "flex")),
    "extra": ({"metadata": {"a": "b"}}, everywhere("metadata", {"a": "b"})),
}


@pytest.mark.parametrize("api", ADAPTERS)
@pytest.mark.parametrize("name", SENT)
def test_setting_is_in_the_request_or_is_rejected_before_it(api: str, name: str) -> None:
    value, fields = SENT[name]
    connect, settings = ADAPTERS[api], ModelSettings(**{name: value})
    more = {"profile": READY["AZURE"], "api": "responses"} if api == "responses" else {}
    with ScriptedServer(Say("Done."), strict=False) as server:
        adapter = connect(server, **more)
        if api not in fields:
            words = f"{name}|{value}"
            with pytest.raises(ValueError, match=words):
                adapter.evaluate(prompt(tool()), session=Session(), settings=settings)
            with pytest.raises(ValueError, match=words):
                connect(server, settings=settings, **more)
            assert not server.requests
            return
        adapter.evaluate(prompt(tool()), session=Session(), settings=settings)
    body = server.requests[0].json
    assert {key: body.get(key) for key in fields[api]} == fields[api]
    with ScriptedServer(Say("Done."), strict=False) as plain:
        connect(plain, **more).evaluate(prompt(tool()), session=Session())
    without = plain.requests[0].json
    assert {key for key in body if body[key] != without.get(key)} == {*fields[api]}


@pytest.mark.parametrize("profile", READY)
@pytest.mark.parametrize("name", SENT)
def test_profile_sends_a_setting_or_rejects_it(profile: str, name: str) -> None:
    value, _ = SENT[name]
    server_profile: ServerProfile = READY[profile]
    settings = ModelSettings(**{name: value})
    with ScriptedServer(Say("Done."), strict=False) as server:
        more = {"profile": server_profile, "settings": settings, "api": "chat"}
        rejected = (*server_profile.unsupported_settings, *server_profile.rejected_fields)
        if name in rejected:
            with pytest.raises(ValueError, match=f"does not support the setting {name}; "):
                responses(server, **more)
            return
        responses(server, **more).evaluate(prompt(tool()), session=Session())
    text = server.requests[0].body.decode()
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    assert shown.split("'")[-1][:4].lower() in text.lower()


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        ("AZURE", "max_completion_tokens"),
        ("XAI", "max_completion_tokens"),
        ("MISTRAL", "max_tokens"),
        ("OLLAMA", "max_tokens"),
        (None, "max_tokens"),
    ],
)
def test_output_limit_has_the_name_that_the_server_knows(profile: str | None, field: str) -> None:
    with ScriptedServer(Say("Done."), strict=False) as server:
        adapter = responses(
            server,
            api="chat",
            profile=READY[profile] if profile else None,
            settings=ModelSettings(max_output_tokens=100),
        )
        adapter.evaluate(prompt(), session=Session())
    body = server.requests[0].json
    assert {key: body[key] for key in body if "tokens" in key} == {field: 100}


@adapters
def test_settings_for_tools_are_left_out_without_tools(connect: Connect) -> None:
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    (body,) = bodies(connect, settings, asked=prompt())
    assert body.keys().isdisjoint({"tools", "tool_choice", "parallel_tool_calls"})


CHOICES = {
    "responses": ("required", {"type": "function", "name": "probe"}),
    "chat": ("required", {"type": "function", "function": {"name": "probe"}}),
    "messages": ({"type": "any"}, {"type": "tool", "name": "probe"}),
}


@pytest.mark.parametrize("api", ADAPTERS)
@pytest.mark.parametrize("index", [0, 1], ids=["required", "named"])
def test_forced_call_is_forced_until_the_runs_first_call(api: str, index: int) -> None:
    @dataclass(frozen=True)
    class Answer:
        city: str

    settings = ModelSettings(tool_choice=("required", "probe")[index])
    steps = [Say(calls=(Call("probe"),)), Say("?"), Say('{"city": "Rome"}')]
    sent = bodies(ADAPTERS[api], settings, *steps, asked=prompt(tool(), output=Answer))
    first, *rest = [body["tool_choice"] for body in sent]
    assert first == CHOICES[api][index]
    assert rest == [{"type": "auto"} if api == "messages" else "auto"] * 2


def test_forced_call_is_forced_again_in_the_next_run_and_after_an_answer_without_call() -> None:
    probes = Say(calls=(Call("probe"),))

    @dataclass(frozen=True)
    class Answer:
        n: int

    # the server ignores the first request's tool_choice, as some models do
    with ScriptedServer(Say("{}"), probes, Say('{"n": 1}'), probes, Say('{"n": 2}')) as server:
        talk = Chat(chat(server), prompt(tool(), output=Answer), config=forced())
        assert [talk.send("a").output.n, talk.send("b").output.n] == [1, 2]
    choices = [request.json["tool_choice"] for request in server.requests]
    assert choices == ["required", "required", "auto", "required", "auto"]


def forced() -> RunConfig:
    return RunConfig(settings=ModelSettings(tool_choice="required"))


def test_section_that_opens_in_a_new_evaluation_keeps_the_call_counted() -> None:
    inner = MarkdownSection(
        title="More",
        key="more",
        template="More.",
        summary="More.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="later")],
    )
    template = PromptTemplate(ns="tests", key="opened", sections=[inner])
    adapter = ScriptedAdapter(
        [call(("read_section", {"section_key": "more"})), say("Done.")],
        dynamic_tools=False,
    )
    assert MainLoop(adapter, config=forced()).execute(template).restarts == 1
    choices = [it.request.settings and it.request.settings.tool_choice for it in adapter.requests]
    assert choices == ["required", "auto"]


def test_choice_of_a_tool_that_the_prompt_lacks_names_its_tools() -> None:
    with (
        ScriptedServer() as server,
        pytest.raises(PromptEvaluationError, match=r"tool_choice 'prob' .*which has: probe"),
    ):
        responses(server).evaluate(prompt(tool()), settings=ModelSettings(tool_choice="prob"))


@needs_anthropic
def test_anthropic_rejects_reasoning_with_a_forced_call_and_names_both() -> None:
    pair = ModelSettings(reasoning="low", tool_choice="required")
    with ScriptedServer() as server:
        for settings in (pair, ModelSettings(reasoning="low", tool_choice="probe")):
            with pytest.raises(ValueError, match=r"reasoning='low' together with tool_choice="):
                messages(server, settings=settings)
        adapter = messages(server, settings=ModelSettings(reasoning="low"))
        with pytest.raises(ValueError, match=r"reasoning='low' together with tool_choice="):
            adapter.evaluate(prompt(tool()), settings=ModelSettings(tool_choice="required"))


@needs_anthropic
def test_anthropic_rejects_reasoning_with_a_temperature_and_names_both() -> None:
    near = ModelSettings(temperature=0.5)
    with ScriptedServer(Say("1"), Say("2"), strict=False) as server:
        adapter = messages(server, settings=ModelSettings(reasoning="low"))
        with pytest.raises(ValueError, match=r"reasoning='low' together with temperature=0\.5"):
            adapter.evaluate(prompt(), settings=near)
        assert not server.requests
        adapter.evaluate(prompt(), settings=ModelSettings(temperature=1))  # the only value it takes
        messages(server, settings=ModelSettings(reasoning="none")).evaluate(prompt(), settings=near)
    assert [request.json["temperature"] for request in server.requests] == [1, 0.5]


@needs_anthropic
def test_typed_output_with_reasoning_forces_no_call() -> None:
    @dataclass(frozen=True)
    class Answer:
        city: str

    asked = prompt(tool(), output=Answer)
    (body,) = bodies(
        messages, ModelSettings(reasoning="high"), Say('{"city": "Rome"}'), asked=asked
    )
    assert "tool_choice" not in body
    assert body["output_config"].keys() == {"effort", "format"}
    assert body["thinking"] == {"type": "adaptive"}


@needs_anthropic
@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        (ModelSettings(cache_ttl="1h"), {"type": "ephemeral", "ttl": "1h"}),
        (ModelSettings(cache_ttl="5m"), {"type": "ephemeral"}),
        (ModelSettings(cache_ttl=None), None),
    ],
    ids=repr,
)
def test_cache_time_of_anthropic_is_in_its_marks(settings: ModelSettings, sent: Any) -> None:
    (body,) = bodies(messages, settings)
    assert body["tools"][-1].get("cache_control") == sent
    assert "cache_control" not in body


@needs_anthropic
def test_anthropic_names_the_values_that_it_supports() -> None:
    with ScriptedServer() as server:
        with pytest.raises(ValueError, match="supports cache_ttl '5m' and '1h', got '24h'"):
            messages(server, settings=ModelSettings(cache_ttl="24h"))
        with pytest.raises(ValueError, match="does not support reasoning 'minimal'; use 'low'"):
            messages(server, settings=ModelSettings(reasoning="minimal"))


@adapters
@pytest.mark.parametrize("seconds", [0.2])
@pytest.mark.parametrize("face", ["evaluate", "evaluate_async", "stream", "stream_async"])
def test_silent_server_ends_the_request_at_its_timeout(
    connect: Connect, seconds: float, face: str
) -> None:
    with ScriptedServer(Raw(b"{}", delay=NEVER), strict=False) as server:
        adapter = connect(server, settings=ModelSettings(timeout=seconds))
        started = monotonic()
        with pytest.raises(PromptEvaluationError) as caught:
            play(adapter, face, prompt())
        assert monotonic() - started < SOON
    assert caught.value.code == "timeout"


def play(adapter: LoopAdapter, face: str, asked: Prompt[Any], **options: Any) -> None:
    match face:
        case "evaluate":
            adapter.evaluate(asked, **options)
        case "evaluate_async":
            asyncio.run(adapter.evaluate_async(asked, **options))
        case "stream":
            list(adapter.stream(asked, **options))
        case _:

            async def read() -> None:
                async for _ in adapter.stream_async(asked, **options):
                    pass

            asyncio.run(read())


def settings_table() -> str:
    """Returns the table of the documentation, from the code."""
    codecs = ResponsesCodec, ChatCodec, MessagesCodec
    open_profile = ServerProfile(unsupported_settings=frozenset())
    lines = [
        "| setting | Responses | Chat Completions | Anthropic | Claude Agent SDK | rejected by |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name in SENT.keys() - {"extra"}:
        found = [codec.supported_settings(open_profile).get(name) for codec in codecs]
        cells = [f"`{field}`" if field else "—" for field in found]
        cells.append({"reasoning": "`effort`", "max_output_tokens": "a variable"}.get(name, "—"))
        rejecting = [
            f"`{profile}`"
            for profile in READY
            if name not in ChatCodec.supported_settings(READY[profile])
        ]
        cells.append(", ".join(rejecting) or "—")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join([*lines[:2], *sorted(lines[2:])])


def test_documentation_has_the_field_of_each_setting() -> None:
    page = Path(__file__).parents[2] / "docs/how-to/adapters.md"
    assert settings_table() in page.read_text(encoding="utf-8")


# --- Where settings are set


@adapters
def test_every_face_sends_the_settings_of_adapter_template_and_run(connect: Connect) -> None:
    section = MarkdownSection(title="Task", key="task", template="Do it.")
    template = PromptTemplate(
        ns="tests",
        key="set",
        sections=[section],
        settings=ModelSettings(top_p=0.3, max_output_tokens=20),
    )
    far = ModelSettings(temperature=0.1, top_p=0.2, max_output_tokens=10)
    near = ModelSettings(max_output_tokens=30)
    with ScriptedServer(*[Say("Done.")] * 7) as server:
        adapter = connect(server, settings=far)
        for face in ("evaluate", "evaluate_async", "stream", "stream_async"):
            play(adapter, face, template.bind(), settings=near)
        MainLoop(adapter, config=RunConfig(settings=near)).execute(template)
        Chat(adapter, template, config=RunConfig(settings=near)).send("Go.")
        Chat(adapter, template).send("Go.", settings=near)
    for request in server.requests:
        body = request.json
        limit = next(body[key] for key in body if "tokens" in key)
        assert (body["temperature"], body["top_p"], limit) == (0.1, 0.3, 30)


def test_nested_runs_send_the_settings_of_their_adapter_and_caller() -> None:
    nested = prompt(text="Nested.")

    def ask(params: object, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(message=context.evaluate(nested).text)

    with ScriptedServer(Say(calls=(Call("ask"),)), Say("Inner."), Say("Done.")) as server:
        adapter = chat(server, settings=ModelSettings(seed=7, tool_choice="required"))
        MainLoop(adapter).execute(
            prompt(tool(ask, name="ask")), settings=ModelSettings(temperature=0, seed=8)
        )
    sent = [(it.json.get("seed"), it.json.get("temperature")) for it in server.requests]
    assert sent == [(8, 0)] * 3
    assert [it.json.get("tool_choice") for it in server.requests] == ["required", None, "auto"]


def test_summary_of_a_long_conversation_is_asked_for_with_the_same_settings() -> None:
    section = MarkdownSection(title="Summary", key="summary", template="Summarize it.")
    summary = PromptTemplate(ns="tests", key="summary", sections=[section])
    compaction = Compaction(at_tokens=600, keep_turns=1, summary=summary)
    long = [say("A. " * 900, usage=TokenUsage(300, 675)) for _ in range(9)]
    adapter = ScriptedAdapter(long, settings=ModelSettings(seed=7))
    talk = Chat(MainLoop(adapter, compaction=compaction), prompt(tool()))
    for message in ("One.", "Two.", "Three."):
        talk.send(message, settings=ModelSettings(temperature=0))
    asked = [it.request for it in adapter.requests]
    assert any("Summarize" in it.transcript[0].text for it in asked)
    assert {it.settings for it in asked} == {ModelSettings(seed=7, temperature=0)}


def test_none_on_the_run_removes_the_adapters_setting_and_its_option() -> None:
    cleared = ModelSettings(seed=None, stop=())
    own = RunConfig(settings=ModelSettings(seed=7, stop="END"))
    options = {"seed": 8, "stop": ["X"]}
    (body,) = bodies(chat, cleared, config=own, options=options)
    assert body.keys().isdisjoint({"seed", "stop"})
    (body,) = bodies(chat, ModelSettings(temperature=1), config=own, options=options)
    assert (body["seed"], body["stop"], body["temperature"]) == (7, ["END"], 1)


def test_extra_is_merged_into_the_request_and_its_tools_come_first() -> None:
    extra = {"reasoning": {"summary": "auto"}, "tools": [{"type": "web_search"}]}
    with ScriptedServer(Say("Done."), strict=False) as server:
        responses(server, settings=ModelSettings(extra=extra)).evaluate(
            prompt(tool()), settings=ModelSettings(reasoning="low", extra={"truncation": None})
        )
    body = server.requests[0].json
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert [it.get("name", it["type"]) for it in body["tools"]] == ["web_search", "probe"]
    assert "truncation" not in body


# --- Adapters that lack a setting


class Plain(LoopAdapter):
    """An adapter that was written before settings existed."""

    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        return PlainConnection()


class PlainConnection(Connection):
    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        return AssistantMessage(text="Done.")

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return self.ask(request)


class OwnLoop(ProviderAdapter):
    def evaluate(self, prompt: Any, /, *, session: Any, **_: Any) -> PromptResponse[Any]:
        raise AssertionError("the run must not begin")


def test_adapter_that_knows_no_settings_rejects_them_by_name() -> None:
    settings = ModelSettings(temperature=0, seed=1)
    with pytest.raises(ValueError, match="Plain does not support the settings seed, temperature"):
        Plain().evaluate(prompt(), settings=settings)
    with pytest.raises(ValueError, match=r"cannot apply settings .* OwnLoop has a loop of its own"):
        MainLoop(OwnLoop()).execute(prompt(), settings=settings)
    template = PromptTemplate(
        ns="tests",
        key="set",
        sections=[MarkdownSection(title="Task", key="task", template="Do it.")],
        settings=settings,
    )
    with pytest.raises(ValueError, match=r"cannot apply settings .* OwnLoop has a loop of its own"):
        MainLoop(OwnLoop()).execute(template)
    with pytest.raises(ValueError, match="Plain does not support the settings"):
        Plain().evaluate(template)


def test_fallback_rejects_a_setting_that_one_of_its_adapters_lacks() -> None:
    with ScriptedServer() as server:
        members = chat(server), responses(server)
        lacks = (
            "OpenAIAdapter for 'm' does not support the setting seed; its API, Responses, has no"
        )
        with pytest.raises(ValueError, match=lacks):
            FallbackAdapter(*members, settings=ModelSettings(seed=1))
        with pytest.raises(ValueError, match=lacks):
            FallbackAdapter(*members).evaluate(prompt(), settings=ModelSettings(seed=1))
        with pytest.raises(ValueError, match=r"pass it in FallbackAdapter\(settings=…\)"):
            FallbackAdapter(members[0], chat(server, settings=ModelSettings(tool_choice="probe")))


def test_setting_that_a_profile_excludes_is_rejected_with_the_reason() -> None:
    reason = "OpenAIAdapter for 'm' .* tool_choice; its server's profile excludes it; remove it, or"
    with pytest.raises(ValueError, match=reason):
        OpenAIAdapter("m", profile=profiles.OLLAMA, settings=ModelSettings(tool_choice="required"))


def test_each_adapter_of_a_fallback_sends_its_own_settings_under_those_of_the_run() -> None:
    with (
        ScriptedServer(Fail(500, "down", "server_error")) as first,
        ScriptedServer(Say("Done.")) as second,
    ):
        both = FallbackAdapter(
            chat(first, settings=ModelSettings(seed=1, top_p=0.1)),
            responses(second, settings=ModelSettings(max_output_tokens=50, top_p=0.2)),
        )
        both.evaluate(prompt(), settings=ModelSettings(top_p=0.5))
    assert (first.requests[0].json["seed"], first.requests[0].json["top_p"]) == (1, 0.5)
    sent = second.requests[0].json
    assert (sent["max_output_tokens"], sent["top_p"], "seed" in sent) == (50, 0.5, False)


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {  # settings, and the setting at fault
    "Unsupported value: 'temperature' does not support 0 with this model.": (
        {"temperature": 0},
        "temperature",
    ),
    "`temperature` is deprecated for this model.": ({"temperature": 0}, "temperature"),
    "temperature: range: 0..1": ({"temperature": 5}, "temperature"),
    "temperature must be non-negative, got -1.": ({"temperature": 0}, "temperature"),
    "Unknown parameter: 'verbosity'.": ({"extra": {"verbosity": "low"}}, "extra['verbosity']"),
    "Unrecognized request argument supplied: foo": ({"extra": {"foo": 1}}, "extra['foo']"),
    "verbosity: Extra inputs are not permitted": (
        {"extra": {"verbosity": 1}},
        "extra['verbosity']",
    ),
    "property 'topp' is unsupported, did you mean 'top_p'?": (
        {"top_p": 0.5, "extra": {"topp": 1}},
        "extra['topp']",
    ),
    "adaptive thinking is not supported on this model": ({"reasoning": "low"}, "reasoning"),
    "thinking.type: Input tag 'adaptive' was not found": ({"reasoning": "low"}, "reasoning"),
    '"auto" tool choice requires --enable-auto-tool-choice': (
        {"tool_choice": "auto"},
        "tool_choice",
    ),
    "No endpoints found that support the provided 'tool_choice' value": (
        {"tool_choice": "required"},
        "tool_choice",
    ),
    "`max_tokens` must be at most 64000": ({"max_output_tokens": 100_000}, "max_output_tokens"),
    "maxOutputTokens value of 99 is too small": ({"max_output_tokens": 99}, "max_output_tokens"),
    # about something else
    "Invalid prompt: 'What is the temperature of tea?' was flagged.": ({"temperature": 0}, ""),
    "tools.0.custom.input_schema.properties.temperature: invalid": ({"temperature": 0}, ""),
    "Failed to parse tools: [json.exception] 'temperature'": ({"temperature": 0}, ""),
    "Item 'rs_6' of type 'reasoning' was provided without its required following item": (
        {"reasoning": "low"},
        "",
    ),
    "output_config.format.schema: too complex": ({"reasoning": "low"}, ""),
    "messages[0].content is not a string": ({"temperature": 0}, ""),
    "Reduce the verbosity of your message.": ({"extra": {"verbosity": 1}}, ""),
}


def refusal(message: str, **more: str) -> Raw:
    return Raw.json(
        {"error": {"type": "invalid_request_error", "message": message, **more}}, status=400
    )


@adapters
@pytest.mark.parametrize("message", REFUSALS)
def test_setting_that_the_model_rejects_is_named_and_does_not_fall_back(
    connect: Connect, message: str
) -> None:
    given, name = REFUSALS[message]
    settings = ModelSettings(**given)
    with ScriptedServer(refusal(message), Say("Better."), strict=False) as server:
        adapter = connect(server)
        with contextlib.suppress(ValueError):  # a setting that this adapter does not support
            adapter.check_settings(settings)
            with ScriptedServer() as spare:
                talk = Chat(FallbackAdapter(adapter, ScriptedAdapter([])), prompt(tool()))
                with pytest.raises(PromptEvaluationError) as caught:
                    talk.send("The question.", settings=settings)
            assert not spare.requests
            assert (caught.value.code == "setting") is bool(name)
            if name:
                assert f"this value of ModelSettings.{name}" in str(caught.value)
                talk.send("Again?")
                assert "The question." in server.requests[-1].body.decode()  # it was not at fault


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("temperature", "temperature"),
        ("body.temperature", "temperature"),
        ("messages[1].content[0].image_url", ""),
        ("tools[0].function.parameters", ""),
    ],
)
def test_field_that_the_server_names_decides(param: str, name: str) -> None:
    settings = ModelSettings(temperature=0, stop="END")
    message = "Invalid schema: 'temperature' or 'stop' is wrong"
    with (
        ScriptedServer(refusal(message, param=param), strict=False) as server,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        chat(server).evaluate(prompt(), settings=settings)
    assert (caught.value.code == "setting", caught.value.param) == (bool(name), param)


def test_output_limit_that_is_too_large_is_not_taken_for_a_long_conversation() -> None:
    message = "'max_tokens' is too large: 1000000. This model's maximum context length is 8192."
    with (
        ScriptedServer(refusal(message, param="max_tokens"), strict=False) as server,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        responses(server, api="chat").evaluate(
            prompt(), settings=ModelSettings(max_output_tokens=1_000_000)
        )
    assert caught.value.code == "setting"


@pytest.mark.parametrize("status", [200, 500])
def test_rejected_setting_in_a_successful_reply_or_a_server_error_is_named(status: int) -> None:
    failure = {"error": {"code": 400, "message": "temperature: must be at most 2"}}
    with ScriptedServer(Raw.json(failure, status=status), strict=False) as server:
        adapter = FallbackAdapter(chat(server), ScriptedAdapter([say("Other.")]))
        with pytest.raises(PromptEvaluationError) as caught:
            adapter.evaluate(prompt(), settings=ModelSettings(temperature=5))
    assert caught.value.code == "setting"


# --- What a stranger tried


def test_nearer_setting_wins_over_a_farther_field_in_extra() -> None:
    far = RunConfig(settings=ModelSettings(extra={"temperature": 1, "reasoning_effort": "high"}))
    (body,) = bodies(chat, ModelSettings(temperature=0, reasoning="low"), config=far)
    assert (body["temperature"], body["reasoning_effort"]) == (0, "low")
    (body,) = bodies(chat, ModelSettings(temperature=None), config=far)
    assert "temperature" not in body
    same = ModelSettings(temperature=0, extra={"temperature": 1})
    assert bodies(chat, same)[0]["temperature"] == 1


@needs_anthropic
def test_request_does_not_change_the_settings() -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    settings = ModelSettings(extra={"tools": tools})
    with ScriptedServer(Say("Done."), strict=False) as server:
        messages(server).evaluate(prompt(), settings=settings)
    assert "cache_control" in server.requests[0].json["tools"][0]
    assert settings == ModelSettings(extra={"tools": tools})


def test_declared_output_and_tools_stay_whatever_extra_contains() -> None:
    @dataclass(frozen=True)
    class Answer:
        n: int

    extra = {"response_format": {"type": "json_object"}, "text": {"format": {"type": "text"}}}
    asked, settings = prompt(tool(), output=Answer), ModelSettings(extra=extra)
    for connect, path in ((chat, ("response_format",)), (responses, ("text", "format"))):
        with ScriptedServer(Say('{"n": 1}'), strict=False) as server:
            connect(server).evaluate(asked, settings=settings)
        form: Any = server.requests[0].json
        for key in path:
            form = form[key]
        assert form["type"] == "json_schema"
        assert form.keys() <= {"type", "json_schema", "name", "schema", "strict"}


def test_extra_rejects_what_the_profile_rejects() -> None:
    with (
        ScriptedServer() as server,
        pytest.raises(ValueError, match=r"does not support the setting extra\['parallel"),
    ):
        responses(
            server,
            profile=READY["CEREBRAS"],
            settings=ModelSettings(extra={"parallel_tool_calls": True}),
        )


def test_limit_and_effort_replace_other_fields_with_the_same_meaning() -> None:
    with ScriptedServer(Say("Done."), strict=False) as server:
        adapter = responses(
            server,
            profile=READY["OPENROUTER"],
            options={"max_completion_tokens": 50, "reasoning_effort": "high"},
        )
        adapter.evaluate(prompt(), settings=ModelSettings(max_output_tokens=9, reasoning="low"))
    body = server.requests[0].json
    assert (body["max_tokens"], body["reasoning"]) == (9, {"effort": "low"})
    assert body.keys().isdisjoint({"max_completion_tokens", "reasoning_effort"})


def test_settings_of_a_member_and_of_the_run_are_checked_together() -> None:
    with ScriptedServer() as server:
        both = FallbackAdapter(
            ScriptedAdapter([]),
            messages(server, settings=ModelSettings(reasoning="low")),
        )
        with pytest.raises(ValueError, match=r"reasoning='low' together with tool_choice="):
            both.evaluate(prompt(tool()), settings=ModelSettings(tool_choice="required"))


def nested(inner: Prompt[Any], **options: Any) -> Prompt[Any]:
    def ask(params: object, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(message=context.evaluate(inner, **options).text)

    return prompt(tool(ask, name="ask"))


def of_requests(adapter: ScriptedAdapter) -> list[ModelSettings | None]:
    return [it.request.settings for it in adapter.requests]


def test_forced_call_of_the_adapter_is_not_for_nested_runs() -> None:
    script = [call(("ask", {})), say("Inner."), say("Done.")]
    adapter = ScriptedAdapter(script, settings=ModelSettings(tool_choice="ask", seed=1))
    adapter.evaluate(nested(prompt(tool())))
    first, inner, last = of_requests(adapter)
    assert first == ModelSettings(tool_choice="ask", seed=1)
    assert inner == ModelSettings(seed=1)
    assert last == ModelSettings(tool_choice="auto", seed=1)


def test_forced_call_of_a_call_is_not_for_nested_runs() -> None:
    adapter = ScriptedAdapter([call(("ask", {})), say("Inner."), say("Done.")])
    adapter.evaluate(nested(prompt(tool())), settings=ModelSettings(tool_choice="required", seed=1))
    assert of_requests(adapter)[1] == ModelSettings(seed=1)


def test_deadline_before_the_end_of_the_timeout_ends_the_run() -> None:
    with ScriptedServer(Raw(b"{}", delay=NEVER), strict=False) as server:
        adapter = chat(server, settings=ModelSettings(timeout=5))
        with pytest.raises(DeadlineExceededError):
            adapter.evaluate(prompt(), deadline=Deadline.after(0.3))


def test_nested_prompts_own_settings_are_nearer_than_its_callers() -> None:
    inner = PromptTemplate(
        ns="tests",
        key="inner",
        sections=[MarkdownSection(title="Task", key="task", template="Do it.")],
        settings=ModelSettings(temperature=1),
    ).bind()
    adapter = ScriptedAdapter([call(("ask", {})), say("Inner."), say("Done.")])
    adapter.evaluate(nested(inner), settings=ModelSettings(temperature=0, seed=1))
    assert of_requests(adapter)[1] == ModelSettings(temperature=1, seed=1)


def test_nested_run_with_another_adapter_does_not_inherit_settings() -> None:
    other = ScriptedAdapter([say("Inner.")], settings=ModelSettings(top_p=0.5))
    adapter = ScriptedAdapter([call(("ask", {})), say("Done.")])
    adapter.evaluate(nested(prompt(), adapter=other), settings=ModelSettings(seed=1))
    assert of_requests(other) == [ModelSettings(top_p=0.5)]


@pytest.mark.parametrize("seconds", [1e12, 1e308, 10**400])
def test_endless_timeout_is_allowed(seconds: float) -> None:
    (body,) = bodies(chat, ModelSettings(timeout=seconds))
    assert body["model"] == "m"


@pytest.mark.parametrize("host", ["eu.api.openai.com", "me.openai.azure.com"])
def test_other_hosts_of_openai_follow_its_rules(host: str) -> None:
    adapter = OpenAIAdapter("m", api="chat", base_url=f"https://{host}/v1", api_key=KEY)
    adapter.check_settings(ModelSettings(service_tier="flex", cache_ttl="30m"))


def test_empty_settings_change_nothing() -> None:
    with ScriptedServer(Say("Done."), Say("Done.")) as server:
        adapter = responses(server)
        adapter.evaluate(prompt(), settings=ModelSettings(stop=(), seed=None))
        adapter.evaluate(prompt(), settings=ModelSettings())
    assert server.requests[0].json == server.requests[1].json
    with pytest.raises(AssertionError, match="the run must not begin"):
        MainLoop(OwnLoop()).execute(prompt(), settings=ModelSettings())
