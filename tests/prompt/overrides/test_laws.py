"""Law L7: a fresh override acts as if the author had written it, a stale one as if it were absent.

The tests compare a prompt that has stored overrides with one that has the same texts in its code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.strategies import TEXTS, Plan, forests, overrides, sections
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    RenderedPrompt,
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
    PromptOverridesStore,
    SectionOverride,
    TaskExampleOverride,
    TextId,
    ToolExampleOverride,
    ToolOverride,
)
from weakincentives.prompt.overrides.model import Override
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.prompt.progressive_disclosure import (
    ReadSectionParams,
    create_read_section_handler,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import VisibilityOverrides

FULL = SectionVisibility.FULL


def seen(prompt: Prompt[Any], visibility: Mapping[SectionPath, SectionVisibility]) -> object:
    """Returns all that a model can see of a prompt: rendered, by section, and in a conversation."""
    rendered = prompt.render(visibility_overrides=visibility)
    read: Any = create_read_section_handler(
        registry=rendered.registry,
        current_visibility=VisibilityOverrides(dict(visibility)),
        param_lookup={},
        session=None,
        disclosure=rendered.view.disclosure,
    ).handler
    keys = [node.key for node in rendered.registry.sections]
    contents = [read(ReadSectionParams(key), context=None).value for key in keys]
    return (
        rendered.text,
        [content and content.content for content in contents],
        conversation(rendered, keys),
    )


def conversation(rendered: RenderedPrompt[Any], keys: Sequence[str]) -> object:
    """Returns the messages and tools that a model receives when it reads every section."""
    if "read_section" not in {tool.name for tool in rendered.tools}:
        return [(tool.name, tool.description) for tool in rendered.tools]
    adapter: ScriptedAdapter = ScriptedAdapter(
        [*(call(("read_section", {"section_key": key})) for key in keys), say("done")]
    )
    adapter.evaluate(rendered, session=Session())
    return adapter.requests[-1].messages, adapter.requests[-1].tools


# -------------------------------------------------------------------------------------------------
# random trees of sections


def plans_by_path(roots: Sequence[Plan], above: SectionPath = ()) -> dict[SectionPath, Plan]:
    plans: dict[SectionPath, Plan] = {}
    for plan in roots:
        plans[*above, plan.key] = plan
        plans |= plans_by_path(plan.children, (*above, plan.key))
    return plans


def rewritten(
    roots: Sequence[Plan], changes: Mapping[SectionPath, Any], above: SectionPath = ()
) -> tuple[Plan, ...]:
    return tuple(
        replace(
            plan,
            **changes.get((*above, plan.key), {}),
            children=rewritten(plan.children, changes, (*above, plan.key)),
        )
        for plan in roots
    )


@st.composite
def rewrites(draw: st.DrawFn, roots: Sequence[Plan]) -> dict[SectionPath, dict[str, str]]:
    """Draws other texts for `Plan.text` and `Plan.summary` of some sections."""
    plans = plans_by_path(roots)
    changes: dict[SectionPath, dict[str, str]] = {}
    for path in draw(st.lists(st.sampled_from(sorted(plans)), max_size=4)):
        texts = st.sampled_from(TEXTS[plans[path].params]).map(lambda text: f"Now: {text}")
        changes[path] = draw(st.fixed_dictionaries({}, optional={"text": texts, "summary": texts}))
    return changes


def built(roots: Sequence[Plan], disclosure: Disclosure) -> PromptTemplate[Any]:
    return PromptTemplate(ns="tests", key="laws", sections=sections(roots), disclosure=disclosure)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_fresh_overrides_render_like_authored_texts_and_stale_ones_are_ignored(
    data: st.DataObject,
) -> None:
    # L7: only fresh overrides apply, and L2: reading shows what the prompt would
    then = data.draw(forests(2))
    assume(then)
    disclosure = data.draw(st.sampled_from((Disclosure.READ, Disclosure.SPLIT)))
    wanted = data.draw(rewrites(then))
    now = rewritten(then, data.draw(rewrites(then)))
    visibility = data.draw(overrides(now))
    with TemporaryDirectory() as folder:
        store = LocalPromptOverridesStore(folder)
        for path, texts in wanted.items():
            if texts:
                override = SectionOverride(
                    path=path, body=texts.get("text"), summary=texts.get("summary")
                )
                assert store.upsert(built(then, disclosure).descriptor, override) == ()
        prompt = Prompt(built(now, disclosure), overrides_store=store)
        shown = seen(prompt, visibility)
        stale = store.resolve(prompt.descriptor).stale
    before, after = plans_by_path(then), plans_by_path(now)
    same = {
        path
        for path, plan in before.items()
        if (plan.text, plan.summary) == (after[path].text, after[path].summary)
    }
    by_author = built(
        rewritten(now, {path: texts for path, texts in wanted.items() if path in same}), disclosure
    )
    assert shown == seen(Prompt(by_author), visibility)
    dropped = {".".join(path) for path, texts in wanted.items() if texts and path not in same}
    assert {override.id.at for override in stale} == dropped


# -------------------------------------------------------------------------------------------------
# every kind of text together


@dataclass(frozen=True)
class Who:
    name: str = "Ada"


def nothing(params: object, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(message="done")


def authored(texts: Mapping[TextId, str]) -> PromptTemplate[Any]:
    """Returns a prompt of fixed shape with these texts; `tool-example` texts are descriptions."""

    def text(kind: Any, at: str) -> str:
        return texts[TextId(kind, at)]

    def tool(name: str) -> Tool[Any, Any]:
        described = {"description": text("param", f"{name}.query")}
        fields = [
            ("query", str, field(default="x", metadata=described)),
            ("limit", int, field(default=3)),
        ]
        params: Any = make_dataclass(
            "Params", fields, frozen=True, namespace={"__module__": __name__}
        )
        example = ToolExample(text("tool-example", f"{name}#0"), params(), None)
        return Tool(
            name=name,
            description=text("tool", name),
            params_type=params,
            result_type=object,
            handler=nothing,
            examples=[example, example._replace(description="Fixed.")],
        )

    def section(path: str, **more: Any) -> MarkdownSection[Who]:
        return MarkdownSection[Who](
            title=path,
            key=path.rpartition(".")[2],
            template=text("body", path),
            summary=text("summary", path),
            **more,
        )

    examples = [
        TaskExample(objective=text("task-example", f"examples#{index}")) for index in range(2)
    ]
    more = TaskExamplesSection(examples=examples, summary=text("summary", "examples"))
    child = section("more.deep", visibility=SectionVisibility.SUMMARY, tools=[tool("deep")])
    return PromptTemplate(
        ns="tests",
        key="kinds",
        sections=[
            section("task", tools=[tool("look")]),
            section(
                "more", visibility=SectionVisibility.SUMMARY, children=[child], tools=[tool("late")]
            ),
            more,
        ],
    )


PATHS = ("task", "more", "more.deep")
TOOLS = ("look", "late", "deep")
UNITS: list[list[TextId]] = [
    *([TextId("body", path), TextId("summary", path)] for path in PATHS),
    *([TextId("tool", name), TextId("param", f"{name}.query")] for name in TOOLS),
    *([TextId("tool-example", f"{name}#0")] for name in TOOLS),
    *([TextId("task-example", f"examples#{index}")] for index in range(2)),
]
"""Texts that belong together: if one of them changes, the overrides of all are stale."""
IDS = [text_id for unit in UNITS for text_id in unit]
EXAMPLE = '\n  - input: `{"query":"x","limit":3}`\n  - output: `null`'


def as_override(text_id: TextId, text: str) -> Override:
    at, _, part = text_id.at.replace("#", ".").rpartition(".")
    match text_id.kind:
        case "body":
            return SectionOverride(path=tuple(text_id.at.split(".")), body=text)
        case "summary":
            return SectionOverride(path=tuple(text_id.at.split(".")), summary=text)
        case "tool":
            return ToolOverride(tool_name=text_id.at, description=text)
        case "param":
            return ToolOverride(tool_name=at, param_descriptions={part: text})
        case "tool-example":
            return ToolExampleOverride(tool_name=at, position=int(part), text=text + EXAMPLE)
        case "task-example":
            return TaskExampleOverride(path=(at,), position=int(part), text=text)


WORDS = st.sampled_from(("one", "two", "three", "100% of it", "a line\nand another"))
TEMPLATES = WORDS | st.sampled_from(("Hello $name.", "$$5 for ${name}"))


def texts_for(text_id: TextId) -> st.SearchStrategy[str]:
    return TEMPLATES if text_id.kind in ("body", "summary") else WORDS


ALL = st.fixed_dictionaries(
    {text_id: texts_for(text_id) for text_id in IDS} | {TextId("summary", "examples"): WORDS}
)
SOME = st.fixed_dictionaries({}, optional={text_id: texts_for(text_id) for text_id in IDS})


@pytest.mark.claim("PS-31", "PS-32", "PS-33", "PS-36", "PS-34")
@given(
    then=ALL,
    edits=SOME,
    wanted=SOME,
    opened=st.sets(st.sampled_from([("more",), ("more", "deep")])),
)
@settings(max_examples=25, deadline=None)
def test_override_of_every_kind_applies_only_while_it_is_fresh(
    then: dict[TextId, str],
    edits: dict[TextId, str],
    wanted: dict[TextId, str],
    opened: set[SectionPath],
) -> None:
    # L7: only fresh overrides apply
    now = then | edits
    visibility = dict.fromkeys(opened, FULL)
    units = [unit for unit in UNITS if all(then[text_id] == now[text_id] for text_id in unit)]
    fresh = {text_id for unit in units for text_id in unit}
    with TemporaryDirectory() as folder:
        store: PromptOverridesStore = LocalPromptOverridesStore(folder)
        for text_id, text in wanted.items():
            store.upsert(authored(then).descriptor, as_override(text_id, text))
        prompt = Prompt(authored(now), overrides_store=store)
        shown = seen(prompt, visibility)
        resolved = store.resolve(prompt.descriptor)
    assert set(resolved.texts) == wanted.keys() & fresh
    assert {stale.id for stale in resolved.stale} == wanted.keys() - fresh
    applied = {text_id: text for text_id, text in wanted.items() if text_id in fresh}
    assert shown == seen(Prompt(authored(now | applied)), visibility)


@pytest.mark.claim("PR-27", "PS-37")
@given(texts=ALL, opened=st.sets(st.sampled_from([("more",), ("more", "deep")])))
@settings(max_examples=20, deadline=None)
def test_seeded_prompt_renders_the_same_as_without_a_store(
    texts: dict[TextId, str], opened: set[SectionPath]
) -> None:
    template, visibility = authored(texts), dict.fromkeys(opened, FULL)
    with TemporaryDirectory() as folder:
        store = LocalPromptOverridesStore(folder)
        seeded = store.seed(template)
        assert store.resolve(template.descriptor) == seeded
        assert seeded.texts == {
            text_id: text.text for text_id, text in template.descriptor.texts.items() if text.text
        }
        assert seeded.stale == ()
        assert seen(Prompt(template, overrides_store=store), visibility) == seen(
            Prompt(template), visibility
        )
