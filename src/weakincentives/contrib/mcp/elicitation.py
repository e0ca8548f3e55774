"""Elicitation: questions that a server asks the user during a call, and their answers.

Every text in a question was written by the server. This module does not need the SDK.
"""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ...displays import visible
from ...errors import SerdeError, ValidationIssue
from ...prompt.context import ToolContext
from ...redaction import Redactor, credentials_in
from ...serde import Json, JsonSchema
from ...serde.validation import check_schema, validation_issues

__all__ = [
    "MAX_MESSAGE",
    "Accept",
    "Ask",
    "Cancel",
    "Decline",
    "Elicit",
    "Elicitation",
    "ElicitationAnswer",
    "check_answer",
    "form_problem",
]

MAX_MESSAGE, _MAX_SCHEMA, _MAX_FIELD = 4_000, 20_000, 300  # characters
_MAX_FIELDS = 50
_PRIMITIVES = {"string", "number", "integer", "boolean"}


@dataclass(frozen=True, slots=True)
class Accept:
    """The user filled in the form; `content` must match the question's schema."""

    content: Mapping[str, Json]
    action: Literal["accept"] = field(default="accept", repr=False)


@dataclass(frozen=True, slots=True)
class Decline:
    """The user declined."""

    action: Literal["decline"] = field(default="decline", repr=False)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The user dismissed the question without an answer."""

    action: Literal["cancel"] = field(default="cancel", repr=False)


type ElicitationAnswer = Accept | Decline | Cancel
"""The user's answer to a server's question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elicitation:
    """A question that an MCP server asks the user, with the form to fill in.

    The server wrote `message`, which has at most 4,000 characters, and `schema`, a JSON Schema for
    an object with flat properties; credentials in both are masked. `str()` marks them as the
    server's and escapes characters that control a terminal.
    """

    server: str
    message: str
    schema: JsonSchema

    @property
    def fields(self) -> Mapping[str, JsonSchema]:
        """The schema of each form field, in the server's order."""
        return dict(self.schema.get("properties", {}))

    @property
    def required(self) -> frozenset[str]:
        """The names of the fields that must be filled in."""
        return frozenset(self.schema.get("required", ()))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of fields that appear to ask for a credential, which MCP forbids."""
        return tuple(
            [
                name
                for name, schema in self.fields.items()
                if any(credentials_in({name: "x", f"{schema.get('title')}": "x"}))
            ]
        )

    def issues(self, content: Mapping[str, Json]) -> tuple[ValidationIssue, ...]:
        """Returns violations of the schema; they name fields and rules, but not the data."""
        return validation_issues(json.dumps(self.schema), dict(content))

    def describe(self, name: str) -> str:
        """Returns one line about a field: its name, type, choices and the server's description."""
        schema = self.fields[name]
        kind = "required" if name in self.required else "optional"
        parts = [f"{name} ({schema.get('type')}, {kind})"]
        choices = schema.get("enum") or [choice.get("const") for choice in schema.get("oneOf", ())]
        texts = [schema.get("title"), schema.get("description")]
        parts += [f"{text}" for text in texts if text]
        parts += [f"one of {json.dumps(choices, ensure_ascii=False)}"] if choices else []
        return visible(": ".join(parts).replace("\n", " ")[:_MAX_FIELD])

    def __str__(self) -> str:
        lines = [f"MCP server {self.server!r} asks, in its own words:"]
        lines += [f"| {visible(line)}" for line in self.message.split("\n")]
        lines += [f"- {self.describe(name)}" for name in self.fields]
        if self.secrets:
            names = visible(", ".join(self.secrets))
            warning = f"it may want a secret ({names}), which no server may ask for in a form."
            lines.append(f"Careful: {warning}")
        return "\n".join(lines)


type Ask = Callable[[Elicitation], Awaitable[ElicitationAnswer]]
"""Asks the user a question during a call."""


class Elicit(Protocol):
    """Answers a server's questions; can be a plain function or a coroutine function.

    A plain function runs in a thread, which is abandoned if the call ends before the answer.
    """

    def __call__(
        self, request: Elicitation, /, *, context: ToolContext
    ) -> ElicitationAnswer | Awaitable[ElicitationAnswer]: ...


def form_problem(schema: JsonSchema) -> str | None:
    """Returns why a form with this schema is not shown to the user, or `None` if it is valid.

    MCP allows objects with flat properties: strings, numbers, booleans, and lists of choices.
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


def check_answer(request: Elicitation, answer: object) -> ElicitationAnswer:
    """Returns `answer`; raises `TypeError` for a wrong type, `ValueError` for invalid content.

    The content must match the schema and must not contain a credential from this process's
    environment.
    """
    place = f"elicit= of MCP server {request.server!r} returned"
    match answer:
        case Accept(content):
            if issues := request.issues(content):
                problems = "; ".join(map(str, issues))
                raise ValueError(f"{place} content that does not match the form: {problems}")
            text = json.dumps(dict(content), ensure_ascii=False)
            if Redactor(tuple(credentials_in(os.environ)))(text) != text:
                raise ValueError(f"{place} a credential of this process; nothing was sent")
            return answer
        case Decline() | Cancel():
            return answer
        case _:
            raise TypeError(f"{place} {answer!r}; return Accept(content), Decline() or Cancel()")
