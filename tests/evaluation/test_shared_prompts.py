"""Concurrent requests bind a shared prompt for each user: runs keep their bindings."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import Completed
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, SeenRequest, call, say
from weakincentives.visibility import SectionPath


@dataclass(frozen=True)
class User:
    name: str


@dataclass(frozen=True)
class Plan:
    label: str


@dataclass
class Store:
    owner: str


@dataclass(frozen=True)
class NoParams:
    pass


def shared(*tools: Tool[Any, Any]) -> Prompt[None]:
    """Returns a prompt whose second section opens in a new evaluation."""
    return PromptTemplate(
        ns="tests",
        key="shared",
        disclosure=Disclosure.OPEN,
        sections=[
            MarkdownSection[User](title="User", template="You serve $name.", tools=tools),
            MarkdownSection[User](
                title="Account",
                key="account",
                template="The secret of $name.",
                summary="The account.",
                visibility=SectionVisibility.SUMMARY,
            ),
        ],
    ).bind(User("nobody"))


OPEN = call(("open_sections", {"section_keys": ["account"], "reason": "r"}))


def texts(adapter: ScriptedAdapter) -> list[str]:
    """Returns the prompt in each request."""
    return [str(request.messages[0]) for request in adapter.requests]


def binding(
    prompt: Prompt[None], user: str, reply: AssistantMessage
) -> Callable[[SeenRequest], AssistantMessage]:
    """Returns a model's reply during which another request binds the prompt."""

    def answer(_: SeenRequest) -> AssistantMessage:
        prompt.bind(User(user))
        return reply

    return answer


def assert_served_alone(prompts: Sequence[str], user: str, other: str) -> None:
    assert all(f"You serve {user}." in text for text in prompts)
    assert not any(other in text for text in prompts)


@pytest.mark.claim("PS-04", "N-17")
def test_restart_keeps_the_params_of_the_run_if_the_prompt_is_bound_again() -> None:
    prompt = shared()
    adapter = ScriptedAdapter([binding(prompt, "bob", OPEN), say("Done.")])
    MainLoop(adapter).execute(prompt.bind(User("ann")), session=Session())
    assert_served_alone(texts(adapter), "ann", "bob")
    assert "The secret of ann." in texts(adapter)[-1]


def test_restart_ignores_params_bound_after_the_run_started() -> None:
    prompt = PromptTemplate(
        ns="tests",
        key="plans",
        disclosure=Disclosure.OPEN,
        sections=[
            MarkdownSection[Plan](
                title="Plan", template="Plan $label.", default_params=Plan("standard")
            ),
            MarkdownSection(
                title="More", template="More.", summary="s", visibility=SectionVisibility.SUMMARY
            ),
        ],
    ).bind()

    def answer(_: SeenRequest) -> AssistantMessage:
        prompt.bind(Plan("of bob"))
        return call(("open_sections", {"section_keys": ["more"], "reason": "r"}))

    adapter = ScriptedAdapter([answer, say("Done.")])
    MainLoop(adapter).execute(prompt.render(), session=Session())
    assert ["Plan standard." in text for text in texts(adapter)] == [True, True]


def test_rendered_prompt_keeps_its_params_if_the_prompt_is_bound_again() -> None:
    prompt = shared()
    rendered = prompt.bind(User("ann")).render()
    prompt.bind(User("bob"))
    adapter = ScriptedAdapter([OPEN, say("Done.")])
    MainLoop(adapter).execute(rendered, session=Session())
    assert_served_alone(texts(adapter), "ann", "bob")


def test_coroutines_of_one_prompt_keep_their_params() -> None:
    prompt = shared()
    adapters = {name: ScriptedAdapter([OPEN, say("Done.")]) for name in ("ann", "bob")}
    direct = {name: ScriptedAdapter([say("Done.")]) for name in adapters}

    async def run() -> None:
        await asyncio.gather(
            *[
                MainLoop(adapter).execute_async(prompt.bind(User(name)), session=Session())
                for name, adapter in adapters.items()
            ],
            *[
                adapter.evaluate_async(prompt.bind(User(name)), session=Session())
                for name, adapter in direct.items()
            ],
        )

    asyncio.run(run())
    for adapter_of in (adapters, direct):
        assert_served_alone(texts(adapter_of["ann"]), "ann", "bob")
        assert_served_alone(texts(adapter_of["bob"]), "bob", "ann")


@pytest.mark.parametrize("through_loop", [True, False])
def test_streams_of_one_prompt_keep_their_params(*, through_loop: bool) -> None:
    prompt = shared()
    ann, bob = (ScriptedAdapter([say("Done.")]) for _ in range(2))

    async def read(adapter: ScriptedAdapter, name: str) -> None:
        source = MainLoop(adapter) if through_loop else adapter
        events = source.stream_async(prompt.bind(User(name)), session=Session())
        prompt.bind(User("eve"))
        assert isinstance([event async for event in events][-1], Completed)

    source = MainLoop(ann) if through_loop else ann
    events = source.stream(prompt.bind(User("ann")), session=Session())
    asyncio.run(read(bob, "bob"))
    assert isinstance(list(events)[-1], Completed)
    assert_served_alone(texts(ann), "ann", "eve")
    assert_served_alone(texts(bob), "bob", "eve")


def test_nested_runs_of_one_prompt_keep_their_params() -> None:
    inner = shared()

    async def ask(_: NoParams, *, context: ToolContext) -> ToolResult[None]:
        """Asks for both users."""
        runs = [
            context.evaluate_async(inner.bind(User(name)), session=Session())
            for name in ("ann", "bob")
        ]
        return ToolResult(" ".join([run.text for run in await asyncio.gather(*runs)]))

    def answer(seen: SeenRequest) -> AssistantMessage:
        return say(str(seen.messages[0]).partition("You serve ")[2].partition(".")[0])

    adapter = ScriptedAdapter([call(("ask", {})), answer, answer, say("Done.")])
    outer = shared(Tool[NoParams, None](name="ask", handler=ask))
    response = asyncio.run(MainLoop(adapter).execute_async(outer, session=Session()))
    assert response.conversation is not None
    assert [m.content for m in response.conversation.messages if m.kind == "tool"] == ["ann bob"]


def test_handler_sees_the_params_of_its_run_and_cannot_rebind_the_prompt() -> None:
    seen: list[object] = []

    def look(_: NoParams, *, context: ToolContext) -> ToolResult[None]:
        """Looks."""
        seen.append(context.prompt.params[User])
        context.prompt.bind(User("eve"))
        return ToolResult("ok")

    prompt = shared(Tool[NoParams, None](name="look", handler=look))
    adapter = ScriptedAdapter([binding(prompt, "bob", call(("look", {}))), OPEN, say("Done.")])
    MainLoop(adapter).execute(prompt.bind(User("ann")), session=Session())
    assert seen == [User("ann")]
    assert_served_alone(texts(adapter), "ann", "eve")
    assert prompt.params[User] == User("bob")


def test_compaction_keeps_the_params_of_the_run() -> None:
    prompt = shared()
    long = say("word " * 2_000)
    adapter = ScriptedAdapter([long, binding(prompt, "bob", long), say("Done.")])
    chat = Chat(
        MainLoop(adapter, compaction=Compaction(2_000, keep_turns=1)),
        prompt.bind(User("ann")),
        session=Session(),
    )
    for message in ("One", "Two", "Three"):
        chat.send(message)
    assert_served_alone(texts(adapter), "ann", "bob")


def test_chats_of_one_prompt_keep_their_own_params_and_resources() -> None:
    def look(_: NoParams, *, context: ToolContext) -> ToolResult[None]:
        """Looks."""
        return ToolResult(context.resources.get(Store).owner)

    prompt = shared(Tool[NoParams, None](name="look", handler=look))
    adapters = {
        name: ScriptedAdapter([call(("look", {})), say("Done."), call(("look", {})), say("Done.")])
        for name in ("ann", "bob")
    }
    chats = {
        name: Chat(
            MainLoop(adapter),
            prompt.bind(User(name), resources={Store: Store(name)}),
            session=Session(),
        )
        for name, adapter in adapters.items()
    }
    for _ in range(2):
        for chat in chats.values():
            chat.send("Hello")
    for name, chat in chats.items():
        assert chat.conversation is not None
        messages = chat.conversation.messages
        assert [m.content for m in messages if m.kind == "tool"] == [name, name]
    assert_served_alone(texts(adapters["ann"]), "ann", "bob")
    assert_served_alone(texts(adapters["bob"]), "bob", "ann")


def test_binding_the_prompt_of_a_chat_changes_only_its_later_turns() -> None:
    prompt = shared()
    adapter = ScriptedAdapter([say("Hello."), say("Hello.")])
    chat = Chat(MainLoop(adapter), prompt.bind(User("ann")), session=Session())
    chat.send("Hi")
    chat.prompt.bind(User("ann junior"))
    chat.send("Hi again")
    assert "You serve ann junior." in str(adapter.requests[-1].messages)
    assert prompt.params[User] == User("ann")


@pytest.mark.claim("U-08")
def test_run_uses_the_bound_params_instance_without_copying_it() -> None:
    @dataclass
    class Notes:
        lines: list[str]

        def text(self) -> str:
            return ",".join(self.lines)

    notes = Notes(["one"])
    prompt = PromptTemplate(
        ns="tests",
        key="notes",
        disclosure=Disclosure.OPEN,
        sections=[
            MarkdownSection[Notes](title="Notes", template="$lines"),
            MarkdownSection(
                title="More", template="More.", summary="s", visibility=SectionVisibility.SUMMARY
            ),
        ],
    ).bind(notes)

    def answer(_: SeenRequest) -> AssistantMessage:
        notes.lines.append("two")
        return call(("open_sections", {"section_keys": ["more"], "reason": "r"}))

    adapter = ScriptedAdapter([answer, say("Done.")])
    MainLoop(adapter).execute(prompt, session=Session())
    assert ["two" in text for text in texts(adapter)] == [False, True]


def test_changing_visibility_overrides_during_a_run_has_no_effect() -> None:
    hidden = [
        MarkdownSection(
            title=title, template="Text.", summary="s", visibility=SectionVisibility.SUMMARY
        )
        for title in ("One", "Two")
    ]
    prompt = PromptTemplate(
        ns="tests", key="two", disclosure=Disclosure.OPEN, sections=hidden
    ).bind()
    overrides: dict[SectionPath, SectionVisibility] = {("two",): SectionVisibility.SUMMARY}

    def answer(_: SeenRequest) -> AssistantMessage:
        overrides[("one",)] = SectionVisibility.SUMMARY
        return call(("open_sections", {"section_keys": ["one"], "reason": "r"}))

    adapter = ScriptedAdapter([answer, say("Done.")])
    MainLoop(adapter).execute(prompt, session=Session(), visibility_overrides=overrides)
    assert texts(adapter)[-1].count("Text.") == 1
