"""Several workers with one PostgreSQL server: one is killed, one freezes and wakes up, the server
stops; no run is lost.
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

from support.durable_processes import (
    AT_MOST_ONCE,
    Extra,
    Postgres,
    RunStore,
    check,
    dbos,
    engine_room,
    make_books,
    postgres_server,
    read_books,
    sqlalchemy,
    start_process,
    until,
    wait_for_process,
)
from support.durable_runs import STORY, Facts, Job, calls
from weakincentives.contrib.durable.failover import WorkerFailover, lock_executor, release

AT_ONCE = 4  # runs in one worker
SILENT = 6.0  # seconds after which a worker is considered frozen
BOOKED = (*[calls(("book", f'{{"a": {a}}}')) for a in range(2, 14, 2)], STORY[-1])
SHORT = (calls(("note", '{"a": 1}'), ("send", '{"a": 3}')), STORY[-1])


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server with few databases, because it checks all of them after a crash."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def store(postgres: Postgres, tmp_path: Path) -> RunStore:
    return RunStore(postgres.database(), tmp_path)


def worker(
    store: RunStore, executor_id: str, prepare: Callable[[Extra], object] = lambda engine: None
) -> None:
    """Executes queued runs until a file named `over` exists; `prepare` gets the engine."""

    def hook(place: str) -> None:
        """Makes a tool slow, and obeys a request from `stop_in_tool` in the middle of it."""
        if place not in ("in tool", "in book"):
            return
        time.sleep(0.02)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            with suppress(FileNotFoundError):
                (store.folder / f"{executor_id}.{number.name}").unlink()
                os.kill(os.getpid(), number)

    own = replace(store, facts_name=executor_id, hook=hook)
    own.open(executor_id)
    with WorkerFailover(store.url, executor_id, every=0.3, silent=SILENT):
        own.launch()
        prepare(engine_room._get_dbos_instance()._sys_db.engine)
        dbos.DBOS.register_queue("work", worker_concurrency=AT_ONCE, polling_interval_sec=0.1)
        (store.folder / f"{executor_id}.ready").touch()
        while not (store.folder / "over").exists():
            time.sleep(0.05)


class Full(logging.Handler):
    """A log whose disk is full at the first takeover."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "Taking over runs":
            logging.getLogger(record.name).removeHandler(self)
            raise OSError("disk full")


def clumsy(store: RunStore, executor_id: str) -> None:
    """A worker whose first takeover fails."""
    logging.getLogger("weakincentives.contrib.durable.failover").addHandler(Full())
    worker(store, executor_id)


def deaf(store: RunStore, executor_id: str) -> None:
    """A worker whose connection breaks before it is told that its first claim was committed."""

    def hear_nothing(engine: Extra) -> None:
        claiming: list[Extra] = []

        def before(connection: Extra, _cursor: object, statement: str, *_rest: object) -> None:
            if statement.startswith("UPDATE") and "recovery_attempts +" in statement:
                claiming.append(connection)

        def commit(connection: Extra) -> None:
            if claiming == [connection]:
                connection.connection.commit()
                connection.connection.close()

        sqlalchemy.event.listen(engine, "before_cursor_execute", before)
        sqlalchemy.event.listen(engine, "commit", commit)

    worker(store, executor_id, prepare=hear_nothing)


def client(store: RunStore, *batches: list[str]) -> None:
    """Queues batches of runs and writes their results to a file; each batch after the first begins
    once a file `batch` exists.
    """
    own = replace(store, facts_name="client")
    runs = own.open("client")
    dbos.DBOS.listen_queues(["none"])
    own.launch()
    for number, batch in enumerate(batches):
        while number and not (store.folder / "batch").exists():
            time.sleep(0.05)
        for run in [
            runs.start("agent", Job(run_id), run_id=run_id, queue="work") for run_id in batch
        ]:
            own.keep(run)


def begin_worker(store: RunStore, name: str) -> int:
    """Starts a worker process and returns its id."""
    run = {"clumsy": clumsy, "deaf": deaf}.get(name, worker)
    return start_process(partial(run, store, name), store.folder / f"{name}.log")


@contextmanager
def processes(
    store: RunStore, workers: list[str], *batches: list[str]
) -> Generator[tuple[int, dict[str, int]]]:
    """Starts workers and, once all of them listen to the queue, a client that asks for runs."""
    worker_pids = {name: begin_worker(store, name) for name in workers}
    clients: list[int] = []
    try:
        for name, pid in worker_pids.items():
            until(partial(listens, store, name, pid))
        asking = start_process(partial(client, store, *batches), store.folder / "client.log")
        clients.append(asking)
        yield asking, worker_pids
    except AssertionError as failure:
        for log in store.folder.glob("*.log"):
            failure.add_note(f"{log.name}:\n{log.read_text()}")
        raise
    finally:
        (store.folder / "over").touch()
        for pid in worker_pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        for pid in (*clients, *worker_pids.values()):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                wait_for_process(pid)


def listens(store: RunStore, name: str, pid: int) -> bool:
    """Returns whether a worker listens to the queue; fails if it has ended."""
    assert os.waitpid(pid, os.WNOHANG) == (0, 0), f"worker {name} has ended"
    return (store.folder / f"{name}.ready").exists()


def stop_in_tool(store: RunStore, name: str, pid: int, number: signal.Signals) -> None:
    """Freezes or kills a worker in the middle of a tool call, so that it has begun a run."""
    (store.folder / f"{name}.{number.name}").touch()
    states: list[int] = []

    def stopped() -> bool:
        found, state = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        states.append(state)
        return found == pid

    until(stopped)
    assert number in (os.WSTOPSIG(states[-1]), os.WTERMSIG(states[-1]))


def finish(store: RunStore, asking: int, run_ids: list[str]) -> None:
    """Waits until all runs have ended and the client has exited successfully."""
    until(lambda: store.done(run_ids))
    assert wait_for_process(asking) == 0, (store.folder / "client.log").read_text()


def done_by(store: RunStore, *workers: str) -> Counter[str]:
    """Returns the number of effects of each worker."""
    return Counter({name: len(Facts(store.folder / name).read()) for name in workers})


def gather(store: RunStore, *workers: str) -> None:
    """Collects the facts of all workers."""
    store.facts.path.write_text("".join((store.folder / name).read_text() for name in workers))


def test_hundred_runs_survive_a_frozen_and_a_killed_worker(store: RunStore) -> None:
    store = replace(store, story=SHORT)
    run_ids = [f"run-{number}" for number in range(100)]
    with processes(store, ["a", "b"], run_ids[:50], run_ids[50:]) as (asking, pids):
        until(lambda: min(done_by(store, "a", "b").values()) > 0)  # they share the work
        stop_in_tool(store, "b", pids["b"], signal.SIGSTOP)
        frozen = done_by(store, "b")
        until(lambda: "Taking over" in (store.folder / "a.log").read_text())
        until(lambda: store.done(run_ids[:50]))
        assert done_by(store, "b") == frozen
        os.kill(pids["b"], signal.SIGCONT)
        (store.folder / "batch").touch()
        stop_in_tool(store, "a", pids["a"], signal.SIGKILL)
        finish(store, asking, run_ids)
        assert done_by(store, "b") > frozen
        assert "Taking over" in (store.folder / "b.log").read_text()
        gather(store, "a", "b")
        assert 0 < sum(check(store, run_id) for run_id in run_ids) <= 2 * AT_ONCE
        keys = Counter(
            words[2]
            for words in store.facts.read()
            if words[0] == "tool" and words[1] in AT_MOST_ONCE
        )
        assert max(keys.values()) == 1


def stop_while_they_go_on(
    store: RunStore, postgres: Postgres, run_ids: list[str], effects: int
) -> None:
    """Stops the server after a number of effects, as a crash would, and restarts it."""
    with processes(store, ["a"], run_ids) as (asking, _):
        until(lambda: done_by(store, "a").total() > effects)
        postgres.stop()
        time.sleep(2)
        before = done_by(store, "a").total()
        postgres.start()
        finish(store, asking, run_ids)
        assert before < done_by(store, "a").total()
        gather(store, "a")


def test_runs_continue_after_a_postgres_restart(store: RunStore, postgres: Postgres) -> None:
    run_ids = [f"run-{number}" for number in range(30)]
    stop_while_they_go_on(store, postgres, run_ids, 100)
    assert sum(check(store, run_id) for run_id in run_ids) == 0


def test_transactional_calls_commit_once_across_a_postgres_restart(
    store: RunStore, postgres: Postgres
) -> None:
    make_books(store.url)
    store = replace(store, books=store.url, story=BOOKED)
    run_ids = [f"run-{number}" for number in range(20)]
    stop_while_they_go_on(store, postgres, run_ids, 60)
    keys = sorted(key for key, _ in read_books(store.url))
    assert keys == sorted(f"{it}:{turn}/c0" for it in run_ids for turn in range(1, 7))


def test_failed_takeover_is_retried_and_leaves_no_lock(
    store: RunStore,
) -> None:
    run_ids = [f"run-{number}" for number in range(8)]
    with processes(store, ["b"], run_ids) as (asking, pids):
        stop_in_tool(store, "b", pids["b"], signal.SIGKILL)
        # now, because otherwise it could execute all runs before b starts
        pids["clumsy"] = begin_worker(store, "clumsy")
        finish(store, asking, run_ids)
        assert "disk full" in (store.folder / "clumsy.log").read_text()
        with WorkerFailover(store.url, "b", every=0.3):
            pass


def test_worker_runs_its_claims_whose_commit_was_not_confirmed(store: RunStore) -> None:
    run_ids = [f"run-{number}" for number in range(8)]
    with processes(store, ["deaf"], run_ids) as (asking, _):
        finish(store, asking, run_ids)
        assert "Recovering a lost run" in (store.folder / "deaf.log").read_text()
        gather(store, "deaf")
        assert sum(check(store, run_id) for run_id in run_ids) == 0


def test_second_worker_with_the_same_executor_id_is_rejected(store: RunStore) -> None:
    with (
        WorkerFailover(store.url, "a", every=0.1),
        pytest.raises(RuntimeError, match="another running worker has 'a'"),
    ):
        WorkerFailover(store.url, "a", every=0.1)
    with WorkerFailover(store.url, "a", every=0.1):
        pass


def test_failover_reuses_the_executor_lock_of_its_own_process(store: RunStore) -> None:
    lock_executor(store.url, "a")
    with WorkerFailover(store.url, "a", every=0.1):
        lock_executor(store.url, "a")
        with pytest.raises(RuntimeError, match="another running worker has 'a'"):
            WorkerFailover(store.url, "a", every=0.1)
    lock_executor(store.url, "a")
    release(store.url, "a")
