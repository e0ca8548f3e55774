"""Third-party tools: servers' lists, requests to providers, and arguments from models."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.external_tools import EXTERNAL_SERVERS, LOCKS, PACKAGED, external_prompt, programs
from support.mcp_prompts import listed
from support.provider_rules import check_openai_tool, check_plain
from support.scripted_server import Request, Say, ScriptedServer
from support.sent_schemas import sent_tool
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.server_profile import ServerProfile
from weakincentives.contrib.mcp.lock import differences, lock_text, model_names
from weakincentives.errors import SerdeError, ValidationIssue
from weakincentives.evaluation.schemas import tool_to_spec
from weakincentives.inspection.analysis import analyze
from weakincentives.prompt.tool import AnyTool
from weakincentives.runtime.session import Session
from weakincentives.testing.arguments import argument_strategies, to_json
from weakincentives.visibility import SectionVisibility

TOOLS = {name: tool for tool in external_prompt().render().tools for name in [tool.name]}


def issues_of(tool: AnyTool, arguments: str) -> tuple[ValidationIssue, ...]:
    try:
        tool.parse_params(arguments)
    except SerdeError as error:
        return error.issues
    return ()


def test_ten_locked_servers_have_138_tools() -> None:
    assert len(LOCKS) == 10
    assert len(TOOLS) == sum(len(lock.tools) for lock in LOCKS.values()) == 138


@pytest.mark.parametrize("name", LOCKS)
def test_live_server_matches_its_lock(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in PACKAGED and not EXTERNAL_SERVERS.is_dir():
        pytest.skip("not installed, see `make test-mcp`")
    monkeypatch.setenv("PATH", programs())

    live = replace(listed(replace(LOCKS[name], cwd=str(tmp_path))), cwd=None)
    assert differences(LOCKS[name], live) == ()
    assert lock_text(live) == lock_text(LOCKS[name])


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_accepts_every_external_tool(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    strict: dict[str, bool] = {}

    def check(request: Request) -> Say:
        for tool in request.json["tools"]:
            strict[tool.get("function", tool)["name"]] = check_openai_tool(tool)
        return Say("done")

    with ScriptedServer(check) as server:
        adapter = OpenAIAdapter(
            "test-model",
            api=api,
            base_url=server.openai_url,
            api_key="k",
            max_retries=0,
            profile=ServerProfile(strict="each"),
        )
        adapter.evaluate(external_prompt(), session=Session())
    assert strict.keys() == TOOLS.keys()
    assert sum(strict.values()) == 126


def test_plain_schemas_of_external_tools_are_valid() -> None:
    for tool in TOOLS.values():
        check_plain(tool_to_spec(tool).parameters)


def test_model_names_map_back_to_every_external_tool() -> None:
    for name, lock in LOCKS.items():
        names = model_names(name, [tool.name for tool in lock.tools])
        assert sorted(names.values()) == sorted(tool.name for tool in lock.tools)
        assert names.keys() <= TOOLS.keys()
    assert all(re.fullmatch(r"[a-z0-9_-]{1,64}", name) for name in TOOLS)
    assert max(map(len, TOOLS)) <= 60, "none had to be cut"


@given(st.data())
def test_arguments_of_a_strict_decoder_are_accepted(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*TOOLS]))
    spec = sent_tool(TOOLS[name])
    if not spec.strict:
        return
    arguments, _ = argument_strategies(spec.parameters)
    text = to_json(data.draw(arguments))
    # rules that a strict schema states in prose
    rules = re.compile("does not fit (minLength|exclusiveMinimum|exclusiveMaximum|oneOf)")
    broken = [issue for issue in issues_of(TOOLS[name], text) if not rules.match(issue.message)]
    assert broken == []


def test_prompt_with_ten_servers_has_no_findings() -> None:
    report = analyze(external_prompt(SectionVisibility.SUMMARY), session=Session())
    assert report.findings == ()


def test_closed_mcp_section_sends_at_most_3_percent_of_its_tool_schemas() -> None:
    closed = external_prompt(SectionVisibility.SUMMARY).render()
    whole = sum(len(json.dumps(tool_to_spec(tool).as_dict())) for tool in TOOLS.values())
    offered = sum(len(json.dumps(tool_to_spec(tool).as_dict())) for tool in closed.tools)
    assert offered <= 0.03 * whole
