"""The table of combinations, read from `tests/combinations.toml`: as text, and as the runs of each
row.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from support.cut_runs import Outcome, play
from support.run_trees import Shape, outside, seeded
from support.sizes import FULL

__all__ = ["SHAPES", "TABLE", "Row", "oracle", "read_table", "runs", "table_lines"]

COLUMNS = ("adapter", "MainLoop", "Chat", "SQLite", "PostgreSQL")


@dataclass(frozen=True)
class Row:
    """A feature of a run; `empty` and `fault` give reasons by entry point."""

    name: str
    empty: Mapping[str, str] = field(default_factory=dict[str, str])
    fault: Mapping[str, str] = field(default_factory=dict[str, str])


def read_table(path: Path = Path(__file__).parents[1] / "combinations.toml") -> Sequence[Row]:
    return [Row(name, **cells) for name, cells in tomllib.loads(path.read_text()).items()]


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the table with a mark for each cell, and then the reasons for the marks."""
    width = max(len(row.name) for row in rows)
    yield f"{'each by evaluate and stream, sync and async':{width}}  {'  '.join(COLUMNS)}"
    for row in rows:
        marks = [
            "empty" if column in row.empty else "fault" if column in row.fault else "ok"
            for column in COLUMNS
        ]
        cells = [f"{mark:{len(column)}}" for mark, column in zip(marks, COLUMNS, strict=True)]
        yield f"{row.name:{width}}  {'  '.join(cells)}".rstrip()
    for row in rows:
        for kind, reasons in (("empty", row.empty), ("fault", row.fault)):
            for reason in dict.fromkeys(reasons.values()):
                columns = ", ".join(column for column in reasons if reasons[column] == reason)
                yield f"{row.name}, {columns}, {kind}: {reason}"


ASKED = (("ask",),)
SECTIONS = ("read", "open", "close", "keep", "note", "ask")
NESTED = Shape(("note", "write", "look", "fail", "pay", "delegate"), always=(("ask", "delegate"),))
SHAPES = {
    "tools in order": Shape(("note", "write", "look", "fail"), always=ASKED),
    "tools in parallel": Shape(
        ("note", "write", "look", "fail"), always=(("ask", "note", "look"),), certain=("parallel",)
    ),
    "sections by injection": Shape(SECTIONS, always=(("ask", "open", "keep"),)),
    "sections by restart": Shape(
        SECTIONS, always=(("ask", "ask", "open"),), certain=("restart",), most_turns=4
    ),
    "chat of several turns": Shape(("note", "write", "ask"), always=ASKED, certain=("chat",)),
    "compaction": Shape(
        ("note", "write"), always=(("note",) * 3 + ("ask",),), certain=("chat", "compaction")
    ),
    "fallback": Shape(("note", "fail"), always=ASKED, certain=("fallback",)),
    "repair": Shape(("note", "write"), always=ASKED, certain=("repair",)),
    "accept": Shape(("note", "write"), always=ASKED, certain=("accept",)),
    "at most once": Shape(("note", "pay"), always=(("ask", "pay"),)),
    "nested run": NESTED,
    "nested in parallel": Shape(
        ("note", "pay", "fail", "delegate"),
        always=(("delegate", "delegate"), ("ask",)),
        certain=("parallel",),
        most_turns=2,
    ),
    "approval by arguments": Shape(("note", "pay", "ask"), always=(("ask", "ask"),)),
    "approval by effects": Shape(("note", "write", "show"), always=(("show", "show"),)),
    "approval inside a nested run": replace(NESTED, always=(("delegate",), ("ask", "show"))),
    "media": Shape(("note", "look"), always=(("ask", "look"),), certain=("media",)),
    "MCP": Shape(
        ("note", "mcp_echo", "mcp_append"), always=(("mcp_append", "ask"),), certain=("mcp",)
    ),
    "skills": Shape(("note", "read_skill"), always=(("read_skill", "ask"),), certain=("skill",)),
}
SLOW = {"MCP"}  # each run starts a server
TABLE = read_table()


def runs(row: str) -> range:
    return range(1 if row in SLOW else 8 if FULL else 2)


@cache
def oracle(row: str, seed: int) -> Outcome:
    with outside() as out:
        return play(seeded(SHAPES[row], seed), out)
