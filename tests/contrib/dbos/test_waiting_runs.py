"""Suspended runs occupy no worker, survive every kill, and resume once."""

import json
import random
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.agents import Note
from support.durable_kills import Story, everything, kill_often, payments, together
from support.durable_processes import (
    Kill,
    NewRunStore,
    RunStore,
    Work,
    dbos,
    kill_me,
    run_in_process,
    serving,
    start_process,
    until,
    wait_for_process,
    with_runs,
)
from support.durable_runs import PAID, Facts, Job, Json, agent, asking
from support.sizes import todays
from weakincentives.contrib.durable import (
    DurableRuns,
    MemoryLogTable,
    WaitingRuns,
    execute_run,
    install,
    open_waiting_runs,
    to_input,
    to_resumed,
)
from weakincentives.evaluation.approval import Approve, Decision, Deny
from weakincentives.evaluation.suspension import Suspension


def decider(store: RunStore, run_ids: Sequence[str] = ("run",)) -> Work:
    """Returns the work of a process without workers that approves all calls until the runs end."""

    def work() -> None:
        until(lambda: ["launched"] in store.facts.read())  # so the database has its tables
        with open_waiting_runs(store.url) as runs:
            until(lambda: approve_all(runs) or store.done(run_ids) or over())
        store.facts.add("approved")

    def approve_all(runs: WaitingRuns) -> bool:
        for waiting in runs.waiting():
            runs.decide(waiting.wait_id, everything(waiting))
        return False

    def over() -> bool:
        return ["over"] in store.facts.read()

    return work


def notes(store: RunStore, run_id: str = "run") -> list[str]:
    slices: Json = json.loads(store.result(run_id)["session"])["slices"]
    return [item["text"] for item in slices["support.agents:Note"]]


@cache
def whole(run_id: str = "run") -> Json:
    """Returns the result of an undisturbed run."""
    with TemporaryDirectory() as folder:
        facts = Facts(Path(folder) / "facts")
        made = agent(facts, story=PAID, extra=asking(facts))
        run_input, table = to_input(Job(run_id)), MemoryLogTable()
        result = execute_run(made, run_input, table, run_id)
        while "suspension" in result:
            pending = Suspension.from_json(result["suspension"]).pending
            decisions = {preview.call_id: Approve() for preview in pending}
            run_input = to_resumed(run_input, result, decisions)
            result = execute_run(made, run_input, table, f"{run_id}:wait-{result['waits']}")
        return json.loads(json.dumps(result))


def test_run_is_suspended_twice_and_ends(new: NewRunStore) -> None:
    store = new()

    def use(runs: DurableRuns) -> None:
        run = runs.start("agent", Job("it"), run_id="run")
        [first] = until(runs.waiting)
        assert (first.run_id, first.agent, run.status) == ("run", "agent", "waiting")
        assert [preview.tool for preview in first.pending] == ["pay", "draft"]
        assert "drafted 3" in str(first.pending[1])
        assert payments(store) == []
        runs.decide(first.wait_id, {"c1": Approve(), "c2": Deny("not that")})
        [second] = until(runs.waiting)
        assert payments(store) == ["2"]
        assert second.wait_id != first.wait_id
        assert [preview.arguments for preview in second.pending] == ['{"a": 4}']
        runs.decide(second.wait_id, everything(second))
        store.keep(run)
        assert (run.status, runs.waiting()) == ("ended", [])
        assert runs.find("agent", "run").result() == run.result()
        assert runs.start("agent", Job("it"), run_id="run").result() == run.result()
        assert [note.text for note in run.session()[Note]] == notes(store)

    with_runs(store, use)
    assert notes(store) == ["noted 1", "paid 2", "paid 4"]


def test_listed_suspended_run_has_the_status_waiting(new: NewRunStore) -> None:
    store, run_ids = new(), [f"run-{number}" for number in range(10)]

    def use(runs: DurableRuns) -> None:
        for number, run_id in enumerate(run_ids, 1):
            run = runs.start("agent", Job(run_id), run_id=run_id)
            while len(runs.waiting()) < number:  # without a pause: the workflow is still running
                pass
            assert run.status == "waiting"

    with_runs(store, use)


def test_suspended_run_occupies_no_worker_and_outlives_all_of_them(new: NewRunStore) -> None:
    store, run_ids = new(), ["run", "another"]

    def use(runs: DurableRuns) -> None:
        dbos.DBOS.register_queue("jobs", worker_concurrency=1, polling_interval_sec=0.05)
        started = [
            runs.start("agent", Job(run_id), run_id=run_id, queue="jobs") for run_id in run_ids
        ]
        # although a worker takes one run at a time, none of these is left to it unfinished
        until(lambda: {run.status for run in started} == {"waiting"})
        assert len(runs.waiting()) == len(run_ids)
        kill_me()

    assert wait_for_process(start_process(serving(store, use), store.log)) == -signal.SIGKILL
    facts = store.facts.read()

    def decide_all() -> None:
        with open_waiting_runs(store.url) as runs:
            for waiting in runs.waiting():
                runs.decide(waiting.wait_id, everything(waiting))
            assert runs.waiting() == []  # without any worker

    run_in_process(store, decide_all)
    assert store.facts.read() == facts

    def go_on() -> None:
        runs = store.open("another-worker")
        store.launch()
        started = [runs.find("agent", run_id) for run_id in run_ids]
        for run in started:
            store.keep(run)

    deciding = start_process(decider(store, run_ids), store.log)
    run_in_process(store, go_on)
    assert wait_for_process(deciding) == 0, store.log.read_text()
    assert store.result() == whole()
    assert [payments(store, run_id) for run_id in run_ids] == [["2", "4"]] * 2


def test_run_stays_suspended_if_its_decision_cannot_be_stored(new: NewRunStore) -> None:
    store = new()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    def use(runs: DurableRuns) -> None:
        runs.start("agent", Job("run"), run_id="run")
        [waiting] = until(runs.waiting)
        full = type("Full", (dbos.DBOS,), {"enqueue_workflow_with_options": fail})
        with pytest.raises(OSError, match="disk full"):
            WaitingRuns(full).decide(waiting.wait_id, everything(waiting))
        assert runs.waiting() == [waiting]

    with_runs(store, use)


@pytest.mark.claim("N-13")
def test_only_one_of_several_concurrent_decisions_is_accepted(new: NewRunStore) -> None:
    store = new()

    def start(runs: DurableRuns) -> None:
        runs.start("agent", Job("run"), run_id="run")
        until(runs.waiting)

    with_runs(store, start)

    def decide(decision: Decision) -> Work:
        def work() -> None:
            with open_waiting_runs(store.url) as runs:
                [waiting] = runs.waiting()
                store.facts.add("ready")
                until(lambda: store.facts.read().count(["ready"]) == 4)
                try:
                    runs.decide(waiting.wait_id, everything(waiting, decision))
                except ValueError as error:
                    assert "has already been decided" in str(error)  # noqa: PT017 - in a process
                    store.facts.add("refused")
                else:
                    store.facts.add("decided", type(decision).__name__)
                with pytest.raises(ValueError, match="has already been decided"):
                    runs.decide(waiting.wait_id, everything(waiting, decision))
                assert runs.waiting() == []

        return work

    decisions: list[Decision] = [Approve(), Deny(), Approve(), Deny()]
    processes = [start_process(decide(decision), store.log) for decision in decisions]
    assert [wait_for_process(process) for process in processes] == [0] * 4, store.log.read_text()
    facts = store.facts.read()
    assert facts.count(["refused"]) == 3
    [[_, kind]] = [words for words in facts if words[0] == "decided"]
    deciding = start_process(decider(store), store.log)
    run_in_process(store, store.work())
    assert wait_for_process(deciding) == 0
    assert payments(store) == (["2", "4"] if kind == "Approve" else ["4"])


def test_decision_takes_effect_if_its_process_is_killed_between_writes(new: NewRunStore) -> None:
    store = new()

    def die(runs: DurableRuns) -> None:
        runs.start("agent", Job("run"), run_id="run")
        [waiting] = until(runs.waiting)
        # killed before the row of the suspended run is deleted
        dying = type("Dying", (dbos.DBOS,), {"cancel_workflow": lambda _: kill_me()})
        WaitingRuns(dying).decide(waiting.wait_id, everything(waiting))

    assert wait_for_process(start_process(serving(store, die), store.log)) == -signal.SIGKILL

    def look() -> None:
        with open_waiting_runs(store.url) as runs:
            assert runs.waiting() == []
            with pytest.raises(ValueError, match="has already been decided"):
                runs.decide("run:wait-1", {})
            with pytest.raises(ValueError, match="no run was suspended as 'run:wait-7'"):
                runs.decide("run:wait-7", {})

    run_in_process(store, look)
    deciding = start_process(decider(store), store.log)
    run_in_process(store, store.work())
    assert wait_for_process(deciding) == 0
    check_paid(store)  # the process may have begun to pay before it died


def check_paid(store: RunStore, run_id: str = "run") -> bool:
    """Checks that nothing is paid twice and that the run ends correctly; returns whether all
    outcomes are known.

    The model does not know the outcome of a payment during which the worker was killed.
    """
    paid, result = payments(store, run_id), store.result(run_id)
    assert len(paid) == len(set(paid))
    if "outcome is unknown" not in result["conversation"]:
        assert (paid, result) == (["2", "4"], whole(run_id))
        return True
    assert result["text"] == whole()["text"]
    others = [text for text in notes(store, run_id) if "paid" not in text]
    assert others == ["noted 1", "drafted 3"]
    return False


def kill_at(store: RunStore, place: str, passed: int, *, known: bool) -> Story:
    start_process(decider(store), store.log)
    code = yield start_process(replace(store, hook=Kill(place, passed)).work(), store.log)
    assert code == -signal.SIGKILL, store.log.read_text()
    code = yield start_process(store.work(), store.log)
    assert code == 0, store.log.read_text()
    until(lambda: ["approved"] in store.facts.read())
    assert check_paid(store) is known


# What is stored: 0 start and answer, note, pay is asked, waiting; 4 pay began, pay 2, draft is
# asked again, since its diff has another line now, waiting; 8 draft, answer, pay is asked, waiting;
# 12 pay began, pay 4, answer.
KILLS = [
    *[("after commit", passed, passed not in (4, 12)) for passed in range(15)],
    *[("before commit", passed, True) for passed in (2, 3, 7, 11)],  # asked, and the waiting rows
    ("before insert", 12, True),
    *[("in tool", passed, True) for passed in (1, 3, 4)],  # of `draft`, twice for its preview
    *[("before commit", passed, False) for passed in (5, 13)],
    ("in tool", 2, False),
]


def test_run_with_suspensions_is_finished_wherever_it_is_killed(new: NewRunStore) -> None:
    together(kill_at(new(), place, passed, known=known) for place, passed, known in todays(KILLS))


def killed_at_random(store: RunStore, kills: int, chance: random.Random) -> Story:
    run_ids = [f"run-{number}" for number in range(kills * 2)]
    start_process(decider(store, run_ids), store.log)
    started = yield from kill_often(store, run_ids, kills, chance)
    store.facts.add("over")
    known = [check_paid(store, run_id) for run_id in started]
    assert known.count(False) <= kills
    until(lambda: ["approved"] in store.facts.read())


def test_random_kills_lose_no_run_and_pay_nothing_twice(new: NewRunStore) -> None:
    chances = [random.Random(seed) for seed in range(2)]  # noqa: S311 - not a secret
    together(killed_at_random(new(), 5, chance) for chance in chances)


def test_progress_receives_the_run_id_after_a_resume(tmp_path: Path) -> None:
    store = RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path)
    heard: list[str] = []

    def work() -> None:
        made = agent(store.facts, story=PAID, extra=asking(store.facts))
        runs = install({"agent": made}, progress=lambda run_id, _: heard.append(run_id))
        dbos.DBOS(config=runs.config("tests", store.url))
        dbos.DBOS.launch()
        run = runs.start("agent", Job("it"), run_id="run")
        while run.status != "ended":
            for waiting in runs.waiting():
                runs.decide(waiting.wait_id, everything(waiting))
        assert {*heard} == {"run"}
        with pytest.raises(ValueError, match="'run:wait-1' because it is a part of run 'run'"):
            runs.log("run:wait-1")

    run_in_process(store, work)


@pytest.mark.parametrize("text", ['{"version": 3}', "{}", "no JSON"])
def test_unreadable_suspended_run_does_not_hide_others(tmp_path: Path, text: str) -> None:
    store = RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path, story=PAID, asks=True)

    def use(runs: DurableRuns) -> None:
        runs.start("agent", Job("it"), run_id="good")
        runs.start("agent", Job("it"), run_id="odd")
        until(lambda: len(runs.waiting()) > 1)
        with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
            row = "SELECT inputs FROM workflow_input WHERE workflow_uuid = 'odd:wait-1:waiting'"
            [inputs] = file.execute(row).fetchone()
            stored: Json = json.loads(inputs)
            stored["positionalArgs"][2]["suspension"] = text
            change = row.replace("SELECT inputs FROM", "UPDATE").replace(
                "WHERE", "SET inputs = ? WHERE"
            )
            file.execute(change, (json.dumps(stored),))
        shown = {waiting.run_id: waiting for waiting in runs.waiting()}
        assert (shown["odd"].suspension, shown["odd"].pending) == (None, ())
        assert [run.status for run in runs.list_runs()] == ["waiting", "waiting"]
        with pytest.raises(ValueError, match="this version cannot read the run"):
            runs.decide(shown["odd"].wait_id, {})
        runs.cancel("odd")
        assert [run.status for run in runs.list_runs(run_ids=["odd"])] == ["cancelled"]
        runs.delete(["odd"])
        assert [waiting.run_id for waiting in runs.waiting()] == ["good"]

    with_runs(store, use)
