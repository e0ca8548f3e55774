"""The errors of all providers by HTTP status and code, each with its remedy.

These functions keep messages as they are. `redact_error` masks credentials in a message and cuts
it; adapters call it once, where an error leaves them.
"""

from datetime import timedelta
from urllib.parse import urlsplit

from ..evaluation.errors import PromptEvaluationError, ThrottleError
from ..redaction import Redactor

__all__ = [
    "ERROR_CODES",
    "check_key",
    "error_from_redirect",
    "error_from_reply",
    "error_from_request",
    "error_from_status",
    "redact_error",
]

_MAX_MESSAGE = 500
_SERVER_ERRORS = 500

_REMEDIES = {
    "authentication": "check the API key",
    "bad_request": "the request does not suit this model or server; read the message",
    "client_error": "check the adapter's options",
    "connection": "check base_url and the network",
    "context_length": "shorten the prompt or summarize sections",
    "malformed": "check that base_url serves this API",
    "not_found": "check the model's name and base_url",
    "permission": "this key may not use this model",
    "provider_failed": "try again later",
    "quota": "check the plan and billing of this account",
    "redirect": "set base_url to the address that serves this API",
    "reply_too_large": "raise max_reply_bytes",
    "server_error": "try again later",
    "throttled": "slow down and try again later",
    "timeout": "try again or raise timeout",
    "too_large": "shorten the prompt",
}
ERROR_CODES = frozenset({*_REMEDIES, "content", "content_filter", "output", "refused", "truncated"})
"""The codes of all failures of providers and models."""
_REPLY_CODES = {"malformed", "provider_failed", "reply_too_large"}
_CODES_BY_STATUS = {
    401: "authentication",
    403: "permission",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    429: "throttled",
}
_CODES_BY_PROVIDER_CODE = {
    "context_length_exceeded": "context_length",
    "insufficient_quota": "quota",
    "model_not_found": "not_found",
}


def error_from_status(
    provider: str,
    status: int,
    *,
    message: str,
    code: object = None,
    retry_after: str | None = None,
) -> PromptEvaluationError:
    """Returns the error for a reply with an error status; status 429 gives a `ThrottleError`.

    `code` is the provider's own, of whatever type the reply has there. `retry_after` is the header
    in seconds; a date is ignored.
    """
    by_status = "bad_request" if status < _SERVER_ERRORS else "server_error"
    by_status = _CODES_BY_STATUS.get(status, by_status)
    kind = _CODES_BY_PROVIDER_CODE.get(code, by_status) if isinstance(code, str) else by_status
    if kind == "authentication":
        message = "the provider refused the API key"  # its own text often quotes the key
    error = error_from_request(provider, kind, message)
    error.status = status
    if isinstance(error, ThrottleError):
        error.retry_after = _wait(retry_after)
    return error


def _wait(retry_after: str | None) -> timedelta | None:
    try:
        wait = timedelta(seconds=float(retry_after or 0))
    except (ValueError, OverflowError):  # a date, which the supported providers do not send
        return None
    return wait if wait > timedelta(0) else None


def error_from_request(
    provider: str, code: str, message: str, remedy: str | None = None
) -> PromptEvaluationError:
    """Returns the error of kind `code` for a request without a status, or without a usable reply.

    The default `remedy` is that of the code. The phase is `"response"` for `"malformed"`,
    `"provider_failed"` and `"reply_too_large"`, else `"request"`.
    """
    error_type = ThrottleError if code == "throttled" else PromptEvaluationError
    return error_type(
        message,
        phase="response" if code in _REPLY_CODES else "request",
        code=code,
        provider=provider,
        remedy=_REMEDIES.get(code, "") if remedy is None else remedy,
    )


def error_from_reply(provider: str, reason: str) -> PromptEvaluationError:
    """Returns the error for a reply of the wrong shape."""
    return error_from_request(provider, "malformed", f"the reply is malformed: {reason}")


def error_from_redirect(provider: str, status: int, location: str) -> PromptEvaluationError:
    """Returns the error for a redirect, which would send prompt and key to another server."""
    try:
        host = urlsplit(location).netloc.rpartition("@")[2]
    except ValueError:  # brackets that hold no address
        host = ""
    place = f" to {host!r}" if host else ""
    message = f"the server redirects{place}, and redirects are not followed"
    error = error_from_request(provider, "redirect", message)
    error.status = status
    return error


def redact_error(error: PromptEvaluationError, redactor: Redactor) -> PromptEvaluationError:
    """Masks credentials in the message of `error`, cuts it to 500 characters, and returns `error`.

    It masks before it cuts, since it would not recognize a credential that was cut.
    """
    error.message = redactor(error.message)[:_MAX_MESSAGE]
    error.args = (error.message,)
    return error


def check_key(provider: str, key: str) -> None:
    """Raises `PromptEvaluationError` for a key that no header can hold.

    The HTTP library would quote the key whole in its own error.
    """
    if not key.isascii() or not key.isprintable() or " " in key:
        reason = "the API key holds white space or characters that no HTTP header can hold"
        remedy = "check where it comes from; a line break at its end is a usual cause"
        raise error_from_request(provider, "authentication", reason, remedy)
