"""Tests that need DBOS or fetched skills are omitted where these are missing; a line says so."""

from importlib.util import find_spec
from pathlib import Path

import pytest

# The folders of tests, and the packages that they need.
_NEEDS = {"dbos": "dbos", "inspect": "inspect_ai"}
collect_ignore = [folder for folder, name in _NEEDS.items() if find_spec(name) is None]
if not Path(__file__).parents[2].joinpath(".skills").is_dir():
    collect_ignore.append("real_skills")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "real_skills" in collect_ignore:
        terminalreporter.write_line(
            "Left out the tests of shipped skills: not fetched, see `make test-skills`"
        )
    if "inspect" in collect_ignore:
        terminalreporter.write_line(
            "Left out the tests of prompts inside Inspect: not installed, see `make test-inspect`"
        )
    if "dbos" in collect_ignore:
        terminalreporter.write_line(
            "Left out the tests of durable runs on DBOS: not installed, see `make test-durable`"
        )
