"""Runs the workloads and writes their table to RESULTS.md: `python -m benchmarks [W3 W7 …]`.

With workload names, it only prints the table.
"""

import os
import platform
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import (
    w1_import,
    w2_render,
    w2b_construct,
    w3_tool_calls,
    w4_session,
    w5_transactions,
    w6_disclosure,
    w7_serde,
    w8_memory,
    w9_files,
    w10_agents,
    w11_mcp,
    w12_chat,
    w14_evals,
    w15_log,
)
from benchmarks.measure import Row

RESULTS = Path(__file__).with_name("RESULTS.md")
WORKLOADS = {
    "W1": w1_import,
    "W2": w2_render,
    "W2b": w2b_construct,
    "W3": w3_tool_calls,
    "W4": w4_session,
    "W5": w5_transactions,  # W4b too
    "W6": w6_disclosure,
    "W7": w7_serde,
    "W8": w8_memory,
    "W9": w9_files,
    "W10": w10_agents,
    "W11": w11_mcp,
    "W12": w12_chat,
    "W14": w14_evals,
    "W15": w15_log,
}
# Why a target is missed, keyed by the start of a row's workload and case.
REASONS = {
    "W1 ": "More than a third of what the prompt package adds is the creation of 23 dataclasses, "
    "whose methods the standard library compiles again in each process (a frozen slotted dataclass "
    "costs seven times as much as a named tuple). Another quarter is the import of typing.",
    "W2 render, S = 10,": "A render has a fixed cost of 6 µs, however many sections there are; for "
    "ten sections, that is half.",
    "W3 run": "A call goes through approval, a transaction and three events with their slices, and "
    "starts the log of its nested runs, any of which could be suspended. A single call also bears "
    "the cost of the whole evaluation: session, prompt, render, executor and five events, about "
    "200 µs.",
    "W10 ": "Each request comes with a tool call. The engine takes 66 µs for both when nothing "
    "else runs, and 126 µs here, because the SDK's 600 µs in between empty the processor's caches: "
    "a tool call by hand takes 10 and 37 µs. The target leaves 31 µs per request. The rest is "
    "30 µs for a reply that is read as a stream, so that its size can be limited, and 40 µs to "
    "write the request and read the answer; a streamed answer also has a dozen events, whose "
    "shapes are checked. At its peak, a run keeps its session's log of 21 events, its own log of "
    "21 entries, the values of its results (11 kB, which the floor drops), and the transcript in "
    "addition to the request's items. Over aiohttp, 200 runs cost less than the floor.",
    "W14 a case with": "In addition to the 5,950 Python calls of a run with six requests, a case "
    "makes 756, and the target leaves 180: for the log and the usage as evaluators see them, the "
    "key and the prompt, the pace and the budget, the end of the log and the scores.",
    "W15 an entry": "Pydantic writes an entry in 6 µs. The rest compares the session with that of "
    "the preceding entry, checks that the run is still the newest attempt, and hands the entry "
    "from the engine to the code that does I/O.",
    "W15 run resumed": "Reading an entry takes 4 µs, as long as the floor, and each call has two. "
    "The rest adds up the run's usage, passes each entry to the inner loop and builds the last "
    "request.",
}
HEAD = ("", "case", "floor", "ours", "judged", "target", "met")
FORMATS = {"ratio": "\N{MULTIPLICATION SIGN}{:.2f}", "difference": "+{:.2f}", "value": "{:.2f}"}


def cells(row: Row) -> Iterator[str]:
    peers = "".join(
        f"; {name} {costs:.2f}"
        for name, costs in row.costs.items()
        if name not in {"ours", "floor"}
    )
    yield row.workload
    yield f"{row.case} ({row.unit}{peers})"
    yield f"{row.costs['floor']:.2f}" if "floor" in row.costs else ""
    yield f"{row.costs['ours']:.2f}"
    yield FORMATS[row.compare].format(row.figure)
    yield f"≤ {FORMATS[row.compare].format(row.target)}"
    yield "yes" if row.is_met else "**no**"


def table(rows: Iterable[Row]) -> str:
    """Returns the rows as a Markdown table with aligned columns."""
    lines = [HEAD, *(tuple(cells(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    return "\n".join(
        [texts[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *texts[1:]]
    )


def reasons(rows: Iterable[Row]) -> str:
    """Returns the reasons for the targets that are missed."""
    missed = [f"{row.workload} {row.case}" for row in rows if not row.is_met]
    reasons = [
        f"- {key.strip(' ,')}: {reason}\n"
        for key, reason in REASONS.items()
        if any(case.startswith(key) for case in missed)
    ]
    heading = "\nWhy some targets are missed:\n\n"
    return heading + "".join(reasons) if reasons else ""


def versions() -> str:
    versions: list[str] = []
    for name in ("weakincentives", "pydantic", "jinja2", "msgspec"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} not installed")
    return ", ".join(versions)


def main(names: list[str]) -> None:
    rows: list[Row] = []
    for name, workload in WORKLOADS.items():
        if not names or name in names:
            print(f"{name} …", file=sys.stderr, flush=True)
            rows += workload.rows()
    text = f"""# What it costs

`make bench` writes this page. Times are medians of CPU time, and the candidates take turns. A floor
is the least that plain Python needs for the same work; `benchmarks/` contains the code, and checks
that both return the same results. W6 counts characters instead: its floor is a prompt with the
right sections open from the start, and fresh characters are those after the part that a request
shares with the preceding one.

PEERS.md compares other libraries.

{datetime.now(UTC):%Y-%m-%d}, {platform.python_implementation()} {platform.python_version()}, \
{platform.system()} \
{platform.machine()}, {os.cpu_count()} cores; {versions()}.

{table(rows)}
{reasons(rows)}"""
    print(text)
    if not names:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
