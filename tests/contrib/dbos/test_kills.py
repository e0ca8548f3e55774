"""Processes are killed with SIGKILL wherever it could do harm; the next process completes the run
and repeats at most one request or call.
"""

import json
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from support.durable_kills import Story, kill_later, kill_often, together
from support.durable_processes import (
    ENGINE,
    Kill,
    NewRunStore,
    RunStore,
    Work,
    actions,
    check,
    comparable,
    expected,
    make_books,
    read_books,
    read_log,
    start_process,
    tell_engine_places,
)
from support.durable_runs import STORY, Job, calls
from support.sizes import FULL, KILLS, todays
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.messages import AssistantMessage


def kill_at(store: RunStore, place: str, passed: int, repeats: int | None) -> Story:
    code = yield start_process(replace(store, hook=Kill(place, passed)).work(), store.log)
    assert code == -signal.SIGKILL, store.log.read_text()
    code = yield start_process(store.work(), store.log)
    assert code == 0, store.log.read_text()
    assert store.facts.read().count(["launched"]) == 2
    assert check(store) in ((0, 1) if repeats is None else (repeats,))


PLACES = {
    "before provider": 0,
    "in provider": 1,
    "before tool": 0,
    "in tool": None,  # zero for a tool that runs at most once
    "before insert": None,  # the effect is over
    "before commit": None,
    "after commit": 0,
}


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
def test_run_killed_at_any_point_is_finished_by_the_next_process(
    new_store: NewRunStore, *, dynamic: bool
) -> None:
    assert set(ENGINE) < set(PLACES)
    together(
        kill_at(replace(new_store(), dynamic=dynamic), place, passed, repeats)
        for place, repeats in PLACES.items()
        for passed in (todays((0, 2, 4)) if dynamic else (3,))
    )


def run_undisturbed(store: RunStore) -> Story:
    code = yield start_process(store.work(), store.log)
    assert code == 0, store.log.read_text()
    assert check(store) == 0
    assert comparable(store.result()) == expected()[1][0]


def test_uninterrupted_run_performs_every_effect_once(new_store: NewRunStore) -> None:
    together([run_undisturbed(new_store())])


def chat_turn(store: RunStore, run_id: str, before: str | None) -> Work:
    """Returns the work of a process that sends a message and writes the conversation to a file."""

    def work() -> None:
        runs = store.open()
        store.launch()
        tell_engine_places(runs, store.hook)
        conversation = Conversation.from_json(before) if before else None
        run = runs.start(
            "agent", Job("it"), run_id=run_id, message=run_id, conversation=conversation
        )
        after = run.result().conversation
        assert after is not None
        (store.folder / run_id).write_text(after.to_json())

    return work


def chat(store: RunStore) -> Story:
    """Runs undisturbed turns, each in its own process."""
    whole: str | None = None
    for turn in ("Hi", "So?"):
        assert (yield start_process(chat_turn(store, turn, whole), store.log)) == 0, (
            store.log.read_text()
        )
        whole = (store.folder / turn).read_text()


# --- Killed from outside, at any time

# Requests and calls may be repeated, but the answers are those of an undisturbed chat.
CHAT = (
    calls(("note", '{"a": 1}'), ("fail", '{"a": 2}')),
    calls(("nonsense", "{}"), ("note", '{"a": "x"}'), ("look", "{}")),
    calls(("read_section", '{"section_key": "more"}')),
    calls(("late", '{"a": 5}'), ("replace", '{"a": 6}')),
    *STORY[-2:],
    calls(("note", '{"a": 8}')),
    *STORY[-2:],
)


def chat_killed_at_random(store: RunStore, chance: random.Random, kills: list[str]) -> Story:
    """Resumes each turn until it ends before it is killed."""
    store = replace(store, hook=lambda place: time.sleep(0.01) if place == "in tool" else None)
    whole: str | None = None
    launches = count(1)
    for turn in ("Hi", "So?"):
        while True:
            pid = start_process(chat_turn(store, turn, whole), store.log)
            killer = partial(kill_later, store, pid, next(launches), chance.random())
            start_process(killer, store.log)
            if (code := (yield pid)) == 0:
                break
            assert code == -signal.SIGKILL, store.log.read_text()
            kills.append(turn)
        whole = (store.folder / turn).read_text()


def check_chats_killed_at_random(new_store: NewRunStore, kills: int) -> None:
    """Kills chat processes at least `kills` times."""
    plain, chance = replace(new_store(), story=CHAT), random.Random(1)  # noqa: S311 - not a secret
    together([chat(plain)])
    disturbed: list[tuple[RunStore, list[str]]] = []

    def chats() -> Iterator[Story]:
        while sum(len(killed) for _, killed in disturbed) < kills:
            disturbed.append((replace(new_store(), story=CHAT), []))
            store, killed = disturbed[-1]
            yield chat_killed_at_random(store, random.Random(chance.random()), killed)  # noqa: S311

    together(chats())
    for store, killed in disturbed:
        for turn in ("Hi", "So?"):
            assert (store.folder / turn).read_text() == (plain.folder / turn).read_text()
            done, once = actions(store, turn), actions(plain, turn)
            assert done >= once, "something was not done"
            assert (done - once).total() <= killed.count(turn), "a kill repeated several effects"
            assert set(done) == set(once)


def test_chats_killed_at_random_match_the_uninterrupted_chat(
    new_store: NewRunStore,
) -> None:
    check_chats_killed_at_random(new_store, KILLS // 2)


def killed_at_random(
    store: RunStore, kills: int, chance: random.Random, repeated: list[int]
) -> Story:
    store = replace(store, hook=lambda place: time.sleep(0.01) if place == "in tool" else None)
    run_ids = [f"run-{number}" for number in range(kills * 4)]
    begun = yield from kill_often(store, run_ids, kills, chance)
    repeated.append(sum(check(store, run_id) for run_id in begun))
    assert repeated[-1] <= kills  # two of which may hit the same effect


def test_random_kills_lose_no_run_and_repeat_at_most_one_effect_each(
    new_store: NewRunStore,
) -> None:
    repeated: list[int] = []
    chances = [random.Random(seed) for seed in range(4)]  # noqa: S311 - not a secret
    together(killed_at_random(new_store(), KILLS // 4, chance, repeated) for chance in chances)
    assert sum(repeated) > 0 or not FULL, "no kill hit an effect"


# --- Effects that commit with their entry

BOOKED = [calls(("book", '{"a": 2}')), calls(("book", '{"a": 3}'), ("book", '{"a": 4}')), STORY[-1]]

# The entries are: 0 start and answer, 1 book 2, answer, 3 book 3, 4 book 4, answer.
BOOK_PLACES = [
    *[("in book", passed) for passed in (0, 1, 2)],
    *[(place, passed) for place in ENGINE for passed in (1, 3, 4)],
]


# Here they are: 0 start and answer, 1 order 200 with its nested run, answer, 3 book 3, 4 order 202.
ORDERED = [
    calls(("order", '{"a": 200}')),
    calls(("book", '{"a": 3}'), ("order", '{"a": 202}')),
    STORY[-1],
]
ORDER_PLACES = [
    *[("in book", passed) for passed in (0, 1, 2)],
    *[("in order", passed) for passed in (0, 1)],
    *[(place, passed) for place in ENGINE for passed in (1, 4)],
]


def kill_while_booking(
    store: RunStore, place: str, passed: int, books: list[tuple[str, int]]
) -> Story:
    assert store.books is not None
    make_books(store.books)
    code = yield start_process(replace(store, hook=Kill(place, passed)).work(), store.log)
    assert code == -signal.SIGKILL, store.log.read_text()
    assert_entries_and_writes_agree(store)
    code = yield start_process(store.work(), store.log)
    assert code == 0, store.log.read_text()
    assert read_books(store.books) == books
    assert_entries_and_writes_agree(store)


def assert_entries_and_writes_agree(store: RunStore) -> None:
    assert store.books is not None
    booked: list[str] = []
    for row, _ in read_log(store):
        entry = json.loads(row.line)["entry"]
        if entry["kind"] == "called" and entry["call"]["name"] in ("book", "order"):
            booked += [f"run:{row.path}{entry['key']}"] if entry["answer"]["success"] else []
    assert sorted(booked) == sorted(key for key, _ in read_books(store.books))


BOOKS = [("run:1/c0", 2), ("run:2/c1", 4)]
ORDERS = [
    *[("run:1/c0", 200), ("run:1/c0/1:2/c1", 200)],
    *[("run:2/c1", 202), ("run:2/c1/1:2/c1", 202)],
]


@pytest.mark.parametrize(
    ("story", "places", "books", "file"),
    [
        (BOOKED, BOOK_PLACES, BOOKS, "books.db"),
        (ORDERED, ORDER_PLACES, ORDERS, "runs.db"),  # in the database of DBOS, also on SQLite
    ],
    ids=["one run", "with a nested run"],
)
def test_transactional_tool_effect_is_committed_together_with_its_entry(
    new_store: NewRunStore,
    story: Sequence[AssistantMessage],
    places: Sequence[tuple[str, int]],
    books: list[tuple[str, int]],
    file: str,
) -> None:
    def stories() -> Iterator[Story]:
        for place, passed in todays(places):
            store = replace(new_store(), story=story)
            store = replace(store, books=store.url.replace("runs.db", file))
            yield kill_while_booking(store, place, passed, books)

    together(stories())
