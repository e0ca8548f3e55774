"""The tools of ten MCP servers over LiteLLM: no provider rejects any of their schemas."""

import pytest

from support.external_tools import external_prompt
from support.messages_api import check_tools
from support.provider_rules import check_openai_tool, check_plain
from support.scripted_server import Request, Say, ScriptedServer
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.runtime.session import Session


@pytest.mark.parametrize("model", ["openai/gpt-4o", "anthropic/claude-sonnet-4-5"])
def test_tools_of_ten_mcp_servers_are_accepted(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    count = 0

    def check(request: Request) -> Say:
        nonlocal count
        tools = request.json["tools"]
        count = len(tools)
        if model.startswith("openai/"):
            for tool in tools:
                check_openai_tool(tool)
        else:
            check_tools(tools)
            for tool in tools:
                check_plain(tool["input_schema"])
        return Say("done")

    with ScriptedServer(check) as server:
        url = server.openai_url if model.startswith("openai/") else server.url
        adapter = LiteLLMAdapter(model, base_url=url, api_key="sk-test-test", max_retries=0)
        adapter.evaluate(external_prompt(), session=Session())
    assert count == 138
