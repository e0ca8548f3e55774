"""Evaluate prompts on cases, and compare two variants honestly."""

from .case_files import CaseFileError, CaseProblem
from .case_types import case_schema
from .cases import Case, Dataset
from .experiment import EvaluateOptions, Progress, Variant, evaluate, evaluate_async
from .results import Experiment, RunResult, ScoreSummary, VariantResults
from .scores import AskJudge, EvalCall, EvalRun, Evaluator, Scale, Score, evaluator

__all__ = [
    "AskJudge",
    "Case",
    "CaseFileError",
    "CaseProblem",
    "Dataset",
    "EvalCall",
    "EvalRun",
    "EvaluateOptions",
    "Evaluator",
    "Experiment",
    "Progress",
    "RunResult",
    "Scale",
    "Score",
    "ScoreSummary",
    "Variant",
    "VariantResults",
    "case_schema",
    "evaluate",
    "evaluate_async",
    "evaluator",
]
