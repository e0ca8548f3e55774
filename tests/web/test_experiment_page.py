"""The page of an experiment in a real browser: hostile text, keys, widths, dark, 300 MB of logs."""

import os
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.browser import AnyPage, open_browser
from support.eval_models import (
    FunctionAdapter,
    Question,
    calls,
    failed,
    question_cases,
    questions,
    say,
    turn_of,
)
from support.eval_results import experiment, variant
from support.own_thread import in_own_thread
from weakincentives.evals import Case, EvalRun, Experiment, Score, Variant, evaluate, evaluator
from weakincentives.evals.comparisons import compare
from weakincentives.evals.page import experiment_page
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.prompt import MarkdownSection, PromptTemplate

PICTURES = os.environ.get("WINK_PICTURES")
HOSTILE = (
    "</script><script>window.hacked = 1; alert(1)</script><img src=//evil.example/x "
    "onerror='window.hacked = 1; alert(1)'><!-- <iframe src=https://evil.example> "
    "javascript:alert(1) \u2028\u2029 \x1b[2J ]]> {{script}} $& $`"
)
WIDTH = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"

type Open = Callable[..., AnyPage]


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page of a small experiment, and with one of hostile texts."""
    folder = tmp_path_factory.mktemp("pages")
    small = in_own_thread(lambda: two_variants(folder))  # the driver has a loop in this one
    write(folder / "small.html", small, compared(small))
    evil = in_own_thread(lambda: hostile(folder))
    write(folder / "evil.html", evil, compared(evil))
    return folder


@pytest.fixture
def open_page(browser: Any, folder: Path) -> Generator[Open]:
    """Opens a page with the network off; checks that it made no request and opened no dialog."""
    contexts: list[Any] = []
    problems: list[str] = []
    requests: list[str] = []
    loads: list[str] = []

    def open_page(path: str | Path = "small.html", *, width: int = 1280, **options: Any) -> AnyPage:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, offline=True, **options
        )
        contexts.append(context)
        context.set_default_timeout(20_000)  # a busy machine may need many seconds
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("domcontentloaded", lambda loaded: loads.append(loaded.url))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.goto((folder / path).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert all(url.startswith("file:") and url.endswith(".html") for url in requests)
    assert len(requests) == len(loads) >= len(contexts)


@evaluator(name="correct")
def correct(case: Case, run: EvalRun) -> Score:
    return Score(case.expected in run.text, f"expected {case.expected!r} in the answer")


def words(case: Case, run: EvalRun) -> float:
    return float(len(run.text.split()))


def two_variants(folder: Path) -> Experiment:
    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        number = int(text.partition(" q")[2].split()[0])
        if number == 7 and "in detail" in text:
            raise failed()
        is_right = number not in ((3, 5) if "in detail" in text else (2, 5, 8, 9, 11))
        said = f"The answer is q{number}" if is_right else "I do not know the answer"
        return say(f"{said}, as far as I can see{' in detail' * ('in detail' in text)}.")

    return evaluate(
        questions(),
        question_cases(14),
        evaluators=[correct, words],
        model=FunctionAdapter(answer),
        variants=[
            Variant(name="base"),
            Variant(name="detailed", prompt=questions(text="Answer in detail: $text")),
        ],
        repeats=2,
        folder=folder / "evals",
    )


def hostile(folder: Path) -> Experiment:
    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        if turn_of(request) == 0 and "first" in text:
            return calls((HOSTILE[:60], f'{{"text": "{"</script>" * 3}"}}'))
        if "broken" in text:
            raise RuntimeError(HOSTILE)
        return say(HOSTILE)

    def judge(case: Case, run: EvalRun) -> Score:
        if "third" in case.id:
            raise ValueError(f"{HOSTILE} \ud800")
        return Score(value=False, reason=f"{HOSTILE} \ud800")

    text = HOSTILE.replace("$", "$$")
    title = "".join(text.splitlines())
    template = PromptTemplate(
        ns="evals",
        key="evil",
        sections=[
            MarkdownSection[Question](title=title, template=f"$text\n{text}", key="question")
        ],
    )
    cases = [
        Case(id=f"{name} {HOSTILE}", params=(Question(name),), cluster=HOSTILE, source=HOSTILE)
        for name in ("first", "second", "third", "broken")
    ]
    return evaluate(
        template,
        cases,
        evaluators=[evaluator(name=f"judged {HOSTILE}")(judge)],
        model=FunctionAdapter(answer, model=f"model {HOSTILE}"),
        variants=[
            Variant(name=f"a {HOSTILE}"),
            Variant(name=f"b {HOSTILE}", model=FunctionAdapter(answer, model=f"other {HOSTILE}")),
        ],
        folder=folder / "evil",
    )


def compared(one: Experiment) -> Any:
    first, *others = one.variants.values()
    return [compare(first, other) for other in others]


def write(path: Path, one: Experiment, comparisons: Any = (), **options: Any) -> None:
    with path.open("wb") as file:
        parts = experiment_page(one, comparisons=comparisons, **options)
        file.writelines(part.encode() for part in parts)


def picture(page: AnyPage, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / name)


def open_run(page: AnyPage, label: str) -> AnyPage:
    """Opens a run; returns the frame with its report."""
    page.get_by_role("button", name=label, exact=False).first.click()
    frame = page.frame_locator("dialog iframe")
    frame.locator("main > *").first.wait_for()
    return frame


def test_page_begins_with_verdicts_in_words_and_their_intervals(open_page: Open) -> None:
    page = open_page()
    picture(page, "experiment.png")
    verdicts = page.locator(".verdict").all_inner_texts()
    assert [verdict.partition(":")[0] for verdict in verdicts] == [
        "It is not clear whether detailed is better or worse than base in correct",
        "detailed is better than base in words.",
    ]
    box, zero, dot = (
        page.locator(f".verdicts li:first-of-type {part}").bounding_box()
        for part in (".range", ".zero", ".dot")
    )
    assert box["x"] < zero["x"] < dot["x"] < box["x"] + box["width"]
    row = page.locator(".scores tbody tr").first
    assert "84.6 % of 26 scored (78.6-85.7 % if the 2 errors" in row.inner_text()
    assert row.locator(".interval .range").count() == 2


def test_page_shows_each_run_with_its_outcome_and_scores(open_page: Open) -> None:
    page = open_page()
    assert page.locator(".cases tr").count() == 14
    assert page.locator(".cases button").count() == 56
    row = page.locator(".cases tr").first
    assert " ".join(row.inner_text().split()) == "3 worse better ✓ 10 ✓ 10 ✗ 14 ✗ 14"
    assert page.get_by_role("button", name="detailed, repeat 1; provider failure").count() == 1
    label = row.locator("button").last.get_attribute("aria-label")
    assert label == "detailed, repeat 2; answered; correct: false; words: 14"


def test_cases_are_filtered_by_outcome_and_text_and_sorted_by_change(open_page: Open) -> None:
    page = open_page()

    def ids() -> list[str]:
        return [str(text) for text in page.locator(".cases th b").all_inner_texts()]

    assert ids()[0] == "3"
    page.get_by_label("Order").select_option("order")
    assert ids() == [str(number) for number in range(14)]
    page.get_by_label("Outcome").select_option("provider")
    assert ids() == ["7"]
    assert page.locator("output").inner_text() == "1 of 14 cases"
    page.get_by_label("Outcome").select_option("wrong")
    assert ids() == ["2", "3", "5", "8", "9", "11"]
    page.get_by_label("Filter by text").fill("EXPECTED 'q5'")
    assert ids() == ["5"]
    page.get_by_label("Outcome").select_option("failed")
    assert ids() == []


def test_run_opens_with_its_reasons_its_output_and_its_report(open_page: Open) -> None:
    page = open_page()
    frame = open_run(page, "detailed, repeat 1; answered; correct: false")
    dialog = page.get_by_role("dialog", name="3")
    assert "expected 'q3' in the answer" in dialog.inner_text()
    assert "I do not know the answer" in dialog.locator(".outputs").inner_text()
    assert frame.locator(".turn").count() == 1
    frame.locator("summary", has_text="Prompt").click()
    assert "Answer in detail: q3" in frame.locator(".evaluation pre").first.inner_text()
    picture(page, "experiment-run.png")
    page.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


def test_two_runs_of_a_case_are_side_by_side_with_their_differences_marked(
    open_page: Open,
) -> None:
    page = open_page()
    open_run(page, "base, repeat 1; answered; correct: true; words: 10")
    page.get_by_label("Compare with").select_option(label="detailed, repeat 1")
    sides = page.locator(".outputs pre").all()
    assert len(sides) == 2
    assert "as far as I can" in sides[0].inner_text()
    marked = ["".join(side.locator("mark").all_inner_texts()) for side in sides]
    assert "as far" not in "".join(marked)
    assert marked[0].startswith("The")
    assert "do" in marked[1]
    assert page.locator(".facts mark").all_inner_texts() == ["true", "false", "10", "14"]
    frame = page.frame_locator("dialog iframe")
    frame.locator(".compared").wait_for()
    assert frame.locator(".diff").inner_text().split("\n") == [
        "-Answer: q3",
        "+Answer in detail: q3",
    ]
    assert frame.locator(".columns.two > section").count() == 2
    picture(page, "experiment-two.png")


def test_keys_reach_the_filter_the_runs_and_leave_a_run(open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("q3")
    assert page.locator(".cases tr").count() == 1
    page.get_by_label("Filter by text").fill("")
    page.locator(".cases button").first.focus()
    focus = "document.activeElement.getAttribute('aria-label')"
    first = page.evaluate(focus)
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate(focus) == "detailed, repeat 1; provider failure"
    for key in ("ArrowUp", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate(focus) == first
    page.keyboard.press("Enter")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate(focus) == first


@pytest.mark.parametrize("name", ["small.html", "evil.html"])
def test_page_does_not_scroll_horizontally_at_420_pixels(open_page: Open, name: str) -> None:
    page = open_page(name, width=420)
    scrolled, visible = page.evaluate(WIDTH)
    assert scrolled <= visible
    picture(page, f"narrow-{name}.png")
    page.locator(".cases button").first.click()
    page.get_by_label("Compare with").select_option(index=1)
    frame = page.frame_locator("dialog iframe")
    frame.locator("main > *").first.wait_for()
    dialog = page.locator("dialog")
    assert dialog.evaluate("each => each.scrollWidth <= each.clientWidth")
    scrolled, visible = frame.locator("html").evaluate(f"() => {WIDTH}")
    assert scrolled <= visible
    picture(page, f"narrow-run-{name}.png")


def test_page_follows_the_dark_color_scheme(open_page: Open) -> None:
    page = open_page(color_scheme="dark")
    picture(page, "experiment-dark.png")
    for element in ("body", ".panel"):
        color = page.locator(element).first.evaluate("e => getComputedStyle(e).backgroundColor")
        assert all(int(part) < 60 for part in color[4:-1].split(","))
    frame = open_run(page, "base, repeat 1; answered; correct: false")
    page.get_by_label("Compare with").select_option(index=2)
    frame.locator(".compared").wait_for()
    color = frame.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    assert all(int(part) < 60 for part in color[4:-1].split(","))
    picture(page, "experiment-dark-two.png")


def test_hostile_texts_are_shown_as_texts(open_page: Open) -> None:
    page = open_page("evil.html")
    picture(page, "experiment-evil.png")
    shown = "<img src=//evil.example/x onerror='window.hacked = 1; alert(1)'>"
    for place in (
        ".cases th b",
        ".scores tbody th",
        ".verdict",
        ".verdicts small",
        ".scores thead th + th",
    ):
        assert shown in page.locator(place).first.inner_text(), place
    for number in range(page.locator(".cases button").count()):
        page.locator(".cases button").nth(number).click()
        assert shown in page.locator("dialog").inner_text()
        page.get_by_label("Compare with").select_option(index=1)
        frame = page.frame_locator("dialog iframe")
        frame.locator("main > *").first.wait_for()
        frame.locator("details").evaluate_all("all => all.forEach((it) => { it.open = true })")
        assert shown in frame.locator("main").inner_text()
        assert frame.locator("body").evaluate("() => window.hacked") is None
        page.keyboard.press("Escape")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_page_without_javascript_shows_scores_and_verdicts_as_text(open_page: Open) -> None:
    page = open_page("evil.html", java_script_enabled=False)
    text = page.locator("noscript").text_content()
    assert "<img src=//evil.example/x" in text
    assert "p-values are corrected" in text


def test_page_of_300_megabytes_of_logs_is_small_and_usable_at_once(
    open_page: Open, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    in_own_thread(lambda: two_variants(tmp_path))
    source = max((tmp_path / "evals" / "runs").iterdir(), key=lambda path: path.stat().st_size)
    text = source.read_text()
    said = "as far as I can see"
    assert said in text
    (runs / "k.jsonl").write_text(text.replace(said, f"{said} {'word ' * 10_000}", 1))
    large = [
        variant(name, {"ok": " ".join("1110"[number % 4] for number in range(2000))})
        for name in ("a", "b", "c")
    ]
    keyed = [
        replace(
            one,
            results=[replace(it, key="k", reasons={"ok": "because " * 100}) for it in one.results],
        )
        for one in large
    ]
    write(tmp_path / "large.html", replace(experiment(*keyed), folder=str(tmp_path)))
    size = (tmp_path / "large.html").stat().st_size
    assert 15_000_000 < size <= 20_000_000
    page = open_page(tmp_path / "large.html")
    tools = page.context.new_cdp_session(page)
    # The time of its thread does not contain that of other tests.
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.reload()
    page.locator(".cases .bad").first.click()
    page.frame_locator("dialog iframe").locator(".turn").first.wait_for()
    metrics = tools.send("Performance.getMetrics")["metrics"]
    seconds = next(it["value"] for it in metrics if it["name"] == "TaskDuration")
    page.keyboard.press("Escape")
    left_out = page.locator("main > p").inner_text()
    assert "of 6,000 reports of runs are not on this page, which has at most 18 MB" in left_out
    assert str(runs) in left_out
    page.get_by_label("Outcome").select_option("wrong")
    assert page.locator("output").inner_text() == "500 of 2,000 cases"
    page.locator(".cases button").last.click()
    assert 0.05 < seconds <= 2 * float(os.environ.get("SLOW_MACHINE", "1"))
