"""Calls that must not run twice are recognized by tool and arguments, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import ok, tool
from weakincentives.evaluation.earlier_calls import UNKNOWN, EarlierCalls, call_key
from weakincentives.evaluation.logged_run import Rendered
from weakincentives.evaluation.messages import ToolCall, ToolExecutionOutcome, ToolMessage
from weakincentives.evaluation.run_log import Called, Entry

TOOLS = {name: replace(tool(ok, name=name), effect="at_most_once") for name in ("mail", "pay")}
FREE = tool(ok, name="free")
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["mail", "pay", "free"]),
        st.sampled_from(['{"a": 1}', '{"a": 2}', ' {"a":1} ']),
        st.booleans(),
    ),
    max_size=6,
)


def called(number: int, name: str, arguments: str, *, success: bool = True) -> Called:
    call = ToolCall(f"call_{number}", name, arguments)
    answer = ToolMessage(call.call_id, f"answer {number}", success=success)
    outcome = ToolExecutionOutcome(call.call_id, answer, success)
    return Called(f"{number}/call_{number}", call, outcome)


def earlier(entries: Sequence[Entry], unknown: Sequence[ToolCall] = ()) -> EarlierCalls:
    return EarlierCalls(entries, unknown, {**TOOLS, "free": FREE}.get)


def take(calls: EarlierCalls, name: str, a: int) -> str | None:
    call = ToolCall("later", name, f'{{"a": {a}}}')
    params = FREE.parse_params(call.arguments)
    had = calls.has(call, params)
    result = calls.take(call, params)
    assert had is (result is not None)
    return None if result is None else result.message


@given(made=CALLS, from_json=st.booleans())
def test_equal_calls_match_in_order_including_logged_calls(
    made: list[tuple[str, str, bool]], *, from_json: bool
) -> None:
    entries: list[Entry] = [Rendered()]
    for number, (name, arguments, success) in enumerate(made):
        entry = called(number, name, arguments, success=success)
        logged = entry.logged()
        entries.append(logged if from_json else entry)
    calls = earlier([*entries, Rendered(cause="restart")])
    for name in ("mail", "pay", "free"):
        for a in (1, 2):
            found = list(iter(partial(take, calls, name, a), None))
            assert found == [
                f"answer {number}"
                for number, (other, arguments, _) in enumerate(made)
                if (other, str(a) in arguments) == (name, True) and name != "free"
            ]


@given(CALLS)
def test_unrepeated_calls_are_returned_as_messages(
    made: list[tuple[str, str, bool]],
) -> None:
    entries = [called(number, *call[:2]) for number, call in enumerate(made)]
    calls = earlier(entries)
    kept = [entry for entry in entries if entry.call.name != "free"]
    messages = calls.rest()
    assert len(messages) == (len(kept) + 1 if kept else 0)
    assert {*messages[1:]} == {entry.outcome.message for entry in kept}


def test_calls_before_a_compaction_are_not_matched() -> None:
    entries: list[Entry] = [called(1, "pay", '{"a": 1}'), Rendered(cause="compaction")]
    assert take(earlier(entries), "pay", 1) is None


def test_calls_that_did_not_run_are_not_matched() -> None:
    refused = called(1, "pay", '{"a": 1}')._replace(has_run=False)
    assert take(earlier([refused]), "pay", 1) is None


def test_unknown_calls_of_the_conversation_match_but_are_not_in_rest() -> None:
    calls = earlier([], [ToolCall("call_1", "mail", '{"a": 1}')])
    assert take(calls, "mail", 1) == UNKNOWN.message
    calls = earlier([], [ToolCall("call_1", "mail", '{"a": 1}')])
    assert calls.rest() == []


@dataclass(frozen=True)
class Login:
    user: str
    password: str = field(default="", repr=False)


@dataclass(frozen=True)
class Unwritable:
    user: str
    handle: object = None


def key(params: object, arguments: str = "{}") -> str:
    return call_key(ToolCall("call_1", "run", arguments), params)


def test_calls_with_equal_params_have_the_same_key() -> None:
    assert key(Login("ada", "x"), "{}") == key(Login("ada", "x"), "other words")
    assert key(Login("ada", "x")) != key(Login("ada", "y"))  # which the repr does not show
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1}) != key({"a": 1, "b": 3})


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ('{"a": 1, "b": 2}', ' {"b":2,"a":1} ', True),
        ("", "{}", True),
        ('{"a": 1}', '{"a": 2}', False),
        ("no JSON", "no JSON", True),
        ("no JSON", "other", False),
    ],
)
def test_calls_with_unserializable_params_are_compared_by_their_arguments(
    one: str, other: str, *, are_equal: bool
) -> None:
    params = Unwritable("ada", object())
    assert (key(params, one) == key(params, other)) is are_equal
