"""The fixture records a test's model if the test passes, and later plays it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.authors import Author

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
        ["*test_it.jsonl (mode 'none') does not exist", "*to record again, run pytest --cassette=*"]
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
