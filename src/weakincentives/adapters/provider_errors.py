"""A provider's failures by HTTP status and code, for every SDK alike: which error, and what to do
about it.
"""

from collections.abc import Iterable
from datetime import timedelta

from ..evaluation.errors import EvaluationPhase, PromptEvaluationError, ThrottleError

__all__ = ["check_key", "error_from_request", "error_from_status", "without_keys"]

_MAX_MESSAGE = 500
_SERVER_ERRORS = 500
_SHORTEST_KEY = 8

_BY_CODE = {
    "context_length_exceeded": ("context_length", "shorten the prompt or summarize sections"),
    "insufficient_quota": ("quota", "check the plan and billing of this account"),
    "model_not_found": ("not_found", "check the model's name"),
}
_BY_STATUS = {
    400: ("bad_request", "the request does not suit this model or server; read the message"),
    401: ("authentication", "check the API key"),
    403: ("permission", "this key may not use this model"),
    404: ("not_found", "check the model's name and base_url"),
    408: ("timeout", "try again or raise timeout"),
    413: ("too_large", "shorten the prompt"),
    422: ("bad_request", "the request does not suit this model or server; read the message"),
    429: ("throttled", "slow down and try again later"),
}


def error_from_status(
    provider: str,
    status: int,
    *,
    message: str,
    code: object = None,
    retry_after: str | None = None,
    secret: str | None = None,
) -> PromptEvaluationError:
    """The error for a reply with an error status. `retry_after` is the header in seconds; `secret`
    is cut out.

    `code` is what the reply has in its place, of whatever type.
    """
    other = _BY_STATUS[400] if status < _SERVER_ERRORS else ("server_error", "try again later")
    kind, remedy = _BY_CODE.get(
        code if isinstance(code, str) else "", _BY_STATUS.get(status, other)
    )
    if kind == "authentication":
        message = "the provider refused the API key"  # its own text often quotes the key
    elif secret:
        message = without_keys(message, [secret])
    error_type = ThrottleError if kind == "throttled" else PromptEvaluationError
    error = error_type(
        message[:_MAX_MESSAGE],
        phase="request",
        code=kind,
        provider=provider,
        status=status,
        remedy=remedy,
    )
    if isinstance(error, ThrottleError):
        error.retry_after = _wait(retry_after)
    return error


def _wait(retry_after: str | None) -> timedelta | None:
    try:
        wait = timedelta(seconds=float(retry_after or 0))
    except (ValueError, OverflowError):  # a date, which no provider of ours sends
        return None
    return wait if wait > timedelta(0) else None


def error_from_request(
    provider: str, code: str, message: str, remedy: str, *, phase: EvaluationPhase = "request"
) -> PromptEvaluationError:
    """The error for a request that got no reply, or in phase `"response"` none that can be used."""
    return PromptEvaluationError(
        message[:_MAX_MESSAGE], phase=phase, code=code, provider=provider, remedy=remedy
    )


def without_keys(text: str, keys: Iterable[str]) -> str:
    """`text` without the `keys`, but for short ones: they are words for local servers, which may
    stand in any text.
    """
    for key in keys:
        if len(key.strip()) >= _SHORTEST_KEY:
            text = text.replace(key.strip(), "***")
    return text


def check_key(provider: str, key: str) -> None:
    """Refuses a key that no header can hold: the HTTP library would quote it whole in its error."""
    if not key.isascii() or not key.isprintable() or " " in key:
        told = "the API key holds white space or characters that no HTTP header can hold"
        remedy = "check where it comes from; a line break at its end is a usual cause"
        raise error_from_request(provider, "authentication", told, remedy)
