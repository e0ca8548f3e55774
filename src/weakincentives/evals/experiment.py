"""`evaluate` runs a prompt on the cases of a dataset, in one or more variants, and scores the runs.

Each run has its log in the experiment's folder, under a key of everything that can change its
answer. A run that has ended there is not performed again, and one that has not continues.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from traceback import format_exception
from typing import Unpack

from .. import serde
from ..adapters.core import LoopAdapter
from ..adapters.model_names import adapter_for
from ..cancellation import as_exception
from ..displays import count_of
from ..inspection.secrets import mask_secrets
from ..limits import RunUsage, TokenUsage, check_count, utc_now
from ..prompt.template import AnyPrompt, PromptTemplate
from ..signatures import check_names, is_coroutine_function
from .cases import Case, Dataset
from .durable_target import DurableTarget
from .explanations import Explanations
from .keys import case_digests, digest, key_of, prompt_parts, variant_parts
from .options import EvaluateOptions, Progress, Target, Variant, checked_budget, known_prices
from .pacing import Ledger, Pace, PacedAdapter
from .performed_runs import Performed, Performer, Task, apart
from .prepared_variants import PreparedVariant
from .results import (
    NO_SCORES,
    NO_TEXTS,
    NO_USAGE,
    CaseInfo,
    EvaluatorInfo,
    Experiment,
    RunResult,
    VariantResults,
)
from .run_logs import Line
from .scores import EvalRun, Evaluator, Scale, ScoreError, Value
from .scoring import Kinds, Scores, check_evaluators, score

__all__ = ["evaluate", "evaluate_async", "map_prompts", "map_prompts_async"]

_SHOWN = 20  # cases that cannot be run
_OVER = "not run: the budget of the experiment is used up"
_MAX_ERROR = 4_000  # characters


def evaluate(
    target: Target, dataset: Iterable[Case], /, **options: Unpack[EvaluateOptions]
) -> Experiment:
    """Runs a prompt on all cases, in all variants, and scores the runs.

    `model` is an adapter or a model's name, and `repeats` is the number of runs of each case.
    At most `concurrency` runs are in progress at the same time. `timeout` limits each run, in
    seconds. `budget` limits all runs and judges of this call together, but not what earlier calls
    have spent on runs in `folder`; its `max_cost` needs `prices`, by default the adapter's own or
    those of the extra `prices`. All requests to a provider pause when it asks for that, and fail
    if they would wait longer than `max_wait` seconds. `approver` decides on calls that need
    approval. `progress` is called after each run, and `on_run` with each run's result and the run
    itself. With `explain`, the result's notes say what has changed since runs that the folder has.

    `folder` keeps the runs' logs: an experiment that was interrupted, and is started again with the
    same folder, continues. Without a folder, nothing is kept. Session state can contain values of
    the given `types` and of the types that the prompt declares.

    Raises `ValueError` before the first request for anything that cannot work, such as a case
    without the prompt's params, and `RuntimeError` in a running event loop, where `evaluate_async`
    is to be awaited.
    """
    _check_no_loop("evaluate")
    return asyncio.run(evaluate_async(target, dataset, **options))


async def evaluate_async(
    target: Target, dataset: Iterable[Case], /, **options: Unpack[EvaluateOptions]
) -> Experiment:
    """Like `evaluate`, without blocking the event loop."""
    given = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    if (folder := options.get("folder")) is not None:
        return await _Evaluation(target, given, Path(folder), options).run()
    with TemporaryDirectory(prefix="weakincentives-", ignore_cleanup_errors=True) as temporary:
        result = await _Evaluation(target, given, Path(temporary), options).run()
    return replace(result, folder="")


def map_prompts(
    target: Target, dataset: Iterable[Case], /, **options: Unpack[EvaluateOptions]
) -> list[EvalRun]:
    """Runs a prompt on all cases, and returns the runs in the order of the dataset.

    The arguments are the same as those of `evaluate`. A run that failed has an `error`, and the
    runs of a case that was not run are missing.
    """
    _check_no_loop("map_prompts")
    return asyncio.run(map_prompts_async(target, dataset, **options))


async def map_prompts_async(
    target: Target, dataset: Iterable[Case], /, **options: Unpack[EvaluateOptions]
) -> list[EvalRun]:
    """Like `map_prompts`, without blocking the event loop."""
    runs: dict[str, EvalRun] = {}
    also = options.get("on_run")

    def keep(result: RunResult, run: EvalRun) -> None:
        runs[result.key] = run
        if also is not None:
            also(result, run)

    options["on_run"] = keep
    experiment = await evaluate_async(target, dataset, **options)
    results = [one for variant in experiment.variants.values() for one in variant.results]
    return [runs[result.key] for result in results if result.key in runs]


def _check_no_loop(name: str) -> None:
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - `get_running_loop` would raise
        raise RuntimeError(
            f"{name} cannot be called in a running event loop; await {name}_async(…) instead"
        )


class _Evaluation:
    """One call of `evaluate`."""

    def __init__(
        self, target: Target, dataset: Dataset, folder: Path, options: EvaluateOptions
    ) -> None:
        check_names("evaluate()", options, list(EvaluateOptions.__annotations__))
        self._dataset, self._folder, self._options = dataset, folder, options
        self._repeats = options.get("repeats", 1)
        self._concurrency = options.get("concurrency", 8)
        for name, count in (("repeats", self._repeats), ("concurrency", self._concurrency)):
            check_count(name, count, least=1)
        waits = {"timeout": options.get("timeout"), "max_wait": options.get("max_wait")}
        for name, seconds in waits.items():
            if seconds is not None and not 0 < seconds < inf:
                raise ValueError(f"{name} must be more than 0 seconds, got {seconds}")
        if not len(dataset):
            raise ValueError(f"the dataset {dataset.name!r} has no cases")
        self._evaluators = check_evaluators(options.get("evaluators", ()))
        model = options.get("model")
        self._keys = {one.name: key_of(one, model) for one in self._evaluators}
        self._slow = {one.name for one in self._evaluators if is_coroutine_function(one.function)}
        self._kinds = Kinds()
        self._ledger = Ledger(checked_budget(options.get("budget")))
        self._paces: dict[str, Pace] = {}
        self._judges: dict[str, tuple[object, PacedAdapter]] = {}
        self._infos: dict[str, EvaluatorInfo] = {}
        self._arms = self._prepare(target)
        self._check_judges()
        self._cases = self._check_cases()
        types = tuple(options.get("types", ()))
        self._performer = Performer(folder / "runs", types)
        self._judging = Performer(folder / "judges", types)
        self._explanations = Explanations(folder) if options.get("explain") else None
        self._total = len(self._arms) * len(dataset) * self._repeats
        self._done = self._reused = self._failures = 0
        self._counted = set[str]()  # verdicts
        self._started, self._waits_until = monotonic(), 0.0

    # ------------------------------------------------------------------------- before the runs

    def _prepare(self, target: Target) -> list[PreparedVariant]:
        variants = self._options.get("variants") or (Variant(name="base"),)
        names = [variant.name for variant in variants]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"two variants have the name {twice[0]!r}; rename one of them")
        return [self._arm(target, variant) for variant in variants]

    def _arm(self, target: Target, variant: Variant) -> PreparedVariant:
        target = variant.prompt or target
        if isinstance(target, DurableTarget):
            own = {"tag": variant.tag, "model": variant.model, "settings": variant.settings}
            target.check_options(self._options, own)
            adapter = self._paced(target.installed.adapter)
            parts = target.parts(adapter.inner)
            return PreparedVariant(variant.name, target, adapter, None, "", parts, self._folder)
        adapter = self._paced(variant.model or self._options.get("model"))
        settings = variant.settings
        if (common := self._options.get("settings")) is not None:
            settings = common if settings is None else settings.over(common)
        of_template = target.settings if isinstance(target, PromptTemplate) else None
        parts = variant_parts(adapter.inner, self._options.get("config"), (settings, of_template))
        return PreparedVariant(
            variant.name, target, adapter, settings, variant.tag, parts, self._folder
        )

    def _paced(self, model: object, *, is_judge: bool = False) -> PacedAdapter:
        adapter = adapter_for(model) if model is None or isinstance(model, str) else model
        if not isinstance(adapter, LoopAdapter) or adapter.has_own_loop:
            raise TypeError(
                f"evaluate takes adapters of this library, or names of models, got {adapter!r}"
            )
        prices = self._options.get("prices") or adapter.config.prices or known_prices()
        budget = self._ledger.budget
        if budget is not None and budget.max_cost is not None:
            is_known = prices is not None and prices(TokenUsage(1, 1), adapter.model) is not None
            if not is_known:
                raise ValueError(
                    f"the price of {adapter.model!r} is unknown, so max_cost cannot be kept; in "
                    "Python, pass prices= or limit max_tokens instead"
                )
        return PacedAdapter(
            adapter,
            self._ledger,
            self._paces.setdefault(f"{adapter.name} {adapter.identity().get('base_url')}", Pace()),
            prices=prices,
            max_wait=self._options.get("max_wait", 120.0),
            on_wait=self._report_wait,
            is_judge=is_judge,
        )

    def _check_judges(self) -> None:
        """Raises `ValueError` for a judge that cannot be asked."""
        for one in self._evaluators:
            if one.is_judge and one.model is None and self._options.get("model") is None:
                raise ValueError(
                    f"the judge {one.name!r} has no model; pass model= to it or to evaluate"
                )
            if one.is_judge:
                self._judge(one.model)

    def _check_cases(self) -> dict[str, CaseInfo]:
        """Returns all cases by id; raises `ValueError` for those that cannot be run."""
        problems: list[str] = []
        reasons: set[str] = set()
        cases: dict[str, CaseInfo] = {}
        checked: set[tuple[object, ...]] = set()  # cases with the same types need one check
        for case in self._dataset:
            try:
                for arm in self._arms:
                    shape = arm.name, bool(case.files), *map(type, case.params)
                    if shape in checked:
                        continue
                    prompt, _ = arm.prompt(case)
                    if isinstance(arm.target, DurableTarget):
                        arm.target.check_case(case, prompt)
                    self._check(case, prompt)
                    if arm.binds and dict not in shape:
                        checked.add(shape)
                cases[case.id] = CaseInfo.of(case, "".join(case_digests(case)))
            except Exception as error:
                place = f"{case.source}: " if case.source else ""
                problems.append(f"{place}case {case.id!r}: {error}")
                reasons.add(f"{error}")
        if len(problems) == len(self._dataset) > len(reasons) == 1:
            raise ValueError(f"no case can be run: {reasons.pop()}")
        if problems:
            shown = "\n".join(problems[:_SHOWN])
            more = f"\nand {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise ValueError(f"{count_of(len(problems), 'case')} cannot be run:\n{shown}{more}")
        self._check_differences()
        return cases

    def _check_differences(self) -> None:
        """Raises `ValueError` for two variants that would have the same runs."""
        names: dict[frozenset[str], str] = {}
        for arm in [arm for arm in self._arms if arm.binds]:
            other = names.setdefault(arm.digests, arm.name)
            if other != arm.name:
                raise ValueError(
                    f"the variants {other!r} and {arm.name!r} do not differ in their prompts, "
                    "models and settings; to tell two models of one name apart, rename one"
                )

    @staticmethod
    def _check(case: Case, prompt: AnyPrompt) -> None:
        registry = prompt.template.registry
        missing = [kind for kind in registry.required_params if kind not in prompt.params]
        if missing:
            names = ", ".join(sorted(kind.__name__ for kind in missing))
            raise ValueError(f"the prompt needs params of {names}")
        if case.files and not Performer.has_files(prompt):
            raise ValueError("the prompt has no filesystem for the case's files")

    # ------------------------------------------------------------------------- the runs

    async def run(self) -> Experiment:
        results: list[RunResult | None] = [None] * self._total
        jobs = iter(range(self._total))

        async def work() -> None:
            for job in jobs:
                arm, case, repeat = self._job(job)
                results[job] = result = await self._perform(arm, case, repeat)
                if result.outcome != "unrun":
                    self._report(result, arm.name)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._concurrency, self._total)):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others have stopped because of it
        if None in results:  # the group ignores tasks that a run's code has cancelled
            raise RuntimeError("runs were cancelled; start the experiment again to continue it")
        return self._experiment([result for result in results if result is not None])

    def _job(self, number: int) -> tuple[PreparedVariant, Case, int]:
        """Returns the variant, the case and the repeat of a job; variants take turns."""
        number, arm = divmod(number, len(self._arms))
        repeat, case = divmod(number, len(self._dataset))
        return self._arms[arm], self._dataset[case], repeat

    async def _perform(self, arm: PreparedVariant, case: Case, repeat: int) -> RunResult:
        both = self._cases[case.id].digest
        given, judged = both[: len(both) // 2], both[len(both) // 2 :]
        prompt, variant = arm.prompt(case)
        key = digest(variant, case.id, given, str(repeat))
        own = {"case": case.id, "repeat": repeat, "variant": arm.name}
        task = Task(
            key=key,
            description={**own, "digests": [variant, given]},
            prompt=prompt,
            adapter=arm.adapter,
            case=case,
            settings=arm.settings,
            config=self._options.get("config"),
            timeout=self._timeout(),
            approver=self._options.get("approver"),
            workers=arm.target if isinstance(arm.target, DurableTarget) else None,
        )
        if self._is_over():
            return RunResult(case=case.id, repeat=repeat, outcome="unrun", key=key, error=_OVER)
        try:
            return await self._performed(task, repeat, judged)
        except BaseException as raised:  # such as a file that cannot be written
            error = as_exception(raised)
            text = mask_secrets("".join(format_exception(error)))[-_MAX_ERROR:]
            self._failures += 1
            return RunResult(case=case.id, repeat=repeat, outcome="failed", key=key, error=text)

    async def _performed(self, task: Task, repeat: int, judged: str) -> RunResult:
        async with self._performer.performing(task) as performed:
            if self._explanations is not None and not performed.is_reused:
                self._explanations.add(task.description)
            scores, judges = await self._scores(task, judged, performed)
            self._reused += performed.is_reused
            self._failures += performed.outcome != "answered"
            result = RunResult(
                case=task.case.id,
                repeat=repeat,
                outcome=performed.outcome,
                key=task.key,
                error=performed.error,
                scores=scores.values or NO_SCORES,
                reasons=scores.reasons or NO_TEXTS,
                score_errors=scores.errors or NO_TEXTS,
                usage=performed.usage,
                judges=judges,
                seconds=performed.seconds,
            )
            if (on_run := self._options.get("on_run")) is not None:
                on_run(result, await self._performer.restored(task, performed))
            return result

    def _timeout(self) -> float | None:
        """Returns the seconds that a run may take: its own, or those left for all."""
        timeout, budget = self._options.get("timeout"), self._ledger.budget
        if budget is None or budget.max_seconds is None:
            return timeout
        left = max(self._started + budget.max_seconds - monotonic(), 0.0)
        return left if timeout is None else min(timeout, left)

    def _is_over(self) -> bool:
        budget = self._ledger.budget
        if budget is None:
            return False
        if budget.max_seconds is not None:
            self._ledger.is_exhausted |= monotonic() > self._started + budget.max_seconds
        return self._ledger.is_exhausted

    # ------------------------------------------------------------------------- the scores

    async def _scores(
        self, task: Task, judged: str, performed: Performed
    ) -> tuple[Scores, RunUsage]:
        """Returns a run's scores, and the usage of the judges; reuses what is in its file."""
        scores, judges = Scores(), NO_USAGE
        if performed.outcome in ("provider", "unrun"):
            return scores, judges
        missing: list[tuple[str, Evaluator]] = []
        for one in self._evaluators:
            key = f"{self._keys[one.name]}{judged}"
            if (line := performed.stored.get(key)) is None:
                missing.append((key, one))
            else:
                self._add_stored(task.case.id, one, line, scores)
                usages = line.get("judges", {}).items()
                stored = {name: serde.parse(RunUsage, usage) for name, usage in usages}
                judges = self._count(judges, stored)
        if not missing:
            return scores, judges
        lines: dict[str, Line] = {}
        run = await self._performer.restored(task, performed)
        for key, one in missing:
            if performed.file is not None and one.name in self._slow:
                performed.file.write()  # its end, because scoring may take long
            new, verdicts = await self._score(task.case, run, one)
            usages = {name: verdict.usage for name, verdict in verdicts.items()}
            judges = self._count(judges, usages)
            self._add(one, new, scores)
            if new.errors:
                self._forget(verdicts)
            else:
                lines[key] = _line(one, new, usages)
        if performed.file is not None and lines:
            performed.file.add_scores(lines)
        return scores, judges

    async def _score(
        self, case: Case, run: EvalRun, one: Evaluator
    ) -> tuple[Scores, dict[str, Performed]]:
        """Returns the scores of one evaluator, and the runs of its judge by their key."""
        verdicts: dict[str, Performed] = {}

        async def ask(prompt: AnyPrompt, model: object, /) -> EvalRun:
            judge = self._judge(model)
            parts = {**prompt_parts(prompt), **variant_parts(judge.inner, None, (prompt.settings,))}
            params = Case(id=one.name, params=tuple(prompt.params.values()))
            key = digest("judge", digest(parts), case_digests(params)[0])
            task = Task(
                key=key,
                description={"judge": one.name, "case": case.id},
                prompt=prompt,
                adapter=judge,
                case=replace(params, params=()),
            )
            async with self._judging.performing(task) as performed:
                answer = await self._judging.restored(task, performed)
                verdicts[key] = performed
                if answer.error is not None:
                    raise answer.error
                return answer

        return await score(*apart(case, run), one, ask, self._kinds), verdicts

    def _forget(self, verdicts: Mapping[str, Performed]) -> None:
        """Removes verdicts that are score errors, but keeps those that others caused."""
        outcomes = {name: verdict.outcome for name, verdict in verdicts.items()}
        are_answers = set(outcomes.values()) == {"answered"}
        for name, outcome in outcomes.items():
            if are_answers or outcome == "failed":
                self._judging.forget(name)
                self._counted.discard(name)

    def _count(self, judges: RunUsage, usages: Mapping[str, RunUsage]) -> RunUsage:
        """Adds the usage of verdicts, each of them only once, even if many runs share it."""
        for key in usages.keys() - self._counted:
            judges += usages[key]
        self._counted |= usages.keys()
        return judges

    def _judge(self, model: object) -> PacedAdapter:
        model = self._options.get("model") if model is None else model
        key = model if isinstance(model, str) else str(id(model))
        known = self._judges.get(key)
        if known is None:  # with the model, whose id must not become another's
            known = self._judges[key] = model, self._paced(model, is_judge=True)
        return known[1]

    def _add(self, one: Evaluator, new: Scores, scores: Scores) -> None:
        scores.values |= new.values
        scores.reasons |= new.reasons
        scores.errors |= new.errors
        for name in (*new.values, *new.errors):
            known = self._infos.get(name)
            if known is None or known.scale is not new.scales.get(name, known.scale):
                self._infos[name] = self._info(one, new.scales.get(name, one.scale))

    def _info(self, one: Evaluator, scale: Scale) -> EvaluatorInfo:
        judge = self._judge(one.model).model if one.is_judge else ""
        return EvaluatorInfo(key=self._keys[one.name], scale=scale, judge=judge)

    def _add_stored(self, case_id: str, one: Evaluator, line: Line, scores: Scores) -> None:
        """Adds scores from a run's file."""
        scales = {name: serde.parse(Scale, it) for name, it in line.get("scales", {}).items()}
        new = Scores(values={}, reasons=line.get("reasons", {}), scales=scales)
        values: dict[str, Value] = line["values"]
        for name, value in values.items():
            try:
                self._kinds.check(name, value, case_id)
            except ScoreError as error:
                new.errors[name] = str(error)
            else:
                new.values[name] = value
        self._add(one, new, scores)

    # ------------------------------------------------------------------------- the results

    def _report(
        self, result: RunResult | None = None, variant: str = "", *, waiting: float = 0.0
    ) -> None:
        self._done += not waiting
        if (progress := self._options.get("progress")) is None:
            return
        performed = self._done - self._reused
        left = None
        if performed:
            left = (monotonic() - self._started) / performed * (self._total - self._done)
        progress(
            Progress(
                done=self._done,
                total=self._total,
                reused=self._reused,
                failures=self._failures,
                spent=self._ledger.spent,
                result=result,
                variant=variant if len(self._arms) > 1 else "",
                seconds_left=left,
                waiting_until=utc_now() + timedelta(seconds=waiting) if waiting else None,
            )
        )

    def _report_wait(self, seconds: float) -> None:
        now = monotonic()
        if now >= self._waits_until:  # said once for each pause
            self._waits_until = now + seconds
            self._report(waiting=seconds)

    def _experiment(self, results: Sequence[RunResult]) -> Experiment:
        for one in self._evaluators:
            self._infos.setdefault(one.name, self._info(one, one.scale))
        # The name of an evaluator of several scores, `name.key`, is not a score.
        groups = {name.rpartition(".")[0] for name in self._infos}
        groups -= {name for result in results for name in result.scores}
        infos = {name: info for name, info in self._infos.items() if name not in groups}
        step, count = len(self._arms), len(self._dataset)
        variants = {}
        for number, arm in enumerate(self._arms):
            own = results[number::step]
            by_case = [own[index::count] for index in range(count)]
            variants[arm.name] = VariantResults(
                name=arm.name,
                cases=self._cases,
                evaluators=infos,
                results=[result for repeats in by_case for result in repeats],
                settings=arm.described,
            )
        return Experiment(
            dataset=self._dataset.name,
            variants=variants,
            repeats=self._repeats,
            folder=str(self._folder),
            spent=self._ledger.spent,
            judges=self._ledger.judges.usage if self._ledger.judges.calls else NO_USAGE,
            reused=self._reused,
            is_complete=not self._ledger.has_refused
            and all(result.outcome != "unrun" for result in results),
            notes=[*self._notes({f"{result.key}.jsonl" for result in results})],
        )

    def _notes(self, names: set[str]) -> Iterator[str]:
        if self._explanations is not None:
            yield from self._explanations.notes()
        known = {name for name in self._performer.known if name.endswith(".jsonl")}
        if others := len(known - names):
            runs = "1 run that is" if others == 1 else f"{others} runs that are"
            yield f"the folder also has {runs} not of this experiment"


def _line(one: Evaluator, new: Scores, judges: Mapping[str, RunUsage]) -> Line:
    """Returns the scores of one evaluator for a run's file."""
    line: Line = {"values": new.values}
    if new.reasons:
        line["reasons"] = new.reasons
    if scales := {name: scale for name, scale in new.scales.items() if scale != one.scale}:
        line["scales"] = serde.dump(scales)
    if judges:
        line["judges"] = serde.dump(judges)
    return line
