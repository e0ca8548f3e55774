"""Types that pydantic parses in its own way: each round-trips, or is rejected with a remedy."""

import json
import math
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, make_dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, Flag, IntFlag
from typing import Annotated, Any, Literal

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, Json, RootModel, field_serializer
from typing_extensions import TypedDict

from support.typed_values import applied
from weakincentives.errors import SerdeError
from weakincentives.serde import (
    dump,
    dump_json,
    dump_json_lossless,
    dump_lossless,
    json_schema,
    parse,
    parse_json,
)


class Rank(Enum):
    ONE = 1
    TWO = 2


class Access(IntFlag):
    READ = 1
    WRITE = 2
    RUN = 4


class Gap(Flag):
    FIRST = 1
    THIRD = 4


class Size(Enum):
    SMALL = (1, 2)
    BIG = (3, "x")
    NESTED = ((1,), None)
    EMPTY = ()


class Day(Enum):
    FIRST = date(2020, 1, 1)
    SECOND = date(2020, 1, 2)


class Price(Enum):
    LOW = Decimal("1.50")
    HIGH = Decimal(20)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"
    CRIMSON = "red"  # noqa: PIE796 - an alias


class Kind(Enum):
    CAT = "cat"
    DOG = "dog"


@dataclass(frozen=True)
class Cat:
    kind: Literal[Kind.CAT]
    lives: int = 9


@dataclass(frozen=True)
class Dog:
    kind: Literal[Kind.DOG]
    tricks: int = 0


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
Numbers = RootModel[list[int]]


class Query(TypedDict):
    name: str


@dataclass(frozen=True)
class Box[T]:
    content: T


type Ranks = list[Rank]
type Boxed[T] = Box[T]

DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
ODD: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Rank, st.sampled_from(Rank)),
    (Access, st.integers(0, 7).map(Access)),
    (Gap, st.sampled_from([Gap(0), Gap.FIRST, Gap.THIRD, Gap.FIRST | Gap.THIRD])),
    (Size, st.sampled_from(Size)),
    (Day, st.sampled_from(Day)),
    (Price, st.sampled_from(Price)),
    (Colour, st.sampled_from(Colour)),
    (Literal[Kind.CAT, Rank.ONE], st.sampled_from([Kind.CAT, Rank.ONE])),
    (Pet, st.builds(Cat, st.just(Kind.CAT)) | st.builds(Dog, st.just(Kind.DOG))),
    (Numbers, st.lists(st.integers()).map(Numbers)),
    (Query, st.fixed_dictionaries({"name": st.just("x")})),
    (tuple[()], st.just(())),
    (Decimal, DECIMALS),
    (Decimal | int, DECIMALS),
    (Ranks, st.lists(st.sampled_from(Rank), max_size=2)),
    (Boxed[Rank], st.builds(Box, st.sampled_from(Rank))),
    (dict[Rank, str], st.dictionaries(st.sampled_from(Rank), st.just("x"))),
    (dict[Gap, int], st.dictionaries(st.sampled_from(Gap), st.integers())),
    (dict[Literal[1, "a"], int], st.dictionaries(st.sampled_from([1, "a"]), st.integers())),
    (dict[Day, int], st.dictionaries(st.sampled_from(Day), st.integers())),
    (dict[Decimal, int], st.dictionaries(DECIMALS, st.integers(), max_size=2)),
]
VALUES = st.sampled_from(
    [
        *(None, True, 0, 1, 3, 8, -1, 2.5, "", "red", "1", "cat", [], [1, 2], [3, "x"], {}),
        *({"1": "x"}, {"kind": "cat"}, {"kind": "cow"}, {"7": 1}, {"content": 3}, {"name": 1}),
    ]
)


def in_a_place(odd: tuple[Any, st.SearchStrategy[Any]], place: str) -> tuple[Any, Any]:
    """Returns a type that contains the odd one, and its values."""
    of, values = odd
    match place:
        case "list":
            return applied(list, of), st.lists(values, max_size=2)
        case "dict":
            return applied(dict, str, of), st.dictionaries(st.just("key"), values)
        case "optional":
            return of | None, st.none() | values
        case "field":
            holder = make_dataclass("Holder", [("field", of), ("others", applied(list, of))])
            return holder, st.builds(holder, values, st.lists(values, max_size=1))
        case _:
            return of, values


@pytest.mark.claim("N-24")
@given(
    st.sampled_from(ODD), st.sampled_from(["list", "dict", "optional", "field", "root"]), st.data()
)
@settings(max_examples=60)
def test_accepted_type_has_a_valid_schema_and_its_values_round_trip(
    odd: tuple[Any, st.SearchStrategy[Any]], place: str, data: st.DataObject
) -> None:
    of, values = in_a_place(odd, place)
    schema = json_schema(of)
    jsonschema_rs.meta.validate(schema)
    value = data.draw(values)
    written = dump_lossless(of, value)
    jsonschema_rs.validate(schema, written)
    assert parse(of, written) == value
    other = data.draw(VALUES)
    if not jsonschema_rs.is_valid(schema, other):
        with pytest.raises(SerdeError):
            parse(of, other)


@dataclass
class Lazy:
    items: Iterable[int]


@pytest.mark.parametrize(
    ("of", "remedy"),
    [
        (Iterable[int], r"declare list\[…\]"),
        (Lazy, r"declare list\[…\]"),
        (Iterable[int] | str, r"declare list\[…\]"),
        (Generator[int, None, None], r"declare list\[…\]"),
        (Iterator[int], "cannot cross JSON"),
        (AsyncIterator[int], "cannot cross JSON"),
        (dict[tuple[int, int], str], "declare keys of type str"),
        (dict[frozenset[int], str], "declare keys of type str"),
        (dict[Cat, str], "declare keys of type str"),
        (dict[int | None, str], "declare keys of type str"),
        (dict[Size, str], "declare keys of type str"),
        (Literal[Colour.RED, "red"], "remove one of them"),
        (dict[Literal[1, "1"], str], "remove one of them"),
    ],
    ids=str,
)
def test_json_schema_rejects_types_that_json_cannot_round_trip(of: Any, remedy: str) -> None:
    with pytest.raises(SerdeError, match=remedy):
        json_schema(of)


@pytest.mark.parametrize("items", [[1], (1,), {1}], ids=str)
def test_iterable_field_is_dumped_as_an_array(items: Iterable[int]) -> None:
    assert dump_json(Lazy(items)) == '{"items":[1]}'


def test_iterator_is_rejected_because_dumping_would_exhaust_it() -> None:
    with pytest.raises(SerdeError, match="can be read only once; convert it to a list"):
        dump_json(Lazy(iter([1])))


@pytest.mark.parametrize("number", ["8", "-1", "true", '"1"', "1.5", "null"])
def test_invalid_flag_combination_is_rejected(number: str) -> None:
    with pytest.raises(SerdeError):
        parse_json(Access, number)
    with pytest.raises(SerdeError):
        parse_json(Gap, "2")


@dataclass
class Flagged:
    gap: Gap
    by_gap: dict[Gap, int]
    other: Any = (1,)  # a tuple, which is dumped but not read back


def test_dump_of_flags_does_not_require_a_round_trip() -> None:
    both = Gap.FIRST | Gap.THIRD
    assert dump(Flagged(both, {both: 1})) == {"gap": 5, "by_gap": {"5": 1}, "other": [1]}


def test_flag_schema_describes_its_members() -> None:
    assert json_schema(Access) == {
        "type": "integer",
        "minimum": 0,
        "maximum": 7,
        "description": "The sum of any of: 1 READ, 2 WRITE, 4 RUN",
    }


def test_enum_alias_is_listed_only_once_in_the_schema() -> None:
    assert json_schema(Colour)["enum"] == ["red", "blue"]
    with pytest.raises(SerdeError, match=r"Input should be 'red' or 'blue'$"):
        parse_json(Colour, '"green"')


def test_enum_of_tuples_is_listed_as_arrays() -> None:
    assert json_schema(Size) == {"type": "array", "enum": [[1, 2], [3, "x"], [[1], None], []]}


def test_enum_is_parsed_both_as_a_key_and_as_a_value() -> None:
    @dataclass
    class Both:
        rank: Rank
        names: dict[Rank, str] = field(default_factory=dict)

    assert parse_json(Both, '{"rank": 1, "names": {"1": "x"}}') == Both(Rank.ONE, {Rank.ONE: "x"})
    with pytest.raises(SerdeError, match="rank"):
        parse_json(Both, '{"rank": "1"}')


type Key = Rank


@dataclass(frozen=True)
class Keyed:
    first: dict[Key, int]
    second: dict[Key, int]
    rank: Key


def test_aliased_enum_is_parsed_both_as_a_key_and_as_a_value() -> None:
    value = Keyed({Rank.ONE: 1}, {Rank.TWO: 2}, Rank.ONE)
    written = dump_lossless(Keyed, value)
    assert written == {"first": {"1": 1}, "second": {"2": 2}, "rank": 1}
    assert parse(Keyed, written) == value


class Model(BaseModel):
    count: int
    share: float = 0.0
    data: bytes = b"\xff"


@dataclass
class Holder:
    model: Model


@pytest.mark.parametrize(
    ("of", "text", "issue"),
    [
        (Holder, '{"model": {"count": "1"}}', "model.count: Input should be a valid integer"),
        (Holder, '{"model": {"count": 1, "other": 2}}', "model.other: Extra inputs are not"),
        (Model, '{"count": 1, "share": NaN}', "share: Input should be a finite number"),
    ],
    ids=["a text for a number", "an unknown key", "a NaN"],
)
def test_model_without_config_is_parsed_as_strictly_as_a_dataclass(
    of: Any, text: str, issue: str
) -> None:
    with pytest.raises(SerdeError, match=issue):
        parse_json(of, text)
    assert dump_lossless(Model, Model(count=1)) == {"count": 1, "share": 0.0, "data": "_w=="}


# --------------------------------------------------------------------------------------------------
# decimals


@dataclass(frozen=True)
class Transfer:
    amount: Decimal
    by_name: dict[str, Decimal] = field(default_factory=dict)
    maybe: Decimal | None = None
    either: Decimal | str | float | None = None
    nested: Json[list[Decimal]] = field(default_factory=list)


DIGITS = ["1.234567890123456789", "12345678901234567.89", "-0.1000000000000000055", "1e-30", "1.50"]


@pytest.mark.parametrize("number", DIGITS)
def test_decimal_keeps_the_digits_of_a_json_number(number: str) -> None:
    text = (
        f'{{"amount": {number}, "by_name": {{"a": {number}}}, "maybe": {number}, '
        f'"nested": "[{number}]"}}'
    )
    wanted = Decimal(number)
    assert parse_json(Transfer, text) == Transfer(wanted, {"a": wanted}, wanted, None, [wanted])
    assert parse_json(Transfer, text.encode()).amount == wanted


def test_decimal_in_a_json_field_keeps_its_digits() -> None:
    text = '{"amount": 1, "nested": "[1.234567890123456789]"}'
    assert parse_json(Transfer, text).nested == [Decimal("1.234567890123456789")]


def test_float_in_a_union_with_decimal_is_kept_unless_it_would_lose_digits() -> None:
    assert type(parse_json(Transfer, '{"amount": 1, "either": 0.5}').either) is float
    exact = parse_json(Transfer, '{"amount": 1, "either": 0.12345678901234567890}').either
    assert exact == Decimal("0.12345678901234567890")


def test_numbers_that_differ_only_beyond_float_precision_are_rejected() -> None:
    text = '{"amount": 1.2345678901234567891, "maybe": 1.2345678901234567892}'
    with pytest.raises(SerdeError, match="send strings"):
        parse_json(Transfer, text)
    assert parse_json(Transfer, text.replace("892", "891")).maybe is not None


def test_decimal_constraints_apply_to_all_digits() -> None:
    at_most_one = Annotated[Decimal, Field(le=1)]
    with pytest.raises(SerdeError, match="less than or equal to 1"):
        parse_json(at_most_one, "1.00000000000000000001")


@given(DECIMALS.filter(lambda number: math.isfinite(float(number))))
@settings(max_examples=30)
def test_every_decimal_is_parsed_from_its_json_number(number: Decimal) -> None:
    assert parse_json(Transfer, f'{{"amount": {number}}}').amount == number


# --------------------------------------------------------------------------------------------------
# values that contain themselves


@dataclass
class Node:
    inner: Any = None


def ring() -> Node:
    node = Node()
    node.inner = [{"again": node}]
    return node


def nested(depth: int, leaf: object) -> object:
    for _ in range(depth):
        leaf = Node(leaf)
    return leaf


@pytest.mark.parametrize(
    "value", [ring(), nested(100, object()), nested(100_000, 1), nested(40, math.nan)]
)
def test_value_not_representable_in_json_is_rejected_at_any_depth(value: object) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: dump(value),
        lambda: dump_json([value, value]),
        lambda: dump_json_lossless(Node, value),
    ]
    for attempt in attempts:
        with pytest.raises(SerdeError, match=r"^JSON cannot hold this"):
            attempt()
    while isinstance(value, Node):  # otherwise, freeing it would recurse
        inner, value.inner = value.inner, None
        value = inner


def test_error_about_a_nested_value_names_its_reason_once() -> None:
    with pytest.raises(SerdeError) as caught:
        dump(nested(3, object()))
    assert f"{caught.value}".count("JSON cannot hold this") == 1
    assert "Unable to serialize unknown type" in f"{caught.value}"


class Slow(BaseModel):
    """A value during whose dump Ctrl-C is pressed."""

    word: str

    @field_serializer("word")
    def write(self, word: str) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_interrupt_during_a_dump_propagates_unchanged(depth: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        dump_json(nested(depth, Slow(word="")))


def test_malformed_text_of_a_json_field_raises_serde_error() -> None:
    with pytest.raises(SerdeError, match="nested"):
        parse_json(Transfer, json.dumps({"amount": 1, "nested": "[1.2345678901234567"}))


def test_schema_of_a_bytes_literal_contains_the_base64_values() -> None:
    kind: Any = Literal[b"a", b"\xff"]
    assert json_schema(kind)["enum"] == ["YQ==", "_w=="]
    assert parse_json(kind, '"YQ=="') == b"a"
