"""The outcomes of requests and tool calls as JSON, and back; errors are outcomes too.

A change here that older records do not have needs a new `_RECORD_FORMAT` in `journal`.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ... import serde
from ...errors import WeakIncentivesError
from ...evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    DepthLimitError,
    PromptEvaluationError,
    ThrottleError,
    TurnLimitError,
)
from ...evaluation.main_loop import ExpansionLimitError
from ...evaluation.messages import AssistantMessage, ToolExecutionOutcome, sendable
from ...evaluation.suspension import RunSuspended, Suspension
from ...limits import Meter
from ...prompt.errors import VisibilityExpansionRequired
from ...visibility import SetVisibilityOverride

__all__ = [
    "Record",
    "StepFailedError",
    "answer_to_json",
    "call_to_json",
    "check_to_json",
    "error_from_json",
    "error_to_json",
    "request_from_json",
    "wait_if_recorded",
]

# Any: records are JSON objects, read key by key.
type Record = dict[str, Any]

# Subclasses come first, since an error is stored as the first of these that it is.
_ERRORS: dict[str, type[PromptEvaluationError]] = {
    kind.__name__: kind
    for kind in (
        ThrottleError,
        DeadlineExceededError,
        BudgetExceededError,
        TurnLimitError,
        DepthLimitError,
        ExpansionLimitError,
        PromptEvaluationError,
    )
}
_ARGUMENTS = ("message", "phase", "code", "provider", "status", "remedy")


class StepFailedError(WeakIncentivesError):
    """A step raised an exception that is no failure of an evaluation."""


def answer_to_json(ask: Callable[[], AssistantMessage]) -> Record:
    """Asks the provider and returns its answer, or the error in which the request ended."""
    try:
        answer = ask()
        calls = [
            replace(call, name=sendable(call.name), arguments=sendable(call.arguments))
            for call in answer.tool_calls
        ]
        answer = replace(answer, text=sendable(answer.text), tool_calls=tuple(calls))
        return {"answer": serde.dump(answer)}
    except Exception as error:
        return {"error": error_to_json(error)}


def call_to_json(execute: Callable[[], ToolExecutionOutcome], meter: Meter) -> Record:
    """Runs a call and returns its outcome, with the usage of nested runs in `meter`."""
    outcome = _outcome_to_json(execute)
    return {**outcome, "nested_usage": serde.dump(meter.usage)} if meter.usage.calls else outcome


def _outcome_to_json(execute: Callable[[], ToolExecutionOutcome]) -> Record:
    try:
        outcome = execute()
    except RunSuspended as waiting:
        return {"suspension": waiting.suspension.to_json()}
    except VisibilityExpansionRequired as request:
        return _request_to_json(request)
    if outcome.request is not None:
        return _request_to_json(outcome.request)
    fields = {
        "message": outcome.message,
        "tools": [tool.name for tool in outcome.expanded_tools],
        "section_key": outcome.section_key,
        "opened": outcome.opened,
        "closed_tools": outcome.closed_tools,
        "shown": outcome.shown,
        "closed": outcome.closed,
    }
    return {"call": serde.dump(fields)}


def check_to_json(check_decided: Callable[[], None]) -> Record:
    """Checks that a call has its decision; returns the suspension of a run that must wait."""
    try:
        check_decided()
    except RunSuspended as waiting:
        return {"suspension": waiting.suspension.to_json()}
    return {}


def wait_if_recorded(outcome: Record) -> None:
    """Raises `RunSuspended` for an outcome with a suspension."""
    if "suspension" in outcome:
        raise RunSuspended(Suspension.from_json(outcome["suspension"]))


def _request_to_json(request: VisibilityExpansionRequired) -> Record:
    overrides = [
        SetVisibilityOverride(path=path, visibility=visibility)
        for path, visibility in request.requested_overrides.items()
    ]
    return {
        "signal": serde.dump(overrides),
        "reason": sendable(request.reason),
        "section_keys": list(request.section_keys),
        "args": list(request.args),
    }


def request_from_json(outcome: Record) -> VisibilityExpansionRequired:
    """Returns the request for sections that a call's outcome holds."""
    overrides = serde.parse(list[SetVisibilityOverride], outcome["signal"])
    return VisibilityExpansionRequired(
        *outcome["args"],
        requested_overrides={override.path: override.visibility for override in overrides},
        reason=outcome["reason"],
        section_keys=tuple(outcome["section_keys"]),
    )


def error_to_json(error: Exception) -> Record:
    """Returns an error with the nearest of the types in `_ERRORS`."""
    if not isinstance(error, PromptEvaluationError):
        return {"is": "", "message": f"{type(error).__name__}: {error}"}
    return {
        "is": next(name for name, kind in _ERRORS.items() if isinstance(error, kind)),
        **{name: getattr(error, name) for name in _ARGUMENTS},
        "retry_after": serde.dump(getattr(error, "retry_after", None)),
    }


def error_from_json(fields: Record) -> PromptEvaluationError | StepFailedError:
    """Returns the error of a record; `StepFailedError` for one that no evaluation raises."""
    if not fields["is"]:
        return StepFailedError(fields["message"])
    error = _ERRORS[fields["is"]](**{name: fields[name] for name in _ARGUMENTS})
    if isinstance(error, ThrottleError):
        error.retry_after = serde.parse(timedelta | None, fields["retry_after"])
    return error
