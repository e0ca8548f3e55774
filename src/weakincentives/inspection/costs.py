"""What each section and tool of a prompt cost over logged runs, and which way to show a section
would have cost less.

Read from the records of `event_log` alone; all sizes are characters. A section is sent with every
request, and what was read of it stays in the conversation, so every later request carries that too.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from .event_log import LoggedEvaluation, Record, RunningEvaluations

__all__ = ["Advice", "SectionCost", "ToolCost", "ledger"]

_SHORT_SUMMARY = 200  # with the line below it that says how to open the section


@dataclass(frozen=True, slots=True)
class ToolCost:
    """One tool: the `requests` that carried it, characters of its declaration `sent` in them,
    `calls` by the model.
    """

    name: str
    requests: int
    sent: int
    calls: int


@dataclass(frozen=True, slots=True)
class Advice:
    """The way to show a section that would have cost less over the same requests, and the
    arithmetic.
    """

    visibility: Literal["FULL", "SUMMARY"]
    arithmetic: str


@dataclass(frozen=True, slots=True)
class SectionCost:
    """One section of one prompt: the `requests` that carried it, characters `sent` in them, how
    often it was `opened`.

    `advice` is `None` where every run began with the section shown so already, and where a log
    cannot tell: nobody sees whether a text without tools was needed, or how the author shows a
    section that lies in a summarized one.
    """

    prompt: str
    path: str
    requests: int
    sent: int
    opened: int
    tools: tuple[ToolCost, ...]
    advice: Advice | None


def ledger(events: Iterable[Record]) -> tuple[SectionCost, ...]:
    """The cost of every section, in order of appearance, from the records of any number of runs.

    Runs of different sessions may overlap.
    """
    tallies: dict[tuple[str, str], _Tally] = {}
    evaluations: dict[LoggedEvaluation, _Evaluation] = {}
    running = RunningEvaluations()
    for record in events:
        for logged in running.add(record)[-1:]:
            match record:
                case {"event": "PromptRendered", "ns": ns, "key": key, "sections": list()}:
                    before = evaluations.pop(logged.restarted, None) if logged.restarted else None
                    evaluations[logged] = _Evaluation(record, f"{ns}/{key}", before, tallies)
                case {"event": "PromptExecuted"}:
                    evaluations.pop(logged, None)
                case _ if logged in evaluations:
                    evaluations[logged].hear(record)
                case _:
                    pass
    return tuple(tally.cost() for tally in tallies.values())


@dataclass(slots=True)
class _Tally:
    """What is added up for one section; `request_sizes` is that of all requests that carried it,
    whole.
    """

    prompt: str
    path: str
    expanded_size: int = 0
    summary: int | None = None
    shows_need: bool = False
    shown_as: set[str] = field(default_factory=set[str])  # visibilities that evaluations began with
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
        advice = self._advice() if self.requests and self.shows_need and self.shown_as else None
        if advice is not None and self.shown_as == {advice.visibility.lower()}:
            advice = None
        return SectionCost(
            self.prompt, self.path, self.requests, self.sent, self.opened, tools, advice
        )

    def _advice(self) -> Advice:
        request = self.request_sizes // self.requests
        size = _SHORT_SUMMARY if self.summary is None else self.summary
        opened, requests = max(self.opened, self.needed), self.requests - self.opened
        full = requests * self.expanded_size
        summary = requests * size + opened * request + self.requests_in_need * self.expanded_size
        arithmetic = (
            f"FULL: {requests:,} request{'' if requests == 1 else 's'} x {self.expanded_size:,} = {full:,}. "
            f"SUMMARY: {requests:,} x {size:,}{' (assumed)' if self.summary is None else ''} + to open it {opened:,} x "
            f"{request:,} + open {self.requests_in_need:,} x {self.expanded_size:,} = {summary:,}"
        )
        return Advice("SUMMARY" if summary < full else "FULL", arithmetic)


class _Evaluation:
    """One evaluation as its events tell it; one that starts again goes on in the next."""

    # Any: records are JSON, read key by key.
    def __init__(
        self,
        record: Any,
        prompt: str,
        before: "_Evaluation | None",
        tallies: dict[tuple[str, str], _Tally],
    ) -> None:
        self.needed: set[str] = before.needed if before else set()
        self._read: Counter[str] = Counter()
        self._tools: set[str] = set(record["tool_names"])
        self._sections: dict[str, Any] = {one["path"]: one for one in record["sections"]}
        self._tallies = {
            path: tallies.setdefault((prompt, path), _Tally(prompt, path))
            for path in self._sections
        }
        for path, tally in self._tallies.items():
            below = [one for key, one in self._sections.items() if f"{key}.".startswith(f"{path}.")]
            if before is None and below[0]["visibility"] != "hidden":
                tally.shown_as.add(below[0]["visibility"])
            tally.expanded_size, tally.summary = below[0]["weight"], below[0]["summary"]
            tally.shows_need |= below[0]["visibility"] == "summary" or any(
                one["tools"] for one in below
            )

    def hear(self, record: Any) -> None:
        """Adds what one event tells."""
        match record["event"]:
            case "ProviderCalled":
                self._request()
            case "ToolInvoked":
                self._call(record)
            case "ToolsInjected":
                self._tools.update(record["tool_names"])
            case "ToolsWithdrawn":
                self._tools.difference_update(record["tool_names"])
            case _:
                pass

    def _request(self) -> None:
        shown = Counter({path: one["shown"] for path, one in self._sections.items()}) + self._read
        whole = shown.total()
        for path, one in self._sections.items():
            for name in one["tools"].keys() & self._tools:
                whole += one["tools"][name]
                self._tallies[path].tool_requests[name] += 1
                self._tallies[path].tool_sent[name] += one["tools"][name]
        for path, size in shown.items():
            tally = self._tallies[path]
            tally.requests += 1
            tally.sent += size
            tally.request_sizes += whole
            tally.requests_in_need += path in self.needed

    def _call(self, record: Any) -> None:
        name = record["name"]
        for path in self._sections:
            if (
                path in record["requested_sections"]
                and name != "close_section"
                and record["result"]["success"]
            ):
                self._tallies[path].opened += 1
                self._need(path)
                if name == "read_section":
                    self._read[path] += len(record["content"])
            elif name in self._sections[path]["tools"]:
                self._tallies[path].tool_calls[name] += 1
                self._need(path)

    def _need(self, path: str) -> None:
        """The section was needed from here on, and so were those it lies in."""
        for above in self._sections.keys() - self.needed:
            if f"{path}.".startswith(f"{above}."):
                self.needed.add(above)
                self._tallies[above].needed += 1
