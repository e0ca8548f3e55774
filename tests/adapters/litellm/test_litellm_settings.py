"""LiteLLM sends the settings that it supports for a model, and others are rejected."""

import asyncio
from typing import Any

import pytest

from support.agents import prompt, tool
from support.litellm_routes import ANTHROPIC, OPENAI, connect
from support.scripted_server import Raw, Say, ScriptedServer
from weakincentives import ModelSettings
from weakincentives.evaluation.errors import PromptEvaluationError

SENT: dict[str, tuple[Any, Any, Any]] = {  # the value, and what each format has of it
    "temperature": (0, ("temperature", 0), ("temperature", 0)),
    "top_p": (0.5, ("top_p", 0.5), ("top_p", 0.5)),
    "max_output_tokens": (100, ("max_tokens", 100), ("max_tokens", 100)),
    "seed": (7, ("seed", 7), None),
    "stop": (("END",), ("stop", ["END"]), ("stop_sequences", ["END"])),
    "tool_choice": (
        "required",
        ("tool_choice", "required"),
        ("tool_choice", {"type": "any"}),
    ),
    "cache_ttl": ("5m", None, None),
}


@pytest.mark.parametrize("index", [1, 2], ids=["openai", "anthropic"])
@pytest.mark.parametrize("name", SENT)
def test_setting_is_in_litellms_request_or_is_rejected_before_it(name: str, index: int) -> None:
    value, expected = SENT[name][0], SENT[name][index]
    settings = ModelSettings(**{name: value})
    with ScriptedServer(Say("Done."), strict=False) as server:
        adapter = connect(server, (OPENAI, ANTHROPIC)[index - 1])
        if expected is None:
            with pytest.raises(ValueError, match=f"does not support the setting {name}"):
                adapter.evaluate(prompt(tool()), settings=settings)
            assert not server.requests
            return
        adapter.evaluate(prompt(tool()), settings=settings)
    field, sent = expected
    assert server.requests[0].json[field] == sent


def test_silent_server_ends_litellms_request_at_its_timeout() -> None:
    with ScriptedServer(*[Raw(b"{}", delay=600)] * 2, strict=False) as server:
        adapter = connect(server, settings=ModelSettings(timeout=0.2))
        for evaluate in (adapter.evaluate, lambda it: asyncio.run(adapter.evaluate_async(it))):
            with pytest.raises(PromptEvaluationError) as caught:
                evaluate(prompt())
            assert caught.value.code == "timeout"
