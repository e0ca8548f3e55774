"""A resource is told when a transaction no longer needs its snapshot, so that a real database does
not keep a SAVEPOINT open.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Args, Note, only_answer, prompt, tool
from support.database import Database
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.resources import Binding, ResourceContext, ResourceRegistry
from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import (
    create_snapshot,
    release_snapshot,
    restore_snapshot,
    tool_transaction,
)
from weakincentives.testing import ScriptedAdapter, call, say


def blocks(database: Database, session: Session, steps: list[Any]) -> list[str]:
    """Runs nested blocks; returns the expected content."""
    committed: list[str] = []
    for step in steps:
        if isinstance(step, str):
            database.add(step)
            committed.append(step)
            continue
        inner, ending = step
        try:
            with tool_transaction(session, (database,)) as transaction:
                done = blocks(database, session, inner)
                if ending == "roll back":
                    transaction.rollback()
                    done = []
                if ending == "raise":
                    raise ValueError("no")
            committed += done
        except ValueError:
            pass
    return committed


STEPS = st.recursive(
    st.lists(st.text("ab", min_size=1, max_size=2), max_size=3),
    lambda inner: st.lists(
        st.text("ab", min_size=1, max_size=2)
        | st.tuples(inner, st.sampled_from(["commit", "roll back", "raise"])),
        max_size=4,
    ),
    max_leaves=8,
)


@given(STEPS)
def test_nested_transactions_on_a_database_leave_no_open_savepoint(
    steps: list[Any],
) -> None:
    database = Database()
    committed = blocks(database, Session(), steps)
    assert (database.notes, database.connection.in_transaction) == (committed, False)


@pytest.mark.parametrize("ending", [True, False, ValueError])
@pytest.mark.parametrize("eager", [False, True])
def test_tool_call_commits_or_rolls_back_the_database_even_on_first_use(
    ending: Any, eager: bool
) -> None:
    database = Database()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Database).add("written")
        if ending is ValueError:
            raise ValueError("no")
        return ToolResult("ok", success=ending)

    registry = ResourceRegistry.of(Binding(Database, lambda _: database, eager=eager))
    asked = prompt(tool(handler)).bind(resources=registry)
    ScriptedAdapter([call(("probe", {})), call(("probe", {})), say("x")]).evaluate(
        asked, session=Session()
    )
    assert database.notes == (["written"] * 2 if ending is True else [])
    assert not database.connection.in_transaction


def test_failing_release_fails_the_call_and_rolls_back_everything() -> None:
    database, session = Database(), Session()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("written"))
        context.resources.get(Database).add("written", "no such kind")  # fails at the commit
        return ToolResult("ok")

    asked = prompt(tool(handler)).bind(resources={Database: database})
    answer = only_answer(ScriptedAdapter([call(("probe", {})), say("x")]), asked, session)
    assert (answer.success, answer.content) == (False, "FOREIGN KEY constraint failed")
    assert (session[Note].all(), database.notes, database.connection.in_transaction) == (
        (),
        [],
        False,
    )


def test_snapshots_are_released_once_newest_first_after_restoring() -> None:
    log: list[tuple[str, str]] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def snapshot(self) -> str:
            return self.name

        def restore(self, snapshot: str, /) -> None:
            log.append(("restore", snapshot))

        def release(self, snapshot: str, /) -> None:
            log.append(("release", snapshot))

    parts = (Part("first"), Part("second"))
    with tool_transaction(Session(), parts):
        assert log == []
    assert log == [("release", "second"), ("release", "first")]
    log.clear()
    snapshot = create_snapshot(Session(), parts)
    restore_snapshot(snapshot)
    release_snapshot(snapshot)
    assert log == [(what, name) for what in ("restore", "release") for name in ("second", "first")]


def test_failing_release_after_a_rollback_is_logged_and_the_block_raises_its_own_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck:
        def snapshot(self) -> None: ...

        def restore(self, snapshot: None, /) -> None: ...

        def release(self, snapshot: None, /) -> None:
            raise OSError("disk on fire")

    database = Database()
    with (
        pytest.raises(ZeroDivisionError),
        tool_transaction(Session(), (database, Stuck()), tag="pay"),
    ):
        raise ZeroDivisionError
    assert not database.connection.in_transaction
    [entry] = caplog.records
    assert (entry.message, vars(entry)["part"], vars(entry)["tag"]) == (
        "Release failed",
        "Stuck",
        "pay",
    )


def test_failing_snapshot_releases_the_other_snapshots() -> None:
    class Shy:
        def snapshot(self) -> Any:
            raise ValueError("not now")

        def restore(self, snapshot: Any, /) -> None: ...

    database = Database()
    with pytest.raises(ValueError, match="not now"):
        create_snapshot(Session(), (database, Shy()))
    assert not database.connection.in_transaction


def test_resource_created_in_nested_transactions_is_rolled_back_with_the_outer() -> None:
    database = Database()
    with ResourceContext(
        ResourceRegistry.of(Binding(Database, lambda _: database, owned=False))
    ) as resources:
        session = Session()
        with tool_transaction(session, resources) as outer:
            with tool_transaction(session, resources):
                resources.get(Database).add("dropped")
            outer.rollback()
        with tool_transaction(session, resources):
            resources.get(Database).add("kept")
    assert (database.notes, database.connection.in_transaction) == (["kept"], False)
