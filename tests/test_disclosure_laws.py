"""Laws L1, L2 and L8 of disclosure, over random trees and random choices of the model.

L1: every key that a prompt shows is accepted. L2: `read_section` returns the text that the prompt
would show if the section were `FULL`. L8: injection and restart end with the same session state,
visible sections and tools, wherever they begin and whatever else changes session and conditions in
the meantime; a section shown as a summary can be opened.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from support.scripted_server import Call, Say, ScriptedServer
from support.strategies import SUMMARY, Plan, forests, overrides, params, paths, sections
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.content import text_of
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolMessage, UserMessage
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    RenderedPrompt,
    SectionPath,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.prompt.progressive_disclosure import (
    OpenSectionsParams,
    ReadSectionParams,
    ReadSectionResult,
    create_read_section_handler,
)
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, SeenRequest, call, say
from weakincentives.visibility import SetVisibilityOverride, VisibilityOverrides

FULL = SectionVisibility.FULL
_KEY = re.compile(r'with key "([^"]+)"')
_CHILDREN = re.compile(
    r'with key "([^"]+)" to view full content including subsections: ([^\]]+)\.\]'
)

type Overrides = dict[SectionPath, SectionVisibility]


def shown_keys(texts: Iterable[str]) -> list[str]:
    """Returns the keys that suffixes in `texts` give to the model."""
    return sorted({key for text in texts for key in _KEY.findall(text)})


def named_keys(texts: Sequence[str]) -> list[str]:
    """Returns the keys shown, and the keys of the children that suffixes name."""
    keys = set(shown_keys(texts))
    for text in texts:
        for key, children in _CHILDREN.findall(text):
            prefix = f"{key}."  # children of a root section are named by their own keys
            keys |= {
                child if child.startswith(prefix) else prefix + child
                for child in children.split(", ")
            }
    return sorted(keys)


def own_tools(names: Iterable[str]) -> list[str]:
    """Returns the prompt's own tools, sorted, because injection appends tools, but a new render
    keeps the order of declaration.
    """
    return sorted(name for name in names if name.startswith("tool-"))


def template(
    roots: Sequence[Plan], disclosure: Disclosure = Disclosure.READ, *, closable: bool = False
) -> PromptTemplate[Any]:
    return PromptTemplate(
        ns="tests", key="laws", sections=sections(roots), disclosure=disclosure, closable=closable
    )


# --- L1: keys round-trip


def answer_of(rendered: RenderedPrompt[Any], name: str, arguments: object) -> ToolResult[Any]:
    """Returns the answer of the disclosure tool with that name, which ignores its context."""
    handler: Any = next(tool for tool in rendered.tools if tool.name == name).handler
    result: ToolResult[Any] = handler(arguments, context=None)
    return result


@pytest.mark.claim("C-02")
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_every_printed_key_is_accepted_by_the_tool_named_with_it(
    data: st.DataObject,
) -> None:
    # L1: keys round-trip
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
    """Returns the params that the tree uses."""
    used = {plan.params for plan in _all(roots)}
    return params().map(lambda values: [value for value in values if type(value) in used])


def _all(roots: Sequence[Plan]) -> Iterable[Plan]:
    for plan in roots:
        yield plan
        yield from _all(plan.children)


# --- L2: reading shows what the prompt would


@pytest.mark.claim("C-20", "DT-11", "DT-13", "C-21", "DT-12", "DT-16", "PS-29", "DT-24", "U-11")
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_read_section_returns_the_section_as_rendered_in_full(
    data: st.DataObject,
) -> None:
    # L2: reading shows what the prompt would
    roots = data.draw(forests(3))
    assume(roots)
    disclosure = data.draw(st.sampled_from(Disclosure))
    prompt = template(roots, disclosure)
    given_params = data.draw(bound(roots))
    by_type: dict[type[Any], object] = {type(value): value for value in given_params}
    visibility = data.draw(overrides(roots))
    bodies = dict.fromkeys(
        data.draw(st.sets(st.sampled_from(sorted(paths(roots))), max_size=2)), "Another body."
    )

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
        inside = [
            name for name, path in after.tool_paths.items() if path[: len(node.path)] == node.path
        ]
        if before.visibility.get(node.path) is FULL:
            assert result.message == "Section is already expanded."
            assert result.value == ReadSectionResult(result.value.content)
        elif inside and disclosure is Disclosure.SPLIT:
            assert (
                result.message
                == f"Content of section '{node.key}', whose tools come with `open_sections`:"
            )
            assert result.value == ReadSectionResult(result.value.content)
        else:
            gained = (
                [name for name in after.tool_paths if name not in before.tool_paths]
                if inside
                else []
            )
            assert [tool.name for tool in result.value.expanded_tools] == gained
            # the opened sections suffice to show the section, with its tools, in a prompt that is
            # rendered again
            if inside:
                rendered = render(dict.fromkeys(result.value.opened, FULL))
                assert (rendered.text, rendered.visibility) == (after.text, after.visibility)
                assert rendered.tool_paths == after.tool_paths


# --- L8: injection equals restart


@dataclass(frozen=True)
class Stir:
    """The params of the tool that changes the world around a conversation."""

    number: int


@dataclass(frozen=True)
class World:
    """A tree in which conditions change, a tool that changes them, and the session."""

    roots: tuple[Plan, ...]
    disclosure: Disclosure = Disclosure.READ
    closable: bool = False
    flipped: set[SectionPath] = field(default_factory=set[SectionPath])

    def template(self, key: str = "laws") -> PromptTemplate[Any]:
        stir = Tool[Stir, object](name="stir", handler=self.stir)
        tree = [
            *sections(self.roots, flipped=self.flipped),
            MarkdownSection(title="Stir", template="", tools=[stir]),
            # so that disclosure tools exist
            MarkdownSection(title="Always", template="", visibility=SUMMARY),
        ]
        return PromptTemplate(
            ns="tests", key=key, sections=tree, disclosure=self.disclosure, closable=self.closable
        )

    def stir(self, params: Stir, *, context: ToolContext) -> ToolResult[object]:
        known = sorted(paths(self.roots))
        what, which = params.number % 4, params.number // 4
        path = known[which % len(known)] if known else ("none",)
        match what:
            case 0:
                self.flipped.symmetric_difference_update(known[which % 3 :: 3])
            case 1:
                context.session.dispatch(
                    SetVisibilityOverride(path=path, visibility=(FULL, SUMMARY)[which % 2])
                )
            # a conversation in the same session, with this prompt or with another one that has the
            # same keys
            case _:
                opens = opening(self.disclosure, [".".join(path)])
                adapter = ScriptedAdapter(
                    [opens, say("done"), say("done")], dynamic_tools=which % 2 == 0
                )
                inner = self.template("laws" if what == 2 else "other")
                MainLoop(adapter).execute(inner.bind(), session=context.session)
        return ToolResult("stirred")


type Turn = tuple[tuple[str, dict[str, Any]], ...]  # Any: arguments as JSON
"""The calls in one of the model's turns, by name and arguments."""


def opening(disclosure: Disclosure, keys: Sequence[str]) -> AssistantMessage:
    return call(*opening_calls(disclosure, keys))


def opening_calls(disclosure: Disclosure, keys: Sequence[str]) -> Turn:
    if disclosure is Disclosure.READ:
        return tuple(("read_section", {"section_key": key}) for key in keys)
    return (("open_sections", {"section_keys": keys, "reason": "why"}),)


@dataclass(frozen=True)
class Beginning:
    """The start of a conversation: the session's content, the caller's overrides, and who renders
    the prompt.
    """

    remembered: Overrides
    requested: Overrides
    without_session: bool


@dataclass(frozen=True)
class End:
    """The result of an execution."""

    overrides: Overrides
    visible: Overrides
    tools: list[str]


class Recording(ScriptedAdapter):
    """Stores the prompt with which the last evaluation began."""

    last: RenderedPrompt[Any]

    def connect(self, rendered: RenderedPrompt[Any], /) -> "Recording":
        self.last = rendered
        return self


def state(session: Session) -> Overrides:
    latest = session[VisibilityOverrides].latest()
    return {} if latest is None else dict(latest.overrides)


def session_with(remembered: Overrides) -> Session:
    session = Session()
    for path, visibility in remembered.items():
        session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
    return session


def shown_now(session: Session) -> Overrides:
    """Returns the sections before the last call of a disclosure tool."""
    return dict(session[ToolInvoked].all()[-1].current_visibility_state)


class Model:
    """Chooses randomly among the keys it has seen, and records its turns."""

    def __init__(self, numbers: Sequence[int], *, closes: bool, stirs: bool = True) -> None:
        self.numbers = list(numbers)
        self.closes = closes
        self.stirs = stirs
        self.turns: list[Turn] = []
        self.chosen: list[str] = []

    def reply(self, request: SeenRequest) -> AssistantMessage:
        texts = [
            text_of(message.content)
            for message in request.messages
            if isinstance(message, UserMessage | ToolMessage)
        ]
        keys = named_keys(texts)
        if not self.numbers:
            # its event has the current state
            return self.turn(("read_section", {"section_key": "none such"}))
        number = self.numbers.pop()
        if self.stirs and number % 3 == 0:
            return self.turn(("stir", {"number": number // 3}))
        if not keys:
            return self.turn(("read_section", {"section_key": "none such"}))
        calls: list[tuple[str, dict[str, Any]]] = []
        for _ in range(1 + number % 2 * (number // 7 % 3)):  # one call, or up to three in a turn
            number = number // 2 + 11
            closes = self.closes and self.chosen and number % 3 == 0
            among = self.chosen if closes else keys
            key = among[number // 3 % len(among)]
            self.chosen.append(key)
            calls.append(("close_section" if closes else "read_section", {"section_key": key}))
        return self.turn(*calls)

    def turn(self, *calls: tuple[str, dict[str, Any]]) -> AssistantMessage:
        self.turns.append(calls)
        return call(*calls)


def execute(prompt: Prompt[Any], adapter: Recording, session: Session, start: Beginning) -> None:
    """Executes with `MainLoop`, or by hand if the prompt is rendered without the session."""
    if not start.without_session:
        MainLoop(adapter, max_expansions=1_000).execute(
            prompt, session=session, visibility_overrides=start.requested
        )
        return
    rendered = prompt.render(visibility_overrides=start.requested)
    while True:
        try:
            adapter.evaluate(rendered, session=session)
            return
        except VisibilityExpansionRequired as signal:
            decisions, requested = signal.decisions, signal.requested_overrides
        assert decisions is not None
        for path, visibility in requested.items():
            session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
        rendered = prompt.render(decisions=decisions.changed(requested))


def by_injection(world: World, model: Model, start: Beginning) -> End:
    session = session_with(start.remembered)
    replies = len(model.numbers) + 1
    probed: Overrides = {}

    def probe(_: SeenRequest) -> AssistantMessage:
        probed.update({path: how for path, how in shown_now(session).items() if how is SUMMARY})
        return (
            call(*opening_calls(Disclosure.READ, [".".join(path) for path in probed]))
            if probed
            else say("done")
        )

    adapter = Recording([*([model.reply] * replies), probe, say("done")])
    ends: list[End] = []

    def ended(event: ToolInvoked) -> None:
        if event.requested_sections == ("none such",):
            tools = own_tools(adapter.requests[-1].tool_names)
            ends.append(End(state(session), dict(event.current_visibility_state), tools))

    session.bus.subscribe(ToolInvoked, ended)
    execute(Prompt(world.template()), adapter, session, start)
    # whatever is shown as a summary can be opened
    last = session[ToolInvoked].all()[len(session[ToolInvoked]) - len(probed) :]
    assert [event.requested_sections for event in last] == [(".".join(path),) for path in probed]
    assert all(event.content.startswith("Content of section") for event in last)
    return ends[-1]


def by_restart(world: World, turns: Sequence[Turn], start: Beginning) -> End:
    session = session_with(start.remembered)
    adapter = Recording([*(call(*turn) for turn in turns), say("done")], dynamic_tools=False)
    execute(Prompt(world.template()), adapter, session, start)
    assert len(adapter.requests) == len(turns) + 1
    return End(state(session), shown_now(session), own_tools(adapter.requests[-1].tool_names))


numbers = st.lists(st.integers(0, 9_999), max_size=8)


@pytest.mark.claim("DT-36")
@given(st.data())
@settings(max_examples=120, deadline=None)
def test_injection_and_restart_give_the_same_result(data: st.DataObject) -> None:
    # L8: five models per tree, so six hundred pairs of executions
    roots = data.draw(forests(3))
    closable = data.draw(st.booleans())
    start = Beginning(
        data.draw(overrides(roots)), data.draw(overrides(roots)), data.draw(st.booleans())
    )
    for drawn in data.draw(st.lists(numbers, min_size=5, max_size=5)):
        model = Model(drawn, closes=closable)
        injected = by_injection(World(roots, closable=closable), model, start)
        restarted = by_restart(World(roots, closable=closable), model.turns, start)
        assert injected == restarted


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_summarized_section_can_be_opened_whatever_has_changed(
    data: st.DataObject,
) -> None:
    # L8: injection equals restart; for the tools that start again
    roots = data.draw(forests(3))
    disclosure = data.draw(st.sampled_from([Disclosure.OPEN, Disclosure.SPLIT]))
    world = World(roots, disclosure)
    stirring = [call(("stir", {"number": number})) for number in data.draw(numbers)]
    session = session_with(data.draw(overrides(roots)))
    shown: Overrides = {}
    before: list[int] = []

    def probe(_: SeenRequest) -> AssistantMessage:
        before.append(len(session[ToolInvoked]))
        shown.update(adapter.last.visibility)
        view = adapter.last.view
        closed = [node for node, how in adapter.last.sections.items() if how is SUMMARY]
        keys = [node.key for node in closed if view.disclosure_tool(node) == "open_sections"]
        reads = [node.key for node in closed if node.key not in keys]
        calls = [
            *opening_calls(Disclosure.READ, reads),
            *(opening_calls(Disclosure.OPEN, keys) if keys else ()),
        ]
        return call(*calls) if calls else say("done")

    adapter = Recording([*stirring, probe, say("done")])
    execute(
        Prompt(world.template()),
        adapter,
        session,
        Beginning({}, data.draw(overrides(roots)), without_session=False),
    )
    assert all(event.success for event in session[ToolInvoked].all()[before[0] :])
    for path, how in shown.items():
        assert adapter.last.visibility[path] is (FULL if _opens(adapter.last, path) else how)


def _opens(rendered: RenderedPrompt[Any], path: SectionPath) -> bool:
    node = rendered.registry.get_section(path)
    return node is not None and rendered.view.disclosure_tool(node) == "open_sections"


def restless(roots: Sequence[Plan]) -> bool:
    """Returns whether a summarized section with a tool can be found, so that something happens."""
    return any(plan.visibility is SUMMARY and plan.tools and plan.enabled for plan in roots)


class Static(OpenAIAdapter):
    """An `OpenAIAdapter` for a provider that accepts no new tools during a conversation."""

    @property
    def supports_dynamic_tools(self) -> bool:
        return False


@pytest.mark.parametrize("api", ["responses", "chat"])
@given(roots=forests(2).filter(restless), drawn=numbers)
@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_injection_and_restart_give_the_same_result_through_the_real_sdk(
    api: Any, roots: tuple[Plan, ...], drawn: list[int]
) -> None:
    # L8: injection equals restart; a sample
    prompt = World(roots).template()
    model = Model(drawn, closes=False, stirs=False)
    start = Beginning({}, {}, without_session=False)
    expected = by_injection(World(roots), model, start)
    for kind in (OpenAIAdapter, Static):
        steps = [
            Say(calls=tuple(Call(name, arguments) for name, arguments in turn))
            for turn in model.turns
        ]
        session = Session()
        with ScriptedServer(*steps, Say("done")) as server:
            adapter: OpenAIAdapter = kind(
                "test-model", api=api, base_url=server.openai_url, api_key="sk-test", max_retries=0
            )
            MainLoop(adapter).execute(Prompt(prompt), session=session)
            sent = server.requests[-1].json.get("tools", [])
        names = own_tools(tool.get("name") or tool["function"]["name"] for tool in sent)
        assert End(state(session), shown_now(session), names) == expected
