"""The tools of ten MCP servers over Anthropic's API, which rejects requests with a bad schema."""

import pytest

from support.external_tools import external_prompt
from support.messages_api import MessagesAPI
from support.provider_rules import check_plain
from support.scripted_server import Say, ScriptedServer
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.runtime.session import Session


@pytest.mark.parametrize("strict_tools", [False, True])
def test_tools_of_ten_mcp_servers_are_accepted(strict_tools: bool) -> None:
    api = MessagesAPI()
    with ScriptedServer(api.play(Say("done"))) as server:
        adapter = AnthropicAdapter(
            "claude-opus-5-5",
            base_url=server.url,
            api_key="sk-ant-test",
            max_retries=0,
            strict_tools=strict_tools,
        )
        adapter.evaluate(external_prompt(), session=Session())
        [request] = server.requests
    tools = request.json["tools"]
    assert len(tools) == 138
    for tool in tools:
        check_plain(tool["input_schema"])
    assert any(tool.get("strict") for tool in tools) is strict_tools
