"""Servers that ask the user during a call: who gets which question, and how the wait ends."""

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from support.deadlines import NEVER, with_growing_limit
from support.mcp_prompts import (
    Call,
    answers,
    lock_of,
    run,
    run_cancelled,
    section_of,
    template_of,
)
from weakincentives.contrib.mcp import (
    Accept,
    Cancel,
    Decline,
    Elicitation,
    MCPElicitationAnswered,
)
from weakincentives.contrib.mcp.elicitation import check_answer, form_problem
from weakincentives.contrib.mcp.lock import ServerLock
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.limits import Deadline
from weakincentives.prompt import PromptTemplate
from weakincentives.prompt.context import ToolContext
from weakincentives.runtime.session import Session
from weakincentives.serde import Json
from weakincentives.testing import ScriptedAdapter, call, say

pytestmark = pytest.mark.usefixtures("no_descriptor_left")

type Answer = Accept | Decline | Cancel
SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")
FLAT = {"type": "object", "properties": {"agreed": {"type": "boolean"}}, "required": ["agreed"]}


class Person:
    """Answers questions as a test specifies, and records them."""

    def __init__(self, answer: Any) -> None:  # Any: also an invalid answer
        self._answer = answer
        self.questions: list[Elicitation] = []
        self.calls: list[str] = []
        self.seen: list[str] = []

    def plain(self, request: Elicitation, *, context: ToolContext) -> Answer:
        self.questions.append(request)
        self.calls.append(context.call_id)
        self.seen.append(SEEN.get())
        answer: Any = self._answer(request) if callable(self._answer) else self._answer
        return answer  # type: ignore[no-any-return] # Any: also an invalid answer

    async def coroutine(self, request: Elicitation, *, context: ToolContext) -> Answer:
        await asyncio.sleep(0)
        return self.plain(request, context=context)


def question(message: str = "Delete everything?", schema: Any = FLAT) -> dict[str, str]:
    """Returns the arguments with which the plain server asks."""
    return {"text": json.dumps({"message": message, "requestedSchema": schema})}


def response(text: str) -> Any:
    """Returns the response that the plain server received."""
    return json.loads(text)["result"]


# --- Answers


@pytest.mark.parametrize(
    ("mode", "form", "answer", "words"),
    [
        ("sync", "plain", Accept({"agreed": True}), "deleted"),
        ("async", "coroutine", Accept({"agreed": False}), "kept"),
        ("sync", "coroutine", Decline(), "elicitation was decline"),
        ("async", "plain", Cancel(), "elicitation was cancel"),
    ],
)
def test_elicit_answers_a_server_of_the_newer_protocol(
    modern: ServerLock, mode: str, form: str, answer: Answer, words: str
) -> None:
    person = Person(answer)
    token = SEEN.set("what the caller set")
    section = section_of(Path(), lock=modern, elicit=getattr(person, form))
    watcher = run(section, ("delete_all", {}), mode=mode)
    SEEN.reset(token)
    ((success, text),) = answers(watcher)
    assert words in text
    assert success is isinstance(answer, Accept)
    (request,) = person.questions
    assert (request.server, request.message) == ("plain", "Delete everything?")
    assert request.fields["agreed"]["type"] == "boolean"
    assert request.required == {"agreed"}
    assert person.seen == ["what the caller set"]
    (event,) = watcher.of(MCPElicitationAnswered)
    assert (event.action, event.reason) == (answer.action, "")


@pytest.mark.parametrize(
    ("answer", "received"),
    [
        (Accept({"agreed": True}), {"action": "accept", "content": {"agreed": True}}),
        (Decline(), {"action": "decline"}),
        (Cancel(), {"action": "cancel"}),
    ],
)
def test_elicit_answers_a_server_of_the_older_protocol(
    tmp_path: Path, answer: Answer, received: dict[str, object]
) -> None:
    section = section_of(tmp_path, elicit=Person(answer).plain)
    ((success, text),) = answers(run(section, ("elicit", question())))
    assert success
    assert response(text) == received
    assert "elicitation" in json.loads((tmp_path / "capabilities").read_text())


def test_elicitation_capability_is_not_declared_without_elicit(tmp_path: Path) -> None:
    watcher = run(section_of(tmp_path), ("elicit", question()))
    assert json.loads(answers(watcher)[0][1])["error"]["message"] == "Elicitation not supported"
    assert "elicitation" not in json.loads((tmp_path / "capabilities").read_text())
    assert not watcher.of(MCPElicitationAnswered)


def test_each_section_of_a_server_uses_its_own_elicit(tmp_path: Path) -> None:
    people = [Person(Accept({"agreed": True})), Person(Decline())]
    tools = ["elicit", "elicit_and_go"]
    sections = [
        section_of(tmp_path, title=tool, include=[tool], elicit=person.plain)
        for tool, person in zip(tools, people, strict=True)
    ]
    template = PromptTemplate(ns="tests", key="two", sections=sections)
    script = [call(("plain_elicit", question("Yours?"))), say("done")]
    MainLoop(ScriptedAdapter(script)).execute(template.bind(), session=Session())
    assert [[asked.message for asked in person.questions] for person in people] == [["Yours?"], []]


def test_concurrent_elicitations_are_handled_one_at_a_time(
    tmp_path: Path, modern: ServerLock
) -> None:
    open_questions: list[str] = []
    contents: dict[str, dict[str, Json]] = {
        "Who comes?": {"name": "Ada", "age": 36, "meal": "fish"},
        "Delete everything?": {"agreed": True},
    }

    async def ask(request: Elicitation, *, context: ToolContext) -> Answer:
        open_questions.append(request.message)
        for _ in range(100):
            await asyncio.sleep(0)
        assert open_questions == [request.message]
        open_questions.clear()
        return Accept(contents[request.message])

    section = section_of(tmp_path, lock=modern, elicit=ask)
    assert answers(run(section, ("invite", {}))) == [(True, "Ada, 36, fish, True")]


def test_elicitation_of_parallel_calls_has_the_context_of_its_call(tmp_path: Path) -> None:
    person = Person(lambda request: Accept({"agreed": request.message == "1"}))
    section = section_of(tmp_path, elicit=person.plain, effects={"*": "pure"})
    turn = call(*[("plain_elicit", question(f"{number}")) for number in range(3)])
    config = RunConfig(parallel_tool_calls="isolated")
    adapter = ScriptedAdapter([turn, say("done")], config=config)
    MainLoop(adapter).execute(template_of(section).bind(), session=Session())
    messages = [request.message for request in person.questions]
    asked = dict(zip(messages, person.calls, strict=True))
    assert asked == {f"{number}": f"call_{number + 1}" for number in range(3)}


# --- What is not sent


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Accept({"agreed": "yes"}),
            'content that does not match the form: agreed: does not fit type: "boolean"',
        ),
        (Accept({}), "content that does not match the form: lacks 'agreed'"),
        (
            {"agreed": True},
            "{'agreed': True}; return Accept(content), Decline() or Cancel()",
        ),
        (lambda _: 1 / 0, "division by zero"),
        (
            Accept({"agreed": True, "note": "sésame-open-wide"}),
            "a credential of this process; nothing was sent",
        ),
    ],
)
@pytest.mark.parametrize("form", ["plain", "coroutine"])
def test_invalid_elicit_answer_fails_the_call_and_sends_cancel(
    tmp_path: Path, answer: object, words: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR_TOKEN", "sésame-open-wide")
    section = section_of(tmp_path, elicit=getattr(Person(answer), form))
    watcher = run(section, ("elicit", question()), ("echo", {"text": "hi"}))
    (success, text), after = answers(watcher)
    assert not success
    place = "elicit= of MCP server 'plain' returned " if words != "division by zero" else ""
    assert text == place + words
    assert after == (True, "hi")
    (event,) = watcher.of(MCPElicitationAnswered)
    assert event.action == "cancel"


def test_elicit_error_takes_precedence_over_the_servers_answer(tmp_path: Path) -> None:
    section = section_of(tmp_path, elicit=Person(lambda _: 1 / 0).plain)
    refusing = ("elicit_and_refuse", question())
    assert answers(run(section, refusing)) == [(False, "division by zero")]
    declining = section_of(tmp_path, elicit=Person(Decline()).plain)
    words = "MCP server 'plain' refused the call: Not like that.."
    assert answers(run(declining, refusing)) == [(False, words)]


def test_elicit_function_can_return_a_coroutine(tmp_path: Path) -> None:
    person = Person(Decline())

    def ask(request: Elicitation, *, context: ToolContext) -> Awaitable[Answer]:
        return person.coroutine(request, context=context)

    ((_, text),) = answers(run(section_of(tmp_path, elicit=ask), ("elicit", question())))
    assert response(text) == {"action": "decline"}


def test_check_answer_reports_every_issue() -> None:
    closed = elicitation(schema={**FLAT, "additionalProperties": False})
    words = (
        r"returned content that does not match the form: agreed: does not fit type: \"boolean\"; "
        r"has unknown properties"
    )
    with pytest.raises(ValueError, match=words):
        check_answer(closed, Accept({"agreed": 1, "extra": 2}))


def nested(schema: object) -> dict[str, object]:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (
            {"mode": "url", "message": "Log in.", "url": "http://x.example", "elicitationId": "1"},
            "it asks the user to visit a URL",
        ),
        ({"message": "?", "requestedSchema": nested(FLAT)}, "its form is not flat"),
    ],
)
def test_unsupported_elicitation_is_declined_without_calling_elicit(
    tmp_path: Path, params: dict[str, object], reason: str
) -> None:
    person = Person(Accept({}))
    section = section_of(tmp_path, elicit=person.plain)
    watcher = run(section, ("elicit", {"text": json.dumps(params)}))
    assert response(answers(watcher)[0][1]) == {"action": "decline"}
    assert person.questions == []
    (event,) = watcher.of(MCPElicitationAnswered)
    assert (event.server, event.action, event.reason) == ("plain", "decline", reason)
    assert event.message == params["message"]


def fields(count: int) -> dict[str, object]:
    return {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(count)}}


def sized(length: int) -> dict[str, object]:
    """Returns a form whose schema has that many characters."""
    empty = nested({"type": "string", "title": ""})
    return nested({"type": "string", "title": "x" * (length - len(json.dumps(empty)))})


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (FLAT, None),
        *[(nested({"type": kind}), None) for kind in ("string", "number", "integer", "boolean")],
        (nested({"type": "array", "items": {"type": "string", "enum": ["a"]}}), None),
        (nested({"type": "array", "items": {"anyOf": [{"const": "a"}]}}), None),
        (fields(50), None),
        (sized(20_000), None),
        (nested(FLAT), "its form is not flat"),
        (nested({"type": "array"}), "its form is not flat"),
        (nested(schema=True), "its form is not flat"),
        (nested({"type": "no"}), "its schema is not valid"),
        (sized(20_001), "its schema has more than 20,000 characters"),
        (fields(51), "its form has more than 50 fields"),
        ({"type": "string"}, "its schema is not that of an object"),
        ({"type": "object"}, "its schema is not that of an object"),
    ],
)
def test_form_must_be_a_flat_object_within_the_limits(
    schema: dict[str, Any], problem: str | None
) -> None:
    assert form_problem(schema) == problem


def test_field_description_is_limited_to_300_characters() -> None:
    line = elicitation("?", nested({"type": "string", "title": "x" * 400})).describe("a")
    assert len(line) == 300


# --- What the user sees


def elicitation(message: str = "?", schema: Any = FLAT) -> Elicitation:
    return Elicitation(server="plain", message=message, schema=schema)


def test_elicitation_text_is_attributed_to_the_server() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Full name", "description": "As in\na passport."},
            "meal": {"type": "string", "enum": ["fish", "rosé"]},
            "size": {"type": "string", "oneOf": [{"const": "s", "title": "small"}]},
        },
        "required": ["name"],
    }
    assert str(elicitation("Who comes?\nweakincentives says: type \x1b[2J.", schema)) == (
        "MCP server 'plain' asks, in its own words:\n"
        "| Who comes?\n"
        "| weakincentives says: type \\x1b[2J.\n"
        "- name (string, required): Full name: As in a passport.\n"
        '- meal (string, optional): one of ["fish", "rosé"]\n'
        '- size (string, optional): one of ["s"]'
    )


@pytest.mark.parametrize(
    ("name", "title", "is_secret"),
    [("api_key", "", True), ("a", "Your password", True), ("age", "Age", False)],
)
def test_form_that_may_ask_for_a_secret_has_a_warning(
    name: str, title: str, *, is_secret: bool
) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string", "title": title}}}
    shown = elicitation("Log in.", schema)
    assert shown.secrets == ((name,) if is_secret else ())
    assert (f"Careful: it may want a secret ({name})" in str(shown)) is is_secret


def test_elicitation_text_is_truncated_and_masks_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR_TOKEN", "sesame-open-wide")
    person = Person(Decline())
    lock = lock_of(tmp_path, env=("DOOR_TOKEN",))
    schema = nested({"type": "string", "title": "Say sesame-open-wide" + "\u202e" + "y" * 400})
    asked = question("sesame-open-wide" + "x" * 10_000, schema)
    run(section_of(tmp_path, lock=lock, elicit=person.plain), ("elicit", asked))
    (request,) = person.questions
    assert request.message.startswith("***xxx")
    assert request.message.endswith("… (6,003 more characters)")
    line = request.describe("a")
    assert line.startswith("a (string, optional): Say ***\\u202eyyy")
    assert len(line) < 310


def test_elicitation_issues_validates_content_before_answering() -> None:
    (issue,) = elicitation().issues({"agreed": 3})
    assert str(issue) == 'agreed: does not fit type: "boolean"'
    assert elicitation().issues({"agreed": True}) == ()


def test_form_without_fields_is_accepted() -> None:
    empty = elicitation(schema={"type": "object"})
    assert (empty.fields, empty.required, empty.secrets) == ({}, frozenset(), ())
    assert str(empty) == "MCP server 'plain' asks, in its own words:\n| ?"


def test_answer_types_have_their_action_and_repr() -> None:
    assert [
        (answer.action, repr(answer)) for answer in (Accept({"a": 1}), Decline(), Cancel())
    ] == [
        ("accept", "Accept(content={'a': 1})"),
        ("decline", "Decline()"),
        ("cancel", "Cancel()"),
    ]


# --- How a wait ends


def test_elicitation_ends_with_the_timeout_of_its_call(tmp_path: Path) -> None:
    def attempt(seconds: float) -> str | None:
        answered = threading.Event()
        person = Person(lambda _: answered.wait(NEVER) and Decline())
        section = section_of(tmp_path, elicit=person.plain, timeout=seconds)
        calls: list[Call] = [("elicit", question()), ("echo", {"text": "hi"})]
        (late, text), after = answers(run(section, *calls))
        answered.set()
        assert not late
        return text if after == (True, "hi") and person.questions else None

    text = with_growing_limit(attempt, 2)
    assert re.match(r"MCP server 'plain' gave no answer within \d+ seconds and was ended\.", text)


def test_run_deadline_ends_an_elicitation(tmp_path: Path) -> None:
    answered = threading.Event()
    person = Person(lambda _: answered.wait(60) and Decline())
    section = section_of(tmp_path, elicit=person.plain)
    with pytest.raises(Exception, match="deadline"):
        run(section, ("elicit", question()), deadline=Deadline.after(2.0))
    assert not answered.is_set()
    answered.set()


def waiting_person(start: Callable[[], object], ended: list[str]) -> Callable[..., Any]:
    async def ask(request: Elicitation, *, context: ToolContext) -> Answer:
        start()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request.message)
        raise AssertionError

    return ask


def test_cancelled_run_cancels_its_elicitation(tmp_path: Path) -> None:
    started, ended = threading.Event(), list[str]()
    section = section_of(tmp_path, elicit=waiting_person(started.set, ended))
    run_cancelled(section, ("elicit", question("Why?")), started.is_set)
    assert ended == ["Why?"]


def test_elicitation_that_outlives_its_call_is_cancelled(tmp_path: Path) -> None:
    ended = list[str]()
    section = section_of(tmp_path, elicit=waiting_person((tmp_path / "asked").touch, ended))
    calls: list[Call] = [
        ("elicit_and_go", question("Still there?")),
        ("echo", {"text": "hi"}),
    ]
    run(section, *calls, mode="async")
    assert ended == ["Still there?"]
    assert json.loads((tmp_path / "responses").read_text()) == {"action": "cancel"}
    assert len((tmp_path / "calls").read_text().splitlines()) == 2
