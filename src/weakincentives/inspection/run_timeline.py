"""A run as its log describes it: its evaluations, their turns, and the steps in each turn.

`wink show` and the report are two views of this model. Texts are unmodified; each view makes them
safe for its output.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..displays import count_of
from ..serde import Json
from .event_log import Record

__all__ = [
    "NO_END",
    "Line",
    "LoggedRun",
    "RunEvaluation",
    "RunSection",
    "RunStep",
    "RunTurn",
    "is_inside",
    "read_run",
]

NO_END = "the log ends before this evaluation does"
_STOPS = {"limit": "stopped by a limit", "suspended": "suspended for approval"}


class Line(NamedTuple):
    """One line in a timeline; `depth` is the number of enclosing evaluations."""

    depth: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection:
    """A section in one turn; `visibility` is `full`, `summary`, `closed` (again) or `hidden`.

    `size` is the number of characters that it adds to requests, and `tool_size` is the number for
    its tools. `opened_by` describes what opened it, unless the author did.
    """

    path: str
    visibility: str
    size: int
    tool_size: int = 0
    opened_by: str = ""


@dataclass(slots=True, eq=False)
class RunStep:
    """One of a run's events as a line, with any evaluations nested in its tool call."""

    record: Record
    line: str
    evaluations: "list[RunEvaluation]" = field(default_factory=list["RunEvaluation"])

    @property
    def event(self) -> str:
        """The event type's name."""
        return str(self.record["event"])


@dataclass(slots=True, eq=False)
class RunTurn:
    """A request and all steps up to the next request.

    `requests` contains several steps if adapters fell back. It is empty if a resumed run starts
    with calls that were pending. `tools` are the tools that the model could call, `text` is the
    model's text, and `reasoning` and `citations` are those of its message.
    """

    requests: list[RunStep]
    sections: tuple[RunSection, ...]
    tools: frozenset[str]
    text: str = ""
    reasoning: str = ""
    citations: list[Record] = field(default_factory=list[Record])
    rejected: bool = False
    steps: list[RunStep] = field(default_factory=list[RunStep])

    @property
    def number(self) -> int:
        """The number of the turn's request, or 0 if it has no request."""
        return int(self.requests[0].record["turn"]) if self.requests else 0


@dataclass(slots=True, eq=False)
class RunEvaluation:
    """One evaluation; `steps` contains the steps before its first turn.

    It ends with an `answer`, a `stop` or a `restart`; in an incomplete log, it has none of these.
    `depth` is the number of enclosing evaluations. `unfinished` contains the evaluations nested in
    a call that has not ended. `restarted` is the evaluation that this one continues, with different
    sections open.
    """

    prompt: RunStep
    depth: int = 0
    sections: tuple[RunSection, ...] = ()
    steps: list[RunStep] = field(default_factory=list[RunStep])
    turns: list[RunTurn] = field(default_factory=list[RunTurn])
    answer: RunStep | None = None
    stop: RunStep | None = None
    restart: RunStep | None = None
    restarted: "RunEvaluation | None" = None
    unfinished: "list[RunEvaluation]" = field(default_factory=list["RunEvaluation"])
    opened_by: dict[str, str] = field(default_factory=dict[str, str])  # shared with its successors
    tools: frozenset[str] = frozenset()
    tool_sizes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    @property
    def has_end(self) -> bool:
        """Whether the log contains the end of the evaluation."""
        steps = self.turns[-1].steps if self.turns else self.steps
        compacted = bool(steps) and steps[-1].event == "Compacted"
        return compacted or any((self.answer, self.stop, self.restart))

    @property
    def unjudged(self) -> bool:
        """Whether the last text is an answer that was neither accepted nor rejected."""
        if not self.text or self.turns[-1].rejected or self.answer or self.stop:
            return False
        return not self.turns[-1].requests[-1].record["tool_calls"]

    @property
    def text(self) -> str:
        """The model's last text."""
        return self.turns[-1].text if self.turns else ""

    @property
    def all_steps(self) -> Iterator[RunStep]:
        """Yields the steps before the first turn, then the requests and steps of each turn."""
        yield from self.steps
        for turn in self.turns:
            yield from turn.requests
            yield from turn.steps


class LoggedRun:
    """Reads a log record by record; `evaluations` contains the evaluations that are not nested.

    A record's ids identify its run, which has one evaluation at a time. Runs may overlap. Records
    without a run id belong to their session.
    """

    def __init__(self) -> None:
        self.evaluations: list[RunEvaluation] = []
        # Evaluations that have not ended, by the id of their run and the path of a nested run.
        self._open: defaultdict[Json, dict[str, RunEvaluation]] = defaultdict(dict)
        self._opened_by: defaultdict[tuple[Json, ...], dict[str, str]] = defaultdict(dict)

    def add(self, record: Record) -> list[Line]:
        """Adds the next record; returns its lines, and any answers now known to be final.

        Raises `LookupError`, `TypeError` or `AttributeError` for a record with missing fields.
        """
        step, lines = RunStep(record, headline(record)), list[Line]()
        run = record.get("run_id") or record.get("session_id")
        by_path, path = self._open[run], str(record.get("run_path", ""))
        evaluation = by_path.get(path)
        if record["event"] == "PromptRendered":
            if evaluation:
                lines += _unjudged_answers([evaluation])
            evaluation = self._begin(step, by_path, path)
        elif evaluation is None:  # outside any evaluation
            if not self.evaluations:
                self.evaluations.append(RunEvaluation(step))
            evaluation = self.evaluations[-1]
        depth = evaluation.depth
        if record["event"] == "AnswerRejected" and evaluation.unjudged:
            lines.append(Line(depth, f"  rejected: {evaluation.text}"))
        elif record["event"] == "EvaluationStopped":
            lines += _unjudged_answers([evaluation])
        lines.append(Line(depth, step.line))
        match record["event"]:
            case "PromptRendered":
                texts = {"changed": record.get("changes"), "user": record.get("message")}
                lines += [Line(depth, f"  {name}: {text}") for name, text in texts.items() if text]
            case "ProviderCalled":
                lines += [Line(depth, text) for text in _message_lines(record)]
            case _:
                pass
        _add_step(evaluation, step)
        if evaluation.answer or evaluation.stop:
            by_path.pop(path, None)
        if not by_path:
            del self._open[run]
        return lines

    def end(self) -> list[Line]:
        """Returns the lines that remain after the last record."""
        evaluations = [each for by_path in self._open.values() for each in by_path.values()]
        self._open.clear()
        open_ones = [Line(each.depth, NO_END) for each in evaluations if not each.has_end]
        return [*_unjudged_answers(evaluations), *open_ones]

    def _begin(self, step: RunStep, by_path: dict[str, RunEvaluation], path: str) -> RunEvaluation:
        """Creates a new evaluation, which replaces its run's previous one."""
        before = by_path.pop(path, None)
        around = [each for each in by_path if path.startswith(each)]
        outer = by_path[max(around, key=len)] if around else None
        evaluation = RunEvaluation(step, outer.depth + 1 if outer else 0)
        evaluation.restarted = before if before and before.restart else None
        prompt = tuple([step.record.get(name) for name in ("session_id", "ns", "key")])
        evaluation.opened_by = self._opened_by[prompt]
        (outer.unfinished if outer else self.evaluations).append(evaluation)
        by_path[path] = evaluation
        return evaluation


def read_run(records: Iterable[Record]) -> LoggedRun:
    """Reads a complete log."""
    run = LoggedRun()
    for record in records:
        run.add(record)
    return run


def _unjudged_answers(evaluations: Iterable[RunEvaluation]) -> list[Line]:
    return [Line(each.depth, f"  says: {each.text}") for each in evaluations if each.unjudged]


def _add_step(evaluation: RunEvaluation, step: RunStep) -> None:
    """Adds a step to the evaluation's turns and applies it to the section tree."""
    record = step.record
    turn = _last_turn(evaluation, record)
    match record["event"]:
        case "PromptRendered":
            evaluation.tools = frozenset(record["tool_names"])
            rows = record.get("sections", [])
            evaluation.tool_sizes = {row["path"]: row["tools"] for row in rows}
            sections = [_section(row, evaluation.opened_by) for row in rows]
            evaluation.sections = _with_tools(evaluation, sections)
            return
        case "ProviderCalled":
            if turn and turn.requests and turn.number == record["turn"]:
                turn.requests.append(step)  # another adapter was tried
            else:
                turn = RunTurn([step], evaluation.sections, evaluation.tools)
                evaluation.turns.append(turn)
            turn.text, turn.reasoning = record.get("text", ""), record.get("reasoning", "")
            turn.citations = record.get("citations") or []
            return
        case "ToolInvoked":
            _apply_disclosure(evaluation, record, turn.number if turn else 0)
        case "ToolsInjected":
            evaluation.tools |= set(record["tool_names"])
            evaluation.sections = _with_tools(evaluation, evaluation.sections)
        case "ToolsWithdrawn":
            evaluation.tools -= set(record["tool_names"])
            evaluation.sections = _with_tools(evaluation, evaluation.sections)
        case "AnswerRejected" if turn:
            turn.rejected = True
        case "VisibilityExpanded":
            evaluation.restart = step
            number = turn.number if turn else 0
            opener = f"a restart after turn {number}: {record['reason']}"
            evaluation.opened_by.update(dict.fromkeys(record["section_keys"], opener))
        case "PromptExecuted":
            evaluation.answer = step
        case "EvaluationStopped":
            evaluation.stop = step
        case _:
            pass
    step.evaluations, evaluation.unfinished = evaluation.unfinished, []
    (turn or evaluation).steps.append(step)


def _message_lines(record: Record) -> Iterator[str]:
    """Yields a message's reasoning, its text next to calls, and the sources that it cites."""
    if record.get("reasoning"):
        yield f"  thinks: {record['reasoning']}"
    if record.get("text") and record["tool_calls"]:
        yield f"  says: {record['text']}"
    for source in record.get("citations") or ():
        names = [source.get(name) for name in ("title", "url")]
        yield f"  cites: {' '.join(filter(None, names)) or source.get('source', '')}"


def _last_turn(evaluation: RunEvaluation, record: Record) -> RunTurn | None:
    """Returns the last turn; a call or decision can start a turn that has no request."""
    if not evaluation.turns and record["event"] in ("ToolInvoked", "ApprovalDecided"):
        evaluation.turns.append(RunTurn([], evaluation.sections, evaluation.tools))
    return evaluation.turns[-1] if evaluation.turns else None


def _section(row: Record, opened_by: Mapping[str, str]) -> RunSection:
    visibility, path = row["visibility"], row["path"]
    opener = opened_by.get(path, "") if visibility == "full" else ""
    return RunSection(path=path, visibility=visibility, size=row["shown"], opened_by=opener)


def _with_tools(
    evaluation: RunEvaluation, sections: Iterable[RunSection]
) -> tuple[RunSection, ...]:
    """Returns the sections, with the sizes of the tools that the model can call."""
    sizes, tools = evaluation.tool_sizes, evaluation.tools
    return tuple(
        replace(section, tool_size=sum(sizes[section.path].get(name, 0) for name in tools))
        for section in sections
    )


def _apply_disclosure(evaluation: RunEvaluation, record: Record, turn: int) -> None:
    """Opens and closes the sections that a successful call opened and closed."""
    value = record["result"]["value"]
    if not record["result"]["success"] or not isinstance(value, dict):
        return
    opener = f"{record['name']} in turn {turn}"
    texts = {".".join(path): text for path, _, text in value.get("shown") or ()}
    opened = texts.keys() | {".".join(path) for path in value.get("opened") or ()}
    closed = ".".join(value.get("closed") or ())
    match record["name"]:
        case "read_section" | "open_sections" if opened:
            evaluation.opened_by.update(dict.fromkeys(opened, opener))
            evaluation.sections = tuple(
                replace(
                    section,
                    visibility="full",
                    opened_by=opener,
                    size=section.size + len(texts.get(section.path, "")),
                )
                if section.path in opened
                else section
                for section in evaluation.sections
            )
        case "close_section" if closed:
            evaluation.sections = tuple(
                replace(section, visibility="closed")
                if is_inside(section.path, closed) and section.visibility == "full"
                else section
                for section in evaluation.sections
            )
        case _:
            pass


def is_inside(path: str, around: str) -> bool:
    """Returns whether the section at `path` (keys joined by dots) is `around` or inside it."""
    return f"{path}.".startswith(f"{around}.")


def headline(record: Record) -> str:
    """Returns a one-line description of an event; two leading spaces indent a step in a turn."""
    match record["event"]:
        case "PromptRendered":
            size = f"{len(record['text']):,} characters"
            tools = ", ".join(record["tool_names"]) or "none"
            return f"{record['ns']}/{record['key']}: {size}, tools: {tools}"
        case "ProviderCalled":
            usage, outcome = record["usage"], record["error"] or record["finish"]
            tokens = f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out"
            return f"turn {record['turn']}: {outcome}, {tokens}, {record['seconds']:.2f} s"
        case "ToolInvoked":
            outcome = "ok" if record["result"]["success"] else "failed"
            params = json.dumps(record["params"], ensure_ascii=False)
            if record["params"] is None:  # the call was rejected before its handler ran
                params = record.get("arguments", "")
            return f"  {record['name']} {params} {outcome}: {record['content']}"
        case "AnswerRejected":
            return f"  feedback: {record['reason']}"
        case "PromptExecuted":
            return f"answer after {count_of(record['turns'], 'turn')}: {record['text']}"
        case "EvaluationStopped":
            code = f" ({record['code']})" if record["code"] else ""
            reason = _STOPS.get(record["reason"], record["reason"])
            return f"{reason} after {count_of(record['turns'], 'turn')}{code}: {record['error']}"
        case _:
            return _headline_of_change(record)


def _headline_of_change(record: Record) -> str:
    """Returns the line for a change to the prompt, its tools or the conversation."""
    match record["event"]:
        case "ToolsInjected":
            return f"  new tools: {', '.join(record['tool_names'])}"
        case "ToolsWithdrawn":
            return f"  closed tools: {', '.join(record['tool_names'])}"
        case "VisibilityExpanded":
            return f"restarts with {', '.join(record['section_keys'])} open: {record['reason']}"
        case "ApprovalDecided":
            reason = f": {record['reason']}" if record["reason"] else ""
            return f"  approval of {record['name']}: {record['decision']}{reason}"
        case "Compacted":
            if not record["tokens_before"]:  # a stored run does not record token counts
                return "compacted conversation"
            sizes = f"{record['tokens_before']:,} to {record['tokens_after']:,} tokens"
            return f"compacted conversation: {sizes}"
        case "OverridesDropped":
            return f"stale overrides: {', '.join(record['texts'])}"
        case "ParamsMissing":
            sections = ", ".join(record["sections"])
            return f"sections that cannot be opened: {sections}; {record['remedy']}"
        case other:
            return str(other)
