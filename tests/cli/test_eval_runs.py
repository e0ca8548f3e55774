"""`wink eval` and `wink compare`: exit codes, files, and progress."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.commands import Done, Wink, environment, process
from support.eval_results import experiment, rows_of, variant
from support.scripted_server import Fail, ScriptedServer
from weakincentives.cli.eval_progress import SparseLines, progress_text
from weakincentives.evals.experiment_files import load_experiment, save_baseline
from weakincentives.evals.options import Progress
from weakincentives.evals.results import RunResult
from weakincentives.evals.run_logs import RunFile
from weakincentives.evals.scores import Value
from weakincentives.evaluation.logged_run import LoggedRun
from weakincentives.limits import RunUsage

FAQ = """
import time
from asyncio import sleep, to_thread
from dataclasses import dataclass
from itertools import repeat

from weakincentives import MarkdownSection, PromptTemplate, RunConfig
from weakincentives.testing import ScriptedAdapter, say


@dataclass(frozen=True)
class Question:
    text: str


template = PromptTemplate(
    ns="faq",
    key="answer",
    sections=[
        MarkdownSection(title="Task", template="Answer the question."),
        MarkdownSection[Question](title="Question", template="$text"),
    ],
)


def prompt_of(case):
    return template.bind(*(case.params or [Question(case.message)]))


def bound():
    return template.bind(Question("1 + 1"))


def correct(case, run):
    return case.expected in run.text


def length(case, run):
    return float(len(run.text))


def answer(seen):
    settings = seen.request.settings
    is_wrong = settings is not None and settings.temperature == 1.5
    return say("none" if is_wrong else "2 and 4")


class Slow(ScriptedAdapter):
    async def ask_async(self, request, /):
        await sleep(60)


class Blocked(ScriptedAdapter):
    async def ask_async(self, request, /):
        await to_thread(time.sleep, 30)


def several(case, run):
    if case.id == "two":
        raise ValueError("no idea")
    return {"right": True, "short": len(run.text) < 3}


def tone(case, run):
    return "formal"


checks = [correct, length]


def model(**options):
    return ScriptedAdapter(repeat(answer))


def priced_model(**options):
    config = RunConfig(prices=lambda usage, model: 1.0)
    return ScriptedAdapter(repeat(answer), config=config)


def slow_model(**options):
    return Slow([])


def blocked_model(**options):
    return Blocked([])
"""
CASES = """
- id: one
  params: {text: 1 + 1}
  expected: "2"
- id: two
  params: {text: 2 + 2}
  expected: "4"
  metadata: {kind: hard}
"""
EVAL = ("eval", "faq:template", "cases.yaml", "--adapter", "faq:model")
SCORED = (*EVAL, "--evaluators", "faq:correct")


@pytest.fixture
def faq(tmp_path: Path) -> Path:
    (tmp_path / "faq.py").write_text(FAQ)
    (tmp_path / "cases.yaml").write_text(CASES)
    return tmp_path


@pytest.fixture
def wink(faq: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Wink:
    return Wink(faq, monkeypatch, capsys)


@pytest.fixture
def saved(faq: Path) -> Path:
    """A file with variants `base` and `other`: 80 right, 10 wrong, 10 errors; and 60 right."""
    base = variant("base", {"ok": "1 " * 80 + "0 " * 10 + "E " * 10})
    other = variant("other", {"ok": "1 " * 60 + "0 " * 40})
    path = faq / "saved.json"
    save_baseline(experiment(base, other), path)
    return path


# --- Exit codes


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 0),
        (["--variant", "base", "--variant", "bad:temperature=1.5"], 0),
        (["--fail-under", "1"], 0),
        (["--fail-under", "correct=1"], 0),
        (["--variant", "bad:temperature=1.5", "--fail-under", "0.5"], 1),
        (["--fail-under-rate", "0.9"], 2),
        (["--variant", "base", "--variant", "same:temperature=0.5", "--fail-on", "worse"], 2),
    ],
)
def test_exit_code_is_that_of_the_gates(wink: Wink, options: list[str], code: int) -> None:
    done = wink(*SCORED, *options)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert done.stdout.startswith("cases: 2 cases; ")


@pytest.mark.parametrize(("limit", "code"), [("0.85", 2), ("0.80", 0), ("0.95", 1), ("ok=0.8", 0)])
def test_limit_of_the_mean_considers_errors(wink: Wink, saved: Path, limit: str, code: int) -> None:
    done = wink("compare", f"{saved}:other", f"{saved}:base", "--fail-under", limit)
    assert done.returncode == code
    assert "88.9 % of 90 scored (80.0-90.0 % if the 10 errors were all wrong or right)" in (
        done.stdout
    )


def test_worse_variant_fails_its_gate_only_if_there_is_one(wink: Wink, saved: Path) -> None:
    names = [f"saved.json:{name}" for name in ("base", "other")]
    assert wink("compare", *names).returncode == 0
    done = wink("compare", *names, "--fail-on", "worse")
    assert done.returncode == 1
    assert done.stdout.endswith("gate fails: other against base: ok is worse\n")
    assert wink("compare", *names[::-1], "--fail-on", "worse").returncode == 0


def test_gates_can_compare_named_scores_and_are_in_the_markdown(wink: Wink) -> None:
    for name, rows in (
        ("a", {"ok": "1 " * 9, "x": "0 " * 9}),
        ("b", {"ok": "0 " * 9, "x": "1 " * 9}),
    ):
        save_baseline(experiment(variant("base", rows)), wink.folder / f"{name}.json")
    compared = ("compare", "a.json", "b.json", "--fail-on", "x=worse")
    done = wink(*compared, "--markdown", "out.md")
    assert (done.returncode, done.stderr) == (0, "")
    held = "base (B) against base (A): x is better"
    assert done.stdout.endswith(f"\ngate holds: {held}\n")
    assert f"| holds | ` {held} ` |" in (wink.folder / "out.md").read_text()
    assert wink(*compared, "--fail-on", "ok=worse").returncode == 1
    assert wink(*compared, "--fail-on", "y=worse").returncode == 2
    done = wink(*compared[:-1], "better")
    assert done.stderr == "wink: --fail-on must be worse or name=worse, got 'better'\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--case", "onne"], "no case has the id 'onne'; known: one"),
        (["--where", "kind=easy"], "no case has the kind 'easy'; known: hard"),
        (["--variant", "a:tag=none"], "wink: no case can be run: cannot find a project"),
        (["--json", "none/out.json"], "none/out.json cannot be written, because it is in a folder"),
        (["--html", "."], "wink: . cannot be written, because it is a folder"),
        (["--repeats", "0"], "repeats must be at least 1"),
        (["--concurrency", "-1"], "concurrency must"),
        (["--budget", "0"], "must be more than 0"),
        (["--budget", "nan"], "wink: Budget.max_cost must be finite and not negative, got nan"),
        (["--variant", "a:temperature"], "--variant 'a:temperature' must be NAME:key=value"),
        (["--variant", "a:temprature=1"], "temprature"),
        (["--margin", "0"], "--margin must be more than 0, got 0"),
        (["--fail-under-rate", "1"], "--fail-under-rate must be between 0 and 1, got 1"),
        (["--fail-under", "high"], "a limit must be a number or name=number, got 'high'"),
        (["--fail-under", "ok=nan"], "a limit must be a number or name=number, got 'ok=nan'"),
        (["--fail-under", "-1e999"], "a limit must be a number or name=number, got '-1e999'"),
        (["--fail-on", "worse"], "--fail-on requires --baseline or a second --variant"),
        (["--write-baseline"], "--write-baseline requires --baseline"),
        (["--baseline", "none.json"], "none.json"),
        (["--evaluators", "faq:FAQ"], "cannot find 'FAQ'"),
        (["--evaluators", "faq:__name__"], "must be an evaluator or a list of them, got 'faq'"),
    ],
)
def test_impossible_options_end_with_2_before_any_run(
    wink: Wink, options: list[str], message: str
) -> None:
    done = wink(*SCORED, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (wink.folder / "evals" / "runs").exists()


def test_file_without_cases_ends_with_2(wink: Wink) -> None:
    (wink.folder / "cases.yaml").write_text("[]\n")
    done = wink(*SCORED)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cases.yaml" in done.stderr


def test_limit_for_several_scores_must_name_one(wink: Wink) -> None:
    options = ("--evaluators", "faq:checks", "--fail-under")
    done = wink(*EVAL, *options, "0.5")
    assert done.returncode == 2
    assert done.stderr.endswith("wink: a limit must name its score; use correct=…, length=…\n")
    assert wink(*EVAL, *options, "correct=0.5").returncode == 0
    assert not [*wink.folder.glob("other/runs/*")]
    done = wink(*EVAL, *options, "correkt=0.5", "--folder", "other")
    assert done.stderr == (
        "wink: no evaluator gives the score 'correkt'; use correct=…, length=…\n"
    )
    assert not [*wink.folder.glob("other/runs/*")]


@pytest.mark.parametrize(
    ("evaluator", "limit", "message"),
    [
        ("several", "several.rigth=0.5", "'several' does not give the score 'several.rigth'; use"),
        ("several", "0.5", "a limit must name its score; use several.right=…, several.short=…"),
        ("tone", "0.5", "needs a score that is a number, or true or false, but tone is 'formal'"),
    ],
)
def test_limit_that_cannot_be_judged_ends_the_experiment_after_the_first_run(
    wink: Wink, evaluator: str, limit: str, message: str
) -> None:
    options = ("--evaluators", f"faq:{evaluator}", "--fail-under", limit, "--concurrency", "1")
    done = wink(*EVAL, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len([*wink.folder.glob("evals/runs/*.jsonl")]) == 1
    assert wink(*EVAL, *options[:2], "--fail-under", "several.right=0.5").returncode in (0, 2)


def test_rate_of_numbers_ends_the_experiment_after_the_first_run(wink: Wink) -> None:
    options = ("--evaluators", "faq:length", "--fail-under-rate", "0.5", "--concurrency", "1")
    done = wink(*EVAL, *options)
    assert "a limit needs a score that is true or false, but length is 7.0" in done.stderr
    assert len([*wink.folder.glob("evals/runs/*.jsonl")]) == 1


def test_scores_are_reported_by_metadata(wink: Wink) -> None:
    done = wink(*SCORED, "--by", "kind", "--markdown", "out.md", "--json", "out.json")
    row = ["100.0 %", "20.7-100.0 %", "1 scored"]
    for group in ("kind hard, 1 case", "without kind, 1 case"):
        assert ["base", group, *row] in rows_of(done.stdout)
    assert "correct, kind hard, 1 case" in (wink.folder / "out.md").read_text()
    assert '"groups": {"": {"correct": {' in (wink.folder / "out.json").read_text()
    groups = load_experiment(wink.folder / "out.json")["base"].groups("kind")
    assert groups["hard"].summary("correct").cases == 1
    done = wink(*SCORED, "--by", "knd", "--folder", "other")
    assert done.stderr == "wink: --by: no case has the key 'knd'; known: cluster, kind\n"
    assert not [*wink.folder.glob("other/runs/*")]


def test_unchanged_prompt_is_not_worse_than_its_baseline(wink: Wink) -> None:
    options = (*SCORED, "--baseline", "baseline.json")
    assert wink(*options, "--write-baseline").returncode == 0
    done = wink(*options, "--fail-on", "worse", "--folder", "other")
    assert done.returncode == 0
    said = "their prompts, models and settings do not differ"
    assert f"nothing was changed: {said}" in done.stdout
    assert done.stdout.endswith(
        f"gate holds: base (B) against base (A): correct is inconclusive, but {said}\n"
    )
    done = wink(*options, "--variant", "base:temperature=0.5", "--fail-on", "worse")
    assert done.returncode == 2
    assert done.stdout.endswith(
        "add cases, or pass --margin with the difference that does not matter\n"
    )


def test_failing_provider_ends_with_2_and_its_key_is_in_no_file(wink: Wink) -> None:
    key = "sk-sentinel-2f6d0c1b9a"
    fails = [Fail(401, f"Incorrect API key provided: {key}")] * 2
    with ScriptedServer(*fails) as server:
        done = wink(
            *("eval", "faq:template", "cases.yaml", "--evaluators", "faq:correct"),
            *("--model", "openai:m", "--api", "chat", "--base-url", server.openai_url),
            *("--json", "out.json", "--junit", "out.xml", "--markdown", "out.md"),
            *("--html", "out.html"),
            OPENAI_API_KEY=key,
        )
    assert done.returncode == 2
    assert "0 of 2 scored" in done.stdout
    files = [path for path in wink.folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"out.json", "out.xml", "out.md", "out.html"}
    for text in (done.stdout, done.stderr, *[path.read_text() for path in files]):
        assert key not in text


# --- Targets and variants


@pytest.mark.parametrize("target", ["faq:template", "faq:prompt_of", "faq:bound"])
def test_target_is_a_template_a_prompt_or_a_function_of_the_case(wink: Wink, target: str) -> None:
    cases: list[dict[str, object]] = [{"id": "one", "message": "1 + 1", "expected": "2"}]
    if target == "faq:template":
        cases[0] |= {"params": {"text": "1 + 1"}}
    (wink.folder / "cases.json").write_text(json.dumps(cases))
    done = wink("eval", target, "cases.json", *EVAL[3:], "--evaluators", "faq:correct")
    assert done.returncode == 0, done.stderr
    assert rows_of(done.stdout)[4][:3] == ["base", "correct", "100.0 %"]


def test_variants_have_their_own_settings_and_are_compared_with_the_first(wink: Wink) -> None:
    variants = ("--variant", "base", "--variant", "bad:temperature=1.5", "--variant", "bad:seed=1")
    done = wink(*SCORED, *variants, "--repeats", "3", "--json", "out.json")
    assert done.returncode == 0, done.stderr
    assert "bad against base: 2 cases; p-values are corrected for 1 comparison" in done.stdout
    assert "  -100.0 points  " in done.stdout
    assert "0 up; 2 down: one, two" in done.stdout
    loaded = load_experiment(wink.folder / "out.json")
    assert loaded["bad"].values("correct") == {"one": [0, 0, 0], "two": [0, 0, 0]}


def test_evaluator_of_several_scores_is_not_a_score_itself(wink: Wink) -> None:
    done = wink(*EVAL, "--evaluators", "faq:several", "--junit", "out.xml")
    assert done.returncode == 0, done.stdout
    assert "several.right: 100.0 % of 1 scored (50.0-100.0 % if the error" in done.stdout
    assert "several.short: 0.0 % of 1 scored" in done.stdout
    assert "  several  " not in done.stdout
    assert "base, two: several: ValueError: no idea (faq.py" in done.stdout
    assert "several: ValueError: no idea" in (wink.folder / "out.xml").read_text()


def test_selected_cases_run_alone(wink: Wink) -> None:
    assert wink(*SCORED, "--where", "kind=hard").stdout.startswith("cases: 1 case; ")
    assert wink(*SCORED, "--case", "one", "--case", "two").stdout.startswith("cases: 2 cases; ")


# --- Files


def test_baseline_is_written_by_its_option_only_and_the_changes_are_shown(wink: Wink) -> None:
    baseline = wink.folder / "baseline.json"
    options = (*SCORED, "--baseline", "baseline.json")
    first = wink(*options, "--write-baseline")
    assert (first.returncode, first.stdout.splitlines()[-1]) == (0, "baseline.json is written")
    before = baseline.read_bytes()
    worse = (*options, "--variant", "base:temperature=1.5")
    done = wink(*worse, "--json", "new.json")
    assert "base (B) against base (A): 2 cases" in done.stdout
    for command in (("baseline.json", "new.json"), ("new.json", "baseline.json")):
        assert wink("compare", *command, "--fail-on", "worse").returncode == 2
    assert baseline.read_bytes() == before
    done = wink(*worse, "--write-baseline")
    assert "2 down: one, two" in done.stdout
    assert baseline.read_bytes() != before


def test_variant_is_compared_with_its_namesake_in_the_baseline(wink: Wink) -> None:
    variants = ("--variant", "base", "--variant", "bad:temperature=1.5")
    options = (*SCORED, *variants, "--baseline", "baseline.json")
    assert wink(*options, "--write-baseline").returncode == 0
    done = wink(*options)
    assert (
        "bad (B) against bad (A): 2 cases; p-values are corrected for 2 comparisons" in done.stdout
    )
    assert "0 up; 0 down" in done.stdout
    assert "1 up" not in done.stdout


def test_baseline_is_kept_if_the_budget_ends_before_the_runs(wink: Wink) -> None:
    model = ("--adapter", "faq:priced_model", "--concurrency", "1")
    options = (*SCORED[:3], *model, "--baseline", "baseline.json", "--write-baseline")
    done = wink(*options, "--budget", "1")
    assert done.returncode == 2
    assert "base: 1 answered, 1 not run" in done.stdout
    [last] = [line for line in done.stdout.splitlines() if line.startswith("The experiment is")]
    assert "max_cost=1.0 would be exceeded with 2; start the experiment again" in last
    assert done.stderr.endswith("wink: baseline.json is unchanged, because runs are missing\n")
    assert not (wink.folder / "baseline.json").exists()
    assert wink(*options, "--budget", "2").returncode == 0
    assert (wink.folder / "baseline.json").exists()


def test_missing_baseline_says_how_to_write_it(wink: Wink) -> None:
    done = wink(*SCORED, "--baseline", "none.json")
    assert done.returncode == 2
    assert "wink: none.json does not exist; write it with wink eval --json, or" in done.stderr


def test_baseline_with_other_cases_is_refused_and_can_be_replaced(wink: Wink) -> None:
    options = (*SCORED, "--baseline", "baseline.json")
    assert wink(*options, "--write-baseline").returncode == 0
    cases = wink.folder / "cases.yaml"
    cases.write_text(
        CASES.replace("1 + 1", "1+1") + '- {id: x, params: {text: x}, expected: "2"}\n'
    )
    done = wink(*options, "--junit", "out.xml", "--markdown", "out.md")
    assert done.returncode == 2
    assert "cannot compare base (A) with base (B): only in base (B): x; changed cases: one" in (
        done.stderr
    )
    assert "points" not in done.stdout
    assert (wink.folder / "out.xml").exists()
    assert "100.0 % of 3 scored" in (wink.folder / "out.md").read_text()
    done = wink(*options, "--write-baseline")
    assert (done.returncode, "changed cases: one" in done.stdout) == (0, True)
    assert wink(*options).returncode == 0


def test_comparing_different_cases_needs_the_option_for_common_cases(
    wink: Wink, saved: Path
) -> None:
    fewer = variant("base", {"ok": "1 " * 50})
    save_baseline(experiment(fewer), wink.folder / "fewer.json")
    names = ("saved.json:base", "fewer.json")
    done = wink("compare", *names)
    assert (done.returncode, done.stdout) == (2, "")
    assert "only in base (A): c50, c51" in done.stderr
    assert "got 0" in wink("compare", *names, "--margin", "0").stderr
    assert done.stderr.endswith("pass common_cases=True, or --common-cases to wink compare\n")
    done = wink("compare", *names, "--common-cases", "--markdown", "out.md")
    assert done.stdout.startswith("\nbase (B) against base (A): 50 cases in common, 50 left out")
    assert "` base `" in (wink.folder / "out.md").read_text()


def test_other_judge_is_refused_with_2_and_without_a_difference(wink: Wink) -> None:
    one = variant("base", {"ok": "1 1 1 1 0 0"}, judge="gpt-5")
    save_baseline(experiment(one), wink.folder / "one.json")
    infos = one.evaluators["ok"]
    for number, info in enumerate([replace(infos, judge="gpt-5-mini"), replace(infos, key="b")]):
        other = replace(one, evaluators={"ok": info})
        save_baseline(experiment(other), wink.folder / f"{number}.json")
        done = wink("compare", "one.json", f"{number}.json", "--common-cases")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith("other evaluators or judges: ok\n")


def test_one_case_has_a_mean_a_dash_and_no_warning(wink: Wink) -> None:
    for name, value in (("one", 0.5), ("two", 0.9)):
        numbers: list[list[Value]] = [[value]]
        save_baseline(experiment(variant("base", {"s": numbers})), wink.folder / f"{name}.json")
    done = wink("compare", "one.json", "two.json")
    assert (done.returncode, done.stderr) == (0, "")
    row = ["s", "inconclusive", "0.5", "0.9", "+0.4", "\N{EN DASH}"]
    assert row in rows_of(done.stdout)
    assert "  s: no standard error: 1 case; 1 up: c0; 0 down" in done.stdout


def test_file_with_several_variants_must_be_asked_for_one(wink: Wink, saved: Path) -> None:
    for name in ("saved.json", "saved.json:third"):
        done = wink("compare", name, "saved.json:base")
        assert done.returncode == 2
        assert "does not name one variant; use one of saved.json:base, saved.json:other" in (
            done.stderr
        )


def test_reports_are_written_and_the_second_run_asks_nothing(wink: Wink) -> None:
    files = ("--json", "out.json", "--junit", "out.xml", "--markdown", "out.md")
    first = wink(*SCORED, *files)
    contents = [(wink.folder / name).read_text() for name in files[1::2]]
    second = wink(*SCORED, *files)
    assert "2 runs reused" in second.stdout
    assert (first.returncode, second.returncode) == (0, 0)
    again = [(wink.folder / name).read_text() for name in files[1::2]]
    for one, other in zip(contents, again, strict=True):
        # the first line of the JSON is about this session
        kept = [re.sub(TIMES, "", text.partition("\n")[2]) for text in (one, other)]
        assert kept[0] == kept[1]


def test_resumed_experiment_has_the_reports_and_the_exit_code_of_an_uncut_one(wink: Wink) -> None:
    files = ("--json", "out.json", "--junit", "out.xml", "--html", "out.html")
    options = (*SCORED, "--repeats", "2", "--variant", "bad:temperature=1.5", "--fail-under", "0.5")

    def run() -> tuple[object, str, list[str]]:
        done = wink(*options, *files)
        texts = [(wink.folder / name).read_text() for name in files[1::2]]
        texts[0] = texts[0].partition("\n")[2]  # the first line is about this session
        texts[2] = re.sub(r'spent [^"]*"', "", texts[2])
        shown = done.stdout.partition("\n")[2]
        return done.returncode, shown, [re.sub(TIMES, "", text) for text in texts]

    uncut = run()
    logs = sorted((wink.folder / "evals" / "runs").iterdir())
    assert (uncut[0], len(logs)) == (1, 4)
    logs[0].unlink()
    logs[1].write_bytes(logs[1].read_bytes()[:-200])
    resumed = run()
    assert resumed[:2] == uncut[:2]
    for one, other in zip(resumed[2], uncut[2], strict=True):
        assert one == other


def test_verbose_says_by_section_why_runs_were_repeated(wink: Wink) -> None:
    assert "is new" not in wink(*SCORED, "-v").stdout
    text = (wink.folder / "faq.py").read_text()
    (wink.folder / "faq.py").write_text(text.replace("Answer the question.", "Answer briefly."))
    cases = (wink.folder / "cases.yaml").read_text()
    (wink.folder / "cases.yaml").write_text(cases.replace("2 + 2", "1 + 3"))
    done = wink(*SCORED, "--verbose")
    assert "1 run of variant 'base' is new: section task changed\n" in done.stdout
    assert "1 run of variant 'base' is new: section task, the case changed\n" in done.stdout


def test_page_has_the_reports_of_all_runs_and_is_written_by_compare_too(wink: Wink) -> None:
    variants = ("--variant", "base", "--variant", "bad:temperature=1.5")
    done = wink(*SCORED, *variants, "--json", "out.json", "--html", "out.html")
    assert done.returncode == 0, done.stderr
    text = (wink.folder / "out.html").read_text()
    assert text.count('id="run-') == 4
    assert "bad and base" in text or "whether bad is better or worse than base" in text
    compared = ("compare", "out.json:base", "out.json:bad", "--html", "two.html")
    assert wink(*compared).returncode == 0
    two = (wink.folder / "two.html").read_text()
    assert two.count('id="run-') == 4
    (wink.folder / "old.json").write_bytes((wink.folder / "out.json").read_bytes())
    options = ("--baseline", "old.json", "--html", "baseline.html")
    assert wink(*SCORED, *options).returncode == 0
    assert "base (A)" in (wink.folder / "baseline.html").read_text()


TIMES = (
    r'(?<="seconds": )[0-9.e-]+|(?<=time=")[0-9.]+|(?<="seconds":)[0-9.e-]+|'
    r"\d{4}-\d\d-\d\dT[0-9:.+]+(Z|\+00:00)?|(?<=\"event_id\":\")[0-9a-f]+"
)


# --- Progress


def progress(done: int, total: int, **more: object) -> Progress:
    return replace(Progress(done=done, total=total, reused=0, failures=0, spent=RunUsage()), **more)  # type: ignore[arg-type] # the fields of Progress


def test_progress_counts_the_runs_of_this_session() -> None:
    assert progress_text(progress(1_000, 1_000, reused=900)) == "100 of 100 to run (900 reused)"
    text = progress_text(
        progress(950, 1_000, reused=900, failures=2, spent=RunUsage(cost=0.5), seconds_left=150.2)
    )
    assert text == "50 of 100 to run (900 reused), 2 failed, $0.50, about 2 minutes left"
    until = datetime(2026, 1, 1, 12, 30, 5, tzinfo=UTC)
    text = progress_text(progress(1, 2, waiting_until=until, seconds_left=1))
    assert text == (f"1 of 2 to run, the provider asks to wait until {until.astimezone():%H:%M:%S}")


def test_progress_has_the_means_of_each_variant() -> None:
    written = list[str]()
    show = SparseLines(written.append)
    for done, score in enumerate([True, None, 0.0, "red", False], start=1):
        scores = {"ok": score, "short": 0.5}
        result = RunResult(case=str(done), repeat=0, outcome="answered", scores=scores)
        show(progress(done, 5, result=result, variant="ab"[done % 2]))
    assert written[-1] == (
        "5 of 5 to run, b ok = 0.333 (n = 3), b short = 0.5 (n = 3), a short = 0.5 (n = 2)\n"
    )


def sparse(seconds: float, runs: int) -> Sequence[str]:
    """Returns the lines for runs of this length."""
    now, written = [0.0], io.StringIO()
    show = SparseLines(written.write, lambda: now[0])
    for done in range(1, runs + 1):
        now[0] += seconds
        show(progress(done, runs))
    return written.getvalue().splitlines()


def test_progress_in_files_is_at_most_a_line_for_a_tenth_or_half_a_minute() -> None:
    quick = sparse(0.001, 5_000)
    assert len(quick) == 10
    assert quick[-1] == "5,000 of 5,000 to run"
    assert len(sparse(1, 3_000)) <= 3_000 / 30 + 10
    assert sparse(1, 3) == ["1 of 3 to run", "2 of 3 to run", "3 of 3 to run"]


def test_pause_is_reported_at_once_and_every_half_minute() -> None:
    now, written = [0.0], io.StringIO()
    show = SparseLines(written.write, lambda: now[0])
    for done in range(1, 41):  # a pause each second
        now[0] += 1
        show(progress(done, 1_000, waiting_until=datetime(2026, 1, 1, tzinfo=UTC)))
    lines = written.getvalue().splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["1", "31"]
    assert "the provider asks to wait until" in lines[0]


def in_terminal(folder: Path, **more: str) -> tuple[Done, str]:
    """Runs `wink eval` with stderr on a terminal; returns what the terminal received."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "weakincentives.cli", *SCORED],
        cwd=folder,
        env=environment(**{"CI": "", "NO_COLOR": "", "TERM": "xterm", "COLUMNS": "100"} | more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    seen = b""
    while chunk := read(ours):
        seen += chunk
    os.close(ours)
    out, _ = running.communicate(timeout=60)
    return Done(running.returncode, out, ""), seen.decode().replace("\r\n", "\n")


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # raised on Linux when the other end is closed
        return b""


def test_terminal_has_a_bar_of_progress_and_results_are_on_stdout(faq: Path) -> None:
    done, seen = in_terminal(faq)
    assert done.returncode == 0, seen
    assert "━ 2 of 2 to run" in re.sub(r"\x1b\[[\d;?]*\w", "", seen)
    assert "\x1b[" in seen
    assert not {"better", "worse", "equivalent", "inconclusive"} & set(re.findall(r"\w+", seen))
    assert done.stdout.startswith("cases: 2 cases; ")
    assert "to run" not in done.stdout


@pytest.mark.parametrize("more", [{"CI": "true"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_progress_has_no_control_characters_where_they_are_unwanted(
    faq: Path, more: dict[str, str]
) -> None:
    done, seen = in_terminal(faq, **more)
    assert done.returncode == 0, seen
    assert seen.splitlines()[-1] == "2 of 2 to run, correct = 1 (n = 2)"
    assert not set(seen) & {"\r", "\x1b"}


def interrupted(
    folder: Path, model: str, concurrency: int, signals: int = 1
) -> tuple[int, str, list[float]]:
    """Sends Ctrl-C to `wink eval`; returns its code, its output, and when it spoke and ended."""
    command = [*SCORED[:3], "--adapter", f"faq:{model}", "--concurrency", str(concurrency)]
    running = subprocess.Popen(
        [sys.executable, "-c", START, *command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len([*folder.glob("evals/runs/*")]) < concurrency:
        assert running.poll() is None
    time.sleep(0.3)
    assert running.stderr is not None
    running.send_signal(signal.SIGINT)
    started = time.monotonic()
    said = running.stderr.readline()
    times = [time.monotonic() - started]
    for _ in range(signals - 1):
        running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=10)
    times.append(time.monotonic() - started)
    assert said == (
        "wink: interrupted; to continue, run wink eval faq:template cases.yaml --adapter "
        f"faq:{model} --concurrency {concurrency}\n"
    )
    return running.returncode, f"{out}{err}", times


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("model", ["slow_model", "blocked_model"])
def test_ctrl_c_says_how_to_continue_and_ends_with_2(
    faq: Path, model: str, concurrency: int
) -> None:
    code, more, (said, ended) = interrupted(faq, model, concurrency)
    assert (code, more) == (2, "")
    assert said < 1
    assert ended < 2.5


def test_second_ctrl_c_ends_at_once_and_the_logs_can_be_continued(faq: Path, wink: Wink) -> None:
    code, more, (said, ended) = interrupted(faq, "blocked_model", 2, signals=2)
    assert (code, more) == (2, "")
    assert ended - said < 1  # the first one alone would leave 1.5 seconds to the tools
    for log in (faq / "evals" / "runs").iterdir():
        assert RunFile.log(log) == LoggedRun()  # no request was answered
    text = (faq / "faq.py").read_text()
    text = text.replace(
        "await to_thread(time.sleep, 30)", "return await super().ask_async(request)"
    )
    (faq / "faq.py").write_text(text.replace("Blocked([])", "Blocked(repeat(answer))"))
    done = wink(*SCORED[:3], "--adapter", "faq:blocked_model", "--evaluators", "faq:correct")
    assert (done.returncode, "100.0 %" in done.stdout) == (0, True)
    assert len([*(faq / "evals" / "runs").iterdir()]) == 2


# SIGINT may be ignored in this process, as in a shell's background job.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from weakincentives.cli import main; main()"
)


def test_command_is_a_process_too(faq: Path) -> None:
    done = process(faq, *SCORED, "--fail-under", "1")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        0,
        "2 of 2 to run, correct = 1 (n = 2)",
    )
    assert not set(done.stderr) & {"\r", "\x1b"}
    assert done.stdout.endswith("gate holds: base correct: mean 1; limit 1\n")
