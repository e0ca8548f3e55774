"""`wink runs` on real databases, in a process without agents."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest

from support.commands import Wink
from support.durable_kills import everything, payments
from support.durable_processes import (
    NewRunStore,
    Postgres,
    RunStore,
    dbos,
    execute,
    make_books,
    run_in_process,
    start_process,
    until,
    wait_for_process,
    with_runs,
)
from support.durable_runs import PAID, STORY, Job, Json, calls
from weakincentives.contrib.durable import DurableRuns
from weakincentives.limits import Deadline, utc_now


@pytest.fixture
def wink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Wink:
    return Wink(tmp_path, monkeypatch, capsys)


def decide_until_the_end(runs: DurableRuns, run_id: str) -> None:
    run = runs.find("agent", run_id)

    def decide() -> bool:
        for waiting in runs.waiting():
            if waiting.run_id == run_id:
                runs.decide(waiting.wait_id, everything(waiting))
        return run.status == "ended"

    until(decide, 30)


def start_runs_of_each_status(store: RunStore) -> None:
    """Creates runs whose ids are their statuses, oldest first, and a workflow `other`."""

    def work() -> None:
        runs = store.open()
        other = dbos.DBOS.workflow(name="other")(lambda: None)
        store.launch()
        with dbos.SetWorkflowID("other"):
            other()
        runs.start("agent", Job("x"), run_id="ended")
        decide_until_the_end(runs, "ended")
        late = Deadline(utc_now() - timedelta(seconds=1))
        runs.start("agent", Job("x"), run_id="failed", deadline=late)._end()
        runs.start("agent", Job("x"), run_id="cancelled")
        until(runs.waiting, 30)
        runs.cancel("cancelled")
        runs.start("agent", Job("x"), run_id="waiting")
        until(runs.waiting, 30)
        runs.start("agent", Job("x"), run_id="running", queue="nobody")

    run_in_process(store, work)


def listed(wink: Wink, url: str, *options: str) -> dict[str, Json]:
    done = wink("runs", "list", url, "--json", *options)
    assert done.returncode == 0, done.stderr
    return {run["run_id"]: run for run in json.loads(done.stdout)}


def rows(url: str, run_id: str) -> dict[str, int]:
    """Returns the number of rows in each table for a run and its parts."""
    status = "workflow_status" if url.startswith("sqlite") else "dbos.workflow_status"
    columns = {
        status: "workflow_uuid",
        "weakincentives_runs": "run_id",
        "weakincentives_log": "run_id",
    }
    counts = {
        table: execute(
            url,
            f"SELECT count(*) FROM {table} WHERE {column} = '{run_id}' "  # noqa: S608 - ours
            f"OR substr({column}, 1, {len(run_id) + 1}) = '{run_id}:'",
        )
        for table, column in columns.items()
    }
    return {table: count for table, [[count]] in counts.items()}


def move_into_the_past(url: str, run_ids: Sequence[str], days: int) -> None:
    """Changes the times at which all parts of runs started and ended."""
    table = "workflow_status" if url.startswith("sqlite") else "dbos.workflow_status"
    for run_id in run_ids:
        execute(
            url,
            f"UPDATE {table} SET created_at = created_at - {days * 86_400_000}, "  # noqa: S608 - ours
            f"completed_at = completed_at - {days * 86_400_000} "
            f"WHERE substr(workflow_uuid, 1, {len(run_id)}) = '{run_id}'",
        )


def test_wink_runs_lists_cancels_deletes_and_cleans_runs_of_each_status(
    new: NewRunStore, wink: Wink
) -> None:
    store = new()
    start_runs_of_each_status(store)
    runs = listed(wink, store.url)
    assert [*runs] == ["running", "waiting", "cancelled", "failed", "ended"]
    assert {run_id: run["status"] for run_id, run in runs.items()} == {key: key for key in runs}
    assert {run["agent"] for run in runs.values()} == {"agent"}
    shown = {run_id: wink("runs", "show", store.url, run_id).stdout for run_id in runs}
    assert shown["running"] == ""  # it has not begun
    assert "suspended for approval after" in shown["waiting"].splitlines()[-1]
    assert "answer after" in shown["ended"].splitlines()[-1]
    assert shown["ended"].count(": approve") > 1
    assert "cannot show run 'other' because" in wink("runs", "show", store.url, "other").stderr
    assert [run["pending"] for run in runs.values()] == [0, 2, 0, 0, 0]
    assert [run["attempts"] for run in runs.values()] == [0, 1, 1, 1, 4]
    assert [*listed(wink, store.url, "--status", "waiting")] == ["waiting"]
    table = [line.split() for line in wink("runs", "list", store.url).stdout.splitlines()]
    assert table[0][:3] == ["run", "agent", "status"]
    assert [line[:3] for line in table[1:]] == [[key, "agent", key] for key in runs]

    # a run that has not ended is not deleted, nor is anything else
    for run_id in ("waiting", "running"):
        refused = wink("runs", "delete", store.url, "ended", run_id)
        assert refused.returncode == 2
        assert f"cannot delete run '{run_id}' because it has not ended" in refused.stderr
    assert "is a part of run 'ended'" in wink("runs", "delete", store.url, "ended:wait-1").stderr
    assert listed(wink, store.url) == runs

    assert wink("runs", "cancel", store.url, "waiting").stdout == "cancelled waiting\n"
    assert wink("runs", "cancel", store.url, "running").stdout == "cancelled running\n"
    over = wink("runs", "cancel", store.url, "ended")
    assert over.returncode == 2
    assert "cannot cancel run 'ended' because it has ended: ended" in over.stderr
    for action, run_id in product(("cancel", "delete"), ("endes", "other")):
        unknown = wink("runs", action, store.url, run_id)
        assert unknown.returncode == 2
        assert f"cannot {action} run '{run_id}' because the database has no run" in unknown.stderr
    after = listed(wink, store.url)
    assert [run["status"] for run in after.values()] == ["cancelled"] * 3 + ["failed", "ended"]

    assert all(number > 2 for number in rows(store.url, "ended").values())
    done = wink("runs", "delete", store.url, "ended", "running")
    assert done.stdout == "deleted ended\ndeleted running\n"
    assert {*rows(store.url, "ended").values(), *rows(store.url, "running").values()} == {0}

    move_into_the_past(store.url, ["failed", "waiting"], 31)
    assert wink("runs", "clean", store.url, "--before", "32d").stdout.startswith("deleted 0 runs")
    assert wink("runs", "clean", store.url, "--before", "30d").stdout.startswith("deleted 2 runs")
    assert [*listed(wink, store.url)] == ["cancelled"]
    assert {*rows(store.url, "failed").values(), *rows(store.url, "waiting").values()} == {0}
    assert wink("runs", "clean", store.url).returncode == 2
    assert "must be a number of days" in wink("runs", "clean", store.url, "--before", "1w").stderr
    assert payments(store, "waiting") == []


def test_cancelled_and_deleted_run_stores_and_performs_nothing_more(
    new_store: NewRunStore, wink: Wink
) -> None:
    store = replace(new_store(), story=(*[calls(("note", '{"a": 1}'))] * 3, STORY[-1]))

    def hold(place: str) -> None:
        if place == "in tool":
            until(lambda: ["deleted"] in store.facts.read())

    def work() -> None:
        runs = replace(store, hook=hold).open()
        store.launch()
        run = runs.start("agent", Job("x"), run_id="run")
        with pytest.raises(dbos.error.DBOSException):
            run.result()
        until(lambda: "was cancelled during execution" in store.log.read_text(), 20)

    worker = start_process(work, store.log)
    until(lambda: "note" in str(store.facts.read()))
    assert wink("runs", "delete", store.url, "run").returncode == 2
    assert wink("runs", "cancel", store.url, "run").stdout == "cancelled run\n"
    assert wink("runs", "delete", store.url, "run").stdout == "deleted run\n"
    store.facts.add("deleted")
    assert wait_for_process(worker) == 0, store.log.read_text()
    assert store.facts.read()[-1] == ["deleted"]
    assert {*rows(store.url, "run").values()} == {0}


def test_list_without_all_shows_only_the_newest_100_runs(
    new_store: NewRunStore, wink: Wink
) -> None:
    store = new_store()

    def use(runs: DurableRuns) -> None:
        for number in range(101):
            runs.start("agent", Job("x"), run_id=f"run-{number}", queue="nobody")

    with_runs(store, use)
    done = wink("runs", "list", store.url)
    assert len(done.stdout.splitlines()) == 101
    assert "there are more than 100 runs; pass --all" in done.stderr
    assert [*listed(wink, store.url, "--all")] == [f"run-{number}" for number in range(100, -1, -1)]
    assert listed(wink, store.url, "--all", "--status", "ended") == {}


# --- Logs in the application's database


def test_log_option_reads_logs_from_another_database(
    new_store: NewRunStore, postgres: Postgres, tmp_path: Path, wink: Wink
) -> None:
    store = new_store()
    sqlite = store.url.startswith("sqlite")
    books = f"sqlite:///{tmp_path}/books.db" if sqlite else postgres.empty_database()
    make_books(books)
    store = replace(store, books=books, story=(calls(("book", '{"a": 2}')), STORY[-1]))
    run_in_process(store, store.work())
    assert [run["attempts"] for run in listed(wink, store.url).values()] == [None]
    assert [run["attempts"] for run in listed(wink, store.url, "--log", books).values()] == [1]
    refused = wink("runs", "delete", store.url, "run")
    assert refused.returncode == 2
    assert "this database has no table weakincentives_log; pass the URL" in refused.stderr
    assert wink("runs", "delete", store.url, "run", "--log", books).returncode == 0
    assert listed(wink, store.url, "--log", books) == {}
    assert execute(books, "SELECT * FROM weakincentives_log") == []


# --- Tables


def test_create_is_idempotent_and_its_tables_serve_a_worker(
    empty_store: RunStore, wink: Wink
) -> None:
    store = empty_store
    before = wink("runs", "list", store.url)
    assert before.returncode == 2
    assert "that a worker has opened it" in before.stderr or "start a worker" in before.stderr
    assert len(before.stderr.splitlines()) == 1
    assert not (store.folder / "runs.db").exists()
    for _ in range(2):
        done = wink("runs", "create", store.url)
        assert (done.returncode, done.stdout) == (0, "the tables are up to date\n"), done.stderr
        assert listed(wink, store.url) == {} or store.done(["run"])
        run_in_process(store, store.work())
    assert listed(wink, store.url)["run"]["status"] == "ended"


def test_worker_requires_only_row_privileges(
    postgres: Postgres, tmp_path: Path, wink: Wink
) -> None:
    url, role = postgres.empty_database(), f"worker_{tmp_path.name.replace('-', '_')}"
    assert wink("runs", "create", url).returncode == 0
    rights = "SELECT, INSERT, UPDATE, DELETE ON"
    execute(
        url,
        f'CREATE ROLE "{role}" LOGIN',
        f'GRANT USAGE ON SCHEMA dbos TO "{role}"',
        f'GRANT {rights} ALL TABLES IN SCHEMA dbos TO "{role}"',
        f'GRANT {rights} weakincentives_runs, weakincentives_log TO "{role}"',
    )
    own_url = url.replace("postgres@", f"{role}@")
    store = RunStore(own_url, tmp_path, story=PAID, asks=True)

    def use(runs: DurableRuns) -> None:
        runs.start("agent", Job("x"), run_id="run", queue=None)
        decide_until_the_end(runs, "run")

    with_runs(store, use)
    assert [run["status"] for run in listed(wink, own_url).values()] == ["ended"]
    assert wink("runs", "delete", own_url, "run").returncode == 0
    refused = wink("runs", "create", postgres.empty_database().replace("postgres@", f"{role}@"))
    assert refused.returncode == 2
    assert refused.stderr.startswith("wink: the tables of durable runs cannot be created: ")
    assert len(refused.stderr.splitlines()) == 1


# --- Databases that cannot be used


def test_errors_are_one_line_and_omit_the_password(
    postgres: Postgres, tmp_path: Path, wink: Wink
) -> None:
    missing = postgres.url("missing").replace("postgres@", "postgres:s3cret@")
    sqlite3.connect(tmp_path / "other.db").close()
    (tmp_path / "other.db").touch()
    urls = {
        missing: "does not exist",
        "postgresql://u:s3cret@127.0.0.1:1/runs": "127.0.0.1",
        "postgresql://u:s3cret@127.0.0.1:none/runs": "the database URL must be sqlite:///FILE",
        "postgresql://u:s3cret@127.0.0.1": "the database URL must be sqlite:///FILE",
        "mysql://u:s3cret@127.0.0.1/runs": "got 'mysql://…'",
        "s3cret": "got another one",
        f"sqlite:///{tmp_path}/none.db": "none.db'; start a worker first",
        f"sqlite:///{tmp_path}/other.db": "that a worker has opened it",
    }
    for url, error in urls.items():
        for arguments in (
            ("list", url),
            ("cancel", url, "run"),
            ("delete", url, "run"),
            ("clean", url, "--before", "1d"),
        ):
            done = wink("runs", *arguments)
            assert (done.returncode, done.stdout) == (2, ""), url
            assert error in done.stderr
            assert len(done.stderr.splitlines()) == 1
            assert "s3cret" not in done.stderr
    assert not (tmp_path / "none.db").exists()
    for url in ("mysql://u:s3cret@127.0.0.1/runs", "postgresql://u:s3cret@127.0.0.1:1/runs"):
        done = wink("runs", "create", url)
        assert done.returncode == 2
        assert "s3cret" not in done.stderr
    log = "postgresql://u:s3cret@127.0.0.1:1/books"
    done = wink("runs", "list", postgres.database(), "--log", log)
    assert done.returncode == 2
    assert "s3cret" not in done.stderr
