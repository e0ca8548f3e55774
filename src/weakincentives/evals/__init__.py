"""Evaluate prompts on cases, and compare two variants honestly."""

from .cases import Case, Dataset
from .durable_target import DurableTarget
from .experiment import EvaluateOptions, Progress, Variant, evaluate, evaluate_async
from .results import Experiment, RunResult, ScoreSummary, VariantResults
from .scores import AskJudge, EvalCall, EvalRun, Evaluator, Scale, Score, evaluator

__all__ = [
    "AskJudge",
    "Case",
    "Dataset",
    "DurableTarget",
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
    "evaluate",
    "evaluate_async",
    "evaluator",
]
