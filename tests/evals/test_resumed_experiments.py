"""What a folder keeps: each answer before a kill, the same keys everywhere, no secrets."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support.eval_models import (
    FunctionAdapter,
    Note,
    Question,
    calls,
    echo,
    is_right,
    notebook,
    question_cases,
    questions,
    say,
    turn_of,
    write_notes,
)
from support.scripted_server import Fail, Say, ScriptedServer
from support.sdk_clients import APIS, sdk_adapter
from weakincentives.evals import (
    Case,
    Dataset,
    EvalRun,
    Experiment,
    Progress,
    evaluate,
    evaluate_async,
)
from weakincentives.evals.ci_reports import junit_xml, markdown
from weakincentives.evals.comparisons import compare
from weakincentives.evals.experiment_files import experiment_json
from weakincentives.evals.page import experiment_page
from weakincentives.evals.reports import experiment_lines
from weakincentives.evals.run_logs import RunFile
from weakincentives.evaluation.inner_loop import ProviderRequest, RunConfig
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.model_settings import ModelSettings
from weakincentives.prompt import MarkdownSection, PromptTemplate

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


def killed(work: Callable[[], object]) -> None:
    """Runs `work` in a process that kills itself."""
    with warnings.catch_warnings():  # other tests may have left threads, which this does not need
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(70)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def answered(folder: Path) -> int:
    lines = [line for log in (folder / "runs").iterdir() for line in log.read_text().splitlines()]
    entries = [json.loads(line).get("line", {}).get("entry", {}) for line in lines]
    return sum(entry.get("kind") == "answered" for entry in entries)


def results(experiment: Experiment) -> list[Any]:
    return [replace(one, seconds=0.0) for one in experiment["base"].results]


@needs_fork
@pytest.mark.parametrize("concurrency", [1, 4])
def test_experiment_that_is_killed_after_37_of_100_asks_only_for_the_others(
    tmp_path: Path, concurrency: int
) -> None:
    def run(folder: Path, limit: int) -> tuple[Experiment, int]:
        async def answer(request: ProviderRequest, text: str) -> AssistantMessage:
            await asyncio.sleep(0)
            if model.asked > limit:
                os.kill(os.getpid(), signal.SIGKILL)
            return echo(request, text)

        model = FunctionAdapter(answer)
        experiment = evaluate(
            questions(),
            question_cases(100),
            evaluators=[is_right],
            model=model,
            concurrency=concurrency,
            folder=folder,
        )
        return experiment, model.asked

    killed(lambda: run(tmp_path / "killed", 37))
    resumed, asked = run(tmp_path / "killed", 1_000)
    uncut, _ = run(tmp_path / "uncut", 1_000)
    assert 63 <= asked <= 63 + concurrency - 1
    assert len(resumed["base"].results) == 100
    assert results(resumed) == results(uncut)
    assert resumed["base"].summary("is_right") == uncut["base"].summary("is_right")
    assert resumed["base"].usage == uncut["base"].usage
    assert resumed.spent.calls == asked


@needs_fork
@pytest.mark.parametrize("concurrency", [1, 4])
def test_every_answer_is_in_the_logs_whenever_the_experiment_is_killed(
    tmp_path: Path, concurrency: int
) -> None:
    """An answer to another run that arrives in the same step of the event loop may be missing."""

    def run(folder: Path, limit: int, answers: Path) -> None:
        async def answer(request: ProviderRequest, text: str) -> AssistantMessage:
            await asyncio.sleep(0.001 * (len(text) % 3))
            if model.asked > limit:
                os.kill(os.getpid(), signal.SIGKILL)
            with answers.open("a") as file:
                file.write("answer\n")
            return write_notes(request, text)

        model = FunctionAdapter(answer)
        cases = [Case(id=f"{n}", params=(Question("q" * n),)) for n in range(1, 9)]
        evaluate(notebook(), cases, model=model, concurrency=concurrency, folder=folder)

    for moment in range(20):
        folder, answers = tmp_path / f"{moment}", tmp_path / f"{moment}.answers"
        answers.touch()
        killed(lambda: run(folder, 1 + moment, answers))  # noqa: B023 - called at once
        missing = answers.read_text().count("\n") - answered(folder)
        assert 0 <= missing <= concurrency - 1


def test_cases_have_the_same_keys_wherever_their_file_is_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "given.txt").write_bytes(b"given\r\n")
    text = "- {id: 1, params: {text: the sky}, files: {given.txt: {from: 'data/given.txt'}}}\n"
    (folder / "cases.yaml").write_text(text)
    (folder / "windows.yaml").write_text(text.replace("data/", "data\\"))
    model = FunctionAdapter(write_notes)
    places = [
        (tmp_path, "set/cases.yaml"),
        (folder, "cases.yaml"),
        (Path("/"), f"{folder}/cases.yaml"),
        (folder, "windows.yaml"),
    ]
    keys = set[str]()
    for place, path in places:
        monkeypatch.chdir(place)
        dataset = Dataset.load(path, notebook())
        assert dict(dataset[0].files) == {"given.txt": b"given\r\n"}
        done = evaluate(notebook(), dataset, model=model, folder=tmp_path / "evals")
        keys |= {one.key for one in done["base"].results}
    assert len(keys) == 1
    assert model.asked == 5


# --- failures of tools and of code


def test_tool_that_raises_is_told_to_the_model_and_a_case_that_raises_fails_alone() -> None:
    def find(key: str) -> str:
        """Find."""
        raise ZeroDivisionError(f"no {key}")

    template = PromptTemplate(
        ns="evals",
        key="broken",
        sections=[MarkdownSection[Question](title="Q", template="$text", tools=[find], key="q")],
    )

    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        number = text.partition("q")[2].split()[0]
        if number in "34" and not turn_of(request):
            return calls(("find", '{"key": "it"}'))
        if number == "4":
            raise RuntimeError("the adapter's code is broken")
        return say(f"q{number} after {turn_of(request)} calls")

    done = evaluate(
        template, question_cases(10), evaluators=[is_right], model=FunctionAdapter(answer)
    )
    outcomes = [one.outcome for one in done["base"].results]
    assert outcomes == ["answered"] * 4 + ["failed"] + ["answered"] * 5
    scores = [one.scores.get("is_right") for one in done["base"].results]
    assert scores == [True] * 4 + [None] + [True] * 5
    found = json.loads("".join(experiment_json(done)))["variants"]["base"]["results"][4]["error"]
    for text in (found, "".join(junit_xml(done))):
        assert "Traceback" in text
        assert "RuntimeError: the adapter" in text
    assert "base, 4: failed: Traceback" in "\n".join(experiment_lines(done))
    config = RunConfig(raise_handler_errors=True)
    options: dict[str, Any] = {"evaluators": [is_right], "config": config}
    done = evaluate(template, question_cases(10), model=FunctionAdapter(answer), **options)
    results = done["base"].results
    assert [one.outcome for one in results] == ["answered"] * 3 + ["failed"] * 2 + ["answered"] * 5
    assert "ZeroDivisionError: no it" in results[3].error


def test_import_changes_no_event_loop_policy_and_no_signal_handler() -> None:
    program = """
import asyncio, signal, sys, threading, warnings
warnings.simplefilter("ignore")
def state():
    handlers = [signal.getsignal(it) for it in signal.valid_signals()]
    policy = asyncio.get_event_loop_policy()
    return type(policy), vars(policy).get("_local").__dict__, handlers, threading.enumerate()
before = state()
import weakincentives.evals
assert state() == before
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = {name.partition(".")[0] for name in done.stdout.split()}
    heavy = {"openai", "anthropic", "yaml", "rich", "typer", "hypothesis", "pytest", "scipy"}
    assert not heavy & modules


def test_experiments_run_under_another_event_loop() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not for this platform")
    options: dict[str, Any] = {"evaluators": [is_right], "model": FunctionAdapter(echo)}
    here = evaluate(questions(), question_cases(20), **options)
    there: Experiment = uvloop.run(evaluate_async(questions(), question_cases(20), **options))
    assert [it.scores for it in there["base"].results] == [{"is_right": True}] * 20
    assert [it.key for it in there["base"].results] == [it.key for it in here["base"].results]


# --- memory


def test_memory_does_not_grow_with_the_lengths_of_the_answers() -> None:
    def peak(count: int) -> int:
        cases = question_cases(count)
        model = FunctionAdapter(lambda request, text: say(echo(request, text).text + "x" * 50_000))
        options: dict[str, Any] = {"evaluators": [is_right], "model": model}

        def collect(progress: Progress) -> None:
            if progress.done % 10 == 0:
                gc.collect()

        gc.collect()
        tracemalloc.start()
        evaluate(questions(), cases, progress=collect, **options)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(20)
    assert peak(120) - peak(20) < 1_000_000  # of 5 MB of answers


def test_resumed_experiment_does_not_read_transcripts(tmp_path: Path) -> None:
    long = "word " * 100_000

    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        return say(f"{echo(request, text).text} {long}" if turn_of(request) else long)

    def short(case: Case, run: EvalRun) -> bool:
        return len(run.text) < 10

    def run() -> Experiment:
        model = FunctionAdapter(answer)
        result = evaluate(
            questions(), question_cases(20), evaluators=[short], model=model, folder=tmp_path
        )
        assert result.reused in (0, 20)
        return result

    first = run()
    size = sum(log.stat().st_size for log in (tmp_path / "runs").iterdir())
    assert size > 10_000_000
    run()  # what is loaded once is not the logs
    tracemalloc.start()
    started = time.process_time()
    again = run()
    seconds, most = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert again.reused == 20
    assert results(again) == results(first)
    assert most < 1_000_000
    assert seconds < 2


# --- what is written


def refuse(constant: str) -> NoReturn:
    raise AssertionError(constant)


def test_every_file_is_strict_json_and_text_whatever_a_run_contains(tmp_path: Path) -> None:
    hostile = "\ud800 \x1b \u2028 \ufffe 😀"

    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        if not turn_of(request):
            raw = json.dumps({"text": hostile}, ensure_ascii=False)
            return calls(("note", raw), ("note", ascii(raw)), ("note", '{"text": NaN}'))
        return say(json.dumps({"text": hostile.removeprefix("\ud800"), "notes": 1}))

    def infinite(case: Case, run: EvalRun) -> dict[str, float | str]:
        return {"nan": float("nan"), "inf": float("inf"), "label": hostile, "one": 1.0}

    case = Case(
        id=hostile,
        params=(Question(hostile),),
        state=(Note(hostile),),
        metadata={"a": hostile},
        cluster=hostile,
    )
    options: dict[str, Any] = {"evaluators": [infinite], "folder": tmp_path / "evals"}
    every = [evaluate(notebook(), [case], model=FunctionAdapter(answer), **options) for _ in "ab"]
    assert [done.reused for done in every] == [0, 1]
    for done in every:
        (result,) = done["base"].results
        assert result.outcome == "answered", result.error
        assert {*result.score_errors} == {"infinite.nan", "infinite.inf"}
        assert result.scores == {"infinite.label": hostile, "infinite.one": 1.0}
    written = tmp_path / "evals" / "experiment.json"
    written.write_text("".join(experiment_json(every[0])), encoding="utf-8")
    files = [path for path in (tmp_path / "evals").rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"runs", "variants", "evals"}
    for path in files:
        text = path.read_bytes().decode()  # strictly UTF-8
        for document in [*filter(None, text.split("\n"))] if path.suffix == ".jsonl" else [text]:
            json.loads(document, parse_constant=refuse)


KEY = "sk-sentinel-0123456789abcdef"


@pytest.mark.parametrize("user", ["", f"user:{KEY}@"])
@pytest.mark.parametrize("api", APIS)
def test_no_file_and_no_report_has_a_key(tmp_path: Path, api: str, user: str) -> None:
    quoted = Fail(400, f"the key {KEY} is not for {KEY}", "invalid_request_error")
    settings = ModelSettings(extra={"metadata": {"api_key": KEY}})
    with ScriptedServer(Say("q0"), quoted, quoted, strict=False) as server:
        url = server.url.replace("//", f"//{user}")
        adapter = sdk_adapter(api, url, api_key=KEY, max_retries=0, settings=settings)
        done = evaluate(
            questions(),
            question_cases(3),
            evaluators=[is_right],
            model=adapter,
            concurrency=1,
            settings=ModelSettings(timeout=30),
            folder=tmp_path,
            explain=True,
        )
        assert all(KEY in request.body.decode() for request in server.requests)
        assert user or all(KEY in str(request.headers) for request in server.requests)
    assert [one.outcome for one in done["base"].results] == ["answered", "provider", "provider"]
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    pair = compare(done["base"], done["base"])
    texts += ["".join(experiment_json(done)), "".join(junit_xml(done)), markdown(done, [pair])]
    texts += ["".join(experiment_page(done, comparisons=[pair])), "\n".join(experiment_lines(done))]
    assert len(texts) > 7
    for text in texts:
        assert "sentinel" not in text


def test_a_log_whose_end_does_not_fit_on_the_disk_does_not_stay_locked(tmp_path: Path) -> None:
    resource: Any = pytest.importorskip("resource")
    path = tmp_path / "run.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    file = RunFile(str(path), {}).open()
    file.end({}, {"outcome": "answered"})
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            file.__exit__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with RunFile(str(path), {}).open() as file:
        assert file.ended is None
