"""The stores that durable runs are tested on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.durable_lives import Lineage, Postgres, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


type NewLineage = Callable[[], Lineage]


@pytest.fixture(params=["sqlite", "postgres"])
def new_lineage(request: pytest.FixtureRequest, tmp_path: Path) -> NewLineage:
    """Gives a new store with a folder for its facts."""
    made = 0

    def new() -> Lineage:
        nonlocal made
        made += 1
        folder = tmp_path / f"store-{made}"
        folder.mkdir()
        if request.param == "sqlite":
            return Lineage(f"sqlite:///{folder}/runs.db", folder)
        return Lineage(request.getfixturevalue("postgres").database(), folder)

    return new
