"""L3: a failed call leaves state and resources unchanged; L10 for both together."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.agents import answers, prompt
from support.files import OPERATIONS, Do, Tree, filesystem, tree
from support.programs import (
    FAILURES,
    STATE,
    Cell,
    ForkableCell,
    LazyCell,
    Plain,
    Program,
    World,
    programs,
    run,
    session,
)
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.resources import Binding, ResourceContext, ResourceRegistry
from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import create_snapshot, restore_snapshot
from weakincentives.testing.scripted import ScriptedAdapter, call, say

ISOLATED = RunConfig(parallel_tool_calls="isolated")


@dataclass(frozen=True)
class Which:
    number: int = 0


def evaluate(
    handle: Callable[[int, ToolContext], ToolResult[object]],
    count: int,
    at: Session,
    resources: ResourceRegistry,
    *,
    asynchronous: bool,
    config: RunConfig,
) -> object:
    """Returns the answers to `count` calls in one turn, or the type of error that ended the run."""

    def handler(params: Which, *, context: ToolContext) -> ToolResult[object]:
        return handle(params.number, context)

    async def handler_async(params: Which, *, context: ToolContext) -> ToolResult[object]:
        await asyncio.sleep(0)
        return handle(params.number, context)

    run = Tool[Any, Any](
        name="run",
        handler=handler_async if asynchronous else handler,
        params_type=Which,
        result_type=object,
    )
    asked = prompt(run).bind(resources=resources)
    script = [call(*[("run", Which(number)) for number in range(count)]), say("done")]
    adapter = ScriptedAdapter(script, config=config)
    try:
        if asynchronous:
            response = asyncio.run(adapter.evaluate_async(asked, session=at))
        else:
            response = adapter.evaluate(asked, session=at)
    except BaseException as error:
        return type(error)
    return [(answer.content, answer.success) for answer in answers(response.transcript)]


hows = {"asynchronous": st.booleans(), "config": st.sampled_from([RunConfig(), ISOLATED])}


# ---------------------------------------------------------------------------------------------
# L3: a failing call leaves no trace


@pytest.mark.claim("TL-41")
@settings(max_examples=150)
@given(good=programs([None]), bad=programs([False, *FAILURES]), **hows)
def test_failed_call_leaves_everything_as_the_previous_call_did(
    good: Program, bad: Program, **options: Any
) -> None:
    def after(*calls: Program) -> tuple[object, ...]:
        world, at = World(), session()
        evaluate(
            lambda number, context: run(calls[number], context),
            len(calls),
            at,
            world.registry(),
            **options,
        )
        return [at[kind].all() for kind in STATE], world.numbers()

    expected = after(good)
    both = after(good, bad)
    # Changes by reducers of published telemetry, and of the calls themselves, do not come from the
    # handler.
    assert both == expected


@pytest.mark.parametrize("sort", ["memory", "host"])
@pytest.mark.parametrize("bound", ["lazy", "eager", "instance"])
def test_failed_call_restores_files_even_if_it_used_them_first(sort: str, bound: str) -> None:
    @settings(max_examples=25)
    @given(
        ending=st.sampled_from([False, *FAILURES]), done=st.lists(OPERATIONS, max_size=6), **hows
    )
    def law(ending: Any, done: list[Do], **options: Any) -> None:
        with filesystem(sort, {"a": b"kept", "b/a": b"kept as well"}) as files:
            before = tree(files)
            registry = ResourceRegistry.of(
                Binding.instance(Filesystem, files)
                if bound == "instance"
                else Binding(Filesystem, lambda _: files, eager=bound == "eager", owned=False)
            )

            def handle(number: int, context: ToolContext) -> ToolResult[object]:
                for step in done:
                    step.on(context.resources.get(Filesystem))
                return run(Program((), ending), context)

            evaluate(handle, 2, Session(), registry, **options)
            assert tree(files) == before

    law()


@pytest.mark.parametrize("sort", ["memory", "host"])
def test_parallel_calls_on_one_filesystem_match_sequential_calls(sort: str) -> None:
    step = OPERATIONS | st.sampled_from([Do("list", "."), Do("read", "a"), Do("read", "b/a")])
    one_call = st.tuples(
        st.lists(step, max_size=4), st.sampled_from([None, None, None, False, ValueError])
    )

    @settings(max_examples=40)
    @given(calls=st.lists(one_call, min_size=2, max_size=3), asynchronous=st.booleans())
    def law(calls: list[tuple[list[Do], Any]], *, asynchronous: bool) -> None:
        def after(config: RunConfig) -> tuple[object, Tree]:
            with filesystem(sort, {"a": b"1", "b/a": b"2"}) as files:

                def handle(number: int, context: ToolContext) -> ToolResult[object]:
                    done, ending = calls[number]
                    seen = [looked(step, context.resources.get(Filesystem)) for step in done]
                    if isinstance(ending, type):
                        raise ending(repr(seen))
                    return ToolResult(repr(seen), success=ending is None)

                registry = ResourceRegistry() | {Filesystem: files}
                outcome = evaluate(
                    handle,
                    len(calls),
                    Session(),
                    registry,
                    asynchronous=asynchronous,
                    config=config,
                )
                return outcome, tree(files)

        assert after(ISOLATED) == after(RunConfig())

    law()


def looked(step: Do, files: Filesystem) -> object:
    """Returns the result of an operation, or of a look at the files."""
    try:
        match step.what:
            case "list":
                return [entry.path for entry in files.list(step.path)]
            case "read":
                return files.read_bytes(step.path)
            case _:
                return step.on(files)
    except OSError as error:
        return type(error)


# ---------------------------------------------------------------------------------------------
# L10: a slice equals its list


class StateAndResourcesGoBackTogether(RuleBasedStateMachine):
    """Compares appends, first uses, changes, snapshots and restores, newest first, with full
    copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world, self.session = World(), Session()
        self.context = ResourceContext(self.world.registry())
        self.context.__enter__()
        self.model: tuple[list[Plain], dict[str, list[int]]] = ([], self.world.numbers())
        self.taken: list[tuple[Any, tuple[list[Plain], dict[str, list[int]]]]] = []

    def copied(self) -> tuple[list[Plain], dict[str, list[int]]]:
        state, numbers = self.model
        return list(state), {name: list(values) for name, values in numbers.items()}

    @rule(number=st.integers(0, 9))
    def append(self, number: int) -> None:
        self.session.dispatch(Plain(number))
        self.model[0].append(Plain(number))

    @rule(kind=st.sampled_from([Cell, ForkableCell, LazyCell]), number=st.integers(0, 9))
    def change(self, kind: type[Cell], number: int) -> None:
        self.context.get(kind).add(number)
        self.model[1][kind.__name__].append(number)

    @rule()
    def snapshot(self) -> None:
        self.taken.append((create_snapshot(self.session, self.context), self.copied()))

    @precondition(lambda self: bool(self.taken))
    @rule(back=st.integers(0, 3))
    def restore(self, back: int) -> None:
        del self.taken[max(1, len(self.taken) - back) :]
        captured, self.model = self.taken[-1]
        restore_snapshot(captured)
        self.model = self.copied()

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        assert (list(self.session[Plain].all()), self.world.numbers()) == self.model

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)


TestStateAndResourcesGoBackTogether = StateAndResourcesGoBackTogether.TestCase
TestStateAndResourcesGoBackTogether.settings = settings(max_examples=40, stateful_step_count=25)
