"""Sections by themselves: their content, the errors of their construction, and their clones."""

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.strategies import SUMMARY, Nothing, Who, forests, sections
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    Section,
    SectionPath,
    SectionVisibility,
    TaskExamplesSection,
    Tool,
    WorkspaceSection,
)
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore


@dataclass
class Value:
    value: str = ""


class Plain(Section[Who]):
    def render_body(self, params: Who | None, *, path: SectionPath) -> str:
        return ""


TOOL = Tool[Nothing, Nothing](name="tool")


# --------------------------------------------------------------------------------------------------
# their content


@pytest.mark.claim("TL-19", "PS-06")
def test_section_is_abstract_and_exposes_its_arguments() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Section(title="S")  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
    child = Plain(title="Child")

    def enabled(params: Who) -> bool:
        return bool(params.name)

    section = Plain(
        title="Title",
        key="key",
        children=[child],
        tools=[TOOL],
        enabled=enabled,
        visibility=SUMMARY,
        summary="Short",
        default_params=Who("x"),
        accepts_overrides=False,
    )
    assert (section.title, section.key, section.summary) == ("Title", "key", "Short")
    assert (section.children, section.tools()) == ((child,), (TOOL,))
    assert (section.enabled, section.visibility) == (enabled, SUMMARY)
    assert (section.default_params, section.accepts_overrides) == (Who("x"), False)


@pytest.mark.claim("PR-16")
def test_omitted_section_arguments_have_defaults() -> None:
    section = Plain(title="T")
    assert (section.summary, section.children, section.tools()) == (None, (), ())
    assert (section.enabled, section.visibility) == (None, SectionVisibility.FULL)
    assert (section.default_params, section.accepts_overrides) == (None, True)


@pytest.mark.claim("PS-07")
@pytest.mark.parametrize("kind", [Plain, MarkdownSection[Who]])
def test_specialized_section_has_its_params_type(kind: Any) -> None:
    assert (kind(title="S") if kind is Plain else kind(title="S", template="")).params_type is Who


@pytest.mark.claim("C-27", "PS-07")
def test_unspecialized_section_takes_no_params() -> None:
    assert MarkdownSection(title="S", template="x").params_type is None
    assert MarkdownSection(title="S", template="x", params_type=Who).params_type is Who
    assert (
        PromptTemplate(ns="n", key="k", sections=[MarkdownSection(title="S", template="x")])
        .render()
        .text
    )


@pytest.mark.claim("C-27", "PS-09")
@pytest.mark.parametrize(
    ("title", "key"),
    [
        ("Guidance", "guidance"),
        ("Project Context", "project-context"),
        ("  What's new? (2026) ", "what-s-new-2026"),
        ("ÉTÉ abc", "t-abc"),
        ("x" * 80, "x" * 64),
    ],
)
def test_missing_key_defaults_to_the_slug_of_the_title(title: str, key: str) -> None:
    assert MarkdownSection(title=title, template="").key == key


@pytest.mark.claim("PS-09")
@given(
    st.from_regex(r"[a-zA-Z0-9 .!-]{1,80}", fullmatch=True).filter(
        lambda title: any(c.isalnum() for c in title)
    )
)
def test_slug_of_a_title_with_a_letter_or_digit_is_a_valid_key(title: str) -> None:
    section = MarkdownSection(title=title, template="")
    assert MarkdownSection(title="T", template="", key=section.key).key == section.key


# --------------------------------------------------------------------------------------------------
# rejections


@pytest.mark.claim("PR-34")
@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True))
def test_every_key_that_matches_the_pattern_is_accepted(key: str) -> None:
    assert MarkdownSection(title="T", template="", key=key).key == key


@pytest.mark.claim("PR-34")
@pytest.mark.parametrize("key", ["instructions", "context.history", "step-1", "a" * 64, "0"])
def test_valid_keys_are_accepted(key: str) -> None:
    assert MarkdownSection(title="T", template="", key=key).key == key


@pytest.mark.claim("PR-34")
@pytest.mark.parametrize(
    "key", ["Instructions", "_private", "", "a" * 65, "a\n", "a b", "é", ".a", 5], ids=repr
)
def test_invalid_key_is_rejected_with_key_title_and_rule(key: Any) -> None:
    with pytest.raises(
        PromptValidationError, match=r"use|with 1 to 64 characters from a-z"
    ) as caught:
        MarkdownSection(title="The Title", template="", key=key)
    assert repr(key) in str(caught.value)
    assert "'The Title'" in str(caught.value)
    assert caught.value.section_path == ((key,) if isinstance(key, str) and key else None)


def test_title_without_a_slug_requires_a_key() -> None:
    with pytest.raises(PromptValidationError, match="'指南': pass key="):
        MarkdownSection(title="指南", template="")
    assert MarkdownSection(title="指南", template="", key="guide").title == "指南"


@pytest.mark.parametrize("title", ["", "  ", "a\nb", "a\rb", "a\u2028b", None], ids=repr)
def test_title_must_be_one_line_of_text(title: Any) -> None:
    with pytest.raises(
        PromptValidationError, match="title must be one line of text, got"
    ) as caught:
        MarkdownSection(title=title, template="", key="s")
    assert repr(title) in str(caught.value)
    assert caught.value.section_path == ("s",)


@pytest.mark.claim("TL-19")
@pytest.mark.parametrize("item", ["tool", 3, None, Nothing()], ids=repr)
def test_items_that_are_not_tools_are_rejected(item: Any) -> None:
    with pytest.raises(
        PromptValidationError,
        match="tools must contain functions and Tool objects, got",
    ) as caught:
        MarkdownSection(title="S", template="", tools=[TOOL, item])
    assert repr(item) in str(caught.value)
    assert caught.value.section_path == ("s",)


@pytest.mark.claim("PS-40")
def test_children_that_are_not_sections_are_rejected_including_prompts() -> None:
    prompt = PromptTemplate(ns="n", key="k").bind()
    for item in ("text", prompt, prompt.template, MarkdownSection):
        with pytest.raises(
            PromptValidationError,
            match=r"must contain Section objects, got .*; wrap text in MarkdownSection\(…\), or",
        ) as caught:
            MarkdownSection(title="S", template="", children=[item])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
        assert repr(item) in str(caught.value)
        assert caught.value.section_path == ("s",)


@pytest.mark.parametrize("kind", [MarkdownSection, TaskExamplesSection, WorkspaceSection])
def test_none_for_tools_or_children_means_empty(kind: Any) -> None:
    needed: Any = {MarkdownSection: {"template": ""}, TaskExamplesSection: {"examples": ()}}.get(
        kind, {}
    )
    section = kind(title="S", tools=None, children=None, **needed)
    assert (section.children, section.tools()) == ((), kind(title="S", **needed).tools())
    assert kind(title="S", tools=[TOOL], **needed).clone(tools=None).tools() == section.tools()


@pytest.mark.parametrize("name", ["tools", "children"])
def test_single_item_instead_of_a_list_is_rejected_with_a_fix(name: str) -> None:
    item: Any = {"tools": TOOL, "children": MarkdownSection(title="Child", template="")}[name]
    with pytest.raises(
        PromptValidationError, match=rf"{name} must be a list, such as {name}=\[…\]"
    ) as caught:
        MarkdownSection(title="S", template="", **{name: item})
    assert caught.value.section_path == ("s",)


@pytest.mark.claim("PS-08")
@pytest.mark.parametrize("kind", [int, str, Who("x"), list[Who]], ids=repr)
def test_params_type_without_fields_is_rejected(kind: Any) -> None:
    with pytest.raises(
        PromptValidationError,
        match="params type must be a dataclass, a pydantic",
    ) as caught:
        MarkdownSection[kind](title="S", template="")
    assert repr(kind) in str(caught.value)
    assert caught.value.section_path == ("s",)


def test_default_params_must_have_the_sections_params_type() -> None:
    with pytest.raises(
        PromptValidationError, match=r"default_params must be of type Who, got Value\(value=''\)"
    ) as caught:
        MarkdownSection[Who](title="S", template="", default_params=Value())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert caught.value.section_path == ("s",)
    with pytest.raises(PromptValidationError, match=r"default_params requires .*\[Params\]"):
        MarkdownSection(title="S", template="", default_params=Value())


@pytest.mark.parametrize("text", [5, None, b"bytes"], ids=repr)
def test_template_must_be_a_string(text: Any) -> None:
    with pytest.raises(
        PromptValidationError, match=r"template must be a string with \$field placeholders, got"
    ) as caught:
        MarkdownSection(title="S", template=text)
    assert repr(text) in str(caught.value)
    assert caught.value.section_path == ("s",)


def test_summary_must_be_a_string_or_none() -> None:
    assert MarkdownSection(title="S", template="", summary=None).summary is None
    with pytest.raises(PromptValidationError, match=r"summary must be a string .*, got 5"):
        MarkdownSection(title="S", template="", summary=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# --------------------------------------------------------------------------------------------------
# text


@pytest.mark.claim("PS-11")
def test_template_and_summary_are_dedented_and_stripped() -> None:
    section = MarkdownSection(
        title="S",
        template="""
            First
              indented

            Last
        """,
        summary="\n    Short\n    and flush\n",
    )
    assert section.template == "First\n  indented\n\nLast"
    assert section.summary == "Short\nand flush"
    assert section.render_body(None, path=("s",)) == section.template


@pytest.mark.claim("C-26", "C-27", "PR-23")
def test_render_body_substitutes_the_template_and_adds_no_heading() -> None:
    # an unspecialized section accepts any params
    section = MarkdownSection(title="Test", template="Value: $value", key="test")
    assert section.render_body(Value("hello"), path=("test",)) == "Value: hello"


@pytest.mark.claim("C-05", "C-24", "PR-38", "PR-39")
@pytest.mark.parametrize(
    ("template", "placeholder"),
    [("$missing_var", "$missing_var"), ("${missing_var} $value", "$missing_var"), ("a $ 5", "$")],
)
def test_render_body_called_directly_raises_with_path_and_placeholder(
    template: str, placeholder: str
) -> None:
    section = MarkdownSection(title="Instructions", template=template, summary=template)
    for render in (section.render_body, section.render_summary):
        with pytest.raises(
            PromptRenderError, match=r"^Failed to render section template\."
        ) as caught:
            render(Value("x"), path=("instructions",))
        assert caught.value.message == "Failed to render section template."
        assert caught.value.section_path == ("instructions",)
        assert caught.value.placeholder == placeholder
        assert caught.value.__cause__ is not None


def test_literal_section_does_not_substitute_any_text() -> None:
    section = MarkdownSection(
        title="Costs $5", template="  $HOME ${x} $$ 100%s\n", summary="for $", literal=True
    )
    template = PromptTemplate(ns="n", key="k", sections=[section])
    assert template.render().text == "## 1. Costs $5\n\n  $HOME ${x} $$ 100%s"
    assert "\n\nfor $\n\n" in template.render(visibility_overrides={("costs-5",): SUMMARY}).text
    copy_ = PromptTemplate(ns="n", key="k", sections=[section.clone()])
    assert copy_.render().text == template.render().text


def test_overrides_of_a_literal_section_are_literal_too(tmp_path: Path) -> None:
    section = MarkdownSection(title="S", template="$a", summary="$b", literal=True)
    template = PromptTemplate(ns="n", key="k", sections=[section])
    store = LocalPromptOverridesStore(tmp_path)
    override = SectionOverride(path=("s",), body="$c $$", summary="$d")
    store.upsert(template.descriptor, override)
    prompt = Prompt(template, overrides_store=store)
    assert prompt.render().text == "## 1. S\n\n$c $$"
    assert "\n\n$d\n\n" in prompt.render(visibility_overrides={("s",): SUMMARY}).text


# --------------------------------------------------------------------------------------------------
# clones


@pytest.mark.claim("PS-39")
def test_clone_copies_all_descendants_and_shares_tools() -> None:
    leaf = MarkdownSection(title="Leaf", template="leaf", tools=[TOOL])
    root = MarkdownSection[Who](
        title="Root",
        template="$name",
        children=[MarkdownSection(title="Mid", template="", children=[leaf])],
    )
    clone = root.clone()
    cloned_leaf = clone.children[0].children[0]
    assert clone is not root
    assert clone.children[0] is not root.children[0]
    assert cloned_leaf is not leaf
    assert cloned_leaf.tools()[0] is TOOL
    leaf.title = "Changed"
    assert cloned_leaf.title == "Leaf"
    assert isinstance(clone, MarkdownSection)


@dataclass
class Basket:
    fruit: list[str]


class Listing(MarkdownSection[Basket]):
    """Computes its text and a child in its constructor, and has its own state."""

    def __init__(self, items: list[str], service: object = None, **others: Any) -> None:
        self.items, self.service, self.log = items, service, list[str]()
        rows = MarkdownSection(title="Rows", template="\n".join(items))
        super().__init__(title="Listing", template=", ".join(items), children=[rows], **others)


def shown(section: Section[Any]) -> str:
    return PromptTemplate(ns="n", key="k", sections=[section]).render().text


@given(
    before=st.lists(st.text("abc", min_size=1), min_size=1),
    after=st.lists(st.text("xyz", min_size=1), min_size=1),
)
def test_clone_with_other_arguments_equals_a_newly_constructed_section(
    before: list[str], after: list[str]
) -> None:
    section = Listing(before, key="list", default_params=Basket(["a"]))
    original = shown(section)
    for clone in (section.clone(items=after), section.clone(items=after).clone()):
        assert shown(clone) == shown(Listing(after, key="list", default_params=Basket(["a"])))
        assert clone.children[0].clone(template="").title == "Rows"
    assert shown(section) == original
    assert section.clone(title="Other", items=after).title == "Other"


def test_clone_copies_plain_data_and_shares_other_objects() -> None:
    service, nested, named = object(), [Basket(["deep"])], {"one": Basket(["deep"])}
    section = Listing(["a"], service, default_params=Basket(["apple"]))
    section_of_nested = Listing(["a"], service=nested)
    clone, clone_of_nested = section.clone(), section_of_nested.clone()
    assert isinstance(clone.default_params, Basket)
    clone.items.append("b")
    clone.log.append("b")
    clone.default_params.fruit.append("banana")
    assert isinstance(clone_of_nested.service, list)
    clone_of_nested.service[0].fruit.clear()
    assert (section.items, section.log, section.default_params) == (["a"], [], Basket(["apple"]))
    assert nested == [Basket(["deep"])]
    assert clone.service is service
    clone_of_named = Listing(["a"], service=named).clone()
    assert isinstance(clone_of_named.service, dict)
    clone_of_named.service["one"].fruit.clear()
    assert named == {"one": Basket(["deep"])}


def test_clone_passes_positional_and_variadic_arguments() -> None:
    class Words(MarkdownSection):
        def __init__(self, *words: str, end: str = ".") -> None:
            super().__init__(title="Words", template=" ".join(words) + end)

    section = Words("a", "b", end="!")
    assert (section.clone().body_text(), section.clone(end="?").body_text()) == ("a b!", "a b?")
    assert Listing(["a"], key="list").clone(items=["b"]).body_text() == "b"


def test_children_reused_by_the_constructor_are_cloned_for_each_section() -> None:
    shared = MarkdownSection(title="Shared", template="x")

    class Uses(MarkdownSection):
        def __init__(self) -> None:
            super().__init__(title="Uses", template="", children=[shared])

    section = Uses()
    clone = section.clone()
    assert section.children == (shared,)
    assert clone.children[0] is not shared
    assert clone.children[0].title == "Shared"


def test_clone_rejects_an_iterator_instead_of_reading_it_as_empty() -> None:
    class Words(MarkdownSection):
        def __init__(self, words: Any) -> None:
            super().__init__(title="Words", template=" ".join(words))

    section = Words(word for word in ("a", "b"))
    assert section.template == "a b"
    with pytest.raises(
        PromptValidationError, match="words is an iterator that was already consumed; pass a list"
    ):
        section.clone()
    assert section.clone(words=["c"]).template == "c"
    parent = MarkdownSection(
        title="P", template="", children=iter([section.clone(words="d")]), tools=iter([TOOL])
    )
    assert (parent.clone().children[0].key, parent.clone().tools()) == ("words", (TOOL,))


@given(forests())
@settings(max_examples=30)
def test_clone_renders_like_its_original(roots: Any) -> None:
    originals = sections(roots)
    clones = [section.clone() for section in originals]
    pair = [
        PromptTemplate(ns="n", key="k", sections=roots).render().text
        for roots in (originals, clones)
    ]
    assert pair[0] == pair[1]


@pytest.mark.claim("PS-39")
def test_clone_arguments_are_recompiled_and_validated() -> None:
    section = MarkdownSection[Who](title="S", template="$name", summary="old")
    changed = section.clone(
        key="other",
        title="Other",
        template="\n  New ${name}\n",
        summary="  short ",
        tools=[TOOL],
        visibility=SUMMARY,
    )
    assert (changed.key, changed.title, changed.template, changed.summary) == (
        "other",
        "Other",
        "New ${name}",
        "short",
    )
    assert changed.render_body(Who("Ada"), path=("s",)) == "New Ada"
    assert changed.render_summary(Who(), path=("s",)) == "short"
    assert changed.tools() == (TOOL,)
    assert (section.template, section.summary, section.tools()) == ("$name", "old", ())
    child = MarkdownSection(title="Child", template="")
    assert section.clone(children=[child]).children == (child,)
    assert section.clone(summary=None).summary is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": " a "}, "key ' a '"),
        ({"title": ""}, "title must be one line of text, got ''"),
        ({"tools": ["x"]}, "tools must contain functions and Tool objects, got 'x'"),
        ({"children": ["x"]}, "children must contain Section objects, got 'x'"),
        ({"params_type": int}, "params type must be .*, got <class 'int'>"),
        ({"template": None}, "template must be a string .*, got None"),
    ],
)
def test_clone_rejects_the_same_arguments_as_the_constructor(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PromptValidationError, match=message):
        MarkdownSection[Who](title="S", template="").clone(**changes)


@pytest.mark.parametrize("name", ["nope", "_tools", "_body", "clone"])
def test_clone_rejects_unknown_arguments(name: str) -> None:
    with pytest.raises(
        PromptValidationError, match=f"cannot clone: MarkdownSection has no argument '{name}'"
    ) as caught:
        MarkdownSection(title="S", template="").clone(**{name: 1})
    assert caught.value.section_path == ("s",)


def test_section_repr_is_one_bounded_line_without_texts() -> None:
    child = MarkdownSection(title="Food", template="secret")
    tools = [Tool[Who, Nothing](name="refund", description="secret", handler=None)]
    section = MarkdownSection[Who](
        title="Refunds",
        template="secret $name",
        summary="secret",
        visibility=SUMMARY,
        tools=tools,
        children=[child],
    )
    assert repr(section) == (
        "<MarkdownSection 'refunds' params=Who visibility=summary "
        "tools=['refund'] children=['food']>"
    )
    assert repr(child) == "<MarkdownSection 'food'>"
    many = MarkdownSection(
        title="Many", template="", children=[child.clone(key="k" * 64) for _ in range(1_000)]
    )
    assert len(repr(many)) < 300
    # as a debugger may display it
    assert repr(MarkdownSection.__new__(MarkdownSection)) == "<MarkdownSection None>"


@pytest.mark.claim("PS-40")
def test_section_can_be_used_in_several_prompts() -> None:
    shared = MarkdownSection(title="Shared", template="x")
    first = PromptTemplate(ns="n", key="a", sections=[shared])
    second = PromptTemplate(
        ns="n", key="b", sections=[MarkdownSection(title="G", template="", children=[shared])]
    )
    assert first.render().text == "## 1. Shared\n\nx"
    assert second.render().text == "## 1. G\n\n### 1.1. Shared\n\nx"


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda section: pickle.loads(pickle.dumps(section))],
    ids=["copy", "deep", "pickle"],
)
def test_copied_or_pickled_section_works_like_the_original(duplicate: Any) -> None:
    section = MarkdownSection[Who](title="S", template="$name", summary="$name?", tools=[TOOL])
    copied = duplicate(section)
    assert (copied.key, copied.params_type, copied.tools()) == ("s", Who, (TOOL,))
    assert copied.render_body(Who("Ada"), path=("s",)) == "Ada"
    assert copied.render_summary(Who("Ada"), path=("s",)) == "Ada?"
