"""The typed answer so far: what a part of an answer's text shows, for each kind of type."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, WithJsonSchema, model_validator

from support.typed_values import typed_values
from weakincentives import serde
from weakincentives.errors import SerdeError
from weakincentives.prompt.errors import OutputParseError, PromptValidationError
from weakincentives.prompt.output import StructuredOutputConfig, parse_output
from weakincentives.prompt.partial_output import PartialOutput
from weakincentives.serde.json_types import comparable

ABSENT = "absent"
"""What `partial` returns if nothing can be shown."""


def history(output_type: Any, chunks: Sequence[str], **options: bool) -> list[Any]:
    """Returns the values after the chunks that change the answer; reads them only at the end."""
    partial_output = PartialOutput(StructuredOutputConfig(output_type, **options))
    values = [partial_output.value for chunk in chunks if partial_output.feed(chunk)]
    return [value.read() if value else ABSENT for value in values]


def partial(output_type: Any, text: str, **options: bool) -> Any:
    """Returns the partial answer after `text`, which arrives by characters."""
    return (history(output_type, text, **options) or [ABSENT])[-1]


class Color(Enum):
    RED = "red"
    GREEN = "green"


@dataclass
class Ticket:
    n: int
    state: Literal["open", "closed"]
    s: str
    color: Color = Color.RED
    urgent: bool = False
    note: str | None = None
    price: float = 0.0


class TicketModel(BaseModel):
    n: int
    state: Literal["open", "closed"]
    s: str
    color: Color = Color.RED
    urgent: bool = False
    note: str | None = None
    price: float = 0.0


class TicketDict(TypedDict):
    n: int
    state: Literal["open", "closed"]
    s: str
    color: NotRequired[Color]
    urgent: NotRequired[bool]
    note: NotRequired[str | None]
    price: NotRequired[float]


TICKETS = [Ticket, TicketModel, TicketDict]


@dataclass
class Node:
    name: str = "node"
    children: "list[Node]" = field(default_factory=list["Node"])


class NodeModel(BaseModel):
    children: list["NodeModel"] = []


@dataclass
class Cat:
    kind: Literal["cat"]
    lives: int
    word: Literal["purr", "meow"] = "meow"


@dataclass
class Dog:
    kind: Literal["dog"]
    word: str
    value: str = ""


CASES = [
    pytest.param('{"n": 1, "s": "op', {"n": 1, "s": "op"}, id="required-fields-are-missing"),
    pytest.param('{"n": 1,', {"n": 1}, id="one-field"),
    pytest.param("{", {}, id="no-field"),
    pytest.param(" \n", ABSENT, id="no-answer"),
    pytest.param('{"s"', {}, id="a-key-without-a-value"),
    pytest.param('{"state": "op', {}, id="half-a-literal"),
    pytest.param('{"state": "open', {}, id="literal-without-its-quote"),
    pytest.param('{"state": "open"', {"state": "open"}, id="literal"),
    pytest.param('{"state": "ajar"', {}, id="no-literal"),
    pytest.param('{"color": "re', {}, id="half-an-enum"),
    pytest.param('{"color": "red"', {"color": "red"}, id="enum"),
    pytest.param('{"urgent": tru', {}, id="half-a-bool"),
    pytest.param('{"urgent": true', {"urgent": True}, id="true"),
    pytest.param('{"urgent": false', {"urgent": False}, id="false"),
    pytest.param('{"note": nul', {}, id="half-a-null"),
    pytest.param('{"note": null', {"note": None}, id="null"),
    pytest.param('{"s": null', {}, id="null-that-represents-an-absent-field"),
    pytest.param('{"n": 12', {}, id="number-that-may-go-on"),
    pytest.param('{"n": 12}', {"n": 12}, id="number-before-a-brace"),
    pytest.param('{"n": 12,', {"n": 12}, id="number-before-a-comma"),
    pytest.param('{"n": 12 ', {"n": 12}, id="number-before-a-space"),
    pytest.param('{"n": 12\n', {"n": 12}, id="number-before-a-line-end"),
    pytest.param('{"price": 1.', {}, id="half-a-fraction"),
    pytest.param('{"price": 1.5e', {}, id="half-an-exponent"),
    pytest.param('{"price": -1.5e3,', {"price": -1500.0}, id="exponent"),
    pytest.param('{"price": 1e999, "n": 1,', {"n": 1}, id="number-beyond-floats"),
    pytest.param(f'{{"n": {"9" * 5000}, "s": "', {"s": ""}, id="number-beyond-python"),
    pytest.param('{"n": 1.5, "s": "', {"s": ""}, id="fraction-for-an-integer"),
    pytest.param('{"s":"x\\', {"s": "x"}, id="backslash"),
    pytest.param('{"s":"x\\n', {"s": "x\n"}, id="escape"),
    pytest.param('{"s":"x\\u', {"s": "x"}, id="u"),
    pytest.param('{"s":"x\\u00', {"s": "x"}, id="half-a-code"),
    pytest.param('{"s":"x\\u0041', {"s": "xA"}, id="code"),
    pytest.param('{"s":"x\\q', {"s": "x"}, id="no-escape"),
    pytest.param('{"s":"x\\u00zz', {"s": "x"}, id="no-code"),
    pytest.param('{"s":"x\\ud83d', {"s": "x"}, id="half-a-pair"),
    pytest.param('{"s":"x\\ud83d\\ude', {"s": "x"}, id="three-quarters-of-a-pair"),
    pytest.param('{"s":"x\\ud83d\\ude00', {"s": "x😀"}, id="pair"),
    pytest.param('{"s":"x\\ud83dy"', {"s": "x"}, id="lone-surrogate"),
    pytest.param('{"s":"x\\ud83d"', {"s": "x"}, id="lone-surrogate-at-the-end"),
    pytest.param('{"s":"\\u2705 st', {"s": "✅ st"}, id="escape-in-an-open-string"),
    pytest.param('{"s":"x\ud83d\ude00', {"s": "x😀"}, id="pair-of-characters"),
]


@pytest.mark.parametrize("output_type", TICKETS, ids=["dataclass", "model", "typeddict"])
@pytest.mark.parametrize(("text", "expected"), CASES)
def test_partial_shows_the_fields_that_have_arrived(
    output_type: Any, text: str, expected: Any
) -> None:
    shown = partial(output_type, text)
    assert shown == expected
    assert json.dumps(shown, ensure_ascii=False).encode()


def test_no_validator_sees_a_partial_answer() -> None:
    seen: list[int] = []

    class Checked(BaseModel):
        first: int
        second: int

        @model_validator(mode="after")
        def check(self) -> Self:
            seen.append(self.first)
            if self.first > self.second:
                raise ValueError("first must come first")
            return self

    text = '{"first": 2, "second": 1}'
    assert history(Checked, text) == [{}, {"first": 2}, {"first": 2, "second": 1}]
    assert seen == []
    with pytest.raises(OutputParseError, match="first must come first"):
        parse_output(text, StructuredOutputConfig(Checked))
    assert seen == [2]


def test_constraints_are_not_checked_while_a_value_grows() -> None:
    @dataclass
    class User:
        name: Annotated[str, Field(min_length=5, pattern="^[A-Z][a-z]+$")]
        age: Annotated[int, Field(ge=18)] = 18

    assert partial(User, '{"name":"Al') == {"name": "Al"}
    assert partial(User, '{"name":"al1", "age": 3}') == {"name": "al1", "age": 3}
    with pytest.raises(OutputParseError, match="at least 5 characters"):
        parse_output('{"name":"Al"}', StructuredOutputConfig(User))


def test_number_never_appears_on_the_way_to_a_longer_one() -> None:
    assert history(Ticket, '{"n": 123, "price": 4.56}') == [
        {},
        {"n": 123},
        {"n": 123, "price": 4.56},
    ]
    assert history(list[int], "[12, 3 , 45]") == [[], [12], [12, 3], [12, 3, 45]]


def test_schema_by_the_author_limits_what_is_shown_and_never_fails() -> None:
    def field_of(schema: dict[str, Any]) -> Any:
        @dataclass
        class Made:
            a: Annotated[Any, WithJsonSchema(schema)]

        return Made

    def shown(text: str, **schema: Any) -> Any:
        return partial(field_of(schema), f'{{"a": {text}')

    assert shown('"x', type="string", format="markdown") == {"a": "x"}
    assert shown('"x', type="string", format="email") == {}
    assert shown('"x', type=["string", "null"]) == {"a": "x"}
    assert shown('["x', anyOf=[True, False]) == {"a": ["x"]}
    assert shown('["x', items=True, type="array") == {"a": ["x"]}
    assert shown('{"b": {"c": "x', type="object", patternProperties={".": {}}) == {
        "a": {"b": {"c": "x"}}
    }
    assert shown('{"b": 1, "c": "x', properties={"b": {"type": "integer"}}) == {"a": {"b": 1}}
    assert shown('"x', enum=["x", 1]) == {}
    assert shown("1,", enum=["x", 1]) == {"a": 1}


LITERAL_OR_TEXT: Any = Literal["a"] | str  # noqa: PYI051 - authors write it
SHAPES = [
    pytest.param(dict[str, int], '{"a": 1, "b": 2', {"a": 1}, id="dict"),
    pytest.param(dict[str, str], '{"a": "x', {"a": "x"}, id="dict-of-strings"),
    pytest.param(
        dict[str, Ticket], '{"a": {"n": 1, "state": "o', {"a": {"n": 1}}, id="dict-of-records"
    ),
    pytest.param(list[int], "[1, 2", [1], id="list"),
    pytest.param(list[int], '{"items": [1, 2', [1], id="wrapped-list"),
    pytest.param(list[int], '{"items": ', ABSENT, id="wrapper-without-a-list"),
    pytest.param(list[int], '{"items": [1, 2], "x', [1, 2], id="wrapper-with-another-key"),
    pytest.param(
        list[Ticket], '{"items": [{"n": 1, "s": "a"}, {', [{"n": 1, "s": "a"}, {}], id="records"
    ),
    pytest.param(dict[str, int] | None, "{}", {}, id="empty-object-without-a-wrapper"),
    pytest.param(int | str, '{"value": "ab', "ab", id="union-as-text"),
    pytest.param(int | str, '{"value": 12', ABSENT, id="union-with-half-a-number"),
    pytest.param(int | str, '{"value": 12}', 12, id="union-as-number"),
    pytest.param(int | str, '"ab', "ab", id="bare-union"),
    pytest.param(int | str, '{"value": "12', ABSENT, id="text-that-may-be-a-number"),
    pytest.param(int | str, '{"value": "12 a', "12 a", id="text-that-is-no-number"),
    pytest.param(int | str, '{"value": "12"', "12", id="text-of-digits"),
    pytest.param(bool, '{"value": true', True, id="scalar"),
    pytest.param(
        Cat | Dog,
        '{"value": {"kind": "dog", "word": "pu',
        {"kind": "dog", "word": "pu"},
        id="union-after-its-literal",
    ),
    pytest.param(Cat | Dog, '{"value": {"word": "pu', {}, id="literal-of-another-member"),
    pytest.param(
        Cat | Dog, '{"value": {"word": "pum', {"word": "pum"}, id="no-literal-of-another-member"
    ),
    pytest.param(
        Cat | Dog,
        '{"kind": "dog", "value": "x',
        {"kind": "dog", "value": "x"},
        id="union-without-a-wrapper",
    ),
    pytest.param(
        Cat | Dog,
        '{"value": "x", "kind": "dog"',
        {"value": "x", "kind": "dog"},
        id="field-with-the-wrappers-name",
    ),
    pytest.param(LITERAL_OR_TEXT, '{"value": "a', ABSENT, id="literal-or-text"),
    pytest.param(tuple[int, str], '{"value": [1, "x', [1, "x"], id="tuple"),
    pytest.param(dict[str, list[Any]], '{"a": [1, {"b": "x', {"a": [1, {"b": "x"}]}, id="anything"),
    pytest.param(
        Node,
        '{"children": [{"name": "x',
        {"children": [{"name": "x"}]},
        id="recursive-dataclass",
    ),
    pytest.param(
        NodeModel,
        '{"children": [{"children": [',
        {"children": [{"children": []}]},
        id="recursive-model",
    ),
]


@pytest.mark.parametrize(("output_type", "text", "expected"), SHAPES)
def test_partial_has_the_form_of_the_output(output_type: Any, text: str, expected: Any) -> None:
    assert partial(output_type, text) == expected


@pytest.mark.parametrize("depth", [200, 20_000])
def test_deep_nesting_does_not_fail(depth: int) -> None:
    chunks = ['{"children":['] * depth
    shown = partial(Node, "".join(chunks)) if depth == 200 else history(Node, chunks[:300])[-1]
    levels = 0
    while shown.get("children"):
        shown, levels = shown["children"][0], levels + 1
    assert levels == min(depth, 300) - 1
    parser = PartialOutput(StructuredOutputConfig(Node))
    assert parser.feed("".join(chunks))


def test_partial_hides_values_that_its_type_does_not_have() -> None:
    assert partial(Ticket, '{"other": {"n": [1]}, "n": 1}', allow_extra_keys=True) == {"n": 1}
    assert partial(
        Ticket, '{"n": "one", "s": 5, "urgent": [], "note": {"a": "b"}, "price": 1,'
    ) == {"price": 1}
    assert partial(list[int], '[1, "x", 2, ') == [1]


def test_dates_and_decimals_appear_once_they_are_complete() -> None:
    @dataclass
    class Bill:
        day: date
        total: Decimal

    assert partial(Bill, '{"day": "2026-0') == {}
    assert partial(Bill, '{"day": "2026-01-02", "total": "12.') == {"day": "2026-01-02"}
    assert partial(Bill, '{"total": "12.50"') == {"total": "12.50"}


@pytest.mark.parametrize(
    "text", ['{"n": 1, "n": 2}', '{"n": 1, x', '{"n": 1,, ', '{"n": 1]', '{"n": 1} {"n": 2}']
)
def test_partial_stays_as_it_is_at_invalid_json_and_duplicate_keys(text: str) -> None:
    assert partial(Ticket, text + ', "s": "more"') == {"n": 1}


IN_TEXT = [
    pytest.param('```json\n{"n": 1, "s": "a', id="fenced"),
    pytest.param('```\n{"n": 1, "s": "a', id="fenced-without-a-language"),
    pytest.param('  ```JSON  \r\n{"n": 1,\r\n "s": "a', id="fenced-with-spaces"),
    pytest.param('Here is [it]:\n\n```json\n{"n": 1, "s": "a', id="text-before"),
    pytest.param('Code:\n```python\n{"n": 7}\n```\n```json\n{"n": 1, "s": "a', id="code-before"),
    pytest.param('```\n{"n": 7}\n```\n```json\n{"n": 1, "s": "a', id="json-block-after-another"),
    pytest.param('```json\n{"n": 1, "s": "a"}\n```\n```json\n{"n": 2}', id="second-json-block"),
    pytest.param('```json\n{"n": 1, "s": "a"}\n```\nGood bye! {"n": 2}', id="text-after"),
    pytest.param('<think>So {"n": 7}\n```json\n{}\n```</think>\n{"n": 1, "s": "a', id="thought"),
    pytest.param(' <THINKING>x</thinking ><think>y</think>{"n": 1, "s": "a', id="thoughts"),
    pytest.param('So {"n": 7}</think>\n{"n": 1, "s": "a', id="thought-without-its-start"),
    pytest.param('So {"n": 7}</think>\n```json\n{"n": 1, "s": "a', id="thought-before-a-fence"),
]


@pytest.mark.parametrize("text", IN_TEXT)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_partial_finds_the_answer_in_the_text_around_it(text: str, size: int) -> None:
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    assert history(Ticket, chunks)[-1] == {"n": 1, "s": "a"}


def test_tag_in_a_string_does_not_end_a_thought() -> None:
    assert partial(Ticket, '{"s": "</think> {", "n": 1,') == {"s": "</think> {", "n": 1}


@pytest.mark.parametrize("text", ["<thin", "<think>{", "Sure: {", "<think>{</thin", "```python\n{"])
def test_text_without_an_answer_shows_nothing(text: str) -> None:
    assert partial(Ticket, text) == ABSENT


def is_start(part: Any, whole: Any) -> bool:
    """Whether a value can grow into another one."""
    match part, whole:
        case str(), str():
            return whole.startswith(part)
        case list(), list():
            same, last = whole[: max(len(part) - 1, 0)], whole[len(part) - 1 : len(part)]
            return (
                part[:-1] == same
                and all(map(is_start, part[-1:], last))
                and len(part) <= len(whole)
            )
        case dict(), dict():
            keys = list(part)
            return (
                keys == list(whole)[: len(keys)]
                and all(part[key] == whole[key] for key in keys[:-1])
                and all(is_start(part[key], whole[key]) for key in keys[-1:])
            )
        case _:
            return comparable(part) == comparable(whole)


@given(typed=typed_values(), size=st.integers(1, 5), ascii_only=st.booleans())
@example(typed=(Ticket, Ticket(12, "open", "é😀")), size=1, ascii_only=True)
def test_answer_only_grows_until_it_is_the_output(
    typed: tuple[Any, Any], *, size: int, ascii_only: bool
) -> None:
    output_type, value = typed
    try:
        config = StructuredOutputConfig(output_type)
        text = json.dumps(
            serde.dump_lossless(output_type, value), ensure_ascii=ascii_only, indent=1
        )
        parse_output(text, config)
    except (SerdeError, PromptValidationError, OutputParseError):
        return  # not an output
    if config.container == "text":
        return
    text += "\n"
    values = history(output_type, [text[at : at + size] for at in range(0, len(text), size)])
    final = json.loads(text)
    assert all(map(is_start, values, [*values[1:], final]))
    assert comparable(values[-1]) == comparable(final)
    assert comparable(history(output_type, [text])[-1]) == comparable(final)
    for earlier, later in pairwise(values):
        assert comparable(earlier) != comparable(later)
