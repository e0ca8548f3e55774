"""One assertion that holds a tool to what the library promises of tools, for arguments that
hypothesis makes up.

Each call goes through the real executor, on a session and resources of its own. What a model may
send stands in `arguments`.
"""

import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .. import serde
from ..errors import ControlFlow, SerdeError
from ..evaluation.inner_loop import InnerLoopConfig
from ..evaluation.messages import ToolCall, ToolExecutionOutcome, sendable
from ..evaluation.tool_executor import CallIdentity, ToolExecutor
from ..filesystem import Filesystem
from ..prompt.context import Evaluator, ToolContext
from ..prompt.errors import ToolValidationError
from ..prompt.prompt import Prompt
from ..prompt.sections import MarkdownSection
from ..prompt.template import PromptTemplate
from ..prompt.tool import NON_REPEATABLE, Tool
from ..protocols import Snapshotable
from ..resources import Bindable, Scope, release
from ..runtime.events import Operation, ToolInvoked
from ..runtime.session import Session
from ..runtime.session.slices import read
from ..runtime.session.snapshots import SessionSnapshot
from .scripted import ScriptedAdapter

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["ToolContractError", "assert_tool_contract"]

__tracebackhide__ = True  # pytest shows the test and the handler, not what lies between

_MAX_SHOWN = 2_000
_REFUSE = "answer with success=False, raise ToolValidationError, or name the exception in raises="


class ToolContractError(AssertionError):
    """A tool breaks its contract: what it did, how to mend it, and the least arguments that show
    it.
    """


# Any below: prompts, tools, params and resources of every type pass through here.
def assert_tool_contract(
    tool: Tool[Any, Any],
    *,
    prompt: Callable[[], Prompt[Any]] | None = None,
    session: Callable[[], Session] = Session,
    resources: Callable[[], Bindable] = dict,
    adapter: Callable[[], Evaluator] = lambda: ScriptedAdapter(()),
    state: Mapping[Any, Callable[[Any], object]] = MappingProxyType({}),
    arguments: "SearchStrategy[Any] | Mapping[str, SearchStrategy[Any]] | None" = None,
    raises: type[Exception] | tuple[type[Exception], ...] = (),
    max_examples: int | None = None,
) -> None:
    """Calls `tool` with arguments that fit its schema, and with others beside them.

    `prompt`, `session`, `resources` and `adapter` make what the handler finds in its context, anew
    for each example. `state` has a function for each type of resource whose snapshots do not say
    what it holds: it takes the resource and returns a value to compare with later, such as a
    database's rows. `arguments` is a strategy of params or dicts that replaces the made-up ones, or
    one for each param that it names. `raises` names exceptions by which the handler refuses,
    besides `ToolValidationError`. `max_examples`, as well as all that is not given here, is that of
    the settings of hypothesis, but for a deadline, of which there is none. Raises
    `ToolContractError`, and `ValueError` when `state` names a type for which no singleton is bound.
    """
    try:
        from hypothesis import given, settings
    except ImportError as error:
        raise ImportError(
            "assert_tool_contract needs hypothesis: pip install 'weakincentives[testing]'"
        ) from error
    from .arguments import as_text, fitting, misfitting

    if tool.handler is None:
        raise ValueError(f"tool {tool.name!r} has no handler; check a tool that can be called")
    schema = serde.json_schema(tool.params_type)
    if "$ref" in schema:  # a type that holds itself
        schema = {**schema, **schema["$defs"][schema["$ref"].rpartition("/")[2]]}
        del schema["$ref"]
    section = MarkdownSection(title="Tool", template="Call it.", tools=[tool])
    bare: PromptTemplate[Any] = PromptTemplate(ns="testing", key="tool", sections=[section])
    contract = _Contract(tool, raises, prompt or bare.bind, session, resources, adapter, state)
    answers: list[str] = []

    def fits(arguments: str) -> None:
        answers.append(contract.check(arguments))

    def misfits(arguments: str) -> None:
        contract.check(arguments)

    fit = fitting(schema, arguments)
    # no tool promises to be quick
    limits = settings(report_multiple_bugs=False, print_blob=False, deadline=None)
    if max_examples is not None:
        limits = settings(limits, max_examples=max_examples)
    for test, given_ in ((fits, fit), (misfits, misfitting(fit, schema))):
        # the key under which hypothesis keeps examples that failed
        test.__name__ = f"{tool.name}_{test.__name__}"
        limits(given(given_.map(as_text))(test))()
    if answers and all(answers):
        what = f"none of the arguments that fit its schema was accepted, the last with {answers[-1]!r:.500}"
        raise contract.breach(
            what, "let the params type say all that it wants, or give a strategy as arguments="
        )


@dataclass(frozen=True, slots=True)
class _Spy:
    """A handler that keeps what it raised besides refusals."""

    handler: Callable[..., Any]
    raised: list[Exception] = field(default_factory=list[Exception])

    def __call__(self, params: Any, /, *, context: ToolContext) -> Any:
        with self.watching():
            result = self.handler(params, context=context)
        return self.later(result) if inspect.isawaitable(result) else result

    async def later(self, result: Awaitable[Any]) -> Any:
        with self.watching():
            return await result

    @contextmanager
    def watching(self) -> Generator[None]:
        try:
            yield
        except (ControlFlow, ToolValidationError):
            raise
        except Exception as error:
            self.raised.append(error)
            raise ToolValidationError from error  # undone and answered alike, but not logged


type _Seen = dict[tuple[str, Any], object]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A session and resources for the calls of one example."""

    prompt: Prompt[Any]
    session: Session
    parts: Mapping[Any, Callable[[], object]]  # what reads the state of each resource
    adapter: Evaluator

    def play(
        self, tool: Tool[Any, Any], text: str
    ) -> tuple[list[Exception], ToolInvoked, ToolExecutionOutcome | None]:
        """What the handler raised, the event that told of it and the outcome; none when control
        flow passed through.
        """
        assert tool.handler is not None  # noqa: S101 - else there is nothing to check
        spy = _Spy(tool.handler)
        told: list[Any] = []
        executor = ToolExecutor(
            prompt=self.prompt,
            rendered=replace(
                self.prompt.render(session=self.session), tools=(replace(tool, handler=spy),)
            ),
            adapter=self.adapter,
            config=InnerLoopConfig(supports_dynamic_tools=True),
            session=self.session,
            # reducers of telemetry would change the session on nobody's behalf
            publish=told.append,
            work=Operation(bus=self.session.bus, kind="evaluation", name=self.prompt.name),
        )
        outcome = None
        with suppress(ControlFlow):
            # the same key when the call is run again
            [outcome] = executor.execute([ToolCall("call_1", tool.name, text)], CallIdentity("1"))
        return spy.raised, told[-1], outcome

    def seen(self) -> _Seen:
        """What slices and resources hold, by copy: what changes in its place must show as well."""
        slices = self.session.snapshot().slices.items()
        state = {
            ("slice", of): held
            for of, head in slices
            if (held := [_copy(one) for one in read(head)])
        }
        return {**state, **{("resource", of): _copy(state()) for of, state in self.parts.items()}}


def _files(files: Filesystem) -> object:  # whose snapshots do not say what it holds
    return {
        one.path: files.read_bytes(one.path) if one.kind == "file" else one.kind
        for one in files.walk()
    }


def _captured(part: Snapshotable) -> object:
    """What a snapshot of `part` says about its state: nothing when two in a row differ, as names of
    savepoints do.
    """
    snapshots: list[Any] = []
    try:
        for _ in range(2):
            snapshots.append(part.snapshot())  # noqa: PERF401 - the first is released if the second fails
        first, second = map(_copy, snapshots)
        return first if first == second else None
    finally:
        for snapshot in reversed(snapshots):
            release(part, snapshot)


def _copy(value: Any) -> object:
    """A copy to compare with later, or the type alone where copies are not equal."""
    with suppress(Exception):  # of the author's own class
        if (copy := deepcopy(value)) == value:
            return copy
    return type(value)


@dataclass(frozen=True, slots=True)
class _Contract:
    tool: Tool[Any, Any]
    raises: type[Exception] | tuple[type[Exception], ...]
    prompt: Callable[[], Prompt[Any]]
    session: Callable[[], Session]
    resources: Callable[[], Bindable]
    adapter: Callable[[], Evaluator]
    state: Mapping[Any, Callable[[Any], object]]

    def breach(self, what: str, remedy: str, text: str | None = None) -> ToolContractError:
        cut = (
            ""
            if text is None
            else f"\narguments: {sendable(text[:_MAX_SHOWN])}{'…' * (len(text) > _MAX_SHOWN)}"
        )
        return ToolContractError(f"tool {self.tool.name!r}: {what}; {remedy}{cut}")

    @contextmanager
    def stage(self) -> Generator[_Stage]:
        prompt = self.prompt()
        with prompt.bind(resources=self.resources()).resources as opened:
            shared = [
                one.protocol for one in opened.registry.bindings if one.scope is Scope.SINGLETON
            ]
            if unknown := ", ".join(_name(kind) for kind in self.state if kind not in shared):
                bound = ", ".join(map(_name, shared)) or "nothing"
                raise ValueError(
                    f"state= names {unknown}, for which no singleton is bound; bound: {bound}"
                )
            parts = {
                kind: reader
                for kind in shared
                if (reader := self.reader(kind, opened.get(kind))) is not None
            }
            yield _Stage(prompt, self.session(), parts, self.adapter())

    def reader(self, kind: Any, part: Any) -> Callable[[], object] | None:
        """What reads the state of `part`."""
        if kind in self.state:
            return partial(self.state[kind], part)
        if Filesystem in type(part).__mro__:
            return partial(_files, part)
        return partial(_captured, part) if isinstance(part, Snapshotable) else None

    def check(self, text: str) -> str:
        """Plays `text` as the model's arguments; gives the answer if they were refused."""
        with self.stage() as stage:
            before, start = stage.seen(), stage.session.snapshot()
            raised, told, outcome = stage.play(self.tool, text)
            for error in raised:
                if not isinstance(error, self.raises):
                    raise self.breach(
                        f"its handler raised {error!r:.500}", _REFUSE, text
                    ) from error
            if outcome is None:  # control flow is no failure, and nothing is undone
                return ""
            answer = outcome.message.content
            if outcome.error not in {"", ToolValidationError.__name__}:
                remedy = "return a ToolResult whose value JSON can hold or renders itself, and let no undo fail"
                raise self.breach(f"what its handler returned cannot count: {answer}", remedy, text)
            if outcome.success:
                if (value := told.result.value) is not None and not _fits(
                    value, of := self.tool.result_type
                ):
                    remedy = f"let it be of the result type {of!r}, or declare another"
                    raise self.breach(f"its result has the value {value!r:.200}", remedy, text)
                self.check_effect(stage, told, before, start, text)
            elif changed := _changes(before, stage.seen()):
                remedy = "let restore() put back what snapshot() copied, and keep frozen what slices hold"
                raise self.breach(f"a failed call changed {changed}", remedy, text)
            return "" if told.params is not None else answer

    def check_effect(
        self, stage: _Stage, told: ToolInvoked, before: _Seen, start: SessionSnapshot, text: str
    ) -> None:
        """A pure call changes nothing, and no call changes resources again when it is run again as
        after a crash.
        """
        effect, after = self.tool.effect, stage.seen()
        if effect in NON_REPEATABLE:
            return
        if effect == "pure" and (changed := _changes(before, after)):
            raise self.breach(
                f"its effect is 'pure', yet it changed {changed}", "declare 'repeatable'", text
            )
        stage.session.restore(start)
        again = stage.play(self.tool, text)[1]
        if effect == "pure" and again.content != told.content:
            remedy = "answer by params and context alone, or declare 'repeatable'"
            raise self.breach(
                "its effect is 'pure', yet it answered the same call in two ways", remedy, text
            )
        if changed := _changes(after, stage.seen(), "resource"):
            remedy = (
                "declare 'at_most_once', or do nothing for a context.idempotency_key that is known"
            )
            raise self.breach(
                f"its effect is {effect!r}, yet the same call run again changed {changed}",
                remedy,
                text,
            )


def _changes(before: _Seen, after: _Seen, *of: str) -> str:
    """The names of what differs, by default of everything."""
    keys = [
        key
        for key in before | after
        if (not of or key[0] in of) and before.get(key) != after.get(key)
    ]
    return ", ".join(f"{what} {_name(kind)}" for what, kind in keys)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def _fits(value: object, of: Any) -> bool:
    try:
        return isinstance(value, of)
    except TypeError:  # a generic type, which JSON can tell, or one of which nobody can
        with suppress(SerdeError):
            data, _ = serde.dump(value), serde.json_schema(of)
            try:
                serde.parse(of, data)
            except SerdeError:
                return False
    return True
