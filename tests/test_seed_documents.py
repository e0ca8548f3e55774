"""The documents that this library is based on: their imports, examples and test patterns work.

Adapted where the project decided otherwise: headings read `## 1. Title`, substitution is strict,
the renderer owns headings, and tool arguments are called `section_keys`.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from weakincentives import MarkdownSection, Prompt, serde
from weakincentives.evaluation.schemas import tool_to_spec
from weakincentives.prompt import (
    Disclosure,
    PromptRenderer,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    SectionVisibility,
    StructuredOutputConfig,
    Tool,
    ToolContext,
    ToolOverride,
    ToolResult,
    VisibilityOverrides,
)
from weakincentives.prompt.errors import VisibilityExpansionRequired
from weakincentives.runtime.events import InProcessEventBus, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

IMPORTS = [
    "from weakincentives import Prompt, MarkdownSection",
    "from weakincentives.adapters.core import ProviderAdapter",
    "from weakincentives.adapters.openai import OpenAIAdapter",
    "from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult",
    "from weakincentives.prompt import MarkdownSection, PromptTemplate, SectionVisibility",
    "from weakincentives.prompt import PromptTemplate",
    "from weakincentives.prompt import ToolContext, ToolHandler, ToolResult",
    "from weakincentives.prompt import VisibilityOverrides, SectionVisibility",
    "from weakincentives.prompt.errors import VisibilityExpansionRequired",
    "from weakincentives.prompt.prompt import Prompt, RenderedPrompt",
    "from weakincentives.runtime.events import EventBus",
    "from weakincentives.runtime.events import InProcessEventBus",
    "from weakincentives.runtime.session import Session",
    "from weakincentives.runtime.session.protocols import SessionProtocol",
]


@pytest.mark.claim("TL-42", "PR-05")
@pytest.mark.parametrize("line", IMPORTS)
def test_documented_import_lines_work(line: str) -> None:
    names: dict[str, object] = {}
    exec(line, names)  # noqa: S102 - the line itself is what is tested
    assert set(line.partition(" import ")[2].split(", ")) <= names.keys()


# --------------------------------------------------------------------------------------------------
# tools


@dataclass
class LookupParams:
    entity_id: str = field(metadata={"description": "Global identifier to fetch"})
    include_related: bool = field(default=False)


@dataclass
class LookupResult:
    entity_id: str
    document_url: str


def lookup_handler(params: LookupParams, *, context: ToolContext) -> ToolResult[LookupResult]:
    result = LookupResult(entity_id=params.entity_id, document_url="https://example.com")
    message = f"Fetched entity {result.entity_id}."
    return ToolResult(message=message, value=result)


@pytest.mark.claim("TL-28")
def test_tools_example_runs_as_documented() -> None:
    lookup_tool = Tool[LookupParams, LookupResult](
        name="lookup_entity",
        description="Fetch structured information for a given entity id.",
        handler=lookup_handler,
    )
    prompt = Prompt(
        ns="examples/tooling",
        key="tools_overview",
        name="tools_overview",
        sections=[
            MarkdownSection(
                title="Guidance",
                template="Use tools when you need up-to-date context.",
                tools=[lookup_tool],
            )
        ],
    )
    rendered = prompt.render()
    assert rendered.text == "## 1. Guidance\n\nUse tools when you need up-to-date context."
    assert rendered.tools == (lookup_tool,)
    assert rendered.tools[0].name == "lookup_entity"


@pytest.mark.claim("TL-27")
def test_lookup_params_are_described_and_defaults_can_be_omitted() -> None:
    tool = Tool(name="lookup_entity", handler=lookup_handler)
    spec = tool_to_spec(tool)
    assert spec.parameters["properties"]["entity_id"] == {
        "type": "string",
        "description": "Global identifier to fetch",
    }
    plain = serde.json_schema(tool.params_type)
    assert plain["required"] == ["entity_id"]
    assert plain["properties"]["include_related"]["default"] is False
    for arguments in ({"entity_id": "1"}, {"entity_id": "1", "include_related": None}):
        prompt = Prompt(
            ns="n", key="k", sections=[MarkdownSection(title="S", template="", tools=[tool])]
        )
        session = Session()
        ScriptedAdapter([call(("lookup_entity", arguments)), say("Done.")]).evaluate(
            prompt, session=session
        )
        assert [event.params for event in session[ToolInvoked].all()] == [
            LookupParams("1", include_related=False)
        ]


@pytest.mark.claim("TL-29")
def test_tool_context_starts_with_the_documented_fields() -> None:
    names = [field.name for field in fields(ToolContext)]
    assert names[:5] == ["prompt", "rendered_prompt", "adapter", "session", "event_bus"]


# --------------------------------------------------------------------------------------------------
# rendering


@dataclass
class Output:
    answer: str


@dataclass
class MyParams:
    value: str


@dataclass
class ProcessParams:
    item_count: int
    source: str


@dataclass
class UserPrefs:
    show_details: bool


@dataclass
class Detail:
    detailed: bool = False
    debug_mode: bool = False


@dataclass
class NoParams:
    pass


def my_handler(params: NoParams, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(message="")


@pytest.mark.claim("PR-23", "PR-42")
def test_section_renders_with_params() -> None:
    # the heading comes from the renderer
    section = MarkdownSection(title="Test", template="Value: $value", key="test")
    rendered = section.render_body(MyParams(value="hello"), path=("test",))
    assert rendered == "Value: hello"


@pytest.mark.claim("PR-19", "PR-42")
def test_summary_visibility_skips_children() -> None:
    prompt = Prompt[Output](
        ns="test",
        key="test",
        sections=[
            MarkdownSection(
                title="Parent",
                template="Full content",
                summary="Summary only",
                key="parent",
                visibility=SectionVisibility.SUMMARY,
                children=[
                    MarkdownSection(title="Child", template="Should not appear", key="child")
                ],
            ),
        ],
    )
    rendered = prompt.bind().render()
    assert "Summary only" in rendered.text
    assert "Should not appear" not in rendered.text


@pytest.mark.claim("PR-20", "PR-42")
def test_tools_not_collected_from_summary_sections() -> None:
    tool = Tool(name="test_tool", handler=my_handler)
    prompt = Prompt[Output](
        ns="test",
        key="test",
        sections=[
            MarkdownSection(
                title="Section",
                template="...",
                key="section",
                visibility=SectionVisibility.SUMMARY,
                tools=(tool,),
            ),
        ],
    )
    rendered = prompt.bind().render()
    assert tool not in rendered.tools


def test_rendering_components_work_together_as_documented() -> None:
    prompt = Prompt[Output](
        ns="my-namespace",
        key="my-prompt",
        sections=[
            MarkdownSection[MyParams](title="Instructions", template="$value", key="instructions")
        ],
        structured_output=StructuredOutputConfig(Output),
    )
    my_params = MyParams(value="test")
    bound = prompt.bind(my_params)
    snapshot = bound.template.registry
    assert [node.path for node in snapshot.sections] == [("instructions",)]
    assert snapshot.params_types == {MyParams}
    assert snapshot.get_section(("instructions",)) is snapshot.sections[0]
    renderer = PromptRenderer(registry=snapshot, structured_output=bound.template.structured_output)
    rendered = renderer.render(
        param_lookup={MyParams: my_params}, overrides=None, session=Session()
    )
    assert (rendered.text, rendered.structured_output) == (
        bound.render().text,
        StructuredOutputConfig(Output),
    )


@pytest.mark.claim("PR-24")
def test_template_substitution_works_as_documented() -> None:
    section = MarkdownSection[ProcessParams](
        title="Process", template="Process $item_count items from $source"
    )
    body = section.render_body(ProcessParams(item_count=42, source="api"), path=("process",))
    assert body == "Process 42 items from api"


@pytest.mark.claim("PR-16")
@pytest.mark.parametrize(
    ("params", "prefs", "shown"),
    [
        (Detail(), False, "## 2. Static"),
        (Detail(detailed=True, debug_mode=True), True, "## 1. Debug Info"),
    ],
    ids=["none", "all"],
)
def test_selectors_work_as_documented(params: Detail, prefs: bool, shown: str) -> None:
    def by_session(params: Detail, *, session: Any) -> SectionVisibility:
        return (
            SectionVisibility.FULL
            if session[UserPrefs].latest().show_details
            else SectionVisibility.SUMMARY
        )

    template = PromptTemplate(
        ns="n",
        key="k",
        sections=[
            MarkdownSection[Detail](
                title="Debug Info",
                template="...",
                key="debug",
                enabled=lambda params: params.debug_mode,
            ),
            MarkdownSection(
                title="Static", template="...", visibility=lambda: SectionVisibility.SUMMARY
            ),
            MarkdownSection[Detail](
                title="By params",
                template="...",
                visibility=lambda params: (
                    SectionVisibility.FULL if params.detailed else SectionVisibility.SUMMARY
                ),
            ),
            MarkdownSection[Detail](title="By session", template="...", visibility=by_session),
        ],
    )
    session = Session()
    session.dispatch(UserPrefs(show_details=prefs))
    rendered = template.render(params, session=session)
    wanted = SectionVisibility.FULL if prefs else SectionVisibility.SUMMARY
    assert rendered.text.startswith(shown)
    assert rendered.visibility[("static",)] is SectionVisibility.SUMMARY
    assert rendered.visibility[("by-params",)] is rendered.visibility[("by-session",)] is wanted


@pytest.mark.claim("PR-32")
def test_visibility_override_works_as_documented() -> None:
    session = Session()
    overrides = VisibilityOverrides(overrides={("context", "history"): SectionVisibility.FULL})
    session[VisibilityOverrides].seed(overrides)
    history = MarkdownSection(
        title="History", template="All of it", summary="Some", visibility=SectionVisibility.SUMMARY
    )
    prompt = Prompt(
        ns="n",
        key="k",
        sections=[MarkdownSection(title="Context", template="", children=[history])],
    )
    assert "All of it" in prompt.render(session=session).text
    assert "All of it" not in prompt.render().text


@pytest.mark.claim("C-11")
def test_tool_override_works_as_documented() -> None:
    # the field is called param_descriptions
    tool = Tool[MyParams, None](name="search", description="Searches.")
    template = PromptTemplate(
        ns="n", key="k", sections=[MarkdownSection(title="S", template="", tools=(tool,))]
    )
    tool_overrides = {
        "search": ToolOverride(
            description="Custom description", param_descriptions={"value": "Search query string"}
        ),
    }
    rendered = template.renderer.render(param_lookup={}, tool_overrides=tool_overrides)
    assert rendered.tools[0].description == "Custom description"
    assert rendered.tool_param_descriptions == {"search": {"value": "Search query string"}}


@pytest.mark.claim("PR-35", "PR-36", "PR-37", "PR-38")
def test_errors_have_the_documented_messages() -> None:
    prompt = Prompt(
        ns="n", key="k", sections=[MarkdownSection[MyParams](title="S", template="$value")]
    )
    for params, words in (
        ((MyParams("a"), MyParams("b")), "Duplicate params type supplied to prompt."),
        ((Output("a"),), "Unexpected params type supplied to prompt."),
        ((1,), "Prompt expects dataclass instances."),
    ):
        with pytest.raises(PromptValidationError) as refused:
            prompt.bind(*params)
        assert refused.value.message == words
    section = MarkdownSection(title="Instructions", template="$missing_var")
    with pytest.raises(PromptRenderError) as failed:
        section.render_body(MyParams("a"), path=("instructions",))
    assert failed.value.message == "Failed to render section template."
    assert (failed.value.section_path, failed.value.placeholder) == (
        ("instructions",),
        "$missing_var",
    )
    required = VisibilityExpansionRequired(
        "Visibility expansion required",
        requested_overrides={("context", "history"): SectionVisibility.FULL},
        reason="Model requested access to tools in summarized section",
        section_keys=("context.history",),
    )
    assert str(required) == (
        "Visibility expansion required for sections: context.history. "
        "Reason: Model requested access to tools in summarized section"
    )


# --------------------------------------------------------------------------------------------
# progressive disclosure


@dataclass
class TaskParams:
    objective: str


@dataclass
class ContextParams:
    project_name: str


TASK = "## 1. Task\n\nComplete the following: Refactor the authentication module"
SUMMARIZED = f"""{TASK}

## 2. Project Context

Documentation for WeakIncentives is available.

---
[This section is summarized. To view full content, call `open_sections` with key "context".]"""
EXPANDED = f"""{TASK}

## 2. Project Context

Detailed documentation for WeakIncentives:
- Architecture overview
- API reference
- Code conventions
- Historical decisions"""


@pytest.mark.claim("PD-17", "PD-25")
def test_disclosure_example_runs_as_documented() -> None:
    prompt = PromptTemplate(
        ns="agents/assistant",
        key="task-executor",
        name="task_executor",
        sections=[
            MarkdownSection[TaskParams](
                title="Task",
                template="Complete the following: ${objective}",
                key="task",
            ),
            MarkdownSection[ContextParams](
                title="Project Context",
                template="""
                Detailed documentation for ${project_name}:
                - Architecture overview
                - API reference
                - Code conventions
                - Historical decisions
                """,
                summary="Documentation for ${project_name} is available.",
                key="context",
                visibility=SectionVisibility.SUMMARY,
            ),
        ],
        disclosure=Disclosure.OPEN,
    )
    bus = InProcessEventBus()
    session = Session(bus=bus)
    request = {"section_keys": ["context"], "reason": "Need architecture details"}
    adapter = ScriptedAdapter([call(("open_sections", request)), say("Done.")])
    params = (
        TaskParams(objective="Refactor the authentication module"),
        ContextParams(project_name="WeakIncentives"),
    )
    visibility_overrides: dict[tuple[str, ...], SectionVisibility] = {}
    texts: list[str] = []
    printed: list[str] = []
    while True:
        try:
            rendered = prompt.render(*params, visibility_overrides=visibility_overrides)
            texts.append(rendered.text)
            response = adapter.evaluate(rendered, session=session, bus=bus)
            printed.append(response.text)
            break
        except VisibilityExpansionRequired as e:
            printed.append(f"Expanding: {e.section_keys}, reason: {e.reason}")
            visibility_overrides.update(e.requested_overrides)
    assert texts == [SUMMARIZED, EXPANDED]
    assert printed == ["Expanding: ('context',), reason: Need architecture details", "Done."]


@pytest.mark.claim("DT-06", "DT-34")
def test_dynamic_tools_prompt_defaults_its_name_to_the_key() -> None:
    template = PromptTemplate[Output](
        ns="example",
        key="research",
        sections=[
            MarkdownSection(
                title="Context",
                key="context",
                template="Detailed research context...",
                summary="Research context available.",
                visibility=SectionVisibility.SUMMARY,
                tools=(
                    Tool(name="search", handler=my_handler),
                    Tool(name="cite", handler=my_handler),
                ),
            ),
        ],
    )
    rendered = template.render()
    assert template.name == "research"
    assert [tool.name for tool in rendered.tools] == ["read_section"]
