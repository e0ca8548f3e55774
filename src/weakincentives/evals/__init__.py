"""Evaluate prompts on cases, and compare two variants honestly."""

from .case_files import CaseFileError, CaseProblem
from .case_types import case_schema
from .cases import Case, Dataset

__all__ = ["Case", "CaseFileError", "CaseProblem", "Dataset", "case_schema"]
