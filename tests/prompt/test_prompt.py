"""A bound template: the three ways to create it, the values that it keeps, and its errors."""

from dataclasses import dataclass
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from support.strategies import Size, Who
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    SectionPath,
    SectionVisibility,
    StructuredOutputConfig,
)


@dataclass(frozen=True)
class Answer:
    text: str


@dataclass(frozen=True)
class Unused:
    pass


@dataclass(frozen=True)
class WhoElse(Who):
    """A subclass, which is a separate type."""


class Bank:
    """Not a record, so it can only be a resource."""


class Guest(BaseModel):
    name: str


def greeting() -> PromptTemplate[None]:
    return PromptTemplate(
        ns="tests",
        key="greeting",
        sections=[
            MarkdownSection[Who](title="Who", template="$name"),
            MarkdownSection[Size](title="Size", template="$count $unit"),
        ],
    )


def body(prompt: Prompt[Any], *params: object) -> list[str]:
    return prompt.render(*params).text.split("\n\n")[1::2]


def test_missing_params_of_a_model_are_named_in_one_line() -> None:
    section = MarkdownSection[Guest](title="Task", template="Hi $name")
    with pytest.raises(PromptRenderError) as caught:
        PromptTemplate(ns="tests", key="guest", sections=[section]).render()
    assert str(caught.value) == (
        "no Guest is bound and it cannot be built without arguments (Guest requires name). "
        "Bind one: prompt.bind(Guest(…)) (section 'task')"
    )


def test_repr_of_prompt_and_template_is_bounded_and_contains_no_values() -> None:
    @dataclass(frozen=True)
    class Login:
        password: str

    section = MarkdownSection[Login](title="Task", template="$password")
    template = PromptTemplate[Login](ns="shop", key="support", sections=[section])
    assert repr(template) == "<PromptTemplate shop/support output=Login sections=['task']>"
    assert repr(template.bind()) == "<Prompt shop/support>"
    assert repr(template.bind(Login("hunter2"))) == "<Prompt shop/support params=['Login']>"
    long = PromptTemplate(
        ns="n" * 9_000,
        key="k\n" * 9_000,
        sections=[section.clone(key=f"k{at}") for at in range(99)],
    )
    for text in (repr(long), repr(long.bind(Login("hunter2")))):
        assert len(text) < 300
        assert "\n" not in text


@pytest.mark.claim("C-06")
def test_prompt_can_be_created_in_three_equivalent_ways() -> None:
    template = greeting()
    inline = Prompt(ns="tests", key="greeting", sections=template.sections)
    ways = [Prompt(template), template.bind(), inline]
    assert {way.render().text for way in ways} == {template.render().text}
    assert {(way.ns, way.key, way.name, way.output_type) for way in ways} == {
        ("tests", "greeting", "greeting", None)
    }
    assert inline.template == template


@pytest.mark.claim("PR-03")
def test_subscripted_prompt_declares_its_output_type() -> None:
    assert Prompt[Answer](ns="n", key="k", sections=[]).output_type is Answer
    assert Prompt[list[Answer]](ns="n", key="k").output_type == list[Answer]
    config = StructuredOutputConfig(Answer)
    assert (
        Prompt[Answer](ns="n", key="k", structured_output=config).template.structured_output
        == config
    )
    template = PromptTemplate[Answer](ns="n", key="k")
    assert Prompt[Answer](template).template is template


class AnswerPrompt(Prompt[Answer]):
    """A subclass of `Prompt`."""


def test_subclass_of_a_subscripted_prompt_declares_its_output_type() -> None:
    template = PromptTemplate[Answer](ns="n", key="k")
    assert AnswerPrompt(ns="n", key="k").output_type is AnswerPrompt(template).output_type is Answer
    with pytest.raises(PromptValidationError, match="a template for None and output_type"):
        AnswerPrompt(Loose(ns="n", key="k").template)


# Any: calls that type checkers would reject.
Loose: Any = Prompt


@pytest.mark.claim("C-06")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Loose(greeting(), ns="n"), "a template for None and ns"),
        (lambda: Loose[Answer](greeting()), "a template for None and output_type"),
        (
            lambda: Loose("template"),
            "takes a PromptTemplate, or ns=, key= and sections=, got 'template'",
        ),
        (
            lambda: Loose[Answer]("template"),
            "takes a PromptTemplate, or ns=, key= and sections=, got 'template'",
        ),
        (lambda: Loose(ns="", key="k"), "ns must be a non-empty string, got ''"),
    ],
    ids=["both", "other output", "text", "text for output", "inline"],
)
def test_prompt_rejects_invalid_or_conflicting_arguments(make: Any, message: str) -> None:
    with pytest.raises(PromptValidationError) as caught:
        make()
    assert message in str(caught.value)


# --------------------------------------------------------------------------------------------------
# binding


@pytest.mark.claim("C-28", "PR-06", "PS-03", "PS-04")
def test_bind_changes_and_returns_the_prompt_and_replaces_params_by_type() -> None:
    prompt = Prompt(greeting())
    assert prompt.bind() is prompt
    assert prompt.bind(Who("Ada"), Size(2)) is prompt
    assert body(prompt) == ["Ada", "2 items"]
    prompt.bind(Who("Bob"))
    assert body(prompt) == ["Bob", "2 items"]


@pytest.mark.claim("C-07", "C-28", "PS-05")
def test_params_passed_to_render_apply_only_to_that_call() -> None:
    prompt = greeting().bind(Who("Ada"))
    assert body(prompt, Who("Bob"), Size(1)) == ["Bob", "1 items"]
    assert body(prompt) == ["Ada", "0 items"]


@pytest.mark.claim("PS-04")
def test_prompts_of_one_template_do_not_share_params() -> None:
    template = greeting()
    first, second = Prompt(template).bind(Who("Ada")), Prompt(template)
    assert (body(first)[0], body(second)[0]) == ("Ada", "nobody")


@pytest.mark.claim("PS-03")
@given(
    st.lists(
        st.builds(Who, st.sampled_from("abc")) | st.builds(Size, st.integers(0, 3)), max_size=6
    )
)
def test_last_bound_params_of_each_type_apply_in_one_call_or_several(values: list[object]) -> None:
    prompt = greeting().bind()
    for value in values:
        prompt.bind(value)
    last: dict[type, object] = {type(value): value for value in values}
    assert prompt.render().text == greeting().bind(*last.values()).render().text


REFUSED = [
    (
        (Who("a"), Who("b")),
        "Duplicate params type supplied to prompt.",
        "Who was passed twice; pass one.",
    ),
    (
        (Who("a"), Who("a")),
        "Duplicate params type supplied to prompt.",
        "Who was passed twice; pass one.",
    ),
    (
        (Unused(),),
        "Unexpected params type supplied to prompt.",
        "No section uses Unused; the sections use Size, Who.",
    ),
    ((WhoElse(),), "Unexpected params type supplied to prompt.", "No section uses WhoElse"),
    (
        (1,),
        "Prompt expects dataclass instances.",
        "Pass instances of what the sections use: Size, Who.",
    ),
    (({},), "Prompt expects dataclass instances.", "Got {}."),
    ((None,), "Prompt expects dataclass instances.", "Got None."),
    ((Who,), "Prompt expects dataclass instances.", "Got <class"),
    ((Who,), "Prompt expects dataclass instances.", "Create one: Who(…)."),
    (([Who("a")],), "Prompt expects dataclass instances.", "Got [Who("),
    (
        (Bank(),),
        "Prompt expects dataclass instances.",
        "To give it to tools, write bind(resources={Bank: …}).",
    ),
]


@pytest.mark.claim("C-07", "PR-35", "PR-36", "PR-37")
@pytest.mark.parametrize(("params", "message", "detail"), REFUSED, ids=range(len(REFUSED)))
def test_invalid_params_are_rejected_by_bind_and_render_without_changes(
    params: tuple[object, ...], message: str, detail: str
) -> None:
    template = greeting()
    prompt = template.bind(Who("kept"))
    for entry_point in (prompt.bind, prompt.render, template.bind, template.render):
        with pytest.raises(PromptValidationError) as caught:
            entry_point(Size(9), *params)
        assert caught.value.message == message
        assert str(caught.value).startswith(message)
        assert detail in str(caught.value)
    assert body(prompt) == ["kept", "0 items"]


def test_bind_rejects_params_if_the_sections_use_none() -> None:
    with pytest.raises(
        PromptValidationError, match=r"'Hi'\. The sections take no params; pass a me"
    ):
        PromptTemplate(ns="n", key="k").bind("Hi")
    with pytest.raises(PromptValidationError, match="the sections use none"):
        PromptTemplate(ns="n", key="k").bind(Who())


# --------------------------------------------------------------------------------------------------
# rendering


@pytest.mark.claim("PS-22")
def test_rendered_prompt_has_the_deadline_passed_to_render() -> None:
    deadline = Deadline.after(60)
    assert greeting().bind().render(deadline=deadline).deadline is deadline
    assert greeting().render(deadline=deadline).deadline is deadline
    assert greeting().render().deadline is None


def test_rendered_prompt_is_not_affected_by_later_binding() -> None:
    prompt = greeting().bind(Who("Ada"))
    visible: dict[SectionPath, SectionVisibility] = {("who",): SectionVisibility.SUMMARY}
    rendered = prompt.render(visibility_overrides=visible)
    text = rendered.text
    prompt.bind(Who("Bob"))
    visible.clear()
    assert rendered.text == text
    assert rendered.visibility[("who",)] is SectionVisibility.SUMMARY


def test_prompt_repr_contains_ns_and_key() -> None:
    assert repr(greeting().bind()) == "<Prompt tests/greeting>"


@pytest.mark.claim("U-03")
def test_template_can_be_used_by_many_threads() -> None:
    template = greeting()
    texts: dict[int, set[str]] = {}

    def work(number: int) -> None:
        prompt = template.bind(Who(f"w{number}"), Size(number))
        texts[number] = {prompt.render().text for _ in range(30)}

    threads = [Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {n: {f"## 1. Who\n\nw{n}\n\n## 2. Size\n\n{n} items"} for n in range(16)}
