"""The CLI gets the settings that it supports, and others are rejected before it starts."""

from dataclasses import fields
from time import monotonic
from typing import Any

import pytest

from support.agents import prompt, tool
from support.claude_cli import connect
from support.deadlines import SOON
from support.scripted_server import Call, Raw, Say, ScriptedServer
from weakincentives import MarkdownSection, ModelSettings, PromptTemplate, RunConfig
from weakincentives.evaluation.errors import PromptEvaluationError

VALUES: dict[str, Any] = {
    "temperature": 0,
    "top_p": 0.5,
    "seed": 0,
    "stop": "END",
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "cache_ttl": "5m",
    "service_tier": "auto",
    "extra": {"a": 1},
}


def test_cli_limits_its_answers_and_reasons_as_the_settings_say() -> None:
    settings = ModelSettings(max_output_tokens=2_000, reasoning="low")
    with ScriptedServer(Say("Done."), Say("Done.")) as server:
        adapter = connect(server, settings=settings)
        adapter.model = "claude-opus-4-6"  # the CLI sends an effort to models that support it
        adapter.evaluate(prompt(tool()))
        connect(server).evaluate(prompt(tool()), settings=ModelSettings(reasoning="none"))
    first, second = [it.json for it in server.requests]
    assert first["max_tokens"] == 2_000
    assert first["output_config"]["effort"] == "low"
    assert second.get("thinking") in (None, {"type": "disabled"})


@pytest.mark.parametrize("name", VALUES)
def test_setting_that_the_cli_lacks_is_rejected_by_name(name: str) -> None:
    settings = ModelSettings(**{name: VALUES[name]})
    with pytest.raises(ValueError, match=f"does not support the setting {name}"):
        connect(None, settings=settings)
    with pytest.raises(ValueError, match=f"does not support the setting {name}"):
        connect(None).evaluate(prompt(), settings=settings)
    connect(None, settings=ModelSettings(seed=None, stop=()))


def test_every_setting_is_passed_or_rejected() -> None:
    supported = {"max_output_tokens", "reasoning", "timeout"}
    names = {it.name for it in fields(ModelSettings) if it.init}
    assert names == VALUES.keys() | supported


def test_silent_server_ends_the_clis_request_at_its_timeout() -> None:
    with ScriptedServer(Raw(b"{}", delay=600), strict=False) as server:
        adapter = connect(server, settings=ModelSettings(timeout=0.2))
        started = monotonic()
        with pytest.raises(PromptEvaluationError) as caught:
            adapter.evaluate(prompt())
        assert monotonic() - started < SOON
    assert caught.value.code == "timeout"


def test_error_in_a_handler_ends_the_run_if_the_config_says_so() -> None:
    def look(text: str) -> str:
        """Look it up."""
        raise LookupError(text)

    section = MarkdownSection(title="Task", template="Look.", tools=[look])
    asked = PromptTemplate(ns="tests", key="broken", sections=[section])
    config = RunConfig(raise_handler_errors=True)
    calls = Say(calls=(Call("mcp__wink__look", {"text": "bug"}),))
    with ScriptedServer(calls, strict=False) as server, pytest.raises(LookupError, match="bug"):
        connect(server, config=config).evaluate(asked)
