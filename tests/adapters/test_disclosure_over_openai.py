"""Disclosure over OpenAI's SDK: the next request after the model opens or closes a section."""

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
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


class Static(OpenAIAdapter):
    """An `OpenAIAdapter` for a provider that accepts no new tools during a conversation."""

    @property
    def supports_dynamic_tools(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OPENAI_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


# Any: options of all types.
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
    """A full section, a summarized one with two tools, one of them in a child, and a summarized one
    without tools.
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
    """Returns the conversation in a request of either API."""
    items: list[Any] = request.json.get("input") or request.json.get("messages")
    return items


def tool_names(request: Request) -> list[str]:
    return [tool.get("name") or tool["function"]["name"] for tool in request.json.get("tools", [])]


def outputs(request: Request) -> list[str]:
    """Returns the answers to tool calls in a request of either API."""
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


# --- Closing


@pytest.mark.parametrize(
    ("api", "placed"), [("responses", False), ("responses", True), ("chat", False)]
)
def test_closing_a_section_removes_its_tools_and_reading_restores_them(
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
        """Returns the names of the tools that the model can call, wherever they are declared,
        except the library's own.
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
def test_visibility_expansion_is_raised_after_its_event_and_ends_the_turn(
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
