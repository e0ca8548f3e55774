"""The typed answer: its declaration, its place in a text, and how strictly it is parsed."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, replace
from decimal import Decimal
from enum import Enum
from time import process_time
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Discriminator, Field

from weakincentives import serde
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.prompt import (
    OutputParseError,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    StructuredOutputConfig,
    parse_structured_output,
)
from weakincentives.prompt.model_json import json_text
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say


@dataclass(frozen=True)
class Source:
    file: str
    line: int = 0


@dataclass(frozen=True)
class Answer:
    text: str
    score: float = 0.0
    sources: tuple[Source, ...] = ()
    kind: Literal["fact", "guess"] = "fact"
    note: str | None = field(default=None, metadata={"description": "Anything else"})


ONE = PromptTemplate[Answer](ns="tests", key="one").render()
MANY = PromptTemplate[list[Answer]](ns="tests", key="many").render()
TEXT = PromptTemplate(ns="tests", key="text").render()

SOURCES = st.builds(Source, st.text(max_size=10), st.integers(-(2**40), 2**40))
ANSWERS = st.builds(
    Answer,
    st.text(max_size=30)
    | st.sampled_from(["```", "```json\n{}\n```", "\n```\n", '{"text": 1}', "[]"]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(SOURCES, max_size=3).map(tuple),
    st.sampled_from(("fact", "guess")),
    st.none() | st.text(max_size=10),
)


# -------------------------------------------------------------------------------------------------
# declaration


@pytest.mark.claim("PS-22", "PS-23")
def test_dataclass_output_is_an_object_and_list_output_is_an_array() -> None:
    assert (ONE.output_type, ONE.container) == (Answer, "object")
    assert (MANY.output_type, MANY.container) == (Answer, "array")
    assert (TEXT.output_type, TEXT.container) == (None, None)


@pytest.mark.claim("PS-24")
@pytest.mark.parametrize(
    "output", [dict, list, tuple, set, Any, object, list[Any], list[object]], ids=repr
)
def test_unconstrained_output_type_is_named_in_the_error(output: Any) -> None:
    with pytest.raises(
        PromptValidationError, match="accepts every answer; declare a more precise type"
    ) as caught:
        PromptTemplate[output](ns="n", key="k")
    assert repr(output) in str(caught.value)
    with pytest.raises(PromptValidationError):
        StructuredOutputConfig(output)


class Color(Enum):
    RED = "red"


class Model(BaseModel):
    n: int
    half: float = 0.5


class Keys(TypedDict):
    n: int
    note: NotRequired[str]


@dataclass(frozen=True)
class Cat:
    kind: Literal["cat"]
    lives: int


@dataclass(frozen=True)
class Dog:
    kind: Literal["dog"]


OUTPUTS: list[tuple[Any, str, object]] = [
    (str, "Hello {.", "Hello {."),
    (int, '{"value": 5}', 5),
    (int, "5", 5),
    (float, '{"value": 2.0}', 2.0),
    (bool, '{"value": true}', True),
    (Literal["a", "b"], '{"value": "a"}', "a"),
    (Color, '{"value": "red"}', Color.RED),
    (Model, '{"n": 1, "half": null}', Model(n=1)),
    (Keys, '{"n": 1, "note": null}', {"n": 1}),
    (int | str, '{"value": "x"}', "x"),
    (Answer | None, '{"value": null}', None),
    (Cat | Dog, '{"value": {"kind": "cat", "lives": 7}}', Cat("cat", 7)),
    (Annotated[Cat | Dog, Discriminator("kind")], '{"value": {"kind": "dog"}}', Dog("dog")),
    (list[int], '{"items": [1, 2]}', [1, 2]),
    (list[int | Model], '{"items": [1, {"n": 2}]}', [1, Model(n=2)]),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (dict[str, Model], '{"a": {"n": 1}}', {"a": Model(n=1)}),
    (tuple[Answer, ...], '{"value": [{"text": "t"}]}', (Answer("t"),)),
]


@pytest.mark.parametrize(("output", "text", "value"), OUTPUTS, ids=repr)
def test_any_type_with_a_schema_can_be_the_output(output: Any, text: str, value: object) -> None:
    prompt = PromptTemplate[output](ns="tests", key="any")
    adapter = ScriptedAdapter([say(text)])
    answer = adapter.evaluate(prompt.bind(), session=Session()).output
    assert (type(answer), answer) == (type(value), value)
    assert parse_structured_output(text, prompt.render()) == value
    spec = adapter.requests[0].request.output
    assert (spec is None) is (output is str)
    assert spec is None or spec.schema["type"] == "object"


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (int, '{"value": "5"}'),
        (bool, '{"value": 1}'),
        (Literal["a"], '{"value": "b"}'),
        (Model, '{"n": "1"}'),
        (Model, '{"n": 1, "more": 2}'),
        (Keys, '{"note": "x"}'),
        (Cat | Dog, '{"value": {"kind": "cow"}}'),
        (list[int], '{"items": 1}'),
    ],
    ids=repr,
)
def test_answer_of_the_wrong_type_raises_after_two_repairs(output: Any, text: str) -> None:
    prompt = PromptTemplate[output](ns="tests", key="any").bind()
    adapter = ScriptedAdapter([say(text)] * 3)
    with pytest.raises(PromptEvaluationError, match="after 2 repairs"):
        adapter.evaluate(prompt, session=Session())


@dataclass
class Callback:
    call: Callable[[], int]


@pytest.mark.parametrize("output", [Callback, list[Callback]], ids=repr)
def test_output_type_without_a_schema_is_rejected_when_template_is_built(
    output: Any,
) -> None:
    message = (
        r"output type .*Callback.* has no JSON schema \(Callback: .*Callable.*\); "
        r"use types that JSON can represent"
    )
    with pytest.raises(PromptValidationError, match=message):
        PromptTemplate[output](ns="n", key="k")
    with pytest.raises(PromptValidationError, match=message):
        Prompt(ns="n", key="k", structured_output=StructuredOutputConfig(output))


@pytest.mark.claim("PR-03")
def test_subscript_and_structured_output_config_are_equivalent() -> None:
    by_subscript = Prompt[Answer](ns="n", key="k", sections=[])
    by_config = Prompt[Answer](
        ns="n", key="k", sections=[], structured_output=StructuredOutputConfig(Answer)
    )
    without_sections = Prompt(ns="n", key="k", structured_output=StructuredOutputConfig(Answer))
    assert by_subscript.template == by_config.template == without_sections.template
    assert by_subscript.render().output_type is by_config.render().output_type is Answer


@pytest.mark.claim("PR-04")
def test_subscript_and_structured_output_config_must_match() -> None:
    with pytest.raises(
        PromptValidationError,
        match=r"structured_output must agree, got .*Answer.*Source.*declare only one",
    ):
        Prompt[Answer](ns="n", key="k", structured_output=StructuredOutputConfig(Source))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(PromptValidationError):
        PromptTemplate[Answer](
            ns="n",
            key="k",
            structured_output=StructuredOutputConfig(list[Answer]),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        )


def test_structured_output_config_is_a_frozen_value() -> None:
    config = StructuredOutputConfig(list[Answer])
    assert config == StructuredOutputConfig[list[Answer]](list[Answer])
    assert hash(config) == hash(StructuredOutputConfig(list[Answer]))
    other: object = StructuredOutputConfig(Answer)
    assert config != other
    lenient = replace(config, allow_extra_keys=True)
    assert (lenient.allow_extra_keys, lenient.item_type, lenient.container) == (
        True,
        Answer,
        "array",
    )
    assert pickle.loads(pickle.dumps(lenient)) == lenient
    with pytest.raises(FrozenInstanceError):
        config.allow_extra_keys = True  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


# -------------------------------------------------------------------------------------------------
# reading


@pytest.mark.claim("PS-25")
@given(ANSWERS)
def test_dumped_answer_is_parsed_bare_and_fenced_with_prose_around_it(answer: Answer) -> None:
    text = serde.dump_json(answer)
    pretty = json.dumps(json.loads(text), indent=2)
    for written in (
        text,
        f"  {pretty}\n",
        f"Here it is:\n```json\n{pretty}\n```\nDone.",
        f"```\n{text}\n```",
        f"```JSON\n{text}\n```",
    ):
        assert parse_structured_output(written, ONE) == answer


@given(st.lists(ANSWERS, max_size=3))
def test_dumped_list_is_parsed_bare_and_fenced(answers: list[Answer]) -> None:
    text = "[" + ",".join(map(serde.dump_json, answers)) + "]"
    assert parse_structured_output(text, MANY) == answers
    assert parse_structured_output(f"Sure.\n\n```json\n{text}\n```", MANY) == answers


@pytest.mark.claim("PS-25")
@pytest.mark.parametrize(
    "text",
    [
        '```python\nprint("x")\n```\nand then\n```json\n{"text": "a"}\n```',
        '```\nnot this\n```\n```json\n{"text": "a"}\n```',
        '```json\n{"text": "a"}\n```\n```json\n{"text": "second"}\n```',
        '````json\n{"text": "a"}\n````',
        '  ```json\n  {"text": "a"}\n  ```',
        '```json\r\n{"text": "a"}\r\n```\r\n',
        '```json title="x"\n{"text": "a"}\n```',
        '````text\n```\n{"text": "inside"}\n```\n````\n```\n{"text": "a"}\n```',
        '```python\n```x\n```\n```json\n{"text": "a"}\n```',
    ],
)
def test_first_fenced_json_block_is_parsed_among_other_languages(text: str) -> None:
    assert parse_structured_output(text, ONE) == Answer("a")


@pytest.mark.claim("PS-25", "PS-28")
@pytest.mark.parametrize(
    "text", ["", "It is so.", "```json\n```", '```json\n{"text": "a"', '{"text": "a"} trailing']
)
def test_answer_without_json_raises_error_with_the_raw_response(text: str) -> None:
    with pytest.raises(OutputParseError) as caught:
        parse_structured_output(text, ONE)
    assert caught.value.raw_response == text


@pytest.mark.claim("PS-26")
def test_answer_must_have_the_declared_container() -> None:
    with pytest.raises(OutputParseError, match="must be a JSON object, not an array") as caught:
        parse_structured_output('[{"text": "a"}]', ONE)
    assert caught.value.raw_response == '[{"text": "a"}]'
    with pytest.raises(OutputParseError, match="must be a JSON array, not an object"):
        parse_structured_output('{"text": "a"}', MANY)
    with pytest.raises(OutputParseError):
        parse_structured_output('"text"', ONE)


@pytest.mark.claim("PS-27")
def test_every_validation_error_is_reported_with_its_path() -> None:
    with pytest.raises(OutputParseError) as caught:
        parse_structured_output(
            '{"score": "x", "sources": [{"file": "f"}, {"line": 1}], "extra": 1}', ONE
        )
    message = str(caught.value)
    assert all(path in message for path in ("text:", "score:", "sources.1.file:", "extra:"))


FENCES = {
    "begun and not ended": "```json\n" * 200_000,
    "each shorter": "".join(f"{'`' * marks}x\n" for marks in range(700, 3, -1)) + "```\n" * 200_000,
    "no line": "```json" + " " * 300_000 + "x" * 300_000 + "`",
    "white space": "\t " * 300_000,
    "empty": "```\n" * 200_000,
}


@pytest.mark.parametrize("text", FENCES.values(), ids=FENCES)
def test_fences_are_parsed_in_linear_time(text: str) -> None:
    started = process_time()
    with pytest.raises(OutputParseError):
        parse_structured_output(text, ONE)
    assert (
        process_time() - started < 10
    )  # it would take hours to look for each fence from each line


@pytest.mark.claim("PS-27")
def test_extra_keys_are_accepted_if_allowed() -> None:
    lenient = PromptTemplate[Answer](
        ns="n", key="k", structured_output=StructuredOutputConfig(Answer, allow_extra_keys=True)
    ).render()
    text = '{"text": "a", "extra": 1, "sources": [{"file": "f", "more": 2}]}'
    assert parse_structured_output(text, lenient) == Answer("a", sources=(Source("f"),))
    with pytest.raises(OutputParseError, match="extra"):
        parse_structured_output(text, ONE)


@pytest.mark.parametrize(
    ("item", "accepted"),
    [
        ('{"text": "a", "score": 1, "note": null}', True),
        ('{"text": "a", "score": null, "sources": null}', True),
        ('{"text": "a", "sources": [{"file": "f", "line": null}]}', True),
        ('{"text": "a", "sources": [{"file": "f", "line": 5.0}]}', True),
        ('{"text": "a", "zz": null}', False),
        ('{"text": null}', False),
        ('{"text": "a", "score": "1"}', False),
        ('{"text": "a", "score": true}', False),
        ('{"text": "a", "sources": [{"file": "f", "line": 5.5}]}', False),
        ('{"text": 1}', False),
    ],
)
@pytest.mark.parametrize(
    ("output", "form"),
    [
        (Answer, "%s"),
        (Answer, "So:\n```json\n%s\n```"),
        (list[Answer], "[%s]"),
        (list[Answer], '{"items": [%s]}'),
    ],
)
def test_evaluation_and_parser_accept_the_same_answers(
    output: Any, form: str, item: str, *, accepted: bool
) -> None:
    template = PromptTemplate[output](ns="tests", key="both")
    adapter = ScriptedAdapter([say(form % item)], config=RunConfig(max_repairs=0))
    if accepted:
        parsed = parse_structured_output(form % item, template.render())
        assert adapter.evaluate(template.bind(), session=Session()).output == parsed
    else:
        with pytest.raises(OutputParseError) as caught:
            parse_structured_output(form % item, template.render())
        assert caught.value.raw_response == form % item
        with pytest.raises(PromptEvaluationError):
            adapter.evaluate(template.bind(), session=Session())


def test_parse_structured_output_requires_a_declared_output_type() -> None:
    with pytest.raises(
        OutputParseError, match=r"declares no output type; use PromptTemplate\[Output\]"
    ) as caught:
        parse_structured_output("{}", TEXT)
    assert caught.value.raw_response == "{}"


def test_output_parse_error_survives_copy_and_pickle() -> None:
    error = OutputParseError("text: missing", raw_response="{}")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is OutputParseError
        assert (str(twin), twin.raw_response, twin.args) == (
            "text: missing",
            "{}",
            ("text: missing",),
        )


# --------------------------------------------------------------------------------------------------
# numbers, keys and types without constraints


class Grade(Enum):
    LOW = 1
    HIGH = 2


def answer_of(of: Any, text: str) -> Any:
    return parse_structured_output(text, PromptTemplate[of](ns="tests", key="typed").render())


@pytest.mark.parametrize("text", ["3.0", '{"value": 3.0}', "```json\n3.0\n```", '{"value": 3}'])
@pytest.mark.parametrize(
    "of", [int, int | None, int | str, Literal[3, "x"], Annotated[int, Field(ge=1)]], ids=str
)
def test_number_without_a_fraction_is_an_integer_at_the_root(of: Any, text: str) -> None:
    answer = answer_of(of, text)
    assert answer == 3
    assert type(answer) is int


def test_number_without_a_fraction_is_an_integer_in_members_of_unions_and_enums() -> None:
    assert answer_of(Grade, "2.0") is Grade.HIGH
    assert answer_of(list[int | str], '{"items": [1.0, "2.0"]}') == [1, "2.0"]
    huge = answer_of(int, "12345678901234567891.0")
    assert huge == 12345678901234567891
    for fraction in ("3.5", "12345678901234567.5", "1e999999999"):
        with pytest.raises(OutputParseError, match="valid integer"):
            answer_of(int, fraction)
    with pytest.raises(OutputParseError, match="valid integer"):
        answer_of(int | None, "1e999999999")


@dataclass(frozen=True)
class Bill:
    total: Decimal
    count: int
    note: str = ""


def test_decimal_keeps_its_digits_when_other_fields_are_coerced() -> None:
    text = '{"total": 1.234567890123456789, "count": 2.0, "note": null}'
    assert answer_of(Bill, text) == Bill(Decimal("1.234567890123456789"), 2)
    assert answer_of(Decimal, '{"value": 1.234567890123456789}') == Decimal("1.234567890123456789")


def test_duplicate_key_in_an_answer_is_named() -> None:
    problem = "the key '{}' stands twice"
    for text in ('{"text": "a", "text": "b"}', '```json\n{"text": "a", "text": "a"}\n```'):
        with pytest.raises(OutputParseError, match=problem.format("text")):
            parse_structured_output(text, ONE)
    with pytest.raises(OutputParseError, match=problem.format("value")):
        answer_of(int, '{"value": 1, "value": 2}')


type Anything = dict[str, Any] | Any


@pytest.mark.parametrize(
    "of",
    [Any, dict[str, Any] | Any, Any | None, object | int, Anything, list[Any], list[Anything]],
    ids=str,
)
def test_unconstrained_output_type_is_rejected(of: Any) -> None:
    with pytest.raises(
        PromptValidationError, match="accepts every answer; declare a more precise type"
    ):
        PromptTemplate[of](ns="tests", key="anything")


@pytest.mark.parametrize(
    "text",
    [
        '<think>\nLet me {see}.\n</think>\n\n{"a": 1}',
        'Let me see.\n</think>\n\n{"a": 1}',
        '<THINKING>x</Thinking>{"a": 1}',
        '<think>a</think><think>b</think>{"a": 1}',
        '<think>a ```json\n{"a": 2}\n``` b</think>\n```json\n{"a": 1}\n```',
    ],
)
def test_reasoning_before_a_typed_answer_is_skipped(text: str) -> None:
    assert json.loads(json_text(text)) == {"a": 1}


@pytest.mark.parametrize(
    "text",
    ['{"a": "x </think> y"}', '```json\n{"a": "</think>"}\n```', "<think>never done", "no JSON"],
)
def test_text_that_only_mentions_reasoning_is_kept(text: str) -> None:
    assert json_text(text) in (text, text.removeprefix("```json\n").removesuffix("\n```"))
