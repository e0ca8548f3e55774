"""Values survive JSON and fit their schemas; errors list all issues and never quote the data."""

import json
import math
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import jsonschema_rs
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.typed_values import (
    SCALARS,
    TEXT,
    Colour,
    Kind,
    Level,
    Tree,
    applied,
    dataclass_kinds,
    kinds,
    typed_values,
)
from weakincentives import serde
from weakincentives.errors import SerdeError, ValidationIssue
from weakincentives.serde import (
    dump_json,
    dump_json_lossless,
    json_schema,
    parse,
    parse_json,
)


@dataclass
class Item:
    """One line of an order."""

    name: str = field(metadata={"description": "What it is called"})
    count: Annotated[int, pydantic.Field(description="How many", ge=1)] = 1
    title: str = ""


@dataclass
class Order:
    items: list[Item]
    note: str | None = None


@dataclass
class Box[T]:
    content: T


@dataclass
class Bag:
    anything: Any


@dataclass
class Square:
    """A type with a field that it fills itself: it has a default for input, but not for output."""

    width: int
    area: int = field(init=False, default=0)
    around: int = field(init=False)

    def __post_init__(self) -> None:
        self.area, self.around = self.width**2, 4 * self.width


# Any: tests index into it, and a wrong guess should fail there.
def dump(value: object, *, exclude_none: bool = False) -> Any:
    return serde.dump(value, exclude_none=exclude_none)


def issues_of(run: Callable[[], object]) -> tuple[ValidationIssue, ...]:
    with pytest.raises(SerdeError) as caught:
        run()
    return caught.value.issues


# ---------------------------------------------------------------------------------------------- L6:
# there and back


@pytest.mark.claim("TL-26")
@given(typed_values())
def test_dumped_value_parses_to_an_equal_value(typed: tuple[Any, Any]) -> None:
    of, value = typed
    back, text = parse(of, dump(value)), dump_json(value)
    assert back == value == parse_json(of, text) == parse_json(of, text.encode())
    assert dump(value) == json.loads(text)
    assert dump_json(back) == dump_json(value)  # distinguishes True, 1 and 1.0, at any depth


@given(typed_values())
@settings(max_examples=60)
def test_value_is_dumped_identically_in_any_container(typed: tuple[Any, Any]) -> None:
    """In a field of type `Any`, among others, in a generic dataclass: always by its own type."""
    _, value = typed
    dumped = dump(value)
    assert dump([value]) == dump((value, value))[:1] == [dumped]
    assert dump({"key": [value]}) == {"key": [dumped]}
    assert dump(Bag(value)) == {"anything": dumped}
    assert dump(Box({"key": (value, 1)})) == {"content": {"key": [dumped, 1]}}


@given(dataclass_kinds(), st.data())
@settings(max_examples=40)
def test_unknown_keys_are_rejected_unless_allow_extra(kind: Kind, data: st.DataObject) -> None:
    of, value = applied(list, applied(dict, str, kind.of)), data.draw(kind.values)
    dumped = dump([{"inner": value}])
    dumped[0]["inner"]["unheard_of"] = 1
    (issue,) = issues_of(lambda: parse(of, dumped))
    assert issue.path[-2:] == ("inner", "unheard_of")
    assert parse(of, dumped, allow_extra=True) == [{"inner": value}]


@given(kinds().filter(lambda kind: kind.hashable), st.data())
@settings(max_examples=60)
def test_equal_sets_dump_identically(kind: Kind, data: st.DataObject) -> None:
    values = data.draw(st.lists(kind.values, max_size=6))
    shuffled = data.draw(st.permutations(values))
    one, other = set(values), frozenset(shuffled)
    assert (
        dump_json(one)
        == dump_json(other)
        == dump_json({"a": one})[5:-1]
        == dump_json(Bag([other]))[13:-2]
    )


SETS = """
from dataclasses import dataclass
from typing import Any
from support.typed_values import Colour
from weakincentives.serde import dump_json

@dataclass
class Sets:
    words: set[str]
    nested: frozenset[frozenset[str]]
    mixed: set[str | int | None]
    colours: set[Colour]
    maybe: str | set[str] | None
    anything: Any

words = {f"word {n}" for n in range(20)}
sets = Sets(
    words,
    frozenset({frozenset(words), frozenset("abc")}),
    {*words, 1},
    set(Colour),
    words,
    [{"a": words}],
)
print(dump_json(sets), dump_json(words), dump_json([sets, words, {"deep": (words, sets)}]))
"""


def test_equal_sets_dump_identically_in_every_process() -> None:
    tests = Path(__file__).parent.parent

    def output(seed: int) -> str:
        path = os.pathsep.join((str(tests), str(tests.parent / "src")))
        environment = {**os.environ, "PYTHONHASHSEED": f"{seed}", "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", SETS],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    texts = {output(seed) for seed in (0, 1, 2)}
    assert len(texts) == 1
    assert '"word 7"' in texts.pop()


def test_numbers_in_a_set_are_sorted_by_value() -> None:
    assert dump({10, 9, -1, 2.5, "3", None}) == [-1, 2.5, 9, 10, "3", None]
    assert dump(Bag({1: {20, 3, 100}})) == {"anything": {"1": [3, 20, 100]}}
    assert dump({Level.HIGH, Level.LOW}) == [1, 20]


class Row(TypedDict):
    metadata: set[int]
    default: Any
    type: set[int]


def test_typed_dict_fields_can_be_named_like_schema_keywords() -> None:
    row = Row(metadata={10, 9, 1}, default={10, 9, 1}, type={10, 9, 1})
    assert dump(make_dataclass("Holder", [("row", Row)])(row)) == {
        "row": {"metadata": [1, 9, 10], "default": [1, 9, 10], "type": [1, 9, 10]}
    }
    with pytest.raises(SerdeError, match="default: Input should be a finite number"):
        parse_json(Row, '{"metadata": [], "default": NaN, "type": []}')


class Labelled(NamedTuple):
    """A type whose defaults look like parts of pydantic's own schemas."""

    label: Any = {"type": "any"}  # noqa: RUF012 - it is never changed
    names: Any = ({"type": "set"},)


def test_default_that_looks_like_a_schema_is_unchanged() -> None:
    assert parse(Labelled, []) == Labelled()


def test_dataclass_union_round_trips_to_the_same_member() -> None:
    @dataclass
    class Circle:
        kind: Literal["circle"]
        size: float

    @dataclass
    class Square:
        kind: Literal["square"]
        size: float

    for of in (
        list[Circle | Square],
        list[Annotated[Circle | Square, pydantic.Field(discriminator="kind")]],
    ):
        shapes = [Circle("circle", 1), Square("square", 1)]
        assert parse(of, dump(shapes)) == shapes
        jsonschema_rs.validate(json_schema(of), dump(shapes))


def test_generic_dataclass_is_parsed_by_its_type_argument() -> None:
    assert parse(Box[list[Colour]], {"content": ["red"]}) == Box([Colour.RED])
    assert [issue.path for issue in issues_of(lambda: parse(Box[int], {"content": "x"}))] == [
        ("content",)
    ]


@pytest.mark.parametrize(
    ("of", "value", "text"),
    [
        (Square, Square(3), '{"width":3}'),
        (list[Square], [Square(3)], '[{"width":3}]'),
        (Box[Square], Box(Square(3)), '{"content":{"width":3}}'),
    ],
)
def test_init_false_fields_are_omitted_from_json_and_schema(
    of: Any, value: object, text: str
) -> None:
    assert dump_json(value) == text
    assert dump(Bag(value)) == {"anything": json.loads(text)}
    assert parse_json(of, text) == value
    assert jsonschema_rs.is_valid(json_schema(of), json.loads(text))
    assert not {"area", "around"} & set(re.findall(r"\w+", json.dumps(json_schema(of))))


def test_init_false_fields_are_rejected_on_parse() -> None:
    assert issues_of(lambda: parse(Square, {"width": 3, "area": 1})) == (
        ValidationIssue(("area",), "Unexpected keyword argument"),
    )
    assert parse(Square, {"width": 3, "area": 1}, allow_extra=True) == Square(3)


def test_json_string_is_not_parsed_as_an_integer_in_a_union() -> None:
    bytes_that_look_like_a_number = b"\xd7m\xf8"
    assert dump(bytes_that_look_like_a_number) == "1234"
    assert (
        parse(int | bytes, "1234")
        == parse_json(int | bytes, '"1234"')
        == bytes_that_look_like_a_number
    )


def test_exclude_none_omits_none_fields_at_any_depth() -> None:
    order = Order([Item("pen")])
    expected = {"items": [{"name": "pen", "count": 1, "title": ""}]}
    assert dump(order, exclude_none=True) == expected
    assert (
        dump([order], exclude_none=True)
        == dump(Bag([order, 1]), exclude_none=True)["anything"][:1]
        == [expected]
    )
    assert dump(order)["note"] is None


# ------------------------------------------------------------------------------------------------
# values that do not fit


def test_serde_error_lists_every_issue_with_its_path() -> None:
    data = {"items": [{"name": 1, "count": "many"}, {"count": 0, "colour": "red"}], "note": []}
    assert [issue.path for issue in issues_of(lambda: parse(Order, data))] == [
        ("items", 0, "name"),
        ("items", 0, "count"),
        ("items", 1, "name"),
        ("items", 1, "count"),
        ("items", 1, "colour"),
        ("note",),
    ]


def test_serde_error_message_contains_type_paths_and_rules() -> None:
    with pytest.raises(
        SerdeError,
        match=r"^Order: items\.0\.count: Input should be greater than or equal to 1; note: ",
    ):
        parse(Order, {"items": [{"name": "pen", "count": 0}], "note": 1})


PRIVATE = "hunter2 hunter2"


# Any text is a `str` and a `Path`, and pydantic ignores the values of a `Literal` when it dumps a
# text.
NOT_TEXT = [kind for kind in SCALARS if kind.of not in {str, Path, Literal["left", "right"]}]


@pytest.mark.parametrize("kind", NOT_TEXT, ids=lambda kind: str(kind.of))
def test_issue_does_not_quote_the_invalid_value(kind: Kind) -> None:
    holder = make_dataclass("Holder", [("field", kind.of), ("others", applied(list, kind.of))])
    reading = issues_of(lambda: parse(holder, {"field": PRIVATE, "others": [PRIVATE]}))
    writing = issues_of(lambda: dump(holder(PRIVATE, [PRIVATE])))
    assert [issue.path for issue in reading] == [("field",), ("others", 0)]
    assert "is not of the declared type" in writing[0].message
    assert "hunter2" not in f"{reading}{writing}"


def test_dump_of_a_value_of_another_type_raises_serde_error_with_its_path() -> None:
    wrong: Any = ["pen"]
    issues = issues_of(lambda: dump(Order([Item("pen"), Item(wrong)])))
    assert issues == (
        ValidationIssue(
            ("items", 1, "name"),
            "is not of the declared type: Input should be a valid string",
        ),
    )


def test_integer_is_dumped_for_a_float_member_of_a_union() -> None:
    holder = make_dataclass("Holder", [("value", float | str)])
    assert dump_json(holder(1)) == dump_json_lossless(holder, holder(1)) == '{"value":1}'
    assert dump({"deep": [holder(1)]}) == {"deep": [{"value": 1}]}
    assert {issue.path[:1] for issue in issues_of(lambda: dump(holder([1])))} == {("value",)}


def test_issue_does_not_quote_an_invalid_discriminator() -> None:
    @dataclass
    class Circle:
        kind: Literal["circle"]

    @dataclass
    class Square:
        kind: Literal["square"]

    of = Annotated[Circle | Square, pydantic.Field(discriminator="kind")]
    (issue,) = issues_of(lambda: parse(of, {"kind": PRIVATE}))
    assert "hunter2" not in issue.message
    assert "'circle', 'square'" in issue.message


@pytest.mark.parametrize(
    "text", ["", "{", '{"items": [}', "[1, 2", '{"items": []} {}', "nul", '"\\ud800"']
)
def test_malformed_json_raises_serde_error(text: str) -> None:
    (issue,) = issues_of(lambda: parse_json(Order, text))
    assert issue.path == ()


@given(st.binary(max_size=40) | TEXT)
@settings(max_examples=50)
def test_any_text_parses_or_raises_serde_error(text: str | bytes) -> None:
    try:
        assert isinstance(parse_json(Tree | int | list[str], text), Tree | int | list)
    except SerdeError as error:
        assert error.issues  # noqa: PT017 - the claim is that nothing else is raised


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        -math.inf,
        Decimal("NaN"),
        Decimal("-Infinity"),
        object(),
        len,
        int,
        ValueError("no"),
        range(3),
        iter([1]),
        (n for n in (1, 2)),
        "\ud800",
        memoryview(b"x"),
        {(1, 2): {3}, frozenset(): 1},
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", repr(value)),  # the same in each process
)
def test_value_not_representable_in_json_is_rejected_in_any_container(value: object) -> None:
    for holder in (
        value,
        [value],
        {"key": value},
        Bag(value),
        Box([value]),
        (1, {"key": Bag([value])}),
    ):
        with pytest.raises(SerdeError, match=f"^JSON cannot hold this {type(holder).__name__}: "):
            dump_json(holder)


def test_string_that_looks_like_nan_is_dumped_as_a_string() -> None:
    assert dump(["NaN", "Infinity", 10**400]) == ["NaN", "Infinity", 10**400]


@pytest.mark.parametrize("text", ["NaN", "[1, Infinity]", '"nan"', "1e999"])
def test_non_finite_number_is_rejected_on_parse(text: str) -> None:
    assert issues_of(lambda: parse_json(float | list[float], text))


def test_huge_integer_is_rejected() -> None:
    huge = 10**5000
    assert issues_of(lambda: dump(huge))
    assert issues_of(lambda: parse_json(int, "1" * 5000))


def nested() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def around() -> list[Any]:
    ring: list[Any] = [{}]
    ring[0]["again"] = ring
    return ring


def recursive() -> Tree:
    tree = Tree("root", [])
    tree.children.append(tree)
    return tree


@pytest.mark.parametrize("endless", [nested, around, recursive])
def test_deeply_nested_or_recursive_value_is_rejected_on_dump(
    endless: Callable[[], object],
) -> None:
    value = endless()
    assert issues_of(lambda: dump(value))
    # otherwise, freeing it would recurse
    while isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]


def test_deeply_nested_json_is_rejected_on_parse() -> None:
    assert issues_of(lambda: parse_json(object, "[" * 100_000 + "]" * 100_000))


@pytest.mark.parametrize(
    "error", [ValueError, TypeError, KeyError, ZeroDivisionError, AssertionError]
)
def test_error_in_post_init_is_reported_as_an_issue(error: type[Exception]) -> None:
    @dataclass
    class Picky:
        value: int

        def __post_init__(self) -> None:
            raise error("not good enough")

    (issue,) = issues_of(lambda: parse(Picky, {"value": 1}))
    assert "not good enough" in issue.message


def test_serde_error_can_be_pickled() -> None:
    error = SerdeError("Order", (ValidationIssue(("items", 0), "no"),))
    back = pickle.loads(pickle.dumps(error))
    assert (
        (str(back), back.issues)
        == (str(error), error.issues)
        == ("Order: items.0: no", (ValidationIssue(("items", 0), "no"),))
    )


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", f"{'9' * 400}.0"])
@pytest.mark.parametrize(
    "of", [float, Any, object, dict[str, Any], list[Box[Any]], Any | None], ids=str
)
def test_non_finite_number_is_rejected_even_for_untyped_values(of: object, number: str) -> None:
    shapes: dict[object, str] = {
        float: "%s",
        dict[str, Any]: '{"a": [%s]}',
        list[Box[Any]]: '[{"content": {"a": [1, %s]}}]',
    }
    text = shapes.get(of, '["NaN", {"a": %s}]') % number
    for attempt in (
        lambda: parse_json(of, text),
        lambda: parse_json(of, text.encode(), allow_extra=True),
    ):
        (issue,) = issues_of(attempt)
        assert issue.message == "Input should be a finite number"
    assert parse_json(of, text.replace(number, "1e99")) is not None


def test_unresolvable_field_type_raises_serde_error() -> None:
    @dataclass
    class Lost:
        value: "Nowhere"  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    for attempt in (
        lambda: json_schema(Lost),
        lambda: parse(Lost, {"value": 1}),
        lambda: dump(Lost(1)),
    ):
        with pytest.raises(
            SerdeError, match=r"Lost: cannot cross JSON: name 'Nowhere' is not defined$"
        ):
            attempt()


def test_field_type_is_resolved_once_it_is_defined() -> None:
    early = make_dataclass("Early", [("value", "DefinedLater")], module=__name__)
    with pytest.raises(
        SerdeError, match=r"Early: cannot cross JSON: name 'DefinedLater' is not defined"
    ):
        parse(early, {"value": 1})
    globals()["DefinedLater"] = int
    try:
        assert parse(early, {"value": 1}) == early(1)
    finally:
        del globals()["DefinedLater"]


class Words(str):
    __slots__ = ()


def test_instance_of_an_unknown_subclass_is_dumped_as_its_base_class() -> None:
    assert dump(Words("x")) == "x"
    assert dump([Words("x"), {"key": Words("y")}]) == ["x", {"key": "y"}]


# --------------------------------------------------------------------------------------------------
# strict scalars


class Answers(Enum):
    ONE = 1
    TWO = 2


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (int, '"1"'),
        (int, "true"),
        (int, "1.5"),
        (float, '"1.5"'),
        (float, "false"),
        (bool, '"yes"'),
        (bool, '"true"'),
        (bool, "1"),
        (str, "1"),
        (str, "true"),
        (Level, "true"),
        (Level, '"1"'),
        (Answers, "true"),
        (Literal[1, 2], "true"),
        (Literal[True], "1"),
        (datetime, "0"),
        (date, "0"),
        (timedelta, "1.5"),
        (UUID, "1"),
        (Path, "1"),
        (bytes, "1"),
        (Decimal, "true"),
    ],
    ids=str,
)
def test_scalar_of_another_json_type_is_rejected(of: Any, text: str) -> None:
    holder = make_dataclass("Holder", [("value", of)])
    assert issues_of(lambda: parse_json(of, text))
    assert [
        issue.path[:1] for issue in issues_of(lambda: parse(holder, {"value": json.loads(text)}))
    ] == [("value",)]


@pytest.mark.parametrize(
    ("of", "text", "value"),
    [
        (float, "1", 1.0),
        (Decimal, '"1.50"', Decimal("1.50")),
        (Decimal, "1", Decimal(1)),
        (Decimal, "1.5", Decimal("1.5")),
        (Level, "20", Level.HIGH),
        (Answers, "2", Answers.TWO),
        (Colour, '"red"', Colour.RED),
        (Literal[1, True], "1", 1),
        (Literal[1, True], "true", True),
        (date, '"2020-02-29"', date(2020, 2, 29)),
        (bytes, '"YWJj"', b"abc"),
        (Path, '"a/b"', Path("a/b")),
        (dict[int, bool], '{"1": true}', {1: True}),
    ],
    ids=str,
)
def test_scalar_type_accepts_the_json_type_of_its_schema(of: Any, text: str, value: object) -> None:
    back = parse_json(of, text)
    assert back == value
    assert type(back) is type(value)


def test_scalar_error_names_the_field_and_the_expected_type() -> None:
    with pytest.raises(SerdeError, match=r"^Item: count: Input should be a valid integer$"):
        parse(Item, {"name": "pen", "count": "1"})


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        (UTC, "Z"),
        (timezone(timedelta(hours=1)), "+01:00"),
        (timezone(-timedelta(hours=9)), "-09:00"),
    ],
)
def test_utc_offset_is_parsed_as_a_standard_library_timezone(zone: timezone, text: str) -> None:
    back = parse_json(datetime, f'"2020-02-29T10:00:00{text}"')
    assert back == datetime(2020, 2, 29, 10, tzinfo=zone)
    assert type(back.tzinfo) is timezone
    assert f"{back:%Z}" == zone.tzname(None)
    assert type(parse_json(time, f'"10:00:00{text}"').tzinfo) is timezone
    assert parse_json(dict[datetime, int], f'{{"2020-02-29T10:00:00{text}": 1}}') == {back: 1}


@dataclass
class Aliased:
    value: Annotated[int, pydantic.Field(alias="theValue")]


class Mixed(Enum):
    ONE = 1
    WORD = "word"


@pytest.mark.parametrize(
    ("of", "value", "text"),
    [
        (Aliased, Aliased(1), '{"theValue":1}'),
        (Literal[Colour.RED], Colour.RED, '"red"'),
        (
            list[Literal[Mixed.ONE, Mixed.WORD, "other"]],
            [Mixed.ONE, "other", Mixed.WORD],
            '[1,"other","word"]',
        ),
        (dict[Literal[Colour.RED], int], {Colour.RED: 1}, '{"red":1}'),
    ],
    ids=str,
)
def test_alias_and_literal_members_round_trip(of: Any, value: object, text: str) -> None:
    holder = make_dataclass("Holder", [("value", of)])
    assert dump_json(holder(value)) == f'{{"value":{text}}}'
    assert parse_json(holder, f'{{"value":{text}}}') == holder(value)
    jsonschema_rs.validate(json_schema(of), json.loads(text))


def test_literal_enum_member_is_not_parsed_from_an_equal_value() -> None:
    assert issues_of(lambda: parse_json(Literal[Mixed.ONE], "true"))
    assert issues_of(
        lambda: dump(make_dataclass("Holder", [("value", Literal[Mixed.ONE])])(Mixed.WORD))
    )
