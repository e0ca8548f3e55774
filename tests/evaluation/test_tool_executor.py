"""One tool call with the scripted adapter: every failure becomes an answer, and leaves the state
unchanged.
"""

import asyncio
import json
import logging
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from threading import Event as Gate
from threading import current_thread, main_thread
from types import FrameType
from typing import Annotated, Any, Never
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import (
    Args,
    Note,
    answers,
    nested_adapter,
    ok,
    only_answer,
    prompt,
    recorded,
    text_of,
    tool,
)
from support.codecs import ANY_TEXT
from support.deadlines import SOON
from weakincentives.adapters.core import PromptResponse
from weakincentives.evaluation.effects import run as perform
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.messages import ToolCall, ToolExecutionOutcome, ToolMessage
from weakincentives.evaluation.run_log import Called
from weakincentives.evaluation.tool_executor import ToolExecutor, same_adapter
from weakincentives.limits import Budget
from weakincentives.prompt import MarkdownSection, Prompt, ToolContext, ToolResult
from weakincentives.prompt.errors import ToolValidationError, VisibilityExpansionRequired
from weakincentives.prompt.progressive_disclosure import Disclosure
from weakincentives.runtime.events import (
    InProcessEventBus,
    Operation,
    PromptExecuted,
    ToolInvoked,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility

MARK = "sk-marked-secret"


def scripted(*replies: Reply) -> ScriptedAdapter:
    return ScriptedAdapter([*replies, say("done")])


def once(
    handler: Callable[..., Any] | None, arguments: object = "{}", *, params: type[Any] = Args
) -> ToolMessage:
    """Returns the answer to one call of a tool with this handler, after a complete evaluation."""
    adapter = scripted(call(("probe", arguments)))
    return only_answer(adapter, prompt(tool(handler, params=params)))


# --- L4: exactly one answer, whatever the model writes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "nested"]) | ANY_TEXT, inner)
    ),
    max_leaves=8,
)
WHOLE = JSON.map(json.dumps)
ARGUMENTS = st.one_of(
    ANY_TEXT,
    WHOLE,
    st.builds(lambda text, end: text[: max(0, len(text) - end)], WHOLE, st.integers(1, 5)),
    st.sampled_from(
        [
            "[" * 200_000,
            '{"a":' * 100_000 + "null",
            "[" * 200_000 + "null",
            "9" * 10_000,
            f'{{"a": {"9" * 5_000}}}',
            '{"a": 1e999}',
            '{"a": NaN}',
            '{"\ud800": null}',
            '{"a": null, "a": 1}',
            '{"nested": {"values": [null, {"a": null}]}}',
            "\0",
            "\ufeff{}",
            '"' + "x" * 1_000_000,
        ]
    ),
)


@dataclass(frozen=True)
class Deep:
    a: int = 3
    nested: dict[str, list[Args | None]] = field(default_factory=dict[str, list[Args | None]])
    size: Annotated[int, pydantic.Field(ge=0)] = 0


@pytest.mark.claim("TL-36", "TL-38")
@given(name=st.sampled_from(["probe", "raise", "none"]) | ANY_TEXT, arguments=ARGUMENTS)
def test_any_tool_name_and_arguments_get_one_answer_and_the_run_continues(
    name: str, arguments: str
) -> None:
    def fail(params: Deep, *, context: ToolContext) -> Never:
        raise RuntimeError(arguments)

    tools = (
        tool(params=Deep),
        tool(fail, name="raise", params=Deep),
        tool(None, name="none", params=Deep),
    )
    session = Session()
    adapter = scripted(call((name, arguments)))
    answer = only_answer(adapter, prompt(*tools), session)
    [event] = session[ToolInvoked].all()
    assert event.content == answer.content
    assert len(answer.content) <= 1_000
    answer.content.encode()


@given(arguments=ARGUMENTS)
def test_sync_and_async_evaluation_answer_a_call_identically(arguments: str) -> None:
    asked = prompt(tool(params=Deep))
    sync = scripted(call(("probe", arguments))).evaluate(asked, session=Session())
    later = asyncio.run(
        scripted(call(("probe", arguments))).evaluate_async(asked, session=Session())
    )
    assert sync.transcript == later.transcript


# --- The model's mistakes


@pytest.mark.claim("TL-34", "U-18")
def test_unknown_tool_is_answered_with_the_available_tools() -> None:
    session = Session()
    answer = only_answer(
        scripted(call(("prob", "{}"))), prompt(tool(), tool(name="other")), session
    )
    assert answer == ToolMessage(
        "call_1", "Unknown tool 'prob'. Available tools: other, probe.", success=False
    )
    [event] = session[ToolInvoked].all()
    assert (event.name, event.params, event.success, event.rendered) == ("prob", None, False, "")


def test_unknown_tool_answer_lists_no_tools_if_the_prompt_has_none() -> None:
    assert "Available tools: none." in only_answer(scripted(call(("x", "{}"))), prompt()).content


@pytest.mark.claim("U-18")
def test_call_of_a_tool_without_a_handler_fails_and_is_recorded() -> None:
    session = Session()
    answer = only_answer(scripted(call(("probe", {"a": 1}))), prompt(tool(None)), session)
    assert (answer.success, answer.content) == (False, "Tool 'probe' cannot be called here.")
    [event] = session[ToolInvoked].all()
    assert (event.params, event.success) == (None, False)


@dataclass(frozen=True)
class Strict:
    entity: str
    count: int = 7
    limit: int | None = None
    inner: Args = field(default_factory=Args)


@pytest.mark.claim("TL-33")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"entity": "x"', "Invalid JSON"),
        ("not json", "Invalid JSON"),
        ("[1]", "Invalid arguments for 'probe'"),
        ('"text"', "Invalid arguments for 'probe'"),
        ("null", "Invalid arguments for 'probe'"),
        ("{}", "entity: "),
        ("", "entity: "),
        ('{"entity": null}', "entity: "),
        ('{"entity": "x", "other": 1}', "other: "),
        ('{"entity": "x", "inner": {"b": 1}}', "inner.b: "),
        ('{"entity": "x", "count": "many"}', "count: "),
        ('{"entity": "x", "count": "many", "limit": null}', "count: "),
        ('{"entity": 1, "count": "many", "inner": {"a": []}}', "inner.a: "),
    ],
)
def test_invalid_arguments_are_rejected_with_the_field_named(arguments: str, text: str) -> None:
    ran: list[object] = []

    def handler(params: Strict, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params)
        return ToolResult("ran")

    answer = once(handler, arguments, params=Strict)
    assert (answer.success, ran) == (False, [])
    assert text in answer.content


@pytest.mark.claim("TL-35", "U-01")
def test_invalid_arguments_answer_names_the_field_but_not_the_value() -> None:
    answer = once(ok, json.dumps({"entity": 1, "count": MARK, "inner": {"a": MARK}}), params=Strict)
    assert "count: " in answer.content
    assert MARK not in answer.content


@pytest.mark.claim("TL-26")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"entity": "x"}', Strict("x")),
        ('{"entity": "x", "count": null}', Strict("x", 7)),
        ('{"entity": "x", "count": null, "inner": null}', Strict("x", 7)),
        ('{"entity": "x", "inner": {"a": null}}', Strict("x")),
        ('{"entity": "x", "limit": null, "count": 1}', Strict("x", 1)),
    ],
)
def test_null_restores_the_default_of_a_field_that_does_not_allow_null(
    arguments: str, expected: Strict
) -> None:
    seen: list[Strict] = []

    def handler(params: Strict, *, context: ToolContext) -> ToolResult[object]:
        seen.append(params)
        return ToolResult("ran")

    assert once(handler, arguments, params=Strict).success
    assert seen == [expected]


@dataclass(frozen=True)
class Scalars:
    number: int = 0
    share: float = 0.0
    sure: bool = False
    mixed: "int | list[int] | None" = None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"number": "7"}', "number: Input should be a valid integer"),
        ('{"number": true}', "number: Input should be a valid integer"),
        ('{"number": 7.5}', "number: Input should be a valid integer"),
        ('{"share": "0.5"}', "share: Input should be a valid number"),
        ('{"sure": "yes"}', "sure: Input should be a valid boolean"),
        ('{"sure": 1}', "sure: Input should be a valid boolean"),
        ('{"mixed": ["7"]}', "mixed.list[int].0: Input should be a valid integer"),
    ],
)
def test_scalar_of_another_type_is_rejected_with_its_field_and_expected_type(
    arguments: str, text: str
) -> None:
    answer = once(ok, arguments, params=Scalars)
    assert not answer.success
    assert text in answer.content


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"number": 7.0}', Scalars(number=7)),
        ('{"share": 1, "sure": true}', Scalars(share=1.0, sure=True)),
        ('{"number": 7.0, "share": null}', Scalars(number=7)),
        ('{"mixed": [7.0, 8]}', Scalars(mixed=[7, 8])),
    ],
)
def test_float_without_a_fraction_is_accepted_as_an_integer(
    arguments: str, expected: Scalars
) -> None:
    seen: list[Scalars] = []

    def handler(params: Scalars, *, context: ToolContext) -> ToolResult[object]:
        seen.append(params)
        return ToolResult("ran")

    assert once(handler, arguments, params=Scalars).success
    assert repr(seen) == repr([expected])  # because 7 == 7.0


@pytest.mark.parametrize("arguments", ["", "  \n"])
def test_empty_arguments_are_parsed_as_an_empty_object(arguments: str) -> None:
    assert once(ok, arguments).success


@dataclass(frozen=True)
class Picky:
    a: int = 3

    def __post_init__(self) -> None:
        raise TypeError("a must be picked")


def test_error_in_params_post_init_fails_the_call() -> None:
    answer = once(ok, "{}", params=Picky)
    assert not answer.success
    assert "a must be picked" in answer.content


@pytest.mark.parametrize(
    "arguments", ['{"a": 1, "b": "' + "x" * 5_000 + '"}', "[" * 5_000, " " * 5_000]
)
def test_arguments_above_max_argument_chars_are_rejected_without_parsing(arguments: str) -> None:
    session = Session()
    adapter = scripted(call(("probe", arguments)), call(("probe", {"a": 1})))
    adapter.config = RunConfig(max_argument_chars=5_000 - 1)
    response = adapter.evaluate(prompt(tool()), session=session)
    refused, run = answers(response.transcript)
    assert refused.content == (
        f"Invalid arguments for 'probe': {len(arguments):,} characters, and at most 4,999 are "
        "read. Send less at once."
    )
    assert [event.params for event in session[ToolInvoked].all()] == [None, Args(1)]
    assert (refused.success, run.success) == (False, True)


def test_max_argument_chars_has_a_default_and_can_be_disabled() -> None:
    bound = RunConfig().max_argument_chars
    assert bound is not None
    text = "x" * (bound - len('{"text": ""}'))
    assert once(ok, f'{{"text": "{text}"}}', params=Note).success
    assert not once(ok, f'{{"text": "{text}y"}}', params=Note).success
    unbounded = scripted(call(("probe", {"text": f"{text}y"})))
    unbounded.config = RunConfig(max_argument_chars=None)
    assert only_answer(unbounded, prompt(tool(params=Note))).success


def test_huge_invalid_arguments_are_answered_with_the_number_of_issues() -> None:
    items = ",".join(['{"a":[]}'] * 70_000)
    assert once(ok, f'{{"nested": {{"x": [{items}]}}}}', params=Deep).content == (
        "Invalid arguments for 'probe': 70,000 faults, too many to list; "
        "compare the data with the schema"
    )


# --- Handlers that fail


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def refuse(*_: object) -> Never:
    raise RuntimeError("hostile")


HOSTILE = (
    "__bool__",
    "__len__",
    "__getitem__",
    "__format__",
    "__add__",
    "__radd__",
    "__iter__",
    "encode",
    "isascii",
)
# Any: created at run time, because a subclass of `str` may not override these
Text: Any = type("Text", (str,), dict.fromkeys(HOSTILE, refuse))


class SaysText(Exception):
    def __str__(self) -> str:
        text: str = Text("it broke")
        return text


class Unshowable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def fails_with(error: BaseException) -> Callable[..., Any]:
    def handler(params: Args, *, context: ToolContext) -> Never:
        context.session.dispatch(Note("written"))
        raise error

    return handler


def fails_later_with(error: BaseException) -> Callable[..., Any]:
    async def handler(params: Args, *, context: ToolContext) -> Never:
        context.session.dispatch(Note("written"))
        await asyncio.sleep(0)
        raise error

    return handler


def evaluate(adapter: ScriptedAdapter, asked: Prompt[Any], session: Session) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=session)


def evaluate_in_loop(
    adapter: ScriptedAdapter, asked: Prompt[Any], session: Session
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=session))


def evaluate_inside_loop(
    adapter: ScriptedAdapter, asked: Prompt[Any], session: Session
) -> PromptResponse[Any]:
    async def outer() -> PromptResponse[Any]:
        # synchronous, while this thread's loop runs
        return adapter.evaluate(asked, session=session)

    return asyncio.run(outer())


type Evaluate = Callable[[ScriptedAdapter, Prompt[Any], Session], PromptResponse[Any]]
drivers = pytest.mark.parametrize("run", [evaluate, evaluate_in_loop, evaluate_inside_loop])
handlers = pytest.mark.parametrize("failing", [fails_with, fails_later_with])


@pytest.mark.claim("C-13", "PD-22", "TL-10", "TL-32", "TL-41")
@drivers
@handlers
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("it broke"), "it broke"),
        (RuntimeError(), "RuntimeError"),
        (KeyError("price"), "KeyError: 'price'"),  # and not a bare 'price'
        (Mute(), "Mute"),
        (SaysText(), "it broke"),
        (Unshowable("it broke"), "it broke"),
        # which futures and coroutines cannot propagate
        (StopIteration("StopIteration"), "StopIteration"),
        (TimeoutError("slow"), "slow"),
        (ExceptionGroup("many", [ValueError("one")]), "many (1 sub-exception)"),
        (
            PromptEvaluationError("inner failed", phase="request", code="timeout"),
            "inner failed [request/timeout]",
        ),
    ],
)
def test_exception_in_a_handler_is_answered_rolled_back_and_recorded(
    run: Evaluate, failing: Callable[[BaseException], Any], error: Exception, text: str
) -> None:
    session = Session()
    session.dispatch(Note("before"))
    response = run(scripted(call(("probe", "{}"))), prompt(tool(failing(error))), session)
    [answer] = [message for message in response.transcript if isinstance(message, ToolMessage)]
    assert not answer.success
    assert text in answer.content
    assert response.text == "done"
    assert session[Note].all() == (Note("before"),)
    [event] = session[ToolInvoked].all()
    assert (event.content, event.success, event.rendered) == (answer.content, False, "")


@pytest.mark.parametrize("run", [evaluate, evaluate_in_loop])
@handlers
@pytest.mark.parametrize("error", [Unshowable(), KeyError("a"), SystemExit()])
def test_failing_handler_keeps_the_sigint_handler_of_the_process(
    run: Evaluate, failing: Callable[[BaseException], Any], error: BaseException
) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with suppress(SystemExit):
            run(scripted(call(("probe", "{}"))), prompt(tool(failing(error))), Session())
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert after is before


@drivers
def test_stop_iteration_in_a_sync_handler_is_answered_like_other_exceptions(run: Evaluate) -> None:
    response = run(
        scripted(call(("probe", "{}"))),
        prompt(tool(fails_with(StopIteration("no more")))),
        Session(),
    )
    assert [
        message.content for message in response.transcript if isinstance(message, ToolMessage)
    ] == ["no more"]


def test_interrupt_after_a_handler_rolls_back_the_call_before_it_propagates() -> None:
    session = Session()

    def noting(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("half done"))
        return ok(params, context=context)

    # Any: a trace function's argument depends on the event.
    def interrupt(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "_run_handler" and event == "return":
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    left: tuple[Note, ...] | None = None
    traced = sys.gettrace()
    try:
        sys.settrace(interrupt)
        scripted(call(("probe", "{}"))).evaluate(prompt(tool(noting)), session=session)
    except KeyboardInterrupt:
        left = session[Note].all()
    finally:
        sys.settrace(traced)
    assert left == ()


@pytest.mark.claim("PD-22")
@drivers
@handlers
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_base_exception_in_a_handler_propagates_and_rolls_back(
    run: Evaluate, failing: Callable[[BaseException], Any], kind: type[BaseException]
) -> None:
    session = Session()
    with pytest.raises(kind):
        run(scripted(call(("probe", "{}"))), prompt(tool(failing(kind()))), session)
    assert session[Note].all() == ()


@pytest.mark.claim("TL-35", "U-01")
def test_long_error_message_is_truncated_and_its_cause_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handler(params: Args, *, context: ToolContext) -> Never:
        try:
            raise KeyError(MARK)
        except KeyError as cause:
            raise RuntimeError("x" * 1_000_000) from cause

    answer = once(handler)
    assert answer.content == "x" * 1_000
    [record] = [record for record in caplog.records if record.name.endswith("tool_executor")]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)
    assert isinstance(record.exc_info[1].__cause__, KeyError)
    assert (record.__dict__["tool_name"], record.__dict__["call_id"]) == ("probe", "call_1")


@pytest.mark.claim("TL-35", "U-01")
def test_traceback_is_logged_and_not_sent_to_the_model(caplog: pytest.LogCaptureFixture) -> None:
    answer = once(fails_with(ValueError("only this")))
    assert answer.content == "only this"
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("result", [None, "text", {"message": "x"}, ToolResult])
def test_result_that_is_not_a_tool_result_fails_the_call(result: object) -> None:
    answer = once(lambda params, *, context: result)
    assert not answer.success
    assert answer.content.startswith("the handler of 'probe' must return a ToolResult, got ")


@pytest.mark.parametrize("message", [None, 5, b"bytes", ["list"]])
def test_message_that_is_not_a_string_fails_the_call(message: Any) -> None:
    for value in (None, Args()):
        answer = once(lambda params, *, context: ToolResult(message, value))  # noqa: B023 - called immediately
        assert not answer.success
        assert "must be a string" in answer.content


@pytest.mark.claim("TL-36", "TL-38")
def test_run_ends_with_an_answer_even_if_every_tool_fails() -> None:
    names = [f"t{index}" for index in range(5)]
    adapter = ScriptedAdapter([call(*[(name, "{}") for name in names])] * 3 + [say("done")])
    session = Session()
    failing = [tool(fails_with(RuntimeError("no")), name=name) for name in names]
    assert adapter.evaluate(prompt(*failing), session=session).text == "done"
    assert [event.success for event in session[ToolInvoked].all()] == [False] * 15


# --- What results look like


class Shade(Enum):
    DARK = "dark"


@dataclass(frozen=True)
class Everything:
    day: date = date(2025, 1, 2)
    moment: datetime = datetime(2025, 1, 2, 3, 4, tzinfo=UTC)
    path: Path = Path("a/b")
    shade: Shade = Shade.DARK
    uuid: UUID = field(default_factory=lambda: UUID(int=1))
    price: Decimal = Decimal("1.10")
    tags: frozenset[str] = frozenset({"b", "a", "c"})
    raw: bytes = b"\xff\x00"
    left_out: str | None = None


def gives(value: object, *, success: bool = True, exclude: bool = False) -> Callable[..., Any]:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[Any]:
        context.session.dispatch(Note("written"))
        return ToolResult(
            message="Here.", value=value, success=success, exclude_value_from_context=exclude
        )

    return handler


@pytest.mark.claim("TL-05", "TL-08", "U-14")
def test_value_is_sent_as_json_after_the_message() -> None:
    message, _, body = once(gives(Everything())).content.partition("\n\n")
    assert message == "Here."
    assert json.loads(body) == {
        "day": "2025-01-02",
        "moment": "2025-01-02T03:04:00Z",
        "path": "a/b",
        "shade": "dark",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "price": "1.10",
        "tags": ["a", "b", "c"],
        "raw": "_wA=",
    }


@dataclass(frozen=True)
class Rendered:
    # Any: whatever a careless author returns.
    text: Any

    def render(self) -> Any:
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


@pytest.mark.claim("TL-06")
def test_render_of_a_value_replaces_its_json() -> None:
    assert once(gives(Rendered("| a | table |"))).content == "Here.\n\n| a | table |"


@dataclass(frozen=True)
class Holds:
    # Any: whatever the case puts here.
    value: Any


@pytest.mark.claim("TL-07", "U-14")
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        Holds(float("inf")),
        Holds(object()),
        object(),
        Rendered(1),
        Rendered(None),
        Rendered(ValueError("render broke")),
        Holds(lambda: 1),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", repr(value)),  # the same in each process
)
def test_value_that_cannot_be_rendered_fails_the_call_and_rolls_back(value: object) -> None:
    session = Session()
    answer = only_answer(scripted(call(("probe", "{}"))), prompt(tool(gives(value))), session)
    assert not answer.success
    assert session[Note].all() == ()
    [event] = session[ToolInvoked].all()
    assert (event.content, event.success, event.result.value) == (answer.content, False, None)


@pytest.mark.claim("TL-09", "TL-40", "TL-41")
def test_failed_result_with_a_value_sends_it_and_rolls_back() -> None:
    session = Session()
    answer = only_answer(
        scripted(call(("probe", "{}"))), prompt(tool(gives(Args(9), success=False))), session
    )
    assert answer == ToolMessage("call_1", 'Here.\n\n{"a":9}', success=False)
    assert session[Note].all() == ()
    [event] = session[ToolInvoked].all()
    assert (event.result.value, event.rendered) == (Args(9), '{"a":9}')


@pytest.mark.claim("C-31", "TL-03")
def test_excluded_value_is_in_the_event_but_not_sent_to_the_model() -> None:
    session = Session()
    answer = only_answer(
        scripted(call(("probe", "{}"))), prompt(tool(gives(Args(9), exclude=True))), session
    )
    assert answer.content == "Here."
    [event] = session[ToolInvoked].all()
    assert (event.result.value, event.rendered) == (Args(9), "")
    assert session[Note].all() == (Note("written"),)


def test_lone_surrogate_in_a_result_becomes_a_question_mark() -> None:
    assert once(gives(Rendered("a\ud800b"))).content == "Here.\n\na?b"


# --- Results too long for a request


def bounded(most: int | None, *replies: Reply) -> ScriptedAdapter:
    adapter = scripted(*replies)
    adapter.config = RunConfig(max_result_chars=most)
    return adapter


@given(
    st.integers(1_000, 1_300),
    st.integers(0, 1_500),
    st.integers(0, 1_500),
    st.sampled_from("aü😀\ud800"),
)
def test_result_above_max_result_chars_is_truncated_with_a_note(
    most: int, before: int, after: int, letter: str
) -> None:
    session = Session()
    value = Rendered(letter * before)
    result = ToolResult(message=letter * after, value=value)
    whole = result.content().replace("\ud800", "?")
    adapter = bounded(most, call(("probe", "{}")))
    answer = only_answer(adapter, prompt(tool(lambda params, *, context: result)), session)
    [event] = session[ToolInvoked].all()
    assert (event.content, event.result) == (answer.content, result)
    assert len(answer.content) <= most
    if len(whole) <= most:
        assert answer.content == whole
        return
    shown, note = answer.content.split("\n\n[Cut here: ")
    assert whole.startswith(shown)
    total, missing = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", note)]
    assert (total, total - missing) == (len(whole), len(shown))
    assert note.endswith("Ask for less at once, or for another part, to see the rest.]")


def test_max_result_chars_has_a_default_and_can_be_disabled() -> None:
    most = RunConfig().max_result_chars
    assert most is not None
    for size in (most, 5_000_000):
        huge = tool(lambda params, *, context, size=size: ToolResult[object](message="x" * size))
        calls = call(("probe", "{}"))
        assert len(only_answer(scripted(calls), prompt(huge)).content) == most
        assert len(only_answer(bounded(None, calls), prompt(huge)).content) == size


def test_read_section_text_is_not_truncated() -> None:
    text = "long " * 1_000
    hidden = MarkdownSection(
        title="More",
        key="more",
        template=text,
        summary="More.",
        visibility=SectionVisibility.SUMMARY,
    )
    asked = Prompt(ns="tests", key="long", sections=[hidden])
    answer = only_answer(bounded(1_000, call(("read_section", {"section_key": "more"}))), asked)
    assert text.strip() in answer.content


@pytest.mark.parametrize("bound", [0, -1, 999, "1000", 1e6, True])
@pytest.mark.parametrize("name", ["max_result_chars", "max_argument_chars"])
def test_character_limits_must_be_integers_of_at_least_1000(name: str, bound: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"{name} must (be|not be) .*, got"):
        RunConfig(**{name: bound})


# --- The context


@pytest.mark.claim("TL-30")
def test_each_call_gets_a_new_context_with_the_objects_of_the_evaluation() -> None:
    seen: list[tuple[ToolContext, object, object]] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        seen.append((context, context.session, context.event_bus))
        return ToolResult("ok")

    adapter, session, bus = (
        scripted(call(("probe", "{}"), ("probe", "{}"))),
        Session(),
        InProcessEventBus(),
    )
    asked = prompt(tool(handler))
    rendered = asked.render(session=session)
    adapter.evaluate(rendered, session=session, bus=bus)
    (first, *_), (second, *_) = seen
    assert first is not second
    for context, its_session, its_bus in seen:
        assert its_session is session
        nested = nested_adapter(context)
        assert nested.adapter is adapter
        assert nested.parent.bus is bus
        assert its_bus is bus
        assert context.prompt is rendered.prompt
        assert context.rendered_prompt is rendered
    assert [context.call_id for context, *_ in seen] == ["call_1", "call_2"]


@pytest.mark.claim("C-08")
def test_context_uses_the_session_bus_by_default() -> None:
    seen: list[tuple[ToolContext, object]] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        seen.append((context, context.event_bus))
        return ToolResult("ok")

    adapter, session = scripted(call(("probe", "{}"))), Session()
    adapter.evaluate(prompt(tool(handler)), session=session)
    [(context, its_bus)] = seen
    assert its_bus is session.bus
    assert context.rendered_prompt is not None
    assert [text_of(message) for message in adapter.requests[0].messages] == [
        context.rendered_prompt.text
    ]


@pytest.mark.claim("TL-31")
@pytest.mark.parametrize("external", [False, True])
def test_nested_evaluation_events_are_published_once_to_session_and_bus(
    external: bool,
) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        inner = context.adapter.evaluate(
            prompt(tool(name="inner")),
            session=context.session,
            bus=context.event_bus,
            deadline=context.deadline,
        )
        return ToolResult(inner.text)

    session = Session()
    bus = InProcessEventBus() if external else session.bus
    invoked, executed = recorded(bus, ToolInvoked), recorded(bus, PromptExecuted)
    adapter = ScriptedAdapter(
        [call(("probe", "{}")), call(("inner", "{}")), say("inner done"), say("done")]
    )
    response = adapter.evaluate(prompt(tool(handler)), session=session, bus=bus)
    assert response.text == "done"
    assert [event.name for event in invoked] == ["inner", "probe"]
    assert [event.text for event in executed] == ["inner done", "done"]
    assert list(session[ToolInvoked].all()) == invoked
    assert list(session[PromptExecuted].all()) == executed


def test_failing_nested_evaluation_fails_the_call() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.adapter.evaluate(prompt(), session=context.session)
        raise AssertionError

    broken = PromptEvaluationError("unreachable", phase="request", code="connection")
    adapter = ScriptedAdapter([call(("probe", "{}")), broken, say("done")])
    assert "unreachable" in only_answer(adapter, prompt(tool(handler))).content


def test_nested_evaluation_limit_fails_the_call_and_rolls_back() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("written"))
        context.adapter.evaluate(
            prompt(text="Inner."), session=context.session, budget=Budget(max_calls=0)
        )
        raise AssertionError

    session = Session()
    adapter = scripted(call(("probe", "{}")), say("done"))
    assert adapter.evaluate(prompt(tool(handler), text="Outer."), session=session).text == "done"
    (event,) = session[ToolInvoked].all()
    assert not event.success
    assert "max_calls=0" in event.content
    assert session[Note].all() == ()


def test_tool_validation_error_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        raise ToolValidationError("no such key")

    assert (
        only_answer(scripted(call(("probe", "{}")), say("done")), prompt(tool(handler))).content
        == "no such key"
    )
    assert caplog.records == []


# --- Coroutines and threads

PLACE = ContextVar[str]("PLACE")


@drivers
def test_async_handler_sees_the_context_variables_of_the_caller(
    run: Evaluate,
) -> None:
    async def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        await asyncio.sleep(0)
        return ToolResult(PLACE.get("nowhere"))

    token = PLACE.set("here")
    try:
        response = run(scripted(call(("probe", "{}"))), prompt(tool(handler)), Session())
    finally:
        PLACE.reset(token)
    assert ToolMessage("call_1", "here") in response.transcript


def test_sync_handler_runs_in_a_thread_with_the_callers_context_variables() -> None:
    seen: list[object] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        seen.append((current_thread() is main_thread(), PLACE.get("nowhere")))
        return ToolResult("ok")

    async def main() -> None:
        PLACE.set("here")
        await scripted(call(("probe", "{}"))).evaluate_async(
            prompt(tool(handler)), session=Session()
        )

    asyncio.run(main())
    assert seen == [(False, "here")]


def test_event_loop_continues_while_a_sync_handler_blocks() -> None:
    gate = Gate()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult("opened" if gate.wait(SOON) else "stuck")

    async def main() -> PromptResponse[Any]:
        running = asyncio.create_task(
            scripted(call(("probe", "{}"))).evaluate_async(prompt(tool(handler)), session=Session())
        )
        await asyncio.sleep(0.01)
        gate.set()
        return await running

    assert ToolMessage("call_1", "opened") in asyncio.run(main()).transcript


async def answering(params: Args, *, context: ToolContext) -> ToolResult[object]:
    await asyncio.sleep(0)
    return ToolResult("awaited")


@wraps(answering)
def starts_its_own_loop(params: Args, *, context: ToolContext) -> ToolResult[object]:
    return asyncio.run(answering(params, context=context))


def gives_a_coroutine(params: Args, *, context: ToolContext) -> Any:
    return answering(params, context=context)


class Awaiting:
    async def __call__(self, params: Args, *, context: ToolContext) -> ToolResult[object]:
        return await answering(params, context=context)


@pytest.mark.parametrize("run", [evaluate, evaluate_in_loop])
@pytest.mark.parametrize(
    "handler",
    [
        answering,
        starts_its_own_loop,
        gives_a_coroutine,
        Awaiting(),
        partial(answering),
        partial(gives_a_coroutine),
    ],
    ids=["function", "wrapper", "plain", "object", "partial", "partial of plain"],
)
def test_handler_of_any_form_can_return_a_coroutine(
    run: Evaluate, handler: Callable[..., Any]
) -> None:
    response = run(scripted(call(("probe", "{}"))), prompt(tool(handler)), Session())
    assert ToolMessage("call_1", "awaited") in response.transcript


def test_returned_coroutine_runs_in_the_evaluations_event_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def later() -> ToolResult[object]:
        loops.append(asyncio.get_running_loop())
        return ToolResult("ok")

    def handler(params: Args, *, context: ToolContext) -> Any:
        return later()

    async def main() -> asyncio.AbstractEventLoop:
        await scripted(call(("probe", "{}"))).evaluate_async(
            prompt(tool(handler)), session=Session()
        )
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    assert loops == [loop]


def test_cancellation_in_an_async_handler_propagates_and_rolls_back() -> None:
    session = Session()

    async def main() -> None:
        started = asyncio.Event()

        async def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
            context.session.dispatch(Note("written"))
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

        running = asyncio.create_task(
            scripted(call(("probe", "{}"))).evaluate_async(prompt(tool(handler)), session=session)
        )
        await started.wait()
        assert session[Note].all() == (Note("written"),)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert session[Note].all() == ()


@pytest.mark.parametrize("cancellations", [1, 3])
def test_cancellation_waits_for_a_sync_handler_and_rolls_it_back(cancellations: int) -> None:
    session, started, release = Session(), Gate(), Gate()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        started.set()
        release.wait(SOON)
        context.session.dispatch(Note("late"))
        return ToolResult("ok")

    async def main() -> None:
        running = asyncio.create_task(
            scripted(call(("probe", "{}"))).evaluate_async(prompt(tool(handler)), session=session)
        )
        await asyncio.to_thread(started.wait, SOON)
        for _ in range(cancellations):
            running.cancel()
            await asyncio.sleep(0.01)
        assert not running.done(), (
            "it waits for the handler, whose work could not be undone otherwise"
        )
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert session[Note].all() == ()
    assert session[ToolInvoked].all() == ()


# --- Disclosure


def layered(disclosure: Disclosure) -> Prompt[Any]:
    hidden = MarkdownSection(
        title="More",
        key="more",
        template="The rest.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="late")],
    )
    shown = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool(noting)])
    return Prompt(ns="tests", key="layers", sections=[shown, hidden], disclosure=disclosure)


def noting(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note("noted"))
    return ToolResult("ok")


@pytest.mark.claim("PD-18", "PD-20")
@pytest.mark.parametrize("section_keys", [["nope"], ["more", "nope"], ["task"], []])
def test_open_sections_with_an_invalid_key_fails_and_names_the_keys(
    section_keys: list[str],
) -> None:
    asked = call(("open_sections", {"section_keys": section_keys, "reason": "why"}))
    answer = only_answer(scripted(asked), layered(Disclosure.OPEN))
    assert not answer.success
    assert all(key in answer.content for key in section_keys if key != "more")


@pytest.mark.claim("C-12", "PD-21", "PD-23", "PD-24")
@pytest.mark.parametrize("run", [evaluate, evaluate_in_loop])
def test_expansion_request_propagates_keeps_earlier_calls_and_skips_later_ones(
    run: Evaluate,
) -> None:
    session = Session()
    opening = ("open_sections", {"section_keys": ["more"], "reason": "r" * 300})
    with pytest.raises(VisibilityExpansionRequired) as caught:
        run(
            scripted(call(("probe", {}), opening, ("probe", {}))), layered(Disclosure.OPEN), session
        )
    assert type(caught.value) is VisibilityExpansionRequired
    assert caught.value.__cause__ is None
    assert caught.value.requested_overrides == {("more",): SectionVisibility.FULL}
    assert caught.value.section_keys == ("more",)
    assert len(caught.value.reason) == 256
    assert session[Note].all() == (Note("noted"),)
    names = [event.name for event in session[ToolInvoked].all()]
    assert names == ["probe", "open_sections"]
    event = session[ToolInvoked].all()[-1]
    assert event.requested_sections == ("more",)
    assert event.reason.startswith("rrr")
    assert event.current_visibility_state == {
        ("task",): SectionVisibility.FULL,
        ("more",): SectionVisibility.SUMMARY,
    }


@pytest.mark.claim("C-15", "DT-27", "DT-28")
def test_static_adapter_raises_visibility_expansion_required_on_read_section() -> None:
    adapter = ScriptedAdapter(
        [call(("read_section", {"section_key": "more"}))], dynamic_tools=False
    )
    with pytest.raises(VisibilityExpansionRequired) as caught:
        adapter.evaluate(layered(Disclosure.READ), session=Session())
    assert caught.value.args == ("Section expansion requires restart",)
    assert caught.value.requested_overrides == {("more",): SectionVisibility.FULL}
    assert (caught.value.reason, caught.value.section_keys) == (
        "Adapter does not support dynamic tools",
        ("more",),
    )


@pytest.mark.parametrize("effect", ["at_most_once", "repeatable"])
def test_log_keeps_the_result_only_of_a_call_that_must_not_run_twice(effect: Any) -> None:
    asked, session = prompt(replace(tool(), effect=effect)), Session()
    with asked.resources:
        executor = ToolExecutor(
            prompt=asked,
            rendered=asked.render(),
            adapter=same_adapter(scripted()),
            config=RunConfig(),
            session=session,
            publish=lambda _: None,
            operation=Operation(bus=session.bus, kind="evaluation", name="n"),
        )
        perform(executor.execute(ToolCall("call_1", "probe", "{}")))
    entry = executor.log.entries[-1]
    assert isinstance(entry, Called)
    assert entry.result == (ToolResult("ok") if effect == "at_most_once" else None)


@pytest.mark.claim("DT-26")
def test_run_config_does_not_support_dynamic_tools_by_default() -> None:
    assert RunConfig().supports_dynamic_tools is False


@pytest.mark.claim("C-34", "DT-25")
def test_tool_execution_outcome_is_frozen_and_expanded_tools_defaults_to_empty() -> None:
    outcome: Any = ToolExecutionOutcome("call_1", ToolMessage("call_1", "ok"), success=True)
    assert outcome.expanded_tools == ()
    assert outcome.message.as_dict() == {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
    assert not hasattr(outcome, "__dict__")
    with pytest.raises(AttributeError):
        outcome.success = False
