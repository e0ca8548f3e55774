"""Classifies providers' errors by HTTP status, code and message, and adds a remedy to each.

`error_from_failure` reads any failure that a server reports, whether as an HTTP body or inside a
reply. It keeps the message unchanged. Adapters call `redact_error` once for every error that they
raise, to mask credentials in the message and truncate it.
"""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

from ..evaluation.errors import PromptEvaluationError, ThrottleError
from ..redaction import Redactor
from ..serde.json_types import AnyJson

__all__ = [
    "ERROR_CODES",
    "check_key",
    "error_from_failure",
    "error_from_redirect",
    "error_from_reply",
    "error_from_request",
    "error_from_status",
    "redact_error",
    "reported_failure",
    "unfinished_reply",
]

_MAX_MESSAGE = 500
_SERVER_ERRORS = 500
_OK = 200


_REMEDIES = {
    "authentication": "check the API key",
    "bad_request": "this model or server does not accept the request; see the message",
    "client_error": "check the adapter's options",
    "connection": "check base_url and the network",
    "context_length": "shorten the prompt, summarize sections, or pass MainLoop(compaction=…)",
    "content_filter": "change the text that the filter rejects",
    "malformed": "try again; if the error persists, this server does not implement the API",
    "not_found": "check the model's name and base_url",
    "permission": "use a key that has access to this model",
    "provider_failed": "try again later",
    "quota": "check the plan and billing of this account",
    "redirect": "set base_url to the address that serves this API",
    "reply_too_large": "raise max_reply_bytes",
    "server_error": "try again later",
    "setting": "leave the setting out, or use another model",
    "throttled": "slow down and try again later",
    "timeout": "try again or raise timeout",
    "too_large": "shorten the prompt",
}
ERROR_CODES = frozenset({*_REMEDIES, "content", "content_filter", "output", "refused", "truncated"})
"""The codes for all provider and model failures."""
_REPLY_CODES = {"malformed", "provider_failed", "reply_too_large"}
_CODES_BY_STATUS = {
    401: "authentication",
    402: "quota",
    403: "permission",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    429: "throttled",
    504: "timeout",
}
# Servers' codes, types and statuses, in lower case and without "_", "-" and "error".
_CODES_BY_PROVIDER_CODE = {
    code: kind
    for kind, codes in {
        "context_length": "contextlengthexceeded exceedcontextsize contextwindowexceeded"
        " tokenslimitreached",
        "quota": "insufficientquota insufficientbalance insufficientcredits billing"
        " paymentrequired billinghardlimitreached exceededcurrentquota creditsexhausted",
        "content_filter": "contentfilter contentpolicyviolation responsibleaipolicyviolation"
        " datainspectionfailed 1301",
        "authentication": "authentication invalidapikey apikeyinvalid unauthenticated unauthorized",
        "throttled": "ratelimit ratelimitexceeded ratelimitreached toomanyrequests throttling"
        " throttlingexception resourceexhausted",
        "not_found": "modelnotfound notfound deploymentnotfound modelnotavailable",
        "permission": "permission permissiondenied forbidden accessdenied",
        "too_large": "requesttoolarge payloadtoolarge",
        "server_error": "overloaded serverisoverloaded engineoverloaded slowdown internalserver"
        " serviceunavailable serviceunavailableexception unavailable server api modelloading"
        " internal internalfailure modelstreamexception",
        "timeout": "timeout modeltimeoutexception",
        "bad_request": "invalidrequest badrequest validationexception invalidargument",
    }.items()
    for code in codes.split()
}
# Kinds that many servers report only in a message, and that are more specific than the status. The
# patterns are based on messages from vLLM, llama.cpp, LM Studio, Anthropic, Gemini, Mistral and
# others.
_CODES_BY_WORDS = {
    "context_length": r"context(?!:).{0,9}(length|window|size|limit)"
    r"|(prompt|input)\b.{0,40} too long|too many tokens: size limit|must have less than \d+ tokens"
    r"|token count\b.{0,60}(supports|exceeds)"
    r"|prompt contains .{0,60} too large for model|maximum (prompt|model|input) length"
    r"|prompt exceeds max|exceeds the maximum number of tokens|exceeded model token limit"
    r"|(reduce|shorten) the (length of the )?(input|prompt|messages)|range of input length"
    r"|input tokens? exceed|max_new_tokens` must be <=|context the overflows",
    "content_filter": r"content management policy|content.?filter|content policy"
    r"|content exists risk|inappropriate content|(input|prompt|content) (was|were|is) flagged",
    "authentication": r"(incorrect|invalid|missing|no) api.?key|api.?key\b.{0,20}(not valid"
    r"|invalid|incorrect|expired|missing)",
    "quota": r"credit balance|insufficient (balance|credit|quota|fund)|exceeded your current quota"
    r"|out of credits",
    "throttled": r"rate.?limit|too many requests",
    "not_found": r"model\b.{0,80} (not found|does not exist)|no such model|unknown model",
}
_MORE_EXACT = {"context_length", "quota", "content_filter"}
_WAIT = re.compile(
    r"(?:again|retry|wait|reset)[^.\d]{0,30}?((?:\d+(?:\.\d+)?\s?(?:ms|h|m|s)[a-z]*\s?)+)",
    re.IGNORECASE,
)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_PARAM = re.compile(r"[\w.\[\]-]{1,64}")
_WORDS = ("message", "msg", "detail", "details", "reason", "error_description", "raw", "title")
_ANSWERS = {"choices", "output", "content", "delta", "candidates", "response"}
_ERRORS = ("error", "errors", "innererror", "metadata", *_WORDS)
_CODES = ("code", "type", "status", "error_type", "error_code", "reason", "__type")
_MAX_DEPTH = 6


def error_from_failure(
    provider: str, failure: object, *, status: int | None = None, retry_after: str | None = None
) -> PromptEvaluationError:
    """Returns the error for a server's `failure`, which is JSON of any shape or a string.

    `status` is the reply's status, by default the one in the failure. `retry_after` is the header's
    value in seconds.
    """
    parts = list(_parts(failure))
    sentences = [part.removesuffix(".") for part in parts if isinstance(part, str)]
    words = "; ".join(dict.fromkeys(sentences)) or "no message"
    codes = [part[key] for part in parts if isinstance(part, dict) for key in _CODES if key in part]
    statuses = [int(code) for code in codes if re.fullmatch("[45][0-9][0-9]", str(code))]
    own = status if status is not None and status != _OK else next(iter(statuses), None)
    error = error_from_status(
        provider,
        own or _OK,
        message=words,
        code=codes,
        retry_after=retry_after or next(_delays(parts), None),
    )
    error.status = own
    if status is None or status == _OK:
        error.phase = "response"
    param = error.param = next(filter(None, map(_param, parts)), "")
    if error.code == "bad_request" and param:
        error.remedy = f"change {param!r}, or omit it from the request"
        if param not in error.message:
            error.message = f"{param}: {error.message}"
    return error


def reported_failure(reply: object) -> object:
    """Returns the failure that a reply or an event reports, if any."""
    if not isinstance(reply, dict):
        return None
    if error := reply.get("error"):
        return reply if error is True else error
    if "error" in (reply.get("object"), reply.get("type")):
        return reply
    # Some servers send the message "Success" with every answer.
    has_words = isinstance(reply.get("message"), str) or reply.get("detail") or reply.get("errors")
    return reply if has_words and not reply.keys() & _ANSWERS else None


def _parts(value: object, depth: int = 0) -> Iterator[AnyJson]:
    """Yields the objects and texts in a failure, outer ones first."""
    if isinstance(value, str):
        text = value.strip()
        if text[:1] in ("{", "[") and depth < _MAX_DEPTH:
            try:
                yield from _parts(json.loads(text), depth + 1)
                return
            except (ValueError, RecursionError):
                pass
        # Remove HTML tags from error pages.
        yield " ".join(re.sub(r"<[^>]{0,500}>", " ", text[:5000]).split()) if "<" in text else text
    elif isinstance(value, list) and depth < _MAX_DEPTH:
        for item in value[:10]:
            yield from _parts(item, depth + 1)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        yield value
        for key in _ERRORS:
            if value.get(key):
                yield from _parts(value[key], depth + 1)


def _param(part: AnyJson) -> str:
    """Returns the name of the invalid parameter that part of a failure reports, or `""`."""
    if not isinstance(part, dict):
        return ""
    place = part.get("loc") or part.get("path")
    name = part.get("param") or (place[-1] if isinstance(place, list) and place else "")
    return name if isinstance(name, str) and _PARAM.fullmatch(name) else ""


def _delays(parts: list[AnyJson]) -> Iterator[str]:
    """Yields the delays, in seconds, that a failure requests."""
    for part in parts:
        if isinstance(part, dict):
            wait = (
                part.get("retry_after") or part.get("retryDelay") or part.get("retry_after_seconds")
            )
            if wait:
                yield str(wait).removesuffix("s")
        elif match := _WAIT.search(part[:2000]):
            times = re.findall(r"(\d+(?:\.\d+)?)\s?(ms|h|m|s)", match[1], re.IGNORECASE)
            yield str(sum(float(count) * _SECONDS[unit.lower()] for count, unit in times))


def error_from_status(
    provider: str, status: int, *, message: str, code: object = None, retry_after: str | None = None
) -> PromptEvaluationError:
    """Returns the error for a reply with an error status; a `ThrottleError` for status 429.

    `code` is the provider's own code, or a list of its codes and types. `retry_after` is the
    header's value in seconds; a date is ignored. A failure in a reply with status 200 is
    `"provider_failed"`, unless its code or message is more specific.
    """
    kind = _kind(status, message, code if isinstance(code, list) else [code])
    if kind == "authentication":
        message = "the provider refused the API key"  # the provider's message often quotes the key
    remedy = None
    if kind == "not_found" and "model" in message:
        remedy = "check the model's name"
    elif kind == "not_found" and "store" in message and "item" in message.lower():
        kind, remedy = (
            "bad_request",
            (
                "let the server store items, or pass"
                " options={'include': ['reasoning.encrypted_content']}"
            ),
        )
    error = error_from_request(provider, kind, message, remedy)
    error.status = status
    if isinstance(error, ThrottleError):
        error.retry_after = _wait(retry_after)
    return error


def _kind(status: int, message: str, codes: list[AnyJson]) -> str:
    """Returns the kind of failure, from its code or else its message or else its status."""
    names = [re.sub(r"[_\s-]|error", "", str(code).lower()) for code in codes]
    kinds = [_CODES_BY_PROVIDER_CODE[name] for name in names if name in _CODES_BY_PROVIDER_CODE]
    words = message[:2000].lower()
    by_words = [kind for kind, pattern in _CODES_BY_WORDS.items() if re.search(pattern, words)]
    by_status = _CODES_BY_STATUS.get(status)
    exact = [kind for kind in kinds if kind in _MORE_EXACT]
    if exact or "throttled" in kinds:
        return exact[0] if exact else "throttled"
    if by_status in ("authentication", "throttled"):
        return "quota" if "quota" in by_words and not _WAIT.search(words) else by_status
    if exact := [kind for kind in by_words if kind in _MORE_EXACT]:
        return exact[0]
    if by_status is None and status >= _SERVER_ERRORS:
        return "server_error"
    likely = [*[kind for kind in kinds if kind != "bad_request"], *by_words, *kinds]
    return by_status or next(iter(likely), "provider_failed" if status == _OK else "bad_request")


def _wait(retry_after: str | None) -> timedelta | None:
    try:
        wait = timedelta(seconds=float(retry_after or 0))
    except (ValueError, OverflowError):  # a date, which supported providers do not send
        return None
    return wait if wait > timedelta(0) else None


def error_from_request(
    provider: str, code: str, message: str, remedy: str | None = None
) -> PromptEvaluationError:
    """Returns an error with `code` for a request that has neither a status nor a usable reply.

    The default `remedy` depends on the code. The phase is `"response"` for `"malformed"`,
    `"provider_failed"` and `"reply_too_large"`, otherwise `"request"`.
    """
    error_type = ThrottleError if code == "throttled" else PromptEvaluationError
    return error_type(
        message,
        phase="response" if code in _REPLY_CODES else "request",
        code=code,
        provider=provider,
        remedy=_REMEDIES.get(code, "") if remedy is None else remedy,
    )


def error_from_reply(
    provider: str, reason: str, *, of_this_api: bool = True
) -> PromptEvaluationError:
    """Returns the error for a reply with the wrong shape, which may come from another API."""
    remedy = None if of_this_api else "check that base_url serves this API"
    return error_from_request(provider, "malformed", f"the reply is malformed: {reason}", remedy)


def unfinished_reply(provider: str, end: str) -> PromptEvaluationError:
    """Returns the error for a stream that stopped before its `end`."""
    message = f"the stream ended early: {end} is missing"
    return error_from_request(provider, "malformed", message, "try again")


def error_from_redirect(provider: str, status: int, location: str) -> PromptEvaluationError:
    """Returns the error for a redirect, which would send the prompt and key to another server."""
    try:
        host = urlsplit(location).netloc.rpartition("@")[2]
    except ValueError:  # the text in brackets is not an address
        host = ""
    place = f" to {host!r}" if host else ""
    message = f"the server redirects{place}, and redirects are not followed"
    error = error_from_request(provider, "redirect", message)
    error.status = status
    return error


def redact_error(error: PromptEvaluationError, redactor: Redactor) -> PromptEvaluationError:
    """Masks credentials in `error`, truncates its message to 500 characters, and returns `error`.

    Masking comes first, because a truncated credential would not be recognized.
    """
    error.message = redactor(error.message)[:_MAX_MESSAGE]
    error.remedy = redactor(error.remedy)  # it may contain a request's URL
    error.args = (error.message,)
    return error


def check_key(provider: str, key: str) -> None:
    """Raises `PromptEvaluationError` for a key that cannot be sent in a header.

    The HTTP library would quote the complete key in its own error.
    """
    if key and not key.strip():
        remedy = f"pass api_key= or set {provider.upper()}_API_KEY"
        raise error_from_request(provider, "authentication", "the API key is blank", remedy)
    if not key.isascii() or not key.isprintable() or " " in key:
        reason = "the API key contains white space or characters that an HTTP header cannot contain"
        remedy = "check where it comes from; a line break at its end is a usual cause"
        raise error_from_request(provider, "authentication", reason, remedy)
