"""Plain functions as tools: name, description and schema, rejected functions, and injection.

The cases come from public reports about other libraries.
"""

import gc
import json
import logging
import pickle
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, update_wrapper, wraps
from inspect import signature
from typing import Annotated, Any, Generic, Literal, Optional, TypedDict, TypeVar

import pytest
from pydantic import BaseModel, Field

from support import other_sessions
from support import postponed_tools as postponed
from weakincentives import Session, tool
from weakincentives.errors import SerdeError
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    Resource,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.prompt.function_tools import as_tool
from weakincentives.protocols import SessionProtocol

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Pair(BaseModel, Generic[K, V]):
    first: K
    second: V


@dataclass
class Params:
    order_id: Annotated[str, Field(description="The number on the invoice.")]
    express: bool = False


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Db:
    def find(self, order: str) -> str:
        return f"found {order}"


type Ids = list[int]
type MyDb = Resource[Db]


def find_order(
    order_id: Annotated[str, Field(description="The number on the invoice.")],
    express: bool = False,  # noqa: FBT002 - as users write it
) -> str:
    """Look up an order by its number."""
    return f"{order_id} {express}"


def by_hand(params: Params, *, context: ToolContext) -> ToolResult[str]:
    """Look up an order by its number."""
    return ToolResult(f"{params.order_id} {params.express}")


# Any: any function, and a JSON Schema
def properties(function: Any) -> Any:
    return as_tool(function).params_schema()["properties"]


def refusal(function: Any) -> str:
    with pytest.raises(PromptValidationError) as caught:
        MarkdownSection(title="S", template="", tools=[function])
    assert caught.value.section_path == ("s",)
    assert function is None or "cannot use the function" in str(caught.value)
    return str(caught.value)


def test_function_gives_the_tool_that_is_written_by_hand() -> None:
    made = as_tool(find_order)
    hand = Tool[Params, object](name="find_order", handler=by_hand)
    assert (made.name, made.description) == (hand.name, hand.description)
    assert made.params_schema() == hand.params_schema()
    assert as_tool(by_hand).params_schema() == hand.params_schema()
    assert as_tool(by_hand).params_type is Params


# ------------------------------------------------------------------------------------ descriptions


def test_docstring_that_opens_with_args_leaves_the_name_as_description() -> None:
    def get(city: str) -> str:
        """Args:
        city: The city.
        """
        return city

    def fetch(city: str) -> str:
        """
        Args:
            city: The city.
        """
        return city

    for function in (get, fetch):
        assert as_tool(function).description == function.__name__
        assert properties(function)["city"]["description"] == "The city."


def test_first_paragraph_is_the_description_and_may_not_exceed_the_limit() -> None:
    def get() -> None: ...

    get.__doc__ = f"{'x' * 60}\n\n{'y' * 3000}"
    assert as_tool(get).description == "x" * 60

    def long() -> None: ...

    long.__doc__ = "x" * 1025
    assert "1024" in refusal_of_tool(long)


def refusal_of_tool(function: Any) -> str:
    with pytest.raises(PromptValidationError) as caught:
        MarkdownSection(title="S", template="", tools=[function])
    return str(caught.value)


def test_reading_docstrings_writes_no_log_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)

    def make(index: int) -> Callable[..., object]:
        def find(city: str) -> str:
            """Find.

            Args:
                city (int): The city.
                town (str): None.

            Returns:
                Nothing.
            """
            return f"{city}{index}"

        return find

    for index in range(20):
        as_tool(make(index))
    assert [record for record in caplog.records if record.levelno >= logging.NOTSET] == []


def test_parameters_of_the_context_are_not_sent_even_if_documented() -> None:
    def ping(context: ToolContext) -> str:
        """Ping.

        Args:
            context: The call.
        """
        return context.call_id

    assert as_tool(ping).params_schema() == {
        "additionalProperties": False,
        "properties": {},
        "type": "object",
    }


def test_description_of_a_field_wins_over_text_and_docstring() -> None:
    def get(
        a: Annotated[int, "Text", Field(description="Field")],
        b: Annotated[int, object(), "Text", 3],
        c: int,
        d: Annotated[int, Field(gt=0), "Text"] = 1,
    ) -> None:
        """Get.

        Args:
            a: Docstring
            b: Docstring
            c: Docstring
            d: Docstring
        """

    texts = {name: part["description"] for name, part in properties(get).items()}
    assert texts == {"a": "Field", "b": "Text", "c": "Docstring", "d": "Text"}
    assert properties(get)["d"]["exclusiveMinimum"] == 0


# ------------------------------------------------------------------------- what can be a tool


def greet(name: str, greeting: str) -> str:
    """Greet someone."""
    return f"{greeting} {name}"


@pytest.mark.parametrize(
    "function",
    [
        partial(greet, greeting="Hi"),
        update_wrapper(partial(greet, greeting="Hi"), greet),
        partial(update_wrapper(partial(greet, greeting="Hi"), greet)),
    ],
    ids=["plain", "updated", "nested"],
)
def test_partial_keeps_name_and_description_and_hides_its_bound_arguments(function: Any) -> None:
    made = as_tool(function)
    assert (made.name, made.description) == ("greet", "Greet someone.")
    assert list(properties(function)) == ["name"]


def test_partial_with_a_positional_argument_hides_it() -> None:
    assert list(properties(partial(greet, "Ann"))) == ["greeting"]


def test_decorated_function_shows_the_parameters_that_its_signature_shows() -> None:
    @wraps(find_order)
    def retried(*args: Any, **kwargs: Any) -> str:
        return find_order(*args, **kwargs)

    def signed(*args: Any, **kwargs: Any) -> str:
        return find_order(*args, **kwargs)

    signed.__signature__ = signature(greet)  # type: ignore[attr-defined] # read by `inspect`
    assert as_tool(retried).params_schema() == as_tool(find_order).params_schema()
    assert list(properties(signed)) == ["name", "greeting"]


def test_decorator_that_hides_parameters_is_refused() -> None:
    def wrapper(*args: Any, **kwargs: Any) -> str:
        return find_order(*args, **kwargs)

    assert "*args" in refusal(wrapper)
    assert "functools.wraps" in refusal(wrapper)


def test_decorator_that_does_not_pass_keywords_on_is_refused() -> None:
    @wraps(find_order)
    def positional(*args: Any) -> str:
        return find_order(*args)

    assert "its wrapper does not accept the keyword argument 'order_id'" in refusal(positional)
    assert "add **kwargs to the wrapper" in refusal(positional)


def test_object_with_call_is_a_tool_named_after_its_class() -> None:
    finder = as_tool(postponed.Finder())
    assert (finder.name, finder.description) == ("finder", "Finds things.")
    assert finder.params_type is postponed.Query

    class WebSearch:  # noqa: PLW1641 - without a hash, like a dataclass
        def __eq__(self, other: object) -> bool:
            return isinstance(other, WebSearch)

        def __call__(self, query: str) -> str:
            """Search the web."""
            return query

    assert (as_tool(WebSearch()).name, as_tool(WebSearch()).description) == (
        "web_search",
        "Search the web.",
    )


class Shop:
    currency = "EUR"

    @tool(effect="pure")
    def find(self, order: Annotated[str, "Its number"]) -> str:
        """Find an order."""
        return f"{self.currency} {order}"

    @tool(effect="pure")
    @classmethod
    def price(cls, order: str) -> str:
        return f"{cls.currency} {order}"

    @classmethod
    @tool(effect="pure")
    def tax(cls, order: str) -> str:
        return f"{cls.currency} {order}"

    @tool(effect="pure")
    @staticmethod
    def parse(order: str) -> str:
        return order

    @staticmethod
    @tool(effect="pure")
    def split(order: str) -> str:
        return order


@pytest.mark.parametrize("name", ["find", "price", "tax", "parse", "split"])
def test_bound_methods_are_tools_without_self(name: str) -> None:
    made = as_tool(getattr(Shop(), name))
    assert (made.name, made.effect, list(properties(getattr(Shop(), name)))) == (
        name,
        "pure",
        ["order"],
    )


def test_unbound_method_is_refused() -> None:
    text = refusal(Shop.find)
    assert "test_function_tools.Shop.find" in text
    assert "bind it" in text


def positional(query: str, /) -> str:
    return query


def starred(*queries: str) -> str:
    return str(queries)


def keywords(directory: str, **others: str) -> str:
    return f"{directory}{others}"


def untyped(ctx=None) -> str:  # type: ignore[no-untyped-def] # what is refused
    return str(ctx)


def generic(item: T) -> T:  # noqa: UP047 - the older form
    return item


def generic_list(items: list[T]) -> list[T]:  # noqa: UP047 - the older form
    return items


def generic_new[S](items: dict[str, S]) -> S | None:
    return items.get("")


def visitor(visit: Callable[[], str]) -> str:
    return visit()


def generates(count: int) -> Iterator[str]:
    yield str(count)


async def generates_async(count: int) -> AsyncIterator[str]:
    yield str(count)


def bare_resource(db: Resource) -> str:  # type: ignore[type-arg] # pyright: ignore[reportMissingTypeArgument] # what is refused
    return str(db)


def 搜索() -> str:  # noqa: N802, PLC2401 - rejected
    return ""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (positional, "'query' is positional-only"),
        (starred, "*queries has no schema"),
        (keywords, "**others has no schema"),
        (untyped, "'ctx' has no type; annotate it"),
        (generic, "type ~T of 'item' has no schema"),
        (generic_list, "type ~T of 'items' has no schema"),
        (generic_new, "type S of 'items' has no schema"),
        (visitor, "its params have no JSON Schema"),
        (generates, "it yields its result; return a list"),
        (generates_async, "it yields its result; return a list"),
        (bare_resource, "write Resource[Type]"),
        (搜索, "@tool(name="),
        (lambda: "", "@tool(name="),
        (partial(lambda: ""), "@tool(name="),
        (max, "has no signature"),
        (len, "positional-only"),
        (Db, "it is not a function"),
        (Tool, "it is not a function"),
        (postponed.unknown, "import it at run time"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_function_that_cannot_be_a_tool_is_refused(function: Any, problem: str) -> None:
    text = refusal(function)
    assert problem in text
    place = getattr(function, "func", function)
    assert f"{place.__module__}.{place.__qualname__}" in text


@pytest.mark.parametrize("item", [3, "find_order", None, [find_order]], ids=type)
def test_tools_that_cannot_be_called_are_refused(item: Any) -> None:
    with pytest.raises(PromptValidationError, match="must contain functions and Tool objects"):
        MarkdownSection(title="S", template="", tools=[item])


# ------------------------------------------------------------------------------------ annotations


def test_postponed_annotations_are_read_as_others_are() -> None:
    assert list(properties(postponed.find)) == ["q"]
    assert list(properties(postponed.look_up)) == ["q"]
    assert list(properties(postponed.lookup)) == ["q"]
    assert list(properties(postponed.describe)) == ["q"]
    assert properties(postponed.count)["ids"] == {"type": "array", "items": {"type": "integer"}}


def test_local_classes_are_found_from_decorators_and_closures() -> None:
    visit, stay = postponed.local_tools(tool)
    assert list(properties(visit)) == ["first", "second"]
    assert list(properties(stay)) == ["first", "nights"]
    plain, _ = postponed.local_tools(lambda function: function)
    assert "the type 'Place' of 'first' cannot be read" in refusal(plain)


def test_aliases_and_generics_have_the_schema_of_their_value() -> None:
    def get(ids: Ids, pairs: list[Pair[int, str]]) -> None: ...

    parts = as_tool(get).params_schema()
    assert parts["properties"]["ids"] == {"type": "array", "items": {"type": "integer"}}
    value = as_tool(get).parse_params('{"ids": [1], "pairs": [{"first": 1, "second": "a"}]}')
    assert value.pairs == [Pair[int, str](first=1, second="a")]


def test_injected_parameters_may_stand_anywhere_and_have_any_form() -> None:
    def first(
        a: int, s: Session, b: int = 2, db: Resource[Db] | None = None, *, c: ToolContext
    ) -> None: ...
    def second(
        p: SessionProtocol,
        db: MyDb,
        c: Annotated[ToolContext | None, "x"] = None,
        d: Optional[Resource[Db]] = None,  # noqa: UP045 - the older form
        e: Annotated[Resource[Db], "x"] | None = None,
    ) -> None: ...

    assert list(properties(first)) == ["a", "b"]
    assert properties(second) == {}


def test_parameters_may_have_names_that_other_libraries_reserve() -> None:
    def use(  # noqa: PLR0917 - many names
        agent: str,
        schema: str,
        json: str,
        context: str,
        session: str,
        params: str,
        copy: str,
        type: str,  # noqa: A002 - as users write it
        model_config: str,
        _path: str,
        *,
        self: str,
    ) -> None: ...

    names = list(properties(use))
    assert names == list(signature(use).parameters)
    value = as_tool(use).parse_params(json.dumps({name: name.upper() for name in names}))
    assert vars(value) == {name: name.upper() for name in names}


def test_alias_is_the_name_that_the_model_writes() -> None:
    def use(n: Annotated[int, Field(alias="_n")]) -> int:
        return n

    assert list(properties(use)) == ["_n"]
    assert vars(as_tool(use).parse_params('{"_n": 3}')) == {"n": 3}
    assert use(n=1) == 1


# ------------------------------------------------------------------------------------------ values


def test_defaults_are_shown_and_used() -> None:
    def use(
        city: str = Field(default="Berlin", description="A city"),
        ids: list[int] = Field(default_factory=lambda: [7]),  # noqa: B008
        tags: list[str] = [],  # noqa: B006 - each call has its own
        color: Color = Color.RED,
        note: str | None = None,
    ) -> None: ...

    parts = properties(use)
    assert parts["city"] == {"default": "Berlin", "description": "A city", "type": "string"}
    assert parts["color"]["default"] == "red"
    made = as_tool(use)
    first = made.parse_params("{}")
    assert vars(first) == {
        "city": "Berlin",
        "ids": [7],
        "tags": [],
        "color": Color.RED,
        "note": None,
    }
    first.tags.append("x")
    first.ids.append(1)
    assert (made.parse_params("").tags, made.parse_params("").ids) == ([], [7])
    assert made.params_schema()["properties"] == parts


def test_arguments_that_do_not_fit_are_refused_as_those_of_a_tool() -> None:
    made = as_tool(find_order)
    hand = Tool[Params, object](name="find_order", handler=by_hand)
    for text in ('{"path": "x"}', "{}", '{"order_id": 1}', '{"order_id": "1", "x": 2}', "[", "3"):
        with pytest.raises(SerdeError) as ours:
            made.parse_params(text)
        with pytest.raises(SerdeError) as theirs:
            hand.parse_params(text)
        assert ours.value.issues == theirs.value.issues


class Named(TypedDict):
    name: str


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]


def test_values_arrive_as_instances_of_their_types() -> None:
    def use(
        params: Params,
        many: dict[str, Cat],
        named: Named,
        pet: Annotated[Cat | Dog, Field(discriminator="kind")],
        color: Color,
    ) -> None: ...

    value = as_tool(use).parse_params(
        json.dumps(
            {
                "params": {"order_id": "1"},
                "many": {"a": {"kind": "cat"}},
                "named": {"name": "Ann"},
                "pet": {"kind": "dog"},
                "color": "blue",
            }
        )
    )
    assert vars(value) == {
        "params": Params("1"),
        "many": {"a": Cat(kind="cat")},
        "named": {"name": "Ann"},
        "pet": Dog(kind="dog"),
        "color": Color.BLUE,
    }


def test_single_record_is_flat_and_two_are_nested() -> None:
    def flat(params: Cat, session: Session) -> None: ...
    def with_default(params: Params | None = None) -> None: ...
    def nested(params: Params, cat: Cat) -> None: ...
    def named(one: Named) -> None: ...

    assert list(properties(flat)) == ["kind", "lives"]
    assert list(properties(named)) == ["name"]
    assert list(properties(with_default)) == ["params"]
    assert list(properties(nested)) == ["params", "cat"]


# ------------------------------------------------------------------------------------------- @tool


@tool
def add(a: int, b: int) -> int:
    """Add numbers."""
    return a + b


@tool()
def subtract(a: int, b: int) -> int:
    return a - b


@tool(name="times", description="Multiply.", effect="repeatable", approval="effects")
def multiply(a: int, b: int) -> int:
    return a * b


def test_decorated_function_is_called_pickled_and_inspected_as_before() -> None:
    assert (add(1, 2), subtract(3, 2), multiply(2, 3)) == (3, 1, 6)
    assert pickle.loads(pickle.dumps(multiply)) is multiply
    assert str(signature(multiply)) == "(a: int, b: int) -> int"
    assert multiply.__name__ == "multiply"
    made = as_tool(multiply)
    assert (made.name, made.description, made.effect, made.approval) == (
        "times",
        "Multiply.",
        "repeatable",
        "effects",
    )
    assert (as_tool(add).name, as_tool(subtract).name) == ("add", "subtract")


def test_one_function_gives_several_tools() -> None:
    plus, sum_up = tool(add, name="plus"), tool(add, name="sum", effect="pure")
    assert [as_tool(item).name for item in (add, plus, sum_up)] == ["add", "plus", "sum"]
    assert [as_tool(item).effect for item in (add, plus, sum_up)][1:] == ["undeclared", "pure"]
    assert plus(1, 2) == 3
    assert pickle.loads(pickle.dumps(plus))(1, 2) == 3
    assert as_tool(tool(multiply, name="x")).effect == "repeatable"
    MarkdownSection(title="S", template="", tools=[add, plus, sum_up])


def test_partials_and_wrappers_keep_the_options_of_a_function() -> None:
    @wraps(multiply)
    def wrapper(*args: Any, **kwargs: Any) -> int:
        return multiply(*args, **kwargs)

    for function in (partial(multiply, a=1), wrapper, partial(wrapper, b=1)):
        made = as_tool(function)
        assert (made.name, made.effect, made.approval) == ("times", "repeatable", "effects")


def test_options_set_after_a_first_use_apply() -> None:
    def find(order: str) -> str:
        return order

    assert as_tool(find).effect == "undeclared"
    assert as_tool(tool(effect="pure")(find)).effect == "pure"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"efect": "pure"}, "did you mean 'effect'"),
        ({"handler": add}, "it takes name, description"),
    ],
)
def test_misspelt_options_are_refused(options: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        tool(**options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "getOrder"}, "invalid tool name 'getOrder'"),
        ({"name": "x" * 65}, "invalid tool name"),
        ({"description": ""}, "description must have 1 to 1024 characters"),
        ({"effect": "none"}, "effect must be one of"),
        ({"approval": "effects", "effect": "at_most_once"}, "the tool is 'at_most_once'"),
        ({"approval": "effects"}, "the tool declares no effect"),
        ({"examples": [3]}, "examples must be ToolExample objects"),
        ({"examples": [{"c": 1}]}, "the input of an example does not match"),
    ],
    ids=str,
)
def test_options_are_checked_as_those_of_a_tool(options: Any, problem: str) -> None:
    assert problem in refusal_of_tool(tool(add, **options))


def test_derived_names_are_adapted() -> None:
    def getOrder() -> None: ...  # noqa: N802 - adapted
    def HTTPFetch2Pages() -> None: ...  # noqa: N802
    def _private() -> None: ...

    names = [as_tool(item).name for item in (getOrder, HTTPFetch2Pages, _private)]
    assert names == ["get_order", "http_fetch2_pages", "_private"]


def test_derived_name_that_is_too_long_is_refused() -> None:
    def find() -> None: ...

    find.__name__ = "x" * 65
    assert "its name" in refusal(find)


def test_examples_are_arguments_and_are_shown() -> None:
    summed = tool(
        add, examples=[ToolExample("Two and three.", {"a": 2, "b": 3}, 5), {"a": 1, "b": 1}]
    )
    section = MarkdownSection(title="Sums", template="Add.", tools=[summed])
    text = PromptTemplate(ns="t", key="t", sections=[section]).bind().render().text
    assert text.endswith(
        "Examples of `add`:\n\n"
        '- Two and three.\n  - input: `{"a":2,"b":3}`\n  - output: `5`\n'
        '- input: `{"a":1,"b":1}`'
    )


def test_two_tools_of_one_name_are_refused_with_both_places() -> None:
    def other() -> None: ...

    other.__name__ = "add"
    sections = [
        MarkdownSection(title="A", template="", tools=[add]),
        MarkdownSection(title="B", template="", tools=[other]),
    ]
    with pytest.raises(PromptValidationError) as caught:
        PromptTemplate(ns="t", key="t", sections=sections)
    place = other.__qualname__
    assert f"{__name__}.add and {__name__}.{place}" in str(caught.value)
    twice = MarkdownSection(title="A", template="", tools=[add, add])
    with pytest.raises(PromptValidationError, match="tool names must be unique"):
        PromptTemplate(ns="t", key="t", sections=[twice])
    for key in ("one", "two"):
        PromptTemplate(ns="t", key=key, sections=[sections[0]])


def test_function_of_a_section_survives_a_clone() -> None:
    section = MarkdownSection(title="A", template="", tools=[add])
    assert section.clone(title="B").tools() == section.tools()
    assert section.clone(tools=[multiply]).tools()[0].name == "times"


def test_schemas_and_hashes_are_the_same_in_another_process() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from prompt.test_function_tools import digest\n"
        "print(digest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == digest()


def digest() -> str:
    section = MarkdownSection(
        title="A",
        template="",
        tools=[find_order, add, multiply, Shop().find, partial(greet, greeting="Hi")],
    )
    return PromptTemplate(ns="t", key="t", sections=[section]).descriptor.hash


def test_functions_that_are_created_again_share_their_params_and_are_freed() -> None:
    class Request:
        pass

    requests: list[weakref.ref[Request]] = []

    def make() -> Tool[Any, Any]:
        request = Request()
        requests.append(weakref.ref(request))

        def find(
            order: Annotated[str, Field(description="Its number.")],
            size: int = 1,
            tags: list[str] = [],  # noqa: B006 - as users write it
        ) -> str:
            return f"{request}{order}{size}{tags}"

        return MarkdownSection(title="A", template="", tools=[find]).tools()[0]

    kinds = {make().params_type for _ in range(20)}
    gc.collect()
    assert len(kinds) == 1
    assert [request() for request in requests] == [None] * 20


@pytest.mark.parametrize("default", [1, 1.0, True, None, "1"], ids=repr)
def test_defaults_that_are_equal_but_of_other_types_are_kept_apart(default: Any) -> None:
    def find(order: float | bool | str | None = 1) -> str:
        return str(order)

    find.__defaults__ = (default,)
    value = as_tool(find).parse_params("{}").order
    assert (type(value), value) == (type(default), default)


@dataclass
class Refund:
    """Refunds an order."""

    shop: str

    @tool(name="refund", effect="at_most_once", approval="arguments")
    def __call__(self, order: str) -> str:
        return f"{self.shop} {order}"


def test_options_of_a_callable_without_a_hash_hold() -> None:
    for made in (as_tool(Refund("a")), as_tool(tool(Refund("a"), name="pay"))):
        assert (made.effect, made.approval) == ("at_most_once", "arguments")


def test_equal_callables_keep_their_own_state() -> None:
    @dataclass(frozen=True)
    class Find:
        user: str
        connection: list[str] = field(compare=False)

        def __call__(self, order: str) -> str:
            return f"{self.connection[0]} {order}"

    answers = [
        vars(as_tool(Find("u", [name])).handler)["function"]("1") for name in ("first", "second")
    ]
    assert answers == ["first 1", "second 1"]


type City = Annotated[str, "A city"]
type Bound[R] = Resource[R]
type Noted[R] = Annotated[Resource[R], "x"]


def test_resources_behind_aliases_are_injected_and_mixed_ones_are_refused() -> None:
    def aliased(a: Bound[Db], b: Bound[Db] | None, c: Noted[Db], order: str) -> None: ...
    def mixed(db: Resource[Db] | str) -> None: ...
    def listed(dbs: list[Resource[Db]]) -> None: ...

    assert list(properties(aliased)) == ["order"]
    for function in (mixed, listed):
        assert "mixes injected and other types" in refusal(function)


def test_variable_that_is_assigned_later_does_not_matter() -> None:
    def research(order: str) -> str:
        return str(later) + order

    assert as_tool(research).name == "research"
    later = 1


def test_class_based_decorator_shows_the_function() -> None:
    class Retry:
        """A retry."""

        def __init__(self, function: Callable[..., str]) -> None:
            update_wrapper(self, function)
            self.function = function

        def __call__(self, *args: Any, **kwargs: Any) -> str:
            return self.function(*args, **kwargs)

    made = as_tool(Retry(find_order))
    assert (made.name, made.description) == ("find_order", "Look up an order by its number.")
    assert made.params_schema() == as_tool(find_order).params_schema()


def test_text_inside_a_union_or_alias_is_the_description() -> None:
    def go(a: Annotated[str, "Text"] | None = None, b: City = "x") -> None: ...

    texts = [part["description"] for part in properties(go).values()]
    assert texts == ["Text", "A city"]


def test_mutable_default_with_a_hash_is_copied_for_each_call() -> None:
    @dataclass(eq=False)
    class Options:
        tags: list[str]

    def go(options: Options = Options([])) -> None: ...  # noqa: B008 - as users write it

    first = as_tool(go).parse_params("{}")
    first.options.tags.append("x")
    assert as_tool(go).parse_params("{}").options.tags == []


def test_parameter_with_a_reserved_name_is_refused() -> None:
    def go(__name__: str) -> None: ...  # noqa: A002 - what is refused

    assert "reserved name" in refusal(go)


@pytest.mark.parametrize("function", [other_sessions.named, other_sessions.dotted])
def test_session_of_another_library_is_refused(function: Any) -> None:
    assert "import it at run time" in refusal(function)


def test_options_given_to_a_bound_method_hold() -> None:
    made = as_tool(tool(effect="pure", name="look")(Db().find))
    assert (made.name, made.effect) == ("look", "pure")
