"""A scripted provider's replies, independent of any format; no rendering and no I/O."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

# JSON of requests. `Any`: tests index into it, and a wrong guess should fail there as a KeyError.
type Json = dict[str, Any]
type Headers = tuple[tuple[str, str], ...]
type Finish = Literal["stop", "tool_calls", "pause", "length", "content_filter"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call by the model; `arguments` as text may be broken JSON, and is sent as it is."""

    name: str
    arguments: Json | str = field(default_factory=dict)
    id: str | None = None

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens; `cached` and `written` are parts of `input`, and `reasoning` is a part of `output`.

    `for_hour` is the part of `written` that stays in the cache for an hour (only Anthropic).
    """

    input: int = 10
    output: int = 5
    cached: int = 0
    reasoning: int = 0
    written: int = 0
    for_hour: int = 0


@dataclass(frozen=True, slots=True)
class Say:
    """A turn of the model, streamed if the request asks for a stream.

    `finish` defaults to the reason that the turn implies. `reasoning` takes the format's own shape:
    an item with encrypted content (Responses), a signed block (Anthropic), an unofficial field
    (Chat). `model` is the model that answers, by default the requested one. `blocks` are the blocks
    of Anthropic's own tools, which come before the text. `sources` are the titles and URLs that the
    text cites.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish | None = None
    usage: Usage = Usage()
    refusal: str | None = None
    reasoning: str | None = None
    model: str | None = None
    blocks: tuple[Json, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def ending(self) -> Finish:
        return self.finish or ("tool_calls" if self.calls else "stop")


@dataclass(frozen=True, slots=True)
class Fail:
    """An error in the provider's own envelope; `kind` defaults to the usual type of the status."""

    status: int
    message: str = "scripted failure"
    code: str | None = None
    retry_after: float | None = None
    kind: str | None = None
    param: str | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """Exactly these bytes, after `delay` seconds."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200
    delay: float = 0.0
    headers: Headers = ()

    @classmethod
    def json(cls, value: object, *, status: int = 200, headers: Headers = ()) -> Raw:
        """Returns a response with any JSON value."""
        return cls(json.dumps(value).encode(), status=status, headers=headers)


@dataclass(frozen=True, slots=True)
class Drop:
    """Reads the request, then closes the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived; `json` is `None` if the body is empty or not JSON."""

    method: str
    path: str
    headers: Headers
    body: bytes
    # Any for the reason given at `Json`.
    json: Any

    def header(self, name: str) -> str | None:
        """The first header of that name in any case of letters."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


type Step = Say | Fail | Raw | Drop
type Scripted = Step | Callable[[Request], Step]


class ScriptError(AssertionError):
    """The code under test made fewer or more requests than the script has steps for."""
