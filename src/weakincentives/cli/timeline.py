"""A run's events as the lines of a timeline, in which a nested evaluation stands deeper than the
one around it.
"""

import json
from typing import Any

from ..inspection.event_log import LoggedEvaluation, Record, RunningEvaluations
from .output import counted, in_one_line

__all__ = ["Timeline"]

_LONGEST = 100
_NESTED = "    "


class Timeline:
    """Turns the records of a log into lines, one record at a time.

    An answer is held back until a later record shows whether the library accepted or rejected it.
    """

    def __init__(self) -> None:
        self._running = RunningEvaluations()
        self._answers: dict[LoggedEvaluation, tuple[str, str]] = {}  # margin and text

    def add(self, record: Record) -> list[str]:
        """The lines of the next `record`; raises `LookupError`, `TypeError` or `AttributeError`
        where fields lack.
        """
        running = self._running.add(record)
        margin = _NESTED * (len(running) - 1)
        lines = self._unanswered(running)
        if running:
            lines += self._of_answer(running[-1], margin, record)
        lines.append(_cut(margin, _line(record)))
        if record["event"] == "ProviderCalled" and (text := record.get("text")):
            if record["tool_calls"]:
                lines.append(_cut(margin, f"  says: {text}"))
            elif running:
                self._answers[running[-1]] = margin, str(text)
        return lines

    def end(self) -> list[str]:
        """The lines that are left when no record follows: answers without a response."""
        return self._unanswered(())

    def _unanswered(self, running: tuple[LoggedEvaluation, ...]) -> list[str]:
        """The answers of evaluations that have failed and are not running any more."""
        ended = [evaluation for evaluation in self._answers if evaluation not in running]
        return [_cut(margin, f"  says: {text}") for margin, text in map(self._answers.pop, ended)]

    def _of_answer(self, evaluation: LoggedEvaluation, margin: str, record: Record) -> list[str]:
        """What became of the evaluation's last answer."""
        match record:
            case {"event": "PromptExecuted"}:
                self._answers.pop(evaluation, None)  # the record itself tells it
            case {"event": "ProviderCalled", "repair": str(repair)} if repair:
                _, answer = self._answers.pop(evaluation, ("", ""))
                return [_cut(margin, f"  rejected: {answer}"), _cut(margin, f"  told: {repair}")]
            case _:
                pass
        return []


def _cut(margin: str, text: str) -> str:
    """`text` in one line behind the margin; its own two blanks, which mark a part of a turn, stay."""
    text = margin + "  " * text.startswith("  ") + in_one_line(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _line(record: Any) -> str:  # Any: JSON, read key by key
    """One event."""
    match record["event"]:
        case "PromptRendered":
            tools = ", ".join(record["tool_names"]) or "none"
            return f"{record['ns']}/{record['key']}: {len(record['text']):,} characters, tools: {tools}"
        case "ProviderCalled":
            usage, what = record["usage"], record["error"] or record["finish"]
            tokens = f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out"
            return f"turn {record['turn']}: {what}, {tokens}, {record['seconds']:.2f} s"
        case "ToolInvoked":
            mark = "ok" if record["result"]["success"] else "failed"
            refused = record["params"] is None
            written = (
                record.get("arguments", "")
                if refused
                else json.dumps(record["params"], ensure_ascii=False)
            )
            return f"  {record['name']} {written} {mark}: {record['content']}"
        case "ToolsInjected":
            return f"  new tools: {', '.join(record['tool_names'])}"
        case "ToolsWithdrawn":
            return f"  closed tools: {', '.join(record['tool_names'])}"
        case "VisibilityExpanded":
            return f"starts again with {', '.join(record['section_keys'])} open: {record['reason']}"
        case "OverridesDropped":
            return f"overrides that do not apply: {', '.join(record['texts'])}"
        case "ParamsMissing":
            return f"sections that cannot be opened: {', '.join(record['sections'])}; {record['remedy']}"
        case "PromptExecuted":
            return f"answer after {counted(record['turns'], 'turn')}: {record['text']}"
        case other:
            return str(other)
