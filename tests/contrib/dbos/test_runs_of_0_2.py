"""A database with durable runs from weakincentives 0.2.0 is still read: see `tests/data/0.2`."""

from pathlib import Path
from shutil import copy

from weakincentives.contrib.durable import open_waiting_runs

FILES = Path(__file__).parents[2] / "data" / "0.2"


def test_suspended_run_of_0_2_is_listed_with_its_pending_call(tmp_path: Path) -> None:
    copy(FILES / "runs.db", tmp_path)
    with open_waiting_runs(f"sqlite:///{tmp_path / 'runs.db'}") as runs:
        [waiting] = runs.waiting()
    assert waiting.run_id == "run-that-waits"
    assert [preview.tool for preview in waiting.pending] == ["refund"]
