"""Messages that the CLI may send, even rarely, over the SDK's public `Transport` and without a
process.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib import import_module
from typing import Any

import pytest

from support.agents import Args, answers, prompt, tool
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.adapters.core import PromptResponse
from weakincentives.evaluation.errors import PromptEvaluationError, ThrottleError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import MarkdownSection, Prompt, ToolContext, ToolResult
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.visibility import SectionVisibility

# Any throughout: the SDK is not installed where types are checked, and messages are JSON.
sdk: Any = import_module("claude_agent_sdk")

type Message = dict[str, Any]
type Play = Callable[["FakeCLI"], Coroutine[Any, Any, None]]


class FakeCLI(sdk.Transport):  # type: ignore[misc]  # its base is Any
    """A CLI that plays a test's messages when the prompt arrives; it answers the requests that the
    SDK sends to any CLI.
    """

    def __init__(self, play: Play, *, listed: bool = True) -> None:
        self._play = play
        self._listed = listed
        self._out: asyncio.Queue[Message | None] = asyncio.Queue()
        self._replies: dict[str, asyncio.Future[Any]] = {}
        self._playing: asyncio.Task[None] | None = None
        self.toggled: list[tuple[str, bool]] = []
        self.prompts: list[str] = []
        self.closed = False

    async def connect(self) -> None: ...

    async def write(self, data: str) -> None:
        message = json.loads(data)
        match message:
            case {"type": "control_request", "request_id": number, "request": request}:
                answer = {
                    "subtype": "success",
                    "request_id": number,
                    "response": self._control(request),
                }
                self.emit({"type": "control_response", "response": answer})
            case {"type": "control_response", "response": {"request_id": number, **response}}:
                answered: Any = response["response"]
                self._replies[number].set_result(answered["mcp_response"])
            case {"type": "user", "message": {"content": text}}:
                self.prompts.append(text)
                self._playing = asyncio.create_task(self._play(self))
            case _:
                raise AssertionError(message)

    def _control(self, request: Message) -> Message:
        match request:
            case {"subtype": "mcp_toggle", "serverName": name, "enabled": enabled}:
                self.toggled.append((name, enabled))
            case {"subtype": "mcp_status"}:
                tools = [{"name": "more_tool"}] if self._listed else []
                return {"mcpServers": [{"name": "wink2", "status": "connected", "tools": tools}]}
            case _:
                pass
        return {}

    async def read_messages(self) -> AsyncIterator[Message]:
        while (message := await self._out.get()) is not None:
            yield message

    async def close(self) -> None:
        self.closed = True
        self.hang_up()

    async def end_input(self) -> None: ...

    def is_ready(self) -> bool:
        return True

    def emit(self, message: Message) -> None:
        self._out.put_nowait(message)

    def hang_up(self) -> None:
        self._out.put_nowait(None)

    def say(self, *blocks: Message, parent: str | None = None, **more: Any) -> None:
        message = {"role": "assistant", "model": "m", "content": list(blocks), **more}
        self.emit(
            {
                "type": "assistant",
                "message": message,
                "parent_tool_use_id": parent,
                "session_id": "s",
            }
        )

    def result(self, text: str = "done", **more: Any) -> None:
        counts = {
            "duration_ms": 1,
            "duration_api_ms": 1,
            "num_turns": 1,
            "session_id": "s",
            "is_error": False,
        }
        self.emit({"type": "result", "subtype": "success", "result": text, **counts, **more})

    async def request(self, server: str, method: str, **params: Any) -> Any:
        """Returns our server's answer to the CLI."""
        number = f"cli_{len(self._replies)}"
        self._replies[number] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        request = {"subtype": "mcp_message", "server_name": server, "message": message}
        self.emit({"type": "control_request", "request_id": number, "request": request})
        return (await self._replies[number]).get("result")

    async def call(
        self, call_id: str, name: str, arguments: Message | None = None, server: str = "wink"
    ) -> Any:
        if not self._replies:
            client = {"name": "fake", "version": "1"}
            version = "2025-06-18"
            await self.request(
                server, "initialize", protocolVersion=version, capabilities={}, clientInfo=client
            )
        meta = {"claudecode/toolUseId": call_id}
        return await self.request(
            server, "tools/call", name=name, arguments=arguments or {}, _meta=meta
        )


def use(call_id: str, name: str, **arguments: Any) -> Message:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def text(words: str) -> Message:
    return {"type": "text", "text": words}


def evaluate(
    play: Play,
    asked: Prompt[Any] | None = None,
    session: Session | None = None,
    *,
    listed: bool = True,
    **changes: Any,
) -> tuple[PromptResponse[Any], FakeCLI]:
    cli = FakeCLI(play, listed=listed)
    adapter = ClaudeAgentSDKAdapter("m", transport=lambda options: cli, **changes)
    try:
        return adapter.evaluate(asked or prompt(tool()), session=session or Session()), cli
    finally:
        assert cli.closed


def test_tool_call_is_answered_before_the_next_message() -> None:
    results: list[Any] = []

    async def play(cli: FakeCLI) -> None:
        cli.say(text("Let me see."), use("1", "mcp__wink__probe", a=1))
        results.append(await cli.call("1", "probe", {"a": 1}))
        cli.say(text("done"))
        cli.result()

    session = Session()
    response, cli = evaluate(play, session=session)
    assert results[0]["content"][0]["text"] == "ok"
    assert not results[0]["isError"]
    assert (response.text, response.turns) == ("done", 2)
    assert [event.params for event in session[ToolInvoked].all()] == [Args(1)]
    assert cli.prompts == [prompt(tool()).render().text]


def test_failed_call_returns_an_error_result() -> None:
    results: list[Any] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult("no", success=False)

    async def play(cli: FakeCLI) -> None:
        cli.say(use("1", "mcp__wink__probe"))
        results.append(await cli.call("1", "probe"))
        cli.result()

    evaluate(play, prompt(tool(handler)))
    assert (results[0]["content"][0]["text"], results[0]["isError"]) == ("no", True)


def test_call_received_before_its_message_is_answered_after_it() -> None:
    async def play(cli: FakeCLI) -> None:
        early = asyncio.create_task(cli.call("1", "probe"))
        await asyncio.sleep(0)
        cli.say(use("1", "mcp__wink__probe"))
        await early
        cli.result()

    response, _ = evaluate(play)
    assert [message.content for message in answers(response.transcript)] == ["ok"]


def test_subagent_calls_are_rejected_and_its_text_is_ignored() -> None:
    results: list[Any] = []

    async def play(cli: FakeCLI) -> None:
        cli.say(text("I am another."), use("9", "mcp__wink__probe"), parent="task")
        results.append(await cli.call("9", "probe"))
        cli.say(text("done"))
        cli.result()

    session = Session()
    response, _ = evaluate(play, session=session)
    assert results[0]["content"][0]["text"] == "Not available to subagents."
    assert (response.turns, session[ToolInvoked].all()) == (1, ())


def test_usage_is_the_clis_total_over_all_models() -> None:
    counts = {"outputTokens": 5, "cacheReadInputTokens": 3, "cacheCreationInputTokens": 2}
    models = {"big": {"inputTokens": 100, **counts}, "small": {"inputTokens": 10, **counts}}

    async def play(cli: FakeCLI) -> None:
        cli.say(use("1", "mcp__wink__probe"), usage={"input_tokens": 40, "output_tokens": 1})
        await cli.call("1", "probe")
        cli.result(modelUsage=models)

    response, _ = evaluate(play)
    assert response.usage == TokenUsage(120, 10, 6, 4)


def test_unknown_cli_messages_are_ignored() -> None:
    async def play(cli: FakeCLI) -> None:
        cli.emit({"type": "system", "subtype": "status", "status": "requesting"})
        cli.emit({"type": "unheard_of", "session_id": "s"})
        cli.emit(
            {"type": "user", "message": {"role": "user", "content": "a nudge"}, "session_id": "s"}
        )
        cli.result()

    assert evaluate(play)[0].text == "done"


@pytest.mark.parametrize("calls", [False, True])
def test_cli_closing_without_a_result_raises_and_answers_open_calls(*, calls: bool) -> None:
    async def play(cli: FakeCLI) -> None:
        if calls:
            cli.say(use("1", "Bash", command="ls"))
            cli.emit(
                {"type": "user", "message": {"role": "user", "content": []}, "session_id": "s"}
            )
        cli.hang_up()

    with pytest.raises(PromptEvaluationError, match="the CLI ended without a result") as caught:
        evaluate(play, builtin_tools=["Bash"])
    assert (caught.value.phase, caught.value.code) == ("request", "client_error")
    assert [message.content for message in answers(caught.value.transcript)] == [
        "Not run: the CLI ended."
    ] * calls


@pytest.mark.parametrize(
    ("attempt", "delay", "status", "seconds"),
    [
        (1, 8029, 429, 8.029),  # 7 s and the CLI's jitter
        (1, 625, 429, None),
        (4, 5000, 429, None),
        (4, 5001, 429, 5.001),
        (9, 40_000, 429, None),
        (1, 8029, 529, None),
    ],
)
def test_retry_after_is_reported_if_longer_than_the_clis_own_backoff(
    attempt: int, delay: int, status: int, seconds: float | None
) -> None:
    async def play(cli: FakeCLI) -> None:
        retry = {"attempt": attempt, "retry_delay_ms": delay, "error_status": status}
        cli.emit({"type": "system", "subtype": "api_retry", **retry})
        cli.result(
            "API Error: 429", is_error=True, api_error_status=429, terminal_reason="api_error"
        )

    with pytest.raises(ThrottleError) as caught:
        evaluate(play)
    wait = caught.value.retry_after
    assert (wait and wait.total_seconds()) == seconds


@pytest.mark.parametrize(
    ("reported", "phase", "code"),
    [
        ({"subtype": "error_max_structured_output_retries"}, "response", "output"),
        ({"subtype": "error_during_execution", "errors": ["odd"]}, "response", "provider_failed"),
        ({"terminal_reason": "prompt_too_long"}, "request", "context_length"),
        ({"stop_reason": "refusal"}, "response", "refused"),
        ({"api_error_status": 403, "terminal_reason": "api_error"}, "request", "permission"),
    ],
)
def test_error_result_is_classified_by_its_fields(reported: Message, phase: str, code: str) -> None:
    async def play(cli: FakeCLI) -> None:
        cli.result("it said", **{"is_error": True, **reported})

    with pytest.raises(PromptEvaluationError) as caught:
        evaluate(play)
    assert (caught.value.phase, caught.value.code) == (phase, code)
    assert "it said" in str(caught.value)


@pytest.mark.parametrize(
    ("complaint", "phase", "code"),
    [
        ("authentication_failed", "request", "authentication"),
        ("server_error", "request", "connection"),
        ("unknown", "response", "malformed"),
        ("max_output_tokens", "response", "truncated"),
        ("never_heard_of", "response", "provider_failed"),
    ],
)
def test_error_without_a_status_is_classified_by_its_kind(
    complaint: str, phase: str, code: str
) -> None:
    async def play(cli: FakeCLI) -> None:
        message = {"role": "assistant", "model": "<synthetic>", "content": [text("API Error")]}
        cli.emit({"type": "assistant", "message": message, "error": complaint, "session_id": "s"})
        cli.result("API Error for sk-marked-key", is_error=True, terminal_reason="api_error")

    with pytest.raises(PromptEvaluationError) as caught:
        evaluate(play, api_key="sk-marked-key")
    assert (caught.value.phase, caught.value.code) == (phase, code)
    assert "sk-marked-key" not in str(caught.value)


def opening() -> Prompt[Any]:
    hidden = MarkdownSection(
        title="More",
        key="more",
        template="All.",
        summary="More.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="more_tool")],
    )
    return Prompt(ns="tests", key="opening", sections=[hidden])


async def read_then_end(cli: FakeCLI) -> None:
    cli.say(use("1", "mcp__wink__read_section", section_key="more"))
    await cli.call("1", "read_section", {"section_key": "more"})
    cli.result()


def test_new_tools_are_enabled_before_the_opening_call_is_answered() -> None:
    seen: list[Any] = []

    async def play(cli: FakeCLI) -> None:
        await read_then_end(cli)
        seen.extend(cli.toggled)

    evaluate(play, opening(), dynamic_tools=True)
    assert seen == [("wink2", False), ("wink2", True)]


def test_cli_without_support_for_new_tools_raises_with_a_remedy() -> None:
    with pytest.raises(PromptEvaluationError, match="use dynamic_tools=False"):
        evaluate(read_then_end, opening(), dynamic_tools=True, listed=False)
