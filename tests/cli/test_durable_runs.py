"""`wink runs` without a database; `tests/contrib/dbos/test_wink_runs.py` has the other tests."""

import sys
from pathlib import Path

import pytest

from support.commands import Wink, process


@pytest.mark.parametrize("command", ["list", "create"])
def test_wink_runs_without_dbos_names_the_extra(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "dbos", None)
    done = Wink(tmp_path, monkeypatch, capsys)("runs", command, "sqlite:///runs.db")
    assert done.returncode == 2
    assert done.stderr.startswith("wink: A durable run needs DBOS; run pip install '.[durable]'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("age", ["30", "30w", "-1d", "9999999999d", f"{'9' * 5000}h"])
def test_invalid_age_is_reported(
    age: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wink = Wink(tmp_path, monkeypatch, capsys)
    done = wink("runs", "clean", "sqlite:///runs.db", f"--before={age}")
    assert done.returncode == 2
    assert done.stderr.startswith("wink: --before must be ")


def test_runs_help_does_not_import_dbos_or_sqlalchemy(tmp_path: Path) -> None:
    done = process(tmp_path, "runs", "--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert {"list", "cancel", "delete", "clean", "create"} <= set(done.stdout.split())
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert imported.isdisjoint({"dbos", "sqlalchemy"})
