"""The report in a real browser: clicks, keys, widths, dark, no script, hostile text, 50 MB."""

import json
import os
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from support.agents import prompt
from support.browser import AnyPage, open_browser
from support.commands import process
from support.travel_run import approval_log, resumed_log, travel_log
from weakincentives.citations import Citation
from weakincentives.content import FolderContentStore
from weakincentives.inspection.event_log import write_events
from weakincentives.inspection.run_timeline import NO_END
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say

PICTURES = os.environ.get("WINK_PICTURES")
HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><!-- "
    "\x1b[2J\u202eabc javascript:hacked=1 data:text/html,<script>hacked=1</script> \u2028\u2029]]>"
)
WIDTH = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"

type Open = Callable[..., AnyPage]


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log `run.jsonl`, its reports, and a report that compares two runs."""
    folder = tmp_path_factory.mktemp("reports")
    with (folder / "run.jsonl").open("w") as file:
        travel_log(file, FolderContentStore(folder / "content"))
    lines = (folder / "run.jsonl").read_text().splitlines(keepends=True)
    (folder / "first.jsonl").write_text("".join(lines[:15]))
    with (folder / "approvals.jsonl").open("w") as file:
        approval_log(file)
    cut = (folder / "approvals.jsonl").read_text().splitlines(keepends=True)[:-1]
    (folder / "approvals.jsonl").write_text("".join(cut))  # as if by a process that was killed
    report(folder, "approvals.jsonl")
    with (folder / "resumed.jsonl").open("w") as file:
        resumed_log(file)
    report(folder, "resumed.jsonl")
    report(folder, "run.jsonl", "--content", "content")
    report(folder, "first.jsonl", "run.jsonl", "-o", "two.html")
    return folder


def report(folder: Path, *arguments: str) -> None:
    done = process(folder, "report", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def open_page(browser: Any, folder: Path) -> Generator[Open]:
    """Opens a page in the folder; checks at the end that it sent no requests and had no errors."""
    contexts: list[Any] = []
    problems: list[str] = []
    requests: list[str] = []

    def open_page(name: str = "run.html", *, width: int = 1280, **options: Any) -> AnyPage:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_default_timeout(120_000)  # a busy machine may need many seconds
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.goto((folder / name).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert all(url.startswith(folder.as_uri()) for url in requests)
    assert len(requests) == len(contexts)


def chosen(page: AnyPage) -> str:
    return str(page.locator("[aria-current] > summary b").inner_text())


def picture(page: AnyPage, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / name)


def test_page_shows_the_section_tree_messages_and_changes_of_a_turn(open_page: Open) -> None:
    page = open_page()
    picture(page, "report.png")
    sums = " ".join(page.locator(".sums").inner_text().split())
    assert sums.startswith("10 requests new input tokens 2,596 cached 20,155 ")
    assert page.get_by_role("img", name="map.png").evaluate("each => each.naturalWidth") == 160
    tree = page.get_by_role("navigation")
    assert tree.locator("li").all_inner_texts()[1].split("\n")[:3] == ["◐", "trains", "summarized"]
    page.get_by_role("button", name="Turn 2: 214 new, 1,172 cached").click()
    assert "opened by read_section in turn 1" in tree.inner_text()
    changes = page.get_by_role("complementary").inner_text()
    assert "rolled back" in changes
    assert "Booking" in changes
    assert '+ {\n  "train": "IC 1832",' in changes
    assert "-Nothing yet.\n+- IC 1832: 6 seats" in changes
    calls = page.get_by_role("region", name="call of book")
    assert calls.nth(1).locator("pre").first.inner_text() == '{"train": "IC 1832", "count": '
    assert page.locator(".rejected .model").inner_text() == '{"train": "IC 1832"}'


def test_reasoning_is_folded_and_only_web_sources_are_links(open_page: Open, folder: Path) -> None:
    citations = [
        Citation(url="https://example.org/a?b=1", title="<b>Docs</b>", start=11, end=15),
        Citation(url="javascript:window.hacked = 1", title="Evil"),
    ]
    session = Session()
    with (folder / "cited.jsonl").open("w") as file:
        write_events(session.bus, file)
        reply = say("Préface 🐈. Café", reasoning=f"I think {HOSTILE}", citations=citations)
        ScriptedAdapter([reply]).evaluate(prompt(), session=session)
    report(folder, "cited.jsonl")
    page = open_page("cited.html")
    first, second = page.locator(".source").all()
    assert first.locator("a").get_attribute("href") == "https://example.org/a?b=1"
    assert first.inner_text() == "<b>Docs</b> · “Café”"
    assert second.inner_text() == "Evil"
    assert page.locator(".source a").count() == 1
    reasoning = page.locator("details", has_text="Reasoning").last
    assert reasoning.locator("pre").count() == 0
    reasoning.locator("summary").last.click()
    assert "I think </script>" in reasoning.locator("pre").last.inner_text()
    assert page.evaluate("window.hacked") is None


def test_approvals_appear_with_the_previewed_diff(open_page: Open) -> None:
    page = open_page("approvals.html")
    denied, approved = page.get_by_role("region", name="decision on book").all()
    assert "denied" in denied.inner_text()
    assert "Two are enough." in denied.inner_text()
    assert "+- IC 1832: 3 seats" in denied.locator(".added").all_inner_texts()
    assert "approved" in approved.inner_text()
    assert "+- IC 1832: 2 seats" in approved.locator(".added").all_inner_texts()
    assert page.locator("summary .chip", has_text="denied").count() == 1
    picture(page, "report-approval.png")
    waiting = page.get_by_role("region", name="pending call")
    assert "+- IC 1832: 3 seats" in waiting.locator(".added").all_inner_texts()


def test_page_starts_with_prompt_model_date_outcome_and_answer(open_page: Open) -> None:
    page = open_page()
    assert (page.title(), page.locator("h1").inner_text()) == ("travel/desk", "travel/desk")
    facts = page.locator(".facts").inner_text()
    assert re.fullmatch(r"Answered claude-sonnet-4-5 · \d{4}-\d\d-\d\d .* UTC · run.jsonl", facts)
    answer = page.get_by_role("region", name="final answer")
    assert answer.locator("pre").inner_text() == '{"train": "IC 1832", "price": 63.0}'
    assert answer.locator(".literal").inner_text() == "63.0"
    lines = page.locator(".said").all_inner_texts()
    assert [line for line in lines if line.startswith("answer after")][1:] == [
        "answer after 6 turns",
        "answer after 3 turns",
    ]
    stopped = open_page("approvals.html").locator(".facts").inner_text()
    assert stopped.startswith("The log ends before this evaluation does")


def test_waterfall_has_a_bar_for_each_request_and_call_on_one_scale(open_page: Open) -> None:
    page = open_page()
    bars = page.locator(".lanes i")
    assert (bars.count(), page.locator(".lanes .tool").count()) == (18, 8)
    boxes = [box.bounding_box() for box in bars.all()]
    starts = [box["x"] for box in boxes]
    assert starts[0] < starts[-1]
    assert starts == sorted(starts)
    assert page.locator(".scale span").first.inner_text() == "0.0 ms"
    assert chosen(page) == "Turn 1"
    bars.last.click(force=True)
    assert chosen(page) == "Turn 3"  # of the last run


def test_long_json_is_indented_and_keeps_every_digit(open_page: Open) -> None:
    page = open_page()
    text = page.evaluate(
        r"""() => jsonBlock('{"a": {}, "number": 12345678901234567890.10, "list": [1, "x\\\\"], '
          + '"text": "Six of us go to Ghent."}').innerText"""
    )
    assert text.split("\n")[:3] == ["{", '  "a": {},', '  "number": 12345678901234567890.10,']


def test_run_without_an_answer_shows_how_it_ended(open_page: Open) -> None:
    page = open_page("approvals.html")
    assert page.locator(".lead .chip").all_inner_texts() == [
        "Stopped by a limit",
        "Waiting for approval",
        "The log ends before this evaluation does",
    ]
    lines = page.locator(".said").all_inner_texts()
    assert any(line.startswith("stopped by a limit after 1 turn (budget): ") for line in lines)
    page = open_page("approvals.html", java_script_enabled=False)
    text = page.locator("noscript").text_content()
    for end in ("stopped by a limit after 1 turn (budget): ", "suspended for approval", NO_END):
        assert end in text


def test_keys_move_between_turns_and_into_nested_runs(open_page: Open) -> None:
    page = open_page()
    for key in ("j", "ArrowDown"):
        page.keyboard.press(key)
    focus = page.evaluate("document.activeElement.closest('.inner') !== null")
    assert (chosen(page), focus) == ("Turn 1", True)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert "timetable" in page.get_by_role("navigation").inner_text()
    page.keyboard.press("k")
    assert chosen(page) == "Turn 2"
    turn = page.locator("details[aria-current]")
    assert turn.evaluate("each => each.open")
    page.keyboard.press("Enter")
    assert not turn.evaluate("each => each.open")
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    assert page.locator(".bars button").nth(9).get_attribute("aria-current") == "true"
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_every_control_and_landmark_has_an_accessible_name(open_page: Open) -> None:
    page = open_page()
    names = page.evaluate(
        "[...document.querySelectorAll('button, summary, section, nav, aside')]"
        ".map(each => each.getAttribute('aria-label') || each.innerText.trim())"
    )
    assert all(names)
    snapshot = page.locator("main").aria_snapshot()
    for part in ('navigation "sections', 'complementary "changes', 'region "tokens of each'):
        assert part in snapshot


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["run.html", "two.html", "approvals.html"])
def test_page_does_not_scroll_horizontally(open_page: Open, name: str, width: int) -> None:
    page = open_page(name, width=width)
    page.evaluate("openAll()")
    scrolled, visible = page.evaluate(WIDTH)
    assert scrolled <= visible
    if name == "two.html" and width > 1000:
        picture(page, "report-two.png")


def test_two_runs_are_compared(open_page: Open) -> None:
    page = open_page("two.html")
    rows = page.locator("tbody tr").all_inner_texts()
    assert rows[:2] == ["requests\t5\t10", "calls\t5\t8"]
    assert "The first prompts are the same." in page.locator("main").inner_text()
    sides = [page.get_by_role("region", name=f"turns of {name}") for name in ("first", "run")]
    assert page.locator(".bars").nth(1).locator("button").count() == 10
    boxes = [side.bounding_box() for side in sides]
    assert boxes[0]["y"] == boxes[1]["y"]
    sides[1].get_by_text("Turn 3").first.click()
    assert "turn 3 of run.jsonl" in page.get_by_role("navigation").inner_text()


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_sufficient_contrast_in_both_color_schemes(open_page: Open, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    for _ in range(3):
        page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("k")
    if scheme == "dark":
        picture(page, "report-dark.png")
    colours = page.evaluate(
        """() => {
          const back = (node) => {
            const colour = getComputedStyle(node).backgroundColor;
            return colour === "rgba(0, 0, 0, 0)" ? back(node.parentElement) : colour;
          };
          return [...document.querySelectorAll("b, p, small, summary, pre, dt, .chip, .added")]
            .filter((node) => node.offsetParent)
            .map((node) => [getComputedStyle(node).color, back(node), node.innerText]);
        }"""
    )
    assert len(colours) > 50
    for text, back, words in colours:
        pair = sorted((luminance(text), luminance(back)))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, words
    page_colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(page_colour) < 0.1) == (scheme == "dark")


def test_messages_can_be_read_without_javascript(open_page: Open) -> None:
    page = open_page(java_script_enabled=False)
    answer = page.locator("noscript pre", has_text="The 9:05 is direct").last
    assert not answer.is_visible()
    page.locator("summary", has_text="turn 2: stop, 1,386 tokens in").click()
    assert page.locator("pre", has_text="I look for a train first").is_visible()
    page.locator("summary", has_text="research {").click()
    assert answer.is_visible()


def test_printed_page_has_every_turn_open(open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details.turn:not([open])").count() == 0
    assert page.locator(".side").first.evaluate("e => getComputedStyle(e).position") == "static"
    assert page.pdf().startswith(b"%PDF")
    assert page.get_by_role("region", name="changes in this turn").count() == 3
    assert not page.locator(".changes").is_visible()


def test_narrow_window_shows_changes_inside_their_turn(open_page: Open) -> None:
    page = open_page(width=400)
    assert not page.locator(".tree").is_visible()
    page.get_by_text("Sections at turn 1").click()
    assert page.locator(".tree").is_visible()
    assert not page.locator(".changes").is_visible()
    inline = page.get_by_role("region", name="changes in this turn")
    assert inline.first.is_visible()
    assert "+- IC 1832: 6 seats" in inline.first.inner_text()
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.locator(".changes").is_visible()
    assert not page.locator(".inline").first.is_visible()


def poison(value: Any, name: str = "") -> Any:
    match value:
        case str() if name not in {
            "event",
            "session_id",
            "run_id",
            "run_path",
            "event_id",
            "created_at",
        }:
            return value + HOSTILE
        case dict():
            return {key + HOSTILE * (name == "files"): poison(v, key) for key, v in value.items()}
        case list():
            return [poison(item, name) for item in value]
        case _:
            return value


def test_hostile_text_is_rendered_as_text(open_page: Open, folder: Path) -> None:
    records = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    evil = [json.dumps(poison(record)) for record in records]
    (folder / "evil.jsonl").write_text("\n".join(evil))
    long = json.loads(evil[3])
    (folder / "long.jsonl").write_text(
        "\n".join(
            [
                *evil[:3],
                json.dumps({**long, "content": "<b>" * 3_500_000, "arguments": "\x1b" * 10_000}),
            ]
        )
    )
    report(folder, "evil.jsonl")
    report(folder, "long.jsonl")
    pages = [open_page("evil.html"), open_page("long.html")]
    for page in pages:
        page.evaluate("openAll()")
        text = page.locator("main").inner_text()
        assert "<script>window.hacked = 1</script>" in text
        assert r"\u001b[2J\u202eabc" in text
        assert not re.search("[\x1b\u202e]", text)
        assert page.evaluate("window.hacked === undefined")
        assert page.locator("main img, main script, main b b").count() == 0
        scrolled, visible = page.evaluate(WIDTH)
        assert scrolled <= visible
    page = pages[1]
    page.get_by_role("button", name="Show all 10,500,000 characters").click()
    assert (
        page.locator(".call pre").nth(1).evaluate("each => each.textContent.length") == 10_500_000
    )


def test_malformed_record_does_not_break_the_rest_of_the_page(
    open_page: Open, folder: Path
) -> None:
    records = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    calls = [record for record in records if record["event"] == "ToolInvoked"]
    calls[0]["changes"] = {"state": {"Booking": [None]}, "files": None}
    calls[1]["content"], calls[2]["changes"] = None, {"state": {"Booking": 7}}
    (folder / "malformed.jsonl").write_text("\n".join(map(json.dumps, records)))
    report(folder, "malformed.jsonl")
    page = open_page("malformed.html")
    page.evaluate("openAll()")
    for _ in range(9):
        page.keyboard.press("j")
    assert page.locator(".bars button").nth(9).get_attribute("aria-current") == "true"
    text = page.locator("main").inner_text()
    assert "This record was not written by wink" in text
    assert "Paid with" in text


def test_log_of_50_mb_opens_in_less_than_three_seconds(open_page: Open, folder: Path) -> None:
    records = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    kinds = {record["event"]: record for record in records}
    filler = "A line of a file that a tool has read, 60 characters long.\n" * 800
    with (folder / "big.jsonl").open("w") as file:
        for record in records[:2]:
            file.write(json.dumps(record) + "\n")
        for turn in range(1_000):
            request = {**kinds["ProviderCalled"], "turn": turn + 1, "tool_calls": 1}
            call = {
                **kinds["ToolInvoked"],
                "content": filler,
                "result": {"success": True, "value": None},
            }
            file.write(json.dumps(request) + "\n" + json.dumps(call) + "\n")
    assert (folder / "big.jsonl").stat().st_size > 47_000_000
    report(folder, "big.jsonl")
    page = open_page("big.html")
    assert "requests 1 to 400 of 1,000" in page.locator("main").inner_text()
    assert chosen(page) == "Turn 1"
    # CPU time, because other tests may keep the machine busy
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable")
    metrics = tools.send("Performance.getMetrics")["metrics"]
    [seconds] = [metric["value"] for metric in metrics if metric["name"] == "ProcessTime"]
    assert 0 < seconds < 3
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    assert "A line of a file" in page.locator("details[aria-current] .call").inner_text()
    page.evaluate("choose(reach(0, 899))")
    assert chosen(page) == "Turn 900"
    page.keyboard.press("j")
    assert chosen(page) == "Turn 901"
    assert page.locator(".bars [aria-current]").count() == 1


def test_calls_of_a_resumed_run_can_be_opened(open_page: Open) -> None:
    page = open_page("resumed.html")
    assert page.locator(".sums").inner_text().startswith("2 requests")
    row = page.locator("details.turn", has_text="Turn before the first request")
    assert "+- IC 1832: 3 seats" in row.inner_text()
    assert "$" not in row.inner_text()
    row.locator("summary").first.click()
    assert "Changes in turn before the first request" in page.inner_text("body")
