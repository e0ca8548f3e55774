"""Runs the workloads and writes their table to RESULTS.md: `python -m benchmarks [W3 W7 …]`.

With names of workloads it only prints the table.
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
    "W15": w15_log,
}
# Why a target is missed, by the beginning of a row's workload and case.
REASONS = {
    "W2 render, S = 10,": "A render costs 6 µs once, however many sections there are; of ten "
    "sections that is half.",
    "W3 run": "A call passes approval, a transaction, three events with their slices, and begins "
    "the log of the runs inside it, which could wait for people. One call alone bears the whole "
    "evaluation besides: session, prompt, render, executor and five events, about 200 µs.",
    "W10 ": "Each request has a tool call. The engine takes 66 µs for both when it runs alone, and "
    "126 here, since the SDK's 600 µs in between empty the processor's caches: a tool call by hand "
    "takes 10 and 37. The target leaves 31 µs a request. The rest are 30 µs for a reply that is "
    "read as a stream, so that its size is bounded, and 40 to write the request and to read the "
    "answer; a streamed one has a dozen events besides, whose shapes are checked. What a run holds "
    "at most is its session's log of 21 events, its own log of 21 entries, the values of its "
    "results (11 kB, which the floor drops) and the transcript beside the request's items. Over "
    "aiohttp 200 runs cost less than the floor.",
    "W15 an entry": "Pydantic writes an entry in 6 µs. The rest compares the session with that of "
    "the entry before, checks that the run is still the newest attempt, and hands the entry from "
    "the engine to what does I/O.",
    "W15 run resumed": "Reading an entry, of which a call has two, takes 4 µs, as long as the "
    "floor. The rest counts what the run has used, gives each entry to the inner loop and makes "
    "the last request.",
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
    heading = "\nWhy the targets that are missed are:\n\n"
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

`make bench` writes this page: medians of CPU time, candidates taking turns. A floor is the least
that plain Python needs for the same work; `benchmarks/` has the code, and checks that both return
the same. W6 counts instead: its floor is a prompt with the right sections open from the start, and
fresh characters are those after the part that a request shares with the one before.

Other libraries stand in PEERS.md.

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
