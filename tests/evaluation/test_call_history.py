"""Records of calls that must not run twice match later calls, and come back from JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives import serde
from weakincentives.evaluation.call_history import (
    CallHistory,
    RecordedCall,
    call_key,
    messages_of,
)
from weakincentives.evaluation.messages import ToolCall
from weakincentives.prompt import ToolResult

type Call = tuple[str, str, ToolResult[Any] | None]

RESULTS = (
    st.builds(ToolResult[Any], st.sampled_from(["sent", "failed"]), success=st.booleans())
    | st.none()
)  # of a call that has not ended
CALLS = st.lists(
    st.tuples(st.sampled_from(["mail", "pay"]), st.sampled_from(["{}", '{"a": 1}']), RESULTS),
    max_size=6,
)


def history_of(calls: Sequence[Call]) -> CallHistory:
    history = CallHistory()
    record_of = history.replay()
    for number, (name, arguments, result) in enumerate(calls):
        record, recorded = record_of(name, arguments)
        assert not recorded
        record.call = ToolCall(f"call_{number}", name, arguments)
        if result is not None:
            record.result = result
    return history


@given(CALLS)
def test_a_history_from_json_reads_and_replays_like_the_one_that_was_written(
    calls: list[Call],
) -> None:
    history, restored = history_of(calls), CallHistory()
    text = serde.dump_json_lossless(tuple[RecordedCall, ...], history.recorded())
    restored.restore(serde.parse_json(tuple[RecordedCall, ...], text))
    assert messages_of(restored.records) == messages_of(history.records)
    assert restored.recorded() == history.recorded()
    read, written = restored.replay(), history.replay()
    for name, arguments, _ in [*calls, *calls]:
        assert read.is_next(name, arguments) == written.is_next(name, arguments)
        (one, was_made), (other, had_been) = read(name, arguments), written(name, arguments)
        assert (one.call, one.result, was_made) == (other.call, other.result, had_been)


def test_calls_that_the_conversation_has_are_not_said_again() -> None:
    history = CallHistory()
    history.replay()("mail", "{}")
    assert messages_of(history.records) == []


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


def test_calls_are_equal_if_their_params_are() -> None:
    assert key(Login("ada", "x"), "{}") == key(Login("ada", "x"), "other words")
    assert key(Login("ada", "x")) != key(Login("ada", "y"))  # which no repr shows
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
def test_where_json_cannot_hold_the_params_calls_are_equal_if_their_arguments_are(
    one: str, other: str, *, are_equal: bool
) -> None:
    params = Unwritable("ada", object())
    assert (key(params, one) == key(params, other)) is are_equal
