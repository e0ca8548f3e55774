"""The entries of a stored run give the same events as were published while it ran."""

from typing import Any

from hypothesis import given

from support.agents import Note
from support.cut_runs import Process, law, message_of
from support.run_trees import Shape, Tree, outside, trees
from weakincentives.contrib.durable import MemoryLogTable, durable, execute_run, to_input
from weakincentives.evaluation.stored_log import read_rows
from weakincentives.inspection.event_log import Record, event_record
from weakincentives.inspection.logged_entries import records_of
from weakincentives.inspection.run_timeline import read_run
from weakincentives.runtime.events import Event
from weakincentives.runtime.session import Session

TOOLS = ("note", "fail", "look", "write", "delegate", "pay")
FEATURES = ("repair", "accept", "failure", "compaction", "fallback")

TOLD = {
    "PromptRendered": ("ns", "key", "text", "tool_names"),
    "ProviderCalled": ("turn", "usage", "tool_calls", "text", "cost"),
    "ToolInvoked": ("name", "call_id", "content", "arguments", "prompt_name"),
    "VisibilityExpanded": ("section_keys", "reason"),
    "Compacted": ("ns", "key"),
    "PromptExecuted": ("prompt_name", "text", "turns", "usage"),
}
type Told = dict[str, list[tuple[Any, ...]]]  # by run


def told(records: list[Record]) -> Told:
    runs: Told = {}
    for record in records:
        if (name := str(record["event"])) in TOLD:
            values = tuple([record[field] for field in TOLD[name]])
            runs.setdefault(str(record["run_path"]), []).append((name, *values))
    return runs


def play(tree: Tree) -> tuple[list[Record], list[Record]]:
    """Returns a durable run's events, as published and as read from its rows."""
    published, table = list[Record](), MemoryLogTable()
    with outside() as out:
        process = Process(tree, out)

        def session(run_id: str) -> Session:
            made = Session(session_id=run_id, content=out.content)
            made.bus.subscribe(Event, lambda event: published.append(event_record(event)))
            return made

        agent = durable(process.loop, lambda: process.prompt, types=[Note], session=session)
        execute_run(agent, to_input(message=message_of(tree, 0)), table, "run")
        process.end()
    return published, records_of(read_rows(sorted(table.rows["run"])), "run")


@law
@given(trees(Shape(TOOLS, FEATURES)))
def test_stored_rows_yield_the_published_events(tree: Tree) -> None:
    published, stored = play(tree)
    assert told(stored) == told(published)


@law
@given(trees(Shape(("open", "note", "delegate"), certain=("restart",), always=(("open",),))))
def test_stored_rows_yield_the_events_of_restarts(tree: Tree) -> None:
    published, stored = play(tree)
    assert told(stored) == told(published)
    assert len(read_run(stored).evaluations) == len(read_run(published).evaluations)
