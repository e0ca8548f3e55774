"""The contract of tools: good ones keep it, and for each promise a tool that breaks it is found and
told why.
"""

import asyncio
import itertools
import os
import sqlite3
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from support.authors import PLUGIN
from weakincentives import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import Prompt, ToolValidationError, VisibilityExpansionRequired
from weakincentives.prompt.workspace_tools import READING_TOOLS, WRITING_TOOLS
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Append, Session
from weakincentives.testing import ScriptedAdapter, ToolContractError, assert_tool_contract, say
from weakincentives.visibility import SectionVisibility

# Any: handlers and tools of all types.
EXAMPLES = 30


@dataclass(frozen=True)
class Text:
    text: str
    times: int = 1


@dataclass(frozen=True)
class Note:
    text: str


class Till:
    """A resource that a transaction can put back."""

    def __init__(self) -> None:
        self.sold: list[str] = []

    def snapshot(self) -> tuple[str, ...]:
        return tuple(self.sold)

    def restore(self, snapshot: tuple[str, ...], /) -> None:
        self.sold[:] = snapshot


@pytest.fixture(autouse=True)
def same_examples_each_time() -> Iterator[None]:
    """Whether a wrong tool is found must not depend on luck."""
    before = settings.get_current_profile_name()
    settings.register_profile("same", settings(derandomize=True, database=None, deadline=None))
    settings.load_profile("same")
    yield
    settings.load_profile(before)


def tills() -> dict[Any, Any]:
    return {Till: Till()}


def breach(handler: Callable[..., Any], effect: Any = "repeatable", **given: Any) -> str:
    """What is found wrong with a tool of this handler."""
    tool = Tool(
        name="wrong", handler=handler, effect=effect, params_type=given.pop("params_type", Text)
    )
    with pytest.raises(ToolContractError) as caught:
        assert_tool_contract(tool, max_examples=EXAMPLES, **given)
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
    ("tool", "given"),
    [
        pytest.param(Tool(name="shout", handler=shout, effect="pure"), {}, id="pure"),
        pytest.param(Tool(name="remember", handler=remember), {}, id="stateful"),
        pytest.param(Tool(name="wait", handler=wait), {}, id="async"),
        pytest.param(Tool(name="ping", handler=ping, params_type=Nothing), {}, id="no params"),
        pytest.param(
            Tool(name="sell", handler=sell, effect="at_most_once"),
            {"resources": tills},
            id="at most once",
        ),
        pytest.param(
            Tool(name="sell_once", handler=sell_once), {"resources": tills}, id="by its key"
        ),
        pytest.param(
            Tool(name="look", handler=look, effect="pure"),
            {"resources": tills},
            id="reads a resource",
        ),
        pytest.param(Tool(name="read_on", handler=read_on), {}, id="control flow"),
    ],
)
def test_a_good_tool_passes(tool: Tool[Any, Any], given: Any) -> None:
    assert_tool_contract(tool, max_examples=EXAMPLES, **given)


@pytest.mark.parametrize("tool", [*READING_TOOLS, *WRITING_TOOLS], ids=lambda tool: tool.name)
def test_the_file_tools_keep_it_over_files_that_are_there(tool: Tool[Any, Any]) -> None:
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
        arguments={name: one for name, one in narrow.items() if name in names},
        max_examples=EXAMPLES,
    )


def test_a_tool_finds_its_prompt_with_sections_resources_and_state() -> None:
    seen = set[tuple[str, str]]()

    def tell(params: Nothing, *, context: ToolContext) -> ToolResult[str]:
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
        made = Session()
        # nothing that the tool does
        made[Note].register(ToolInvoked, lambda _, event: Append(Note(event.name)))
        made.dispatch(Note("first"))
        return made

    assert_tool_contract(
        Tool(name="tell", handler=tell, effect="pure"),
        prompt=template.bind,
        session=session,
        adapter=lambda: ScriptedAdapter([say("Hello."), say("Hello.")]),
    )
    assert seen == {("shop", "Hello.")}


# --- What arguments it is given


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


def test_arguments_fit_constraints_and_nested_types_and_reach_defaults() -> None:
    seen: list[Order] = []

    def order(params: Order, *, context: ToolContext) -> ToolResult[None]:
        seen.append(params)
        return ToolResult("Ordered.")

    assert_tool_contract(Tool(name="order", handler=order, effect="at_most_once"))
    assert len(seen) > EXAMPLES
    assert {one.count for one in seen} == {3, 4, 5}
    assert {(one.size, one.how) for one in seen} == set(itertools.product(Size, ("now", "later")))
    assert {one.parent is None for one in seen} == {True, False}
    assert {bool(one.labels) for one in seen} == {True, False}


def test_a_handler_sees_texts_as_long_and_odd_as_a_model_may_send() -> None:
    seen = set[str]()

    def keep(params: Text, *, context: ToolContext) -> ToolResult[None]:
        seen.add(params.text)
        return ToolResult("Kept.")

    assert_tool_contract(Tool(name="keep", handler=keep))
    assert max(map(len, seen)) > 10_000
    assert "\0" in seen


def test_a_tool_may_take_longer_than_the_deadline_of_other_tests() -> None:
    settings.register_profile("quick", settings(deadline=timedelta(microseconds=1)))
    settings.load_profile("quick")
    assert_tool_contract(Tool(name="shout", handler=shout), max_examples=3)


def test_a_strategy_takes_the_place_of_arguments_whole_or_one_by_one() -> None:
    seen: list[Text] = []

    def keep(params: Text, *, context: ToolContext) -> ToolResult[None]:
        seen.append(params)
        if params.times == 0:
            raise ToolValidationError("times is 0")
        return ToolResult("Kept.")

    tool = Tool(name="keep", handler=keep)
    assert_tool_contract(tool, arguments=st.builds(Text, st.just("a"), st.just(3)), max_examples=20)
    assert seen[0] == Text("a", 3)  # the rest may be variants that a model might send instead
    seen.clear()
    assert_tool_contract(tool, arguments={"text": st.sampled_from("bc")}, max_examples=50)
    assert {"b", "c"} <= {one.text for one in seen}
    assert len({one.times for one in seen}) > 2
    with pytest.raises(ValueError, match="'txet', which is no param"):
        assert_tool_contract(tool, arguments={"txet": st.just("b")})


# --- Wrong tools


def test_an_exception_that_is_not_announced_is_found_with_the_least_arguments() -> None:
    def divide(params: Text, *, context: ToolContext) -> ToolResult[int]:
        return ToolResult("Divided.", 100 // max(params.times, 0))

    assert breach(divide) == (
        "tool 'wrong': its handler raised ZeroDivisionError('integer division or modulo by zero'); answer with "
        "success=False, raise ToolValidationError, or name the exception in raises=\n"
        'arguments: {"text": "", "times": 0}'
    )
    assert_tool_contract(
        Tool(name="divide", handler=divide), raises=(LookupError, ZeroDivisionError)
    )


def test_an_exception_of_an_async_handler_is_its_cause() -> None:
    async def fail(params: Text, *, context: ToolContext) -> ToolResult[None]:
        await asyncio.sleep(0)
        raise KeyError(params.text)

    with pytest.raises(ToolContractError, match=r"its handler raised KeyError\(''\)") as caught:
        assert_tool_contract(Tool(name="fail", handler=fail))
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_is_no_exception_passes_through() -> None:
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


def test_a_params_type_that_accepts_nothing_of_its_schema_is_found() -> None:
    said = breach(shout, params_type=Picky)
    assert "none of the arguments that fit its schema was accepted" in said
    assert "no such word" in said
    tool = Tool(name="picky", handler=ping, params_type=Picky)
    assert_tool_contract(tool, arguments={"text": st.just("swordfish")})


def test_a_result_that_is_none_is_found() -> None:
    def forget(params: Text, *, context: ToolContext) -> Any:
        return None if params.times > 0 else ToolResult("None.")

    assert "cannot count: the handler returned NoneType, not a ToolResult" in breach(forget)


def test_a_value_that_json_cannot_hold_is_found() -> None:
    def half(params: Text, *, context: ToolContext) -> ToolResult[Any]:
        return ToolResult("Half.", float("inf") if params.times > 100 else 0.5)

    said = breach(half)
    assert "cannot count: JSON cannot hold this float" in said
    assert 'arguments: {"text": "", "times": 101}' in said


@pytest.mark.parametrize(
    ("of", "value"),
    [(Note, Text("")), (list[int], ["one"]), (int | None, "1"), (type(None), 1)],
    ids=repr,
)
def test_a_value_of_another_type_than_declared_is_found(of: Any, value: Any) -> None:
    def other(params: Text, *, context: ToolContext) -> ToolResult[Any]:
        return ToolResult("Here.", value)

    with pytest.raises(
        ToolContractError, match=r"its result has the value .*; let it be of the result type"
    ):
        assert_tool_contract(Tool(name="other", handler=other, params_type=Text, result_type=of))


def test_a_failed_call_that_a_resource_does_not_undo_is_found() -> None:
    class Alias(Till):
        def snapshot(self) -> Any:
            return self.sold

    def resources() -> dict[Any, Any]:
        return {Till: Alias()}

    said = breach(sell, effect="at_most_once", resources=resources)
    assert (
        "a failed call changed resource Till; let restore() put back what snapshot() copied" in said
    )


def test_a_failed_call_whose_undo_raises_is_found() -> None:
    class Stuck(Till):
        def restore(self, snapshot: Any, /) -> None:
            raise OSError("it is locked")

    def resources() -> dict[Any, Any]:
        return {Till: Stuck()}

    assert "cannot count: 1 of " in breach(sell, effect="at_most_once", resources=resources)


def test_a_failed_call_that_changes_what_a_slice_holds_in_its_place_is_found() -> None:
    @dataclass
    class Draft:
        lines: list[str]

    def session() -> Session:
        made = Session()
        made[Draft].append(Draft([]))
        return made

    def write(params: Text, *, context: ToolContext) -> ToolResult[None]:
        draft = context.session[Draft].latest()
        assert draft is not None
        draft.lines.append(params.text)
        return ToolResult("Full.", success=False)

    said = breach(write, session=session)
    assert "a failed call changed slice Draft; " in said
    assert "keep frozen what slices hold" in said


def test_a_pure_tool_that_changes_the_session_is_found() -> None:
    assert "its effect is 'pure', yet it changed slice Note; declare 'repeatable'" in breach(
        remember, effect="pure"
    )


def test_a_pure_tool_that_changes_files_is_found() -> None:
    def touch(params: Text, *, context: ToolContext) -> ToolResult[None]:
        context.resources.get(Filesystem).write_text("a.txt", params.text)
        return ToolResult("Touched.")

    def resources() -> dict[Any, Any]:
        return {Filesystem: InMemoryFilesystem({"a.txt": b"here"})}

    assert "its effect is 'pure', yet it changed resource Filesystem" in breach(
        touch, "pure", resources=resources
    )
    assert_tool_contract(Tool(name="touch", handler=touch), resources=resources)


def test_a_pure_tool_that_answers_in_two_ways_is_found() -> None:
    count = itertools.count()

    def roll(params: Text, *, context: ToolContext) -> ToolResult[int]:
        return ToolResult("Rolled.", next(count))

    assert "yet it answered the same call in two ways; " in breach(roll, effect="pure")
    assert_tool_contract(Tool(name="roll", handler=roll))


def test_a_repeatable_tool_that_does_more_when_it_is_run_again_is_found() -> None:
    said = breach(sell, resources=tills)
    assert (
        "its effect is 'repeatable', yet the same call run again changed resource Till; declare 'at_most_once'"
        in said
    )
    assert 'arguments: {"text": "0"}' in said


def test_a_tool_that_knows_by_the_session_alone_what_it_did_is_found() -> None:
    def note_and_sell(params: Text, *, context: ToolContext) -> ToolResult[None]:
        if Note(params.text) not in context.session[Note].all():  # which a crash takes back
            context.session.dispatch(Note(params.text))
            context.resources.get(Till).sold.append(params.text)
        return ToolResult("Sold.")

    assert "the same call run again changed resource Till" in breach(note_and_sell, resources=tills)


def test_a_tool_without_a_handler_is_refused() -> None:
    with pytest.raises(ValueError, match="tool 'none' has no handler"):
        assert_tool_contract(Tool(name="none", params_type=Text))


# --- Resources whose snapshots do not tell the state


class Database:
    """Rows in SQLite; a snapshot is the name of a savepoint."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        weakref.finalize(self, self.connection.close)
        self.connection.execute("CREATE TABLE note (text TEXT)")
        self.names = itertools.count()

    def add(self, text: str) -> None:
        self.connection.execute("INSERT INTO note VALUES (?)", (text,))

    def snapshot(self) -> str:
        name = f"call_{next(self.names)}"
        self.connection.execute(f"SAVEPOINT {name}")
        return name

    def restore(self, snapshot: str, /) -> None:
        self.connection.execute(f"ROLLBACK TO {snapshot}")

    def release(self, snapshot: str, /) -> None:
        self.connection.execute(f"RELEASE {snapshot}")


def rows(database: Database) -> list[tuple[str]]:
    return database.connection.execute("SELECT text FROM note").fetchall()


def databases(made: list[Database], of: type[Database] = Database) -> Callable[[], dict[Any, Any]]:
    """Makes resources, and keeps each database."""

    def make() -> dict[Any, Any]:
        made.append(of())
        return {Database: made[-1]}

    return make


def add(params: Text, *, context: ToolContext) -> ToolResult[None]:
    context.resources.get(Database).add(params.text)
    return ToolResult("Full.", success=params.text != "")


def count_rows(params: Text, *, context: ToolContext) -> ToolResult[int]:
    return ToolResult("Counted.", len(rows(context.resources.get(Database))))


@pytest.mark.parametrize("state", [None, {Database: rows}], ids=["not told", "told"])
@pytest.mark.parametrize(
    "tool",
    [
        Tool(name="add", handler=add, effect="at_most_once"),
        Tool(name="count", handler=count_rows, effect="pure"),
    ],
    ids=lambda tool: tool.name,
)
def test_savepoints_of_a_database_are_no_change_and_none_is_left_open(
    tool: Tool[Any, Any], state: Any
) -> None:
    made: list[Database] = []
    assert_tool_contract(tool, resources=databases(made), state=state or {}, max_examples=EXAMPLES)
    assert len(made) > EXAMPLES
    assert not any(one.connection.in_transaction for one in made)


def test_a_reader_of_the_state_finds_what_savepoints_do_not_tell() -> None:
    class Stuck(Database):
        def restore(self, snapshot: str, /) -> None: ...

    made: list[Database] = []
    given: dict[str, Any] = {"resources": databases(made), "state": {Database: rows}}
    assert "its effect is 'pure', yet it changed resource Database" in breach(add, "pure", **given)
    assert "the same call run again changed resource Database" in breach(add, **given)
    given["resources"] = databases(made, Stuck)
    assert "a failed call changed resource Database" in breach(add, "at_most_once", **given)
    assert not any(one.connection.in_transaction for one in made)


def test_a_reader_tells_the_state_of_a_resource_without_snapshots_too() -> None:
    class Tally:
        total = 0

    def raise_it(params: Text, *, context: ToolContext) -> ToolResult[None]:
        context.resources.get(Tally).total += 1
        return ToolResult("No.", success=False)

    def total(tally: Tally) -> int:
        return tally.total

    def resources() -> dict[Any, Any]:
        return {Tally: Tally()}

    assert_tool_contract(
        Tool(name="raise_it", handler=raise_it), resources=resources, max_examples=EXAMPLES
    )
    said = breach(raise_it, resources=resources, state={Tally: total})
    assert "a failed call changed resource Tally" in said
    with pytest.raises(
        ValueError, match="state= names Till, for which no singleton is bound; bound: Tally"
    ):
        assert_tool_contract(
            Tool(name="look", handler=look), resources=resources, state={Till: len}
        )


# --- hypothesis


WRONG = """
from dataclasses import dataclass

from weakincentives import Tool, ToolContext, ToolResult
from weakincentives.testing import assert_tool_contract


@dataclass(frozen=True)
class Number:
    number: int


def small(params: Number, *, context: ToolContext) -> ToolResult[None]:
    print("number", params.number)
    if params.number > 1000:
        raise ValueError("too large")
    return ToolResult("Small.")


def test_small() -> None:
    assert_tool_contract(Tool(name="small", handler=small))
"""


def test_seed_and_database_of_hypothesis_do_as_its_users_expect(tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(WRONG)

    def run(*options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    def numbers(shown: str) -> list[str]:
        return [line for line in shown.splitlines() if line.startswith("number ")]

    (tmp_path / "conftest.py").write_text(
        "from hypothesis import settings\n"
        "from hypothesis.database import DirectoryBasedExampleDatabase\n"
        "database = DirectoryBasedExampleDatabase('examples')\n"
        "settings.register_profile('own', database=database, derandomize=False, deadline=None)\n"
        "settings.load_profile('own')\n"
    )
    first = run()
    assert "ToolContractError: tool 'small': its handler raised ValueError('too large'); " in first
    assert 'arguments: {"number": 1001}' in first
    # under this name the database keeps it, so that no other tool is given it
    assert "small_fits(" in first
    assert "Tool handler failed" not in first
    assert numbers(run())[0] == "number 1001"  # what failed before comes first
    seeded = numbers(run("--hypothesis-seed=1"))
    assert seeded == numbers(run("--hypothesis-seed=1"))
    assert seeded != numbers(run("--hypothesis-seed=2"))


def test_the_door_needs_no_hypothesis_and_the_assertion_says_what_it_needs() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from weakincentives import Tool\n"
        "from weakincentives.testing import assert_tool_contract\n"
        "from weakincentives.prompt.workspace_tools import READING_TOOLS\n"
        "try: assert_tool_contract(READING_TOOLS[0])\n"
        "except ImportError as error: print(error)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert (
        done.stdout
        == "assert_tool_contract needs hypothesis: pip install 'weakincentives[testing]'\n"
    )
