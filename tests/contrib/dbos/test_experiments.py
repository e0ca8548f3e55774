"""Experiments on durable workers end with the numbers of an experiment in a folder, whichever
process is killed.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pytest

from support.durable_kills import everything
from support.durable_processes import (
    NewRunStore,
    Postgres,
    RunStore,
    execute,
    run_in_process,
    start_process,
    until,
    wait_for_process,
    with_runs,
)
from support.durable_runs import PAID, Job
from support.eval_models import FunctionAdapter, Note, Question, Topic, echo
from support.eval_workers import (
    ANSWERS,
    AT_ONCE,
    REPEATS,
    asked,
    cases,
    coordinate,
    journal,
    model,
    on,
    rows,
    with_target,
    worker,
    write,
)
from support.media import PNG
from support.sizes import FULL
from weakincentives import MainLoop
from weakincentives.content import Image
from weakincentives.contrib.durable import DurableRuns, durable, install
from weakincentives.evals import Case, DurableTarget, EvalRun, Variant, evaluate, evaluator
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.config import RunConfig
from weakincentives.evaluation.logged_run import Asked, Decided, LoggedEntry, LoggedRun, usage_of
from weakincentives.limits import Budget
from weakincentives.model_settings import ModelSettings
from weakincentives.prompt import MarkdownSection, PromptTemplate

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
        until((self._store.folder / f"{name}.ready").exists)
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


def same(store: RunStore, count: int) -> bool:
    """Whether the results are those of an experiment in a folder."""
    results = json.loads((store.folder / "results").read_text())
    return bool(results == json.loads(uncut(store.folder, count)))


def run_count(store: RunStore) -> int:
    return int(execute(store.url, "SELECT count(*) FROM weakincentives_runs")[0][0])


def test_worker_killed_at_random_moments_changes_no_result(store: RunStore) -> None:
    moments = Random(18)  # noqa: S311 - chance that can be repeated
    with processes(store) as all_of_them:
        for name in ("a", "b"):
            all_of_them.worker(name)
        desk = partial(coordinate, store, CASES, queue="evals", folder=str(store.folder / "evals"))
        pid = all_of_them.start("desk", desk)
        for _ in range(KILLS):
            time.sleep(moments.random())
            all_of_them.kill("a")
            assert not (store.folder / "results").exists(), "there was nothing left to kill"
            all_of_them.worker("a")
        assert wait_for_process(pid) == 0
    assert same(store, CASES)
    assert run_count(store) == CASES * REPEATS
    requests = CASES * REPEATS * ANSWERS
    assert requests <= asked(store.folder / "requests") <= requests + KILLS * AT_ONCE


@pytest.mark.parametrize("keeps_folder", [True, False])
def test_experiment_whose_coordinator_is_killed_continues_without_another_request(
    store: RunStore, *, keeps_folder: bool
) -> None:
    moments = Random(7)  # noqa: S311 - likewise
    folder = str(store.folder / "evals") if keeps_folder else None
    desk = partial(coordinate, store, CASES, queue="evals", folder=folder)
    with processes(store) as all_of_them:
        all_of_them.worker("a")
        for _ in range(KILLS):
            all_of_them.start("desk", desk)
            time.sleep(moments.random())
            all_of_them.kill("desk")
        for _ in range(2):  # the second one finds that all have ended
            (store.folder / "results").unlink(missing_ok=True)
            assert wait_for_process(all_of_them.start("desk", desk)) == 0
            assert same(store, CASES)
            assert asked(store.folder / "requests") == CASES * REPEATS * ANSWERS


def test_experiment_in_one_process_with_sqlite_continues_after_kills(tmp_path: Path) -> None:
    store = RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path)
    moments = Random(3)  # noqa: S311 - likewise
    desk = partial(coordinate, store, CASES)
    with processes(store) as all_of_them:
        for _ in range(KILLS):
            all_of_them.start("desk", desk)
            time.sleep(moments.random() / 4)
            all_of_them.kill("desk")
        assert not (store.folder / "results").exists(), "there was nothing left to kill"
        assert wait_for_process(all_of_them.start("desk", desk)) == 0
    assert same(store, CASES)
    requests = CASES * REPEATS * ANSWERS
    assert requests <= asked(store.folder / "requests") <= requests + KILLS * 12


def test_provider_failure_is_asked_again_and_nothing_else_is(new_store: NewRunStore) -> None:
    store = new_store()
    store.folder.joinpath("fails").touch()

    def use(target: DurableTarget) -> None:
        before = [on(target, 3, None) for _ in range(2)]
        assert {one.outcome for each in before for one in each["base"].results} == {"provider"}
        assert [each.spent.calls for each in before] == [3 * REPEATS * 4, 3 * REPEATS]
        store.folder.joinpath("fails").unlink()
        after = on(target, 3, None)
        assert (after.reused, after.spent.calls) == (0, 3 * REPEATS * 2)
        write(store, after)
        again = on(target, 3, None)
        assert (again.reused, again.spent.calls) == (3 * REPEATS, 0)
        assert rows(again) == rows(after)

    run_in_process(store, partial(with_target, store, None, use))
    results = json.loads((store.folder / "results").read_text())
    expected = json.loads(uncut(store.folder, 3))
    for one in results + expected:
        del one["usage"]  # that of the failures is not known
    assert results == expected
    assert asked(store.folder / "requests") == 3 * REPEATS * (ANSWERS + 2)


def without_decisions(log: LoggedRun) -> list[LoggedEntry]:
    return [entry for entry in log.entries if not isinstance(entry, Asked | Decided)]


def test_run_of_an_experiment_can_wait_for_approval(new_store: NewRunStore) -> None:
    store = replace(new_store(), story=PAID, asks=True)
    kept: list[EvalRun] = []

    def use(runs: DurableRuns) -> None:
        def decide() -> None:
            while True:
                for waiting in runs.waiting():
                    runs.decide(waiting.wait_id, everything(waiting))
                time.sleep(0.05)

        def keep(case: Case, run: EvalRun) -> bool:
            kept.append(run)
            return True

        Thread(target=decide, daemon=True).start()
        case = Case(id="1", params=(Job("run"),))
        target = DurableTarget(runs, "agent")
        with TemporaryDirectory() as folder:
            for number in range(2):
                result = evaluate(
                    target,
                    [case],
                    repeats=REPEATS,
                    folder=folder,
                    evaluators=[evaluator(name=f"keep{number}")(keep)],
                )
                assert result.reused == number * REPEATS
                assert [one.outcome for one in result["base"].results] == ["answered"] * REPEATS
        assert len(kept) == 2 * REPEATS
        for run in kept:
            log = runs.log(run.session.session_id)
            assert without_decisions(run.log) == without_decisions(log)
            assert run.usage == usage_of(log)
            assert "pay" in [call.name for call in run.calls]
            session = runs.find("agent", run.session.session_id).session()
            assert run.session.snapshot().to_json() == session.snapshot().to_json()

    with_runs(store, use)


def test_cancelled_run_has_failed_and_continues_in_the_next_experiment(
    new_store: NewRunStore,
) -> None:
    store = replace(new_store(), story=PAID, asks=True)
    case = Case(id="1", params=(Job("run"),))

    def use(runs: DurableRuns) -> None:
        def review() -> None:
            while True:
                for waiting in runs.waiting():
                    if reviewer == ["cancel"]:
                        runs.cancel(waiting.run_id)
                    else:
                        runs.decide(waiting.wait_id, everything(waiting))
                time.sleep(0.05)

        reviewer = ["cancel"]
        Thread(target=review, daemon=True).start()
        target = DurableTarget(runs, "agent")
        (cancelled,) = evaluate(target, [case])["base"].results
        assert cancelled.outcome == "failed"
        assert "was cancelled" in cancelled.error
        reviewer.clear()
        (answered,) = evaluate(target, [case])["base"].results
        assert (answered.outcome, answered.key) == ("answered", cancelled.key)
        assert [run.run_id for run in runs.list_runs()] == [f"{answered.key}.2", answered.key]

    with_runs(store, use)
    requests = [words[1:] for words in store.facts.read() if words[0] == "provider"]
    assert len(requests) == len(PAID), requests


def test_options_that_workers_cannot_follow_are_rejected(tmp_path: Path) -> None:
    rejected: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"model": FunctionAdapter(echo)}, {}, "model= does not apply to the runs of the durable"),
        ({"settings": ModelSettings(temperature=0)}, {}, "settings= does not apply"),
        ({"config": RunConfig(max_turns=3)}, {}, "config= does not apply"),
        ({"timeout": 9}, {}, "timeout= does not apply"),
        ({"variants": [Variant(name="a", tag="short")]}, {}, "tag= does not apply"),
        ({"variants": [Variant(name="a", model="gpt-5")]}, {}, "model= does not apply"),
        ({}, {"files": {"a": b"b"}}, "a durable run cannot have files"),
        ({}, {"state": [Topic("x")]}, "the agent 'journal' has no state of Topic; pass types="),
        ({}, {"params": ()}, "the prompt needs params of Question"),
        ({}, {"params": (Question("\ud800"),)}, "JSON cannot hold this Question"),
        ({}, {"message": [Image.from_bytes(PNG)]}, "contains its bytes"),
        ({}, {"state": [Note("\ud800")]}, "surrogates not allowed"),
    ]

    def use(target: DurableTarget) -> None:
        for options, changes, problem in rejected:
            case = replace(Case(id="1", params=(Question("q"),)), **changes)
            with pytest.raises(ValueError, match=problem):
                evaluate(target, [case], **options)
        target.agent = "essay"
        with pytest.raises(ValueError, match="no agent 'essay' is installed; there are 'journal'"):
            evaluate(target, cases(1))

    store = RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path)
    run_in_process(store, partial(with_target, store, None, use))
    assert asked(store.folder / "requests") == 0


def test_key_of_a_run_depends_on_the_limits_of_its_agents_loop(store: RunStore) -> None:
    def summary(text: str) -> PromptTemplate[None]:
        return PromptTemplate(
            ns="evals", key="summary", sections=[MarkdownSection(title="Task", template=text)]
        )

    adapter = FunctionAdapter(echo)
    loops = [
        MainLoop(adapter),
        MainLoop(adapter, max_expansions=3),
        MainLoop(adapter, compaction=Compaction(9_000, 2)),
        MainLoop(adapter, compaction=Compaction(9_000, 2, summary=summary("Be brief."))),
        MainLoop(adapter, compaction=Compaction(9_000, 2, summary=summary("Be precise."))),
    ]

    def use() -> None:
        runs = install({f"{n}": durable(loop, journal().bind) for n, loop in enumerate(loops)})
        parts = [DurableTarget(runs, name).parts(adapter)["loop"] for name in runs.agents]
        assert len(set(parts)) == len(loops)

    run_in_process(store, use)


def test_budget_that_is_used_up_starts_no_more_runs(new_store: NewRunStore) -> None:
    store = new_store()

    def use(target: DurableTarget) -> None:
        cut = on(target, 9, None, budget=Budget(max_calls=2 * ANSWERS))
        assert Counter(one.outcome for one in cut["base"].results) == {"answered": 2, "unrun": 16}
        assert not cut.is_complete
        assert cut.spent.calls == 2 * ANSWERS
        whole = on(target, 9, None, prices=lambda usage, model: usage.total_tokens / 100)
        assert (whole.reused, whole.is_complete) == (2, True)
        assert whole.spent.cost == pytest.approx(16 * ANSWERS * 0.15)
        assert whole["base"].usage.cost == pytest.approx(18 * ANSWERS * 0.15)

    run_in_process(store, partial(with_target, store, None, use))


def test_run_that_no_worker_starts_ends_with_the_budgets_time(tmp_path: Path) -> None:
    def use(target: DurableTarget) -> None:
        target.queue = "unserved"
        unrun = on(target, 1, None, budget=Budget(max_seconds=1))
        assert [one.outcome for one in unrun["base"].results] == ["unrun"] * REPEATS
        assert "no worker of the queue 'unserved' has started" in unrun["base"].results[0].error
        target.queue = None
        done = on(target, 1, None)
        assert [one.outcome for one in done["base"].results] == ["answered"] * REPEATS

    store = RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path)
    run_in_process(store, partial(with_target, store, None, use))
    assert asked(store.folder / "requests") == REPEATS * ANSWERS
