"""The parts of `wink eval` and `wink compare`, which only these commands import."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import isfunction, signature
from logging import getLogger
from math import isfinite, nan
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn, Unpack, cast

from typer import Exit

from ..adapters.core import LoopAdapter, ProviderAdapter
from ..atomic_writes import replacing
from ..evals.cases import Case, Dataset, metadata_texts
from ..evals.ci_reports import junit_xml, markdown
from ..evals.comparisons import CompareOptions, ComparisonError, Comparisons, compare_all
from ..evals.experiment import evaluate
from ..evals.experiment_files import experiment_json, load_experiment, save_baseline
from ..evals.gates import Gate, comparison_gate, mean_gate, missing_gate, rate_gate
from ..evals.options import AnyEvaluator, EvaluateOptions, Progress, Target, Variant
from ..evals.page import experiment_page
from ..evals.reports import comparison_lines, experiment_lines
from ..evals.results import Experiment, RunResult, VariantResults
from ..evals.scoring import check_evaluators
from ..limits import Budget
from ..model_settings import ModelSettings
from ..prompt.template import AnyPrompt, AnyTemplate, PromptTemplate
from ..redaction import Redactor, credentials_in
from .eval_progress import showing_progress
from .printing import print_lines, single_line
from .run_options import load_adapter
from .target import UsageError, load, load_prompt

__all__ = [
    "Files",
    "Gates",
    "check_margin",
    "compare_files",
    "load_evaluators",
    "problems_as_lines",
    "read_baseline",
    "read_budget",
    "read_variants",
    "report",
    "run_cases",
]

_SECONDS_TO_END = 1.5  # after Ctrl-C

# --- Arguments


@contextmanager
def problems_as_lines() -> Generator[None]:
    """Prints each problem of cases and options on a line of its own, and ends the program."""
    try:
        yield
    except (ValueError, TypeError) as error:
        sys.stderr.writelines(f"wink: {single_line(line)}\n" for line in f"{error}".splitlines())
        raise Exit(2) from error


def read_variants(texts: Iterable[str] | None) -> list[Variant]:
    """Reads `NAME:key=value`, where texts with the same name are one variant."""
    rows: dict[str, dict[str, str]] = {}
    for text in texts or ():
        name, _, setting = text.partition(":")
        key, equals, value = setting.partition("=")
        if not name or (setting and not equals):
            raise UsageError(f"--variant {text!r} must be NAME:key=value, such as short:tag=short")
        rows.setdefault(name, {}).update({key: value} if key else {})
    return [_variant(name, row) for name, row in rows.items()]


def _variant(name: str, row: dict[str, str]) -> Variant:
    tag, model = row.pop("tag", ""), row.pop("model", None)
    try:
        settings = ModelSettings(**{key: _json(row[key]) for key in row}) if row else None
    except (TypeError, ValueError) as error:
        raise UsageError(f"--variant {name}: {error}") from error
    return Variant(name=name, tag=tag, model=model, settings=settings)


# Any: a setting of any type, which ModelSettings checks
def _json(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return text


def check_margin(margin: float | None) -> float | None:
    """Raises `UsageError` for a margin that is not positive."""
    if margin is not None and not margin > 0:
        raise UsageError(f"--margin must be more than 0, got {margin:g}")
    return margin


def read_budget(dollars: float | None) -> Budget | None:
    """Returns a budget; ends the program for an amount that cannot be a limit."""
    with problems_as_lines():
        return None if dollars is None else Budget(max_cost=dollars)


def load_evaluators(names: Iterable[str] | None) -> list[AnyEvaluator]:
    """Loads evaluators, or lists of them."""
    found: list[AnyEvaluator] = []
    for name in names or ():
        value = load(name, "evaluator")
        for one in value if isinstance(value, list | tuple) else [value]:
            if not callable(one):
                raise UsageError(
                    f"--evaluators {name} must be an evaluator or a list of them, got {one!r:.100}"
                )
            found.append(cast(AnyEvaluator, one))  # its results are checked when it is called
    return found


def _prompt(target: str) -> tuple[Target, AnyTemplate | AnyPrompt | None]:
    """Returns what to run, and its prompt unless a function makes a prompt of each case."""
    value = None if Path(target).is_dir() else load(target, "prompt")
    if isinstance(value, PromptTemplate):
        return value, value
    if isfunction(value) and signature(value).parameters:
        return value, None
    prompt = load_prompt(target)

    def bound(case: Case) -> AnyPrompt:
        return prompt.for_run().bind(*case.params)

    return bound, prompt


# --- Experiments


def run_cases(
    target: str,
    paths: Sequence[str],
    selected: tuple[Sequence[str] | None, Sequence[str] | None],
    adapter: tuple[str | None, Mapping[str, str | None]],
    *,
    gates: "Gates",
    by: str | None,
    **options: Unpack[EvaluateOptions],
) -> Experiment:
    """Runs the cases with the selected ids and metadata, and shows the progress.

    `adapter` is the adapter's name with its options; without any, variants have their own models.
    The scores of the gates and the metadata key `by` are checked before the runs.
    """
    evaluated, prompt = _prompt(target)
    with problems_as_lines(), ExitStack() as stack:
        dataset = Dataset.load(paths, prompt)
        ids, pairs = selected
        if ids or pairs:
            where = {key: value for key, _, value in [pair.partition("=") for pair in pairs or ()]}
            dataset = dataset.select(ids=ids, where=where)
        known = {"cluster", *(key for case in dataset for key in metadata_texts(case))}
        if by is not None and by not in known:
            raise UsageError(f"--by: no case has the key {by!r}; known: {', '.join(sorted(known))}")
        names = [one.name for one in check_evaluators(options.get("evaluators", ()))]
        gates.check(names)
        name, arguments = adapter
        server = {key: value for key, value in arguments.items() if key != "model" and value}
        options["variants"] = [
            replace(one, model=_model(load_adapter(None, stack, model=one.model, **server)))
            if isinstance(one.model, str) and server
            else one
            for one in options.get("variants", ())
        ]
        if name or any(arguments.values()):
            options["model"] = _model(load_adapter(name, stack, **arguments))
        try:
            options["progress"] = gates.checking(stack.enter_context(showing_progress()), names)
            with _interruptible():
                return evaluate(evaluated, dataset, **options)
        except KeyboardInterrupt:
            raise Exit(2) from None


def _exit_now(*_: object) -> NoReturn:
    os._exit(2)


@contextmanager
def _interruptible() -> Generator[None]:
    """Says on Ctrl-C how to continue, and ends the process soon, even if a tool blocks.

    The runs' logs contain everything up to that moment. A second Ctrl-C ends the process at once.
    """

    def stop(*_: object) -> NoReturn:
        signal.signal(signal.SIGINT, _exit_now)
        getLogger("asyncio").disabled = True  # it would log the tasks that this interrupts
        command = single_line(shlex.join(["wink", *sys.argv[1:]]))
        sys.stderr.write(f"wink: interrupted; to continue, run {command}\n")
        timer = Timer(_SECONDS_TO_END, os._exit, (2,))
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _model(adapter: ProviderAdapter) -> LoopAdapter:
    if not isinstance(adapter, LoopAdapter):
        raise UsageError(f"wink eval cannot use the adapter {type(adapter).__name__}")
    return adapter


def read_baseline(path: Path | None, *, is_written: bool = False) -> Experiment | None:
    """Reads an experiment's file, which need not exist if the command writes it."""
    if path is None and is_written:
        raise UsageError("--write-baseline requires --baseline with the file to write")
    if path is None or (is_written and not path.exists()):
        return None
    try:
        return load_experiment(path)
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist; write it with wink eval --json, or as a baseline with "
            "--write-baseline"
        ) from None
    except ValueError as error:
        raise UsageError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Files:
    """The files to write for an experiment, and what its reports contain.

    Its scores are also reported by the metadata key `by`. Raises `UsageError` for a file that
    cannot be written, before the runs.
    """

    json: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    html: Path | None = None
    baseline: Path | None = None
    by: str = ""
    verbose: bool = False

    def __post_init__(self) -> None:
        for path in filter(None, (self.json, self.junit, self.markdown, self.html, self.baseline)):
            if path.is_dir() or not path.absolute().parent.is_dir():
                problem = "is a folder" if path.is_dir() else "is in a folder that does not exist"
                raise UsageError(f"{path} cannot be written, because it {problem}")


def report(
    experiment: Experiment,
    files: Files,
    old: Experiment | None,
    margin: float | None,
    gates: "Gates",
) -> NoReturn:
    """Prints and writes an experiment, and ends the program with the exit code of its gates.

    The variants are compared with `old` or, without it, with the first variant.
    """
    print_lines(experiment_lines(experiment, files.by, verbose=files.verbose))
    _write(files.json, experiment_json(experiment, files.by))
    _write(files.junit, junit_xml(experiment))
    first, *others = experiment.variants.values()
    pairs = [(first, other) for other in others]
    if old is not None:
        [base, *_] = old.variants.values()
        pairs = [(old.variants.get(one.name, base), one) for one in (first, *others)]
    comparisons: list[Comparisons] = []
    try:
        comparisons = compare_all(*pairs, margin=margin)
    except ComparisonError as error:
        if files.baseline is None:
            _report_comparisons([], experiment, [], files, [])
            raise
        print_lines([f"{error}"])
    found = gates.results([first, *others], comparisons, is_complete=experiment.is_complete)
    _report_comparisons([old] if old else [], experiment, comparisons, files, found)
    if files.baseline is not None:
        if not experiment.is_complete:
            raise UsageError(f"{files.baseline} is unchanged, because runs are missing")
        save_baseline(experiment, files.baseline)
        print_lines([f"{files.baseline} is written"])
    _end(found)


def compare_files(
    a: str, b: str, files: Files, gates: "Gates", **options: Unpack[CompareOptions]
) -> NoReturn:
    """Compares the variants at `FILE` or `FILE:variant`, and prints how they differ.

    Ends the program with the exit code of the gates.
    """
    found = [_find(a), _find(b)]
    (first, _), (second, _) = found
    comparisons = compare_all((first, second), **options)
    old, new = [replace(it, variants={variant.name: variant}) for variant, it in found]
    results = gates.results([one.b for one in comparisons], comparisons)
    _report_comparisons([old], new, comparisons, files, results)
    _end(results)


def _find(name: str) -> tuple[VariantResults, Experiment]:
    path, _, variant = (name, "", "") if Path(name).exists() else name.rpartition(":")
    experiment = read_baseline(Path(path or name))
    known = [] if experiment is None else list(experiment.variants)
    if not variant and len(known) == 1:
        variant = known[0]
    if experiment is None or variant not in known:
        examples = ", ".join([f"{path}:{one}" for one in known])
        raise UsageError(f"{name!r} does not name one variant; use one of {examples}")
    return experiment[variant], experiment


def _report_comparisons(
    old: Sequence[Experiment],
    experiment: Experiment,
    comparisons: Sequence[Comparisons],
    files: Files,
    gates: Sequence[Gate],
) -> None:
    for one in comparisons:
        print_lines(["", *comparison_lines(one, verbose=files.verbose)])
    _write(files.markdown, [markdown(experiment, comparisons, files.by, gates)])
    mask = Redactor(tuple(credentials_in(os.environ)))
    _write(files.html, experiment_page(*old, experiment, comparisons=comparisons, mask=mask))


def _write(path: Path | None, parts: Iterable[str]) -> None:
    if path is not None:
        with replacing(path) as file:
            file.writelines(part.encode() for part in parts)


# --- Gates


type _Gate = Callable[[VariantResults, str, float], Gate]


class Gates:
    """The gates that the command line asks for."""

    def __init__(
        self,
        fail_on: Iterable[str] | None,
        means: Iterable[str] | None,
        rates: Iterable[str] | None,
    ) -> None:
        self._compared: list[str] = []  # scores, or "" for all
        for text in fail_on or ():
            name, _, verdict = text.rpartition("=")
            if verdict != "worse":
                raise UsageError(f"--fail-on must be worse or name=worse, got {text!r}")
            self._compared.append(name)
        self._limits = [*_limits(means, mean_gate), *_limits(rates, rate_gate)]
        wrong = [
            limit for gate, _, limit in self._limits if gate is rate_gate and not 0 < limit < 1
        ]
        if wrong:
            raise UsageError(f"--fail-under-rate must be between 0 and 1, got {wrong[0]:g}")

    def check(self, evaluators: Sequence[str]) -> None:
        """Raises `UsageError` for a limit of a score that no evaluator gives."""
        names = [name for _, name, _ in self._limits] + [name for name in self._compared if name]
        for name in names:
            is_given = name in evaluators or any(name.startswith(f"{it}.") for it in evaluators)
            if not (is_given if name else len(evaluators) == 1):
                raise _unknown(name, evaluators, "no evaluator gives the score")

    def checking(
        self, show: Callable[[Progress], object], evaluators: Sequence[str]
    ) -> Callable[[Progress], object]:
        """Returns a progress function that raises `UsageError` for scores that cannot be judged.

        The scores of an evaluator that returns a mapping are known after the first run.
        """

        def check(progress: Progress) -> None:
            show(progress)
            if (result := progress.result) is not None:
                for gate, name, _ in self._limits:
                    _check_scored(result, name, evaluators, is_rate=gate is rate_gate)

        return check

    def results(
        self,
        variants: Sequence[VariantResults],
        comparisons: Sequence[Comparisons],
        *,
        is_complete: bool = True,
    ) -> list[Gate]:
        """Returns the results of all gates."""
        found = [gate for one in variants if (gate := missing_gate(one)) is not None]
        if not is_complete and not found:
            found = [Gate("inconclusive", "the budget did not allow all scores")]
        with problems_as_lines():
            for check, name, limit in self._limits:
                found += [check(one, _score(one, name), limit) for one in variants]
        found += [comparison_gate(one, name) for one in comparisons for name in self._compared]
        return found


def _end(gates: Sequence[Gate]) -> NoReturn:
    """Prints the gates, and ends the program with their exit code."""
    print_lines(f"gate {gate.result}: {gate.reason}" for gate in gates)
    results = {gate.result for gate in gates}
    raise Exit(1 if "fails" in results else 2 if "inconclusive" in results else 0)


def _check_scored(
    result: RunResult, name: str, evaluators: Sequence[str], *, is_rate: bool
) -> None:
    """Raises `UsageError` if the run has other scores of the limit's evaluator, or a label."""
    owner = name or evaluators[0]
    while owner not in evaluators:
        owner = owner.rpartition(".")[0]
    own = [it for it in result.scores if it == owner or it.startswith(f"{owner}.")]
    if not own:
        return
    name = own[0] if not name and len(own) == 1 else name
    if name not in own and name not in result.score_errors:
        raise _unknown(name, own, f"{owner!r} does not give the score")
    value = result.scores.get(name)
    if isinstance(value, str) or (is_rate and not isinstance(value, bool | None)):
        kinds = "true or false" if is_rate else "a number, or true or false"
        raise UsageError(f"a limit needs a score that is {kinds}, but {name} is {value!r:.100}")


def _limits(texts: Iterable[str] | None, gate: _Gate) -> list[tuple[_Gate, str, float]]:
    """Reads `NAME=NUMBER`, or just the number, if there is one score."""
    limits: list[tuple[_Gate, str, float]] = []
    for text in texts or ():
        name, _, number = text.rpartition("=")
        try:
            limit = float(number)
        except ValueError:
            limit = nan
        if not isfinite(limit):
            raise UsageError(f"a limit must be a number or name=number, got {text!r}")
        limits.append((gate, name, limit))
    return limits


def _score(variant: VariantResults, name: str) -> str:
    known = [name for name in variant.evaluators if not variant.summary(name).labels]
    if name in known:
        return name
    if name or len(known) != 1:
        raise _unknown(name, known, f"{variant.name} does not have the score")
    return known[0]


def _unknown(name: str, known: Sequence[str], problem: str) -> UsageError:
    problem = f"{problem} {name!r}" if name else "a limit must name its score"
    use = f"use {', '.join([f'{one}=…' for one in known])}" if known else "there are no scores"
    return UsageError(f"{problem}; {use}")
