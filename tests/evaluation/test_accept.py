"""A template accepts or rejects an answer, in the same conversation and without side effects."""

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.messages import UserMessage
from weakincentives.evaluation.response import AnswerRejected, Completed
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    OutputRejected,
    PromptTemplate,
    PromptValidationError,
    ToolContext,
    ToolValidationError,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say


@dataclass(frozen=True)
class Query:
    sql: str


@dataclass(frozen=True)
class Tried:
    sql: str


class Database:
    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.connection.execute("create table tea (name text)")

    def close(self) -> None:
        self.connection.close()


def explain(output: Query, /, *, context: ToolContext) -> None:
    context.session.dispatch(Tried(output.sql))
    context.resources.get(Filesystem).write_text("last.sql", output.sql)
    try:
        context.resources.get(Database).connection.execute(f"explain {output.sql}")
    except sqlite3.Error as error:
        raise OutputRejected(f"SQLite says: {error}") from error


async def explain_async(output: Query, /, *, context: ToolContext) -> None:
    await asyncio.sleep(0)
    explain(output, context=context)


def template(accept: Any = explain) -> PromptTemplate[Query]:
    resources = ResourceRegistry.of(
        Binding(Database, lambda _: Database()), Binding(Filesystem, lambda _: InMemoryFilesystem())
    )
    return PromptTemplate[Query](ns="tests", key="sql", accept=accept, resources=resources)


GOOD, BAD = say(Query("select name from tea")), say(Query("select milk from tea"))


def evaluate(adapter: ScriptedAdapter, prompt: Any, session: Session, way: str) -> Any:
    match way:
        case "evaluate":
            return adapter.evaluate(prompt, session=session)
        case "evaluate_async":
            return asyncio.run(adapter.evaluate_async(prompt, session=session))
        case _:
            last = [*adapter.stream(prompt, session=session)][-1]
            assert isinstance(last, Completed)
            return last.response


@pytest.mark.claim("N-06")
@pytest.mark.parametrize("way", ["evaluate", "evaluate_async", "stream"])
@pytest.mark.parametrize("accept", [explain, explain_async])
def test_rejected_answer_is_retried_and_its_effects_are_rolled_back(
    accept: Callable[..., Any], way: str
) -> None:
    adapter, session = ScriptedAdapter([BAD, GOOD]), Session()
    prompt = template(accept).bind()
    with prompt.resources:
        response = evaluate(adapter, prompt, session, way)
        files = prompt.resources.get(Filesystem)
        assert files.read_text("last.sql") == "select name from tea"
    assert response.output == Query("select name from tea")
    assert session[Tried].all() == (Tried("select name from tea"),)
    assert response.transcript[2] == UserMessage(
        "Your answer is rejected: SQLite says: no such column: milk\nAnswer again.", repair=True
    )
    assert len(adapter.requests) == 2


def test_output_error_after_the_last_repair_contains_the_rejection() -> None:
    session = Session()
    adapter = ScriptedAdapter([BAD] * 2, config=RunConfig(max_repairs=1))
    with pytest.raises(
        PromptEvaluationError, match="rejected after 1 repairs: SQLite says"
    ) as error:
        adapter.evaluate(template().bind(), session=session)
    assert error.value.code == "output"
    assert session[Tried].all() == ()
    assert error.value.conversation is not None
    assert ScriptedAdapter([GOOD]).evaluate(
        template().bind(), session=session, conversation=error.value.conversation
    ).output == Query("select name from tea")


def test_stream_yields_answer_rejected_with_its_reason() -> None:
    events = ScriptedAdapter([BAD, GOOD]).stream(template().bind(), session=Session())
    assert [event.reason for event in events if isinstance(event, AnswerRejected)] == [
        "Your answer is rejected: SQLite says: no such column: milk\nAnswer again."
    ]


def test_tool_validation_error_in_accept_rejects_the_answer() -> None:
    def accept(output: Query, /, *, context: ToolContext) -> None:
        if "milk" in output.sql:
            raise ToolValidationError("No milk.")

    adapter = ScriptedAdapter([BAD, GOOD])
    assert adapter.evaluate(template(accept).bind(), session=Session()).turns == 2


def test_other_error_in_accept_propagates_and_is_rolled_back() -> None:
    def accept(output: Query, /, *, context: ToolContext) -> None:
        context.session.dispatch(Tried(output.sql))
        raise LookupError("broken")

    session = Session()
    with pytest.raises(LookupError, match="broken"):
        ScriptedAdapter([GOOD]).evaluate(template(accept).bind(), session=session)
    assert session[Tried].all() == ()


@pytest.mark.parametrize("accept", [5, lambda: None, lambda output: None], ids=["5", "none", "one"])
def test_accept_with_a_wrong_signature_is_rejected(accept: Any) -> None:
    with pytest.raises(
        PromptValidationError, match=r"accept: handler .*\(output: Output, \*, context"
    ):
        template(accept)
