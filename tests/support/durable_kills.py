"""Durable runs whose processes are killed at random moments, and checks of what must hold then."""

import json
import os
import random
import signal
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from support.durable_processes import (
    AT_MOST_ONCE,
    Actions,
    RunStore,
    actions,
    comparable,
    expected_of,
    read_log,
    start_process,
)
from support.durable_runs import STORY, Json, calls
from weakincentives.contrib.durable import (
    WaitingRun,
)
from weakincentives.evaluation.approval import Approve, Decision

type Story = Generator[int, int, None]


def together(stories: Iterable[Story], at_once: int = 3) -> None:
    """Runs stories concurrently: each yields the process to wait for and receives its exit code."""
    left, waiting = iter(stories), dict[int, Story]()
    try:
        while True:
            for story in islice(left, at_once - len(waiting)):
                waiting[next(story)] = story
            if not waiting:
                return
            pid, status = os.waitpid(-1, 0)
            if pid not in waiting:
                continue  # a killer
            story = waiting.pop(pid)
            with suppress(StopIteration):
                waiting[story.send(os.waitstatus_to_exitcode(status))] = story
    finally:
        for pid in waiting:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def kill_often(
    store: RunStore, run_ids: Sequence[str], kills: int, chance: random.Random
) -> Generator[int, int, list[str]]:
    """Kills processes at random, completes the runs that have begun, and returns their ids."""
    for number in range(kills):
        pid = start_process(store.work(run_ids), store.log)
        start_process(partial(kill_later, store, pid, number + 1, chance.random()), store.log)
        assert (yield pid) == -signal.SIGKILL, store.log.read_text()
    begun = [run_id for run_id in run_ids if store.done([run_id]) or actions(store, run_id)]
    assert len(begun) < len(run_ids), "there was nothing left to kill"
    assert (yield start_process(store.work(begun), store.log)) == 0, store.log.read_text()
    return begun


def kill_later(store: RunStore, pid: int, launches: int, moment: float, *, facts: int = 8) -> None:
    """Kills `pid` after up to `facts` facts and some milliseconds from its launch, however fast it
    is, unless it ends first.
    """
    with suppress(ProcessLookupError):
        while (before := store.facts.read()).count(["launched"]) < launches:
            os.kill(pid, 0)
            time.sleep(0.005)
        facts, end = len(before) + int(moment * facts), time.monotonic() + 5
        while len(store.facts.read()) < facts and time.monotonic() < end:
            os.kill(pid, 0)
            time.sleep(0.002)
        time.sleep(moment * 80 % 10 / 500)  # up to 20 ms; a tool takes 10
        os.kill(pid, signal.SIGKILL)


PARALLEL = (
    calls(
        ("delegate", '{"a": 1}'),
        ("delegate_async", '{"a": 2}'),
        ("delegate", '{"a": 3}'),
        ("note", '{"a": 5}'),
    ),
    calls(("delegate_async", '{"a": 5}'), ("delegate", '{"a": 6}')),
    STORY[-1],
)


def check_nested(store: RunStore) -> Actions:
    """Returns the actions that were repeated, after a check that none was lost and the result is
    right.

    A call that is interrupted runs again, together with all calls of its nested runs that can.
    """
    plain, (whole, *_) = expected_of(store)
    done, result = actions(store), comparable(store.result())
    repeated, lost = done - plain, plain - done
    assert set(repeated) <= set(plain), "another idempotency key"
    assert {fact[1] for fact in repeated}.isdisjoint(AT_MOST_ONCE)
    assert {fact[1] for fact in lost} <= AT_MOST_ONCE, lost
    unknown = sum("outcome is unknown" in row.line for row, _ in read_log(store))
    assert notes(result).count("sent 3") == notes(whole).count("sent 3") - unknown
    assert without_sent(notes(result)) == without_sent(notes(whole))
    assert unknown or not lost
    other = list[str]()
    if unknown:  # a nested run was told, and repeated it in its text
        other += ["session", "conversation"]
    if store.counts:  # the usage of dropped calls is not stored
        other += ["session", "conversation", "usage", "last_usage"]
    assert {**result, **{name: whole[name] for name in other}} == whole
    return repeated


def notes(result: Json) -> list[str]:
    slices: Json = json.loads(result["session"])["slices"]
    return [item["text"] for item in slices["support.agents:Note"]]


def without_sent(texts: list[str]) -> list[str]:
    return [text for text in texts if text != "sent 3"]


def everything(waiting: WaitingRun, decision: Decision | None = None) -> Mapping[str, Decision]:
    return {preview.call_id: decision or Approve() for preview in waiting.pending}


def payments(store: RunStore, run_id: str = "run") -> list[str]:
    paid = [words for words in store.facts.read() if words[:2] == ["tool", "pay"]]
    return [words[2] for words in paid if words[3].split(":")[0] == run_id]
