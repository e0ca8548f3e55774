"""`ServerProfile` describes how a server differs from others with the same API."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from .schema_dialects import OPENAI, Dialect

__all__ = ["NO_KEY", "ServerProfile"]

type _Strict = Literal["each", "uniform", "never"]
type _Reasoning = Literal["send", "require", "drop"]
_OUTPUT_LIMITS = frozenset({"max_tokens", "max_completion_tokens"})
NO_KEY = "unused"
"""The placeholder key for a server that does not need a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProfile:
    """The requests that a server accepts, and its address.

    The defaults suit the strictest servers, so most servers do not need their own profile.
    `weakincentives.adapters.profiles` contains predefined profiles; use `dataclasses.replace` to
    change one.

    *Requests.* `api` and `structured_output` are the defaults for the adapter's arguments of the
    same names. With `strict="each"`, every tool whose schema allows it is sent with `strict: true`.
    With `"uniform"`, all tools are sent with the same value, and with `"never"`, the field is not
    sent. `dialect` is the dialect for strict schemas. `developer_role=False` sends the role
    `system` instead of `developer`. `rejected_fields` are never sent, even if `options` contains
    them. `output_limit` is the name under which Chat Completions requests send `max_tokens` or
    `max_completion_tokens` from `options`. `unsupported_settings` are the `ModelSettings` that the
    server ignores or rejects, and `effort_field` is its field for `reasoning`.

    *Messages* in Chat Completions. With `alternating_roles`, adjacent messages with the same role
    are joined. `user_after_tool` allows a user message directly after a tool result; without it, a
    short assistant message is inserted between the two. `call_ids` is a regular expression for tool
    call ids; ids that do not match are replaced. By default, the server gets back the ids that it
    sent. `media_in_results` sends images and documents in a tool result instead of in a following
    user message. `named_results` sends the tool's name with the result. `reasoning` determines
    whether reasoning is sent back. With `"drop"`, only the documented fields of the model's
    messages are sent. With `"require"`, only messages with calls contain reasoning, and all of them
    do: one that has none contains `missing_reasoning`. `reasoning_field` is the field for
    reasoning, by default the one that the server used; if a message has both fields with different
    texts, its `reasoning` is the text in this one. `think_tags` means that `<think>…</think>` at
    the beginning of a text is reasoning. `citations_in_bytes` means that the positions of citations
    count bytes of UTF-8.

    *Connection.* The server's URL is the adapter's `base_url`, if set; otherwise the value of
    `base_url_variable`, if set; otherwise the profile's `base_url`. A URL without a path gets the
    path from the profile's `base_url`, or `path`. The key is the value of `key_variable`, which is
    read only for the profile's own server; with `needs_key=False`, a placeholder replaces a missing
    key. A profile without these fields uses `OPENAI_BASE_URL` and `OPENAI_API_KEY`.

    Raises `ValueError` for an unknown value or an invalid regular expression.
    """

    api: Literal["responses", "chat"] = "responses"
    structured_output: Literal["native", "prompted"] = "native"
    strict: _Strict = "uniform"
    dialect: Dialect = OPENAI
    developer_role: bool = True
    rejected_fields: frozenset[str] = frozenset()
    output_limit: Literal["max_tokens", "max_completion_tokens"] | None = None
    unsupported_settings: frozenset[str] = frozenset({"cache_ttl", "service_tier"})
    effort_field: Literal["reasoning_effort", "reasoning.effort"] = "reasoning_effort"

    alternating_roles: bool = True
    user_after_tool: bool = False
    call_ids: str | None = None
    media_in_results: bool = False
    named_results: bool = False
    reasoning: _Reasoning = "send"
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None
    missing_reasoning: str = ""
    think_tags: bool = False
    citations_in_bytes: bool = False

    base_url: str = ""
    base_url_variable: str = ""
    path: str = ""
    key_variable: str = ""
    needs_key: bool = True

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[object, ...]] = {
            "api": ("responses", "chat"),
            "structured_output": ("native", "prompted"),
            "strict": get_args(_Strict.__value__),
            "output_limit": (None, "max_tokens", "max_completion_tokens"),
            "reasoning": get_args(_Reasoning.__value__),
            "reasoning_field": (None, "reasoning", "reasoning_content"),
        }
        for name, values in allowed.items():
            if (value := getattr(self, name)) not in values:
                words = ", ".join(map(repr, values[:-1]))
                raise ValueError(f"{name} must be {words} or {values[-1]!r}, got {value!r}")
        try:
            re.compile(self.call_ids or "")
        except re.error as error:
            raise ValueError(
                f"call_ids must be a regular expression, got {self.call_ids!r}: {error}"
            ) from error

    def adapt_options(self, options: Mapping[str, object], api: str) -> dict[str, object]:
        """Returns the options that the server accepts, with its own name for the output limit."""
        sent = {key: value for key, value in options.items() if key not in self.rejected_fields}
        if self.output_limit and api == "chat":
            return {
                self.output_limit if key in _OUTPUT_LIMITS else key: value
                for key, value in sent.items()
            }
        return sent

    def connection(
        self, base_url: str | None, api_key: str | None
    ) -> tuple[str | None, str | None]:
        """Returns the base URL and the key for a client; `None` means that the SDK reads its own.

        Raises `ValueError` if a required value is missing.
        """
        if not any([self.base_url, self.base_url_variable, self.key_variable]):
            url = base_url or os.environ.get("OPENAI_BASE_URL") or None
            return url, api_key or (None if self.needs_key else NO_KEY)
        own = self._complete(os.environ.get(self.base_url_variable, "")) or self.base_url
        url = self._complete(base_url or "") or own
        if url == "":
            variable = f" or set {self.base_url_variable}" if self.base_url_variable else ""
            raise ValueError(f"base_url is missing; pass base_url={variable}")
        is_own = _origin(url) == _origin(own)
        if not api_key and is_own:
            api_key = os.environ.get(self.key_variable, "").strip()
        if api_key or not self.needs_key:
            return url, api_key or NO_KEY
        if is_own and self.key_variable:
            raise ValueError(f"api_key is missing; pass api_key= or set {self.key_variable}")
        has_other = own and self.key_variable
        other = f", since {self.key_variable} is read only for {own}" if has_other else ""
        raise ValueError(f"api_key is missing; pass api_key= for {url}{other}")

    def _complete(self, url: str) -> str:
        """Returns a base URL with a scheme, port and path, or `""` for an empty one."""
        if not url:
            return ""
        default = urlsplit(self.base_url)
        if "://" not in url:
            host, slash, path = url.partition("/")
            host = host.replace("0.0.0.0", "127.0.0.1")  # noqa: S104  # nosec B104 - no address to bind
            has_port = re.search(r":\d+$", host)
            port = "" if has_port or not default.port else f":{default.port}"
            url = f"{default.scheme or 'https'}://{host}{port}{slash}{path}"
        if urlsplit(url).path.strip("/"):
            return url
        return url.rstrip("/") + (default.path or self.path)


def _origin(url: str) -> tuple[object, ...]:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return parts.scheme, host, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
