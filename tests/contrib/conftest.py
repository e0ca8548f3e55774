"""Tests that need DBOS are left out where it is not installed, and one line says so."""

from importlib.util import find_spec

import pytest

# A folder named after the package that its tests need.
collect_ignore = [] if find_spec("dbos") else ["dbos"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore:
        terminalreporter.write_line(
            "Left out the tests of durable runs on DBOS: not installed, see `make test-durable`"
        )
