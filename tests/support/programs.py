"""Random tool calls: their reads and changes of a session and its resources, and their endings.
Contains no claims.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from weakincentives.errors import ControlFlow
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.runtime.events import Event
from weakincentives.runtime.session import Append, Replace, Session
from weakincentives.runtime.transactions import tool_transaction

FAILURES = (
    ValueError,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    ExceptionGroup,
)


class Redirect(ControlFlow):
    """A test's own control flow."""


def raised(kind: type[BaseException]) -> BaseException:
    """Returns an exception of this type."""
    return ExceptionGroup("several", [ValueError()]) if kind is ExceptionGroup else kind("planned")


# --------------------------------------------------------------------------------------------------
# the session


@dataclass(frozen=True)
class Plain:
    """State without a reducer."""

    number: int


@dataclass(frozen=True)
class Both:
    """An event that is reduced into `Plain` and into `Sum`."""

    number: int


@dataclass(frozen=True)
class Brittle:
    """An event that is reduced into `Plain` as long as there are few."""

    number: int


@dataclass(frozen=True)
class Sum:
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard(Event):
    """Telemetry without a reducer."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Event):
    """Telemetry that is reduced into state."""

    number: int


STATE = (Plain, Sum, Both)


def session() -> Session:
    """Returns a session with reducers of several kinds."""

    # Any: views of two slices.
    def add(view: Any, event: Any) -> Replace[Sum]:
        return Replace((Sum((view.latest() or Sum(0)).total + event.number),))

    def append(view: Any, event: Any) -> Append[Plain]:
        return Append(Plain(event.number))

    def break_off(view: Any, event: Any) -> Append[Plain]:
        if len(view) > 2:
            raise ValueError("too many")
        return Append(Plain(event.number))

    made = Session()
    made[Plain].register(Both, append)
    made[Sum].register(Both, add)
    made[Sum].register(Brittle, add)
    made[Plain].register(Brittle, break_off)
    made[Sum].register(Counted, add)
    return made


# --------------------------------------------------------------------------------------------------
# the resources


class Cell:
    """Numbers that can be restored."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def read(self) -> list[int]:
        return list(self.numbers)

    def add(self, number: int) -> None:
        self.numbers.append(number)

    def snapshot(self) -> list[int]:
        return list(self.numbers)

    def restore(self, snapshot: list[int], /) -> None:
        self.numbers[:] = snapshot


class LazyCell(Cell):
    """A cell created on first use by a provider, which returns the same cell each time."""


class CallCell(Cell):
    """A cell for one call."""


class ForkedCell(Cell):
    """One call's view of a `ForkableCell`."""

    def __init__(self, base: list[int]) -> None:
        super().__init__()
        self.base = base
        self.was_read = False

    def read(self) -> list[int]:
        self.was_read = True
        return self.base + self.numbers

    def preview(self) -> str:
        return f"adds {self.numbers}"


class ForkableCell(Cell):
    """Numbers that several calls can use concurrently."""

    def fork(self) -> ForkedCell:
        return ForkedCell(list(self.numbers))

    def merge(self, fork: ForkedCell, /) -> bool:
        if fork.was_read and fork.base != self.numbers:
            return False
        self.numbers += fork.numbers
        return True


@dataclass
class Notebook:
    """A resource without its own state, which depends on a cell."""

    cell: Cell

    def read(self) -> list[int]:
        return self.cell.read()

    def add(self, number: int) -> None:
        self.cell.add(number)


KINDS: tuple[Callable[..., Any], ...] = (Cell, ForkableCell, LazyCell, Notebook, CallCell)


@dataclass
class World:
    """The state that outlives closed resources: the cells that their providers return."""

    cells: dict[str, Cell] = field(
        default_factory=lambda: {
            kind.__name__: kind() for kind in (Cell, ForkableCell, LazyCell, CallCell)
        }
    )

    def registry(self) -> ResourceRegistry:
        def gives(kind: type[Cell], **how: Any) -> Binding[Any]:
            return Binding(kind, lambda _: self.cells[kind.__name__], **how)

        return ResourceRegistry.of(
            gives(Cell, eager=True),
            gives(ForkableCell, eager=True),
            gives(LazyCell),
            Binding(Notebook, lambda resources: Notebook(resources.get(ForkableCell)), eager=True),
            gives(CallCell, scope=Scope.TOOL_CALL),
        )

    def numbers(self) -> dict[str, list[int]]:
        return {name: cell.read() for name, cell in self.cells.items()}


# --------------------------------------------------------------------------------------------------
# the programs


@dataclass(frozen=True)
class Op:
    """An operation in a call: `what`, with a type and numbers, or with operations `inside`."""

    what: str
    of: Any = None
    numbers: tuple[int, ...] = ()
    inside: tuple["Op", ...] = ()
    ending: type[BaseException] | None = None


@dataclass(frozen=True)
class Program:
    """A call to make, and how it ends: well, with `success=False`, or by raising."""

    ops: tuple[Op, ...]
    ending: Any = None


_NUMBERS = st.integers(0, 3)
_MANY = st.lists(_NUMBERS, max_size=2).map(tuple)
SESSION_OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(
        Op,
        st.sampled_from(["all", "latest", "len", "where", "clear", "clear some"]),
        st.sampled_from(STATE),
    ),
    st.builds(Op, st.just("append"), st.just(Plain), st.tuples(_NUMBERS)),
    st.builds(Op, st.just("seed"), st.just(Plain), _MANY),
    st.builds(
        Op,
        st.just("dispatch"),
        st.sampled_from([Plain, Both, Brittle, Heard, Counted]),
        st.tuples(_NUMBERS),
    ),
    st.builds(
        Op, st.just("publish"), st.sampled_from([Heard, Heard, Counted]), st.tuples(_NUMBERS)
    ),
)
RESOURCE_OPS: st.SearchStrategy[Op] = st.builds(
    Op,
    st.sampled_from(["read", "add", "add", "add by the prompt"]),
    st.sampled_from(KINDS),
    st.tuples(_NUMBERS),
)


def programs(endings: Iterable[Any], *, resources: bool = True) -> st.SearchStrategy[Program]:
    """Calls that end in one of these ways."""
    flat = SESSION_OPS | RESOURCE_OPS if resources else SESSION_OPS
    nested = st.builds(
        Op,
        st.sampled_from(["nested", "nested with resources"] if resources else ["nested"]),
        inside=st.lists(flat, max_size=3).map(tuple),
        ending=st.sampled_from([None, ValueError, Redirect]),
    )
    ops = st.lists(st.one_of(flat, flat, flat, nested), max_size=5).map(tuple)
    return st.builds(Program, ops, st.sampled_from(tuple(endings)))


def run(program: Program, context: ToolContext) -> ToolResult[object]:
    """Makes the call; the answer contains everything that it read."""
    seen: list[object] = []
    for op in program.ops:
        _do(op, context, seen)
    match program.ending:
        case None | False:
            return ToolResult(message=repr(seen), success=program.ending is None)
        case kind:
            raise raised(kind)


# Any: slices of all types.
_SLICES: dict[str, Callable[[Any, Op], object]] = {
    "all": lambda accessor, op: accessor.all(),
    "latest": lambda accessor, op: accessor.latest(),
    "len": lambda accessor, op: len(accessor),
    "where": lambda accessor, op: accessor.where(lambda value: value != Plain(1)),
    "clear": lambda accessor, op: accessor.clear(),
    "clear some": lambda accessor, op: accessor.clear(
        lambda value: value in {Plain(1), Sum(1), Both(1)}
    ),
    "append": lambda accessor, op: accessor.append(op.of(op.numbers[0])),
    "seed": lambda accessor, op: accessor.seed(*map(op.of, op.numbers)),
}


def _do(op: Op, context: ToolContext, seen: list[object]) -> None:
    match op.what:
        case what if what in _SLICES:
            seen.append(_SLICES[what](context.session[op.of], op))
        case "dispatch":
            try:
                context.session.dispatch(op.of(number=op.numbers[0]))
            except ValueError as error:
                seen.append(str(error))
        case "publish":
            context.event_bus.publish(
                op.of(number=op.numbers[0], session_id=context.session.session_id)
            )
        case "read":
            seen.append(context.resources.get(op.of).read())
        case "add":
            context.resources.get(op.of).add(op.numbers[0])
        case "add by the prompt":
            context.prompt.resources.get(Cell if op.of is CallCell else op.of).add(op.numbers[0])
        case _:
            parts = context.prompt.resources if op.what == "nested with resources" else ()
            try:
                with tool_transaction(context.session, parts, "nested"):
                    for inner in op.inside:
                        _do(inner, context, seen)
                    if op.ending is not None:
                        raise raised(op.ending)
            except (ValueError, Redirect) as error:
                seen.append(str(error))
