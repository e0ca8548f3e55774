"""The stores that durable runs are tested on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.durable_processes import Postgres, RunStore, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


type NewRunStore = Callable[[], RunStore]


@pytest.fixture(params=["sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewRunStore:
    """Gives a new store with a folder for its facts."""
    made = 0

    def new() -> RunStore:
        nonlocal made
        made += 1
        folder = tmp_path / f"store-{made}"
        folder.mkdir()
        if request.param == "sqlite":
            return RunStore(f"sqlite:///{folder}/runs.db", folder)
        return RunStore(request.getfixturevalue("postgres").database(), folder)

    return new
