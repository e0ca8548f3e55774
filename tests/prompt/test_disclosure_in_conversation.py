"""An evaluation knows what it has shown: it ignores later changes of session and conditions."""

import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from support.agents import answers, recorded, tool
from weakincentives.evaluation.errors import BudgetExceededError, LimitError, TurnLimitError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import Expansion, MainLoop
from weakincentives.evaluation.messages import (
    AssistantMessage,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
)
from weakincentives.limits import Budget
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    Section,
    SectionPath,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.runtime.events import ParamsMissing, ToolInvoked, ToolsInjected, ToolsWithdrawn
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SetVisibilityOverride, VisibilityOverrides

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
READ, OPEN, SPLIT = Disclosure.READ, Disclosure.OPEN, Disclosure.SPLIT

type Overrides = dict[SectionPath, SectionVisibility]


# Any below: tools, sections and prompts of all types.
def hidden(
    key: str, *tools: Tool[Any, Any], children: Sequence[Section[Any]] = (), **more: Any
) -> Section[Any]:
    arguments: dict[str, Any] = {"summary": f"{key} in short.", "visibility": SUMMARY, **more}
    return MarkdownSection(
        title=key, key=key, template=f"All of {key}.", tools=tools, children=children, **arguments
    )


def shown(key: str, *tools: Tool[Any, Any], **more: Any) -> Section[Any]:
    return hidden(key, *tools, visibility=FULL, **more)


def template_of(
    *sections: Section[Any], disclosure: Disclosure = READ, closable: bool = False
) -> Prompt[Any]:
    return Prompt(
        ns="tests", key="conversation", sections=sections, disclosure=disclosure, closable=closable
    )


def tool_named(name: str, handler: Callable[..., Any] | None = None) -> Tool[Any, Any]:
    return tool(name=name) if handler is None else tool(handler, name=name)


def read(*keys: str) -> AssistantMessage:
    return call(*(("read_section", {"section_key": key}) for key in keys))


def opening(*keys: str) -> AssistantMessage:
    return call(("open_sections", {"section_keys": keys, "reason": "need it"}))


def closing(key: str) -> AssistantMessage:
    return call(("close_section", {"section_key": key}))


def disclosing(disclosure: Disclosure, key: str) -> AssistantMessage:
    return read(key) if disclosure is READ else opening(key)


def remembered(session: Session) -> Overrides:
    latest = session[VisibilityOverrides].latest()
    return {} if latest is None else dict(latest.overrides)


def run(
    prompt: Prompt[Any],
    *turns: AssistantMessage,
    session: Session | None = None,
    dynamic: bool = True,
    **options: Any,
) -> list[str]:
    """Returns the answers to tool calls in an execution's last evaluation."""
    adapter = ScriptedAdapter([*turns, say("done")], dynamic_tools=dynamic)
    done = MainLoop(adapter).execute(prompt, session=session or Session(), **options)
    return [answer.content for answer in answers(done.response.transcript)]


# --- What changes the session or a condition in mid-run


def overriding(path: SectionPath, visibility: SectionVisibility) -> Tool[Any, Any]:
    def handler(params: Any, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
        return ToolResult("changed")

    return tool_named("change", handler)


def delegating(inner: Callable[[], Prompt[Any]]) -> Tool[Any, Any]:
    def handler(params: Any, *, context: ToolContext) -> ToolResult[None]:
        loop = MainLoop(context.adapter)
        done = loop.execute(inner(), session=context.session, bus=context.event_bus)
        return ToolResult(done.text)

    return tool_named("change", handler)


@dataclass(frozen=True)
class Flag:
    """State that changes the result of a condition."""


def flagging() -> Tool[Any, Any]:
    def handler(params: Any, *, context: ToolContext) -> ToolResult[None]:
        context.session.dispatch(Flag())
        return ToolResult("changed")

    return tool_named("change", handler)


def flips(*, session: Any) -> SectionVisibility:
    return FULL if session[Flag].all() else SUMMARY


def vanishes(*, session: Any) -> bool:
    return not session[Flag].all()


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("disclosure", Disclosure)
@pytest.mark.parametrize(
    "cause", ["handler", "nested run", "nested run of another prompt", "visibility", "enabled"]
)
def test_section_rendered_as_summary_can_be_opened_despite_later_changes(
    cause: str,
    disclosure: Disclosure,
    dynamic: bool,
) -> None:
    opens = disclosing(disclosure, "context")
    between: list[AssistantMessage] = []
    conditions: dict[str, Any] = {}
    match cause:
        case "handler":
            change = overriding(("context",), FULL)
        case "visibility":
            change, conditions = flagging(), {"visibility": flips}
        case "enabled":
            change, conditions = flagging(), {"enabled": vanishes}
        case _:
            own = cause == "nested run"

            def inner() -> Prompt[Any]:
                key = "main" if own else "other"
                return template_of(
                    shown(key), hidden("context", tool_named("search")), disclosure=disclosure
                )

            change, between = delegating(inner), [opens, say("nested done")]
    prompt = template_of(
        shown("main", change),
        hidden("context", tool_named("search"), **conditions),
        disclosure=disclosure,
    )
    contents = run(
        prompt, call(("change", {})), *between, opens, call(("search", {})), dynamic=dynamic
    )
    assert contents[-1] == "ok"


def test_condition_is_evaluated_once_per_conversation_even_after_restarts() -> None:
    calls: list[str] = []

    def condition(name: str, *, answer: object) -> Callable[..., Any]:
        def ask() -> object:
            calls.append(name)
            return answer

        return ask

    def prompt() -> Prompt[Any]:
        conditions: dict[str, Any] = {
            "enabled": condition("deep?", answer=True),
            "visibility": condition("deep", answer=SUMMARY),
        }
        deep = hidden("deep", tool_named("dig"), **conditions)
        guide = hidden("guide", children=[deep], visibility=condition("guide", answer=SUMMARY))
        return template_of(
            guide, hidden("rest", tool_named("last"), enabled=condition("rest?", answer=True))
        )

    for dynamic in (True, False):
        calls.clear()
        turns = [read("guide"), read("rest"), read("guide"), read("guide.deep"), call(("dig", {}))]
        contents = run(prompt(), *turns, dynamic=dynamic)
        assert contents[-1] == "ok"
        assert sorted(calls) == ["deep", "deep?", "guide", "rest?"]


def test_measuring_a_section_does_not_fix_its_visibility() -> None:
    # the size that the event log measures at the start must differ from what the model gets later
    from weakincentives.prompt.sizes import measure

    session = Session()
    prompt = template_of(
        hidden("guide", children=[hidden("deep", tool_named("dig"), visibility=flips)])
    )
    rendered = prompt.render(session=session)
    measure(rendered.view)
    session.dispatch(Flag())
    adapter = ScriptedAdapter([read("guide"), say()])
    adapter.evaluate(rendered, session=session)
    assert "dig" in adapter.requests[1].tool_names


# --- Rendered without the session, or twice evaluated


def test_prompt_rendered_without_a_session_tracks_opened_and_closed_sections() -> None:
    prompt = template_of(
        hidden("a", tool_named("own"), children=[shown("b", tool_named("deep"))]), closable=True
    )
    adapter = ScriptedAdapter(
        [
            read("a"),
            read("a"),
            closing("a.b"),
            call(("deep", {})),
            closing("a"),
            call(("own", {})),
            say(),
        ]
    )
    session = Session()
    contents = [
        message.content
        for message in answers(adapter.evaluate(prompt.render(), session=session).transcript)
    ]
    assert contents[1].startswith("Section is already expanded.")
    assert contents[2:] == [
        "Closed section 'a.b'.",
        "Tool 'deep' is closed; call read_section with key 'a.b' first.",
        "Closed section 'a'.",
        "Tool 'own' is closed; call read_section with key 'a' first.",
    ]
    assert adapter.requests[-1].tool_names == ("read_section", "close_section")
    assert remembered(session) == {("a",): SUMMARY, ("a", "b"): SUMMARY}


def test_rendered_prompt_starts_from_scratch_in_each_evaluation() -> None:
    session = Session()
    rendered = template_of(
        hidden("a", tool_named("own"), children=[hidden("b", visibility=flips)])
    ).render(session=session)
    for shows in ("b in short.", "All of b."):
        adapter = ScriptedAdapter([read("a"), call(("own", {})), say()])
        contents = [
            message.content
            for message in answers(adapter.evaluate(rendered, session=session).transcript)
        ]
        assert contents[0].startswith("Content of section 'a':")
        assert shows in contents[0]
        assert contents[1] == "ok"
        session.dispatch(Flag())  # b was not evaluated, so each conversation does that again


@pytest.mark.parametrize("dynamic", [True, False])
def test_caller_override_to_summary_takes_precedence_over_session_until_read(
    dynamic: bool,
) -> None:
    session = Session()
    session.dispatch(SetVisibilityOverride(path=("a",), visibility=FULL))
    prompt = template_of(hidden("a", tool_named("own")), closable=True)
    injected = recorded(session.bus, ToolsInjected)
    adapter = ScriptedAdapter(
        [closing("a"), read("a"), read("a"), closing("a"), call(("own", {})), say()],
        dynamic_tools=dynamic,
    )
    MainLoop(adapter).execute(prompt, session=session, visibility_overrides={("a",): SUMMARY})
    contents = [event.content for event in session[ToolInvoked]]
    assert contents[0] == "Section 'a' is not one that you opened."
    assert contents[2].startswith("Section is already expanded.")
    assert contents[3:] == [
        "Closed section 'a'.",
        "Tool 'own' is closed; call read_section with key 'a' first.",
    ]
    assert len(injected) == int(dynamic)
    assert remembered(session) == {("a",): SUMMARY}


def test_visibility_override_from_a_handler_applies_from_the_next_execution() -> None:
    session = Session()
    prompt = template_of(
        shown("main", overriding(("rest",), FULL)),
        hidden("rest", tool_named("last")),
        hidden("a", tool_named("own")),
    )
    adapter = ScriptedAdapter([call(("change", {})), read("a"), say(), say()], dynamic_tools=False)
    MainLoop(adapter).execute(prompt, session=session)
    assert "last" not in adapter.requests[-1].tool_names
    MainLoop(adapter).execute(prompt, session=session)
    assert "last" in adapter.requests[-1].tool_names


# --- Suffixes


def test_suffix_lists_only_enabled_children() -> None:
    children = [
        shown("on"),
        shown("off", enabled=False),
        shown("later", enabled=lambda: False),
        hidden("short", enabled=lambda: True),
    ]
    for disclosure, opener in ((READ, "read_section"), (OPEN, "open_sections")):
        text = template_of(hidden("a", children=children), disclosure=disclosure).render().text
        assert text.endswith(
            f'[This section is summarized. Call `{opener}` with key "a" to view full content '
            "including subsections: on, short.]"
        )
    text = template_of(hidden("a", children=children[1:3])).render().text
    assert text.endswith(
        '[This section is summarized. To view full content, call `read_section` with key "a".]'
    )


def test_nested_suffix_lists_full_keys_that_the_tool_accepts() -> None:
    text = (
        template_of(shown("a", children=[hidden("b", children=[shown("c"), hidden("d")])]))
        .render()
        .text
    )
    assert text.endswith(
        'with key "a.b" to view full content including subsections: a.b.c, a.b.d.]'
    )
    contents = run(
        template_of(shown("a", children=[hidden("b", children=[shown("c"), hidden("d")])])),
        read("a.b.c", "a.b.d"),
    )
    assert [content.partition("\n")[0] for content in contents] == [
        "Content of section 'a.b.c':",
        "Content of section 'a.b.d':",
    ]


@pytest.mark.parametrize("enabled", [False, lambda: False])
def test_split_suffix_names_read_section_if_all_tools_are_disabled(enabled: Any) -> None:
    deep = shown("deep", children=[shown("deeper", tool_named("never"))], enabled=enabled)
    prompt = template_of(hidden("a", children=[shown("b", children=[deep])]), disclosure=SPLIT)
    assert [tool.name for tool in prompt.render().tools] == ["read_section"]
    assert "`read_section`" in prompt.render().text


# --- Tools of sections that are not open


@pytest.mark.parametrize(
    ("disclosure", "how"),
    [
        (READ, "call read_section with key 'a.b' first"),
        (OPEN, "call open_sections with keys 'a', 'a.b' first"),
    ],
)
def test_call_of_tool_in_closed_section_explains_how_to_open_it(
    disclosure: Disclosure, how: str
) -> None:
    inner = hidden(
        "b", tool_named("deep"), children=[shown("off", tool_named("gone"), enabled=False)]
    )
    prompt = template_of(hidden("a", tool_named("own"), children=[inner]), disclosure=disclosure)
    contents = run(prompt, call(("own", {}), ("deep", {}), ("gone", {}), ("nope", {})))
    opener = "read_section" if disclosure is READ else "open_sections"
    assert contents == [
        f"Tool 'own' is closed; call {opener} with key 'a' first.",
        f"Tool 'deep' is closed; {how}.",
        f"Unknown tool 'gone'. Available tools: {opener}.",
        f"Unknown tool 'nope'. Available tools: {opener}.",
    ]


def test_tool_works_after_opening_the_sections_that_the_error_names() -> None:
    prompt = template_of(hidden("a", children=[hidden("b", tool_named("deep"))]), disclosure=OPEN)
    adapter = ScriptedAdapter([call(("deep", {})), opening("a", "a.b"), call(("deep", {})), say()])
    done = MainLoop(adapter).execute(prompt, session=Session())
    assert [message.content for message in answers(done.response.transcript)] == ["ok"]


@pytest.mark.claim("U-17")
def test_tool_of_a_section_just_opened_is_available_from_the_next_turn() -> None:
    prompt = template_of(hidden("a", tool_named("own")))
    contents = run(
        prompt, call(("read_section", {"section_key": "a"}), ("own", {})), call(("own", {}))
    )
    assert contents[1:] == ["Unknown tool 'own'. It is available from the next turn on.", "ok"]


# --- SPLIT


@pytest.mark.parametrize("dynamic", [True, False])
def test_read_section_under_split_does_not_open_a_section_with_tools(
    dynamic: bool,
) -> None:
    session = Session()
    prompt = template_of(hidden("a", tool_named("own")), hidden("prose"), disclosure=SPLIT)
    adapter = ScriptedAdapter([read("a"), call(("own", {})), say()], dynamic_tools=dynamic)
    contents = [
        message.content for message in answers(adapter.evaluate(prompt, session=session).transcript)
    ]
    assert contents == [
        "Content of section 'a', whose tools come with `open_sections`:\n\n## 1. a\n\nAll of a.",
        "Tool 'own' is closed; call open_sections with key 'a' first.",
    ]
    assert session[VisibilityOverrides].all() == ()
    assert session[ToolsInjected].all() == ()


# --- Several requests in one turn


OPENINGS = call(
    *(("open_sections", {"section_keys": [key], "reason": f"why {key}"}) for key in "abc")
)


@pytest.mark.parametrize(
    ("disclosure", "turn", "reason"),
    [
        (READ, read("a", "b", "c"), "Adapter does not support dynamic tools"),
        (OPEN, OPENINGS, "why a; why b; why c"),
    ],
)
def test_sections_requested_in_one_turn_open_in_one_restart(
    disclosure: Disclosure, turn: AssistantMessage, reason: str
) -> None:
    session = Session()
    prompt = template_of(
        *(hidden(key, tool_named(f"of-{key}")) for key in "abc"), disclosure=disclosure
    )
    adapter = ScriptedAdapter([turn, say()], dynamic_tools=False)
    done = MainLoop(adapter, max_expansions=1).execute(prompt, session=session)
    assert done.expansions == (Expansion(("a", "b", "c"), reason),)
    assert remembered(session) == {("a",): FULL, ("b",): FULL, ("c",): FULL}
    assert [name for name in adapter.requests[-1].tool_names if name.startswith("of-")] == [
        "of-a",
        "of-b",
        "of-c",
    ]
    assert [event.requested_sections for event in session[ToolInvoked]] == [("a",), ("b",), ("c",)]


def test_expansion_reason_is_truncated() -> None:
    turn = call(*(("open_sections", {"section_keys": [key], "reason": key * 200}) for key in "ab"))
    with pytest.raises(VisibilityExpansionRequired) as caught:
        ScriptedAdapter([turn]).evaluate(
            template_of(hidden("a"), hidden("b"), disclosure=OPEN), session=Session()
        )
    assert len(caught.value.reason) == 256
    assert (caught.value.run_usage.calls, caught.value.run_usage.tool_calls) == (1, 2)


@pytest.mark.parametrize("mode", ["in_order", "isolated"])
def test_calls_run_only_if_they_precede_the_expansion_request(mode: Any) -> None:
    ran: list[str] = []

    def noting(name: str) -> Tool[Any, Any]:
        def handler(params: Any, *, context: ToolContext) -> ToolResult[None]:
            ran.append(name)
            return ToolResult(name)

        return tool_named(name, handler)

    def paying(params: Any, *, context: ToolContext) -> ToolResult[None]:
        ran.append("pay")
        return ToolResult(f"paid {ran.count('pay')}")

    pay = Tool[Any, Any](
        name="pay", handler=paying, params_type=Flag, result_type=object, effect="at_most_once"
    )
    read_a, read_b = (("read_section", {"section_key": key}) for key in "ab")
    turn = call(
        ("one", {}),
        ("pay", {}),
        read_a,
        ("two", {}),
        ("pay", {}),
        ("nope", {}),
        read_b,
        ("two", {}),
    )
    adapter = ScriptedAdapter(
        [turn, call(("pay", {}), ("pay", {})), say()],
        dynamic_tools=False,
        config=RunConfig(parallel_tool_calls=mode),
    )
    session = Session()
    prompt = template_of(
        shown("main", noting("one"), noting("two"), pay),
        hidden("a", tool_named("x")),
        hidden("b", tool_named("y")),
    )
    done = MainLoop(adapter).execute(prompt, session=session)
    # the first is a record
    assert [message.content for message in answers(done.response.transcript)] == [
        "paid 1",
        "paid 2",
    ]
    assert ran == ["one", "pay", "pay"]
    events = [(event.name, event.replayed) for event in session[ToolInvoked]]
    assert events == [
        ("one", False),
        ("pay", False),
        ("read_section", False),
        ("read_section", False),
        ("pay", True),
        ("pay", False),
    ]
    assert done.restarts == 1


def test_requests_of_one_turn_build_on_each_other_and_skip_invalid_ones() -> None:
    turn = call(
        *(
            ("open_sections", {"section_keys": [key], "reason": "r"})
            for key in ("a", "nope", "a.b", "a")
        )
    )
    session = Session()
    adapter = ScriptedAdapter([turn, say()])
    prompt = template_of(hidden("a", children=[hidden("b", tool_named("deep"))]), disclosure=OPEN)
    done = MainLoop(adapter).execute(prompt, session=session)
    assert done.expansions == (Expansion(("a", "a.b"), "r"),)
    assert "deep" in adapter.requests[-1].tool_names
    assert [event.success for event in session[ToolInvoked]] == [True, False, True, False]


@pytest.mark.parametrize("dynamic", [True, False])
def test_close_and_read_in_one_turn_work_with_injection_and_restart(
    dynamic: bool,
) -> None:
    session = Session()
    withdrawn = recorded(session.bus, ToolsWithdrawn)
    turn = call(("read_section", {"section_key": "b"}), ("close_section", {"section_key": "a"}))
    prompt = template_of(
        hidden("a", tool_named("own")), hidden("b", tool_named("other")), closable=True
    )
    adapter = ScriptedAdapter([read("a"), turn, say()], dynamic_tools=dynamic)
    MainLoop(adapter).execute(prompt, session=session)
    assert remembered(session) == {("a",): SUMMARY, ("b",): FULL}
    assert {"own", "other"} & {*adapter.requests[-1].tool_names} == {"other"}
    assert [event.tool_names for event in withdrawn] == [("own",)]


@pytest.mark.parametrize("dynamic", [True, False])
def test_reopened_section_shows_the_child_read_in_the_same_turn(
    dynamic: bool,
) -> None:
    session = Session()
    turn = call(
        ("read_section", {"section_key": "a.b"}),
        ("close_section", {"section_key": "a"}),
        ("read_section", {"section_key": "a"}),
    )
    child = hidden("b", tool_named("deep"))
    prompt = template_of(hidden("a", tool_named("own"), children=[child]), closable=True)
    adapter = ScriptedAdapter([read("a"), turn, say()], dynamic_tools=dynamic)
    MainLoop(adapter).execute(prompt, session=session)
    assert remembered(session) == {("a",): FULL, ("a", "b"): FULL}
    assert {"own", "deep"} <= {*adapter.requests[-1].tool_names}


def test_child_closed_after_it_was_read_stays_closed_when_parent_is_read() -> None:
    child = hidden("b", tool_named("deep"))
    prompt = template_of(hidden("a", tool_named("own"), children=[child]), closable=True)
    turns = [
        read("a.b"),
        call(("close_section", {"section_key": "a.b"})),
        call(("close_section", {"section_key": "a"})),
        read("a"),
        say(),
    ]
    adapter = ScriptedAdapter(turns)
    MainLoop(adapter).execute(prompt, session=Session())
    assert {"own", "deep"} & {*adapter.requests[-1].tool_names} == {"own"}


def test_tool_call_budget_includes_requests_and_opens_those_within_it() -> None:
    prompt = template_of(*(hidden(key, tool_named(f"of-{key}")) for key in "abc"))
    session = Session()
    adapter = ScriptedAdapter([read("a", "b", "c"), call(("of-a", {})), say()], dynamic_tools=False)
    with pytest.raises(BudgetExceededError, match="max_tool_calls"):
        MainLoop(adapter).execute(prompt, session=session, budget=Budget(max_tool_calls=2))
    assert remembered(session) == {("a",): FULL, ("b",): FULL}


def test_section_closed_before_the_tool_call_budget_ends_a_turn_is_reported() -> None:
    prompt = template_of(*(hidden(key, tool_named(f"of-{key}")) for key in "abc"), closable=True)
    turn = call(
        ("close_section", {"section_key": "a"}),
        ("read_section", {"section_key": "b"}),
        ("read_section", {"section_key": "c"}),
    )
    session = Session()
    adapter = ScriptedAdapter([read("a"), turn, say()], dynamic_tools=False)
    MainLoop(adapter).execute(prompt, session=session, budget=Budget(max_tool_calls=3))
    assert [event.tool_names for event in session[ToolsWithdrawn]] == [("of-a",)]
    assert remembered(session) == {("a",): SUMMARY, ("b",): FULL}


def test_visibility_expansion_with_decisions_can_be_pickled() -> None:
    prompt = template_of(
        hidden("a", tool_named("own")),
        hidden("b", tool_named("other"), visibility=flips),
        closable=True,
    )
    with pytest.raises(VisibilityExpansionRequired) as caught:
        ScriptedAdapter([read("b")], dynamic_tools=False).evaluate(prompt, session=Session())
    restored = pickle.loads(pickle.dumps(caught.value))
    assert restored.decisions is not None
    assert restored.decisions.visibility == {("b",): SUMMARY}
    assert (restored.args, restored.requested_overrides) == (
        caught.value.args,
        caught.value.requested_overrides,
    )


# --- Limits


LIMITS: list[tuple[Any, type[LimitError]]] = [
    ({"config": RunConfig(max_turns=2)}, TurnLimitError),
    ({"config": RunConfig(budget=Budget(max_tool_calls=2))}, BudgetExceededError),
]


@pytest.mark.parametrize(("options", "error"), LIMITS, ids=["turns", "tool calls"])
def test_section_changes_are_recorded_if_a_limit_ends_the_evaluation(
    options: Any, error: type[LimitError]
) -> None:
    session = Session()
    turn = call(
        ("close_section", {"section_key": "a"}),
        ("read_section", {"section_key": "b"}),
        ("nope", {}),
    )
    injected, withdrawn = (
        recorded(session.bus, ToolsInjected),
        recorded(session.bus, ToolsWithdrawn),
    )
    session.dispatch(SetVisibilityOverride(path=("a",), visibility=FULL))
    prompt = template_of(
        hidden("a", tool_named("own")), hidden("b", tool_named("other")), closable=True
    )
    replies = [call(("own", {})), turn] if error is TurnLimitError else [turn]
    adapter = ScriptedAdapter(replies, **options)
    with pytest.raises(error) as caught:
        adapter.evaluate(prompt, session=session)
    transcript = caught.value.transcript
    assert [entry for entry in transcript if isinstance(entry, ToolsRemoved)] == [
        ToolsRemoved(("own",))
    ]
    assert [
        [tool.name for tool in entry.tools] for entry in transcript if isinstance(entry, ToolsAdded)
    ] == [["other"]]
    assert remembered(session) == {("a",): SUMMARY, ("b",): FULL}
    assert [event.tool_names for event in injected] == [("other",)]
    assert [event.tool_names for event in withdrawn] == [("own",)]
    unrun = [entry.content for entry in transcript if isinstance(entry, ToolMessage)][-1]
    assert unrun.startswith("Not run" if error is BudgetExceededError else "Unknown tool 'nope'.")


# --- Missing params


@dataclass(frozen=True)
class Needed:
    value: str


def needing(*tools: Tool[Any, Any]) -> Section[Any]:
    return MarkdownSection[Needed](title="Deep", key="deep", template="$value", tools=tools)


@pytest.mark.parametrize("disclosure", Disclosure)
def test_missing_params_below_a_summary_are_reported_at_the_start(
    disclosure: Disclosure, caplog: pytest.LogCaptureFixture
) -> None:
    off = MarkdownSection[Needed](title="Off", key="off", template="$value", enabled=False)
    intro = MarkdownSection(title="Intro", key="intro", template="Hello.")
    guide = hidden("guide", children=[needing(), off])
    prompt = template_of(intro, guide, disclosure=disclosure)
    rendered = prompt.render()
    assert rendered.missing_params == {("guide", "deep"): Needed}
    session = Session()
    with caplog.at_level(logging.WARNING):
        ScriptedAdapter([say()]).evaluate(rendered, session=session)
    [event] = session[ParamsMissing]
    assert (event.ns, event.key, event.sections) == ("tests", "conversation", ("guide.deep",))
    assert event.remedy == "bind them: prompt.bind(Needed(…))"
    assert event.remedy in caplog.text
    ScriptedAdapter([say()]).evaluate(prompt.bind(Needed("x")), session=session)
    assert len(session[ParamsMissing]) == 1


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("disclosure", Disclosure)
def test_opening_a_section_without_its_params_informs_model_and_author(
    disclosure: Disclosure,
    dynamic: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prompt = template_of(
        hidden("guide", children=[needing(tool_named("own"))]), disclosure=disclosure
    )
    session = Session()
    assert run(prompt, disclosing(disclosure, "guide"), session=session, dynamic=dynamic) == [
        "This section cannot be shown in this conversation; go on without it."
    ]
    assert remembered(session) == {}
    assert "prompt.bind(Needed(…))" in caplog.text


def test_params_with_a_default_are_not_reported_as_missing() -> None:
    child = MarkdownSection[Flag](title="Deep", key="deep", template="x")
    assert template_of(hidden("guide", children=[child])).render().missing_params == {}
    default = MarkdownSection[Needed](
        title="D", key="d", template="$value", default_params=Needed("x")
    )
    assert template_of(hidden("guide", children=[needing(), default])).render().missing_params == {}


def test_closing_a_section_removes_tools_opened_inside_it_in_the_same_turn() -> None:
    prompt = template_of(
        hidden("a", tool_named("own"), children=[hidden("b", tool_named("deep"))]), closable=True
    )
    turn = call(("read_section", {"section_key": "a.b"}), ("close_section", {"section_key": "a"}))
    adapter = ScriptedAdapter([read("a"), turn, say("done")])
    adapter.evaluate(prompt, session=Session())
    assert adapter.requests[1].tool_names == ("read_section", "close_section", "own")
    assert adapter.requests[2].tool_names == ("read_section", "close_section")
