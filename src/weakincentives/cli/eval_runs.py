"""`wink eval`, `wink compare` and `wink eval-schema`: run cases, compare variants, check files."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from .printing import write_json
from .run_options import Adapter, Api, BaseUrl, Model
from .target import Target, UsageError, load_prompt

__all__ = ["compare", "eval_schema", "evaluate_cases"]

_Texts = list[str] | None
_Cases = Annotated[list[str], Argument(help="Case files: YAML, JSON, JSON Lines or CSV.")]
_Variants = Annotated[
    _Texts,
    Option(
        help="NAME:tag=…, NAME:model=…, NAME:temperature=…; the first is the baseline. Repeatable."
    ),
]
_Evaluators = Annotated[
    _Texts, Option(help="Evaluators, or a list of them: package.module:name. Repeatable.")
]
_Repeats = Annotated[int, Option(help="How often to run each case.")]
_Concurrency = Annotated[int, Option(help="How many runs can be in progress at the same time.")]
_Budget = Annotated[float | None, Option(help="The maximum cost in dollars.")]
_Timeout = Annotated[float | None, Option(help="The maximum time of each run in seconds.")]
_Folder = Annotated[
    Path, Option(help="The folder of the runs' logs, from which the same command continues.")
]
_Case = Annotated[_Texts, Option(help="Run only the case with this id. Repeatable.")]
_Where = Annotated[_Texts, Option(help="Run only cases with this metadata: key=value. Repeatable.")]
_By = Annotated[str | None, Option(help="Also report the scores by this metadata key.")]
_Baseline = Annotated[Path | None, Option(help="Compare with the experiment in this file.")]
_WriteBaseline = Annotated[bool, Option("--write-baseline", help="Replace the file of --baseline.")]
_Margin = Annotated[
    float | None, Option(help="The largest difference of scores that does not matter.")
]
_FailOn = Annotated[
    _Texts,
    Option(
        help="worse, or name=worse for one score: exit with 1 if it is worse, and with 2 if that "
        "is uncertain. Repeatable."
    ),
]
_FailUnder = Annotated[
    _Texts, Option(help="The minimum mean: 0.9, or name=0.9 for one score. Repeatable.")
]
_FailUnderRate = Annotated[
    _Texts,
    Option(help="The minimum rate to show with 95 % confidence, such as name=0.9. Repeatable."),
]
_Json = Annotated[Path | None, Option("--json", help="Write the experiment as JSON.")]
_Junit = Annotated[Path | None, Option(help="Write JUnit XML to this file.")]
_Markdown = Annotated[Path | None, Option(help="Write Markdown for a pull request to this file.")]
_Html = Annotated[Path | None, Option(help="Write a page with all runs to this file.")]
_Verbose = Annotated[
    bool,
    Option(
        "--verbose",
        "-v",
        help="Also print all problems and changed cases, the tests, and why runs were repeated.",
    ),
]


def evaluate_cases(
    target: Target,
    cases: _Cases,
    *,
    variant: _Variants = None,
    evaluators: _Evaluators = None,
    adapter: Adapter = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api: Api = None,
    repeats: _Repeats = 1,
    concurrency: _Concurrency = 8,
    budget: _Budget = None,
    timeout: _Timeout = None,
    folder: _Folder = Path("evals"),
    case: _Case = None,
    where: _Where = None,
    by: _By = None,
    baseline: _Baseline = None,
    write_baseline: _WriteBaseline = False,
    margin: _Margin = None,
    fail_on: _FailOn = None,
    fail_under: _FailUnder = None,
    fail_under_rate: _FailUnderRate = None,
    json_: _Json = None,
    junit: _Junit = None,
    markdown: _Markdown = None,
    html: _Html = None,
    verbose: _Verbose = False,
) -> None:
    """Run a prompt on cases in one or more variants, and score the runs.

    Exits with 0 if all cases ran and all gates hold, with 1 if a gate fails, and with 2 if a gate
    is inconclusive or runs are missing.
    """
    from . import eval_work as work

    arms, gates = work.read_variants(variant), work.Gates(fail_on, fail_under, fail_under_rate)
    if fail_on is not None and baseline is None and not arms[1:]:
        raise UsageError("--fail-on requires --baseline or a second --variant")
    margin = work.check_margin(margin)
    old = work.read_baseline(baseline, is_written=write_baseline)
    written = baseline if write_baseline else None
    files = work.Files(json_, junit, markdown, html, written, by or "", verbose)
    experiment = work.run_cases(
        *(target, cases, (case, where)),
        adapter=(adapter, {"model": model, "base_url": base_url, "api": api}),
        gates=gates,
        by=by,
        evaluators=work.load_evaluators(evaluators),
        variants=arms,
        repeats=repeats,
        concurrency=concurrency,
        budget=work.read_budget(budget),
        timeout=timeout,
        folder=folder,
        explain=verbose,
    )
    work.report(experiment, files, old, margin, gates)


def compare(
    a: Annotated[str, Argument(help="An experiment's file, or FILE:variant.")],
    b: Annotated[str, Argument(help="An experiment's file, or FILE:variant.")],
    *,
    margin: _Margin = None,
    common_cases: Annotated[
        bool, Option("--common-cases", help="Compare only the cases that both have.")
    ] = False,
    anytime: Annotated[
        bool,
        Option("--anytime", help="Give verdicts before all runs have ended, as often as you like."),
    ] = False,
    fail_on: _FailOn = None,
    fail_under: _FailUnder = None,
    fail_under_rate: _FailUnderRate = None,
    markdown: _Markdown = None,
    html: _Html = None,
    verbose: _Verbose = False,
) -> None:
    """Compare two variants that were saved by wink eval --json or --write-baseline.

    Exits with 0 if all gates for B hold, with 1 if one fails, and with 2 if one is inconclusive or
    the variants cannot be compared.
    """
    from . import eval_work as work

    gates = work.Gates(fail_on, fail_under, fail_under_rate)
    files = work.Files(markdown=markdown, html=html, verbose=verbose)
    margin = work.check_margin(margin)
    work.compare_files(
        a, b, files, gates, margin=margin, common_cases=common_cases, anytime=anytime
    )


def eval_schema(target: Target) -> None:
    """Print the JSON Schema of case files, so that your editor can check them.

    Save the schema in FILE, and start each YAML file with `# yaml-language-server: $schema=FILE`.
    """
    from ..evals import case_schema

    write_json(case_schema(load_prompt(target)))
