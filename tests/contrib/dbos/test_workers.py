"""Several workers on one PostgreSQL: one is killed, one freezes and wakes up, the server goes away;
no run is lost.
"""

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from support.durable_lives import (
    AT_MOST_ONCE,
    Lineage,
    Postgres,
    begin,
    check,
    dbos,
    end,
    postgres_server,
)
from support.durable_runs import STORY, Facts, Job, calls
from weakincentives.contrib.durable.executor_lock import lock_executor, release
from weakincentives.contrib.durable.failover import WorkerFailover

AT_ONCE = 4  # runs in one worker
SILENT = 3.0  # seconds after which a worker counts as frozen
SHORT = (calls(("note", '{"a": 1}'), ("send", '{"a": 3}')), STORY[-1])


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server with few databases: after a crash it looks through them all."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def lineage(postgres: Postgres, tmp_path: Path) -> Lineage:
    return Lineage(postgres.database(), tmp_path)


def worker(lineage: Lineage, executor_id: str) -> None:
    """Runs what is queued until there is a file named `over`."""

    def hook(place: str) -> None:
        """Makes a tool slow, and obeys a request of `stop_in_tool` in the middle of it."""
        if place != "in tool":
            return
        time.sleep(0.02)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            with suppress(FileNotFoundError):
                (lineage.folder / f"{executor_id}.{number.name}").unlink()
                os.kill(os.getpid(), number)

    own = replace(lineage, facts_name=executor_id, hook=hook)
    own.open(executor_id)
    with WorkerFailover(lineage.url, executor_id, every=0.3, silent=SILENT):
        own.launch()
        dbos.DBOS.register_queue("work", worker_concurrency=AT_ONCE, polling_interval_sec=0.1)
        while not (lineage.folder / "over").exists():
            time.sleep(0.05)


class Full(logging.Handler):
    """A log that has no room for the first takeover."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "Taking over runs":
            logging.getLogger(record.name).removeHandler(self)
            raise OSError("no room")


def clumsy(lineage: Lineage, executor_id: str) -> None:
    """A worker whose first takeover fails."""
    logging.getLogger("weakincentives.contrib.durable.failover").addHandler(Full())
    worker(lineage, executor_id)


def client(lineage: Lineage, *batches: list[str]) -> None:
    """Queues a batch of runs and writes down their results, each further one once there is a file
    `batch`.
    """
    own = replace(lineage, facts_name="client")
    runs = own.open("client")
    dbos.DBOS.listen_queues(["none"])
    own.launch()
    for number, batch in enumerate(batches):
        while number and not (lineage.folder / "batch").exists():
            time.sleep(0.05)
        for run in [
            runs.start("agent", Job(run_id), run_id=run_id, queue="work") for run_id in batch
        ]:
            own.keep(run)


def begin_worker(lineage: Lineage, name: str) -> int:
    """Starts a worker process and returns its id."""
    run = clumsy if name == "clumsy" else worker
    return begin(partial(run, lineage, name), lineage.folder / f"{name}.log")


@contextmanager
def processes(
    lineage: Lineage, workers: list[str], *batches: list[str]
) -> Generator[tuple[int, dict[str, int]]]:
    begun = {name: begin_worker(lineage, name) for name in workers}
    asking = begin(partial(client, lineage, *batches), lineage.folder / "client.log")
    try:
        yield asking, begun
    finally:
        (lineage.folder / "over").touch()
        for pid in begun.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        for pid in (asking, *begun.values()):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                end(pid)


def wait_until(what: Callable[[], bool], seconds: float = 60) -> None:
    over = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < over, "it did not happen"
        time.sleep(0.02)


def stop_in_tool(lineage: Lineage, name: str, pid: int, number: signal.Signals) -> None:
    """Freezes or kills a worker in the middle of a tool call, so that it has begun a run."""
    (lineage.folder / f"{name}.{number.name}").touch()
    states: list[int] = []

    def stopped() -> bool:
        found, state = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        states.append(state)
        return found == pid

    wait_until(stopped)
    assert number in (os.WSTOPSIG(states[-1]), os.WTERMSIG(states[-1]))


def finish(lineage: Lineage, asking: int, run_ids: list[str]) -> None:
    """Waits until all runs are over and the client has ended well."""
    wait_until(lambda: lineage.done(run_ids), 180)
    assert end(asking) == 0, (lineage.folder / "client.log").read_text()


def done_by(lineage: Lineage, *workers: str) -> Counter[str]:
    """How many effects each of the workers had."""
    return Counter({name: len(Facts(lineage.folder / name).read()) for name in workers})


def gather(lineage: Lineage, *workers: str) -> None:
    """Puts the facts of all workers together."""
    lineage.facts.path.write_text("".join((lineage.folder / name).read_text() for name in workers))


def test_a_hundred_runs_survive_a_frozen_worker_and_a_killed_one(lineage: Lineage) -> None:
    lineage = replace(lineage, story=SHORT)
    run_ids = [f"run-{number}" for number in range(100)]
    with processes(lineage, ["a", "b"], run_ids[:50], run_ids[50:]) as (asking, pids):
        wait_until(lambda: min(done_by(lineage, "a", "b").values()) > 20)  # they share the work
        stop_in_tool(lineage, "b", pids["b"], signal.SIGSTOP)
        frozen = done_by(lineage, "b")
        wait_until(lambda: "Taking over" in (lineage.folder / "a.log").read_text())
        wait_until(lambda: lineage.done(run_ids[:50]))
        assert done_by(lineage, "b") == frozen
        os.kill(pids["b"], signal.SIGCONT)
        (lineage.folder / "batch").touch()
        stop_in_tool(lineage, "a", pids["a"], signal.SIGKILL)
        finish(lineage, asking, run_ids)
        assert done_by(lineage, "b") > frozen
        assert "Taking over" in (lineage.folder / "b.log").read_text()
        gather(lineage, "a", "b")
        assert 0 < sum(check(lineage, run_id) for run_id in run_ids) <= 2 * AT_ONCE
        keys = Counter(
            words[2]
            for words in lineage.facts.read()
            if words[0] == "tool" and words[1] in AT_MOST_ONCE
        )
        assert max(keys.values()) == 1


def test_postgres_may_stop_and_start_while_runs_go_on(lineage: Lineage, postgres: Postgres) -> None:
    run_ids = [f"run-{number}" for number in range(30)]
    with processes(lineage, ["a"], run_ids) as (asking, _):
        wait_until(lambda: done_by(lineage, "a").total() > 100)
        postgres.stop()
        time.sleep(2)
        before = done_by(lineage, "a").total()
        postgres.start()
        finish(lineage, asking, run_ids)
        assert before < done_by(lineage, "a").total()
        gather(lineage, "a")
        assert sum(check(lineage, run_id) for run_id in run_ids) == 0


def test_a_takeover_that_fails_is_made_at_the_next_look_and_leaves_no_lock_behind(
    lineage: Lineage,
) -> None:
    run_ids = [f"run-{number}" for number in range(8)]
    with processes(lineage, ["b"], run_ids) as (asking, pids):
        stop_in_tool(lineage, "b", pids["b"], signal.SIGKILL)
        # now, or it could do all runs before b begins
        pids["clumsy"] = begin_worker(lineage, "clumsy")
        finish(lineage, asking, run_ids)
        assert "no room" in (lineage.folder / "clumsy.log").read_text()
        with WorkerFailover(lineage.url, "b", every=0.3):
            pass


def test_two_workers_of_one_id_are_refused(lineage: Lineage) -> None:
    with (
        WorkerFailover(lineage.url, "a", every=0.1),
        pytest.raises(RuntimeError, match="another worker of executor_id 'a' is alive"),
    ):
        WorkerFailover(lineage.url, "a", every=0.1)
    with WorkerFailover(lineage.url, "a", every=0.1):
        pass


def test_a_takeover_goes_on_with_the_lock_of_its_own_process(lineage: Lineage) -> None:
    lock_executor(lineage.url, "a")
    with WorkerFailover(lineage.url, "a", every=0.1):
        lock_executor(lineage.url, "a")
        with pytest.raises(RuntimeError, match="another worker of executor_id 'a' is alive"):
            WorkerFailover(lineage.url, "a", every=0.1)
    lock_executor(lineage.url, "a")
    release(lineage.url, "a")
