"""Disclosure as it goes over the wire: what the next request holds when the model opens and closes
sections.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import openai
import pytest

from support.agents import Args, Note, recorded, tool
from support.scripted_server import Call, Request, Say, ScriptedServer
from weakincentives.adapters.core import PromptResponse
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.runtime.events import ToolInvoked, ToolsInjected
from weakincentives.runtime.session import Session
from weakincentives.visibility import VisibilityOverrides

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


class Static(OpenAIAdapter):
    """As `OpenAIAdapter`, for a provider that takes no further tools once a conversation runs."""

    @property
    def supports_dynamic_tools(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OPENAI_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


# Any: options of every kind.
def connect(
    server: ScriptedServer, kind: type[OpenAIAdapter] = OpenAIAdapter, **options: Any
) -> OpenAIAdapter:
    if "client" not in options:
        options |= {"base_url": server.openai_url, "api_key": "sk-test", "max_retries": 0}
    return kind("test-model", **options)


def noting(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note("noted"))
    return ToolResult("ok")


def manual(*, disclosure: Disclosure = Disclosure.READ, closable: bool = False) -> Prompt[Any]:
    """A shown section, a summarized one with two tools, one in a child, and a summarized one
    without.
    """

    def summarized(
        key: str, *tools: Tool[Any, Any], children: list[MarkdownSection[Any]]
    ) -> MarkdownSection[Any]:
        return MarkdownSection(
            title=key.title(),
            key=key,
            template=f"All about {key}.",
            summary=f"{key} in short.",
            visibility=SUMMARY,
            tools=tools,
            children=children,
        )

    child = MarkdownSection(title="Deep", key="deep", template="Deeper.", tools=[tool(name="deep")])
    return Prompt(
        ns="tests",
        key="manual",
        disclosure=disclosure,
        closable=closable,
        sections=[
            MarkdownSection(title="Task", key="task", template="Go.", tools=[tool(noting)]),
            summarized("more", tool(name="late"), children=[child]),
            summarized("prose", children=[]),
        ],
    )


def read(key: str) -> Call:
    return Call("read_section", {"section_key": key})


def close(key: str) -> Call:
    return Call("close_section", {"section_key": key})


def opening(key: str) -> Call:
    return Call("open_sections", {"section_keys": [key], "reason": "need it"})


def history(request: Request) -> list[Any]:
    """The conversation in a request of either API."""
    items: list[Any] = request.json.get("input") or request.json.get("messages")
    return items


def tool_names(request: Request) -> list[str]:
    return [tool.get("name") or tool["function"]["name"] for tool in request.json.get("tools", [])]


def outputs(request: Request) -> list[str]:
    """The answers to tool calls in a request of either API."""
    answers = [
        item
        for item in history(request)
        if "function_call_output" in item.values() or "tool" in item.values()
    ]
    return [item["output"] if "output" in item else item["content"] for item in answers]


def evaluate(adapter: OpenAIAdapter, asked: Prompt[Any], session: Session) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=session)


def evaluate_async(
    adapter: OpenAIAdapter, asked: Prompt[Any], session: Session
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=session))


apis = pytest.mark.parametrize("api", ["responses", "chat"])
drivers = pytest.mark.parametrize("run", [evaluate, evaluate_async])
type Run = Callable[..., PromptResponse[Any]]


# --- Injection


@pytest.mark.claim("DT-04", "DT-17", "DT-18", "DT-19", "DT-23", "DT-36")
@apis
@drivers
def test_the_tools_of_a_section_are_appended_to_the_next_request_of_the_conversation(
    api: Any, run: Run
) -> None:
    session = Session()
    with ScriptedServer(
        Say(calls=(read("more"),)), Say(calls=(Call("late"), Call("deep"))), Say("done")
    ) as server:
        adapter = connect(server, api=api)
        assert adapter.supports_dynamic_tools
        assert run(adapter, manual(), session).text == "done"
        first, second, third = server.requests
    assert tool_names(first) == ["probe", "read_section"]
    assert second.json["tools"] == [*first.json["tools"], *second.json["tools"][2:]]
    assert tool_names(second)[2:] == ["late", "deep"]
    assert third.json["tools"] == second.json["tools"]
    assert history(second)[: len(history(first))] == history(first)
    assert history(third)[: len(history(second))] == history(second)
    content = (
        "Content of section 'more':\n\n## 2. More\n\nAll about more.\n\n### 2.1. Deep\n\nDeeper."
    )
    assert outputs(third) == [content, "ok", "ok"]
    latest = session[VisibilityOverrides].latest()
    assert latest is not None
    assert latest.overrides == {("more",): FULL, ("more", "deep"): FULL}


@pytest.mark.claim("DT-16")
@apis
def test_a_section_without_tools_changes_no_list_of_tools(api: Any) -> None:
    session = Session()
    with ScriptedServer(Say(calls=(read("prose"),)), Say("done")) as server:
        connect(server, api=api).evaluate(manual(), session=session)
        first, second = server.requests
    assert second.json["tools"] == first.json["tools"]
    assert session[VisibilityOverrides].all() == ()


@pytest.mark.claim("DT-20")
@apis
def test_a_tool_injected_twice_stands_in_the_list_once(api: Any) -> None:
    session = Session()
    injected = recorded(session.bus, ToolsInjected)
    with ScriptedServer(
        Say(calls=(read("more"), read("more"))), Say(calls=(read("more"),)), Say("done")
    ) as server:
        connect(server, api=api).evaluate(manual(), session=session)
        _, second, third = server.requests
    assert tool_names(second) == ["probe", "read_section", "late", "deep"]
    assert tool_names(third) == tool_names(second)
    assert outputs(third)[2].startswith("Section is already expanded.")
    assert [event.tool_names for event in injected] == [("late", "deep")]


@pytest.mark.claim("U-17")
@apis
def test_a_tool_revealed_in_a_turn_exists_from_the_next_request_on(api: Any) -> None:
    with ScriptedServer(
        Say(calls=(read("more"), Call("late"))), Say(calls=(Call("late"),)), Say("done")
    ) as server:
        connect(server, api=api).evaluate(manual(), session=Session())
        last = outputs(server.requests[-1])
    assert last[1].startswith("Unknown tool 'late'.")
    assert last[2] == "ok"


def test_tools_in_the_conversation_leave_the_list_and_all_before_them_as_it_was() -> None:
    with ScriptedServer(
        Say(calls=(read("prose"),)),
        Say(calls=(read("more"),)),
        Say(calls=(Call("deep"),)),
        Say("done"),
    ) as server:
        connect(server, tools_in_conversation=True).evaluate(manual(), session=Session())
        first, second, third, fourth = server.requests
    assert (
        first.json["tools"] == second.json["tools"] == third.json["tools"] == fourth.json["tools"]
    )
    assert tool_names(first) == ["probe", "read_section"]
    added = history(third)[len(history(second)) :]
    assert [item["type"] for item in added] == [
        "function_call",
        "function_call_output",
        "additional_tools",
    ]
    assert [tool["name"] for tool in added[-1]["tools"]] == ["late", "deep"]
    assert history(fourth)[: len(history(third))] == history(third)
    assert outputs(fourth)[-1] == "ok"
    assert not any(item.get("type") == "additional_tools" for item in history(second))


# --- Closing


@pytest.mark.parametrize(
    ("api", "placed"), [("responses", False), ("responses", True), ("chat", False)]
)
def test_a_closed_section_s_tools_are_gone_from_the_next_request_and_reading_brings_them_back(
    api: Any,
    placed: bool,
) -> None:
    steps = [read("more"), close("more"), Call("late"), read("more"), Call("late")]
    with ScriptedServer(*(Say(calls=(step,)) for step in steps), Say("done")) as server:
        connect(server, api=api, tools_in_conversation=placed).evaluate(
            manual(closable=True), session=Session()
        )
        requests = server.requests

    def offered(request: Request) -> list[str]:
        """Names of the tools that the model can call, wherever they stand, without those of the
        library.
        """
        placed_tools = [
            item["tools"] for item in history(request) if item.get("type") == "additional_tools"
        ]
        names = tool_names(request) + [tool["name"] for tools in placed_tools for tool in tools]
        return [name for name in names if not name.endswith("_section")]

    assert [offered(request) for request in requests] == [
        ["probe"],
        ["probe", "late", "deep"],
        ["probe"],
        ["probe"],
        ["probe", "late", "deep"],
        ["probe", "late", "deep"],
    ]
    answers = outputs(requests[-1])
    assert answers[1:3] == [
        "Closed section 'more'.",
        "Tool 'late' is closed; call read_section with key 'more' first.",
    ]
    assert answers[3].startswith("Content of section 'more':")
    assert answers[4] == "ok"


# --- Restarts


@pytest.mark.claim("PD-21", "PD-23", "PD-24", "PD-34", "PD-35", "DT-26")
@apis
@drivers
@pytest.mark.parametrize("disclosure", [Disclosure.READ, Disclosure.OPEN])
def test_an_expansion_leaves_the_adapter_as_it_is_after_its_event_and_ends_the_turn(
    api: Any, run: Run, disclosure: Disclosure
) -> None:
    session = Session()
    seen = recorded(session.bus, ToolInvoked)
    wanted = opening("more") if disclosure is Disclosure.OPEN else read("more")
    kind = OpenAIAdapter if disclosure is Disclosure.OPEN else Static
    with (
        ScriptedServer(Say(calls=(Call("probe"), wanted, Call("probe")))) as server,
        # the traceback would keep it open
        openai.OpenAI(base_url=server.openai_url, api_key="sk-test") as client,
        pytest.raises(VisibilityExpansionRequired) as caught,
    ):
        run(
            connect(server, kind, api=api, **({"client": client} if run is evaluate else {})),
            manual(disclosure=disclosure),
            session,
        )
    assert type(caught.value) is VisibilityExpansionRequired
    assert caught.value.__cause__ is None
    assert caught.value.requested_overrides[("more",)] is FULL
    assert caught.value.section_keys == ("more",)
    assert [event.name for event in seen] == ["probe", wanted.name]
    assert seen[1].requested_sections == ("more",)
    assert seen[1].reason == ("need it" if disclosure is Disclosure.OPEN else "")
    assert seen[1].current_visibility_state == {
        ("task",): FULL,
        ("more",): SUMMARY,
        ("prose",): SUMMARY,
    }
    assert session[Note].all() == (Note("noted"),)
    assert (caught.value.run_usage.calls, caught.value.run_usage.usage.total_tokens) == (1, 15)


@pytest.mark.claim("DT-26", "DT-29")
@apis
def test_the_main_loop_opens_a_new_conversation_with_the_section_in_it(api: Any) -> None:
    session = Session()
    with ScriptedServer(
        Say(calls=(read("more"),)), Say(calls=(Call("late"),)), Say("done")
    ) as server:
        execution = MainLoop(connect(server, Static, api=api)).execute(manual(), session=session)
        first, second, third = server.requests
    assert (execution.text, execution.restarts, execution.usage.total_tokens) == ("done", 1, 45)
    assert tool_names(first) == ["probe", "read_section"]
    assert tool_names(second) == ["probe", "late", "deep", "read_section"]
    assert len(history(second)) == 1
    assert "All about more." in str(history(second)[0])
    assert outputs(third) == ["ok"]
