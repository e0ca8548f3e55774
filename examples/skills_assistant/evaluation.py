"""Evaluators for the cases in `cases.yaml`; `make eval-demo` compares three wordings with them."""

from weakincentives.evals import Case, EvalRun, Scale, Score, evaluator
from weakincentives.evals.evaluators import called_in_order

from .prompt import Answer

__all__ = ["EVALUATORS"]


def correct(case: Case, run: EvalRun[Answer]) -> Score:
    """The answer has all facts, or is empty if the skills do not answer the question."""
    answer = run.output.answer if run.output else ""
    if case.expected is None:
        return Score(not answer, f"should be empty: {answer}" if answer else "is empty")
    missing = [fact for fact in case.expected.answer.splitlines() if fact not in answer]
    return Score(not missing, f"missing {missing} in {answer!r}" if missing else "has all facts")


@evaluator(scale=Scale(bounds=(0, 1), margin=0.05))
def opened(case: Case, run: EvalRun[Answer]) -> Score:
    """The share of the sections with the answer that the run opened."""
    if case.expected is None:
        return Score(None, "no section has the answer")
    wanted = case.expected.sources
    missing = [key for key in wanted if key not in run.opened]
    return Score(1 - len(missing) / len(wanted), f"did not open {missing}" if missing else "")


def calls(case: Case) -> list[str] | None:
    """The calls that answer the question; `None` if there is nothing to read."""
    if case.expected is None:
        return None
    tool = case.metadata.get("tool")
    return ["read_section", *([tool] if isinstance(tool, str) else []), "close_section"]


EVALUATORS = [correct, opened, called_in_order(calls)]
