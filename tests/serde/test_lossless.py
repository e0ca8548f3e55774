"""Law L6: a value that is written reads back the same, or writing it fails and names the place."""

import gc
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, is_dataclass, make_dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.typed_values import TEXT, Colour, Level, Tree, applied, typed_values
from weakincentives.errors import SerdeError
from weakincentives.runtime.session import Session
from weakincentives.serde import dump_json_lossless, dump_lossless, parse, parse_json


@dataclass(frozen=True)
class Pay:
    amount: int


@dataclass(frozen=True)
class Card(Pay):
    number: str = ""


@dataclass(frozen=True)
class Twin:
    """Looks like `Pay`."""

    amount: int


@dataclass(frozen=True)
class Box[T]:
    content: T


@dataclass(frozen=True)
class Anything:
    value: Any
    other: object = None


@dataclass
class Doubled:
    size: int

    def __post_init__(self) -> None:
        self.size *= 2


@dataclass(frozen=True)
class Trimmed:
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.strip())


@dataclass(frozen=True)
class Squared:
    width: int
    area: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.width**2)


@dataclass
class Filled:
    size: int
    extra: int = field(init=False, default=0)


@dataclass(frozen=True)
class Keyed:
    """A type whose key is not stored in a field."""

    size: int
    key: InitVar[str] = ""

    def __post_init__(self, key: str) -> None:
        object.__setattr__(self, "kept", key)


@dataclass(frozen=True)
class Cached:
    size: int

    @cached_property
    def double(self) -> int:
        return 2 * self.size


@dataclass(frozen=True)
class Aliased:
    value: Annotated[int, pydantic.Field(alias="theValue")]
    other: Annotated[int, pydantic.Field(validation_alias="in", serialization_alias="out")] = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A dataclass that is checked only by its type."""

    number: int
    share: float = 0.0
    sure: bool = False
    name: str | None = None
    tags: tuple[str, ...] = ()
    notes: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    at: datetime | None = None
    colour: Colour = Colour.RED
    level: Level | None = None
    data: bytes = b""
    pay: Pay = Pay(0)
    pairs: frozenset[str] = frozenset()


class Words(str):
    __slots__ = ()


class Spread(NamedTuple):
    low: int
    high: float = 0.0


class Entry(TypedDict, total=False):
    size: float
    name: str


class Mixed(Enum):
    ONE = 1
    TRUTH = "1"
    PAIR = (1, 2)


class Flagged(IntEnum):
    NO = 0
    YES = 1


# --------------------------------------------------------------------------------------------------
# the law

FOLD = datetime(2020, 10, 25, 2, 30, fold=1)  # noqa: DTZ001 - a naive one
YES: Any = True  # Any: where a type checker would reject it
LOOKALIKES = st.sampled_from(
    [
        *(
            0,
            1,
            True,
            False,
            1.0,
            0.0,
            -0.0,
            "1",
            "",
            "true",
            Words("1"),
            b"1",
            bytearray(b"1"),
            None,
        ),
        *(
            Decimal("1.0"),
            Decimal("1.00"),
            Decimal("1E+2"),
            10**30,
            Flagged.YES,
            Colour.RED,
            *Mixed,
        ),
        *(
            Pay(1),
            Card(1, "4"),
            Twin(1),
            Doubled(1),
            Trimmed(" a"),
            Squared(2),
            Keyed(1),
            Keyed(1, "k"),
            Cached(1),
        ),
        *(
            Aliased(1),
            Aliased(1, 2),
            Spread(1),
            Spread(YES, 1),
            (1, 2),
            [1, 2],
            {1, 2},
            frozenset({1}),
        ),
        *({1: 2}, {"1": 2}, {1: 1, "1": 2}, {(1, 2): 3}, {None: 1}, {True: 1}, {b"1": 1}),
        *(deque([1]), Counter("ab"), defaultdict(list, a=[1]), FOLD, time(1, fold=1), timedelta(1)),
        *(datetime(2020, 1, 1, tzinfo=zone) for zone in (UTC, ZoneInfo("Europe/Berlin"))),
        *(
            datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
            "2020-01-01T00:00:00Z",
            ["2020-01-01"],
        ),
        *(
            ZoneInfo("Europe/Berlin"),
            Pay,
            int,
            Box(1),
            Box(YES),
            Box(Card(1)),
            Anything((1,)),
            Anything({1}),
        ),
        *(
            Anything(Pay(1)),
            Anything([1, "a", None]),
            Row(1),
            Row(1, 1),
            Row(YES),
            Row(1, pay=Card(1, "4")),
        ),
        Row(1, 1.0, at=datetime(2020, 1, 1, tzinfo=UTC)),
    ]
)
# Any: forms of types that type checkers cannot follow.
SCALAR_TYPES: list[Any] = [
    *(
        int,
        float,
        bool,
        str,
        bytes,
        bytearray,
        Decimal,
        datetime,
        time,
        ZoneInfo,
        Mixed,
        Flagged,
        Colour,
        None,
    ),
    *(
        Any,
        object,
        Literal[1, "1"],
        Literal[Mixed.ONE],
        Literal[True],
        Pay,
        Twin,
        Doubled,
        Trimmed,
        Squared,
        Keyed,
    ),
    *(Cached, Aliased, Spread, Entry, Row, Anything, Annotated[int, pydantic.Field(ge=1)]),
]
UNIONS: list[Any] = [
    *(
        str | bytes,
        datetime | str,
        int | float,
        bool | int,
        Pay | Twin,
        Twin | Pay,
        Card | Pay,
        Pay | None,
    ),
    *(
        Flagged | int,
        Mixed | str,
        list[int] | tuple[int, ...],
        dict[str, int] | Entry,
        float | Decimal,
    ),
]
TYPES = st.recursive(
    st.sampled_from([*SCALAR_TYPES, *UNIONS]),
    lambda inner: st.one_of(
        st.builds(
            lambda form, of: form[of],
            st.sampled_from([list, set, frozenset, Sequence, deque, Box]),
            inner,
        ),
        inner.map(lambda of: applied(tuple, of, ...)),
        st.builds(
            lambda key, of: applied(dict, key, of),
            st.sampled_from(
                [str, int, int | str, bool, None, bytes, tuple[int, int], Colour, Flagged, Any]
            ),
            inner,
        ),
        inner.map(lambda of: Mapping[str, of]),  # type: ignore[valid-type]
        inner.map(lambda of: of | None if of is not None else of),
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    LOOKALIKES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.sampled_from(["a", 1, "1", None, Colour.RED, (1, 2)]), inner, max_size=3
        ),
        st.builds(Box, inner),
        st.builds(Anything, inner, inner),
        st.lists(
            LOOKALIKES.filter(lambda value: getattr(type(value), "__hash__", None) is not None),
            max_size=3,
        ).map(lambda items: set(filter(_hashable, items))),
    ),
    max_leaves=4,
)


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


# Any: values of all types.
def portrait(value: Any) -> Any:
    """Distinguishes all values that a program can distinguish; shares no code with the library."""
    kind = type(value)
    if is_dataclass(value) and not isinstance(value, type):
        extra = {
            name: extra for name, extra in getattr(value, "__dict__", {}).items() if name == "kept"
        }
        return (
            kind,
            tuple((field.name, portrait(getattr(value, field.name))) for field in fields(value)),
            repr(extra),
        )
    if isinstance(value, dict):
        return kind, tuple((portrait(key), portrait(item)) for key, item in value.items())
    if isinstance(value, list | tuple | deque):
        return kind, tuple(map(portrait, value))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(portrait, value))
    if kind is int:
        return "number", value, None
    if isinstance(value, float) and value.is_integer() and repr(value) != "-0.0":
        return "number", int(value), None  # a field of type float may have an integer
    return kind, value if isinstance(value, int) else repr(value), None


def comes_back(of: Any, value: Any) -> bool:
    """Returns whether a value is written; fails if it is read back differently, or is rejected
    without a reason.
    """
    try:
        text = dump_json_lossless(of, value)
    except SerdeError as error:
        assert error.issues  # noqa: PT017 - the claim is that nothing else is raised
        return False
    assert portrait(parse_json(of, text)) == portrait(value)
    return True


@given(TYPES, VALUES)
@settings(max_examples=300)
def test_losslessly_dumped_value_round_trips_for_any_declared_type(of: Any, value: Any) -> None:
    comes_back(of, value)


@given(st.lists(st.tuples(TYPES, VALUES), min_size=1, max_size=4), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_losslessly_dumped_dataclass_fields_round_trip(
    typed: list[tuple[Any, Any]], slots: bool, frozen: bool
) -> None:
    specs: list[Any] = [(f"field_{at}", of) for at, (of, _) in enumerate(typed)]
    holder = make_dataclass("Holder", specs, slots=slots, frozen=frozen)
    comes_back(applied(list, holder), [holder(*(value for _, value in typed))] * 2)


@given(typed_values().filter(lambda typed: "fold=1" not in repr(typed)))
def test_unambiguous_value_is_never_rejected(typed: tuple[Any, Any]) -> None:
    assert comes_back(*typed)


ROWS = st.builds(
    Row,
    st.integers(-(10**30), 10**30) | st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([1, True, 0.0, -0.0]),
    st.booleans() | st.sampled_from([1, 0]),
    st.none() | TEXT | st.just(Words("w")),
    st.lists(TEXT, max_size=2).map(tuple) | st.just(["a"]),
    st.dictionaries(TEXT, st.lists(st.integers() | st.booleans(), max_size=2), max_size=2),
    st.none()
    | st.datetimes(
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=2)), ZoneInfo("Asia/Tokyo")])
    ),
    st.sampled_from(Colour),
    st.sampled_from([None, *Level, 1]),
    st.binary(max_size=4),
    st.sampled_from([Pay(1), Pay(YES), Card(1, "4")]),
    st.frozensets(TEXT | st.just(Words("w")), max_size=2),
)


@given(st.lists(ROWS, max_size=3))
@settings(max_examples=150)
def test_losslessly_dumped_rows_checked_only_by_type_round_trip(rows: list[Row]) -> None:
    comes_back(list[Row], rows)


# --------------------------------------------------------------------------------------------------
# where and why


class Cut(NamedTuple):
    of: Any
    value: Any
    path: tuple[str | int, ...]
    message: str


CUTS = {
    "a bound of a deque": Cut(deque[int], deque([1], maxlen=3), (), "does not keep this deque"),
    "a subclass in a field": Cut(
        Row, Row(1, pay=Card(1, "4")), ("pay",), "makes a Pay of this Card"
    ),
    "a subclass in a list": Cut(list[Pay], [Pay(1), Card(1)], (1,), "makes a Pay of this Card"),
    "keys that read alike": Cut(
        dict[int | str, int], {1: 1, "1": 2}, (), "does not keep this dict"
    ),
    "bytes or text": Cut(list[str | bytes], [b"\x01"], (0,), "makes a str of this bytes"),
    "a text like a time": Cut(
        datetime | str, "2020-01-01T00:00:00Z", (), "makes a datetime of this str"
    ),
    "a twin": Cut(list[Pay | Twin], [Twin(1)], (0,), "makes a Pay of this Twin"),
    "a named zone": Cut(
        list[datetime], [datetime(2020, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))], (0,), "this datetime"
    ),
    "a fold": Cut(datetime, FOLD, (), "does not keep this datetime"),
    "a tuple in Any": Cut(
        Anything, Anything({"a": [(1,)]}), ("value", "a", 0), "makes a list of this tuple"
    ),
    "a class in object": Cut(Anything, Anything(1, Pay(1)), ("other",), "makes a dict of this Pay"),
    "an int that no float equals": Cut(
        Row, Row(1, 2**53 + 1), ("share",), "makes a float of this int"
    ),
    "a truth value in a float": Cut(list[float], [True], (0,), "makes a float of this bool"),
    "text of a subclass": Cut(list[str], [Words("x")], (0,), "makes a str of this Words"),
    "a tuple for a list": Cut(Sequence[int], (1,), (), "makes a list of this tuple"),
    "what is done twice": Cut(Doubled, Doubled(1), ("size",), "does not keep this int"),
    "what is in no field": Cut(Keyed, Keyed(1, "k"), (), "does not keep this Keyed"),
    "what no constructor takes": Cut(
        list[Filled], [Filled(1)], (0, "extra"), "does not keep this int"
    ),
    "a key of a tuple": Cut(
        dict[tuple[int, int], int], {(1, 2): 3}, ("1,2",), "cannot be read back from JSON"
    ),
    "two aliases": Cut(Aliased, Aliased(1, 2), ("out",), "cannot be read back from JSON"),
    "a huge integer": Cut(list[int], [10**5000], (), "cannot be read back from JSON"),
}
CUTS["what no constructor takes"].value[0].extra = 5


def test_union_members_are_parsed_in_declaration_order() -> None:
    assert comes_back(list[Twin | Pay], [Twin(1)])
    assert not comes_back(list[Pay | Twin], [Twin(1)])


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_value_changed_by_json_is_rejected_with_path_and_type(cut: Cut) -> None:
    with pytest.raises(SerdeError) as caught:
        dump_json_lossless(cut.of, cut.value)
    [issue] = caught.value.issues
    assert issue.path[: len(cut.path)] == cut.path
    assert cut.message in issue.message


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (Trimmed, Trimmed(" a ")),
        (Squared, Squared(3)),
        (list[Cached], [Cached(1)]),
        (Box[Row], Box(Row(1, pay=Pay(2)))),
        (list[Decimal], [Decimal("1.0"), Decimal("1.00"), Decimal("1E+2")]),
        (dict[str, float], {"a": -0.0}),
        (Tree, Tree("a", [Tree("b", [])])),
        (Anything, Anything([1, 1.0, True, "a", None, {"k": [-0.0]}])),
        (datetime, datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
        (Spread, Spread(1, 2.0)),
        (Entry, {"size": 1.0}),
        (ZoneInfo, ZoneInfo("Europe/Berlin")),
    ],
    ids=repr,
)
def test_value_preserved_by_json_is_dumped(of: Any, value: Any) -> None:
    assert comes_back(of, value)
    assert portrait(parse(of, dump_lossless(of, value))) == portrait(value)


def test_cached_property_does_not_prevent_a_lossless_dump() -> None:
    value = Cached(2)
    assert value.double == 4
    assert comes_back(list[Cached], [value])


def test_lossless_error_does_not_quote_the_value() -> None:
    with pytest.raises(SerdeError) as caught:
        dump_json_lossless(list[str | bytes], [b"hunter2"])
    assert "hunter2" not in str(caught.value)


# --------------------------------------------------------------------------------------------------
# deep values


@dataclass(frozen=True)
class Chain:
    number: int
    before: "Chain | None" = None
    tag: "int | str" = 0


@dataclass(frozen=True)
class PlainChain:
    number: int
    before: "PlainChain | None" = None


def chain_of(kind: type[Any], depth: int) -> Any:
    value = None
    for number in range(depth):
        value = kind(number, value)
    return value


def test_lossless_dump_cost_is_linear_in_the_depth() -> None:
    def calls(depth: int) -> int:
        value, count = chain_of(Chain, depth), 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        before = sys.getprofile()
        gc.disable()  # its callbacks, such as Hypothesis's, run at any time
        sys.setprofile(note)
        try:
            dump_json_lossless(Chain, value)
        finally:
            sys.setprofile(before)
            gc.enable()
        return count

    calls(4)  # creates what is cached
    assert calls(12) - calls(8) == calls(8) - calls(4)


@pytest.mark.parametrize("kind", [Chain, PlainChain])
def test_deep_value_in_a_snapshot_round_trips_or_is_rejected(kind: type[Any]) -> None:
    session = Session()
    written = 0
    for depth in (50, 100, *range(180, 205), 250, 400):
        session[kind].seed(chain_of(kind, depth))
        try:
            text = session.snapshot().to_json()
        except SerdeError:
            continue
        assert session.parse_snapshot(text, types=[kind]).slices[kind] is not None
        written += 1
    assert written >= 2
