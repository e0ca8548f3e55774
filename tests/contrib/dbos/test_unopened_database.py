"""Pending runs in a database that no worker has opened, or in a wrong database."""

from pathlib import Path

import pytest

from support.durable_processes import RunStore, execute
from weakincentives.contrib.durable import WaitingRunsError, open_waiting_runs
from weakincentives.evaluation.approval import Approve


def check_unreadable(url: str, error: str) -> None:
    with open_waiting_runs(url) as runs:
        for use in (
            runs.waiting,
            lambda: runs.decide("x", {"call": Approve()}),
            lambda: runs.cancel("x"),
        ):
            with pytest.raises(WaitingRunsError, match=error):
                use()


def test_database_without_tables_is_reported(empty_store: RunStore) -> None:
    if empty_store.url.startswith("sqlite"):
        (empty_store.folder / "runs.db").touch()
    check_unreadable(empty_store.url, r"workflow_status.*that a worker has opened it")


def test_missing_sqlite_file_is_named_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "bils.db"
    with pytest.raises(WaitingRunsError, match=r"bils\.db'; start a worker first"):  # noqa: SIM117
        with open_waiting_runs(f"sqlite:///{path}"):
            pass
    assert not path.exists()


def test_tables_of_another_program_are_reported(empty_store: RunStore) -> None:
    if empty_store.url.startswith("sqlite"):
        execute(empty_store.url, "CREATE TABLE workflow_status (name TEXT)")
    else:
        table = "CREATE TABLE dbos.workflow_status (name TEXT)"
        execute(empty_store.url, "CREATE SCHEMA dbos", table)
    check_unreadable(empty_store.url, r"cannot be read: (no such )?(column|table|relation)")


def test_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_text("Not a database. " * 100)
    with pytest.raises(WaitingRunsError, match=r"cannot be read: file is not a database"):  # noqa: SIM117
        with open_waiting_runs(f"sqlite:///{tmp_path}/runs.db") as runs:
            runs.waiting()
