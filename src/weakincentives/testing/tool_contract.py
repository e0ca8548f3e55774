"""Asserts that a tool keeps the contract of tools, for arguments that hypothesis generates.

The real executor runs each call, on a session and resources of its own. `arguments` has the
strategies.
"""

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .. import serde
from ..displays import cut
from ..errors import ControlFlow, SerdeError, missing_extra
from ..evaluation.effects import run
from ..evaluation.inner_loop import RunConfig
from ..evaluation.messages import ToolCall, ToolExecutionOutcome, sendable
from ..evaluation.run_log import RunLog
from ..evaluation.tool_executor import ToolExecutor, same_adapter
from ..filesystem import Filesystem
from ..prompt.context import AnyEvaluator, ToolContext
from ..prompt.errors import ToolValidationError
from ..prompt.handlers import AnyHandler
from ..prompt.sections import MarkdownSection
from ..prompt.template import AnyPrompt, PromptTemplate
from ..prompt.tool import NON_REPEATABLE, AnyTool
from ..protocols import Snapshotable
from ..resources import Bindable, Scope, release
from ..runtime.events import Operation, ToolInvoked
from ..runtime.session import Session
from ..runtime.session.slices import read
from ..runtime.session.snapshots import SessionSnapshot
from .scripted import ScriptedAdapter

if TYPE_CHECKING:  # an optional package
    from .arguments import AnyStrategy

__all__ = ["ToolContractError", "assert_tool_contract"]

__tracebackhide__ = True  # pytest shows the test and the handler, and skips this module

_MAX_SHOWN = 2_000
_REFUSE = "answer with success=False, raise ToolValidationError, or name the exception in raises="
_RETURN = "return a ToolResult with a value that is JSON or has render(), and let no restore() fail"
_RESTORE = "let restore() restore what snapshot() copied, and keep the values of slices frozen"
_KEY = "declare 'at_most_once', or do nothing if context.idempotency_key is known already"

# Any: resources with the types by which they are bound, handlers of every tool, and events
type _Any = Any
type _Kind = _Any
type _Reader = Callable[[_Kind], object]
type _StateReaders = Mapping[_Kind, _Reader]
type _Exceptions = type[Exception] | tuple[type[Exception], ...]
type _State = dict[tuple[str, _Kind], object]


class ToolContractError(AssertionError):
    """A tool breaks its contract; the message has the breach, the remedy and the arguments."""


def _silent_model() -> ScriptedAdapter:
    return ScriptedAdapter(())


def assert_tool_contract(
    tool: AnyTool,
    *,
    prompt: Callable[[], AnyPrompt] | None = None,
    session: Callable[[], Session] = Session,
    resources: Bindable | Callable[[], Bindable] = dict,
    adapter: Callable[[], AnyEvaluator] = _silent_model,
    state: _StateReaders = MappingProxyType({}),
    arguments: "AnyStrategy | Mapping[str, AnyStrategy] | None" = None,
    raises: _Exceptions = (),
    max_examples: int | None = None,
) -> None:
    """Calls `tool` with arguments that fit its schema, and with similar ones that do not.

    `prompt`, `session`, `resources` and `adapter` make the parts of the handler's context, anew for
    each example; `resources` may also be what `bind` takes, and then examples share the values of a
    mapping. `state` maps a type of resource whose snapshots do not show its state to a function,
    which takes the resource and returns a value to compare, such as a database's rows.
    `arguments` replaces the generated arguments: a strategy of params or dicts, or one for each
    param that it names. `raises` names exceptions by which the handler refuses, besides
    `ToolValidationError`. Hypothesis' own settings apply, except for its deadline, and
    `max_examples` replaces theirs. Raises `ToolContractError`, and `ValueError` when `state` names
    a type for which no singleton is bound.
    """
    try:
        from hypothesis import given, settings
    except ImportError as error:
        raise missing_extra("assert_tool_contract", "hypothesis", "testing") from error
    from .arguments import argument_strategies, to_json

    if tool.handler is None:
        raise ValueError(f"tool {tool.name!r} has no handler; check a tool that can be called")
    section = MarkdownSection(title="Tool", template="Call it.", tools=[tool])
    default = PromptTemplate(ns="testing", key="tool", sections=[section])
    contract = _Contract(tool, raises, prompt or default.bind, session, resources, adapter, state)
    refusals: list[str] = []

    def fits(arguments: str) -> None:
        refusals.append(contract.check(arguments))

    def misfits(arguments: str) -> None:
        contract.check(arguments)

    # no tool promises to be quick
    limits = settings(report_multiple_bugs=False, print_blob=False, deadline=None)
    if max_examples is not None:
        limits = settings(limits, max_examples=max_examples)
    strategies = argument_strategies(tool.params_schema(), arguments)
    for test, strategy in zip((fits, misfits), strategies, strict=True):
        # the key under which hypothesis stores failing examples
        test.__name__ = f"{tool.name}_{test.__name__}"
        limits(given(strategy.map(to_json))(test))()
    if refusals and all(refusals):
        raise contract.breach(
            "it accepted none of the arguments that fit its schema and answered the last with "
            f"{refusals[-1]!r:.500}",
            "let the params type state every constraint, or pass a strategy as arguments=",
        )


def _recording(handler: AnyHandler, errors: list[Exception]) -> AnyHandler:
    """Returns a handler that appends to `errors` what `handler` raises besides refusals."""

    @contextmanager
    def recorded() -> Generator[None]:
        try:
            yield
        except (ControlFlow, ToolValidationError):
            raise
        except Exception as error:
            errors.append(error)
            raise ToolValidationError from error  # rolled back and answered alike, but not logged

    async def await_result(result: Awaitable[object]) -> object:
        with recorded():
            return await result

    def call(params: object, /, *, context: ToolContext) -> object:
        with recorded():
            result = handler(params, context=context)
        return await_result(result) if inspect.isawaitable(result) else result

    return call


@dataclass(frozen=True, slots=True)
class _Trial:
    """The session and the resources of one example."""

    tool: AnyTool
    arguments: str
    prompt: AnyPrompt
    session: Session
    adapter: AnyEvaluator
    readers: Mapping[_Kind, Callable[[], object]]  # of the state of each resource

    def call(self) -> tuple[list[Exception], ToolInvoked, ToolExecutionOutcome | None]:
        """Returns the handler's errors, the event and the outcome; `None` after control flow."""
        assert self.tool.handler is not None  # `assert_tool_contract` refuses it
        errors: list[Exception] = []
        events: list[_Any] = []
        recording = replace(self.tool, handler=_recording(self.tool.handler, errors))
        executor = ToolExecutor(
            prompt=self.prompt,
            rendered=replace(self.prompt.render(session=self.session), tools=(recording,)),
            adapter=same_adapter(self.adapter),
            config=RunConfig(supports_dynamic_tools=True),
            session=self.session,
            # reducers of telemetry would change the session though the tool does not
            publish=events.append,
            operation=Operation(bus=self.session.bus, kind="evaluation", name=self.prompt.name),
            log=RunLog("1"),  # the same idempotency key when the call runs again
        )
        call, outcome = ToolCall("call_1", self.tool.name, self.arguments), None
        with suppress(ControlFlow):
            outcome = run(executor.execute(call))
        return errors, events[-1], outcome

    def state(self) -> _State:
        """Copies the contents of slices and resources, so that changes in place show as well."""
        state: _State = {("resource", kind): _copy(read()) for kind, read in self.readers.items()}
        for kind, head in self.session.snapshot().slices.items():
            if values := [_copy(value) for value in read(head)]:
                state["slice", kind] = values
        return state


@dataclass(frozen=True, slots=True)
class _Contract:
    tool: AnyTool
    raises: _Exceptions
    prompt: Callable[[], AnyPrompt]
    session: Callable[[], Session]
    resources: Bindable | Callable[[], Bindable]
    adapter: Callable[[], AnyEvaluator]
    state: _StateReaders

    def check(self, arguments: str) -> str:
        """Calls the tool with the model's `arguments`; returns the answer if they are refused."""
        with self.trial(arguments) as trial:
            before, snapshot = trial.state(), trial.session.snapshot()
            errors, event, outcome = trial.call()
            for error in errors:
                if not isinstance(error, self.raises):
                    problem = f"its handler raised {error!r:.500}"
                    raise self.breach(problem, _REFUSE, arguments) from error
            if outcome is None:  # control flow is no failure, and is not rolled back
                return ""
            for problem, remedy in self.breaches(trial, before, snapshot, event, outcome):
                raise self.breach(problem, remedy, arguments)
            return outcome.message.content if event.params is None else ""

    def breaches(
        self,
        trial: _Trial,
        before: _State,
        snapshot: SessionSnapshot,
        event: ToolInvoked,
        outcome: ToolExecutionOutcome,
    ) -> Iterator[tuple[str, str]]:
        """Yields problems and their remedies; it repeats a successful call to find them."""
        after, effect, kind = trial.state(), self.tool.effect, self.tool.result_type
        changes, value = _changes(before, after), event.result.value
        if outcome.error not in {"", ToolValidationError.__name__}:
            yield f"the result of its handler is not valid: {outcome.message.content}", _RETURN
        if not outcome.success:
            if changes:
                yield f"a failed call changed {changes}", _RESTORE
            return
        if value is not None and not _is_instance(value, kind):
            remedy = f"let it be of the result type {kind!r}, or declare another"
            yield f"its result has the value {value!r:.200}", remedy
        if effect in NON_REPEATABLE:
            return
        if effect == "pure" and changes:
            yield f"its effect is 'pure', yet it changed {changes}", "declare 'repeatable'"
        # after a crash the session is as before, and the call runs again
        trial.session.restore(snapshot)
        _, again, _ = trial.call()
        if effect == "pure" and again.content != event.content:
            problem = "its effect is 'pure', yet it answered the same call in two ways"
            yield problem, "answer by params and context alone, or declare 'repeatable'"
        if changes := _changes(after, trial.state(), "resource"):
            yield f"its effect is {effect!r}, yet the same call run again changed {changes}", _KEY

    def breach(self, problem: str, remedy: str, arguments: str | None = None) -> ToolContractError:
        message = f"tool {self.tool.name!r}: {problem}; {remedy}"
        if arguments is not None:
            message += f"\narguments: {sendable(cut(arguments, _MAX_SHOWN, counted=False))}"
        return ToolContractError(message)

    @contextmanager
    def trial(self, arguments: str) -> Generator[_Trial]:
        prompt = self.prompt()
        values = self.resources() if callable(self.resources) else self.resources
        with prompt.bind(resources=values).resources as resources:
            bindings = resources.registry.bindings
            kinds = [item.protocol for item in bindings if item.scope is Scope.SINGLETON]
            if unknown := ", ".join(_name(kind) for kind in self.state if kind not in kinds):
                names = ", ".join(map(_name, kinds)) or "nothing"
                raise ValueError(
                    f"state= must name bound singletons, got {unknown}; bound: {names}"
                )
            readers: dict[_Kind, Callable[[], object]] = {}
            for kind in kinds:
                resource = resources.get(kind)
                if read_state := self.state.get(kind) or _default_reader(resource):
                    readers[kind] = partial(read_state, resource)
            session, adapter = self.session(), self.adapter()
            yield _Trial(self.tool, arguments, prompt, session, adapter, readers)


def _default_reader(resource: object) -> _Reader | None:
    if Filesystem in type(resource).__mro__:
        return _read_files
    return _read_snapshot if isinstance(resource, Snapshotable) else None


def _read_files(filesystem: Filesystem) -> object:  # whose snapshots do not show its state
    return {
        entry.path: filesystem.read_bytes(entry.path) if entry.kind == "file" else entry.kind
        for entry in filesystem.walk()
    }


def _read_snapshot(resource: Snapshotable) -> object:
    """Returns the state that a snapshot shows; `None` when two differ, as savepoints do."""
    snapshots: tuple[object, ...] = ()
    try:
        for _ in range(2):
            snapshots += (resource.snapshot(),)  # the first is released if the second fails
        first, second = map(_copy, snapshots)
        return first if first == second else None
    finally:
        for snapshot in reversed(snapshots):
            release(resource, snapshot)


def _copy(value: object) -> object:
    """Returns a copy to compare with later, or only the type where copies are not equal."""
    with suppress(Exception):  # of the author's own class
        if (copy := deepcopy(value)) == value:
            return copy
    return type(value)


def _changes(before: _State, after: _State, *sorts: str) -> str:
    """Names the differences, by default of slices and resources."""
    keys = [
        (sort, kind)
        for sort, kind in before | after
        if (not sorts or sort in sorts) and before.get((sort, kind)) != after.get((sort, kind))
    ]
    return ", ".join(f"{sort} {_name(kind)}" for sort, kind in keys)


def _name(kind: _Kind) -> str:
    return getattr(kind, "__name__", str(kind))


def _is_instance(value: object, kind: _Kind) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a generic type, which JSON can check, or a type that nothing can check
        with suppress(SerdeError):
            data, _ = serde.dump(value), serde.json_schema(kind)
            try:
                serde.parse(kind, data)
            except SerdeError:
                return False
    return True
