"""An experiment that was killed at any moment ends with the results of one that was not."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import eval_program

KILLS = int(os.environ.get("EVAL_KILLS", "3"))
PROGRAM = [sys.executable, "-m", "support.eval_program"]


def start(folder: Path) -> subprocess.Popen[str]:
    arguments = [folder / "evals", folder / "requests", folder / "results"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, text=True, env=environment
    )


def finish(folder: Path) -> tuple[str, int]:
    with start(folder) as process:
        process.communicate(timeout=60)
    assert process.returncode == 0
    return (folder / "results").read_text(), (folder / "requests").read_bytes().count(b"\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_an_experiment_that_is_killed_pays_for_no_answer_twice(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    expected, requests = finish(whole)
    assert requests == eval_program.CASES * eval_program.ANSWERS
    moments = random.Random(41)  # noqa: S311 - when to kill
    for _ in range(KILLS):
        process = start(killed)
        assert process.stdout is not None
        process.stdout.readline()  # after the first run, which may be a reused one
        time.sleep(moments.random() * 0.1)
        process.kill()
        process.wait()
        process.stdout.close()
    results, asked = finish(killed)
    assert results == expected
    assert requests <= asked <= requests + KILLS * eval_program.CONCURRENCY
