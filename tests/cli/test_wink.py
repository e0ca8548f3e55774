"""`wink` as a process: its output, its exit codes, and its terminal display."""

import json
import os
import pty
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command

from support.commands import Done, Wink, environment, process, write_shop
from support.scripted_server import Call, Fail, Say, ScriptedServer
from weakincentives.cli.app import app
from weakincentives.errors import missing_extra
from weakincentives.inspection.event_log import read_events


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    write_shop(tmp_path)
    return tmp_path


@pytest.fixture
def wink(shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Wink:
    return Wink(shop, monkeypatch, capsys)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


# ---------------------------------------------------------------------------------------------
# prompts


def test_render_prints_the_text_or_its_parts_as_json(shop: Path, wink: Wink) -> None:
    plain = process(shop, "render", "shop:template", "--set", "text=hi", "--open", "refunds")
    assert plain.returncode == 0, plain.stderr
    done = wink("render", "shop:template", "--set", "text=hi", "--open", "refunds", "--json")
    rendered = json.loads(done.stdout)
    assert plain.stdout == rendered["text"] + "\n"
    parts = {
        ".".join(span["path"]): rendered["text"][span["start"] : span["end"]]
        for span in rendered["spans"]
    }
    assert parts["task"] == "## 1. Task\n\nHelp, 100% of the time."
    assert parts["question"] == "## 3. Question\n\nhi"
    assert [tool["name"] for tool in rendered["tools"]] == ["refund"]
    assert rendered["tools"][0]["parameters"]["required"] == ["text"]
    assert rendered["output"]["name"] == "Answer"


def test_tree_shows_current_and_open_size_of_every_section(wink: Wink) -> None:
    done = wink("tree", "shop:template", "--set", "text=hi")
    rows = lines(done.stdout)
    assert rows[0] == "section shown tools characters tokens open"
    assert rows[1] == "1. task full 35 9 35"
    assert rows[2].startswith("2. refunds summary refund ")
    assert rows[4] == "4. old disabled"
    opened = lines(wink("tree", "shop:template", "--set", "text=hi", "--open", "refunds").stdout)
    assert opened[2].startswith("2. refunds full refund ")
    assert opened[2].split()[-1] == rows[2].split()[-1]


def test_tokens_are_estimated_without_tiktokens_data(shop: Path) -> None:
    done = process(shop, "tree", "shop:clean", TIKTOKEN_CACHE_DIR=str(shop))
    assert "Tokens: estimated at four characters each." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["shop:template"], 1),
        (["shop:template", "--ignore", "never-enabled"], 0),
        (["shop:template", "--ignore", "never-enabled:old"], 0),
        (["shop:template", "--ignore", "never-enabled:task"], 1),
        (["shop:clean"], 0),
    ],
)
def test_check_exits_with_1_for_a_warning_or_an_error(
    wink: Wink, arguments: list[str], code: int
) -> None:
    done = wink("check", *arguments)
    assert done.returncode == code, done.stdout
    assert done.stderr == ""


def test_check_reports_the_same_findings_in_every_format(wink: Wink) -> None:
    text = wink("check", "shop:template")
    assert lines(text.stdout) == [
        "warning: old: it is never enabled; enable it, or remove it [never-enabled]",
        "shop/support: 1 finding in 2 states of disclosure.",
    ]
    report = json.loads(wink("check", "shop:template", "--format", "json").stdout)
    assert report["prompt"] == "shop/support"
    assert [(finding["code"], finding["section_path"]) for finding in report["findings"]] == [
        ("never-enabled", ["old"])
    ]
    github = wink("check", "shop:template", "--format", "github")
    assert github.stdout == (
        "::warning title=never-enabled::shop/support old: it is never enabled; "
        "enable it, or remove it\n"
    )


def test_missing_params_error_names_the_command_line_options(shop: Path, wink: Wink) -> None:
    remedy = (
        "On the command line, pass them by --set Question.text=…, or by --params "
        "(section 'question')\n"
    )
    for command in (
        ["render", "shop:template"],
        ["tree", "shop:template"],
        ["run", "shop:template", "--adapter", ADAPTER],
    ):
        done = wink(*command)
        assert done.returncode == 2
        assert done.stderr.startswith(
            "wink: no Question is bound and it cannot be built without arguments ("
        )
        assert done.stderr.endswith(remedy)
    strict = STRICT.replace("Task", "Strict")
    (shop / "strict.py").write_text(strict)
    [finding, _] = wink("check", "strict:template").stdout.splitlines()
    assert finding.endswith("; pass them by --set Size.width=…, or by --params [cannot-check]")
    assert "bind" not in finding.partition("is bound")[2]


STRICT = """
from dataclasses import dataclass
from weakincentives import MarkdownSection, PromptTemplate

@dataclass(frozen=True)
class Size:
    width: int

def wide(params: Size) -> bool:
    return params.width > 3

template = PromptTemplate(
    ns="n", key="k", sections=[MarkdownSection[Size](title="Task", template="Wide.", enabled=wide)]
)
"""


# ---------------------------------------------------------------------------------------------
# runs

ADAPTER = "shop:scripted"

RUN = (
    "run",
    "shop:template",
    "--set",
    "text=hi",
    "--adapter",
    "shop:scripted",
    "--log",
    "run.jsonl",
)


def test_run_prints_progress_to_stderr_and_writes_a_log(shop: Path) -> None:
    done = process(shop, *RUN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "output": {"text": "Paid [bold]back[/]."},
        "text": '{"text": "Paid [bold]back[/]."}',
        "restarts": 0,
        "usage": {
            "input_tokens": 30,
            "output_tokens": 15,
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "reasoning_tokens": 0,
            "cache_write_1h_tokens": 0,
        },
    }
    progress = done.stderr.splitlines()
    assert "\x1b" not in done.stderr
    assert progress[1].startswith("turn 1: tool_calls, 10 tokens in, 5 out, ")
    assert progress[3:4] == ["  new tools: refund"]
    assert progress[5] == '  refund {"text": "A-7"} ok: Paid back. {"text":"A-7"}'
    assert progress[-1] == 'answer after 3 turns: {"text": "Paid [bold]back[/]."}'
    shown = process(shop, "show", "run.jsonl")
    assert [line[15:] for line in shown.stdout.splitlines()] == progress
    assert all(len(line[:15].strip()) == 12 for line in shown.stdout.splitlines())


AGENTS = """
from dataclasses import dataclass, field

from weakincentives import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.evaluation.messages import AssistantMessage, ToolCall
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class Question:
    text: str = field(metadata={"description": "The customer's words."})


def ask(params: Question, *, context: ToolContext) -> ToolResult[None]:
    think = MarkdownSection(title="Inner", template="Think.")
    inner = PromptTemplate(ns="shop", key="inner", sections=[think])
    answer = context.adapter.evaluate(inner.bind(), session=context.session, bus=context.event_bus)
    return ToolResult(message=answer.text)


def pay(params: Question, *, context: ToolContext) -> ToolResult[None]:
    raise LookupError("no such order")


tools = [Tool(name="ask", handler=ask), Tool(name="pay", handler=pay)]
sections = [MarkdownSection(title="Task", template="Help.", tools=tools)]
template = PromptTemplate(ns="shop", key="outer", sections=sections)
typed = PromptTemplate[Question](ns="shop", key="typed", sections=sections)
question = call(("ask", {"text": "Why?"}))
paying = call(("pay", {"text": "A-7"}))


def delegating():
    failure = RuntimeError("no provider")
    return ScriptedAdapter([question, say("thought"), question, failure, say("Done.")])


def failing():
    return ScriptedAdapter([paying, say("It failed.")])


def mistaken():
    refused = AssistantMessage(text="Let me see.", tool_calls=(ToolCall("1", "pay", '{"text": 7'),))
    return ScriptedAdapter([refused, say('{"reply": 1}'), say('{"text": "ok"}')])


def stubborn():
    return ScriptedAdapter([say('{"reply": 1}')] * 3)
"""


def test_nested_run_is_indented(shop: Path, wink: Wink) -> None:
    (shop / "agents.py").write_text(AGENTS)
    done = wink("run", "agents:template", "--adapter", "agents:delegating", "--log", "run.jsonl")
    assert done.returncode == 0, done.stderr
    shown = [line[15:] for line in wink("show", "run.jsonl").stdout.splitlines()]
    assert [line.split(", 10 tokens")[0].split(", 0 tokens")[0] for line in shown] == [
        "shop/outer: 17 characters, tools: ask, pay",
        "turn 1: tool_calls",
        "    shop/inner: 19 characters, tools: none",
        "    turn 1: stop",
        "    answer after 1 turn: thought",
        '  ask {"text": "Why?"} ok: thought',
        "turn 2: tool_calls",
        "    shop/inner: 19 characters, tools: none",
        "    turn 1: RuntimeError: no provider",
        "    failed after 1 turn: RuntimeError: no provider",
        '  ask {"text": "Why?"} failed: no provider',
        "turn 3: stop",
        "answer after 3 turns: Done.",
    ]


def test_run_shows_model_mistakes_and_feedback(shop: Path, wink: Wink) -> None:
    (shop / "agents.py").write_text(AGENTS)
    done = wink("run", "agents:typed", "--adapter", "agents:mistaken", "--log", "run.jsonl")
    assert done.returncode == 0, done.stderr
    shown = [line[15:] for line in wink("show", "run.jsonl").stdout.splitlines()]
    assert shown == done.stderr.splitlines()
    assert shown[1].startswith("turn 1: stop, ")
    assert shown[2] == "  says: Let me see."
    assert shown[3].startswith("""  pay {"text": 7 failed: Invalid arguments for 'pay': """)
    assert shown[5] == '  rejected: {"reply": 1}'
    assert shown[6].startswith("  feedback: Your answer does not fit the required JSON schema: ")
    assert shown[8] == 'answer after 3 turns: {"text": "ok"}'
    assert len(shown) == 9


def test_every_rejected_answer_is_shown(shop: Path, wink: Wink) -> None:
    (shop / "agents.py").write_text(AGENTS)
    done = wink("run", "agents:typed", "--adapter", "agents:stubborn", "--log", "run.jsonl")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-4] == '  rejected: {"reply": 1}'
    assert done.stderr.splitlines()[-3].startswith("  feedback: Your answer does not fit")
    shown = [line[15:].strip() for line in wink("show", "run.jsonl").stdout.splitlines()]
    assert [line for line in shown if line.startswith(("says", "reject"))] == [
        'rejected: {"reply": 1}'
    ] * 3


def test_expected_tool_failure_is_one_line_with_its_location(shop: Path, wink: Wink) -> None:
    (shop / "agents.py").write_text(AGENTS)
    done = wink("run", "agents:template", "--adapter", "agents:failing")
    assert done.returncode == 0, done.stderr
    line = AGENTS.splitlines().index('    raise LookupError("no such order")') + 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[2:4] == [
        f"Tool handler failed: pay: LookupError: no such order (agents.py:{line})",
        '  pay {"text": "A-7"} failed: no such order',
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_for_the_log_does_not_lose_the_answer(shop: Path) -> None:
    done = process(shop, *RUN[:-1], "/dev/full")
    assert done.returncode == 2
    assert json.loads(done.stdout)["output"] == {"text": "Paid [bold]back[/]."}
    assert "Traceback" not in done.stderr
    assert (
        done.stderr.splitlines()[-1]
        == "wink: /dev/full is incomplete: [Errno 28] No space left on device"
    )


def test_unprintable_characters_do_not_end_a_command(shop: Path, wink: Wink) -> None:
    assert wink(*RUN).returncode == 0
    log = shop / "run.jsonl"
    log.write_text(log.read_text().replace("Paid", "\u20ac \\ud800 \\u001b[2J"))
    done = process(shop, "show", "run.jsonl", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert r"ok: ? \ud800 ?[2J back." in done.stdout


def test_advise_sums_several_logs(wink: Wink) -> None:
    wink(*RUN)
    (refunds,) = [
        cost
        for cost in json.loads(wink("advise", "run.jsonl", "run.jsonl", "--json").stdout)
        if cost["opened"]
    ]
    assert (refunds["path"], refunds["requests"], refunds["opened"]) == ("refunds", 6, 2)
    table = lines(wink("advise", "run.jsonl").stdout)
    assert table[0] == "section or tool requests characters tokens* opened or called advice"
    assert any(row.startswith("shop/support refunds 3 ") and row.endswith(" FULL") for row in table)
    assert "* estimated at 4 characters each" in table
    assert any(row.startswith("refunds: FULL costs less. FULL: 2 requests x ") for row in table)


def test_terminal_shows_running_totals_during_the_run(shop: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "weakincentives.cli", *RUN],
        cwd=shop,
        env=environment(TERM="xterm", COLUMNS="100"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while chunk := read(ours):
        seen += chunk
    os.close(ours)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert json.loads(out)["restarts"] == 0
    text = seen.decode()
    sums = [
        "1 turn, 0 tool calls, 15 tokens",
        "2 turns, 1 tool call, 30 tokens",
        "3 turns, 2 tool calls, 45 tokens",
    ]
    places = [text.index(line) for line in sums]
    assert places == sorted(places)
    assert (
        text.index("turn 1: tool_calls") < places[0] < text.index("turn 2: tool_calls") < places[1]
    )
    assert "\x1b[2K" in text  # the line of sums is overwritten, not repeated


def test_log_cannot_control_the_terminal(wink: Wink) -> None:
    names = ["\x1b[31m", "\x9b2J", "\u202e", "[bold]x[/]"]
    events: list[dict[str, object]] = [
        {"event": "\x1bc", "created_at": "2026-01-01T\x1b[2J\n00:00"},
        {
            "event": "PromptRendered",
            "ns": "\x1b[",
            "key": "k",
            "name": "k",
            "text": "",
            "tool_names": names,
            "sections": [],
        },
    ]
    (wink.folder / "log").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    shown = wink("show", "log").stdout.splitlines()
    assert [" ".join(line.split()) for line in shown] == [
        "?[2J 00:00 ?c",
        "?[/k: 0 characters, tools: ?[31m, ?2J, ?, [bold]x[/]",
        "the log ends before this evaluation does",
    ]
    assert wink("advise", "log").returncode == 0


@pytest.mark.parametrize(
    "field", ["model", "name", "prompt_name", "adapter", "session_id", "arguments", "text"]
)
def test_log_with_a_lone_surrogate_in_any_name_can_be_read(wink: Wink, field: str) -> None:
    surrogate = chr(92) + "ud800"
    assert wink(*RUN).returncode == 0
    log = wink.folder / "run.jsonl"
    lines = re.sub(rf'("{field}": ")', lambda match: match[1] + surrogate, log.read_text())
    assert surrogate in lines
    log.write_text(lines.replace('"event_id"', f'"{surrogate}": 1, "event_id"'))
    for command in ("show", "advise", "report"):
        done = wink(command, "run.jsonl")
        assert (done.returncode, done.stderr) == (0, ""), command
    assert surrogate in (wink.folder / "run.html").read_text(encoding="utf-8")


def test_error_cannot_control_the_terminal(wink: Wink) -> None:
    (wink.folder / "evil.py").write_text('raise ValueError("\\x1b[2J")')
    assert (
        wink("render", "evil:prompt").stderr == "wink: importing 'evil' failed: ValueError: ?[2J\n"
    )


def test_prompt_printed_to_a_terminal_has_no_control_sequences(shop: Path, wink: Wink) -> None:
    ours, theirs = pty.openpty()
    command = ["render", "shop:template", "--set", "text=\x1b]0;title\x07"]
    done = subprocess.run(
        [sys.executable, "-m", "weakincentives.cli", *command],
        cwd=shop,
        env=environment(),
        stdout=theirs,
        check=True,
    )
    os.close(theirs)
    seen = b""
    while chunk := read(ours):
        seen += chunk
    os.close(ours)
    assert done.returncode == 0
    assert b"?]0;title?" in seen
    assert b"\x1b" not in seen
    # a pipe gets the text that the model is sent
    assert "\x1b]0;title\x07" in wink(*command).stdout


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # raised on Linux when the other end is closed
        return b""


def test_run_can_use_an_openai_compatible_server(shop: Path, wink: Wink) -> None:
    script = (
        Say(calls=(Call("read_section", {"section_key": "refunds"}),)),
        Say('{"text": "No."}'),
    )
    with ScriptedServer(*script) as server:
        where = (
            "--adapter",
            "openai",
            "--model",
            "m",
            "--api",
            "chat",
            "--base-url",
            server.openai_url,
        )
        done = wink("run", "shop:template", "--set", "text=hi", *where)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"] == {"text": "No."}
    assert [request.json["model"] for request in server.requests] == ["m", "m"]


def test_run_sends_the_message_after_the_target(wink: Wink) -> None:
    with ScriptedServer(Say("Hello.")) as server:
        where = ("--model", "openai:m", "--base-url", server.openai_url)
        done = wink("run", "shop:clean", "Where is A-7?", *where, OPENAI_API_KEY="test-key")
    assert json.loads(done.stdout)["text"] == "Hello."
    assert server.requests[0].json["input"][-1] == {"role": "user", "content": "Where is A-7?"}


def test_adapter_option_names_the_provider_of_a_fine_tuned_model(wink: Wink) -> None:
    with ScriptedServer(Say("Hello.")) as server:
        where = ("--model", "ft:m:org::id", "--adapter", "openai", "--base-url", server.openai_url)
        wink("run", "shop:clean", *where, OPENAI_API_KEY="test-key")
    assert server.requests[0].json["model"] == "ft:m:org::id"


@pytest.mark.parametrize("command", ["run", "chat"])
def test_settings_of_the_command_line_are_sent(wink: Wink, command: str) -> None:
    settings = ("temperature=0.2", "max_output_tokens=9", "reasoning=none", "top_p=1")
    options = [part for setting in settings for part in ("--setting", setting)]
    with ScriptedServer(Say("Hello.")) as server:
        where = ("--model", "openai:m", "--base-url", server.openai_url, *options)
        done = wink(command, "shop:clean", "Hi", *where, OPENAI_API_KEY="test-key")
    assert done.returncode == 0, done.stderr
    sent = server.requests[0].json
    assert [sent[name] for name in ("temperature", "max_output_tokens", "top_p")] == [0.2, 9, 1]
    assert sent["reasoning"] == {"effort": "none"}


def test_provider_failure_is_one_line_and_exit_code_1(shop: Path, wink: Wink) -> None:
    with ScriptedServer(Fail(401)) as server:
        where = ("--model", "openai:m", "--base-url", server.openai_url)
        done = wink("run", "shop:clean", *where, "--log", "run.jsonl", OPENAI_API_KEY="test-key")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("wink: openai 401: ")
    assert "Traceback" not in done.stderr
    records = list(read_events((shop / "run.jsonl").read_text().splitlines()))
    assert [record["event"] for record in records] == [
        "PromptRendered",
        "ProviderCalled",
        "EvaluationStopped",
    ]
    assert "test-key" not in (shop / "run.jsonl").read_text()


# ---------------------------------------------------------------------------------------------
# mistakes


ENDLESS = """\
{"event": "PromptRendered", "run_id": "1", "run_path": "", "ns": "n", "key": "k", "name": "k", \
"adapter": "a", "text": "t", "tool_names": [], "message": "", "changes": "", "sections": []}
{"event": "ProviderCalled", "run_id": "1", "run_path": "", "adapter": "a", "turn": 1e999, \
"seconds": 1SECONDS, "usage": {"input_tokens": 1, "output_tokens": 1, "cached_tokens": 0}, \
"cost": null, \
"finish": "stop", "tool_calls": 0, "error": null, "text": "Hi", "model": "m"}
""".replace("SECONDS", "0" * 400)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["render", "nope:x"], "importing 'nope' failed: ModuleNotFoundError"),
        (["render", "shop:template"], "no Question is bound"),
        (
            ["render", "shop:template", "--set", "Question.x=1"],
            "Question.text: Field required; Question.x: Unexpected",
        ),
        (
            ["check", "shop:template", "--params", "none.json"],
            "No such file or directory: 'none.json'",
        ),
        (
            ["run", "shop:clean", "--model", "m", "--adapter", "shop:template"],
            "must be an adapter or a function that returns one, got PromptTemplate",
        ),
        (
            ["render", "shop"],
            "'shop' must name the prompt; write it as package.module:name, such as shop:template",
        ),
        (["render", "./shop.py"], "such as shop:template"),
        (
            ["run", "shop:clean"],
            "a model is missing; pass its name, such as 'openai:gpt-5.2', or set WINK_MODEL",
        ),
        (
            ["run", "shop:clean", "--model", "gpt-5.2"],
            "--model: model 'gpt-5.2' names no provider; did you mean 'openai:gpt-5.2'? The",
        ),
        (
            ["run", "shop:clean", "--model", "ft:gpt-4o-mini:org::id"],
            "did you mean 'openai:ft:gpt-4o-mini:org::id'? The providers are openai,",
        ),
        (["run", "shop:clean", " "], "wink: the message is empty; write one, or leave it out"),
        (["chat", "shop:clean", ""], "wink: the message is empty; write one, or leave it out"),
        (
            ["run", "shop:clean", "--adapter", "shop:scripted", "--setting", "temprature=0"],
            "--setting 'temprature=0' is unknown; did you mean 'temperature'?",
        ),
        *[
            (
                ["run", target, "--adapter", "shop:scripted", "--set", "temperature=0"],
                "--set 'temperature=0': the params have no temperature; for the model, pass --sett",
            )
            for target in ("shop:clean", "shop:template")
        ],
        (
            ["run", "shop:clean", "--adapter", "shop:scripted", "--setting", "temperature"],
            "--setting must be name=value, got 'temperature'",
        ),
        (
            ["run", "shop:clean", "--adapter", "shop:scripted", "--setting", "reasoning=hihg"],
            "--setting 'reasoning=hihg': reasoning must be one of none, minimal, low,",
        ),
        (
            ["chat", "shop:clean", "--model", "openai:m", "--setting", "seed=1"],
            "wink: --setting: OpenAIAdapter for 'm' does not support the setting seed; its API, ",
        ),
        (["run", "shop:clean", "--adapter", "anthropic"], "--adapter anthropic requires --model"),
        (
            ["run", "shop:clean", "--adapter", "opnai", "--model", "m"],
            "unknown adapter 'opnai'; use openai, anthropic, litellm, claude-agent-sdk or",
        ),
        (
            ["show", "shop.py"],
            "shop.py: line 1 is not an event; name a log that `wink run --log` or write_events",
        ),
        (
            ["run", "shop:clean", "--model", "openai:m", "--api", "soap"],
            "api must be 'responses' or 'chat', got 'soap'",
        ),
        (
            ["run", "shop:clean", "--adapter", "shop:scripted", "--log", "no/where.jsonl"],
            "No such file or directory",
        ),
        (["show", "torn.jsonl"], "torn.jsonl: line 2 is not an event"),
        (["show", "other.jsonl"], "other.jsonl: an event lacks fields that wink writes"),
        (["show", "endless.jsonl"], "endless.jsonl: an event lacks fields that wink writes"),
        (["advise", "torn.jsonl"], "torn.jsonl: line 2 is not an event"),
        (
            ["advise", "good.jsonl", "lacking.jsonl"],
            "lacking.jsonl: an event lacks fields that wink writes",
        ),
        (["advise", "binary.jsonl"], "binary.jsonl: "),
    ],
)
def test_usage_error_is_one_line_on_stderr_and_exit_code_2(
    shop: Path, wink: Wink, arguments: list[str], message: str
) -> None:
    (shop / "torn.jsonl").write_text('{"event": "Event"}\n{"event": "Tool\n')
    (shop / "other.jsonl").write_text('{"event": "ProviderCalled"}\n')
    (shop / "endless.jsonl").write_text(ENDLESS)
    (shop / "good.jsonl").write_text('{"event": "Event"}\n')
    (shop / "lacking.jsonl").write_text(
        '{"event": "PromptRendered", "ns": "n", "key": "k", "sections": []}\n'
    )
    (shop / "binary.jsonl").write_bytes(b"\xff\xfe")
    done = wink(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("wink: ")
    assert message in done.stderr


def test_log_of_a_killed_run_is_read_without_its_incomplete_last_line(
    shop: Path, wink: Wink
) -> None:
    (shop / "torn.jsonl").write_text('{"event": "Event"}\n{"event": "Tool')
    for command in ("show", "advise"):
        done = wink(command, "torn.jsonl")
        assert (done.returncode, done.stderr) == (
            0,
            "wink: torn.jsonl: Line 2, the last one, is incomplete, so it was skipped\n",
        )


def test_failing_adapter_is_named(wink: Wink) -> None:
    done = wink("run", "shop:clean", "--adapter", "shop:speechless")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "wink: --adapter shop:speechless failed: ScriptExhaustedError: "
        "the script has no reply for request 1"
    )


def test_version_option_prints_the_version(shop: Path) -> None:
    assert process(shop, "--version") == Done(
        0, f"weakincentives {version('weakincentives')}\n", ""
    )


def test_unknown_option_is_a_usage_error(shop: Path, wink: Wink) -> None:
    done = wink("render", "shop:clean", "--nope")
    assert done.returncode == 2
    assert "No such option: --nope" in done.stderr


def test_missing_cli_extra_is_named_in_the_error() -> None:
    code = "import sys; sys.modules['typer'] = None; from weakincentives.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == f"{missing_extra('wink', 'typer', 'cli')}\n"


# -------------------------------------------------------------------------------------------- help
# and completion


def test_every_command_and_every_option_has_a_help_text() -> None:
    commands = getattr(get_command(app), "commands", {})
    assert {"render", "tree", "check", "run", "show", "advise"} <= set(commands)
    for command in commands.values():
        assert command.help
        assert [option.name for option in command.params if not getattr(option, "help", None)] == []


def test_completion_offers_the_commands(shop: Path) -> None:
    done = process(shop, _WINK_COMPLETE="complete_bash", COMP_WORDS="wink re", COMP_CWORD="1")
    assert done.stdout.split() == ["render", "report"]


def test_importing_the_package_does_not_import_the_cli() -> None:
    code = "import weakincentives, weakincentives.evaluation.main_loop, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert not {"typer", "rich", "yaml", "weakincentives.cli"} & set(done.stdout.split())
