"""`Thing[A, B](…)` is `Thing(…)` with the types as keyword arguments, for every kind of class."""

import copy
import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.generics import Parametrized, Specialisation

T = TypeVar("T")

# Any below: Parametrized hides its subscript from type checkers, which use the class's own type
# parameters instead.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair[A, B](Parametrized):
    """A class that the standard Generic cannot instantiate by subscript on 3.12.1."""

    type_fields = ("first", "second")

    first: type[A] | None = None
    second: type[B] | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Box[A](Parametrized):
    """A class whose type arguments have no meaning at run time."""

    content: A


class Old(Parametrized, ABC, Generic[T]):
    """A class in the older syntax, with subclasses."""

    type_fields = ("kind",)

    def __init__(self, name: str = "", *, kind: Any = None) -> None:
        self.name = name
        self.kind = kind or self.inherited_arguments.get("kind")

    @abstractmethod
    def work(self) -> None: ...


class Middle(Old[T]):
    """A subclass that is still generic."""

    def work(self) -> None: ...


class Fixed(Middle[int]):
    """A subclass with a fixed type."""


class Further(Fixed):
    """A subclass of one with a fixed type."""


class Rows[Row](Middle[str]):
    """A subclass with a fixed type and an unrelated type parameter."""


class Swapped[B, A](Pair[A, B]):
    """A subclass with the same parameters in another order."""


class Half[B](Pair[int, B]):
    """A subclass with one fixed and one open parameter."""


KINDS = st.sampled_from([int, str, bytes, list[int], dict])


@given(KINDS, KINDS, st.text(max_size=3))
def test_subscript_passes_only_the_types(first: Any, second: Any, name: str) -> None:
    sugared, plain = Pair[first, second](name=name), Pair(first=first, second=second, name=name)
    assert sugared == plain
    assert hash(sugared) == hash(plain)
    assert type(sugared) is type(plain) is Pair
    assert repr(sugared) == repr(plain)
    assert replace(sugared, name="x") == replace(plain, name="x")
    for twin in (copy.copy(sugared), copy.deepcopy(sugared), pickle.loads(pickle.dumps(sugared))):
        assert twin == plain


def test_keyword_argument_takes_precedence_over_the_subscript() -> None:
    sugared: Any = Pair[int, str]
    assert sugared(second=bytes) == Pair(first=int, second=bytes)


def test_class_without_type_fields_can_be_subscripted() -> None:
    assert Box[int](1) == Box(1) == Box[str](content=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert pickle.loads(pickle.dumps(Box[int](1))) == Box(1)


def test_positional_arguments_are_passed_through() -> None:
    made = Middle[int]("n")
    assert (made.name, made.kind, type(made)) == ("n", int, Middle)


def test_type_variables_are_not_passed_as_types() -> None:
    assert Middle[T]("n").kind is None  # type: ignore[valid-type]  # pyright: ignore[reportGeneralTypeIssues]
    assert Middle("n").kind is None


def test_type_variables_can_be_replaced_later() -> None:
    variable: Any = T
    later: Any = Pair[variable, str]
    made = pickle.loads(pickle.dumps(later[int]))(name="n")
    assert made == Pair(first=int, second=str, name="n")
    assert later[list[variable]][bytes]().first == list[bytes]


def test_subclass_fixes_types_for_its_subclasses_but_not_for_its_base() -> None:
    assert (Fixed().kind, Further().kind, Middle().kind, Old.inherited_arguments) == (
        int,
        int,
        None,
        {},
    )


def test_subclass_can_have_its_own_type_parameters() -> None:
    assert Rows[bytes]().kind is str
    assert Rows().kind is str
    assert type(Rows[bytes]()) is Rows


def test_type_arguments_match_parameters_in_any_order() -> None:
    made = Swapped[int, str]()
    assert (made.first, made.second) == (str, int)
    assert Half[str]().second is str
    assert Half.inherited_arguments == {"first": int}


def test_specialisation_is_a_value_with_origin_and_args() -> None:
    # Any: a Specialisation, which type checkers treat as a class
    alias: Any = Pair[int, str]
    assert isinstance(alias, Specialisation)
    assert alias == Pair[int, str]
    assert alias != Pair[int, bytes]
    assert len({alias, Pair[int, str]}) == 1
    assert (alias.__origin__, alias.__args__) == (Pair, (int, str))
    assert repr(alias).endswith("Pair[int, str]")


def test_abstract_class_remains_abstract_when_subscripted() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Old[int]()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]


def test_specialised_dataclass_has_new_defaults_for_each_instance() -> None:
    @dataclass(frozen=True, slots=True)
    class Listing[A](Parametrized):
        items: list[A] = field(default_factory=list[A])

    one, other = Listing[int](), Listing[int]()
    assert one == other
    assert one.items is not other.items
