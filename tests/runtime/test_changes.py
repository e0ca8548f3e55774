"""The changes of a tool call: differences of state and diffs of files, computed only on request."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.inspection.event_log import write_events
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.differences import json_differences, state_differences
from weakincentives.runtime.transactions import create_snapshot, tool_transaction
from weakincentives.serde import Json
from weakincentives.testing import ScriptedAdapter, call, say

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


def apply(value: Any, differences: list[Any]) -> Any:
    for difference in reversed(differences):  # so that lists lose their last items first
        *path, last = difference["path"] or [None]
        if last is None:
            value = difference["after"]
            continue
        target = value
        for key in path:
            target = target[key]
        if "after" not in difference:
            del target[last]
        elif "before" in difference or isinstance(target, dict):
            target[last] = difference["after"]
        else:
            target.insert(min(len(target), last), difference["after"])
    return value


@given(JSON, JSON)
def test_json_differences_transform_one_value_into_the_other(before: Json, after: Json) -> None:
    differences = [*json_differences(before, after, [])]
    additions = [each for each in differences if "before" not in each]
    others = [each for each in differences if "before" in each]
    assert apply(before, [*additions[::-1], *others]) == after
    assert not [*json_differences(after, after, [])]


@pytest.mark.parametrize(("empty", "key"), [([], 0), ({}, "key")])
def test_difference_of_an_empty_value_is_the_path_of_the_added_one(empty: Json, key: Json) -> None:
    full: Json = [1] if isinstance(empty, list) else {"key": 1}
    assert [*json_differences(empty, full, [])] == [{"path": [key], "after": 1}]
    assert [*json_differences(full, empty, [])] == [{"path": [key], "before": 1}]


@dataclass(frozen=True)
class Booking:
    name: str
    seats: int = 1


def test_state_differences_distinguish_appended_replaced_and_removed_values() -> None:
    session, ann, bob = Session(), Booking("Ann"), Booking("Bob")
    session[Booking].seed(ann, bob)
    before = session.snapshot()
    session[Booking].append(Booking("Cem"))
    name = f"{__name__}:Booking"
    added = {"path": [2], "after": {"name": "Cem", "seats": 1}}
    assert state_differences(before, session.snapshot()) == {name: [added]}
    session[Booking].seed(Booking("Ann", 2))
    assert state_differences(before, session.snapshot()) == {
        name: [
            {"path": [0, "seats"], "before": 1, "after": 2},
            {"path": [1], "before": {"name": "Bob", "seats": 1}},
        ]
    }
    session[Booking].seed(ann, bob)
    assert state_differences(before, session.snapshot()) == {}


class Converted:
    """A value that JSON cannot represent, and that counts how often it is read."""

    count = 0

    def __repr__(self) -> str:
        Converted.count += 1
        return "<converted>"


def test_unchanged_values_of_a_long_slice_are_not_converted() -> None:
    session, old = Session(), Converted()
    session[Converted].seed(*[old] * 10_000)
    before = session.snapshot()
    Converted.count = 0
    session[Converted].append(Converted())
    session[Converted].seed(*session[Converted], Converted())
    [differences] = state_differences(before, session.snapshot()).values()
    assert differences == [
        {"path": [10_000], "after": {"$repr": "<converted>"}},
        {"path": [10_001], "after": {"$repr": "<converted>"}},
    ]
    assert Converted.count == 2


@pytest.fixture(params=["memory", "host", "fork"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    memory = InMemoryFilesystem()
    return {
        "memory": lambda: memory,
        "host": lambda: HostFilesystem(tmp_path),
        "fork": memory.fork,
    }[request.param]()


def test_changes_compare_files_with_their_state_at_the_snapshot(files: Filesystem) -> None:
    files.write_text("kept/a.txt", "one\ntwo\n")
    files.write_text("old/b.txt", "b\n")
    files.write_text("c.txt", "c\n")
    files.write_bytes("image", b"\0" * 10)
    snapshot = create_snapshot(Session(), [files])
    with tool_transaction(Session(), [files]) as transaction:
        files.write_text("kept/a.txt", "one\n2\n")
        inner = files.snapshot()
        files.write_text("kept/a.txt", "one\n2\n3\n")
        files.delete("old", recursive=True)
        files.rename("c.txt", "d.txt")
        files.write_bytes("image", b"\0" * 1_500)
        files.write_text("new.txt", "new\n")
        files.write_text("gone.txt", "gone\n")
        files.delete("gone.txt")
        changes = transaction.changes()
        transaction.rollback()
    assert list(changes) == ["files"]
    assert changes["files"].pop("image") == "10 bytes -> 1,500 bytes"
    assert {path: str(text).split("\n")[3:] for path, text in changes["files"].items()} == {
        "kept/a.txt": [" one", "-two", "+2", "+3"],
        "old/b.txt": ["-b"],
        "c.txt": ["-c"],
        "d.txt": ["+c"],
        "new.txt": ["+new"],
    }
    assert str(changes["files"]["new.txt"]).startswith("--- /dev/null\n+++ new.txt\n@@ ")
    assert inner is not None
    assert snapshot.parts[-1][0].changes_since(snapshot.parts[-1][1]) == {"files": {}}  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] - files have it


def test_large_text_is_compared_only_by_size() -> None:
    files = InMemoryFilesystem()
    files.write_text("a", "a\n" * 200_000)
    snapshot = files.snapshot()
    files.write_text("a", "b\n" * 200_000)
    assert files.changes_since(snapshot) == {"files": {"a": "400,000 bytes -> 400,000 bytes"}}


@dataclass(frozen=True)
class Order:
    number: str


def book(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Books."""
    context.session[Booking].append(Booking(params.number))
    context.resources.get(Filesystem).write_text("bill.txt", f"{params.number}\n")
    if params.number == "full":
        raise LookupError("no seats")
    return ToolResult(message="Booked.", success=params.number != "late")


PROMPT = PromptTemplate(
    ns="shop",
    key="book",
    sections=[
        MarkdownSection(title="Task", template="Help.", tools=[Tool(name="book", handler=book)])
    ],
)


def invoked(watch: Callable[[Session], object]) -> list[ToolInvoked]:
    session = Session()
    watch(session)
    calls = [call(("book", {"number": number})) for number in ("A-7", "full", "late")]
    files = Binding(Filesystem, lambda _: InMemoryFilesystem())
    prompt = PROMPT.bind(resources=ResourceRegistry((files,)))
    ScriptedAdapter([*calls, say("Done.")]).evaluate(prompt, session=session)
    assert len(session[Booking]) == 1
    return [*session[ToolInvoked]]


def test_event_log_contains_the_changes_of_each_call_even_if_rolled_back() -> None:
    events = invoked(lambda session: write_events(session.bus, io.StringIO()))
    assert [event.success for event in events] == [True, False, False]
    for event, number, index in zip(events, ("A-7", "full", "late"), (0, 1, 1), strict=True):
        assert event.changes["state"] == {
            f"{__name__}:Booking": [{"path": [index], "after": {"name": number, "seats": 1}}]
        }
        assert f"+{number}" in str(event.changes["files"]["bill.txt"])


def test_changes_are_not_computed_without_an_event_log() -> None:
    def stopped(session: Session) -> None:
        write_events(session.bus, io.StringIO())()

    for watch in (lambda _: None, stopped):
        assert [event.changes for event in invoked(watch)] == [{}, {}, {}]


class Broken:
    """A resource that cannot report its changes."""

    def snapshot(self) -> None: ...

    def restore(self, snapshot: None, /) -> None: ...

    def changes_since(self, snapshot: None, /) -> dict[str, dict[str, Json]]:
        raise OSError("not now")


def test_failing_changes_since_does_not_hide_other_changes() -> None:
    session = Session()
    with tool_transaction(session, [Broken()]) as transaction:
        session.dispatch("a note")
        assert transaction.changes() == {
            "state": {"builtins:str": [{"path": [0], "after": "a note"}]}
        }
    assert transaction.changes() == {}


class Plain:
    """A resource that does not describe its changes."""

    def snapshot(self) -> None: ...

    def restore(self, snapshot: None, /) -> None: ...


def test_changes_omit_only_the_resource_that_does_not_describe_them() -> None:
    files = InMemoryFilesystem()
    with tool_transaction(Session(), [Plain(), files]) as transaction:
        files.write_text("bill.txt", "A-7\n")
        assert list(transaction.changes()["files"]) == ["bill.txt"]
