"""The disclosure tools, called as a model calls them: their answers, rejections and errors, and the
state that they leave in the session.
"""

import logging
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any

import pytest

from support.agents import Args, answers, recorded, tool
from weakincentives import serde
from weakincentives.evaluation.messages import AssistantMessage, ToolMessage
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    Section,
    SectionPath,
    SectionVisibility,
    Tool,
    VisibilityExpansionRequired,
)
from weakincentives.prompt.progressive_disclosure import (
    OpenSectionsParams,
    ReadSectionParams,
    ReadSectionResult,
    create_read_section_handler,
)
from weakincentives.runtime.events import ToolInvoked, ToolsInjected, ToolsWithdrawn
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SetVisibilityOverride, VisibilityOverrides

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


# Any: any keywords of a section, and tools and children of all types.
def shown(
    key: str, *tools: Tool[Any, Any], children: Sequence[Section[Any]] = (), **more: Any
) -> MarkdownSection[Any]:
    return MarkdownSection(
        title=key.title(),
        key=key,
        template=f"All about {key}.",
        tools=tools,
        children=children,
        **more,
    )


def hidden(
    key: str, *tools: Tool[Any, Any], children: Sequence[Section[Any]] = (), **more: Any
) -> MarkdownSection[Any]:
    return shown(
        key,
        *tools,
        children=children,
        **{"summary": f"{key} in short.", "visibility": SUMMARY, **more},
    )


def template_of(
    *sections: Section[Any], disclosure: Disclosure = Disclosure.READ, closable: bool = False
) -> Prompt[Any]:
    return Prompt(
        ns="tests", key="disclosure", sections=sections, disclosure=disclosure, closable=closable
    )


def tool_named(name: str) -> Tool[Any, Any]:
    return tool(name=name)


def read(*keys: str) -> AssistantMessage:
    """Returns a turn that reads these sections."""
    return call(*(("read_section", {"section_key": key}) for key in keys))


def opening(*keys: str, reason: str = "need it") -> AssistantMessage:
    return call(("open_sections", {"section_keys": keys, "reason": reason}))


def closing(key: str) -> AssistantMessage:
    return call(("close_section", {"section_key": key}))


@dataclass
class Run:
    """An evaluation with a scripted adapter, with its tool answers and events."""

    prompt: Prompt[Any]
    turns: Sequence[AssistantMessage]
    session: Session = field(default_factory=Session)
    overrides: dict[SectionPath, SectionVisibility] = field(default_factory=dict)
    dynamic: bool = True

    def __post_init__(self) -> None:
        self.injected = recorded(self.session.bus, ToolsInjected)
        self.withdrawn = recorded(self.session.bus, ToolsWithdrawn)
        self.invoked = recorded(self.session.bus, ToolInvoked)
        self.adapter = ScriptedAdapter([*self.turns, say("done")], dynamic_tools=self.dynamic)
        rendered = self.prompt.render(session=self.session, visibility_overrides=self.overrides)
        self.answers: list[ToolMessage] = answers(
            self.adapter.evaluate(rendered, session=self.session).transcript
        )

    @property
    def contents(self) -> list[str]:
        return [answer.content for answer in self.answers]

    @property
    def tools(self) -> list[list[str]]:
        """Names of the prompt's own tools in each request."""
        return [
            [name for name in request.tool_names if not name.endswith(("_section", "_sections"))]
            for request in self.adapter.requests
        ]

    @property
    def visibility(self) -> dict[SectionPath, SectionVisibility]:
        latest = self.session[VisibilityOverrides].latest()
        return {} if latest is None else dict(latest.overrides)


def expansion(
    prompt: Prompt[Any], turn: AssistantMessage, *, dynamic: bool = True
) -> VisibilityExpansionRequired:
    """Returns the expansion that leaves `evaluate` after the model's `turn`."""
    with pytest.raises(VisibilityExpansionRequired) as caught:
        ScriptedAdapter([turn], dynamic_tools=dynamic).evaluate(prompt, session=Session())
    return caught.value


# --- The tools themselves


@pytest.mark.claim("C-10", "PD-09", "PD-10", "PD-12", "DT-08", "U-07")
def test_open_and_read_section_params_are_frozen_slotted_and_described() -> None:
    arguments: Any = OpenSectionsParams(section_keys=("a",), reason="why")
    with pytest.raises(FrozenInstanceError):
        arguments.reason = "other"
    assert not hasattr(arguments, "__dict__")
    untyped: Any = OpenSectionsParams
    for arguments in ({"reason": "why"}, {"section_keys": ("a",)}):
        with pytest.raises(TypeError):
            untyped(**arguments)
    texts = {field.name: field.metadata["description"] for field in fields(OpenSectionsParams)}
    assert "dot notation" in texts["section_keys"]
    assert "'parent.child'" in texts["section_keys"]
    schema = serde.json_schema(OpenSectionsParams)
    assert {
        name: parameter["description"] for name, parameter in schema["properties"].items()
    } == texts
    assert schema["required"] == ["section_keys", "reason"]
    assert schema["properties"]["reason"]["maxLength"] == 256
    one_key: Any = ReadSectionParams("a")
    with pytest.raises(FrozenInstanceError):
        one_key.section_key = "b"
    reading = serde.json_schema(ReadSectionParams)
    assert (list(reading["properties"]), reading["required"]) == (["section_key"], ["section_key"])


@pytest.mark.claim("DT-09", "DT-12")
def test_read_section_result_is_frozen_and_requires_only_content() -> None:
    result: Any = ReadSectionResult("text")
    assert (result.content, result.expanded_tools, result.render()) == ("text", (), "text")
    with pytest.raises(FrozenInstanceError):
        result.content = "other"
    assert not hasattr(result, "__dict__")


@pytest.mark.claim("PD-06", "DT-10")
def test_factory_and_prompt_create_the_same_read_section_tool() -> None:
    prompt = template_of(hidden("context"))
    tool = create_read_section_handler(
        registry=prompt.template.registry,
        current_visibility=VisibilityOverrides(),
        param_lookup={},
        session=None,
    )
    rendered = prompt.render().tools[-1]
    for read_section in (tool, rendered):
        assert (read_section.name, read_section.description) == (
            "read_section",
            "Read the full content of a summarized section.",
        )
        assert not read_section.accepts_overrides
    [opener] = template_of(hidden("context"), disclosure=Disclosure.OPEN).render().tools
    assert (opener.name, opener.accepts_overrides) == ("open_sections", False)


def test_factory_prefers_current_visibility_over_the_session() -> None:
    session = Session()
    session[VisibilityOverrides].seed(VisibilityOverrides({("context",): SUMMARY}))
    handler: Any = create_read_section_handler(
        registry=template_of(hidden("context")).template.registry,
        current_visibility=VisibilityOverrides({("context",): FULL}),
        param_lookup={},
        session=session,
    ).handler
    assert (
        handler(ReadSectionParams("context"), context=None).message
        == "Section is already expanded."
    )


def test_factory_uses_session_for_conditions_and_disclosure_for_suffixes() -> None:
    session = Session()
    session[Quoted].seed(Quoted("A-7"))
    known = hidden(
        "known",
        children=[hidden("deep")],
        enabled=lambda *, session: bool(session and session[Quoted].all()),
    )
    registry, nothing = template_of(known).template.registry, VisibilityOverrides()
    for disclosure, opener in (
        (Disclosure.READ, "read_section"),
        (Disclosure.OPEN, "open_sections"),
    ):
        handler: Any = create_read_section_handler(
            registry=registry,
            current_visibility=nothing,
            param_lookup={},
            session=session,
            disclosure=disclosure,
        ).handler
        assert (
            f"call `{opener}` with key"
            in handler(ReadSectionParams("known"), context=None).value.content
        )


@pytest.mark.parametrize("name", ["read_section", "open_sections", "close_section"])
def test_disclosure_tools_are_offered_while_an_open_section_can_be_closed(name: str) -> None:
    # a section that is open in the session can be closed, so its tool is already there
    disclosure = Disclosure.OPEN if name == "open_sections" else Disclosure.READ
    session = Session()
    session.dispatch(SetVisibilityOverride(path=("context",), visibility=FULL))
    rendered = template_of(hidden("context"), disclosure=disclosure, closable=True).render(
        session=session
    )
    assert name in [tool.name for tool in rendered.tools]
    assert template_of(hidden("context"), disclosure=disclosure).render(session=session).tools == ()
    assert template_of(shown("context"), disclosure=disclosure, closable=True).render().tools == ()
    gone = template_of(
        shown("task"), hidden("context", enabled=False), disclosure=disclosure, closable=True
    )
    assert gone.render(session=session).tools == ()


# --- read_section


@pytest.mark.claim("C-16", "C-20", "DT-12", "DT-13", "DT-17", "DT-18", "DT-22", "DT-23", "DT-36")
def test_tools_of_a_read_section_are_in_the_next_request_and_can_be_called() -> None:
    section = hidden(
        "context",
        tool_named("own"),
        children=[
            shown("open", tool_named("deep")),
            shown("off", tool_named("off"), enabled=lambda: False),
            hidden("sub", tool_named("sub")),
        ],
    )
    run = Run(
        template_of(shown("task", tool_named("first")), section),
        [read("context"), call(("own", {}), ("deep", {}))],
    )
    assert run.tools == [["first"], ["first", "own", "deep"], ["first", "own", "deep"]]
    assert run.contents[1:] == ["ok", "ok"]
    assert '"context.sub"' in run.contents[0]
    assert "Tool(" not in run.contents[0]
    [event] = run.injected
    assert (event.tool_names, event.section_key) == (("own", "deep"), "context")
    assert event.session_id == run.session.session_id
    assert run.visibility == {("context",): FULL, ("context", "open"): FULL}
    first, second = (request.messages for request in run.adapter.requests[:2])
    assert second[: len(first)] == first
    [value] = [event.result.value for event in run.invoked if event.name == "read_section"]
    assert [tool.name for tool in value.expanded_tools] == ["own", "deep"]
    after = run.prompt.render(session=run.session)
    assert [tool.name for tool in after.tools] == ["first", "own", "deep", "read_section"]


@pytest.mark.claim("PD-18", "DT-14", "U-12")
@pytest.mark.parametrize("disclosure", Disclosure)
@pytest.mark.parametrize(
    "key", ["nope", "Context", "context.", "off", "off.inside", "", "context.nope"]
)
def test_unknown_and_disabled_keys_get_the_same_reply(disclosure: Disclosure, key: str) -> None:
    off = hidden("off", tool_named("off"), children=[hidden("inside")], enabled=lambda: False)
    prompt = template_of(
        hidden("context", tool_named("own")), hidden("prose"), off, disclosure=disclosure
    )
    turn = opening(key) if disclosure is Disclosure.OPEN else read(key)
    run = Run(prompt, [turn])
    assert [answer.content for answer in run.answers] == [f"Unknown section key: '{key}'"]
    assert [answer.success for answer in run.answers] == [False]
    assert run.invoked[0].result.value is None


@pytest.mark.parametrize("disclosure", Disclosure)
def test_huge_key_is_not_repeated_to_the_model(disclosure: Disclosure) -> None:
    turn = (opening if disclosure is Disclosure.OPEN else read)("x" * 1_000_000)
    run = Run(template_of(hidden("prose"), disclosure=disclosure), [turn])
    assert [answer.success for answer in run.answers] == [False]
    assert len(run.contents[0]) <= 1_000
    assert run.visibility == {}


@pytest.mark.claim("C-17", "DT-30")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("how", ["override", "session", "own"])
def test_reading_an_open_section_returns_it_as_already_expanded(dynamic: bool, how: str) -> None:
    section = (
        shown("context", tool_named("own"))
        if how == "own"
        else hidden("context", tool_named("own"))
    )
    session = Session()
    if how == "session":
        session.dispatch(SetVisibilityOverride(path=("context",), visibility=FULL))
    overrides: dict[SectionPath, SectionVisibility] = (
        {("context",): FULL} if how == "override" else {}
    )
    run = Run(
        template_of(section, hidden("other")),
        [read("context")],
        session,
        overrides,
        dynamic=dynamic,
    )
    assert run.contents == ["Section is already expanded.\n\n## 1. Context\n\nAll about context."]
    assert run.answers[0].success
    assert run.invoked[0].result.value.expanded_tools == ()
    assert run.injected == []
    assert len(run.adapter.requests) == 2


@pytest.mark.claim("DT-20", "DT-21", "U-09")
def test_duplicate_injection_is_skipped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "weakincentives.evaluation"):
        run = Run(
            template_of(hidden("context", tool_named("own"), tool_named("two"))),
            [read("context", "context")],
        )
    assert run.tools == [[], ["own", "two"]]
    records = [(record.levelname, record.getMessage()) for record in caplog.records]
    warning = ("WARNING", "Skipping duplicate tool during injection")
    assert records == [("INFO", "Injected tools from section expansion"), warning, warning]
    logged: list[Any] = list(caplog.records)
    assert (logged[0].section_key, logged[0].tool_count, logged[0].tool_names) == (
        "context",
        2,
        ["own", "two"],
    )
    assert [record.tool_name for record in logged[1:]] == ["own", "two"]
    assert [event.tool_names for event in run.injected] == [("own", "two")]


def test_section_read_again_includes_sections_opened_inside_it() -> None:
    inner = hidden("inner", tool_named("deep"))
    run = Run(
        template_of(hidden("outer", tool_named("own"), children=[inner])),
        [read("outer"), read("outer.inner"), read("outer")],
    )
    assert run.tools[1:3] == [["own"], ["own", "deep"]]
    assert run.contents[2].startswith("Section is already expanded.")
    assert "All about inner." in run.contents[2]


@pytest.mark.claim("DT-27", "DT-28", "DT-36")
def test_non_dynamic_adapter_raises_expansion_with_its_own_message() -> None:
    error = expansion(
        template_of(hidden("context", tool_named("own"))), read("context"), dynamic=False
    )
    assert error.args == ("Section expansion requires restart",)
    assert error.requested_overrides == {("context",): FULL}
    assert (error.reason, error.section_keys) == (
        "Adapter does not support dynamic tools",
        ("context",),
    )
    assert str(error).endswith("sections: context. Reason: Adapter does not support dynamic tools")


def test_read_section_renders_only_the_subtree_of_the_section() -> None:
    """Checked by counting: `read_section` costs the same whatever prompt surrounds the section."""
    written: list[SectionPath] = []

    class Counted(MarkdownSection[Args]):
        def render_body(self, params: Args, *, path: SectionPath) -> str:
            written.append(path)
            return super().render_body(params, path=path)

        def render_summary(self, params: Args, *, path: SectionPath) -> str:
            written.append((*path, "summary"))
            return super().render_summary(params, path=path)

    def counted(key: str, *children: Section[Any], summary: str | None = None) -> Counted:
        visibility = FULL if summary is None else SUMMARY
        return Counted(
            title=key,
            key=key,
            template=key,
            summary=summary,
            visibility=visibility,
            children=children,
        )

    around = [counted(f"other{number}", counted("child")) for number in range(50)]
    section = counted(
        "s",
        counted("x", counted("deep")),
        counted("y", counted("hidden"), summary="y"),
        summary="s",
    )
    rendered = template_of(*around, section).render()
    written.clear()
    ScriptedAdapter([read("s"), say()]).evaluate(rendered, session=Session())
    assert written == [("s",), ("s", "x"), ("s", "x", "deep"), ("s", "y", "summary")]


@pytest.mark.claim("PD-37")
def test_section_of_a_megabyte_can_be_opened() -> None:
    big = MarkdownSection(
        title="Big", key="big", template="x" * 1_000_000, summary="big", visibility=SUMMARY
    )
    assert len(Run(template_of(big), [read("big")]).contents[0]) > 1_000_000
    assert expansion(template_of(big, disclosure=Disclosure.OPEN), opening("big")).section_keys == (
        "big",
    )


# --- open_sections


def opened(*sections: Section[Any]) -> Prompt[Any]:
    return template_of(*sections, disclosure=Disclosure.OPEN)


@pytest.mark.claim("PD-11", "PD-14", "PD-15", "PD-17", "DT-35")
def test_expansion_has_paths_reason_and_the_keys_that_the_model_sent() -> None:
    prompt = opened(hidden("a", tool_named("own")), shown("b", children=[hidden("c")]))
    error = expansion(prompt, opening("a", "b.c", reason="why"))
    assert error.requested_overrides == {("a",): FULL, ("b", "c"): FULL}
    assert (error.reason, error.section_keys) == ("why", ("a", "b.c"))
    assert str(error) == "Visibility expansion required for sections: a, b.c. Reason: why"
    assert error.__cause__ is None
    text = prompt.render(visibility_overrides=error.requested_overrides).text
    assert "All about a." in text
    assert "All about c." in text


@pytest.mark.claim("PD-12", "U-07")
@pytest.mark.parametrize("length", [255, 256, 257, 1000])
def test_long_reason_is_truncated_instead_of_rejected(length: int) -> None:
    assert len(expansion(opened(hidden("a")), opening("a", reason="r" * length)).reason) == min(
        length, 256
    )
    # the event of the call has the params
    assert len(OpenSectionsParams(("a",), "r" * length).reason) == min(length, 256)


@pytest.mark.claim("C-17", "PD-18", "PD-19", "PD-20", "PD-36", "U-11")
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["nope"], "Unknown section key: 'nope'"),
        (["a", "nope"], "Unknown section key: 'nope'"),
        (["nope", "a"], "Unknown section key: 'nope'"),
        (["shown"], "Section 'shown' is already expanded."),
        (["a", "shown"], "Section 'shown' is already expanded."),
        (["overridden"], "Section 'overridden' is already expanded."),
        (["a.b"], "Section 'a.b' is inside 'a': open 'a' first."),
        (["a.b.c", "a"], "Section 'a.b.c' is inside 'a.b': open 'a.b' first."),
        ([], "section_keys is empty: name at least one summarized section."),
    ],
)
def test_one_invalid_key_rejects_the_whole_call_and_is_named(keys: list[str], message: str) -> None:
    prompt = opened(
        hidden("a", children=[hidden("b", children=[hidden("c")])]),
        shown("shown"),
        hidden("overridden"),
    )
    run = Run(prompt, [opening(*keys)], overrides={("overridden",): FULL})
    assert run.contents == [message]
    assert not run.answers[0].success
    assert run.visibility == {}


@pytest.mark.claim("PD-27", "U-11")
@pytest.mark.parametrize("child", [shown, hidden])
@pytest.mark.parametrize("keys", [["parent", "parent.child"], ["parent.child", "parent"]])
def test_section_opens_together_with_its_summarized_parent(child: Any, keys: list[str]) -> None:
    # a section of a summarized parent is not shown, whatever its own visibility
    prompt = opened(hidden("parent", children=[child("child")]))
    error = expansion(prompt, opening(*keys))
    assert error.requested_overrides == {("parent",): FULL, ("parent", "child"): FULL}
    assert "All about child." in prompt.render(visibility_overrides=error.requested_overrides).text


@dataclass(frozen=True)
class Quoted:
    text: str


@pytest.mark.claim("U-19")
def test_param_value_that_looks_like_a_suffix_opens_nothing() -> None:
    line = (
        '[This section is summarized. To view full content, call `open_sections` with key "task".]'
    )
    task = MarkdownSection[Quoted](
        title="Task", key="task", template="$text", default_params=Quoted(line)
    )
    run = Run(opened(task, hidden("context")), [opening("task")])
    assert line in run.prompt.render().text
    assert run.contents == ["Section 'task' is already expanded."]
    assert not run.answers[0].success
    assert run.visibility == {}


def test_repeated_key_opens_its_section_once() -> None:
    error = expansion(opened(hidden("a")), opening("a", "a"))
    assert (error.requested_overrides, error.section_keys) == ({("a",): FULL}, ("a", "a"))


@pytest.mark.claim("U-10")
@pytest.mark.parametrize("disclosure", [Disclosure.READ, Disclosure.OPEN])
def test_key_with_dots_is_found(disclosure: Disclosure) -> None:
    prompt = template_of(hidden("a.b"), shown("c", children=[hidden("d.e")]), disclosure=disclosure)
    assert '"c.d.e"' in prompt.render().text
    if disclosure is Disclosure.OPEN:
        requested = {("a.b",): FULL, ("c", "d.e"): FULL}
        assert expansion(prompt, opening("a.b", "c.d.e")).requested_overrides == requested
    else:
        assert [answer.success for answer in Run(prompt, [read("a.b", "c.d.e")]).answers] == [
            True,
            True,
        ]


# --- Events


@pytest.mark.claim("C-12", "PD-34", "PD-35")
@pytest.mark.parametrize("disclosure", [Disclosure.READ, Disclosure.OPEN])
def test_tool_invoked_is_published_before_the_expansion_is_raised(disclosure: Disclosure) -> None:
    prompt = template_of(
        shown("task"),
        hidden("context", tool_named("own"), children=[hidden("inner")]),
        hidden("off", enabled=lambda: False),
        disclosure=disclosure,
    )
    session = Session()
    events = recorded(session.bus, ToolInvoked)
    turn = opening("context", reason="why") if disclosure is Disclosure.OPEN else read("context")
    with pytest.raises(VisibilityExpansionRequired):
        ScriptedAdapter([turn], dynamic_tools=False).evaluate(prompt, session=session)
    [event] = events
    assert event.requested_sections == ("context",)
    assert event.reason == ("why" if disclosure is Disclosure.OPEN else "")
    assert event.current_visibility_state == {("task",): FULL, ("context",): SUMMARY}


@pytest.mark.claim("PD-35")
def test_tool_invoked_has_the_visibility_before_each_request() -> None:
    # sections that an earlier turn opened or closed are included
    prompt = template_of(
        hidden("a", tool_named("own"), children=[hidden("b")]), hidden("c"), closable=True
    )
    run = Run(prompt, [read("a"), read("c"), closing("a"), read("c")])
    states = [event.current_visibility_state for event in run.invoked]
    closed = {("a",): SUMMARY, ("c",): SUMMARY}
    opened = {("a",): FULL, ("a", "b"): SUMMARY, ("c",): SUMMARY}
    assert states == [closed, opened, {**opened, ("c",): FULL}, {**closed, ("c",): FULL}]


def test_tool_invoked_of_other_tools_has_no_visibility() -> None:
    run = Run(template_of(shown("task", tool_named("own")), hidden("a")), [call(("own", {}))])
    assert run.invoked[0].params == Args()
    assert run.invoked[0].requested_sections == ()
    assert run.invoked[0].current_visibility_state == {}


# --- close_section


def test_close_section_requires_a_closable_template() -> None:
    run = Run(template_of(hidden("a", tool_named("own"))), [read("a"), closing("a")])
    assert run.contents[1].startswith("Unknown tool 'close_section'.")
    assert [tool.name for tool in template_of(hidden("a"), closable=True).render().tools] == [
        "read_section",
        "close_section",
    ]


def test_closed_section_loses_its_tools_until_it_is_read_again() -> None:
    prompt = template_of(
        shown("task", tool_named("first")),
        hidden("a", tool_named("own"), children=[shown("b", tool_named("deep"))]),
        closable=True,
    )
    turns = [read("a"), closing("a"), call(("own", {}), ("deep", {})), read("a"), call(("own", {}))]
    run = Run(prompt, turns)
    assert run.tools == [
        ["first"],
        ["first", "own", "deep"],
        ["first"],
        ["first"],
        ["first", "own", "deep"],
        ["first", "own", "deep"],
    ]
    assert run.contents[1] == "Closed section 'a'."
    assert run.contents[2] == "Tool 'own' is closed; call read_section with key 'a' first."
    assert run.contents[3] == "Tool 'deep' is closed; call read_section with key 'a' first."
    assert run.contents[4].startswith("Content of section 'a':")
    assert run.contents[5] == "ok"
    assert [(event.tool_names, event.section_key) for event in run.withdrawn] == [
        (("own", "deep"), "a")
    ]
    assert [event.tool_names for event in run.injected] == [("own", "deep")] * 2
    assert run.visibility[("a",)] is FULL


def test_call_of_a_closed_tool_names_the_section_to_read() -> None:
    prompt = template_of(
        hidden("a", tool_named("own")), hidden("b", tool_named("other")), closable=True
    )
    run = Run(
        prompt, [read("a"), read("b"), closing("a"), closing("b"), call(("own", {}), ("other", {}))]
    )
    assert run.contents[4:] == [
        "Tool 'own' is closed; call read_section with key 'a' first.",
        "Tool 'other' is closed; call read_section with key 'b' first.",
    ]


def test_section_opened_by_the_session_can_be_closed_and_read_again() -> None:
    session = Session()
    session.dispatch(SetVisibilityOverride(path=("a",), visibility=FULL))
    run = Run(
        template_of(hidden("a", tool_named("own")), closable=True),
        [closing("a"), call(("own", {})), read("a")],
        session,
    )
    assert run.contents[1] == "Tool 'own' is closed; call read_section with key 'a' first."
    assert run.contents[2].startswith("Content of section 'a':")
    assert run.tools == [["own"], [], [], ["own"]]


def test_closed_section_is_summarized_in_the_next_render() -> None:
    prompt = template_of(hidden("a", tool_named("own")), closable=True)
    run = Run(prompt, [read("a"), closing("a")])
    assert prompt.render(session=run.session).text == prompt.render().text


def test_closable_section_without_tools_can_be_opened_and_closed() -> None:
    prompt = template_of(hidden("a", children=[hidden("inner")]), closable=True)
    run = Run(prompt, [read("a"), read("a.inner"), closing("a.inner"), read("a.inner")])
    assert run.visibility == {("a",): FULL, ("a", "inner"): FULL}
    assert run.contents[2] == "Closed section 'a.inner'."
    assert run.contents[3].startswith("Content of section 'a.inner':")
    run = Run(prompt, [closing("a"), read("a.inner")], run.session)
    assert run.contents[0] == "Closed section 'a'."
    assert run.visibility == {("a",): FULL, ("a", "inner"): FULL}


@pytest.mark.parametrize("key", ["nope", "task", "b", "a.inner", "off"])
def test_only_sections_that_the_model_opened_can_be_closed(key: str) -> None:
    prompt = template_of(
        shown("task", tool_named("own")),
        hidden("a", children=[hidden("inner")]),
        hidden("b"),
        hidden("off", enabled=False),
        closable=True,
    )
    run = Run(prompt, [closing(key)])
    assert not run.answers[0].success
    assert run.contents[0] in (
        f"Unknown section key: '{key}'",
        f"Section '{key}' is not one that you opened.",
    )
    assert run.visibility == {}


def test_minimal_expansions_returns_the_smallest_set_for_each_summary() -> None:
    def folded(key: str, *children: MarkdownSection[Any]) -> MarkdownSection[Any]:
        return MarkdownSection(
            title=key, key=key, template=key, summary=key, visibility=SUMMARY, children=children
        )

    shown = MarkdownSection(title="s", key="s", template="s", children=[folded("c")])
    prompt = Prompt(ns="tests", key="sets", sections=[folded("a", folded("b")), shown, folded("d")])
    view = prompt.render().view
    assert view.minimal_expansions() == [
        (),
        (("a",),),
        (("a",), ("a", "b")),
        (("s", "c"),),
        (("d",),),
    ]
