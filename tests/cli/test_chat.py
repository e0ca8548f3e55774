"""`wink chat` on a terminal, with typed keys, and in a pipe."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.commands import Wink, process
from support.terminals import Terminal

TALK = '''
import time
from collections.abc import Iterator
from dataclasses import dataclass

from weakincentives import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.citations import Citation
from weakincentives.evaluation.messages import UserMessage
from weakincentives.evaluation.response import TextDelta
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class Order:
    item: str


@dataclass(frozen=True)
class Answer:
    text: str


def order(params: Order, *, context: ToolContext) -> ToolResult[Order]:
    """Order an item."""
    if params.item == "elephant":
        time.sleep(600)
    context.session.dispatch(params)
    return ToolResult(message="Ordered.", value=params)


sections = [
    MarkdownSection(title="Task", template="Help."),
    MarkdownSection(
        title="Orders",
        summary="How to order.",
        template="Order immediately.",
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool(name="order", handler=order)],
    ),
]
template = PromptTemplate(ns="shop", key="talk", sections=sections)
typed = PromptTemplate[Answer](ns="shop", key="typed", sections=sections)
OPEN = call(("read_section", {"section_key": "orders"}))


def answer(seen):
    """Orders what the user asks for; else repeats what the user has said so far."""
    said = [message.content for message in seen.messages if isinstance(message, UserMessage)]
    wanted = said[-1].removeprefix("order ")
    if said[-1] == "fail":
        return PromptEvaluationError("the provider is down", phase="request", code="unreachable")
    if said[-1] == "steer":
        return say("\\x1b[2Jhi")
    last = seen.messages[-1]
    if wanted == said[-1] or getattr(last, "content", "").startswith("Ordered"):
        return say("You said: " + ", ".join(said))
    if "order" not in seen.tool_names:
        return OPEN
    return call(("order", {"item": wanted}))


class Streaming(ScriptedAdapter):
    """Streams word by word."""

    def ask_stream(self, request) -> Iterator:
        message = self.ask(request)
        for word in message.text.split(" ") if message.text else []:
            yield TextDelta(word + " ")
        yield message


def model():
    return Streaming([answer] * 20)


def restarting():
    return Streaming([answer] * 20, dynamic_tools=False)


def slow():
    def wait(seen):
        print("asked", flush=True)
        time.sleep(600)

    return Streaming([wait, *[answer] * 20])


def citing():
    source = Citation(url="https://example.org/" + "a" * 100, title="Docs\\x1b[2J", start=0, end=3)
    return ScriptedAdapter([say("Yes.", reasoning="I think\\nfirst.", citations=[source])])


def mistaken():
    return Streaming([say('{"reply": 1}'), say('{"text": "ok"}')])


def writing():
    """Writes a typed answer slowly, after one that is rejected."""

    class Writing(ScriptedAdapter):
        def ask_stream(self, request) -> Iterator:
            message = self.ask(request)
            for character in message.text:
                time.sleep(0.02)
                yield TextDelta(character)
            yield message

    text = "all \\\\u2705 \\\\u001b[2J you wanted to know about it"
    return Writing([say('{"text": 1, "reply": "no"}'), say(f'{{"text": "{text}"}}')])


def talkative():
    """Writes before it asks for the section, which starts the evaluation again."""
    look = OPEN.__class__(text="Let me look.", tool_calls=OPEN.tool_calls, finish="tool_calls")
    return Streaming([look, say("Done.")], dynamic_tools=False)
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "talk.py").write_text(TALK)
    return tmp_path


@contextmanager
def terminal(
    folder: Path, *arguments: str, command: str = "chat", kind: str = "dumb"
) -> Generator[Terminal]:
    made = Terminal(folder, command, *arguments, kind=kind)
    try:
        yield made
    finally:
        made.close()


TARGET = "talk:template", "--adapter", "talk:model"


def test_terminal_chat_shows_tool_calls_and_sections(folder: Path) -> None:
    with terminal(folder, *TARGET) as screen:
        screen.read_until("> ")
        assert "You said: hello \n> " in screen.say("hello")
        shown = screen.say("order tea").splitlines()
        steps = [
            *['  read_section {"section_key": "orders"}'],
            *["  read_section ok: Content of section 'orders': ## 2. Orders Order immediately."],
            *[
                "  new tools: order",
                '  order {"item": "tea"}',
                '  order ok: Ordered. {"item":"tea"}',
            ],
            "You said: hello, order tea ",
            "> ",
        ]
        assert shown[-len(steps) :] == steps
        assert screen.end() == 0


def test_reasoning_is_a_line_before_the_answer_and_its_sources_follow(folder: Path) -> None:
    with terminal(folder, "talk:template", "--adapter", "talk:citing") as screen:
        screen.read_until("> ")
        shown = screen.say("cite")
        url = "https://example.org/" + "a" * 100
        assert shown.endswith(
            f"  thinks: I think first.\nYes.\nsource: Docs?[2J {url} for “Yes”\n> "
        )
        assert screen.end() == 0


def test_ctrl_c_stops_the_turn_and_not_the_chat(folder: Path) -> None:
    with terminal(folder, *TARGET) as screen:
        screen.read_until("> ")
        screen.keys("order elephant\n")
        screen.read_until('  order {"item": "elephant"}\n')
        screen.press_until("\x03", "stopped; press Ctrl-D to end the chat\n> ")
        assert "You said: order elephant, still there? \n" in screen.say("still there?")
        screen.keys("half a mess")
        screen.read_until("half a mess")  # otherwise readline may miss the signal while it starts
        screen.press_until("\x03", "press Ctrl-D to end the chat\n> ")
        screen.keys("yes\n")
        screen.read_until("You said: order elephant, still there?, yes \n")
        screen.read_until("> ")
        assert screen.end() == 0


def test_ctrl_c_during_a_request_stops_the_turn(folder: Path) -> None:
    with terminal(folder, "talk:template", "--adapter", "talk:slow") as screen:
        screen.read_until("> ")
        screen.keys("hello\n")
        screen.read_until("hello\nasked\n")
        screen.press_until("\x03", "stopped; press Ctrl-D to end the chat\n> ")
        assert "You said: hello, again \n" in screen.say("again")
        assert screen.end() == 0


def test_saved_chat_can_be_resumed(folder: Path) -> None:
    with terminal(folder, *TARGET, "--save", "chat.json") as screen:
        screen.read_until("> ")
        screen.say("order tea")
        assert screen.end() == 0
    with terminal(folder, *TARGET, "--resume", "chat.json") as screen:
        assert screen.read_until("> ") == "chat.json: continues after 1 turn\n> "
        shown = screen.say("order milk")
        assert "read_section" not in shown  # the section is still open
        assert "You said: order tea, order milk" in shown
        assert screen.end() == 0
    slices = json.loads((folder / "chat.json").read_text())["slices"]
    assert slices["talk:Order"] == [{"item": "tea"}, {"item": "milk"}]
    assert [path.name for path in folder.glob("chat*")] == ["chat.json"]
    assert (folder / "chat.json").stat().st_mode & 0o077 == 0


def test_chat_killed_during_a_turn_is_saved_up_to_the_previous_turn(folder: Path) -> None:
    with terminal(folder, *TARGET, "--save", "chat.json") as screen:
        screen.read_until("> ")
        screen.say("hello")
        screen.keys("order elephant\n")
        screen.read_until('  order {"item": "elephant"}\n')
    with terminal(folder, *TARGET, "--resume", "chat.json") as screen:
        screen.read_until("> ")
        assert "You said: hello, so \n" in screen.say("so")


def test_rejected_text_is_marked_as_discarded(folder: Path) -> None:
    with terminal(folder, "talk:typed", "--adapter", "talk:mistaken") as screen:
        screen.read_until("> ")
        shown = screen.say("hello").splitlines()
        assert shown[-5] == '{"reply": 1} '
        assert shown[-4].startswith("  rejected: Your answer does not fit the required JSON schema")
        assert shown[-3] == "  the text above is discarded"
        assert shown[-2] == '{"text": "ok"} '


WRITING = "talk:typed", "--adapter", "talk:writing"


def test_terminal_chat_shows_a_typed_answer_while_it_arrives(folder: Path) -> None:
    with terminal(folder, *WRITING, kind="xterm") as screen:
        screen.read_until("> ")
        screen.keys("hello\n")
        started = screen.read_until('"text": "all ✅')  # formatted, with its escapes replaced
        assert "  rejected: Your answer does not fit" in started
        assert "the text above is discarded" not in started  # nothing of it is left
        rest = screen.read_until("\n> ")
        assert '"text": "all ✅ \\u001b[2J you wan' in rest
        assert "\x1b[2J" not in started + rest
        complete = '{\n  "text": "all ✅ \\u001b[2J you wanted to know about it"\n}\n> '
        assert rest.endswith(complete)  # replaces the live one, with the same layout
        assert '{"text"' not in rest
        assert screen.end() == 0


def test_terminal_run_shows_a_typed_answer_while_it_arrives(folder: Path) -> None:
    with terminal(folder, *WRITING, command="run", kind="xterm") as screen:
        shown = screen.read_until('"output"')
        assert '"text": "all ✅ \\u001b[2J you' in shown
        assert shown.index('"text": "all') < shown.index("know about it")
        assert "\x1b[2J" not in shown
        assert '"restarts": 0' in screen.read_until("}\n")


def test_text_before_a_restart_is_marked_as_discarded(folder: Path) -> None:
    with terminal(folder, "talk:template", "--adapter", "talk:talkative") as screen:
        screen.read_until("> ")
        shown = screen.say("hello").splitlines()
        assert shown[-4:] == [
            "  restarts with orders open: Adapter does not support dynamic tools",
            "  the text above is discarded",
            "Done. ",
            "> ",
        ]


def test_failed_turn_is_reported_in_one_line_and_the_chat_continues(folder: Path) -> None:
    with terminal(folder, *TARGET) as screen:
        screen.read_until("> ")
        assert screen.say("fail").endswith("\nwink: the provider is down [request/unreachable]\n> ")
        assert "You said: fail, and now? \n" in screen.say("and now?")


def test_model_output_cannot_control_the_terminal(folder: Path) -> None:
    with terminal(folder, *TARGET) as screen:
        screen.read_until("> ")
        assert "?[2Jhi" in screen.say("steer")


# --------------------------------------------------------------------------------------------------
# in a pipe


@pytest.fixture
def wink(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Wink:
    return Wink(folder, monkeypatch, capsys)


def test_piped_lines_are_messages_and_answers_go_to_stdout(wink: Wink) -> None:
    done = wink("chat", *TARGET, stdin="hello\n\norder tea\n")
    assert done.returncode == 0
    assert done.stdout == "You said: hello\nYou said: hello, order tea\n"
    assert done.stderr.splitlines()[-1] == '  order ok: Ordered. {"item":"tea"}'


def test_piped_chat_does_not_print_a_rejected_answer(wink: Wink) -> None:
    done = wink("chat", "talk:typed", "--adapter", "talk:mistaken", stdin="hello\n")
    assert done.stdout == '{"text": "ok"}\n'
    [line] = done.stderr.splitlines()
    assert line.startswith("  rejected: ")


def test_message_after_the_target_is_the_first_one(folder: Path, wink: Wink) -> None:
    done = wink("chat", "talk:template", "hello", *TARGET[1:], stdin="again\n")
    assert done.stdout == "You said: hello\nYou said: hello, again\n"
    with terminal(folder, "talk:template", "hello", *TARGET[1:]) as screen:
        screen.read_until("You said: hello \n> ")
        assert "You said: hello, again \n" in screen.say("again")
        assert screen.end() == 0


def test_piped_chat_ends_at_a_failure_and_is_saved(wink: Wink) -> None:
    done = wink("chat", *TARGET, "--save", "chat.json", stdin="hello\nfail\nmore\n")
    assert done.returncode == 1
    assert done.stdout == "You said: hello\n"
    assert done.stderr.splitlines()[-1] == "wink: the provider is down [request/unreachable]"
    on = wink("chat", *TARGET, "--resume", "chat.json", stdin="again\n")
    assert on.stdout == "You said: hello, fail, again\n"


def test_chat_is_logged(folder: Path, wink: Wink) -> None:
    wink("chat", *TARGET, "--log", "chat.jsonl", stdin="hello\n")
    shown = wink("show", "chat.jsonl").stdout
    assert "answer after 1 turn: You said: hello" in shown
    assert (folder / "chat.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--save", "taken.json"],
            "taken.json exists; continue it with --resume taken.json, or",
        ),
        (["--save", "no/where.json"], "No such file or directory"),
        (["--resume", "none.json"], "No such file or directory: 'none.json'"),
        (["--resume", "taken.json"], "taken.json is not a chat of talk:template"),
        (["--resume", "empty.json"], "empty.json has no chat of shop/talk"),
        (["--resume", "external.json"], "no type of that name is known here"),
    ],
)
def test_unusable_file_is_named_in_the_error(
    folder: Path, wink: Wink, arguments: list[str], message: str
) -> None:
    (folder / "taken.json").write_text("not JSON")
    (folder / "empty.json").write_text('{"version": 1, "slices": {}}')
    external = {"weakincentives.limits:TokenUsage": [{"input_tokens": 1}]}
    (folder / "external.json").write_text(json.dumps({"version": 1, "slices": external}))
    done = wink("chat", *TARGET, *arguments, stdin="hello\n")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("wink: ")
    assert message in line


def test_chat_command_runs_as_a_process(folder: Path) -> None:
    done = process(folder, "chat", *TARGET)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
