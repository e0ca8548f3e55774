"""Cancelled and deleted runs: whatever a run is doing at that moment, it starts nothing new."""

import os
import signal
import time
from dataclasses import replace

import pytest

from support.durable_kills import PARALLEL, everything, payments
from support.durable_processes import (
    Kill,
    NewRunStore,
    RunStore,
    Work,
    dbos,
    engine_room,
    freezing,
    kill_me,
    read_log,
    run_in_process,
    sqlalchemy,
    start_process,
    tell_engine_places,
    until,
    wait_for_freeze,
    wait_for_process,
    with_runs,
)
from support.durable_runs import Job, kind_of
from weakincentives.contrib.durable import DurableRuns


def check_cancelled(runs: DurableRuns) -> None:
    run = runs.find("agent", "run")
    with pytest.raises(dbos.error.DBOSAwaitedWorkflowCancelledError):
        run.result()
    assert (run.status, runs.waiting()) == ("ended", [])


def canceller(store: RunStore) -> Work:
    """Returns the work of another process, which does not serve a queue."""

    def work() -> None:
        runs = store.open("client")
        dbos.DBOS.listen_queues(["none"])
        store.launch()
        runs.cancel("run")
        store.facts.add("cancelled")
        check_cancelled(runs)

    return work


@pytest.mark.parametrize("place", ["in tool", "in provider"])
def test_cancelled_run_ends_before_its_next_entry(new_store: NewRunStore, place: str) -> None:
    store, opened = new_store(), list[DurableRuns]()

    def cancel(passed: str) -> None:
        if passed == place:
            opened[0].cancel("run")

    def work() -> None:
        opened.append(replace(store, hook=cancel).open())
        store.launch()
        opened[0].start("agent", Job("it"), run_id="run")
        check_cancelled(opened[0])

    run_in_process(store, work)
    effects = [words[:2] for words in store.facts.read() if words[0] != "launched"]
    assert effects == [["provider", "it"], ["tool", "note"]][: 2 if place == "in tool" else 1]
    assert [kind_of(row) for row, _ in read_log(store)] == (
        ["rendered", "answered"] if place == "in tool" else []
    )


def test_parallel_nested_runs_end_when_another_process_cancels_the_run(
    new_store: NewRunStore,
) -> None:
    store = replace(new_store(), story=PARALLEL, helps=True, parallel=True)

    def hold(place: str) -> None:
        """Keeps all requests, and calls in nested runs, open until the run is cancelled."""
        if place == "in provider" and len(store.facts.read()) > 2:
            until(lambda: ["cancelled"] in store.facts.read())

    def work() -> None:
        runs = replace(store, hook=hold).open()
        store.launch()
        runs.start("agent", Job("run"), run_id="run")
        check_cancelled(runs)
        until(lambda: "was cancelled during execution" in store.log.read_text())

    worker = start_process(work, store.log)
    until(
        lambda: len(store.facts.read()) == 6
    )  # a request and a call, and those of three nested runs
    run_in_process(store, canceller(store))
    assert wait_for_process(worker) == 0, store.log.read_text()
    facts = store.facts.read()
    assert facts[-1] == ["cancelled"]


# --- Runs that wait


@pytest.mark.parametrize("name", ["run_id", "wait_id"])
def test_suspended_run_can_be_cancelled_by_run_id_or_wait_id(new: NewRunStore, name: str) -> None:
    store = new()

    def use(runs: DurableRuns) -> None:
        runs.start("agent", Job("run"), run_id="run")
        [waiting] = until(runs.waiting)
        runs.cancel(getattr(waiting, name))
        check_cancelled(runs)
        with pytest.raises(ValueError, match="has already been decided"):
            runs.decide(waiting.wait_id, everything(waiting))

    with_runs(store, use)
    assert payments(store) == []


def test_resumed_run_can_be_cancelled(new: NewRunStore) -> None:
    store, opened = new(), list[DurableRuns]()

    def cancel(place: str) -> None:
        if place == "in tool" and payments(store):
            opened[0].cancel("run")

    def work() -> None:
        opened.append(replace(store, hook=cancel).open())
        store.launch()
        opened[0].start("agent", Job("run"), run_id="run")
        [waiting] = until(opened[0].waiting)
        opened[0].decide(waiting.wait_id, everything(waiting))
        check_cancelled(opened[0])

    run_in_process(store, work)
    assert payments(store) == ["2"]
    assert [kind_of(row) for row, _ in read_log(store, "run:wait-1")] == ["began"]


def check_cancelled_while_it_ends(store: RunStore, place: str, passed: int) -> None:
    """Cancels a run at the moment when it is about to be suspended."""
    frozen = replace(store, hook=Kill(place, passed, freezing(store)))

    def work() -> None:
        runs = frozen.open()
        store.launch()
        tell_engine_places(runs, frozen.hook)
        runs.start("agent", Job("run"), run_id="run")
        check_cancelled(runs)

    worker = start_process(work, store.log)
    wait_for_freeze(worker, store)
    try:
        run_in_process(store, canceller(store))
    finally:
        os.kill(worker, signal.SIGCONT)
        code = wait_for_process(worker)
    assert code == 0, store.log.read_text()
    run_in_process(store, canceller(store))  # cancelling again changes nothing
    assert payments(store) == []


# What is stored: 0 start and answer, note, pay is asked, the row of the suspended run.
def test_run_can_be_cancelled_while_it_suspends(new: NewRunStore) -> None:
    places = [("after commit", 1), ("after commit", 2), ("after commit", 3)]
    if not new().url.startswith("sqlite"):  # where a writer locks the whole file
        places += [("before insert", 3), ("before commit", 3)]
    for place, passed in places:
        check_cancelled_while_it_ends(new(), place, passed)


def test_run_that_suspends_during_its_cancellation_is_cancelled(
    new: NewRunStore,
) -> None:
    store = new()

    def hold(place: str) -> None:
        if place == "in tool":
            until(lambda: ["cancelling"] in store.facts.read())

    def work() -> None:
        runs = replace(store, hook=hold).open()
        store.launch()

        def before(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
            if "INSERT INTO weakincentives_runs" in statement:
                store.facts.add("cancelling")
                until(runs.waiting)

        runs.start("agent", Job("run"), run_id="run")
        until(lambda: "note" in str(store.facts.read()))
        sqlalchemy.event.listen(runs.table.engine, "before_cursor_execute", before)
        runs.cancel("run")
        check_cancelled(runs)

    run_in_process(store, work)
    assert payments(store) == []


# --- A cancellation that is cut


def test_interrupted_cancellation_takes_effect_in_the_next_process(
    new_store: NewRunStore,
) -> None:
    store = new_store()

    def die_in_tool(place: str) -> None:
        if place == "in tool":
            runs.append(None)
            until(lambda: len(runs) == 3)

    runs: list[object] = []

    def die() -> None:
        opened = replace(store, hook=die_in_tool).open()
        store.launch()
        engine = engine_room._get_dbos_instance()._sys_db.engine

        def before(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
            if statement.startswith("UPDATE") and len(runs) == 2:
                kill_me()

        sqlalchemy.event.listen(engine, "before_cursor_execute", before)
        opened.start("agent", Job("it"), run_id="run")
        until(lambda: len(runs) == 1)
        runs.append(None)
        opened.cancel("run")

    assert wait_for_process(start_process(die, store.log)) == -signal.SIGKILL
    facts = store.facts.read()

    def work() -> None:
        opened = store.open()
        store.launch()
        check_cancelled(opened)

    run_in_process(store, work)
    assert store.facts.read() == [*facts, ["launched"]]


def test_cancelled_workflow_that_is_resumed_ends_as_cancelled(new_store: NewRunStore) -> None:
    store = new_store()

    def work() -> None:
        runs = replace(store, hook=lambda place: time.sleep(0.05)).open()
        store.launch()
        runs.start("agent", Job("it"), run_id="run")
        until(lambda: len(store.facts.read()) > 3)
        runs.cancel("run")
        dbos.DBOS.resume_workflow("run")
        check_cancelled(runs)

    run_in_process(store, work)


# --- Deleted runs


def test_deleted_run_leaves_no_rows_and_frees_its_id(new: NewRunStore) -> None:
    store = new()

    def use(runs: DurableRuns) -> None:
        for _ in range(2):
            run = runs.start("agent", Job("run"), run_id="run")
            for _ in range(3):
                [waiting] = until(runs.waiting)
                runs.decide(waiting.wait_id, everything(waiting))
            store.keep(run)
            runs.delete(["run"])
            assert dbos.DBOS.list_workflows() == []
            with runs.table.engine.begin() as connection:
                for table in ("weakincentives_runs", "weakincentives_log"):
                    rows = connection.execute(sqlalchemy.text(f"SELECT * FROM {table}"))  # noqa: S608
                    assert rows.all() == []

    with_runs(store, use)
    assert payments(store) == ["2", "4"] * 2
