"""Evaluate prompts on cases, and compare two variants honestly."""

from .case_files import CaseFileError, CaseProblem
from .case_types import case_schema
from .cases import Case, Dataset
from .comparison import Comparison
from .comparisons import (
    CompareOptions,
    ComparisonError,
    Comparisons,
    ScoreComparison,
    compare,
    compare_all,
)
from .durable_target import DurableTarget
from .experiment import evaluate, evaluate_async, map_prompts, map_prompts_async
from .experiment_files import load_experiment, save_baseline
from .marked_tests import CaseEvaluation, EvalRule
from .options import EvaluateOptions, Progress, Variant
from .page import experiment_page
from .results import Experiment, RunResult, ScoreSummary, VariantResults
from .scores import AskJudge, EvalCall, EvalRun, Evaluator, Scale, Score, evaluator

__all__ = [
    "AskJudge",
    "Case",
    "CaseEvaluation",
    "CaseFileError",
    "CaseProblem",
    "CompareOptions",
    "Comparison",
    "ComparisonError",
    "Comparisons",
    "Dataset",
    "DurableTarget",
    "EvalCall",
    "EvalRule",
    "EvalRun",
    "EvaluateOptions",
    "Evaluator",
    "Experiment",
    "Progress",
    "RunResult",
    "Scale",
    "Score",
    "ScoreComparison",
    "ScoreSummary",
    "Variant",
    "VariantResults",
    "case_schema",
    "compare",
    "compare_all",
    "evaluate",
    "evaluate_async",
    "evaluator",
    "experiment_page",
    "load_experiment",
    "map_prompts",
    "map_prompts_async",
    "save_baseline",
]
