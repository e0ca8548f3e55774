"""The report is one file with the same content as `wink show`, and its data is never executed."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.agents import prompt
from support.commands import Wink, write_shop
from support.travel_run import approval_log, resumed_log, travel_log
from weakincentives.citations import Citation
from weakincentives.content import FolderContentStore
from weakincentives.inspection.event_log import Record, read_events, write_events
from weakincentives.inspection.report import ReportedRun, readable, write_report
from weakincentives.inspection.run_timeline import NO_END, read_run
from weakincentives.inspection.secrets import mask_secrets
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say

ASSETS = Path(__file__).parents[2] / "src/weakincentives/inspection"
HOSTILE = "</script><!--<script>alert(1)</script> \x1b[2J \u202eabc \ud800"


class Page(HTMLParser):
    """The data of a page, and the lines that it shows without JavaScript."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.data: dict[str, Any] = {}
        self.lines: list[str] = []
        self.tags: Counter[str] = Counter()
        self._script = ""
        self._new_line = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._script = dict(attrs).get("id") or "" if tag == "script" else ""
        if tag in {"h3", "summary", "p", "pre", "br"}:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if self._script:
            self.data[self._script] = json.loads(data)
        elif self.lines:
            self.lines[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._script = ""


@pytest.fixture
def wink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Wink:
    write_shop(tmp_path)
    with (tmp_path / "run.jsonl").open("w") as file:
        travel_log(file)
    return Wink(tmp_path, monkeypatch, capsys)


def page_of(wink: Wink, *arguments: str) -> Page:
    done = wink("report", *arguments)
    assert done.returncode == 0, done.stderr
    return Page(Path(wink.folder / done.stdout.strip()).read_text())


@pytest.mark.parametrize("kind", ["travel", "approvals", "cut"])
def test_report_contains_the_same_lines_as_show(wink: Wink, kind: str) -> None:
    if kind != "travel":
        with (wink.folder / "run.jsonl").open("w") as file:
            approval_log(file)
    if kind == "cut":
        lines = (wink.folder / "run.jsonl").read_text().splitlines(keepends=True)
        (wink.folder / "run.jsonl").write_text("".join(lines[:-1]))
    shown = [line[15:].strip() for line in wink("show", "run.jsonl").stdout.splitlines()]
    assert (NO_END in shown) == (kind == "cut")
    page = page_of(wink, "run.jsonl", "--secrets")
    lines = [" ".join(line.split()) for line in page.lines]
    for line in shown:
        name, _, text = line.partition(": ")
        beginning = line.removesuffix("…")
        if name in {
            "user",
            "changed",
            "says",
            "rejected",
        }:  # the page contains these as complete texts
            beginning = text.removesuffix("…")
        assert any(each.startswith(beginning) for each in lines), line
    turns = [line for line in shown if line.startswith("turn ")]
    assert [line for line in lines if line.startswith("turn ")] == turns
    assert [turn["line"] for turn in page.data["index"]["runs"][0]["turns"]] == turns
    calls = [line for line in shown if re.match(r"\w+ \{", line)]
    assert len([line for line in lines if re.match(r"\w+ \{.* (ok|failed): ", line)]) == len(calls)


def test_calls_of_a_resumed_run_precede_its_first_request(wink: Wink) -> None:
    with (wink.folder / "run.jsonl").open("w") as file:
        resumed_log(file)
    page = page_of(wink, "run.jsonl")
    index = page.data["index"]["runs"][0]
    waiting, resumed = (index["evaluations"][number] for number in index["top"])
    assert (waiting["end"], resumed["end"]) == ("suspended", "")
    assert [index["turns"][number]["number"] for number in resumed["turns"]] == [0, 2]
    first = index["turns"][resumed["turns"][0]]
    assert (first["calls"], first["decisions"], first["cost"]) == (["book"], ["approve"], 0)
    steps = page.data[f"t0-{resumed['turns'][0]}"]["steps"]
    [booked] = [step for step in steps if step["event"] == "ToolInvoked"]
    assert "+- IC 1832: 3 seats" in booked["changes"]["files"]["itinerary.md"]
    assert "before the first request\n" in page.lines


def test_report_contains_changes_of_calls_and_sections_of_each_turn(wink: Wink) -> None:
    data = page_of(wink, "run.jsonl").data
    index = data["index"]["runs"][0]
    messages = [index["evaluations"][number]["message"] for number in index["top"]]
    assert [message.split("\n")[0] for message in messages] == [
        "Six of us go to Ghent tomorrow morning. Please book seats.",
        "Four is fine. Pay for them.",
    ]
    failed = data["t0-1"]["steps"][1]
    assert (failed["name"], failed["success"]) == ("book", False)
    assert "+- IC 1832: 6 seats" in failed["changes"]["files"]["itinerary.md"]
    [inner] = data["t0-1"]["steps"][0]["evaluations"]
    assert index["evaluations"][inner]["turn"] == 1
    trees = [index["trees"][turn["tree"]] for turn in index["turns"]]
    states = [{row["path"]: row["visibility"] for row in tree} for tree in trees]
    assert [state.get("trains") for state in states[:2]] == ["summary", "full"]
    assert states[2].keys() == {"timetable"}
    assert index["turns"][1]["cached"] == 1172
    assert index["turns"][5]["rejected"] is True


def test_secrets_are_masked_unless_requested(wink: Wink) -> None:
    page_of(wink, "run.jsonl")
    assert "correct-horse" in (wink.folder / "run.jsonl").read_text()
    masked = (wink.folder / "run.html").read_text()
    assert "password=***" in masked
    assert "password=correct-horse" not in masked
    more = {"SHOP_TOKEN": "Ghent tomorrow"}
    done = wink("report", "run.jsonl", **more)
    assert done.returncode == 0
    assert "Six of us go to *** morning" in (wink.folder / "run.html").read_text()
    page_of(wink, "run.jsonl", "--secrets", "-o", "all.html")
    assert "password=correct-horse" in (wink.folder / "all.html").read_text()


def test_report_compares_two_runs(wink: Wink) -> None:
    assert (
        wink(
            "run", "shop:template", "--set", "text=x", "--adapter", "shop:scripted", "--log", "b"
        ).returncode
        == 0
    )
    page = page_of(wink, "run.jsonl", "b", "-o", "two.html")
    comparison = page.data["index"]["comparison"]
    assert comparison["rows"][0] == ["requests", 10, 3]
    assert comparison["rows"][1] == ["calls", 8, 2]
    assert "+Help, 100% of the time." in comparison["prompt"]
    assert {"t0-0", "t1-0"} <= page.data.keys()


def test_hostile_text_is_escaped(wink: Wink) -> None:
    records: list[Any] = list(read_events((wink.folder / "run.jsonl").read_text().splitlines()))
    clean = Page((wink.folder / page_path(wink)).read_text())

    def poison(value: Any, name: str = "") -> Any:
        match value:
            case str() if name not in {
                "event",
                "session_id",
                "event_id",
                "run_id",
                "run_path",
                "created_at",
            }:
                return value + HOSTILE
            case dict():
                return {key: poison(item, key) for key, item in value.items()}
            case list():
                return [poison(item, name) for item in value]
            case _:
                return value

    log = [json.dumps(poison(record)) for record in records]
    (wink.folder / "evil.jsonl").write_text("\n".join(log))
    evil = page_of(wink, "evil.jsonl")
    assert evil.tags["script"] == clean.tags["script"]
    assert evil.tags["img"] == 0
    text = (wink.folder / "evil.html").read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert r"\u001b[2J \u202eabc \ud800" in evil.data["t0-0"]["steps"][0]["content"]
    shown = wink("show", "evil.jsonl").stdout
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)


def page_path(wink: Wink) -> str:
    return wink("report", "run.jsonl").stdout.strip()


def test_images_are_embedded_if_their_content_is_available(wink: Wink) -> None:
    with (wink.folder / "run.jsonl").open("w") as file:
        travel_log(file, FolderContentStore(wink.folder / "content"))
    page = page_of(wink, "run.jsonl", "--content", "content")
    [media] = page.data["index"]["runs"][0]["evaluations"][0]["media"]
    assert page.data[f"m-{media['digest']}"].startswith("data:image/png;base64,")
    plain = page_of(wink, "run.jsonl", "--content", "elsewhere").data
    assert [name for name in plain if name.startswith("m-")] == []


def test_log_cannot_reference_files_outside_the_content_store(wink: Wink) -> None:
    log = wink.folder / "run.jsonl"
    [digest] = set(re.findall(r'"digest": "(\w{64})"', log.read_text()))
    (wink.folder / "secret").write_bytes(b"\x89PNG\r\n\x1a\n")
    log.write_text(log.read_text().replace(digest, "../secret"))
    assert not [name for name in page_of(wink, "run.jsonl", "--content", ".").data if "m-" in name]


def test_long_text_is_truncated_without_javascript() -> None:
    request: Record = {
        "event": "PromptRendered",
        "ns": "n",
        "key": "k",
        "text": "y" * 10_000_000,
        "tool_names": [],
    }
    pieces: list[str] = []
    write_report(
        [ReportedRun(name="r", run=read_run([readable(request)]), price=lambda _: None)],
        pieces.append,
    )
    static = "".join(pieces).partition("<noscript>")[2]
    assert "[9,996,000 more characters: needs JavaScript]" in static
    assert len(static) < 100_000


def test_report_assets_are_small_and_load_nothing_external() -> None:
    assets = [(ASSETS / f"report.{kind}").read_text() for kind in ("html", "css", "js")]
    assert sum(map(len, assets)) < 300_000
    assert not re.search(r"https?:|//\w|@import|url\(|innerHTML|eval\(", "".join(assets))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "b", "c"), "a report takes one or two logs, got 3"),
        (("run.jsonl", "-o", "run.jsonl"), "--output must not be the log itself, got run.jsonl"),
        (("shop.py",), "shop.py: line 1 is not an event"),
    ],
)
def test_invalid_report_arguments_are_rejected_with_a_reason(
    wink: Wink, arguments: tuple[str, ...], message: str
) -> None:
    done = wink("report", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def paths(value: Any) -> list[tuple[Any, ...]]:
    """Returns the paths of all values in JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [
        (key, *rest)
        for key, item in items
        for rest in [(), *(paths(item) if isinstance(item, dict | list) else [])]
    ]


NOWHERE = "not in the log"
WRONG = st.sampled_from([NOWHERE, None, 7, -1, 1e999, True, "x<b>", [], [None], {}, {"a": 1}])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_altered_log_gives_a_page_or_one_error_line(wink: Wink, data: st.DataObject) -> None:
    log, page = wink.folder / "external.jsonl", wink.folder / "external.html"
    page.unlink(missing_ok=True)
    lines = (wink.folder / "run.jsonl").read_text().splitlines()
    number = data.draw(st.integers(1, len(lines) - 1))
    record = json.loads(lines[number])
    *around, name = data.draw(st.sampled_from(paths(record)))
    inner = record
    for key in around:
        inner = inner[key]
    inner[name] = data.draw(WRONG)
    if inner[name] == NOWHERE:
        del inner[name]
    log.write_text("\n".join([*lines[:number], json.dumps(record), *lines[number + 1 :]]))
    done = wink("report", "external.jsonl")
    if done.returncode == 0:
        index = Page(page.read_text()).data["index"]
        assert len(index["runs"]) == 1
    else:
        assert "external.jsonl" in done.stderr
        assert "Traceback" not in done.stderr
        assert not page.exists()


@pytest.mark.parametrize(
    "text",
    [
        "password",
        "token",
        "eyJ",
        "eyJ.",
        "://",
        "://a:",
        "-----BEGIN ",
        "sk-",
        "Bearer ",
        "cookie  ",
    ],
)
def test_masking_secrets_takes_linear_time(text: str) -> None:
    def seconds(size: int) -> float:
        began = process_time()
        mask_secrets(text * (size // len(text)))
        return process_time() - began

    # quadratic time would be hundreds of times as much
    assert seconds(800_000) < 40 * max(seconds(100_000), 0.01)


def cited_report() -> str:
    """Returns the report of an answer with reasoning, a source on the web and hostile sources."""
    citations = [
        Citation(url='https://example.org/"><b>', title="<b>Docs</b>", start=0, end=4),
        Citation(url="javascript:alert(1)", title="Evil"),
        Citation(title="a.pdf", source="file_1"),
    ]
    session, log = Session(), StringIO()
    write_events(session.bus, log)
    adapter = ScriptedAdapter([say("Café.", reasoning="I think <b>hard</b>.", citations=citations)])
    adapter.evaluate(prompt(), session=session)
    run = read_run(read_events(log.getvalue().splitlines()))
    pieces: list[str] = []
    write_report([ReportedRun(name="run", run=run, price=lambda _: None)], pieces.append)
    return "".join(pieces)


def test_report_contains_reasoning_and_links_only_to_web_sources() -> None:
    text = cited_report()
    page = Page(text)
    [request] = page.data["t0-0"]["requests"]
    assert request["reasoning"] == "I think <b>hard</b>."
    first, second, third = request["citations"]
    assert (first["title"], first["start"], first["end"]) == ("<b>Docs</b>", 0, 4)
    assert (second["url"], third["source"]) == ("javascript:alert(1)", "file_1")
    static = text[text.index("<noscript>") : text.index("</noscript>")]
    assert "<summary>Reasoning</summary>\n<pre>I think &lt;b&gt;hard&lt;/b&gt;." in static
    assert re.findall(r'href="([^"]*)"', static) == ["https://example.org/&quot;&gt;&lt;b&gt;"]
    assert "<b>" not in static
    lines = [line.strip() for line in page.lines if line.startswith("cites:")]
    assert lines == ["cites: <b>Docs</b>", "cites: Evil", "cites: a.pdf"]
