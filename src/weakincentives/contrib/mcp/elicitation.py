"""Elicitation: what a server asks a person in the middle of a call, and the answers to it.

Everything in a question is the server's own words. Nothing here needs the SDK.
"""

import asyncio
import inspect
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ...displays import visible
from ...errors import SerdeError, ValidationIssue
from ...event_loops import call_in_thread
from ...prompt.context import ToolContext
from ...redaction import Redactor, credentials_in
from ...serde import Json, JsonSchema
from ...serde.validation import check_schema, validation_issues
from .server_errors import ServerError

__all__ = [
    "MAX_MESSAGE",
    "Accept",
    "Ask",
    "Cancel",
    "Decline",
    "Elicit",
    "Elicitation",
    "ElicitationAnswer",
    "asking",
    "form_problem",
]

MAX_MESSAGE, _MAX_SCHEMA, _MAX_FIELD = 4_000, 20_000, 300  # characters
_MAX_FIELDS = 50
_PRIMITIVES = {"string", "number", "integer", "boolean"}


@dataclass(frozen=True, slots=True)
class Accept:
    """The person has filled in the form; `content` must fit the schema of the question."""

    content: Mapping[str, Json]
    action: Literal["accept"] = field(default="accept", repr=False)


@dataclass(frozen=True, slots=True)
class Decline:
    """The person says no."""

    action: Literal["decline"] = field(default="decline", repr=False)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The person has dismissed the question without a choice."""

    action: Literal["cancel"] = field(default="cancel", repr=False)


type ElicitationAnswer = Accept | Decline | Cancel
"""What a person answers to a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elicitation:
    """A question of an MCP server to a person, with the form that the person fills in.

    `message`, at most 4,000 characters, and `schema`, a JSON Schema of an object with flat
    properties, are the server's words as they came. `str()` marks them as the server's and writes
    out characters that steer a terminal.
    """

    server: str
    message: str
    schema: JsonSchema

    @property
    def fields(self) -> Mapping[str, JsonSchema]:
        """The schema of each field of the form, in the server's order."""
        return dict(self.schema.get("properties", {}))

    @property
    def required(self) -> frozenset[str]:
        """The names of the fields that must be filled in."""
        return frozenset(self.schema.get("required", ()))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the fields that seem to ask for a credential, which MCP forbids."""
        return tuple(
            [
                name
                for name, schema in self.fields.items()
                if any(credentials_in({name: "x", f"{schema.get('title')}": "x"}))
            ]
        )

    def issues(self, content: Mapping[str, Json]) -> tuple[ValidationIssue, ...]:
        """Returns what does not fit the schema; the issues name fields and rules, not the data."""
        return validation_issues(json.dumps(self.schema), dict(content))

    def describe(self, name: str) -> str:
        """Returns a line on a field: its name, type, choices and the server's words."""
        schema = self.fields[name]
        kind = "required" if name in self.required else "optional"
        parts = [f"{name} ({schema.get('type')}, {kind})"]
        choices = schema.get("enum") or [choice.get("const") for choice in schema.get("oneOf", ())]
        texts = [schema.get("title"), schema.get("description")]
        parts += [f"{text}" for text in texts if text]
        parts += [f"one of {json.dumps(choices, ensure_ascii=False)}"] if choices else []
        return visible(": ".join(parts).replace("\n", " ")[:_MAX_FIELD])

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"MCP server {self.server!r} asks, in its own words:"
        yield from (f"| {visible(line)}" for line in self.message.split("\n"))
        for name in self.fields:
            yield f"- {self.describe(name)}"
        if self.secrets:
            names = visible(", ".join(self.secrets))
            yield f"Careful: it may want a secret ({names}), which no server may ask for in a form."


type Ask = Callable[[Elicitation], Awaitable[ElicitationAnswer]]
"""Asks a person in the course of a call."""


class Elicit(Protocol):
    """Answers the questions of a server; a plain function or a coroutine function.

    A plain function runs in a thread, which is left behind if the call ends before the answer.
    """

    def __call__(
        self, request: Elicitation, /, *, context: ToolContext
    ) -> ElicitationAnswer | Awaitable[ElicitationAnswer]: ...


def form_problem(schema: JsonSchema) -> str | None:
    """Returns why nobody is asked to fill in a form of this schema; `None` for one that is right.

    MCP allows objects with flat properties: texts, numbers, booleans, and lists of choices.
    """
    try:
        if len(json.dumps(schema)) > _MAX_SCHEMA:
            return f"its schema has more than {_MAX_SCHEMA:,} characters"
        check_schema(schema)
    except (SerdeError, RecursionError):
        return "its schema is not valid"
    fields = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(fields, dict):
        return "its schema is not that of an object"
    if len(fields) > _MAX_FIELDS:
        return f"its form has more than {_MAX_FIELDS} fields"
    if not all(map(_is_flat, fields.values())):
        return "its form is not flat"
    return None


def _is_flat(field_schema: Json) -> bool:
    match field_schema:
        case {"type": "array", "items": {"enum": _} | {"anyOf": _}}:
            return True
        case {"type": str(kind)}:
            return kind in _PRIMITIVES
        case _:
            return False


@asynccontextmanager
async def asking(elicit: Elicit | None, context: ToolContext | None) -> AsyncGenerator[Ask | None]:
    """Yields what passes questions of one call from any loop to `elicit`, on the loop of the block.

    They are asked one after the other. A question that is open at the end of the block, or on which
    `elicit` raises, is cancelled. Raises at the end what `elicit` raised, and what `check_answer`
    did.
    """
    if elicit is None or context is None:
        yield None
        return
    loop, variables = asyncio.get_running_loop(), copy_context()
    turn, questions, errors = asyncio.Lock(), set[asyncio.Task[object]](), list[Exception]()
    is_open = True

    async def answer(request: Elicitation) -> ElicitationAnswer:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        questions.add(task)
        try:
            async with turn:
                if is_open:  # the block may have ended since the question was passed on
                    return check_answer(request, await _answer(elicit, request, context))
        except Exception as error:  # the call raises it once the server has answered
            errors.append(error)
        return Cancel()

    async def ask(request: Elicitation) -> ElicitationAnswer:
        future = variables.run(asyncio.run_coroutine_threadsafe, answer(request), loop)
        answered = asyncio.wrap_future(future)
        await asyncio.wait([answered])
        return Cancel() if answered.cancelled() else answered.result()

    try:
        yield ask
    except ServerError:
        if not errors:
            raise
    finally:
        is_open = False
        for question in questions:
            question.cancel()
        if questions:
            await asyncio.wait(questions)
    if errors:
        raise errors[0]


async def _answer(elicit: Elicit, request: Elicitation, context: ToolContext) -> object:
    """Calls `elicit`; a plain function runs in a thread, which a cancellation leaves behind."""

    def call() -> Any:  # Any: the answer itself, or a coroutine that returns it
        return elicit(request, context=context)

    if inspect.iscoroutinefunction(elicit):
        return await call()
    returned = await call_in_thread(call, "weakincentives-elicit")
    return await returned if inspect.isawaitable(returned) else returned


def check_answer(request: Elicitation, answer: object) -> ElicitationAnswer:
    """Returns the answer; raises `TypeError` for anything else, and `ValueError` for wrong content.

    Content must fit the schema and hold no credential of this process's environment.
    """
    place = f"elicit= of MCP server {request.server!r} returned"
    match answer:
        case Accept(content):
            if issues := request.issues(content):
                problems = "; ".join(map(str, issues))
                raise ValueError(f"{place} content that does not fit the form: {problems}")
            text = json.dumps(dict(content), ensure_ascii=False)
            if Redactor(tuple(credentials_in(os.environ)))(text) != text:
                raise ValueError(f"{place} a credential of this process; nothing was sent")
            return answer
        case Decline() | Cancel():
            return answer
        case _:
            raise TypeError(f"{place} {answer!r}; return Accept(content), Decline() or Cancel()")
