"""Worked examples of a task: how they are rendered, and that they can only call existing tools."""

from dataclasses import dataclass
from typing import Any

import pytest

from support.strategies import SUMMARY
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    Section,
    TaskExample,
    TaskExamplesSection,
    TaskStep,
    Tool,
)


@dataclass(frozen=True)
class Search:
    query: str
    limit: int = 3


@dataclass(frozen=True)
class Answer:
    text: str


def step(**changes: Any) -> TaskStep:
    return TaskStep(tool="search", input=Search("cats"), result="2 files")._replace(**changes)


def prompt(*examples: TaskExample, more: Section[Any] | None = None) -> PromptTemplate[None]:
    tools = MarkdownSection(
        title="Tools", template="", tools=[Tool[Search, Answer](name="search")], enabled=False
    )
    roots: list[Section[Any]] = [tools, more or TaskExamplesSection(examples=examples)]
    return PromptTemplate(ns="tests", key="examples", sections=roots)


def test_examples_are_numbered_with_their_steps_and_outcome() -> None:
    text = (
        prompt(
            TaskExample(
                objective="Find cats", steps=(step(), step(result="none")), outcome=Answer("two")
            ),
            TaskExample(objective="Think", outcome="done"),
            TaskExample(objective="Nothing"),
        )
        .render()
        .text
    )
    assert text == (
        "## 2. Examples\n\n"
        "1. Find cats\n"
        '   - `search` `{"query":"cats","limit":3}`: 2 files\n'
        '   - `search` `{"query":"cats","limit":3}`: none\n'
        '   - Outcome: {"text":"two"}\n\n'
        "2. Think\n   - Outcome: done\n\n"
        "3. Nothing"
    )


def test_task_examples_section_takes_the_common_section_arguments() -> None:
    child = MarkdownSection(title="Child", template="x")
    section = TaskExamplesSection(
        title="Cases", summary="Some cases.", children=[child], examples=[]
    )
    assert (section.key, section.children, section.params_type) == ("cases", (child,), None)
    assert TaskExamplesSection(title="Cases", key="worked", examples=[]).key == "worked"
    tree = prompt(more=section)
    assert tree.render().text == "## 2. Cases\n\n### 2.1. Child\n\nx"
    assert "Some cases.\n\n---" in tree.render(visibility_overrides={("cases",): SUMMARY}).text
    with pytest.raises(PromptValidationError, match="title must be one line of text"):
        TaskExamplesSection(title="Two\nlines", key="cases", examples=[])


@pytest.mark.parametrize(
    ("wrong_step", "message"),
    [
        (
            step(tool="gone"),
            "task example 1 calls 'gone' with Search: no section has a tool of that name",
        ),
        (step(input=Answer("x")), "task example 1 calls 'search' with Answer: pass Search"),
        (step(input={"query": "x"}), "task example 1 calls 'search' with dict: pass Search"),
    ],
    ids=["unknown tool", "other params", "no params"],
)
def test_step_that_no_tool_accepts_is_rejected_with_path_and_index(
    wrong_step: TaskStep, message: str
) -> None:
    with pytest.raises(PromptValidationError) as caught:
        prompt(
            TaskExample(objective="Fine", steps=(step(),)),
            TaskExample(objective="Bad", steps=(step(), wrong_step)),
        )
    assert caught.value.section_path == ("examples",)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "example",
    [
        TaskExample(objective="Bad", steps=(step(input=Search(object())),)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        TaskExample(objective="Bad", outcome=Answer(object())),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ],
    ids=["input", "outcome"],
)
def test_example_values_that_are_not_json_serializable_are_rejected(example: TaskExample) -> None:
    with pytest.raises(PromptValidationError, match="task example 0 is invalid: ") as caught:
        TaskExamplesSection(examples=[example])
    assert caught.value.section_path == ("examples",)


def test_items_that_are_not_task_examples_are_rejected() -> None:
    with pytest.raises(
        PromptValidationError, match="examples must contain TaskExample objects, got 'text'"
    ):
        TaskExamplesSection(examples=["text"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def test_clone_renders_its_own_examples() -> None:
    section = TaskExamplesSection(examples=[TaskExample(objective="Old")])
    clone = section.clone(examples=[TaskExample(objective="New")], key="new")
    assert (section.render_body(None, path=()), clone.render_body(None, path=())) == (
        "1. Old",
        "1. New",
    )
    assert clone.examples == (TaskExample(objective="New"),)
    with pytest.raises(PromptValidationError, match="must contain TaskExample objects, got 'text'"):
        section.clone(examples=["text"])
