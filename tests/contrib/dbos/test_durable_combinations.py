"""The columns for durable runs in the table of combinations; the log is in a real database."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from support.combinations import SHAPES, TABLE, oracle, runs
from support.cut_runs import FACES, Face, Outcome, play
from support.durable_cuts import Crash, play_durable
from support.durable_processes import RunStore
from support.run_trees import Shape, outside, seeded
from support.sizes import FULL, TODAY
from weakincentives.contrib.durable.sql_log_table import SqlLogTable

type NewTable = Callable[[], SqlLogTable]


@pytest.fixture
def table(new_store: Callable[[], RunStore]) -> Iterator[SqlLogTable]:
    made = SqlLogTable()
    made.open(new_store().url)
    yield made
    made.engine.dispose()


def cells() -> list[object]:
    """Returns the cells that are not empty, or one per row, a different one each day."""
    return [
        pytest.param(row.name, face, id=f"{row.name}-{face}")
        for number, row in enumerate(TABLE)
        for face in (FACES if FULL else [FACES[(TODAY + number) % len(FACES)]])
        if not {"SQLite", "PostgreSQL"} & row.empty.keys()
    ]


def without_payments(shape: Shape) -> Shape:
    """Returns the shape without tools whose outcome is unknown after a crash."""
    paid = ("pay", "mcp_append")
    tools = tuple(tool for tool in shape.tools if tool not in paid)
    always = tuple(tuple(tool for tool in level if tool not in paid) for level in shape.always)
    return replace(shape, tools=tools, always=always)


def compared(end: Outcome) -> Outcome:
    """Removes files in memory, which end with a process, and repeated requests."""
    return end._replace(files={}, asked=sorted({*end.asked}))


@pytest.mark.parametrize(("row", "face"), cells())
def test_durable_run_matches_the_oracle(row: str, face: Face, table: SqlLogTable) -> None:
    suspensions = 0
    for seed in runs(row):
        with outside() as out:
            tree = seeded(SHAPES[row], seed)
            end = play_durable(tree, out, table=table, faces=[face], prefix=f"{seed}")
            suspensions += out.suspensions
            assert end == oracle(row, seed)
    assert suspensions > 0


@pytest.mark.parametrize(("row", "face"), cells())
def test_crashed_durable_run_matches_the_oracle(row: str, face: Face, table: SqlLogTable) -> None:
    shape, chance = without_payments(SHAPES[row]), Random(row)  # noqa: S311 - not a secret
    for seed in runs(row):
        tree = seeded(shape, seed)
        crashes = [Crash(chance.randint(1, 8), chance.random() < 0.5) for _ in range(3)]
        with outside() as out:
            whole = play(tree, out)
        with outside() as out:
            end = play_durable(
                tree, out, table=table, faces=[face], crashes=crashes, prefix=f"{seed}"
            )
            assert compared(end) == compared(whole)
