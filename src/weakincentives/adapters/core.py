"""The interface of adapters, kept under its original import path.

`evaluation.adapter` and `evaluation.loop_adapter` define these names.
"""

from ..evaluation.adapter import Connection, ProviderAdapter
from ..evaluation.errors import PromptEvaluationError, ThrottleError
from ..evaluation.loop_adapter import LoopAdapter
from ..evaluation.response import PromptResponse

__all__ = [
    "Connection",
    "LoopAdapter",
    "PromptEvaluationError",
    "PromptResponse",
    "ProviderAdapter",
    "ThrottleError",
]
