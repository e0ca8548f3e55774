"""The stores for tests of durable runs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from support.durable_processes import NewRunStore, Postgres, RunStore, postgres_server
from support.durable_runs import PAID


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewRunStore:
    """Returns a function that creates a store with a folder for its facts."""
    numbers = count(1)

    def new() -> RunStore:
        folder = tmp_path / f"store-{next(numbers)}"
        folder.mkdir()
        if request.param == "sqlite":
            return RunStore(f"sqlite:///{folder}/runs.db", folder)
        return RunStore(request.getfixturevalue("postgres").database(), folder)

    return new


@pytest.fixture
def new(new_store: NewRunStore) -> NewRunStore:
    """Returns a new store for suspended runs."""
    return lambda: replace(new_store(), story=PAID, asks=True)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
    """Returns a store whose database has no tables; on SQLite, its file does not exist."""
    if request.param == "sqlite":
        return RunStore(f"sqlite:///{tmp_path}/runs.db", tmp_path)
    return RunStore(request.getfixturevalue("postgres").empty_database(), tmp_path)
