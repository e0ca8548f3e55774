"""Every benchmark workload runs once, and RESULTS.md contains its rows."""

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import WORKLOADS
from support.sizes import only_full
from weakincentives import __version__

ROOT = Path(__file__).parent.parent
RESULTS = (ROOT / "benchmarks/RESULTS.md").read_text()


def rows(text: str) -> list[tuple[str, str, str]]:
    """Returns the workload, case and unit of each row in a table."""
    return re.findall(r"^\| (W\w+) +\| (.*) \(([^;()]+)[;)]", text, re.MULTILINE)


@only_full
def test_every_workload_runs_and_returns_the_rows_of_the_results() -> None:
    paths = os.pathsep.join([str(ROOT / "src"), *sys.path])
    process = subprocess.run(  # with all names, so that RESULTS.md does not change
        [sys.executable, "-m", "benchmarks", *WORKLOADS],
        cwd=ROOT,
        env=os.environ | {"BENCH_ONCE": "yes", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    table = rows(process.stdout)
    assert {workload for workload, _, _ in table} >= {*WORKLOADS}
    assert table == rows(RESULTS)


def test_results_have_the_current_version() -> None:
    assert f"; weakincentives {__version__}, " in RESULTS
