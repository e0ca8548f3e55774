"""The table of combinations: each feature of a run by each entry point, uncut and cut once.

`tests/combinations.toml` contains the rows, with the cells that are empty or currently fail. Each
cell draws trees from the generator and compares them with the oracle, which runs with
`MainLoop.execute` and is never cut.
"""

import pytest

from support.combinations import SHAPES, TABLE, oracle, runs
from support.cut_runs import FACES, WAYS, Face, Way, play
from support.run_trees import outside, seeded


def cells(*, cut: bool) -> list[object]:
    """Returns the cells of the table that are not empty; a cell that fails is marked."""
    found = list[object]()
    for row in TABLE:
        for way in WAYS:
            reason = row.fault.get(way, "") if cut else ""
            mark = pytest.mark.xfail(
                strict=True, raises=(AssertionError, ValueError), reason=reason
            )
            for face in FACES if way not in row.empty else ():
                id_ = f"{row.name}-{way}.{face}"
                found.append(
                    pytest.param(row.name, way, face, id=id_, marks=[mark] if reason else [])
                )
    return found


def test_table_rows_match_the_tested_shapes() -> None:
    assert [row.name for row in TABLE] == list(SHAPES)
    for row in TABLE:
        assert {*row.empty, *row.fault} <= {*WAYS}
        assert not row.empty.keys() & row.fault.keys()


@pytest.mark.parametrize(("row", "way", "face"), cells(cut=False))
def test_run_by_any_entry_point_matches_the_oracle(row: str, way: Way, face: Face) -> None:
    for seed in runs(row):
        with outside() as out:
            assert play(seeded(SHAPES[row], seed), out, way=way, faces=[face]) == oracle(row, seed)


@pytest.mark.parametrize(("row", "way", "face"), cells(cut=True))
def test_suspended_run_matches_the_oracle(row: str, way: Way, face: Face) -> None:
    suspensions = 0
    for seed in runs(row):
        with outside() as out:
            tree = seeded(SHAPES[row], seed)
            end = play(tree, out, way=way, faces=[face], suspends=True)
            suspensions += out.suspensions
            assert end == oracle(row, seed)
    assert suspensions > 0


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("sections by injection", "tools_added"),
        ("sections by restart", "The drawer is open."),
        ("compaction", "summary"),
        ("fallback", "'model': 'second'"),
        ("repair", "'repair': True"),
        ("accept", "Not good enough."),
        ("at most once", "paid"),
        ("nested run", "said right"),
        ("nested in parallel", "said right"),
        ("approval by effects", "showed"),
        ("media", "image/gif"),
        ("MCP", "append"),
        ("skills", "Read the file."),
    ],
)
def test_runs_of_each_row_exercise_its_feature(row: str, text: str) -> None:
    assert any(text in str(oracle(row, seed)) for seed in runs(row))
