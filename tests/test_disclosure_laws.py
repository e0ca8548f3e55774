"""Laws L1, L2 and L8 of disclosure, over random trees and random choices of the model.

L1: every key that a prompt shows is accepted. L2: what `read_section` returns is what the prompt would show were the
section `FULL`. L8: injection and restart end with the same session state, visible sections and tools.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from support.scripted_server import Call, Say, ScriptedServer
from support.strategies import SUMMARY, Plan, forests, overrides, params, paths, sections
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.transcript import AssistantMessage, ToolMessage, UserMessage
from weakincentives.prompt import (
    Disclosure,
    Prompt,
    PromptTemplate,
    RenderedPrompt,
    SectionPath,
    SectionVisibility,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.prompt.progressive_disclosure import (
    OpenSectionsParams,
    ReadSectionParams,
    ReadSectionResult,
    create_read_section_handler,
)
from weakincentives.runtime.main_loop import MainLoop
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, SeenRequest, call, say
from weakincentives.visibility_overrides import SetVisibilityOverride, VisibilityOverrides

FULL = SectionVisibility.FULL
_KEY = re.compile(r'with key "([^"]+)"')
_CHILDREN = re.compile(r'with key "([^"]+)" to view full content including subsections: ([^\]]+)\.\]')

type Overrides = dict[SectionPath, SectionVisibility]


def shown_keys(texts: Iterable[str]) -> list[str]:
    """The keys that suffixes in `texts` give to the model."""
    return sorted({key for text in texts for key in _KEY.findall(text)})


def named_keys(texts: Sequence[str]) -> list[str]:
    """The keys shown, and those of the children that suffixes name."""
    found = set(shown_keys(texts))
    for text in texts:
        for key, children in _CHILDREN.findall(text):
            found |= {f"{key}.{child}" for child in children.split(", ")}
    return sorted(found)


def own_tools(names: Iterable[str]) -> list[str]:
    """The prompt's own tools, sorted: injection appends, a new render keeps the order of declaration."""
    return sorted(name for name in names if name.startswith("tool-"))


def template(
    roots: Sequence[Plan], disclosure: Disclosure = Disclosure.READ, *, closable: bool = False
) -> PromptTemplate[Any]:
    return PromptTemplate(ns="tests", key="laws", sections=sections(roots), disclosure=disclosure, closable=closable)


# --- L1


def answer_of(rendered: RenderedPrompt[Any], name: str, arguments: object) -> ToolResult[Any]:
    """What the disclosure tool of that name answers; neither of them looks at its context."""
    handler: Any = next(tool for tool in rendered.tools if tool.name == name).handler
    result: ToolResult[Any] = handler(arguments, context=None)
    return result


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_every_key_that_is_shown_is_accepted_by_the_tool_that_is_named_with_it(data: st.DataObject) -> None:
    # L1
    roots = data.draw(forests(3))
    disclosure = data.draw(st.sampled_from(Disclosure))
    rendered = template(roots, disclosure).render(
        *data.draw(bound(roots)), visibility_overrides=data.draw(overrides(roots))
    )
    texts, done = [rendered.text], set[str]()
    while texts:
        for tool, key in re.findall(r'call `(\w+)` with key "([^"]+)"', texts.pop(), re.IGNORECASE):
            if key in done:
                continue
            done.add(key)
            if tool == "read_section":
                result = answer_of(rendered, tool, ReadSectionParams(key))
                assert (result.success, result.message) == (True, f"Content of section '{key}':")
                assert result.value is not None
                texts.append(result.value.content)
            elif disclosure is Disclosure.OPEN:
                with pytest.raises(VisibilityExpansionRequired) as caught:
                    answer_of(rendered, tool, OpenSectionsParams((key,), "why"))
                assert [".".join(path) for path in caught.value.requested_overrides] == [key]


def bound(roots: Sequence[Plan]) -> st.SearchStrategy[list[object]]:
    """Params that the tree uses."""
    used = {plan.params for plan in _all(roots)}
    return params().map(lambda found: [one for one in found if type(one) in used])


def _all(roots: Sequence[Plan]) -> Iterable[Plan]:
    for plan in roots:
        yield plan
        yield from _all(plan.children)


# --- L2


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_read_is_what_the_prompt_would_show_were_the_section_full(data: st.DataObject) -> None:
    # L2
    roots = data.draw(forests(3))
    assume(roots)
    disclosure = data.draw(st.sampled_from(Disclosure))
    prompt = template(roots, disclosure)
    given_params = data.draw(bound(roots))
    by_type: dict[type[Any], object] = {type(one): one for one in given_params}
    visibility = data.draw(overrides(roots))
    bodies = dict.fromkeys(data.draw(st.sets(st.sampled_from(sorted(paths(roots))), max_size=2)), "Another body.")

    def render(extra: Overrides) -> RenderedPrompt[Any]:
        return prompt.renderer.render(
            param_lookup=by_type, overrides=bodies, visibility_overrides={**visibility, **extra}
        )

    before = render({})
    handler: Any = create_read_section_handler(
        registry=before.registry,
        current_visibility=VisibilityOverrides(visibility),
        param_lookup=by_type,
        session=None,
        disclosure=disclosure,
    ).handler
    for node in prompt.registry.sections:
        result: ToolResult[ReadSectionResult] = handler(ReadSectionParams(node.key), context=None)
        above = [node.path[:depth] for depth in range(1, len(node.path))]
        open_around = dict.fromkeys((*above, node.path), FULL)
        after = render(open_around)
        spans = [span for span in after.spans if span.path[: len(node.path)] == node.path]
        if not spans:  # it or something above it is disabled
            assert result == ToolResult(message=f"Unknown section key: '{node.key}'", success=False)
            continue
        assert result.value is not None
        assert result.value.content == after.text[spans[0].start : spans[-1].end]
        inside = [name for name, path in after.tool_paths.items() if path[: len(node.path)] == node.path]
        if before.visibility.get(node.path) is FULL:
            assert result.message == "Section is already expanded."
            assert result.value == ReadSectionResult(result.value.content)
        else:
            gained = [name for name in after.tool_paths if name not in before.tool_paths] if inside else []
            assert [tool.name for tool in result.value.expanded_tools] == gained
            if inside:  # what is opened is enough to show the section, with its tools, in a prompt rendered anew
                kept = render(dict.fromkeys(result.value.opened, FULL))
                assert (kept.text, kept.visibility) == (after.text, after.visibility)
                assert kept.tool_paths == after.tool_paths


# --- L8


@dataclass(frozen=True)
class Choice:
    """What the model does in one turn: calls `tool` for `key`."""

    tool: str
    key: str

    @property
    def arguments(self) -> dict[str, Any]:
        return {"section_key": self.key}


@dataclass(frozen=True)
class End:
    """What an execution came to."""

    overrides: Overrides
    visible: Overrides
    tools: list[str]


class Recording(ScriptedAdapter[Any]):
    """Keeps the prompt that the last evaluation began with."""

    last: RenderedPrompt[Any]

    def converse(self, rendered: RenderedPrompt[Any], /) -> "Recording":
        self.last = rendered
        return self


def state(session: Session) -> Overrides:
    latest = session[VisibilityOverrides].latest()
    return {} if latest is None else dict(latest.overrides)


def session_with(held: Overrides) -> Session:
    session = Session()
    for path, visibility in held.items():
        session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
    return session


class Model:
    """Chooses by random numbers among the keys it has seen, and notes its choices."""

    def __init__(self, numbers: Sequence[int], *, closes: bool) -> None:
        self.numbers = list(numbers)
        self.closes = closes
        self.chosen: list[Choice] = []

    def reply(self, request: SeenRequest) -> AssistantMessage:
        texts = [one.content for one in request.messages if isinstance(one, UserMessage | ToolMessage)]
        keys = named_keys(texts)
        if not keys or not self.numbers:
            return say("done")
        number = self.numbers.pop()
        closes = self.closes and self.chosen and number % 3 == 0
        tool = "close_section" if closes else "read_section"
        among = [one.key for one in self.chosen] if closes else keys
        self.chosen.append(Choice(tool, among[number // 3 % len(among)]))
        return call((tool, self.chosen[-1].arguments))


def by_injection(prompt: PromptTemplate[Any], model: Model, held: Overrides, given: Overrides) -> End:
    session = session_with(held)
    adapter = Recording([model.reply] * (len(model.numbers) + 1))
    execution = MainLoop(adapter).execute(Prompt(prompt), session=session, visibility_overrides=given)
    assert execution.restarts == 0
    return ended(adapter, session)


def by_restart(prompt: PromptTemplate[Any], choices: Sequence[Choice], held: Overrides, given: Overrides) -> End:
    session = session_with(held)
    replies = [call((one.tool, one.arguments)) for one in choices]
    adapter = Recording([*replies, say("done")], dynamic_tools=False)
    MainLoop(adapter).execute(Prompt(prompt), session=session, visibility_overrides=given)
    assert len(adapter.requests) == len(choices) + 1
    return ended(adapter, session)


def ended(adapter: Recording, session: Session) -> End:
    visible = dict(adapter.last.visibility_now())
    return End(state(session), visible, own_tools(adapter.requests[-1].tool_names))


numbers = st.lists(st.integers(0, 999), max_size=8)


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_injection_and_restart_come_to_the_same_for_the_same_choices(data: st.DataObject) -> None:
    # L8: five models a tree, so two thousand pairs of executions
    roots = data.draw(forests(3))
    closable = data.draw(st.booleans())
    prompt = template(roots, closable=closable)
    visibility = data.draw(overrides(roots))
    held, given_ = data.draw(st.sampled_from([(visibility, {}), ({}, visibility)]))
    for drawn in data.draw(st.lists(numbers, min_size=5, max_size=5)):
        model = Model(drawn, closes=closable)
        injected = by_injection(prompt, model, held, given_)
        restarted = by_restart(prompt, model.chosen, held, given_)
        assert injected == restarted


def restless(roots: Sequence[Plan]) -> bool:
    """Whether there is a summarized section with a tool to be found, so that something happens."""
    return any(plan.visibility is SUMMARY and plan.tools and plan.enabled for plan in roots)


class Static(OpenAIAdapter[Any]):
    """As `OpenAIAdapter`, for a provider that takes no further tools once a conversation runs."""

    @property
    def supports_dynamic_tools(self) -> bool:
        return False


@pytest.mark.parametrize("api", ["responses", "chat"])
@given(roots=forests(2).filter(restless), drawn=numbers)
@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_they_come_to_the_same_through_the_real_sdk(api: Any, roots: tuple[Plan, ...], drawn: list[int]) -> None:
    # L8, a sample
    prompt = template(roots)
    model = Model(drawn, closes=False)
    expected = by_injection(prompt, model, {}, {})
    for kind in (OpenAIAdapter[Any], Static):
        steps = [Say(calls=(Call(one.tool, one.arguments),)) for one in model.chosen]
        session = Session()
        with ScriptedServer(*steps, Say("done")) as server:
            adapter: OpenAIAdapter[Any] = kind(
                "test-model", api=api, base_url=server.openai_url, api_key="sk-test", max_retries=0
            )
            MainLoop(adapter).execute(Prompt(prompt), session=session)
            sent = server.requests[-1].json.get("tools", [])
        names = own_tools(one.get("name") or one["function"]["name"] for one in sent)
        visible = dict(prompt.render(session=session).visibility)
        assert End(state(session), visible, names) == expected
