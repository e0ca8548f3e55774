"""The flattened tree: its shape, its look-ups, and everything that is rejected when it is built."""

from dataclasses import InitVar, dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.strategies import SUMMARY, Nothing, Plan, Size, Who, forests, paths, sections
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    RegistrySnapshot,
    Section,
    SectionPath,
    Tool,
    ToolExample,
)

# Any: a section is created with any arguments, including wrong ones.
Loose: Any = MarkdownSection


def section(title: str, *children: Section[Any], **arguments: Any) -> Section[Any]:
    arguments = {"title": title, "template": "", "children": children, **arguments}
    built: Section[Any] = Loose(**arguments)
    return built


def tool(name: str) -> Tool[Nothing, Nothing]:
    return Tool[Nothing, Nothing](name=name)


def refused(*roots: Section[Any]) -> PromptValidationError:
    with pytest.raises(PromptValidationError) as caught:
        RegistrySnapshot(roots)
    with pytest.raises(PromptValidationError) as from_template:
        PromptTemplate(ns="tests", key="refused", sections=roots)
    assert str(from_template.value) == str(caught.value)
    return caught.value


# --------------------------------------------------------------------------------------------------
# shape


@pytest.mark.claim("PR-07", "PR-10", "PR-11")
@given(forests())
@settings(max_examples=60)
def test_nodes_are_in_pre_order_and_have_index_key_depth_and_end(roots: tuple[Plan, ...]) -> None:
    registry = RegistrySnapshot(tuple(sections(roots)))
    nodes = registry.sections
    assert [node.path for node in nodes] == list(paths(roots))
    for index, node in enumerate(nodes):
        assert (node.index, node.key, node.depth) == (
            index,
            ".".join(node.path),
            len(node.path) - 1,
        )
        assert node.section.key == node.path[-1]
        beneath = [section.path for section in nodes if section.path[: len(node.path)] == node.path]
        assert [section.path for section in nodes[index : node.end]] == beneath
        assert node.tools_in_subtree is any(section.tools for section in nodes[index : node.end])
        assert registry.get_section(node.path) is node
        assert registry.get_section_by_key(node.key) is node
        assert [section.path for section in registry.ancestors(node)] == [
            node.path[:length] for length in range(1, len(node.path))
        ]


@pytest.mark.claim("PR-07")
@given(forests())
@settings(max_examples=50)
def test_registry_collects_params_types_and_tools_of_the_tree(roots: tuple[Plan, ...]) -> None:
    registry = RegistrySnapshot(tuple(sections(roots)))
    assert registry.params_types == {node.section.params_type for node in registry.sections} - {
        None
    }
    for node in registry.sections:
        for tool in node.tools:
            assert registry.get_tool(tool.name) is tool
            assert registry.tool_paths[tool.name] == node.path
    assert sum(len(node.tools) for node in registry.sections) == len(registry.tool_paths)


@pytest.mark.claim("PD-36", "PR-07")
@given(forests(), st.lists(st.text(max_size=4), max_size=3).map(tuple))
@settings(max_examples=50)
def test_unknown_path_key_or_tool_is_not_found(roots: tuple[Plan, ...], path: SectionPath) -> None:
    registry = RegistrySnapshot(tuple(sections(roots)))
    known = set(paths(roots))
    node = registry.get_section(path)
    assert (node and node.path) == (path if path in known else None)
    dotted = {".".join(path): path for path in known}
    node = registry.get_section_by_key(".".join(path))
    assert (node and node.path) == dotted.get(".".join(path))
    assert registry.get_tool("unknown") is None


@pytest.mark.claim("PR-08")
def test_registry_is_built_once_per_template() -> None:
    class Counting(Section[None]):
        looked = 0

        def templates(self) -> Any:
            Counting.looked += 1
            return super().templates()

        def render_body(self, params: None, *, path: SectionPath) -> str:
            return ""

    template = PromptTemplate(ns="n", key="k", sections=[Counting(title="S")])
    assert Counting.looked == 1
    prompt = template.bind()
    assert prompt.render().registry is template.bind().render().registry is template.registry
    assert Counting.looked == 1


# --------------------------------------------------------------------------------------------------
# keys


@pytest.mark.claim("PS-10")
def test_duplicate_sibling_keys_are_rejected_with_the_path() -> None:
    error = refused(section("Group", section("One", key="same"), section("Two", key="same")))
    assert error.section_path == ("group", "same")
    assert "('group', 'same') is used twice; give it another key" in str(error)
    assert refused(section("Same"), section("Same")).section_path == ("same",)


@pytest.mark.claim("U-10")
def test_paths_that_are_equal_when_joined_by_dots_are_rejected() -> None:
    error = refused(section("A", section("B")), section("Joined", key="a.b"))
    assert error.section_path == ("a.b",)
    assert "equals that of ('a', 'b') when both are joined with dots; give it another key" in str(
        error
    )
    deep = refused(section("A", section("B.C", key="b.c")), section("A.B", section("C"), key="a.b"))
    assert deep.section_path == ("a.b", "c")


@pytest.mark.claim("U-10")
def test_dotted_key_is_found_only_by_the_complete_key() -> None:
    registry = RegistrySnapshot((section("Joined", section("Inner"), key="a.b"),))
    assert [
        registry.get_section_by_key(key) is not None
        for key in ("a.b", "a.b.inner", "a", "b", "inner")
    ] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_get_section_matches_path_keys_instead_of_the_dotted_key() -> None:
    registry = RegistrySnapshot((section("A", section("B")),))
    assert registry.get_section(("a", "b")) is registry.get_section_by_key("a.b")
    assert registry.get_section(("a.b",)) is None


# --------------------------------------------------------------------------------------------------
# tools


@pytest.mark.claim("C-30", "TL-22")
@pytest.mark.parametrize("hides", [{"enabled": False}, {"visibility": SUMMARY}], ids=repr)
def test_tool_names_are_unique_in_the_whole_tree_even_if_hidden(hides: dict[str, Any]) -> None:
    error = refused(
        section("A", section("Hidden", tools=[tool("same")], **hides)),
        section("B", tools=[tool("same")]),
    )
    assert error.section_path == ("b",)
    assert "got 'same' here and in section 'a.hidden'" in str(error)
    assert "must be unique in the whole prompt" in str(error)


@pytest.mark.claim("TL-22")
def test_tool_listed_twice_in_one_section_is_rejected() -> None:
    same = tool("same")
    error = refused(section("A", tools=[same, tool("other"), same]))
    assert error.section_path == ("a",)
    assert "'same'" in str(error)


@pytest.mark.claim("C-30", "U-09")
@pytest.mark.parametrize("name", ["read_section", "open_sections", "close_section"])
def test_names_of_disclosure_tools_are_reserved(name: str) -> None:
    error = refused(section("G", section("A", tools=[tool(name)])))
    assert error.section_path == ("g", "a")
    assert f"tool name '{name}' is reserved for disclosure; rename the tool" in str(error)


def test_tool_params_without_a_json_schema_are_rejected() -> None:
    @dataclass
    class Odd:
        callback: object
        made: type(Ellipsis)  # type: ignore[valid-type]  # pyright: ignore[reportInvalidTypeForm]

    error = refused(section("A", tools=[Tool[Odd, Nothing](name="odd")]))
    assert error.section_path == ("a",)
    assert "tool 'odd': its params type has no JSON schema" in str(error)


def test_examples_that_are_not_json_serializable_are_rejected() -> None:
    example = ToolExample("Bad", Nothing(), object())
    error = refused(section("A", tools=[Tool[Nothing, object](name="odd", examples=[example])]))
    assert error.section_path == ("a",)
    assert "tool 'odd': invalid example" in str(error)


def test_tools_method_can_be_a_generator() -> None:
    class Generating(MarkdownSection[None]):
        def tools(self) -> Any:
            yield tool("t")

    template = PromptTemplate(ns="n", key="k", sections=[Generating(title="S", template="")])
    assert (
        [tool.name for tool in template.render().tools]
        == [tool.name for tool in template.render().tools]
        == ["t"]
    )


# --------------------------------------------------------------------------------------------------
# placeholders


@pytest.mark.claim("C-24", "PR-39")
@pytest.mark.parametrize("where", ["template", "summary"])
def test_unknown_placeholder_is_rejected_with_path_and_available_fields(
    where: str,
) -> None:
    error = refused(
        section("G", Loose[Size](title="S", **{"template": "", where: "$count ${missing}"}))
    )
    assert error.section_path == ("g", "s")
    assert error.placeholder == "$missing"
    assert (
        "the params have no field for a placeholder; Size has count, unit "
        "(section 'g.s', placeholder '$missing')" in str(error)
    )


@pytest.mark.parametrize("where", ["template", "summary"])
def test_placeholder_in_an_unspecialized_section_is_rejected_with_a_fix(where: str) -> None:
    error = refused(section("S", **{where: "$name"}))
    assert (error.section_path, error.placeholder) == (("s",), "$name")
    assert "write the section as MarkdownSection[Params](…)" in str(error)


@pytest.mark.claim("C-24", "PR-39")
@pytest.mark.parametrize("where", ["template", "summary"])
@pytest.mark.parametrize("text", ["cost: $ 5", "$", "$1", "${", "${a b}", "ends with $"])
def test_malformed_placeholder_is_rejected_and_quoted(where: str, text: str) -> None:
    # rejected at construction, where its author sees it
    error = refused(section("S", **{where: text}))
    assert (error.section_path, error.placeholder) == (("s",), "$")
    assert "write '$$' for a dollar sign" in str(error)
    assert repr(text[text.index("$") :][:10]) in str(error)


def test_only_dataclass_fields_are_valid_placeholders() -> None:
    @dataclass
    class Params:
        own: str = ""
        given: InitVar[int] = 1
        shared: ClassVar[int] = 2

    for name in ("given", "shared", "__class__"):
        error = refused(MarkdownSection[Params](title="S", template=f"$own ${name}"))
        assert error.placeholder == f"${name}"
        assert "Params has own" in str(error)
    RegistrySnapshot((MarkdownSection[Params](title="S", template="$own"),))


@pytest.mark.claim("PS-02")
def test_syntax_of_other_template_engines_is_plain_text() -> None:
    text = "{{ name }} {% if x %} {name} %(name)s #{name}"
    body = MarkdownSection[Who](title="S", template=f"{text} $name.upper()")
    rendered = PromptTemplate(ns="n", key="k", sections=[body]).render(Who("Ada"))
    assert rendered.text == f"## 1. S\n\n{text} Ada.upper()"


# --------------------------------------------------------------------------------------------------
# values that are not sections


@pytest.mark.claim("PS-40")
def test_items_that_are_not_sections_are_rejected_including_prompts() -> None:
    prompt = PromptTemplate(ns="n", key="inner").bind()
    for item in (prompt, prompt.template, "text", None):
        with pytest.raises(
            PromptValidationError,
            match=r"must contain Section objects, got .*; wrap text in MarkdownSection\(…\), or",
        ):
            PromptTemplate(ns="n", key="outer", sections=[item])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def test_section_passed_instead_of_a_list_is_rejected() -> None:
    single: Any = section("A")
    with pytest.raises(
        PromptValidationError, match=r"sections must be a list, such as sections=\[…\], got"
    ):
        PromptTemplate(ns="n", key="outer", sections=single)


def test_errors_deep_in_a_tree_are_found_even_in_disabled_sections() -> None:
    bad = MarkdownSection(title="Bad", template="$x", enabled=False)
    error = refused(section("A", section("B", bad, enabled=False), visibility=lambda: None))
    assert error.section_path == ("a", "b", "bad")
