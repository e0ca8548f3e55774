"""Overrides in a prompt: the texts they replace, reports of stale ones, and their cost."""

import gc
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from support.sent_schemas import sent_spec
from support.strategies import SUMMARY
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    Section,
    SectionPath,
    SectionVisibility,
    TaskExample,
    TaskExamplesSection,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.prompt.overrides import (
    OverridesTag,
    PromptDescriptor,
    PromptOverride,
    SectionOverride,
    TaskExampleOverride,
    TextId,
    ToolExampleOverride,
    ToolOverride,
)
from weakincentives.prompt.overrides.model import Override, StaleOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.runtime.events import OverridesDropped, PromptRendered
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, SeenRequest, call, say

FULL = SectionVisibility.FULL


@dataclass(frozen=True)
class Search:
    query: str = field(default="", metadata={"description": "What to find."})


def find(params: Search, *, context: ToolContext) -> ToolResult[Search]:
    return ToolResult(message="found", value=params)


def searching(name: str = "search", **more: Any) -> Tool[Search, Search]:
    return Tool(name=name, description="Searches.", handler=find, **more)


def template(*sections: Section[Any]) -> PromptTemplate[None]:
    return PromptTemplate(ns="tests", key="apply", sections=sections)


@pytest.fixture
def store(tmp_path: Path) -> LocalPromptOverridesStore:
    return LocalPromptOverridesStore(tmp_path)


# -------------------------------------------------------------------------------------------------
# which texts


@pytest.mark.claim("TL-15", "PS-31")
def test_sections_and_tools_that_accept_no_overrides_keep_their_texts(
    store: LocalPromptOverridesStore,
) -> None:
    example = ToolExample("Cats", Search("cat"), Search("cat"))
    fixed: dict[str, Any] = {"accepts_overrides": False, "summary": "Author's."}
    tree = template(
        MarkdownSection(title="Open", template="Author's."),
        MarkdownSection(title="Fixed", template="Author's.", visibility=SUMMARY, **fixed),
        MarkdownSection(
            title="Read",
            template="",
            tools=[searching(accepts_overrides=False, examples=[example])],
        ),
        TaskExamplesSection(examples=[TaskExample(objective="Author's.")], accepts_overrides=False),
    )
    assert store.upsert(tree.descriptor, SectionOverride(path=("open",), body="Other.")) == ()
    for override in (
        SectionOverride(path=("fixed",), body="Other.", summary="Other."),
        ToolOverride(
            tool_name="search", description="Other.", param_descriptions={"query": "Other."}
        ),
        ToolExampleOverride(tool_name="search", position=0, text="Other."),
        TaskExampleOverride(path=("examples",), position=0, text="Other."),
    ):
        assert {stale.reason for stale in store.upsert(tree.descriptor, override)} == {"fixed"}
    for visibility in (FULL, SUMMARY):
        rendered = Prompt(tree, overrides_store=store).render(
            visibility_overrides={("fixed",): visibility}
        )
        assert rendered.text.count("Other.") == 1
        assert rendered.text.startswith("## 1. Open\n\nOther.")
        assert rendered.tools[0].description == "Searches."
        assert rendered.tool_param_descriptions == {}


def test_override_text_is_dedented_like_the_authors_text(store: LocalPromptOverridesStore) -> None:
    text = "\n    One\n      two\n    three\n    "
    plain = template(MarkdownSection(title="S", template="Body.", summary="Summary."))
    written = template(MarkdownSection(title="S", template=text, summary=text))
    store.upsert(plain.descriptor, SectionOverride(path=("s",), body=text, summary=text))
    for visibility in SectionVisibility:
        overrides: dict[SectionPath, SectionVisibility] = {("s",): visibility}
        overridden = Prompt(plain, overrides_store=store).render(visibility_overrides=overrides)
        assert overridden.text == written.render(visibility_overrides=overrides).text


@pytest.mark.claim("PD-06")
def test_disclosure_tools_do_not_accept_overrides(store: LocalPromptOverridesStore) -> None:
    tree = template(MarkdownSection(title="A", template="a", summary="s", visibility=SUMMARY))
    prompt = Prompt(tree, overrides_store=store)
    (before,) = prompt.render().tools
    assert not before.accepts_overrides
    (stale,) = store.upsert(
        tree.descriptor, ToolOverride(tool_name="read_section", description="Other.")
    )
    assert stale.reason == "gone"
    assert prompt.render().tools[0].description == before.description


@pytest.mark.claim("PS-33")
def test_example_override_replaces_only_the_example_at_its_position(
    store: LocalPromptOverridesStore,
) -> None:
    examples = [ToolExample(name, Search(name), Search(name)) for name in ("cats", "dogs")]
    tree = template(
        MarkdownSection(title="Read", template="Body.", tools=[searching(examples=examples)]),
        TaskExamplesSection(
            examples=[TaskExample(objective="One"), TaskExample(objective="Two", outcome="done")]
        ),
    )
    descriptor = tree.descriptor
    for override in (
        ToolExampleOverride(tool_name="search", position=0, text="Birds: $5"),
        TaskExampleOverride(path=("examples",), position=1, text="Second: $5"),
    ):
        assert store.upsert(descriptor, override) == ()
    for override in (
        ToolExampleOverride(tool_name="search", position=2, text="?"),
        TaskExampleOverride(path=("examples",), position=2, text="?"),
    ):
        assert [stale.reason for stale in store.upsert(descriptor, override)] == ["gone"]
    assert Prompt(tree, overrides_store=store).render().text == (
        "## 1. Read\n\nBody.\n\nExamples of `search`:\n\n- Birds: $5\n"
        '- dogs\n  - input: `{"query":"dogs"}`\n  - output: `{"query":"dogs"}`\n\n'
        "## 2. Examples\n\n1. One\n\n2. Second: $5"
    )


class Loud(Section[None]):
    """Creates its body in code and records the overrides that it renders."""

    overrides: tuple[tuple[str, SectionPath], ...] = ()

    def render_body(self, params: None, *, path: SectionPath) -> str:
        return "By code."

    def render_override(self, override_body: str, params: None, *, path: SectionPath) -> str:
        self.overrides = (*self.overrides, (override_body, path))
        return override_body.upper()


@pytest.mark.claim("PR-26")
def test_section_subclass_controls_how_its_body_override_renders(
    store: LocalPromptOverridesStore,
) -> None:
    section = Loud(title="A")
    tree = template(section)
    store.upsert(tree.descriptor, SectionOverride(path=("a",), body="other"))
    assert Prompt(tree, overrides_store=store).render().text == "## 1. A\n\nOTHER"
    assert section.overrides == (("other", ("a",)),)


def test_body_override_replaces_the_whole_task_examples_section(
    store: LocalPromptOverridesStore,
) -> None:
    tree = template(TaskExamplesSection(examples=[TaskExample(objective="One")]))
    store.upsert(tree.descriptor, SectionOverride(path=("examples",), body="None today."))
    store.upsert(
        tree.descriptor, TaskExampleOverride(path=("examples",), position=0, text="Hidden.")
    )
    assert Prompt(tree, overrides_store=store).render().text == "## 1. Examples\n\nNone today."


def test_inline_override_takes_precedence_over_stored_override(
    store: LocalPromptOverridesStore,
) -> None:
    tree = template(MarkdownSection(title="A", template="a", tools=[searching()]))
    store.upsert(tree.descriptor, SectionOverride(path=("a",), body="stored"))
    store.upsert(tree.descriptor, ToolOverride(tool_name="search", description="Stored."))
    rendered = tree.renderer.render(
        param_lookup={},
        overrides={("a",): "by hand"},
        tool_overrides={"search": ToolOverride(description="By hand.")},
        stored=store.resolve(tree.descriptor),
    )
    assert (rendered.text, rendered.tools[0].description) == ("## 1. A\n\nby hand", "By hand.")


@pytest.mark.claim("C-26")
def test_hand_edited_override_with_unknown_placeholder_raises_render_error(
    store: LocalPromptOverridesStore,
) -> None:
    tree = template(MarkdownSection(title="A", template="a", summary="s"))
    for kind in ("body", "summary"):
        store.upsert(tree.descriptor, SectionOverride(path=("a",), **{kind: "fine"}))
        path = store.path(OverridesTag("tests", "apply"))
        path.write_text(path.read_text().replace("fine", "$nobody"))
        with pytest.raises(PromptRenderError) as caught:
            Prompt(tree, overrides_store=store).render(
                visibility_overrides={("a",): FULL if kind == "body" else SUMMARY}
            )
        assert (caught.value.section_path, caught.value.placeholder) == (("a",), "$nobody")
        path.unlink()


@pytest.mark.parametrize(
    "override",
    [
        SectionOverride(path=("a",), body="$nobody"),
        SectionOverride(path=("a",), body="fine", summary="5 $"),
        ToolOverride(tool_name="search", description=""),
        ToolOverride(
            tool_name="search", param_descriptions={"query": "fine"}, description="x" * 1025
        ),
        SectionOverride(path=("a",)),
        ToolOverride(description="For nothing."),
        ToolOverride(tool_name="search"),
    ],
)
def test_upsert_rejects_text_that_cannot_be_rendered_and_stores_nothing(
    store: LocalPromptOverridesStore, override: Override
) -> None:
    tree = template(MarkdownSection(title="A", template="a", tools=[searching()]))
    with pytest.raises(PromptValidationError):
        store.upsert(tree.descriptor, override)
    assert store.list() == ()


@pytest.mark.claim("C-11", "PS-34")
def test_override_types_have_no_fields_for_names_types_or_structure() -> None:
    kinds: tuple[Any, ...] = (
        SectionOverride,
        ToolOverride,
        ToolExampleOverride,
        TaskExampleOverride,
    )
    texts = [set(kind._fields) - {"path", "tool_name", "position"} for kind in kinds]
    assert texts == [{"body", "summary"}, {"description", "param_descriptions"}, {"text"}, {"text"}]


@pytest.mark.claim("C-32", "PS-32")
def test_param_description_override_keeps_the_schema_strict(
    store: LocalPromptOverridesStore,
) -> None:
    tree = template(MarkdownSection(title="A", template="a", tools=[searching()]))
    store.upsert(
        tree.descriptor, ToolOverride(tool_name="search", param_descriptions={"query": "Words."})
    )
    adapter: ScriptedAdapter = ScriptedAdapter([say("done")])
    adapter.evaluate(Prompt(tree, overrides_store=store), session=Session())
    (spec,) = adapter.requests[0].tools
    assert spec.parameters["properties"]["query"]["description"].startswith("Words.")
    assert sent_spec(spec).strict


# -------------------------------------------------------------------------------------------------
# stale overrides


def test_stale_overrides_are_reported_by_rendered_prompt_and_event(
    store: LocalPromptOverridesStore,
) -> None:
    # L7: only fresh overrides apply
    then, now = (
        template(MarkdownSection(title="A", template=body, summary="s")) for body in ("then", "now")
    )
    store.upsert(then.descriptor, SectionOverride(path=("a",), body="other"), "canary")
    prompt = Prompt(now, overrides_store=store, overrides_tag="canary")
    rendered = prompt.render()
    assert rendered.text == "## 1. A\n\nnow"
    assert rendered.overrides is not None
    body = TextId("body", "a")
    assert rendered.overrides.stale == (StaleOverride(body, "changed", "then", "other", "now"),)
    session = Session()
    events: list[object] = []
    for kind in (PromptRendered, OverridesDropped):
        session.bus.subscribe(kind, events.append)
    ScriptedAdapter([say("done")]).evaluate(prompt, session=session)
    assert [type(event) for event in events] == [PromptRendered, OverridesDropped]
    (dropped,) = session[OverridesDropped].all()
    assert (dropped.ns, dropped.key, dropped.tag, dropped.texts) == (
        "tests",
        "apply",
        "canary",
        ("body a",),
    )
    assert dropped.session_id == session.session_id


def test_no_event_is_published_while_all_overrides_are_fresh(
    store: LocalPromptOverridesStore,
) -> None:
    tree = template(MarkdownSection(title="A", template="a"))
    store.upsert(tree.descriptor, SectionOverride(path=("a",), body="other"))
    session = Session()
    ScriptedAdapter([say("done")]).evaluate(Prompt(tree, overrides_store=store), session=session)
    assert session[OverridesDropped].all() == ()


def test_each_tag_has_its_own_overrides(store: LocalPromptOverridesStore) -> None:
    tree = template(MarkdownSection(title="A", template="a"))
    store.upsert(tree.descriptor, SectionOverride(path=("a",), body="canary"), "canary")
    for tag, body in (("latest", "a"), ("canary", "canary")):
        assert (
            Prompt(tree, overrides_store=store, overrides_tag=tag).render().text
            == f"## 1. A\n\n{body}"
        )


@pytest.mark.claim("PR-31")
def test_rendered_prompt_exposes_its_descriptor_and_is_frozen() -> None:
    tree = template(MarkdownSection(title="A", template="a"))
    rendered = tree.render()
    assert rendered.descriptor is tree.descriptor
    # raised by CPython for a property of a slotted class
    with pytest.raises((FrozenInstanceError, TypeError)):
        setattr(rendered, "descriptor", None)  # noqa: B010 - a checker would reject the plain form


# -------------------------------------------------------------------------------------------------
# costs


class Counting(LocalPromptOverridesStore):
    """Counts the calls of `resolve`."""

    calls = 0

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride:
        self.calls += 1
        return super().resolve(descriptor, tag)


def test_run_resolves_overrides_once_even_if_it_restarts(tmp_path: Path) -> None:
    store = Counting(tmp_path)
    tree = template(
        MarkdownSection(
            title="A", template="a", summary="s", visibility=SUMMARY, tools=[searching()]
        ),
        MarkdownSection(
            title="B", template="b", summary="s", visibility=SUMMARY, tools=[searching("late")]
        ),
    )
    store.upsert(tree.descriptor, SectionOverride(path=("b",), body="other"))
    reads = [call(("read_section", {"section_key": key})) for key in ("a", "b")]
    adapter: ScriptedAdapter = ScriptedAdapter([*reads, say("done")], dynamic_tools=False)
    execution = MainLoop(adapter).execute(Prompt(tree, overrides_store=store), session=Session())
    assert (execution.restarts, store.calls) == (2, 1)
    assert "other" in str(adapter.requests[-1].messages[0])


def test_override_changed_during_a_run_applies_from_the_next_run(tmp_path: Path) -> None:
    store = LocalPromptOverridesStore(tmp_path)
    tree = template(
        MarkdownSection(title="A", key="a", template="The code's text."),
        MarkdownSection(
            title="B", template="b", summary="s", visibility=SUMMARY, tools=[searching()]
        ),
    )

    def replace_text(_: SeenRequest) -> AssistantMessage:
        store.upsert(tree.descriptor, SectionOverride(path=("a",), body="The override."))
        return call(("read_section", {"section_key": "b"}))

    adapter: ScriptedAdapter = ScriptedAdapter(
        [replace_text, say("done"), say("done")], dynamic_tools=False
    )
    loop, prompt = MainLoop(adapter), Prompt(tree, overrides_store=store)
    assert loop.execute(prompt, session=Session()).restarts == 1
    loop.execute(prompt, session=Session())
    texts = [str(request.messages[0]) for request in adapter.requests]
    assert ["The override." in text for text in texts] == [False, False, True]


def test_unchanged_overrides_file_is_not_read_again(store: LocalPromptOverridesStore) -> None:
    tree = template(MarkdownSection(title="A", template="a"))
    store.upsert(tree.descriptor, SectionOverride(path=("a",), body="other"))
    first = store.resolve(tree.descriptor)
    assert store.resolve(tree.descriptor) is first
    LocalPromptOverridesStore(store.folder.parents[2]).upsert(
        tree.descriptor, SectionOverride(path=("a",), body="newer")
    )
    assert store.resolve(tree.descriptor).texts == {TextId("body", "a"): "newer"}


@pytest.mark.claim("PR-41")
def test_render_cost_does_not_depend_on_the_number_of_stored_overrides(tmp_path: Path) -> None:
    large = template(
        *(MarkdownSection(title=f"S{number}", template="s") for number in range(10_000))
    )
    small = template(*large.sections[:10])
    costs: list[int] = []
    for name, stored in (("small", small), ("large", large)):
        store = LocalPromptOverridesStore(tmp_path / name)
        store.seed(stored)
        prompt = Prompt(small, overrides_store=store)
        assert prompt.render().text == small.render().text
        costs.append(calls_during(prompt.render))
    assert costs[0] == costs[1]


def calls_during(run: Callable[[], object]) -> int:
    count = 0

    def count_call(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    gc.disable()  # its callbacks, such as Hypothesis's, run at any time
    sys.setprofile(count_call)
    try:
        run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def test_tool_that_accepts_no_overrides_ignores_texts_from_any_store() -> None:
    @dataclass(frozen=True)
    class Query:
        text: str

    fixed, free = (
        Tool[Query, Query](
            name=name,
            examples=[ToolExample(name, Query("q"), Query("a"))],
            accepts_overrides=accepts,
        )
        for name, accepts in (("fixed", False), ("free", True))
    )
    template = PromptTemplate(
        ns="n", key="k", sections=[MarkdownSection(title="S", template="", tools=[fixed, free])]
    )
    texts: dict[TextId, str] = {}
    for name in ("fixed", "free"):
        ids = (
            TextId("tool-example", f"{name}#0"),
            TextId("tool", name),
            TextId("param", f"{name}.text"),
        )
        texts |= dict.fromkeys(ids, "Other.")
    stored = PromptOverride("latest", texts)
    rendered = template.renderer.render(param_lookup={}, stored=stored)
    text = rendered.text
    assert [tool.description for tool in rendered.tools] == ["fixed", "Other."]
    assert rendered.tool_param_descriptions == {"free": {"text": "Other."}}
    assert "Examples of `fixed`:\n\n- fixed\n" in text
    assert text.endswith("Examples of `free`:\n\n- Other.")
