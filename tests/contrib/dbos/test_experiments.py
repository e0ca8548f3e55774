"""Experiments on durable workers end with the numbers of an experiment in a folder, whichever
process is killed.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from support.durable_processes import (
    NewRunStore,
    Postgres,
    RunStore,
    start_process,
    until,
    wait_for_process,
)
from support.eval_workers import (
    ANSWERS,
    AT_ONCE,
    REPEATS,
    asked,
    coordinate,
    journal,
    model,
    on,
    rows,
    worker,
)
from support.sizes import FULL

KILLS = 20 if FULL else 2
CASES = 8 * KILLS


@pytest.fixture
def store(postgres: Postgres, tmp_path: Path) -> RunStore:
    return RunStore(postgres.database(), tmp_path)


def uncut(folder: Path, count: int) -> str:
    """Returns the results of the same experiment in a folder."""
    experiment = on(journal(), count, str(folder / "uncut"), model=model(folder / "uncut-requests"))
    assert asked(folder / "uncut-requests") == count * REPEATS * ANSWERS
    return rows(experiment)


class Processes:
    """The processes of one experiment."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.pids: dict[str, int] = {}

    def start(self, name: str, work: Callable[[], None]) -> int:
        (self._store.folder / f"{name}.ready").unlink(missing_ok=True)
        self.pids[name] = start_process(work, self._store.folder / f"{name}.log")
        until(lambda: (self._store.folder / f"{name}.ready").exists())
        return self.pids[name]

    def worker(self, name: str) -> int:
        return self.start(name, partial(worker, self._store, name))

    def kill(self, name: str) -> None:
        pid = self.pids.pop(name)
        os.kill(pid, signal.SIGKILL)
        assert wait_for_process(pid) == -signal.SIGKILL


@contextmanager
def processes(store: RunStore) -> Generator[Processes]:
    all_of_them = Processes(store)
    try:
        yield all_of_them
    except AssertionError as failure:
        for log in store.folder.glob("*.log"):
            failure.add_note(f"{log.name}:\n{log.read_text()}")
        raise
    finally:
        for pid in all_of_them.pids.values():
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                wait_for_process(pid)


def test_worker_killed_at_random_moments_changes_no_result_of_an_experiment(
    store: RunStore,
) -> None:
    moments = random.Random(18)
    with processes(store) as all_of_them:
        for name in ("a", "b"):
            all_of_them.worker(name)
        desk = partial(coordinate, store, CASES, queue="evals", folder=str(store.folder / "evals"))
        desk_pid = all_of_them.start("desk", desk)
        for _ in range(KILLS):
            time.sleep(moments.random())
            all_of_them.kill("a")
            assert not (store.folder / "results").exists(), "there was nothing left to kill"
            all_of_them.worker("a")
        assert wait_for_process(desk_pid) == 0
    expected = uncut(store.folder, CASES)
    assert json.loads((store.folder / "results").read_text()) == json.loads(expected)
    requests, sent = CASES * REPEATS * ANSWERS, asked(store.folder / "requests")
    assert requests <= sent <= requests + KILLS * AT_ONCE
    print(sent - requests)
