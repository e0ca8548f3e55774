"""The fixture records a test's model if the test passes, and later plays it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.authors import HEAD, PLUGIN, Author

TEST = """
from weakincentives import MainLoop, MarkdownSection, PromptTemplate
from weakincentives.testing import ScriptedAdapter, say

TASK = MarkdownSection(title="Task", template="Help.")
TEMPLATE = PromptTemplate(ns="tests", key="played", sections=[TASK])

def ask(cassette, text="Recorded.", message="Hi"):
    adapter = cassette(ScriptedAdapter([say(text)]))
    return MainLoop(adapter).execute(TEMPLATE, message).text
"""


@pytest.fixture
def author(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Author:
    monkeypatch.delenv("CI", raising=False)
    return Author(pytester)


def recorded(author: Author) -> dict[str, str]:
    folder = author.pytester.path / "cassettes" / "test_shop"
    return {path.name: path.read_text() for path in sorted(folder.glob("*"))}


def test_new_file_is_recorded_and_then_played(author: Author) -> None:
    passing = TEST + "def test_it(cassette):\n    assert ask(cassette) == 'Recorded.'\n"
    author.runs(passing).assert_outcomes(passed=1)
    assert list(recorded(author)) == ["test_it.jsonl"]
    played = passing.replace("ask(cassette)", "ask(cassette, 'Other.')")
    author.runs(played).assert_outcomes(passed=1)
    author.runs(played, "--cassette=rewrite").assert_outcomes(failed=1)
    assert "Recorded." in recorded(author)["test_it.jsonl"]
    again = played.replace("'Recorded.'", "'Other.'")
    author.runs(again, "--cassette=rewrite").assert_outcomes(passed=1)
    assert "Other." in recorded(author)["test_it.jsonl"]


@pytest.mark.parametrize("mode", ["once", "none"])
def test_events_of_a_cassettes_runs_are_recorded_and_counted(author: Author, mode: str) -> None:
    test = TEST + (
        "def test_it(cassette, wink_events):\n    ask(cassette)\n"
        "    assert wink_events.names()[-1] == 'PromptExecuted'\n"
    )
    author.runs(test, "--cassette=once").assert_outcomes(passed=1)
    result = author.runs(test, f"--cassette={mode}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["tests/played: 1 of 1 sections opened in 1 test, *"])


def test_failed_test_records_nothing(author: Author) -> None:
    author.runs(TEST + "def test_it(cassette):\n    assert not ask(cassette)\n").assert_outcomes(
        failed=1
    )
    assert recorded(author) == {}


def test_nothing_is_recorded_in_ci(author: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = author.runs(TEST + "def test_it(cassette):\n    ask(cassette)\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_it.jsonl (mode 'none') does not exist",
            "*to record it, run pytest --cassette=once*",
        ]
    )


def test_network_is_out_of_reach_unless_the_test_can_record(author: Author) -> None:
    reaching = (
        "import socket\ndef test_it(cassette):\n"
        "    socket.create_connection(('api.openai.com', 443), timeout=5)\n"
    )
    result = author.runs(reaching, "--cassette=none")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*can connect only to this machine, got host 'api.openai.com'*"])


def test_each_parameter_and_each_cassette_of_a_test_has_its_own_file(author: Author) -> None:
    tests = (
        TEST
        + "import pytest\nIDS = ['a/b', r'a\\b', '../x', 'con', 'A', 'a', 'x' * 300, 'é', 'a:b']\n"
        + "@pytest.mark.parametrize('text', IDS)\n"
        + "def test_it(cassette, text):\n    assert ask(cassette, text) == text\n"
        + "    assert ask(cassette, 'Second.') == 'Second.'\n"
    )
    author.runs(tests).assert_outcomes(passed=9)
    files = recorded(author)
    assert len({name.lower() for name in files}) == 18
    assert max(len(name.encode()) for name in files) <= 120
    assert {*author.pytester.path.rglob("*.jsonl")} == {
        author.pytester.path / "cassettes" / "test_shop" / name for name in files
    }
    author.runs(tests, "--cassette=none").assert_outcomes(passed=9)


def test_answers_that_no_test_used_are_named_and_leave_in_a_rewrite(author: Author) -> None:
    two = TEST + (
        "def test_it(cassette):\n    c = cassette(ScriptedAdapter([say('a'), say('b')]))\n"
        "    for message in ('Hi', 'Ho'):\n        MainLoop(c).execute(TEMPLATE, message)\n"
    )
    author.runs(two).assert_outcomes(passed=1)
    one = two.replace("('Hi', 'Ho')", "('Hi',)")
    result = author.runs(one)
    result.stdout.fnmatch_lines(
        ["*cassettes with answers that no test used*", "*test_it.jsonl: 1 answers were not played"]
    )
    author.runs(one, "--cassette=none").assert_outcomes(passed=1)
    assert len(recorded(author)["test_it.jsonl"].splitlines()) == 3
    author.runs(one, "--cassette=rewrite").assert_outcomes(passed=1)
    assert len(recorded(author)["test_it.jsonl"].splitlines()) == 2


@pytest.mark.slow
def test_workers_that_record_one_path_keep_all_answers_or_fail(author: Author) -> None:
    """Both tests wait until the other one has its answer, so that both write the file."""
    tests = (
        TEST
        + """
import time
from pathlib import Path

@pytest.mark.parametrize("text", ["a", "b", "c", "d"])
def test_it(cassette, text):
    adapter = cassette(ScriptedAdapter([say(text)]), "shared.jsonl")
    assert MainLoop(adapter).execute(TEMPLATE, text).text == text
    Path(f"{text}.asked").touch()
    while len([*Path().glob("*.asked")]) < 4:
        time.sleep(0.01)
"""
    )
    author.pytester.makepyfile(test_shop=HEAD + tests)
    options = ("-n", "4", "-p", "no:cacheprovider", "-p", "no:randomly")
    result = author.pytester.runpytest_subprocess(*PLUGIN, *options)
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["errors"]) == (4, 3)
    result.stdout.fnmatch_lines(
        ["*shared.jsonl was recorded by another process or test; run again*"]
    )
    path = author.pytester.path / "shared.jsonl"
    first, line = map(json.loads, path.read_text().splitlines())
    assert first["cassette"] == 1
    assert line["replies"][0]["reply"]["text"] == line["messages"][-1]["content"]
    assert [*author.pytester.path.glob(".weakincentives-*")] == []


@pytest.mark.slow
def test_killed_rewrite_leaves_the_file_as_it_was(author: Author) -> None:
    replies = "c = cassette(ScriptedAdapter([say(it) for it in MESSAGES]))"
    asks = "for it in MESSAGES[:COUNT]: MainLoop(c).execute(TEMPLATE, it)"
    tests = (
        f"{TEST}COUNT, MESSAGES = 5, 'abcde'\ndef test_it(cassette):\n    {replies}\n    {asks}\n"
    )
    author.runs(tests).assert_outcomes(passed=1)
    before = recorded(author)
    assert len(before["test_it.jsonl"].splitlines()) == 6
    waiting = tests + "    open('ready', 'w').close()\n    import time; time.sleep(60)\n"
    waiting = waiting.replace("COUNT, MESSAGES = 5", "COUNT, MESSAGES = 3")
    author.pytester.makepyfile(test_shop=waiting)
    command = [sys.executable, "-m", "pytest", "--cassette=rewrite", "-p", "no:cacheprovider"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    ready = Path("ready")
    deadline = time.monotonic() + 60
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert recorded(author) == before
