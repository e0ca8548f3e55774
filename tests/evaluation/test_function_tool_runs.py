"""Function tools in runs: injection, results and errors, through four entry points."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from functools import partial, wraps
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from support import postponed_tools as postponed
from support.media import PDF, PNG
from weakincentives import Session, ToolError, tool
from weakincentives.content import Document, Image
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import ToolMessage
from weakincentives.evaluation.response import Completed
from weakincentives.inspection.event_log import read_events, write_events
from weakincentives.prompt import MarkdownSection, PromptTemplate, Resource, ToolContext, ToolResult
from weakincentives.runtime.events import ToolInvoked
from weakincentives.testing import ScriptedAdapter, assert_tool_contract, call, say

type Face = Callable[..., Any]  # Any: an adapter's arguments and response


def stream(adapter: ScriptedAdapter, *args: Any, **options: Any) -> Any:
    [*_, completed] = adapter.stream(*args, **options)
    assert isinstance(completed, Completed)
    return completed.response


def stream_async(adapter: ScriptedAdapter, *args: Any, **options: Any) -> Any:
    async def last() -> Any:
        return [event async for event in adapter.stream_async(*args, **options)][-1]

    return asyncio.run(last()).response


def evaluate_async(adapter: ScriptedAdapter, *args: Any, **options: Any) -> Any:
    return asyncio.run(adapter.evaluate_async(*args, **options))


faces = pytest.mark.parametrize(
    "face",
    [ScriptedAdapter.evaluate, evaluate_async, stream, stream_async],
    ids=["sync", "async", "streamed", "async-streamed"],
)


@dataclass
class Run:
    answers: list[ToolMessage]
    events: list[ToolInvoked]
    log: str
    conversation: Conversation
    session: Session

    @property
    def answer(self) -> str:
        [message] = self.answers
        return message.content

    @property
    def ok(self) -> bool:
        [message] = self.answers
        return message.success


# Any: functions, arguments of calls, and resources
def play(
    function: Any,
    *arguments: dict[str, Any],
    face: Face = ScriptedAdapter.evaluate,
    name: str = "",
    resources: Any = MappingProxyType({}),
) -> Run:
    """Calls a function tool once with each of `arguments`."""
    section = MarkdownSection(title="Task", template="Do it.", tools=[function])
    template = PromptTemplate[None](ns="tests", key="run", sections=[section])
    name = name or section.tools()[0].name
    calls = [call((name, item)) for item in arguments]
    adapter, session, log = ScriptedAdapter([*calls, say("Done.")]), Session(), StringIO()
    write_events(session.bus, log)
    response = face(adapter, template.bind(resources=resources), session=session, message="Go.")
    messages = [
        message for message in response.conversation.messages if isinstance(message, ToolMessage)
    ]
    events = list(session[ToolInvoked].all())
    return Run(messages, events, log.getvalue(), response.conversation, session)


class Db:
    """A resource without a schema, which cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def find(self, order: str) -> str:
        return f"found {order}"


# --------------------------------------------------------------------------------------- injection


@faces
def test_context_session_and_resources_are_injected(face: Face) -> None:
    seen: list[object] = []
    db = Db()

    def look(
        order: str,
        session: Session,
        size: int = 2,
        db: Resource[Db] | None = None,
        *,
        context: ToolContext,
    ) -> str:
        seen.extend([order, session.session_id, size, db, context.call_id])
        return order

    run = play(look, {"order": "1"}, face=face, resources={Db: db})
    assert seen[0] == "1"
    assert seen[1] == run.session.session_id
    assert seen[2:] == [2, db, run.events[0].call_id]
    assert seen[3] is db
    assert "Lock" not in run.log


@faces
def test_unbound_resource_fails_the_call_unless_it_is_optional(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [message for message in messages if "needs a resource" in message]

    def required(db: Resource[Db]) -> str:
        return db.find("1")

    def optional(db: Resource[Db] | None) -> str:
        return str(db)

    run = play(required, {}, face=face)
    assert not run.ok
    assert "Db" in run.answer
    [warning] = warnings()
    assert warning == (
        "Tool 'required' needs a resource, Db; bind one: prompt.bind(resources={Db: …})"
    )
    assert play(optional, {}, face=face).answer == "None"
    assert play(required, {}, face=face, resources={Db: Db()}).ok
    assert warnings() == []


def test_optional_resource_that_cannot_be_created_fails_the_call() -> None:
    from weakincentives.resources import Binding, ResourceRegistry

    def optional(db: Resource[Db] | None) -> str:
        return str(db)

    def broken(_: object) -> Db:
        raise OSError("no database")

    run = play(optional, {}, resources=ResourceRegistry.of(Binding(Db, broken)))
    assert (run.ok, run.answer) == (False, "no database")


@faces
def test_postponed_annotations_are_injected(face: Face) -> None:
    db = postponed.Database()
    assert play(postponed.find, {"q": "a"}, face=face).answer.startswith("a ")
    run = play(postponed.look_up, {"q": "a"}, face=face, resources={postponed.Database: db})
    assert run.answer == f"a {run.session.session_id} a!"
    assert play(postponed.describe, {"q": "a"}, face=face).answer.startswith("a ")
    assert play(postponed.count, {"ids": [1]}, face=face).ok is False  # a function is not a result
    visit, _ = postponed.local_tools(tool)
    arguments = {"first": {"name": "A"}, "second": {"name": "B"}}
    assert play(visit, arguments, face=face).answer == "A B"


def test_injected_values_are_never_shown_to_the_model() -> None:
    class Secret(Db):
        def __repr__(self) -> str:
            return "SECRET"

    def look(order: int, vault: Resource[Secret], context: ToolContext) -> str:
        return str(order)

    run = play(look, {"order": "x"}, {"order": 1, "vault": 2}, resources={Secret: Secret()})
    assert [message.success for message in run.answers] == [False, False]
    assert "SECRET" not in f"{run.answers}{run.log}"
    assert "vault" not in run.answers[0].content
    assert "context" not in f"{run.answers}"


# ----------------------------------------------------------------------------------------- calling


@faces
def test_partials_methods_and_callables_run(face: Face) -> None:
    class Shop:
        def __init__(self) -> None:
            self.calls = 0

        def find(self, order: Annotated[str, "Its number"]) -> str:
            self.calls += 1
            return f"{order} {self.calls}"

        def __call__(self, order: str) -> str:
            return f"called {order}"

    async def later(order: str, n: int) -> str:
        await asyncio.sleep(0)
        return f"{order} {n}"

    shop = Shop()
    assert play(shop.find, {"order": "A"}, face=face).answer == "A 1"
    assert play(shop, {"order": "A"}, face=face).answer == "called A"
    assert play(partial(later, n=1), {"order": "A"}, face=face).answer == "A 1"
    assert play(partial(later, "B"), {"n": 3}, face=face).answer == "B 3"


@faces
def test_wrapper_runs_and_its_awaitable_is_awaited_once(face: Face) -> None:
    calls: list[str] = []

    async def find(order: str) -> str:
        calls.append("find")
        await asyncio.sleep(0)
        return order

    @wraps(find)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append("wrapper")
        return find(*args, **kwargs)

    assert play(wrapper, {"order": "A"}, face=face).answer == "A"
    assert calls == ["wrapper", "find"]


@faces
def test_default_that_is_changed_is_new_for_the_next_call(face: Face) -> None:
    def collect(item: str, items: list[str] = []) -> list[str]:  # noqa: B006 - as users write it
        items.append(item)
        return items

    run = play(collect, {"item": "a"}, {"item": "b"}, face=face)
    assert [message.content for message in run.answers] == ['["a"]', '["b"]']


@faces
def test_unknown_arguments_are_refused_before_the_function_runs(face: Face) -> None:
    calls: list[str] = []

    def read(topic: str = "", size: Annotated[int, Field(gt=0)] = 1) -> str:
        calls.append(topic)
        return f"{topic}{size}"

    run = play(read, {"path": "x"}, {"size": -5}, face=face)
    assert [message.success for message in run.answers] == [False, False]
    assert "path" in run.answers[0].content
    assert "size" in run.answers[1].content
    assert calls == []


# --------------------------------------------------------------------------------------- results


class Level(StrEnum):
    HIGH = "high"


class Level2(Enum):
    HIGH = "high"


class Order(BaseModel):
    number: int
    note: str | None = None

    def __str__(self) -> str:
        return "not this"


@dataclass
class Rendered:
    number: int

    def render(self) -> str:
        return f"No. {self.number}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ("", ""),
        (None, ""),
        (0, "0"),
        (False, "false"),
        ({"a": True}, '{"a":true}'),
        ([1, {"b": None}], '[1,{"b":null}]'),
        ([], "[]"),
        (["a", "b"], '["a","b"]'),
        ((1, "a"), '[1,"a"]'),
        (Order(number=1), '{"number":1}'),
        ([Order(number=1)], '[{"number":1}]'),
        (Rendered(3), "No. 3"),
        (Level.HIGH, '"high"'),
        (Level2.HIGH, '"high"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (ToolResult("Said.", 3), "Said.\n\n3"),
        (ToolResult("", 3), "3"),
    ],
    ids=repr,
)
@faces
def test_returned_value_is_rendered_for_the_model(value: Any, text: str, face: Face) -> None:
    def give() -> Any:
        return value

    async def give_later() -> Any:
        await asyncio.sleep(0)
        return value

    for function in (give, give_later):
        run = play(function, {}, face=face)
        assert (run.answer, run.ok) == (text, True)


CAT, PAPER = Image.from_bytes(PNG, name="cat.png"), Document.from_bytes(PDF, name="paper.pdf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (CAT, f"{CAT}"),
        (PAPER, f"{PAPER}"),
        (["Look:", CAT, "and", PAPER], f"Look:\n\n{CAT}\n\nand\n\n{PAPER}"),
        ((CAT,), f"{CAT}"),
    ],
    ids=["image", "document", "mixed", "tuple"],
)
@faces
def test_returned_media_reach_the_model_as_media(value: Any, text: str, face: Face) -> None:
    def give() -> Any:
        return value

    run = play(give, {}, face=face)
    media = value if isinstance(value, list | tuple) else [value]
    wanted = [item.reference for item in media if not isinstance(item, str)]
    assert (run.answer, run.ok) == (text, True)
    assert list(run.answers[0].media) == wanted


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"x", "must return text, an Image or a Document, got bytes"),
        (bytearray(b"x"), "got bytearray"),
        (numbers(), "must return a list, got a generator"),
        (iter([1]), "must return a list, got a list_iterator"),
        ([CAT, 3], "only strings and media in a list"),
        (object(), "JSON"),
    ],
    ids=["bytes", "bytearray", "generator", "iterator", "mixed", "object"],
)
@faces
def test_value_without_a_text_fails_the_call(value: Any, problem: str, face: Face) -> None:
    def give() -> Any:
        return value

    run = play(give, {}, face=face)
    assert not run.ok
    assert problem in run.answer


# ----------------------------------------------------------------------------------------- raising


@faces
def test_tool_error_is_an_expected_failure_that_rolls_back(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    def book(order: str, session: Session) -> str:
        session.dispatch(Order(number=1))
        raise ToolError(f"No order {order}.")

    run = play(book, {"order": "7"}, face=face)
    assert (run.ok, run.answer) == (False, "No order 7.")
    assert run.session[Order].all() == ()
    assert caplog.records == []


@faces
def test_other_errors_fail_the_call_and_are_logged(
    face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    def book(order: str, session: Session) -> str:
        session.dispatch(Order(number=1))
        raise KeyError(order)

    run = play(book, {"order": "7"}, face=face)
    assert (run.ok, run.answer) == (False, "KeyError: '7'")
    assert run.session[Order].all() == ()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("error", [ToolError(), AssertionError(), ValueError(" ")], ids=repr)
@faces
def test_error_without_words_names_the_tool(error: Exception, face: Face) -> None:
    def book() -> str:
        raise error

    run = play(book, {}, face=face)
    assert (run.ok, run.answer) == (False, f"Tool 'book' failed: {type(error).__name__}")


# --------------------------------------------------------------------------------- stored values


def test_values_of_rich_types_are_read_again_from_log_and_conversation() -> None:
    seen: list[object] = []

    def keep(day: date, price: Decimal, key: UUID, path: Path, level: Level2) -> date:
        seen.extend([day, price, key, path, level])
        return day

    key = UUID(int=1)
    arguments = {"day": "2026-01-02", "price": "1.10", "key": str(key), "path": "a/b"}
    run = play(keep, {**arguments, "level": "high"})
    assert seen == [date(2026, 1, 2), Decimal("1.10"), key, Path("a/b"), Level2.HIGH]
    events = list(read_events(StringIO(run.log)))
    assert any("keep" in json.dumps(event, default=str) for event in events)
    stored = run.conversation.to_json()
    assert Conversation.from_json(stored) == run.conversation


# ---------------------------------------------------------------------------------------- contracts


def test_contract_of_a_function_is_checked_with_its_resources() -> None:
    @tool(effect="pure")
    def find(order: str, db: Resource[Db]) -> str:
        return db.find(order)

    def breaks(order: str, db: Resource[Db]) -> str:
        raise LookupError(order)

    def refuses(order: str) -> str:
        if order != "A":
            raise ToolError("No such order.")
        return order

    assert_tool_contract(find, resources=lambda: {Db: Db()}, max_examples=10)
    with pytest.raises(AssertionError, match="its handler raised LookupError"):
        assert_tool_contract(breaks, resources=lambda: {Db: Db()}, max_examples=10)
    assert_tool_contract(refuses, max_examples=10)


def test_function_is_called_by_hand_with_fakes() -> None:
    class Fake(Db):
        def find(self, order: str) -> str:
            return f"fake {order}"

    def look(order: str, db: Resource[Db]) -> str:
        return db.find(order)

    assert look(order="1", db=Fake()) == "fake 1"
    assert look("2", Fake()) == "fake 2"


def test_functions_run_in_the_loop() -> None:
    def find(order: str) -> str:
        return order

    section = MarkdownSection(title="Task", template="Do it.", tools=[find])
    template = PromptTemplate[None](ns="tests", key="run", sections=[section])
    loop = MainLoop(ScriptedAdapter([call(("find", {"order": "1"})), say("Done.")]))
    assert loop.execute(template.bind(), session=Session(), message="Go.").response.text == "Done."
    assert replace(section.tools()[0], name="x").name == "x"


@faces
def test_awaitable_of_an_awaitable_is_awaited(face: Face) -> None:
    async def find(order: str) -> str:
        await asyncio.sleep(0)
        return order

    @wraps(find)
    async def wrapper(order: str) -> Any:
        return find(order)

    assert play(wrapper, {"order": "A"}, face=face).answer == "A"


@pytest.mark.parametrize("value", [{"a": CAT}, [["a", CAT]], [b"x"], {"a": b"x"}], ids=str)
def test_media_and_bytes_inside_other_values_fail_the_call(value: Any) -> None:
    def give() -> Any:
        return value

    run = play(give, {})
    assert not run.ok
    assert "must return a list of strings and media" in run.answer or "only strings" in run.answer


def test_optional_resource_of_a_generic_type_is_found() -> None:
    def give(names: Resource[list[str]] | None) -> str:
        return str(names)

    assert play(give, {}, resources={list[str]: ["a"]}).answer == "['a']"
