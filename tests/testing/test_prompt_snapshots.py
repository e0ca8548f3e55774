"""A golden file contains everything a model can see; a failing comparison names the changes."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weakincentives
from support.authors import PLUGIN
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Section,
    SectionVisibility,
    Tool,
)
from weakincentives.testing import render_states
from weakincentives.testing.prompt_snapshots import PromptExtension

pytest_plugins = ["pytester"]

SUMMARY = SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Refund:
    """An order to pay back."""

    order: str = field(metadata={"description": "As on the bill."})
    amount: int = 5


@dataclass(frozen=True)
class Answer:
    text: str
    mood: Literal["glad", "angry"]


def shop(
    *,
    task: str = "Help.",
    refunds: str = "Within `30` days.",
    tool: str = "refund",
    more: Section[Any] | None = None,
) -> PromptTemplate[Answer]:
    return PromptTemplate[Answer](
        ns="shop",
        key="manual",
        sections=[
            MarkdownSection(title="Task", template=task),
            *([more] if more else []),
            MarkdownSection(
                title="Refunds",
                summary="When to pay back.",
                template=refunds,
                visibility=SUMMARY,
                tools=[Tool[Refund, Refund](name=tool, description="Pay back.")],
            ),
        ],
    )


GOLDEN = """\
# Prompt `shop/manual`

`closed` is what the model is shown at first; every other state, what it is shown besides.

## State `closed`

- section `task`
- section `refunds` (summary)
- tool `read_section`

## State `refunds`

- section `refunds`
- tool `refund`
- without tool `read_section`

## Section `task`

```text
## 1. Task

Help.
```

## Section `refunds` (summary)

```text
## 2. Refunds

When to pay back.

---
[This section is summarized. To view full content, call `read_section` with key "refunds".]
```

## Section `refunds`

```text
## 2. Refunds

Within `30` days.
```

## Tool `read_section`

```text
Read the full content of a summarized section.
```

```json
{
  "additionalProperties": false,
  "description": "Arguments of `read_section`.",
  "properties": {
    "section_key": {
      "description": "Key of the summarized section, exactly as its summary shows it. Nested sections use dot notation (e.g., 'parent.child').",
      "type": "string"
    }
  },
  "required": [
    "section_key"
  ],
  "type": "object"
}
```

## Tool `refund`

```text
Pay back.
```

```json
{
  "additionalProperties": false,
  "description": "An order to pay back.",
  "properties": {
    "order": {
      "description": "As on the bill.",
      "type": "string"
    },
    "amount": {
      "default": 5,
      "type": "integer"
    }
  },
  "required": [
    "order"
  ],
  "type": "object"
}
```

## Output `Answer`

```json
{
  "additionalProperties": false,
  "properties": {
    "text": {
      "type": "string"
    },
    "mood": {
      "enum": [
        "glad",
        "angry"
      ],
      "type": "string"
    }
  },
  "required": [
    "text",
    "mood"
  ],
  "type": "object"
}
```
"""  # noqa: E501 - written like this


def golden(prompt: object) -> str:
    return PromptExtension().serialize(prompt)


def diff_lines(old: str, new: str) -> list[str]:
    """Returns the report of a failing comparison, without colours."""
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in PromptExtension().diff_lines(new, old)]


def changes(before: object, after: object) -> list[str]:
    return diff_lines(golden(before), golden(after))


def summary(before: object, after: object) -> list[str]:
    """Returns what the first line says about each part that has changed."""
    first, _, remedy = changes(before, after)[0].partition("; ")
    assert remedy == "if you meant that, run pytest with --snapshot-update"
    return first.split(", ")


# --------------------------------------------------------------------------------------------------
# its content


def test_golden_file_lists_states_sections_tools_and_output() -> None:
    assert golden(shop()) == GOLDEN


def test_prompt_template_and_states_produce_the_same_golden_file() -> None:
    template = shop()
    assert golden(template) == golden(Prompt(template)) == golden(render_states(template))


def test_golden_file_has_one_state_for_each_summarized_section_by_default() -> None:
    template = PromptTemplate(
        ns="t",
        key="k",
        sections=[
            MarkdownSection(title=f"s{n}", template="x", summary="y", visibility=SUMMARY)
            for n in range(5)
        ],
    )
    assert golden(template).count("## State `") == 7
    assert golden(render_states(template)).count("## State `") == 32


@pytest.mark.parametrize("wrong", ["text", (), ("text",), None, shop().render()])
def test_value_that_is_not_a_prompt_raises_type_error(wrong: object) -> None:
    with pytest.raises(
        TypeError,
        match="must compare a Prompt, a PromptTemplate or the result of render_states, got",
    ):
        golden(wrong)


bodies = st.text(st.sampled_from("`#-a$ \n\r\té\u2028"), max_size=30).map(
    lambda text: text.replace("$", "$$")
)


@given(bodies, bodies)
def test_only_the_changed_section_is_reported(before: str, after: str) -> None:
    old, new = shop(refunds=before), shop(refunds=after)
    same = [state.text for state in render_states(old)] == [
        state.text for state in render_states(new)
    ]
    assert (golden(old) == golden(new)) is same
    if not same:
        assert summary(old, new) == ["Section `refunds` changed"]


@given(bodies, bodies)
@settings(max_examples=30)
def test_golden_file_contains_each_text_unchanged(first: str, second: str) -> None:
    template = shop(task=first, refunds=second)
    shown = golden(template)
    for state in render_states(template):
        for span in state.rendered.spans:
            text = state.text[span.start : span.end].replace("\r", "␍")
            assert re.search(rf"\n(`{{3,}})text\n{re.escape(text)}\n\1\n", shown)


def test_section_that_differs_between_states_is_stored_for_each_state() -> None:
    numbers = iter(range(100))

    class Counting(Section[None]):
        def render_body(self, params: None, *, path: tuple[str, ...]) -> str:
            return f"Render {next(numbers)}."

    text = golden(shop(more=Counting(title="Counter")))
    assert re.findall(r"## (Section `counter`.*)\n\n```text\n.*\n\n(.*)\n", text) == [
        ("Section `counter`", "Render 0."),
        ("Section `counter` in state `refunds`", "Render 1."),
    ]


# --------------------------------------------------------------------------------------------------
# failures


def test_changed_section_is_reported_with_its_diff() -> None:
    assert changes(shop(), shop(refunds="Within `14` days.")) == [
        "Section `refunds` changed; if you meant that, run pytest with --snapshot-update",
        "Section `refunds`:",
        " ## 2. Refunds",
        " ",
        "-Within `30` days.",
        "+Within `14` days.",
    ]


def test_changed_tool_schema_is_reported_by_tool_name() -> None:
    @dataclass(frozen=True)
    class Other:
        order: str = field(metadata={"description": "As on the receipt."})

    def with_(params: Any) -> PromptTemplate[Any]:
        tool: Tool[Any, Any] = Tool(name="look", description="Look.", params_type=params)
        return PromptTemplate(
            ns="t", key="k", sections=[MarkdownSection(title="a", template="a", tools=[tool])]
        )

    lines = changes(with_(Refund), with_(Other))
    assert lines[:2] == [
        "Tool `look` changed; if you meant that, run pytest with --snapshot-update",
        "Tool `look`:",
    ]
    assert '-      "description": "As on the bill.",' in lines
    assert '+      "description": "As on the receipt.",' in lines


def test_added_and_removed_states_sections_and_tools_are_reported() -> None:
    more = MarkdownSection(title="More", template="x", summary="y", visibility=SUMMARY)
    plain, wide = shop(refunds="Same."), shop(refunds="Same.", more=more)
    assert [line for line in summary(plain, wide) if "changed" not in line] == [
        "State `more` is new",
        "State `all` is new",
        "Section `more` (summary) is new",
        "Section `more` is new",
    ]
    assert [line for line in summary(wide, plain) if "changed" not in line] == [
        line.replace("new", "gone") for line in summary(plain, wide) if "changed" not in line
    ]
    assert summary(shop(), shop(tool="pay")) == [
        "State `refunds` changed",
        "Tool `pay` is new",
        "Tool `refund` is gone",
    ]


def test_changed_output_is_reported() -> None:
    def asking(output: Any) -> PromptTemplate[Any]:
        return PromptTemplate[output](ns="t", key="k", sections=[])

    assert summary(asking(Answer), asking(list[Answer])) == ["Output `Answer` changed"]
    assert summary(asking(Answer), asking(Refund)) == [
        "Output `Refund` is new",
        "Output `Answer` is gone",
    ]


def test_changed_tool_order_is_reported() -> None:
    def with_(*names: str) -> PromptTemplate[Any]:
        tools = [Tool[Refund, Refund](name=name, description="x") for name in names]
        task = MarkdownSection(title="a", template="a", tools=tools)
        return PromptTemplate(ns="t", key="k", sections=[task])

    assert summary(with_("one", "two"), with_("two", "one")) == ["State `closed` changed"]


def test_missing_file_reports_only_how_to_write_it() -> None:
    assert diff_lines("", GOLDEN) == ["run pytest with --snapshot-update to write it"]


def test_edited_file_is_reported_even_if_no_part_has_changed() -> None:
    edited = GOLDEN.replace("\n\n## Tool", "\n\n\n## Tool")
    assert diff_lines(edited, GOLDEN) == [
        "the file was edited; if you meant that, run pytest with --snapshot-update"
    ]


# --------------------------------------------------------------------------------------------------
# under syrupy


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A prompt in a module, and its tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(weakincentives.__file__).parents[1]))
    # otherwise, syrupy would treat it as a worker's run
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(
        manual="""
        from weakincentives import MarkdownSection, PromptTemplate

        def manual(days=30):
            return PromptTemplate(ns="shop", key="manual", sections=[
                MarkdownSection(title="Task", template="Help."),
                MarkdownSection(title="Refunds", template=f"Within {days} days."),
            ])
        """,
        test_manual="""
        import pytest
        from manual import manual
        from weakincentives import Prompt

        def test_manual(prompt_snapshot):
            assert manual() == prompt_snapshot

        @pytest.mark.parametrize("days", [1, 2])
        def test_days(days, prompt_snapshot):
            assert Prompt(manual(days)) == prompt_snapshot
            assert Prompt(manual(days + 1)) == prompt_snapshot(name="more")
        """,
    )
    return pytester


def run(suite: pytest.Pytester, *args: str) -> pytest.RunResult:
    return suite.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *args)


def files(suite: pytest.Pytester) -> list[str]:
    return sorted(path.name for path in (suite.path / "__snapshots__" / "test_manual").iterdir())


def test_missing_files_fail_until_written_and_then_detect_changes(suite: pytest.Pytester) -> None:
    missed = run(suite)
    missed.assert_outcomes(failed=3)
    missed.stdout.fnmatch_lines(
        ["*Snapshot 'test_manual' does not exist!*", "*run pytest with --snapshot-update*"]
    )
    run(suite, "--snapshot-update").assert_outcomes(passed=3)
    assert files(suite) == [
        "test_days[1].md",
        "test_days[1][more].md",
        "test_days[2].md",
        "test_days[2][more].md",
        "test_manual.md",
    ]
    result = run(suite)
    result.assert_outcomes(passed=3)
    assert result.ret == 0

    module = suite.path / "manual.py"
    module.write_text(module.read_text().replace("Within", "In"))
    changed = run(suite, "test_manual.py::test_manual")
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(
        [
            "E *[[]- snapshot[]]",
            "E *Section `refunds` changed; if you meant that, run pytest with --snapshot-update",
            "E *Section `refunds`:",
            "E * ## 2. Refunds",
            "E *-Within 30 days.",
            "E *+In 30 days.",
        ]
    )
    changed.stdout.no_fnmatch_line("E*Help.*")
    run(suite, "--snapshot-update").assert_outcomes(passed=3)
    run(suite).assert_outcomes(passed=3)


def test_unused_files_fail_the_run_and_are_removed_by_an_update(
    suite: pytest.Pytester,
) -> None:
    run(suite, "--snapshot-update")
    tests = suite.path / "test_manual.py"
    tests.write_text(tests.read_text().replace("[1, 2]", "[1]"))
    unused = run(suite, "--snapshot-details")
    unused.assert_outcomes(passed=2)
    assert unused.ret == 1
    unused.stdout.fnmatch_lines_random(["*2 snapshots unused.*", "Unused test_days[[]2[]] (*"])
    run(suite, "--snapshot-update", "-n", "2")
    assert files(suite) == ["test_days[1].md", "test_days[1][more].md", "test_manual.md"]
    assert run(suite, "-n", "2").ret == 0
