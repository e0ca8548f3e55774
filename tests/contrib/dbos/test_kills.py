"""Processes are killed by SIGKILL wherever it could hurt; the next life ends the run and repeats
one step at most.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from support.durable_lives import (
    ENGINE,
    Kill,
    Lineage,
    begin,
    check,
    expected,
    happened,
    make_books,
    read_books,
)
from support.durable_runs import STORY, calls

type NewLineage = Callable[[], Lineage]
type Story = Generator[int, int, None]


def together(stories: Iterable[Story], at_once: int = 3) -> None:
    """Plays stories: each yields the process that it waits for and receives its exit code."""
    left, waiting = iter(stories), dict[int, Story]()
    try:
        while True:
            for story in left:
                waiting[next(story)] = story
                if len(waiting) == at_once:
                    break
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


def killed_at(lineage: Lineage, place: str, passed: int, repeats: int | None) -> Story:
    code = yield begin(replace(lineage, hook=Kill(place, passed)).work(), lineage.log)
    assert code == -signal.SIGKILL, lineage.log.read_text()
    code = yield begin(lineage.work(), lineage.log)
    assert code == 0, lineage.log.read_text()
    assert lineage.facts.read().count(["launched"]) == 2
    assert check(lineage) in ((0, 1) if repeats is None else (repeats,))


PLACES = {
    "before provider": 0,
    "in provider": 1,
    "before tool": 0,
    "in tool": None,  # 0 for a tool that runs at most once
    "before insert": None,  # the effect is over
    "before commit": None,
    "after commit": 0,
}


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_a_run_killed_anywhere_is_finished_by_the_next_life(
    new_lineage: NewLineage, *, dynamic: bool
) -> None:
    assert set(ENGINE) < set(PLACES)
    together(
        killed_at(replace(new_lineage(), dynamic=dynamic), place, passed, repeats)
        for place, repeats in PLACES.items()
        for passed in ((0, 2, 4) if dynamic else (3,))
    )


def undisturbed(lineage: Lineage) -> Story:
    code = yield begin(lineage.work(), lineage.log)
    assert code == 0, lineage.log.read_text()
    assert check(lineage) == 0
    assert lineage.result() == expected()[1][0]


def test_an_undisturbed_run_does_everything_once(new_lineage: NewLineage) -> None:
    together([undisturbed(new_lineage())])


# --- Killed from outside, at any time


def killed_at_random(
    lineage: Lineage, kills: int, chance: random.Random, repeated: list[int]
) -> Story:
    run_ids = [f"run-{number}" for number in range(kills * 4)]
    lineage = replace(lineage, hook=lambda place: time.sleep(0.01) if place == "in tool" else None)
    for number in range(kills):
        pid = begin(lineage.work(run_ids), lineage.log)
        begin(partial(kill_later, lineage, pid, number + 1, chance.random()), lineage.log)
        assert (yield pid) == -signal.SIGKILL, lineage.log.read_text()
    begun = [run_id for run_id in run_ids if lineage.done([run_id]) or happened(lineage, run_id)]
    assert len(begun) < len(run_ids), "there was nothing left to kill"
    assert (yield begin(lineage.work(begun), lineage.log)) == 0, lineage.log.read_text()
    repeated.append(sum(check(lineage, run_id) for run_id in begun))
    assert repeated[-1] <= kills  # two of which may hit the same step


def kill_later(lineage: Lineage, pid: int, launches: int, moment: float) -> None:
    """Kills `pid` at some moment of the second after its launch."""
    while lineage.facts.read().count(["launched"]) < launches:
        time.sleep(0.005)
    time.sleep(moment * 0.6)
    os.kill(pid, signal.SIGKILL)


def test_a_hundred_random_kills_on_each_store_lose_nothing_and_repeat_one_step_each(
    new_lineage: NewLineage,
) -> None:
    repeated: list[int] = []
    chances = [random.Random(seed) for seed in range(4)]  # noqa: S311 - no secret
    together(killed_at_random(new_lineage(), 25, chance, repeated) for chance in chances)
    assert sum(repeated) > 0, "no kill hit a step"


# --- Effects that commit with their record

BOOKED = [calls(("book", '{"a": 2}')), calls(("book", '{"a": 3}'), ("book", '{"a": 4}')), STORY[-1]]
BOOK_PLACES = ["in book", "before book record", "before insert", "before commit", "after commit"]


def booked(lineage: Lineage, place: str, passed: int) -> Story:
    url = lineage.url.replace("runs.db", "books.db")
    make_books(url)
    lineage = replace(lineage, books=url, story=BOOKED)
    code = yield begin(replace(lineage, hook=Kill(place, passed)).work(), lineage.log)
    assert code == -signal.SIGKILL, lineage.log.read_text()
    code = yield begin(lineage.work(), lineage.log)
    assert code == 0, lineage.log.read_text()
    assert read_books(url) == [("run:1", 2), ("run:3", 4)]


def test_the_effect_of_a_transactional_tool_is_there_once_or_not_at_all(
    new_lineage: NewLineage,
) -> None:
    together(booked(new_lineage(), place, passed) for place in BOOK_PLACES for passed in (0, 2))
