"""Nested runs whose processes are killed: no answered request is sent again."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from support.durable_kills import PARALLEL, Story, check_nested, kill_later, together
from support.durable_processes import (
    ENGINE,
    Kill,
    NewRunStore,
    RunStore,
    expected_of,
    read_log,
    start_process,
)
from support.durable_runs import NESTED, kind_of
from support.sizes import KILLS, todays


def requests(facts: Sequence[Sequence[str]]) -> Counter[str]:
    """Returns how often the model got each request, such as `helper-3:0`."""
    return Counter(words[2] for words in facts if words[0] == "provider")


def answered(store: RunStore) -> list[str]:
    """Returns the requests whose answers are in the log."""
    found, names = list[str](), {"": "first"}
    for row, _ in read_log(store):
        line = json.loads(row.line)
        if row.path and row.path not in names:
            names[row.path] = f"helper-{json.loads(line['head']['arguments'])['a']}"
        if kind_of(row) == "answered":
            name = names[row.path]
            found.append(f"{name}:{sum(it.startswith(f'{name}:') for it in found)}")
    return found


def asked_last(store: RunStore) -> Counter[str]:
    """Returns the requests to the model in the last process."""
    facts = store.facts.read()
    last = max(at for at, words in enumerate(facts) if words == ["launched"])
    return requests(facts[last:])


def kill_at(store: RunStore, place: str, passed: int) -> Story:
    code = yield start_process(replace(store, hook=Kill(place, passed)).work(), store.log)
    assert code == -signal.SIGKILL, store.log.read_text()
    before, total = answered(store), requests(list(expected_of(store)[0]))
    code = yield start_process(store.work(), store.log)
    assert code == 0, store.log.read_text()
    assert asked_last(store) == total - Counter(before)
    check_nested(store)


NESTED_PLACES = [
    *[("in provider", passed) for passed in range(1, 12)],
    *[("before provider", passed) for passed in (2, 5, 9)],
    *[("in tool", passed) for passed in (1, 2, 3, 4, 7, 10)],
    *[(place, passed) for place in ENGINE for passed in range(2, 26, 3)],
]


def test_killed_nested_run_does_not_repeat_answered_requests(
    new_store: NewRunStore,
) -> None:
    store = RunStore("", new_store().folder, story=NESTED, helps=True)
    assert len(requests(list(expected_of(store)[0]))) == 16
    together(
        kill_at(replace(new_store(), story=NESTED, helps=True), place, passed)
        for place, passed in todays(NESTED_PLACES)
    )


def killed_at_random(store: RunStore, chance: random.Random, kills: list[str]) -> Story:
    """Resumes the run until it ends before it is killed."""
    slow = replace(store, hook=lambda place: time.sleep(0.01) if place[:3] == "in " else None)
    before: list[str] = []
    for lives in count(1):
        pid = start_process(slow.work(), store.log)
        killer = partial(kill_later, store, pid, lives, chance.random(), facts=30)
        start_process(killer, store.log)
        code = yield pid
        again = asked_last(store).keys() & before
        assert store.counts or not again, "an answered request was sent again"
        if code == 0:
            break
        assert code == -signal.SIGKILL, store.log.read_text()
        kills.append("inside a call" if calls_open(store) else "elsewhere")
        before = answered(store)
    check_nested(store)


def calls_open(store: RunStore) -> bool:
    """Returns whether the log ends inside a call."""
    paths = {row.path.split("/")[0] for row, _ in read_log(store) if row.path}
    done = {
        json.loads(row.line)["entry"]["key"].split("/")[0]
        for row, _ in read_log(store)
        if not row.path and kind_of(row) == "called"
    }
    return not paths <= done


@pytest.mark.parametrize("counts", [False, True], ids=["forks", "in order"])
def test_parallel_calls_with_nested_runs_survive_random_kills(
    new_store: NewRunStore, *, counts: bool
) -> None:
    """A session counts events in order, except those of discarded parallel calls."""
    kills: list[str] = []
    chances = map(random.Random, count(100 * counts))

    def stories() -> Iterator[Story]:
        while len(kills) < KILLS:
            store = replace(new_store(), story=PARALLEL, helps=True, parallel=True, counts=counts)
            yield killed_at_random(store, next(chances), kills)

    together(stories())
    assert counts or kills.count("inside a call") > KILLS / 4
