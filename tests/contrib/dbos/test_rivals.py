"""Two concurrent attempts of one run: both end alike, and the older one stores nothing more."""

import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace

import pytest

from support.durable_kills import PARALLEL, check_nested
from support.durable_processes import (
    AT_MOST_ONCE,
    Kill,
    NewRunStore,
    RunStore,
    Work,
    check,
    dbos,
    freezing,
    make_books,
    read_books,
    read_log,
    start_process,
    tell_engine_places,
    until,
    wait_for_freeze,
    wait_for_process,
)
from support.durable_runs import STORY, Job, calls
from support.sizes import todays
from weakincentives.evaluation.stored_log import Row


def stopped_attempts(store: RunStore) -> int:
    return store.log.read_text().count("no longer owned by this execution")


def first_worker(store: RunStore) -> Work:
    """Begins the run, and ends when its attempt has noticed a newer one."""

    def work() -> None:
        runs = store.open("first")
        store.launch()
        tell_engine_places(runs, store.hook)
        run = runs.start("agent", Job("run"), run_id="run")
        store.keep(run)
        until(lambda: stopped_attempts(store) == 1)

    return work


def second_worker(store: RunStore) -> Work:
    """Resumes the run, as a failover does."""

    def work() -> None:
        runs = store.open("second")
        store.launch()
        dbos.DBOS.resume_workflow("run")
        store.keep(runs.find("agent", "run"))

    return work


def read_settled_log(store: RunStore) -> list[tuple[Row, int]]:
    """Reads the log once the server has completed a frozen worker's statements, such as COMMIT."""
    rows = read_log(store)
    while True:
        time.sleep(0.5)
        before, rows = rows, read_log(store)
        if rows == before:
            return rows


def freeze(store: RunStore, place: str, passed: int) -> tuple[int, int]:
    """Freezes a worker at a place and lets another one finish the run; then the first wakes up.

    Returns the number of rows that the first worker has stored, and the number of all rows.
    """
    hook = Kill(place, passed, freezing(store))
    first = start_process(first_worker(replace(store, hook=hook)), store.log)
    wait_for_freeze(first, store)
    try:
        before = read_settled_log(store)
        second = start_process(second_worker(store), store.log)
        until(lambda: store.done(["run"]), 60)  # without waiting for the first one
        assert wait_for_process(second) == 0, store.log.read_text()
        rows, result = read_log(store), store.result()
        assert stopped_attempts(store) == 0
    finally:
        os.kill(first, signal.SIGCONT)
        code = wait_for_process(first)
    assert code == 0, store.log.read_text()
    assert read_log(store) == rows
    assert store.result() == result
    assert {attempt for _, attempt in rows} <= {1, 2}
    assert [row for row in rows if row[1] == 1] == before
    return len(before), len(rows)


def sent(store: RunStore) -> Counter[str]:
    """Returns how often each call was performed that must not run twice."""
    facts = [words for words in store.facts.read() if words[0] == "tool"]
    return Counter(words[2] for words in facts if words[1] in AT_MOST_ONCE)


def check_freeze(store: RunStore, place: str, passed: int) -> None:
    stored, rows = freeze(store, place, passed)
    assert stored < rows
    assert check(store) <= 1  # the effect during which the worker was frozen
    assert max(sent(store).values()) == 1


def test_frozen_worker_stores_nothing_after_another_takes_its_run(
    new_store: NewRunStore,
) -> None:
    places = [("in provider", 0), ("in provider", 3), ("after commit", 3)]
    places += [("in tool", passed) for passed in todays(range(7))]
    if not new_store().url.startswith("sqlite"):  # where a writer locks the whole file
        places += [("before insert", 3), ("before commit", 0), ("before commit", 4)]
    for place, passed in places:
        check_freeze(new_store(), place, passed)


def test_worker_frozen_in_a_nested_run_stores_nothing_after_a_takeover(
    new_store: NewRunStore,
) -> None:
    for place, passed in [("in provider", 4), ("in tool", 4), ("in tool", 9)]:
        for parallel in (False, True):
            store = replace(new_store(), story=PARALLEL, helps=True, parallel=parallel)
            if parallel and store.url.startswith("sqlite"):
                continue  # a parallel call could be frozen while it locks the file
            freeze(store, place, passed)
            check_nested(store)
            assert max(sent(store).values()) == 1


@pytest.mark.parametrize("asked", [2, 6], ids=["on the way", "at the end"])
def test_worker_frozen_before_its_attempt_repeats_no_at_most_once_call(
    new_store: NewRunStore, asked: int
) -> None:
    """It wakes up while the other worker is in the middle of the run, and begins a new attempt."""
    store = new_store()

    def hold(place: str) -> None:
        """Blocks the other worker in its first call until the first one has got that far."""
        if place == "in tool":
            until(lambda: [it[0] for it in store.facts.read()].count("provider") >= asked)

    hook = Kill("before begin", 0, freezing(store))
    first = start_process(first_worker(replace(store, hook=hook)), store.log)
    wait_for_freeze(first, store)
    second = start_process(second_worker(replace(store, hook=hold)), store.log)
    try:
        until(lambda: "note" in str(store.facts.read()))
    finally:
        os.kill(first, signal.SIGCONT)
    assert [wait_for_process(pid) for pid in (first, second)] == [0, 0], store.log.read_text()
    assert check(store) <= 2
    assert max(sent(store).values()) == 1


# --- Attempts that begin at any time


def rival(store: RunStore, name: str, chance: random.Random) -> Work:
    """Resumes the run repeatedly while it runs, here or in another process."""

    def work() -> None:
        runs = store.open(name)
        store.launch()
        run = runs.start("agent", Job("run"), run_id="run")
        until(lambda: len(store.facts.read()) > 4)
        for _ in range(4):
            time.sleep(chance.random() / 10)
            if run.status == "running":
                dbos.DBOS.resume_workflow("run")
        store.keep(run)

    return work


def run_with_rivals(store: RunStore, chance: random.Random) -> int:
    """Returns the number of attempts."""
    slow = replace(store, hook=lambda place: time.sleep(0.02) if place[:3] == "in " else None)
    names = ("first", "second", "third")
    pids = [
        start_process(rival(slow, name, random.Random(chance.random())), store.log)  # noqa: S311
        for name in names
    ]
    assert [wait_for_process(pid) for pid in pids] == [0, 0, 0], store.log.read_text()
    attempts = [attempt for _, attempt in read_log(store)]
    assert sent(store).total() == len(sent(store))
    return max(attempts)


def test_concurrent_attempts_repeat_at_most_one_effect_each(
    new_store: NewRunStore,
) -> None:
    attempts = 0
    for seed in range(5):
        store = new_store()
        made = run_with_rivals(store, random.Random(seed))  # noqa: S311 - not a secret
        assert check(store) <= made - 1
        attempts += made
    assert attempts > 10


def test_concurrent_attempts_with_parallel_nested_runs_end_alike(new_store: NewRunStore) -> None:
    attempts = 0
    for seed in range(3):
        store = replace(new_store(), story=PARALLEL, helps=True, parallel=True)
        attempts += run_with_rivals(store, random.Random(seed))  # noqa: S311 - not a secret
        check_nested(store)
    assert attempts > 6


def test_concurrent_attempts_commit_a_transactional_effect_once(
    new_store: NewRunStore,
) -> None:
    attempts = 0
    story = [*[calls(("book", f'{{"a": {a}}}'), ("note", "{}")) for a in range(8)], STORY[-1]]
    for seed in range(3):
        store = new_store()
        store = replace(store, books=store.url.replace("runs.db", "books.db"), story=story)
        assert store.books is not None
        make_books(store.books)
        attempts += run_with_rivals(store, random.Random(seed))  # noqa: S311 - not a secret
        assert read_books(store.books) == [(f"run:{a + 1}/c0", a) for a in range(0, 8, 2)]
    assert attempts > 6
