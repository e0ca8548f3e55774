"""The page of an experiment in a real browser: hostile text, keys, widths, dark, 300 MB of logs."""

import os
import time
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
    notebook,
    question_cases,
    questions,
    say,
    turn_of,
    write_notes,
)
from support.own_thread import in_own_thread
from support.eval_results import experiment, variant
from weakincentives.evals import Case, EvalRun, Experiment, Score, Variant, evaluate, evaluator
from weakincentives.evals.compare import compare
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

    def open_page(path: str | Path = "small.html", *, width: int = 1280, **options: Any) -> AnyPage:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, offline=True, **options
        )
        contexts.append(context)
        context.set_default_timeout(20_000)  # a busy machine may need many seconds
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
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
    assert len(requests) == len(contexts)


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
        variants=[Variant(name=f"a {HOSTILE}"), Variant(name=f"b {HOSTILE}")],
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


def test_page_shows_verdicts_scores_and_all_runs(open_page: Open) -> None:
    page = open_page()
    picture(page, "experiment.png")
    print(page.locator("main").inner_text())
    page.locator(".cases button").first.click()
    page.wait_for_timeout(500)
    picture(page, "experiment-run.png")
    page.get_by_label("Compare with").select_option(index=2)
    page.wait_for_timeout(500)
    picture(page, "experiment-two.png")
