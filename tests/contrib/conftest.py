"""Tests that need DBOS or fetched skills are omitted where these are missing; a line says so."""

from importlib.util import find_spec
from pathlib import Path

import pytest

# Each folder has the name of the package that its tests need.
collect_ignore = [name for name in ("dbos", "inspect_ai") if find_spec(name) is None]
if not Path(__file__).parents[2].joinpath(".skills").is_dir():
    collect_ignore.append("real_skills")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "real_skills" in collect_ignore:
        terminalreporter.write_line(
            "Left out the tests of shipped skills: not fetched, see `make test-skills`"
        )
    if "inspect_ai" in collect_ignore:
        terminalreporter.write_line(
            "Left out the tests of prompts inside Inspect: not installed, see `make test-inspect`"
        )
    if "dbos" in collect_ignore:
        terminalreporter.write_line(
            "Left out the tests of durable runs on DBOS: not installed, see `make test-durable`"
        )
