"""Tests of an adapter whose SDK is not installed are omitted, and one line says so."""

from importlib.util import find_spec

import pytest

# Each folder has the name of the SDK that its tests need.
collect_ignore = [
    name for name in ("anthropic", "claude_agent_sdk", "litellm") if find_spec(name) is None
]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if collect_ignore:
        left_out = " and ".join(collect_ignore)
        terminalreporter.write_line(
            f"Left out the adapter tests for {left_out}: not installed, see `make test-adapters`"
        )
