"""Several workers on one PostgreSQL: one is killed, one freezes and wakes up, the server goes away; no run is lost."""

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

from support.durable_lives import AT_MOST_ONCE, Lineage, Postgres, begin, check, dbos, end, postgres_server
from support.durable_runs import Facts, Job
from weakincentives.contrib.durable.takeover import Takeover

AT_ONCE = 4  # runs in one worker
SILENT = 2.0  # seconds after which a worker counts as frozen


def slow(place: str) -> None:
    if place == "in tool":
        time.sleep(0.02)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server with few databases: after a crash it looks through them all."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def lineage(postgres: Postgres, tmp_path: Path) -> Lineage:
    return Lineage(postgres.database(), tmp_path, hook=slow)


def worker(lineage: Lineage, executor_id: str) -> None:
    """Runs what is queued until there is a file named `over`."""
    own = replace(lineage, facts_name=executor_id)
    own.open(executor_id)
    with Takeover(lineage.url, executor_id, every=0.3, silent=SILENT):
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
    logging.getLogger("weakincentives.contrib.durable.takeover").addHandler(Full())
    worker(lineage, executor_id)


def client(lineage: Lineage, run_ids: list[str]) -> None:
    """Queues the runs and writes down their results; runs none itself."""
    own = replace(lineage, facts_name="client")
    runs = own.open("client")
    dbos.DBOS.listen_queues(["none"])
    own.launch()
    for run in [runs.start("agent", Job(run_id), run_id=run_id, queue="work") for run_id in run_ids]:
        own.keep(run)


@contextmanager
def processes(lineage: Lineage, run_ids: list[str], workers: list[str]) -> Generator[tuple[int, dict[str, int]]]:
    begun = {
        name: begin(partial(clumsy if name == "clumsy" else worker, lineage, name), lineage.folder / f"{name}.log")
        for name in workers
    }
    asking = begin(partial(client, lineage, run_ids), lineage.folder / "client.log")
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


def done_by(lineage: Lineage, *workers: str) -> Counter[str]:
    """How many effects each of the workers had."""
    return Counter({name: len(Facts(lineage.folder / name).read()) for name in workers})


def gather(lineage: Lineage, *workers: str) -> None:
    """Puts the facts of all workers together."""
    lineage.facts.path.write_text("".join((lineage.folder / name).read_text() for name in workers))


def test_a_hundred_runs_survive_a_frozen_worker_and_a_killed_one(lineage: Lineage) -> None:
    run_ids = [f"run-{number}" for number in range(100)]
    with processes(lineage, run_ids, ["a", "b"]) as (asking, pids):
        wait_until(lambda: min(done_by(lineage, "a", "b").values()) > 100)  # they share the work
        os.kill(pids["b"], signal.SIGSTOP)
        frozen = done_by(lineage, "b")
        wait_until(lambda: "Taking over" in (lineage.folder / "a.log").read_text())
        wait_until(lambda: done_by(lineage, "a", "b").total() > 800)
        assert done_by(lineage, "b") == frozen
        os.kill(pids["b"], signal.SIGCONT)
        wait_until(lambda: done_by(lineage, "b")["b"] > frozen["b"] + 50)
        os.kill(pids["a"], signal.SIGKILL)
        assert end(asking) == 0, (lineage.folder / "client.log").read_text()
        assert "Taking over" in (lineage.folder / "b.log").read_text()
        gather(lineage, "a", "b")
        assert sum(check(lineage, run_id) for run_id in run_ids) <= 2 * AT_ONCE
        keys = Counter(words[2] for words in lineage.facts.read() if words[0] == "tool" and words[1] in AT_MOST_ONCE)
        assert max(keys.values()) == 1


def test_postgres_may_stop_and_start_while_runs_go_on(lineage: Lineage, postgres: Postgres) -> None:
    run_ids = [f"run-{number}" for number in range(30)]
    with processes(lineage, run_ids, ["a"]) as (asking, _):
        wait_until(lambda: done_by(lineage, "a").total() > 100)
        postgres.stop()
        time.sleep(2)
        before = done_by(lineage, "a").total()
        postgres.start()
        assert end(asking) == 0, (lineage.folder / "client.log").read_text()
        assert before < done_by(lineage, "a").total()
        gather(lineage, "a")
        assert sum(check(lineage, run_id) for run_id in run_ids) == 0


def test_a_takeover_that_fails_is_made_at_the_next_look_and_leaves_no_lock_behind(lineage: Lineage) -> None:
    with processes(lineage, [f"run-{number}" for number in range(8)], ["clumsy", "b"]) as (asking, pids):
        wait_until(lambda: done_by(lineage, "b")["b"] > 5)
        os.kill(pids["b"], signal.SIGKILL)
        assert end(asking) == 0, (lineage.folder / "client.log").read_text()
        assert "no room" in (lineage.folder / "clumsy.log").read_text()
        with Takeover(lineage.url, "b", every=0.3):
            pass


def test_two_workers_of_one_id_are_refused(lineage: Lineage) -> None:
    with (
        Takeover(lineage.url, "a", every=0.1),
        pytest.raises(RuntimeError, match="another worker of executor_id 'a' is alive"),
    ):
        Takeover(lineage.url, "a", every=0.1)
    with Takeover(lineage.url, "a", every=0.1):
        pass
