"""The tool contract: good tools pass, and each broken promise is reported with its remedy."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from support.database import Database
from weakincentives import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import Prompt, ToolValidationError, VisibilityExpansionRequired
from weakincentives.prompt.workspace_tools import READING_TOOLS, WRITING_TOOLS
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Append, Session
from weakincentives.testing import ScriptedAdapter, ToolContractError, assert_tool_contract, say
from weakincentives.visibility import SectionVisibility

EXAMPLES = 30

# Any: handlers, tools and resources of all types.
type AnyTool = Tool[Any, Any]
type Resources = dict[Any, Any]


@dataclass(frozen=True)
class Text:
    text: str
    times: int = 1


@dataclass(frozen=True)
class Note:
    text: str


class Till:
    """A resource that a transaction can restore."""

    def __init__(self) -> None:
        self.sold: list[str] = []

    def snapshot(self) -> tuple[str, ...]:
        return tuple(self.sold)

    def restore(self, snapshot: tuple[str, ...], /) -> None:
        self.sold[:] = snapshot


@pytest.fixture(autouse=True)
def same_examples_each_time() -> Iterator[None]:
    """Makes examples deterministic, so that finding a broken tool does not depend on luck."""
    before = settings.get_current_profile_name()
    settings.register_profile("same", settings(derandomize=True, database=None, deadline=None))
    settings.load_profile("same")
    yield
    settings.load_profile(before)


def tills() -> Resources:
    return {Till: Till()}


# Any: handlers of all types, and the options of `assert_tool_contract`.
def breach(
    handler: Callable[..., Any], effect: Any = "repeatable", params: Any = Text, **options: Any
) -> str:
    """Returns the message about a tool with this handler."""
    tool = Tool(name="wrong", handler=handler, effect=effect, params_type=params)
    with pytest.raises(ToolContractError) as caught:
        assert_tool_contract(tool, max_examples=EXAMPLES, **options)
    return str(caught.value)


# --- Good tools


def shout(params: Text, *, context: ToolContext) -> ToolResult[Note]:
    """Say it loudly."""
    return ToolResult("Shouted.", Note(params.text.upper()))


def remember(params: Text, *, context: ToolContext) -> ToolResult[None]:
    context.session.dispatch(Note(params.text))
    return ToolResult("Too short.", success=bool(params.text))


async def wait(params: Text, *, context: ToolContext) -> ToolResult[str]:
    await asyncio.sleep(0)
    if not params.text:
        raise ToolValidationError("text is empty")
    return ToolResult("Waited.", params.text)


@dataclass(frozen=True)
class Nothing:
    pass


def ping(params: object, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("pong")


def sell(params: Text, *, context: ToolContext) -> ToolResult[None]:
    context.resources.get(Till).sold.append(params.text)
    return ToolResult("Sold out.", success=params.text != "")


def sell_once(params: Text, *, context: ToolContext) -> ToolResult[None]:
    till = context.resources.get(Till)
    if context.idempotency_key not in till.sold:
        till.sold.append(context.idempotency_key)
    return ToolResult("Sold.")


def look(params: Text, *, context: ToolContext) -> ToolResult[list[str]]:
    return ToolResult("Sold.", list(context.resources.get(Till).sold))


def read_on(params: Text, *, context: ToolContext) -> ToolResult[None]:
    raise VisibilityExpansionRequired(
        "read on",
        requested_overrides={("notes",): SectionVisibility.FULL},
        reason="",
        section_keys=("notes",),
    )


@pytest.mark.parametrize(
    "tool",
    [
        Tool(name="shout", handler=shout, effect="pure"),
        Tool(name="remember", handler=remember),
        Tool(name="wait", handler=wait),
        Tool(name="ping", handler=ping, params_type=Nothing),
        Tool(name="sell", handler=sell, effect="at_most_once"),
        Tool(name="sell_once", handler=sell_once),
        Tool(name="look", handler=look, effect="pure"),
        Tool(name="read_on", handler=read_on),
    ],
    ids=lambda tool: tool.name,
)
def test_valid_tool_passes_the_contract(tool: AnyTool) -> None:
    assert_tool_contract(tool, resources=tills, max_examples=EXAMPLES)


@pytest.mark.parametrize("tool", [*READING_TOOLS, *WRITING_TOOLS], ids=lambda tool: tool.name)
def test_file_tools_pass_the_contract_on_existing_files(tool: AnyTool) -> None:
    files = {"a.txt": b"one\ntwo\n", "docs/b.txt": b"three"}
    narrow = {
        "path": st.sampled_from(["a.txt", "docs", "docs/b.txt", "."]),
        "pattern": st.sampled_from(["**/*.txt", "t", "("]),
        "old": st.sampled_from(["one", "t", "\n"]),
        "new": st.sampled_from(["four", ""]),
        "recursive": st.booleans(),
    }
    names = tool.params_type.__dataclass_fields__
    assert_tool_contract(
        tool,
        resources=lambda: {Filesystem: InMemoryFilesystem(files)},
        arguments={name: values for name, values in narrow.items() if name in names},
        max_examples=EXAMPLES,
    )


def test_tool_receives_its_prompt_with_sections_resources_and_state() -> None:
    seen = set[tuple[str, str]]()

    def report(params: Nothing, *, context: ToolContext) -> ToolResult[str]:
        nested = context.adapter.evaluate(
            Prompt(ns="t", key="n"), session=context.session, bus=context.event_bus
        )
        seen.add((context.prompt.key, nested.text))
        return ToolResult(
            "", f"{context.session[Note].latest()} {context.resources.get(Till).sold}"
        )

    template = PromptTemplate(
        ns="tests",
        key="shop",
        sections=[MarkdownSection(title="Shop", template="Sell.")],
        resources=ResourceRegistry.of(Binding(Till, lambda _: Till())),
    )

    def session() -> Session:
        session = Session()
        # the contract ignores reducers of telemetry
        session[Note].register(ToolInvoked, lambda _, event: Append(Note(event.name)))
        session.dispatch(Note("first"))
        return session

    assert_tool_contract(
        Tool(name="report", handler=report, effect="pure"),
        prompt=template.bind,
        session=session,
        adapter=lambda: ScriptedAdapter([say("Hello."), say("Hello.")]),
    )
    assert seen == {("shop", "Hello.")}


# --- The generated arguments


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Item:
    name: Annotated[str, pydantic.Field(min_length=2, max_length=4)]


@dataclass(frozen=True)
class Order:
    count: Annotated[int, pydantic.Field(ge=3, le=5)]
    code: Annotated[str, pydantic.Field(pattern="^[a-z]{3}$")]
    size: Size
    how: Literal["now", "later"]
    day: date
    items: Annotated[list[Item], pydantic.Field(min_length=1, max_length=2)]
    price: Annotated[float, pydantic.Field(gt=0, lt=1)] = 0.5
    parent: "Order | None" = None
    labels: dict[str, int] = field(default_factory=dict)


def test_generated_arguments_fit_constraints_and_vary_defaults() -> None:
    seen: list[Order] = []

    def place(params: Order, *, context: ToolContext) -> ToolResult[None]:
        seen.append(params)
        return ToolResult("Ordered.")

    assert_tool_contract(Tool(name="place", handler=place, effect="at_most_once"))
    assert len(seen) > EXAMPLES
    assert {order.count for order in seen} == {3, 4, 5}
    options = {(order.size, order.how) for order in seen}
    assert options == set(itertools.product(Size, ("now", "later")))
    assert {order.parent is None for order in seen} == {True, False}
    assert {bool(order.labels) for order in seen} == {True, False}


def test_handler_receives_long_and_unusual_texts() -> None:
    seen = set[str]()

    def store(params: Text, *, context: ToolContext) -> ToolResult[None]:
        seen.add(params.text)
        return ToolResult("Stored.")

    assert_tool_contract(Tool(name="store", handler=store))
    assert max(map(len, seen)) > 10_000
    assert "\0" in seen


def test_tool_contract_ignores_the_hypothesis_deadline() -> None:
    settings.register_profile("quick", settings(deadline=timedelta(microseconds=1)))
    settings.load_profile("quick")
    assert_tool_contract(Tool(name="shout", handler=shout), max_examples=3)


def test_strategy_can_replace_all_arguments_or_single_ones() -> None:
    seen: list[Text] = []

    def store(params: Text, *, context: ToolContext) -> ToolResult[None]:
        seen.append(params)
        if params.times == 0:
            raise ToolValidationError("times is 0")
        return ToolResult("Stored.")

    tool = Tool(name="store", handler=store)
    assert_tool_contract(tool, arguments=st.builds(Text, st.just("a"), st.just(3)), max_examples=20)
    assert seen[0] == Text("a", 3)  # the rest may be variants that a model might send instead
    seen.clear()
    assert_tool_contract(tool, arguments={"text": st.sampled_from("bc")}, max_examples=50)
    assert {"b", "c"} <= {params.text for params in seen}
    assert len({params.times for params in seen}) > 2
    with pytest.raises(ValueError, match="arguments= must name params of the tool, got 'txet'"):
        assert_tool_contract(tool, arguments={"txet": st.just("b")})


# --- Broken tools


def test_undeclared_exception_is_reported_with_minimal_arguments() -> None:
    def divide(params: Text, *, context: ToolContext) -> ToolResult[int]:
        return ToolResult("Divided.", 100 // max(params.times, 0))

    assert breach(divide) == (
        "tool 'wrong': its handler raised ZeroDivisionError('integer division or modulo by "
        "zero'); answer with "
        "success=False, raise ToolError, or name the exception in raises=\n"
        'arguments: {"text": "", "times": 0}'
    )
    assert_tool_contract(
        Tool(name="divide", handler=divide), raises=(LookupError, ZeroDivisionError)
    )


def test_exception_of_an_async_handler_is_the_cause_of_the_error() -> None:
    async def fail(params: Text, *, context: ToolContext) -> ToolResult[None]:
        await asyncio.sleep(0)
        raise KeyError(params.text)

    with pytest.raises(ToolContractError, match=r"its handler raised KeyError\(''\)") as caught:
        assert_tool_contract(Tool(name="fail", handler=fail))
    assert isinstance(caught.value.__cause__, KeyError)


def test_keyboard_interrupt_propagates() -> None:
    def stop(params: Text, *, context: ToolContext) -> ToolResult[None]:
        raise KeyboardInterrupt("stop")

    with pytest.raises(KeyboardInterrupt, match="stop"):
        assert_tool_contract(Tool(name="stop", handler=stop))


@dataclass(frozen=True)
class Picky:
    text: str

    def __post_init__(self) -> None:
        if self.text != "swordfish":
            raise ValueError("no such word")


def test_params_type_that_rejects_all_fitting_arguments_is_reported() -> None:
    message = breach(ping, params=Picky)
    assert "it accepted none of the arguments that fit its schema" in message
    assert "no such word" in message
    tool = Tool(name="picky", handler=ping, params_type=Picky)
    assert_tool_contract(tool, arguments={"text": st.just("swordfish")})


def test_handler_that_returns_none_is_reported() -> None:
    def forget(params: Text, *, context: ToolContext) -> Any:
        return None if params.times > 0 else ToolResult("None.")

    assert "is not valid: the handler of 'wrong' must return a ToolResult, got None" in breach(
        forget
    )


def test_value_not_representable_in_json_is_reported() -> None:
    def half(params: Text, *, context: ToolContext) -> ToolResult[Any]:
        return ToolResult("Half.", float("inf") if params.times > 100 else 0.5)

    message = breach(half)
    assert "is not valid: JSON cannot hold this float" in message
    assert 'arguments: {"text": "", "times": 101}' in message


@pytest.mark.parametrize(
    ("declared", "value"),
    [(Note, Text("")), (list[int], ["one"]), (int | None, "1"), (type(None), 1)],
    ids=repr,
)
def test_value_of_another_type_than_declared_is_reported(declared: Any, value: Any) -> None:
    def other(params: Text, *, context: ToolContext) -> ToolResult[Any]:
        return ToolResult("Here.", value)

    tool = Tool(name="other", handler=other, params_type=Text, result_type=declared)
    with pytest.raises(
        ToolContractError, match=r"its result has the value .*; return the result type"
    ):
        assert_tool_contract(tool)


def test_failed_call_that_a_resource_does_not_roll_back_is_reported() -> None:
    class Alias(Till):
        def snapshot(self) -> Any:
            return self.sold

    message = breach(sell, "at_most_once", resources=lambda: {Till: Alias()})
    assert "a failed call changed resource Till; let restore() restore what" in message


def test_failed_call_whose_rollback_raises_is_reported() -> None:
    class Stuck(Till):
        def restore(self, snapshot: Any, /) -> None:
            raise OSError("it is locked")

    message = breach(sell, "at_most_once", resources=lambda: {Till: Stuck()})
    assert "is not valid: 1 of " in message


def test_failed_call_that_mutates_a_slice_value_is_reported() -> None:
    @dataclass
    class Draft:
        lines: list[str]

    def session() -> Session:
        session = Session()
        session[Draft].append(Draft([]))
        return session

    def write(params: Text, *, context: ToolContext) -> ToolResult[None]:
        draft = context.session[Draft].latest()
        assert draft is not None
        draft.lines.append(params.text)
        return ToolResult("Full.", success=False)

    message = breach(write, session=session)
    assert "a failed call changed slice Draft; " in message
    assert "keep the values of slices frozen" in message


def test_pure_tool_that_changes_the_session_is_reported() -> None:
    message = breach(remember, "pure")
    assert "its effect is 'pure', yet it changed slice Note; declare 'repeatable'" in message


def test_pure_tool_that_changes_files_is_reported() -> None:
    def touch(params: Text, *, context: ToolContext) -> ToolResult[None]:
        context.resources.get(Filesystem).write_text("a.txt", params.text)
        return ToolResult("Touched.")

    def resources() -> Resources:
        return {Filesystem: InMemoryFilesystem({"a.txt": b"here"})}

    message = breach(touch, "pure", resources=resources)
    assert "its effect is 'pure', yet it changed resource Filesystem" in message
    assert_tool_contract(Tool(name="touch", handler=touch), resources=resources)


def test_pure_tool_with_varying_answers_is_reported() -> None:
    count = itertools.count()

    def roll(params: Text, *, context: ToolContext) -> ToolResult[int]:
        return ToolResult("Rolled.", next(count))

    assert "but it answered the same call in two different ways; " in breach(roll, "pure")
    assert_tool_contract(Tool(name="roll", handler=roll))


def test_repeatable_tool_that_is_not_idempotent_is_reported() -> None:
    message = breach(sell, resources=tills)
    problem = "its effect is 'repeatable', but repeating the same call changed resource Till"
    assert f"{problem}; declare 'at_most_once'" in message
    assert 'arguments: {"text": "0"}' in message


def test_repeatable_tool_that_deduplicates_only_by_session_is_reported() -> None:
    def note_and_sell(params: Text, *, context: ToolContext) -> ToolResult[None]:
        if Note(params.text) not in context.session[Note].all():  # a crash would roll it back
            context.session.dispatch(Note(params.text))
            context.resources.get(Till).sold.append(params.text)
        return ToolResult("Sold.")

    assert "repeating the same call changed resource Till" in breach(note_and_sell, resources=tills)


def test_tool_without_a_handler_raises_value_error() -> None:
    with pytest.raises(ValueError, match="tool 'none' has no handler"):
        assert_tool_contract(Tool(name="none", params_type=Text))


# --- Resources whose snapshots do not show their state


def notes(database: Database) -> list[str]:
    return database.notes


def add(params: Text, *, context: ToolContext) -> ToolResult[None]:
    context.resources.get(Database).add(params.text)
    return ToolResult("Full.", success=params.text != "")


def count_notes(params: Text, *, context: ToolContext) -> ToolResult[int]:
    return ToolResult("Counted.", len(context.resources.get(Database).notes))


@pytest.mark.parametrize("state", [{}, {Database: notes}], ids=["by snapshot", "by reader"])
@pytest.mark.parametrize(
    "tool",
    [
        Tool(name="add", handler=add, effect="at_most_once"),
        Tool(name="count", handler=count_notes, effect="pure"),
    ],
    ids=lambda tool: tool.name,
)
def test_database_savepoints_are_not_reported_as_changes_and_are_released(
    tool: AnyTool, state: Any
) -> None:
    databases: list[Database] = []

    def resources() -> Resources:
        databases.append(Database())
        return {Database: databases[-1]}

    assert_tool_contract(tool, resources=resources, state=state, max_examples=EXAMPLES)
    assert len(databases) > EXAMPLES
    assert not any(database.connection.in_transaction for database in databases)


def test_state_reader_detects_changes_that_savepoints_hide() -> None:
    class Stuck(Database):
        def restore(self, snapshot: str, /) -> None: ...

    def check(effect: str, database: type[Database] = Database) -> str:
        databases: list[Database] = []

        def resources() -> Resources:
            databases.append(database())
            return {Database: databases[-1]}

        message = breach(add, effect, resources=resources, state={Database: notes})
        assert not any(database.connection.in_transaction for database in databases)
        return message

    assert "its effect is 'pure', yet it changed resource Database" in check("pure")
    assert "repeating the same call changed resource Database" in check("repeatable")
    assert "a failed call changed resource Database" in check("at_most_once", Stuck)


def test_state_reader_detects_changes_of_a_resource_without_snapshots() -> None:
    class Tally:
        total = 0

    def increase(params: Text, *, context: ToolContext) -> ToolResult[None]:
        context.resources.get(Tally).total += 1
        return ToolResult("No.", success=False)

    def total(tally: Tally) -> int:
        return tally.total

    def resources() -> Resources:
        return {Tally: Tally()}

    tool = Tool(name="increase", handler=increase)
    assert_tool_contract(tool, resources=resources, max_examples=EXAMPLES)
    message = breach(increase, resources=resources, state={Tally: total})
    assert "a failed call changed resource Tally" in message
    problem = "state= must name bound singletons, got Till; bound: Tally"
    with pytest.raises(ValueError, match=problem):
        assert_tool_contract(tool, resources=resources, state={Till: len})


def test_resources_can_be_a_mapping_or_a_registry() -> None:
    def sell(params: Text, *, context: ToolContext) -> ToolResult[str]:
        till = context.resources.get(Till)
        if params.text not in till.sold:
            till.sold.append(params.text)
        return ToolResult(message=params.text)

    tool = Tool[Text, str](name="sell", description="Sells.", handler=sell)
    shared = Till()
    assert_tool_contract(tool, resources={Till: shared}, max_examples=EXAMPLES)
    assert shared.sold
    made: list[Till] = []

    def open_till(_: object) -> Till:
        made.append(Till())
        return made[-1]

    registry = ResourceRegistry.of(Binding(Till, open_till))
    assert_tool_contract(tool, resources=registry, max_examples=EXAMPLES)
    assert len(made) > 1, "each example opens it again"
