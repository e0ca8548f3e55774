"""Resources are created by type on first use, closed in reverse order, and bound by precedence."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Barrier, Thread
from typing import Any, Self

import pytest

from support.agents import Args, prompt, tool
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, ToolContext, ToolResult
from weakincentives.prompt.errors import PromptValidationError
from weakincentives.resources import (
    Binding,
    NotIsolatedError,
    ResourceContext,
    ResourceError,
    ResourceRegistry,
    Scope,
)
from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import tool_transaction
from weakincentives.testing.scripted import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility

TIMEOUT = 60  # seconds; no test takes them


@dataclass
class Thing:
    """A resource that records when it is closed."""

    name: str = "thing"
    closed: list[str] = field(default_factory=list[str])

    def close(self) -> None:
        self.closed.append(self.name)


class Clock(Thing):
    """A resource without dependencies."""


class Store(Thing):
    """A resource that depends on a clock."""


class Index(Thing):
    """A resource that depends on a store."""


def of(*bindings: Binding[Any]) -> ResourceContext:
    return ResourceContext(ResourceRegistry.of(*bindings))


def chain(closed: list[str], **how: Any) -> ResourceContext:
    """Returns a context with an index on a store on a clock."""

    def store(resources: Any) -> Store:
        resources.get(Clock)
        return Store("store", closed)

    def index(resources: Any) -> Index:
        resources.get(Store)
        return Index("index", closed)

    return of(
        Binding(Index, index, **how),
        Binding(Store, store),
        Binding(Clock, lambda _: Clock("clock", closed)),
    )


# --------------------------------------------------------------------------------------------------
# making, closing


def test_resource_is_created_once_on_first_use() -> None:
    made: list[str] = []

    def clock(_: object) -> Clock:
        made.append("clock")
        return Clock()

    with of(Binding(Clock, clock)) as resources:
        assert made == []
        assert resources.get(Clock) is resources.get(Clock)
        assert made == ["clock"]


@pytest.mark.claim("PS-14")
def test_resources_are_closed_in_reverse_order_of_creation() -> None:
    closed: list[str] = []
    with chain(closed) as resources:
        resources.get(Index)
    assert closed == ["index", "store", "clock"]


def test_reopened_context_creates_new_resources() -> None:
    context = of(Binding(Clock, lambda _: Clock()))
    with context as resources:
        first = resources.get(Clock)
    with context as resources:
        assert resources.get(Clock) is not first
    assert first.closed == ["thing"]


def test_nested_entry_neither_recreates_nor_closes_resources() -> None:
    context = of(Binding(Clock, lambda _: Clock()))
    with context:
        with context:
            clock = context.get(Clock)
        assert (clock.closed, context.get(Clock) is clock) == ([], True)
    assert clock.closed == ["thing"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_failing_close_is_logged_and_the_rest_are_closed(
    caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    closed: list[str] = []

    class Stuck:
        def close(self) -> None:
            raise OSError("stuck")

    context = of(
        Binding(Clock, lambda _: Clock("first", closed), eager=True),
        Binding(Stuck, lambda _: Stuck(), eager=True),
        Binding(Store, lambda _: Store("last", closed), eager=True),
    )
    enter(context, asynchronous=asynchronous)
    assert closed == ["last", "first"]
    [record] = caplog.records
    assert (record.levelno, record.__dict__["resource"]) == (logging.ERROR, "Stuck")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, asyncio.CancelledError])
def test_interrupt_during_close_is_raised_after_the_rest_are_closed(
    asynchronous: bool,
    interrupt: type[BaseException],
) -> None:
    closed: list[str] = []

    class Interrupted:
        def close(self) -> None:
            raise interrupt

    context = of(
        Binding(Clock, lambda _: Clock("first", closed), eager=True),
        Binding(Interrupted, lambda _: Interrupted(), eager=True),
    )
    with pytest.raises(interrupt):
        enter(context, asynchronous=asynchronous)
    assert (closed, context.is_open) == (["first"], False)


def enter(
    context: ResourceContext, *, asynchronous: bool, inside: Callable[[], object] = lambda: None
) -> None:
    async def entering() -> None:
        async with context:
            inside()

    if asynchronous:
        asyncio.run(entering())
    else:
        with context:
            inside()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_context_managers_are_entered_and_receive_the_error_of_the_block(
    asynchronous: bool,
) -> None:
    seen: list[object] = []

    class Session:
        def __enter__(self) -> str:
            return "entered"

        def __exit__(self, *reason: object) -> bool:
            seen.append(reason[0])
            return True  # which suppresses nothing

    context = of(Binding(Session, lambda _: Session()))

    def fail() -> None:
        seen.append(context.get(Session))
        raise KeyError

    with pytest.raises(KeyError):
        enter(context, asynchronous=asynchronous, inside=fail)
    enter(context, asynchronous=asynchronous, inside=lambda: context.get(Session))
    assert seen == ["entered", KeyError, None]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_error_keeps_its_traceback_through_a_context_manager(asynchronous: bool) -> None:
    @contextmanager
    def opening() -> Generator[Clock]:
        yield Clock()

    @asynccontextmanager
    async def opening_later() -> AsyncGenerator[Clock]:
        yield Clock()

    async def provider(_: object) -> Any:
        return opening_later()

    made: Any = provider if asynchronous else lambda _: opening()
    context = of(Binding(Clock, made))

    def fail() -> None:
        context.get(Clock)
        raise KeyError

    with pytest.raises(KeyError) as caught:
        enter(context, asynchronous=asynchronous, inside=fail)
    assert caught.traceback[-1].name == "fail"


def test_close_takes_precedence_over_context_manager() -> None:
    class Both(Thing):
        def __enter__(self) -> None:
            raise AssertionError("entered")

        def __exit__(self, *_: object) -> None:
            raise AssertionError("left")

    with of(Binding(Both, lambda _: Both())) as resources:
        both = resources.get(Both)
    assert both.closed == ["thing"]


def test_application_value_is_neither_entered_nor_closed() -> None:
    clock = Clock()
    with ResourceContext(ResourceRegistry() | {Clock: clock}) as resources:
        assert resources.get(Clock) is clock
    assert clock.closed == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_eager_resources_are_created_on_entry_and_closed_if_it_fails(asynchronous: bool) -> None:
    closed: list[str] = []
    enter(chain(closed, eager=True), asynchronous=asynchronous)
    assert closed == ["index", "store", "clock"]

    def fail(_: object) -> Store:
        raise KeyboardInterrupt

    context = of(
        Binding(Clock, lambda _: Clock("clock", closed), eager=True),
        Binding(Store, fail, eager=True),
    )
    with pytest.raises(KeyboardInterrupt):
        enter(context, asynchronous=asynchronous)
    assert (closed[3:], context.is_open) == (["clock"], False)


def test_failed_provider_is_called_again_and_its_dependency_is_kept() -> None:
    attempts: list[Clock] = []

    def store(resources: Any) -> Store:
        attempts.append(resources.get(Clock))
        if len(attempts) == 1:
            raise OSError("not yet")
        return Store()

    with of(Binding(Store, store), Binding(Clock, lambda _: Clock())) as resources:
        with pytest.raises(OSError, match="not yet"):
            resources.get(Store)
        resources.get(Store)
    assert attempts[0] is attempts[1]
    assert attempts[0].closed == ["thing"]


def test_resource_requested_while_closing_is_rejected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Late:
        def close(self) -> None:
            context.get(Clock)

    context = of(Binding(Late, lambda _: Late()), Binding(Clock, lambda _: Clock()))
    with context:
        context.get(Late)
    assert "outside `with prompt.resources:`" in caplog.text
    with context:
        assert len(list(context)) == 1  # nothing is left from before


# ------------------------------------------------------------------------------------------------
# unavailable resources


@pytest.mark.claim("PS-15")
def test_resource_requested_outside_the_block_raises_runtime_error() -> None:
    asked = prompt().bind(resources={Clock: Clock()})
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"Clock was requested outside `with prompt\.resources:`"
        ):
            asked.resources.get(Clock)
        with asked.resources:
            assert isinstance(asked.resources.get(Clock), Clock)


@pytest.mark.claim("PS-14")
@pytest.mark.parametrize("failing", [False, True])
def test_prompt_resources_are_closed_once_however_the_block_ends(failing: bool) -> None:
    closed: list[str] = []
    asked = prompt().bind(
        resources=ResourceRegistry.of(Binding(Clock, lambda _: Clock("clock", closed)))
    )
    with suppress(ZeroDivisionError), asked.resources as resources:
        assert resources.get(Clock) is asked.resources.get(Clock)
        assert closed == []
        if failing:
            raise ZeroDivisionError
    assert closed == ["clock"]


def test_unbound_type_error_names_the_chain_and_the_bound_types() -> None:
    def store(resources: Any) -> Store:
        resources.get(Clock)
        return Store()

    with of(Binding(Store, store)) as resources, pytest.raises(ResourceError) as caught:
        resources.get(Store)
    assert str(caught.value) == (
        "no resource is bound for Store → Clock; bound: Store. Add it with bind(resources=…)"
    )
    assert isinstance(caught.value, LookupError)


@pytest.mark.parametrize("scope", Scope)
def test_cyclic_dependency_raises_resource_error_with_the_chain(scope: Scope) -> None:
    def asks_for(kind: type[Any]) -> Callable[[Any], Any]:
        return lambda resources: resources.get(kind)

    context = of(
        Binding(Index, asks_for(Store), scope=scope),
        Binding(Store, asks_for(Clock), scope=scope),
        Binding(Clock, asks_for(Index), scope=scope),
    )
    with context, context.for_call() as resources, pytest.raises(ResourceError) as caught:
        resources.get(Index)
    assert (
        str(caught.value)
        == "resources must not depend on themselves, got the cycle Index → Store → Clock → Index"
    )


def test_singleton_cannot_depend_on_a_tool_call_resource() -> None:
    context = of(
        Binding(Store, lambda resources: Store(resources.get(Clock).name)),
        Binding(Clock, lambda _: Clock(), scope=Scope.TOOL_CALL),
    )
    with (
        context,
        context.for_call() as resources,
        pytest.raises(ResourceError, match="Store → Clock: a resource of"),
    ):
        resources.get(Store)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"eager": True, "scope": Scope.TOOL_CALL},
            "the binding of Clock cannot have eager=True with Scope.TOOL_CALL",
        ),
        ({"eager": True, "scope": Scope.PROTOTYPE}, "use Scope.SINGLETON"),
    ],
)
def test_eager_binding_must_have_singleton_scope(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Binding(Clock, lambda _: Clock(), **how)


def test_scope_must_be_a_scope_member() -> None:
    word: Any = "tool_call"
    with pytest.raises(
        TypeError,
        match=r"the scope of the binding of Clock must be Scope\.SINGLETON, .*, got 'tool_call'",
    ):
        Binding(Clock, lambda _: Clock(), scope=word)


def test_binding_passed_as_a_value_is_rejected_with_a_fix() -> None:
    binding = Binding(Clock, lambda _: Clock())
    with pytest.raises(
        TypeError,
        match=r"value for Clock must not be a Binding; pass the binding to ResourceRegistry\.of",
    ):
        _ = ResourceRegistry() | {Clock: binding}


def test_provider_that_does_not_take_resources_is_rejected_when_bound() -> None:
    def no_argument() -> Clock:
        return Clock()

    provider: Any = no_argument
    with pytest.raises(ValueError, match="cannot call the provider of Clock with the resources"):
        Binding(Clock, provider)


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ([Clock()], r"resources must be \{Type: value\} or ResourceRegistry\.of\(.*, got \["),
        ({"clock": Clock()}, "a binding must be for a type, got 'clock'"),
        ({Clock: Clock(), 5: 5}, "a binding must be for a type, got 5"),
    ],
    ids=["list", "name", "number"],
)
def test_resources_must_map_types_to_values(resources: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        prompt().bind(resources=resources)


@pytest.mark.parametrize("make", [ResourceRegistry, ResourceRegistry.of])
def test_registry_accepts_only_bindings(make: Any) -> None:
    with pytest.raises(
        TypeError, match=r"got .*Clock.*; write ResourceRegistry\.of\(Binding\(Type, provider\)"
    ):
        make({Clock: lambda _: Clock()})


def test_type_can_be_bound_only_once_in_a_registry() -> None:
    with pytest.raises(ValueError, match="Clock is bound twice"):
        ResourceRegistry.of(Binding(Clock, lambda _: Clock()), Binding(Clock, lambda _: Clock()))


# --------------------------------------------------------------------------------------------------
# scopes


def test_prototype_is_created_for_each_get_and_closed_with_its_scope() -> None:
    closed: list[str] = []
    context = of(Binding(Clock, lambda _: Clock("clock", closed), scope=Scope.PROTOTYPE))
    with context:
        assert context.get(Clock) is not context.get(Clock)
        with context.for_call() as resources:
            assert resources.get(Clock) is not resources.get(Clock)
        assert closed == ["clock"] * 2
    assert closed == ["clock"] * 4


def test_prototype_created_in_a_rolled_back_transaction_is_closed() -> None:
    closed: list[str] = []
    context = of(Binding(Clock, lambda _: Clock("clock", closed), scope=Scope.PROTOTYPE))
    with context:
        context.get(Clock)
        with tool_transaction(Session(), context) as transaction:
            context.get(Clock)
            transaction.rollback()
        assert closed == ["clock"]


def test_tool_call_resource_is_shared_within_a_call_and_closed_after_it() -> None:
    closed: list[str] = []
    seen: list[Clock] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        first, second = context.resources.get(Clock), context.resources.get(Clock)
        assert (first is second, first.closed) == (True, [])
        assert context.resources.get(Store) is store[0]
        seen.append(first)
        return ToolResult("ok")

    store = [Store("store", closed)]
    registry = ResourceRegistry.of(
        Binding(Clock, lambda _: Clock(), scope=Scope.TOOL_CALL), Binding(Store, lambda _: store[0])
    )
    adapter = ScriptedAdapter([call(("probe", {}), ("probe", {})), say("done")])
    adapter.evaluate(prompt(tool(handler)).bind(resources=registry), session=Session())
    first, second = seen
    assert first is not second
    assert (first.closed, second.closed, closed) == (["thing"], ["thing"], ["store"])


def test_tool_call_resource_is_closed_before_the_commit() -> None:
    class Writer:
        def __init__(self, session: Session) -> None:
            self.session = session

        def close(self) -> None:
            self.session.dispatch("flushed")

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Writer)
        return ToolResult("ok", success=params.a == 1)

    session = Session()
    registry = ResourceRegistry.of(
        Binding(Writer, lambda _: Writer(session), scope=Scope.TOOL_CALL)
    )
    adapter = ScriptedAdapter([call(("probe", {"a": 0}), ("probe", {"a": 1})), say("done")])
    adapter.evaluate(prompt(tool(handler)).bind(resources=registry), session=session)
    assert session[str].all() == ("flushed",)


def test_interrupt_while_closing_tool_call_resources_rolls_back_the_call() -> None:
    class Interrupted:
        def close(self) -> None:
            raise KeyboardInterrupt

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch("dropped")
        context.resources.get(Interrupted)
        return ToolResult("ok")

    session = Session()
    registry = ResourceRegistry.of(
        Binding(Interrupted, lambda _: Interrupted(), scope=Scope.TOOL_CALL)
    )
    asked = prompt(tool(handler)).bind(resources=registry)
    with pytest.raises(KeyboardInterrupt):
        ScriptedAdapter([call(("probe", {}))]).evaluate(asked, session=session)
    assert session[str].all() == ()


def test_tool_call_resource_requires_a_tool_call() -> None:
    with (
        of(Binding(Clock, lambda _: Clock(), scope=Scope.TOOL_CALL)) as resources,
        pytest.raises(ResourceError, match="can only be requested inside a tool call"),
    ):
        resources.get(Clock)


def test_forked_context_returns_one_fork_and_keeps_the_original() -> None:
    with of(Binding(InMemoryFilesystem, lambda _: InMemoryFilesystem(), eager=True)) as context:
        files = context.get(InMemoryFilesystem)
        with context.fork() as forked:
            assert list(forked.forks) == []  # entering it requests nothing, nor does this:
            with forked:
                fork = forked.get(InMemoryFilesystem)
            assert fork is not files
            assert forked.get(InMemoryFilesystem) is fork
            assert context.get(InMemoryFilesystem) is files


def test_restorable_tool_call_resource_is_not_isolated() -> None:
    made = Binding(InMemoryFilesystem, lambda _: InMemoryFilesystem(), scope=Scope.TOOL_CALL)
    with of(made) as context, context.fork() as resources:
        with pytest.raises(NotIsolatedError, match="InMemoryFilesystem can be restored"):
            resources.get(InMemoryFilesystem)
        assert resources.refused


# --------------------------------------------------------------------------------------------------
# asynchronous


class Line:
    """An asynchronous resource."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name = name
        self.closed = closed

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed.append(self.name)


class Pool(Line):
    """An asynchronous resource that depends on a line."""


def lines(closed: list[str], **how: Any) -> ResourceContext:
    async def line(_: object) -> Line:
        await asyncio.sleep(0)
        return Line("line", closed)

    async def pool(resources: Any) -> Pool:
        resources.get(Line)
        await asyncio.sleep(0)
        return Pool("pool", closed)

    return of(
        Binding(Line, line, **how),
        Binding(Pool, pool, **how),
        Binding(Clock, lambda _: Clock("clock", closed)),
    )


def test_async_providers_run_on_entry_and_all_resources_close_in_reverse_order() -> None:
    closed: list[str] = []
    context = lines(closed)

    def use() -> None:
        assert context.get(Pool) is context.get(Pool)
        context.get(Clock)

    enter(context, asynchronous=True, inside=use)
    assert closed == ["clock", "pool", "line"]


def test_async_resource_that_is_not_owned_is_not_closed() -> None:
    closed: list[str] = []
    enter(lines(closed, owned=False), asynchronous=True)
    assert closed == []


def test_async_context_managers_are_entered_and_receive_the_error_of_the_block() -> None:
    seen: list[object] = []

    @asynccontextmanager
    async def opening() -> AsyncGenerator[str]:
        try:
            yield "entered"
        except KeyError as error:
            seen.append(type(error))
            raise

    async def provider(_: object) -> Any:
        return opening()

    context = of(Binding(Line, provider))

    def fail() -> None:
        seen.append(context.get(Line))
        raise KeyError

    with pytest.raises(KeyError):
        enter(context, asynchronous=True, inside=fail)
    assert seen == ["entered", KeyError]


class Closing:
    """A resource with a `close`, like a plain resource, and without `aclose`."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> object:
        self.closed = True
        return None


class ClosingLater(Closing):
    def close(self) -> object:
        async def later() -> None:
            await asyncio.sleep(0)
            self.closed = True

        return later()


class Both(Line):
    """An asynchronous context manager that also has a plain `close`."""

    async def __aenter__(self) -> Self:
        raise AssertionError("entered")

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("left")

    def close(self) -> None:
        raise AssertionError("closed without waiting")


def test_aclose_takes_precedence_over_context_manager_and_close() -> None:
    closed: list[str] = []

    async def both(_: object) -> Both:
        return Both("both", closed)

    enter(of(Binding(Both, both)), asynchronous=True)
    assert closed == ["both"]


@pytest.mark.parametrize("kind", [Closing, ClosingLater])
def test_async_resource_with_only_close_is_closed_by_it(
    kind: type[Closing],
) -> None:
    given = kind()

    async def provider(_: object) -> Closing:
        return given

    enter(of(Binding(Closing, provider)), asynchronous=True)
    assert given.closed


def test_sync_block_with_async_resource_raises_a_hint() -> None:
    with (
        lines([]) as resources,
        pytest.raises(ResourceError, match=r"async with prompt\.resources:"),
    ):
        resources.get(Line)


def test_coroutine_is_rejected_as_a_resource() -> None:
    async def line() -> Line:
        return Line("line", [])

    with (
        of(Binding(Line, lambda _: line())) as resources,
        pytest.raises(ResourceError, match="declare it with `async"),
    ):
        resources.get(Line)


def test_concurrent_entry_of_async_resources_raises_resource_error() -> None:
    closed: list[str] = []
    context = lines(closed)

    async def use() -> Line:
        async with context:
            return context.get(Line)

    async def both() -> tuple[Any, Any]:
        return await asyncio.gather(use(), use(), return_exceptions=True)

    first, second = asyncio.run(both())
    assert isinstance(first, Line)
    assert isinstance(second, ResourceError)
    assert "in one task at a time" in str(second)
    assert (closed, context.is_open) == (["pool", "line"], False)


def test_cancelled_entry_closes_the_resources_created_so_far() -> None:
    closed: list[str] = []

    async def forever(_: object) -> Pool:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def line(_: object) -> Line:
        return Line("line", closed)

    context = of(Binding(Line, line), Binding(Pool, forever))

    async def cancel() -> None:
        task = asyncio.create_task(context.__aenter__())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert (closed, context.is_open) == (["line"], False)


def test_async_resource_that_outlives_its_block_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[str] = []
    context = lines(closed)

    async def leave_too_early() -> None:
        async with context:
            context.__enter__()

    asyncio.run(leave_too_early())
    context.__exit__(None, None, None)
    assert (closed, context.is_open) == ([], False)
    assert "outlived its `async with`" in caplog.text


# --------------------------------------------------------------------------------------------------
# threads


def test_concurrent_threads_get_the_same_resource() -> None:
    together, made, got = Barrier(16), list[int](), list[Clock]()

    def clock(_: object) -> Clock:
        made.append(1)
        return Clock()

    with of(Binding(Clock, clock)) as resources:

        def ask() -> None:
            together.wait(TIMEOUT)
            got.append(resources.get(Clock))

        threads = [Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
    assert (len(made), len(got), len(set(map(id, got)))) == (1, 16, 1)


def test_close_can_wait_for_a_thread_that_requests_resources() -> None:
    """The lock is released while resources are closed; otherwise, the two would deadlock."""

    class Worker:
        def close(self) -> None:
            thread = Thread(target=ask)
            thread.start()
            thread.join(TIMEOUT)
            ended.append(not thread.is_alive())

    ended: list[bool] = []
    refused: list[str] = []

    def ask() -> None:
        try:
            context.get(Clock)
        except RuntimeError as error:
            refused.append(str(error))

    context = of(Binding(Worker, lambda _: Worker(), eager=True), Binding(Clock, lambda _: Clock()))
    with context:
        pass
    assert (ended, len(refused)) == ([True], 1)


# ------------------------------------------------------------------------------------- templates,
# sections, prompts


class Supplying(MarkdownSection[Args]):
    """A section with its own resource."""

    def __init__(self, key: str, registry: ResourceRegistry, **how: Any) -> None:
        super().__init__(title=key, key=key, template="Text.", **how)
        self.registry = registry

    def resources(self) -> ResourceRegistry:
        return self.registry


def names(name: str, *kinds: type[Thing]) -> ResourceRegistry:
    """Returns a registry that binds each of these types under one name."""

    def gives(kind: type[Thing]) -> Binding[Any]:
        return Binding(kind, lambda _: kind(name))

    return ResourceRegistry.of(*map(gives, kinds))


@pytest.mark.claim("PS-13")
def test_resource_precedence_is_bound_then_section_then_template() -> None:
    leaf = Supplying("leaf", names("leaf", Index))
    first = Supplying("first", names("first", Store, Index), children=[leaf])
    second = Supplying("second", names("second", Thing))
    template = PromptTemplate(
        ns="tests",
        key="merge",
        sections=[first, second],
        resources=names("template", Clock, Store, Index, Thing),
    )
    asked = template.bind()
    with asked.resources as resources:
        assert [resources.get(kind).name for kind in (Clock, Store, Index, Thing)] == [
            "template",
            "first",
            "leaf",
            "second",
        ]
    asked.bind(resources=names("bound", Index)).bind(resources={Clock: Clock("instance")})
    with asked.resources as resources:
        assert [resources.get(kind).name for kind in (Clock, Store, Index)] == [
            "instance",
            "first",
            "bound",
        ]
    with template.bind().resources as resources:
        assert resources.get(Clock).name == "template"


def test_invalid_resources_are_rejected_when_the_template_is_built() -> None:
    wrong: Any = {Clock: Clock()}
    with pytest.raises(PromptValidationError, match="resources"):
        PromptTemplate(ns="tests", key="wrong", sections=[Supplying("wrong", wrong)])
    with pytest.raises(
        PromptValidationError, match=r"must be a ResourceRegistry, such as ResourceRegistry\.of"
    ):
        PromptTemplate(ns="tests", key="wrong", resources=wrong)


def test_bind_while_resources_are_open_is_rejected_and_changes_nothing() -> None:
    asked = Prompt(
        PromptTemplate(
            ns="tests",
            key="open",
            sections=[MarkdownSection(title="T", key="t", template="$a", params_type=Args)],
        )
    ).bind(Args(1))
    with asked.resources, pytest.raises(RuntimeError, match="call bind before"):
        asked.bind(Args(2), resources={Clock: Clock()})
    assert asked.params[Args] == Args(1)


# --------------------------------------------------------------------------------------------------
# evaluations


@contextmanager
def opened(asked: Prompt[Any], closed: list[str]) -> Generator[None]:
    with asked.resources:
        yield
        assert closed == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_evaluation_opens_and_closes_resources_unless_already_open(
    asynchronous: bool,
) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.resources.get(Clock).name)

    def evaluate(asked: Prompt[Any]) -> None:
        adapter = ScriptedAdapter([call(("probe", {})), say("done")])
        if asynchronous:
            asyncio.run(adapter.evaluate_async(asked, session=Session()))
        else:
            adapter.evaluate(asked, session=Session())

    closed: list[str] = []
    asked = prompt(tool(handler)).bind(
        resources=ResourceRegistry.of(Binding(Clock, lambda _: Clock("c", closed)))
    )
    evaluate(asked)
    assert closed == ["c"]
    closed.clear()
    with opened(asked, closed):
        evaluate(asked)
        evaluate(asked)
    assert closed == ["c"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_main_loop_opens_resources_once_for_all_restarts(asynchronous: bool) -> None:
    made: list[Clock] = []

    def clock(_: object) -> Clock:
        made.append(Clock())
        return made[-1]

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        assert context.resources.get(Clock).closed == []
        return ToolResult("ok")

    inner = MarkdownSection(
        title="More",
        key="more",
        template="More.",
        summary="Little.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="deep")],
    )
    outer = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool(handler)])
    asked = Prompt(
        PromptTemplate(
            ns="tests",
            key="loop",
            sections=[outer, inner],
            resources=ResourceRegistry.of(Binding(Clock, clock)),
        )
    )
    script = [
        call(("probe", {})),
        call(("read_section", {"section_key": "more"})),
        call(("probe", {})),
        say("done"),
    ]
    loop = MainLoop(ScriptedAdapter(script, dynamic_tools=False))
    if asynchronous:
        execution = asyncio.run(loop.execute_async(asked, session=Session()))
    else:
        execution = loop.execute(asked, session=Session())
    assert execution.restarts == 1
    assert [clock.closed for clock in made] == [["thing"]]
