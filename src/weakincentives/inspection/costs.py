"""Calculates each section's and tool's cost in logged runs, and cheaper ways to show a section.

The costs are derived only from the records that `event_log` writes; all sizes are in characters.
Every request sends the visible sections. A section that the model has read stays in the
conversation, so every later request sends it again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..displays import count_of
from .event_log import Record
from .run_timeline import RunEvaluation, RunTurn, is_inside, read_run

__all__ = ["Advice", "SectionCost", "ToolCost", "section_costs"]

_ASSUMED_SUMMARY = 200  # characters, including the line that explains how to open it


@dataclass(frozen=True, slots=True)
class ToolCost:
    """The cost of one tool: `requests` that included it, characters `sent`, and calls."""

    name: str
    requests: int
    sent: int
    calls: int


@dataclass(frozen=True, slots=True)
class Advice:
    """The visibility that would have cost less for the same requests, and the calculation."""

    visibility: Literal["FULL", "SUMMARY"]
    arithmetic: str


@dataclass(frozen=True, slots=True)
class SectionCost:
    """A section's cost: `requests` that included it, characters `sent`, and times it was `opened`.

    `advice` is `None` if every run started with the cheapest visibility, or if the log does not
    contain enough information: it does not show whether the model needed a text without tools, or
    how the author shows a section inside a summarized one.
    """

    prompt: str
    path: str
    requests: int
    sent: int
    opened: int
    tools: tuple[ToolCost, ...]
    advice: Advice | None


def section_costs(records: Iterable[Record]) -> tuple[SectionCost, ...]:
    """Adds up each section's cost in logged runs, in order of appearance.

    Runs from different sessions may overlap.
    """
    totals: dict[tuple[str, str], _Total] = {}
    counted: dict[RunEvaluation, _Evaluation] = {}
    for evaluation in _with_nested(read_run(records).evaluations):
        record, restarted = evaluation.prompt.record, evaluation.restarted
        if isinstance(record.get("sections"), list):
            before = counted.get(restarted) if restarted else None
            counted[evaluation] = _Evaluation(record, before, totals)
            for turn in evaluation.turns:
                counted[evaluation].add(turn)
    return tuple(total.cost() for total in totals.values())


def _with_nested(evaluations: Iterable[RunEvaluation]) -> Iterator[RunEvaluation]:
    """Yields each evaluation followed by its nested evaluations, in order of appearance."""
    for evaluation in evaluations:
        yield evaluation
        for step in evaluation.all_steps:
            yield from _with_nested(step.evaluations)
        yield from _with_nested(evaluation.unfinished)


@dataclass(slots=True)
class _Total:
    """One section's totals; `request_sizes` is the total size of the requests that sent it."""

    prompt: str
    path: str
    expanded_size: int = 0
    summary: int | None = None
    is_need_logged: bool = False  # the section was opened or its tools were called
    initial: set[str] = field(default_factory=set[str])  # the evaluations' initial visibilities
    requests: int = 0
    sent: int = 0
    request_sizes: int = 0
    opened: int = 0
    needed: int = 0
    requests_in_need: int = 0
    tool_requests: Counter[str] = field(default_factory=Counter[str])
    tool_sent: Counter[str] = field(default_factory=Counter[str])
    tool_calls: Counter[str] = field(default_factory=Counter[str])

    def cost(self) -> SectionCost:
        tools = tuple(
            ToolCost(name, requests, self.tool_sent[name], self.tool_calls[name])
            for name, requests in self.tool_requests.items()
        )
        sums = self.requests, self.sent, self.opened
        return SectionCost(self.prompt, self.path, *sums, tools, self._advice())

    def _advice(self) -> Advice | None:
        if not (self.requests and self.is_need_logged and self.initial):
            return None
        request = self.request_sizes // self.requests
        size = _ASSUMED_SUMMARY if self.summary is None else self.summary
        opened, requests = max(self.opened, self.needed), self.requests - self.opened
        expanded, in_need = self.expanded_size, self.requests_in_need
        full = requests * expanded
        summary = requests * size + opened * request + in_need * expanded
        visibility: Literal["FULL", "SUMMARY"] = "SUMMARY" if summary < full else "FULL"
        if self.initial == {visibility.lower()}:
            return None
        assumed = " (assumed)" * (self.summary is None)
        return Advice(
            visibility,
            f"FULL: {count_of(requests, 'request')} x {expanded:,} = {full:,}. "
            f"SUMMARY: {requests:,} x {size:,}{assumed} + to open it {opened:,} x {request:,} "
            f"+ open {in_need:,} x {expanded:,} = {summary:,}",
        )


class _Evaluation:
    """An evaluation in a log; after a restart, it continues the evaluation `before`."""

    def __init__(
        self, record: Record, before: "_Evaluation | None", totals: dict[tuple[str, str], _Total]
    ) -> None:
        self.needed: set[str] = before.needed if before else set()
        self._read: Counter[str] = Counter()  # characters in the conversation, by section
        self._sections: dict[str, Record] = {row["path"]: row for row in record["sections"]}
        prompt = f"{record['ns']}/{record['key']}"
        self._totals = {
            path: totals.setdefault((prompt, path), _Total(prompt, path)) for path in self._sections
        }
        for path, total in self._totals.items():
            section = self._sections[path]
            subtree = [row for key, row in self._sections.items() if is_inside(key, path)]
            visibility = section["visibility"]
            if before is None and visibility != "hidden":
                total.initial.add(visibility)
            total.expanded_size, total.summary = section["expanded_size"], section["summary"]
            total.is_need_logged |= visibility == "summary" or any(row["tools"] for row in subtree)

    def add(self, turn: RunTurn) -> None:
        """Adds the costs of one turn's requests and calls."""
        for _ in turn.requests:
            self._add_request(turn.tools)
        for step in turn.steps:
            if step.event == "ToolInvoked":
                self._add_call(step.record)

    def _add_request(self, tools: frozenset[str]) -> None:
        shown = Counter({path: row["shown"] for path, row in self._sections.items()}) + self._read
        request = shown.total()
        for path, row in self._sections.items():
            total = self._totals[path]
            for name, size in row["tools"].items():
                if name in tools:
                    request += size
                    total.tool_requests[name] += 1
                    total.tool_sent[name] += size
        for path, size in shown.items():
            total = self._totals[path]
            total.requests += 1
            total.sent += size
            total.request_sizes += request
            total.requests_in_need += path in self.needed

    def _add_call(self, record: Record) -> None:
        name = record["name"]
        opens = record["result"]["success"] and name != "close_section"
        for path, row in self._sections.items():
            if opens and path in record["requested_sections"]:
                self._totals[path].opened += 1
                self._mark_needed(path)
                if name == "read_section":
                    self._read[path] += len(record["content"])
            elif name in row["tools"]:
                self._totals[path].tool_calls[name] += 1
                self._mark_needed(path)

    def _mark_needed(self, path: str) -> None:
        """Marks the section and its parents as needed from this point on."""
        for around in self._sections.keys() - self.needed:
            if is_inside(path, around):
                self.needed.add(around)
                self._totals[around].needed += 1
