"""The programs in tests/typing hold under both type checkers, at their strictest.

A line that must be refused carries both ignores, ``# type: ignore[code]  # pyright: ignore[rule]``:
each checker reports an ignore that it did not need, so a refusal that goes missing fails the test.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted(Path(__file__).with_name("typing").glob("*.py"))
ROOT = Path(__file__).parent.parent
# Pyright as installed: its own Node, no look-up of newer versions.
ENVIRONMENT = os.environ | {
    "PYRIGHT_PYTHON_GLOBAL_NODE": "0",
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.claim("DT-02", "TL-04", "TL-14")
def test_mypy_strict_agrees_with_every_program() -> None:
    ran = run(
        "mypy",
        "--strict",
        "--config-file=",  # the house's exemptions are not a user's
        "--enable-error-code=ignore-without-code",
        "--cache-dir=.mypy_cache/programs",
        *map(str, PROGRAMS),
    )
    if ran.returncode:
        pytest.fail(ran.stdout + ran.stderr, pytrace=False)


def test_pyright_strict_agrees_with_every_program() -> None:
    ran = run(
        "pyright", "--outputjson", "--project", "tests/typing", "--pythonpath", sys.executable
    )
    assert ran.stdout, ran.stderr
    report = json.loads(ran.stdout)
    faults = [
        f"{at['file']}:{at['range']['start']['line'] + 1}: {at['message']}"
        for at in report["generalDiagnostics"]
    ]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)
