"""Runs the soak test for a few seconds, to check that it works; `make soak` runs it for an hour.

Runs with LiteLLM and the Claude CLI are in their conformance tests, where their SDKs are installed.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import soak
from support.sizes import only_full

SOAK = Path(__file__).with_name("soak.py")


@only_full
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the soak reads /proc")
def test_short_soak_plays_every_scenario_without_failures() -> None:
    process = subprocess.run(
        [
            sys.executable,
            SOAK,
            "--minutes",
            "0.05",
            "--runs",
            "60",
            "--every",
            "1",
            "--seed",
            "1",
            "scripted",
            "restarts",
            "chat",
            "chats",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stderr == ""
    assert "\n0 failed\n" in process.stdout, process.stdout
    assert set(re.findall(r"'chats (\w+)'", process.stdout)) == {
        *("chat", "mcp", "approval", "suspension", "nested"),
        *("fallback", "compaction", "restored"),
    }
    assert set(re.findall(r"'\w+ ([\w, ]+?) (scenario|composed)'", process.stdout)) == {
        (name, kind)
        for name in ("scripted", "scripted, starting again", "chat")
        for kind in ("scenario", "composed")
    }


def test_memory_may_grow_while_caches_fill_but_not_later() -> None:
    def seen(memory: list[float]) -> list[tuple[int, dict[str, float]]]:
        return [(10 * look, {"memory": held}) for look, held in enumerate(memory, 1)]

    assert soak.verdict(seen([100.0] * 4 + [150.0] * 16)) == []
    assert soak.verdict(seen([100.0 + look for look in range(20)])) != []
    # as on a busy machine
    few = [(look, {"memory": 100.0}) for look in range(1, 20)]
    assert soak.verdict([*few, *[(100 * look, {"memory": 150.0}) for look in range(1, 20)]]) == []
