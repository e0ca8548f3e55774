"""Runs on DBOS from start to end: results, sessions, failures, logs, and the cost of an entry."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from support.agents import Note
from support.durable_processes import (
    NewRunStore,
    RunStore,
    dbos,
    kill_me,
    read_log,
    run_in_process,
    start_process,
    wait_for_process,
    with_runs,
)
from support.durable_runs import STORY, Amount, Answer, Facts, Job, agent, calls
from weakincentives.contrib.durable import (
    DurableRuns,
    MemoryLogTable,
    execute_run,
    install,
    to_input,
)
from weakincentives.evaluation.errors import BudgetExceededError, DeadlineExceededError
from weakincentives.evaluation.messages import ToolMessage
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session


def discard(_: object) -> None:
    """Discards the value, so that a lambda can return `None`."""


def test_run_returns_its_execution_and_its_session(new_store: NewRunStore) -> None:
    def use(runs: DurableRuns) -> None:
        before = Session()
        before.dispatch(Note("from before"))
        run = runs.start("agent", Job("it"), session=before)
        execution = run.result()
        assert (execution.output, execution.restarts, execution.response.turns) == (
            Answer(12),
            0,
            6,
        )
        assert [note.text for note in run.session()[Note]] == ["from before", "sent 3"]
        again = runs.find("agent", run.run_id)
        assert again.result() == execution

    with_runs(new_store(), use)


def test_run_that_exceeds_a_limit_raises_and_keeps_its_session(
    new_store: NewRunStore,
) -> None:
    def use(runs: DurableRuns) -> None:
        run = runs.start("agent", Job("it"), budget=Budget(max_calls=1))
        with pytest.raises(BudgetExceededError, match="max_calls=1"):
            run.result()
        assert [note.text for note in run.session()[Note]] == ["noted 1", "sent 3"]
        late = runs.start("agent", Job("it"), deadline=Deadline.after(timedelta(seconds=-1)))
        with pytest.raises(DeadlineExceededError):
            late.result()

    with_runs(new_store(), use)


def test_stored_rows_replay_a_run_without_requests_or_calls(new_store: NewRunStore) -> None:
    store = new_store()
    run_in_process(store, store.work())
    table = MemoryLogTable()
    table.rows["run"] = [row for row, _ in read_log(store)]
    nowhere = agent(
        Facts(Path("/nonexistent/facts"))
    )  # where requests and calls cannot be recorded
    assert execute_run(nowhere, to_input(Job("run")), table, "run") == store.result()


def test_dbos_step_of_a_tool_is_not_recorded_as_a_step_of_its_run(new_store: NewRunStore) -> None:
    """Steps have numbers, so the next process would mistake one call's step for another's."""
    store, passed = new_store(), list[int]()
    story = [*[calls(("square", f'{{"a": {a}}}')) for a in (2, 3)], STORY[-1]]

    def work(kills: int) -> Callable[[], None]:
        def multiply(a: int) -> int:
            passed.append(a)
            if len(passed) == kills:
                kill_me()
            return a * a

        def square(params: Amount, *, context: ToolContext) -> ToolResult[object]:
            value = dbos.DBOS.run_step({"name": "multiply"}, multiply, params.a)
            return ToolResult(f"It is {value}.")

        def run() -> None:
            tool = Tool(name="square", handler=square, effect="repeatable")
            runs = install({"agent": agent(store.facts, story=story, extra=[tool])})
            dbos.DBOS(config=runs.config("tests", store.url))
            dbos.DBOS.launch()
            conversation = runs.start("agent", Job("run"), run_id="run").result().conversation
            assert conversation is not None
            answers = [it for it in conversation.messages if isinstance(it, ToolMessage)]
            assert [it.content for it in answers] == ["It is 4.", "It is 9."]
            assert dbos.DBOS.list_workflow_steps("run") == []

        return run

    assert wait_for_process(start_process(work(2), store.log)) == -signal.SIGKILL
    run_in_process(store, work(0))


def with_runs_of_another_version(store: RunStore, use: Callable[[DurableRuns], None]) -> None:
    def work() -> None:
        new_agent = agent(store.facts, extra=[Tool(name="new", handler=None, params_type=Job)])
        runs = install({"agent": new_agent})
        dbos.DBOS(config=runs.config("tests", store.url))
        dbos.DBOS.launch()
        use(runs)

    run_in_process(store, work)


def test_process_of_another_version_does_not_take_a_run(new_store: NewRunStore) -> None:
    """This relies on DBOS, where a run waits for a process of its `application_version`."""
    store = new_store()
    slow = replace(store, hook=lambda place: time.sleep(60) if place == "in tool" else None)
    with_runs(slow, lambda runs: discard(runs.start("agent", Job("it"), run_id="run")))
    begun = len(store.facts.read())

    def look(runs: DurableRuns) -> None:
        run = runs.find("agent", "run")
        assert runs.start("agent", Job("it"), run_id="run").run_id == run.run_id
        (store.folder / "version").write_text(runs.version)
        time.sleep(1.5)

    with_runs_of_another_version(store, look)
    version = (store.folder / "version").read_text()
    warning = (
        r"Run 'run' is waiting for a process of version (\w+), but this one has version (\w+): keep"
    )
    warnings = re.findall(warning, store.log.read_text())
    assert len(warnings) == 2
    assert {this for _, this in warnings} == {version}
    assert version not in {wanted for wanted, _ in warnings}
    assert len(store.facts.read()) <= begun + 1
    run_in_process(store, store.work())
    assert store.result()["output"] == {"total": 12}

    def find(runs: DurableRuns) -> None:
        assert runs.find("agent", "run").result().output == Answer(12)

    with_runs_of_another_version(store, find)
    assert re.findall(warning, store.log.read_text()) == warnings  # a finished run needs none


def test_second_live_process_with_the_same_executor_id_is_rejected(new_store: NewRunStore) -> None:
    store = new_store()

    def serve() -> None:
        runs = store.open("slot-1")
        # asking twice does not start a second process
        assert runs.config("tests", store.url, executor_id="slot-1")
        store.launch()
        signal.pause()

    first = start_process(serve, store.log)
    try:
        while not store.facts.read():
            time.sleep(0.01)
        assert (
            wait_for_process(start_process(lambda: discard(store.open("slot-1")), store.log)) != 0
        )
        assert "another process that is alive has executor_id 'slot-1'" in store.log.read_text()
        run_in_process(store, lambda: discard(store.open("slot-2")))
    finally:
        os.kill(first, signal.SIGKILL)
        wait_for_process(first)
    run_in_process(store, lambda: discard(store.open("slot-1")))


def test_orphaned_child_does_not_keep_the_executor_id_in_sqlite(
    tmp_path: Path,
) -> None:
    store = RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path)

    def parent() -> None:
        store.open("slot-1")
        (tmp_path / "child").write_text(str(start_process(signal.pause, store.log)))

    run_in_process(store, parent)
    try:
        run_in_process(store, lambda: discard(store.open("slot-1")))
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_transactional_tool_requires_a_datasource(tmp_path: Path) -> None:
    book = Tool(
        name="book", handler=None, params_type=Job, result_type=object, effect="transactional"
    )
    with pytest.raises(
        ValueError,
        match="tool 'book' of agent 'agent' is transactional and requires a database; pass",
    ):
        install({"agent": agent(Facts(tmp_path), extra=[book])})


# --- Costs


def test_cost_of_a_step_is_independent_of_conversation_length(new_store: NewRunStore) -> None:
    store = new_store()
    seconds = dict[int, float]()
    for turns in (24, 96):
        story = [*[calls(("look", "{}"))] * turns, STORY[-1]]
        plan = replace(store, story=story)

        def use(runs: DurableRuns, steps: int = 2 * turns + 2) -> None:
            took: list[float] = []
            for _ in range(4):  # the best one counts, because polling threads take time, too
                started = time.process_time()
                runs.start("agent", Job("it")).result()
                took.append((time.process_time() - started) / steps)
            (store.folder / "seconds").write_text(json.dumps(min(took)))

        with_runs(plan, use)
        seconds[turns] = json.loads((store.folder / "seconds").read_text())
    assert seconds[96] <= (0.01 if store.url.startswith("sqlite") else 0.02)
    # if the cost grew with the conversation, it would be 4
    assert seconds[96] <= 2 * seconds[24]


@pytest.mark.parametrize(
    ("run_id", "problem"),
    [
        ("run:wait-1", "such ids belong to suspended runs"),
        ("run:wait-2:waiting", "such ids belong to suspended runs"),
        ("a\0b", "the id has unprintable characters"),
    ],
)
def test_start_rejects_a_reserved_or_unprintable_run_id(
    new_store: NewRunStore, run_id: str, problem: str
) -> None:
    def use(runs: DurableRuns) -> None:
        with pytest.raises(ValueError, match=problem):
            runs.start("agent", Job("it"), run_id=run_id)

    with_runs(new_store(), use)


def test_find_and_start_reject_the_id_of_another_agent_or_workflow(tmp_path: Path) -> None:
    store = RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path)

    def work() -> None:
        @dbos.DBOS.workflow()  # type: ignore[untyped-decorator]  # DBOS is not installed here
        def count() -> int:
            return 1

        made = agent(store.facts)
        runs = install({"agent": made, "other": made})
        dbos.DBOS(config=runs.config("tests", store.url))
        dbos.DBOS.launch()
        runs.start("agent", Job("it"), run_id="run").result()
        with dbos.SetWorkflowID("count"):
            dbos.DBOS.start_workflow(count).get_result()
        for find in (runs.find, lambda name, run_id: runs.start(name, Job("it"), run_id=run_id)):
            with pytest.raises(
                ValueError, match="run 'run' belongs to agent 'agent', not to 'other'"
            ):
                find("other", "run")
            with pytest.raises(ValueError, match="the database has no run with this id"):
                find("agent", "count")

    run_in_process(store, work)


def test_handle_of_a_deleted_run_raises_value_error(new_store: NewRunStore) -> None:
    def use(runs: DurableRuns) -> None:
        run = runs.start("agent", Job("it"), run_id="run")
        run.result()
        runs.delete(["run"])
        for read in (run.result, run.session, lambda: run.status):
            with pytest.raises(ValueError, match="the database has no run with this id"):
                read()

    with_runs(new_store(), use)


@pytest.mark.parametrize("stop", [SystemExit("no"), KeyboardInterrupt("no"), GeneratorExit("no")])
def test_run_ends_when_a_handler_raises_an_exit(tmp_path: Path, stop: BaseException) -> None:
    store = RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path)

    def leave(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        raise stop

    def work() -> None:
        story = [calls(("leave", '{"a": 1}')), STORY[-1]]
        made = agent(store.facts, story=story, extra=[Tool(name="leave", handler=leave)])
        runs = install({"agent": made})
        dbos.DBOS(config=runs.config("tests", store.url))
        dbos.DBOS.launch()
        run = runs.start("agent", Job("it"), run_id="run")
        with pytest.raises(
            Exception, match=f"a handler of run 'run' raised {type(stop).__name__}: no"
        ):
            run.result()
        assert run.status == "ended"

    run_in_process(store, work)
