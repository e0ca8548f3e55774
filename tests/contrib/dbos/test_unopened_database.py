"""Waiting runs of a database that no worker has opened, or that is another one."""

import sqlite3
from importlib import import_module
from pathlib import Path

import pytest

from support.durable_processes import Postgres
from weakincentives.contrib.durable import WaitingRunsError, open_waiting_runs
from weakincentives.evaluation.approval import Approve


def check_no_worker(url: str) -> None:
    with open_waiting_runs(url) as runs:
        with pytest.raises(WaitingRunsError, match=r"workflow_status.*that a worker has opened it"):
            runs.waiting()
        with pytest.raises(WaitingRunsError, match=r"workflow_status.*that a worker has opened it"):
            runs.decide("x", {"call": Approve()})
        with pytest.raises(WaitingRunsError, match=r"workflow_status.*that a worker has opened it"):
            runs.cancel("x")


def test_sqlite_file_without_tables_is_reported(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "runs.db").close()
    (tmp_path / "runs.db").touch()
    check_no_worker(f"sqlite:///{tmp_path}/runs.db")


def test_postgres_database_without_tables_is_reported(postgres: Postgres) -> None:
    check_no_worker(postgres.empty_database())


def test_missing_sqlite_file_is_named_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "bils.db"
    with pytest.raises(WaitingRunsError, match=r"bils\.db'; start a worker first"):  # noqa: SIM117
        with open_waiting_runs(f"sqlite:///{path}"):
            pass
    assert not path.exists()


def test_tables_of_another_program_are_reported(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("CREATE TABLE workflow_status (name TEXT)")
    connection.close()
    with open_waiting_runs(f"sqlite:///{tmp_path}/runs.db") as runs:
        with pytest.raises(WaitingRunsError, match=r"cannot be read: no such (column|table)"):
            runs.waiting()
        with pytest.raises(WaitingRunsError, match=r"cannot be read: no such (column|table)"):
            runs.decide("x", {})


def test_postgres_tables_of_another_program_are_reported(postgres: Postgres) -> None:
    url = postgres.empty_database()
    engine = import_module("sqlalchemy").create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA dbos")
        connection.exec_driver_sql("CREATE TABLE dbos.workflow_status (name TEXT)")
    engine.dispose()
    with (
        open_waiting_runs(url) as runs,
        pytest.raises(WaitingRunsError, match=r"cannot be read: (column|relation)"),
    ):
        runs.waiting()


def test_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_text("Not a database. " * 100)
    with pytest.raises(WaitingRunsError, match=r"cannot be read: file is not a database"):  # noqa: SIM117
        with open_waiting_runs(f"sqlite:///{tmp_path}/runs.db") as runs:
            runs.waiting()
