"""A run's events as lines; a nested evaluation is indented below the one around it."""

import json
from typing import Any

from ..inspection.event_log import LoggedEvaluation, Record, RunningEvaluations
from .output import count_of, short_line

__all__ = ["Timeline"]

_NESTED = "    "


class Timeline:
    """Turns the records of a log into lines, one record at a time.

    It prints an answer when a later record shows whether the library accepted or rejected it.
    """

    def __init__(self) -> None:
        self._running = RunningEvaluations()
        self._answers: dict[LoggedEvaluation, tuple[str, str]] = {}  # margin and text

    def add(self, record: Record) -> list[str]:
        """Returns the lines of the next record.

        Raises `LookupError`, `TypeError` or `AttributeError` for a record that lacks fields.
        """
        running = self._running.add(record)
        margin = _NESTED * (len(running) - 1)
        lines = self._answers_without_response(running)
        if running:
            lines += self._rejected_answer(running[-1], margin, record)
        lines.append(short_line(margin, _line(record)))
        if record["event"] == "PromptRendered":
            texts = {"changed": record.get("changes"), "user": record.get("message")}
            lines += [
                short_line(margin, f"  {name}: {text}") for name, text in texts.items() if text
            ]
        if record["event"] == "ProviderCalled" and (text := record.get("text")):
            if record["tool_calls"]:
                lines.append(short_line(margin, f"  says: {text}"))
            elif running:
                self._answers[running[-1]] = margin, str(text)
        return lines

    def end(self) -> list[str]:
        """Returns the lines that are left when no record follows."""
        return self._answers_without_response(())

    def _answers_without_response(self, running: tuple[LoggedEvaluation, ...]) -> list[str]:
        """Returns the answers of evaluations that have failed."""
        ended = [evaluation for evaluation in self._answers if evaluation not in running]
        return [
            short_line(margin, f"  says: {text}") for margin, text in map(self._answers.pop, ended)
        ]

    def _rejected_answer(
        self, evaluation: LoggedEvaluation, margin: str, record: Record
    ) -> list[str]:
        match record:
            case {"event": "PromptExecuted"}:
                self._answers.pop(evaluation, None)  # the line of the record has it
            case {"event": "AnswerRejected"}:
                _, answer = self._answers.pop(evaluation, ("", ""))
                return [short_line(margin, f"  rejected: {answer}")]
            case _:
                pass
        return []


def _line(record: Any) -> str:  # Any: JSON, read key by key
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
            if record["params"] is None:  # the call was refused before its handler ran
                params = record.get("arguments", "")
            return f"  {record['name']} {params} {outcome}: {record['content']}"
        case "AnswerRejected":
            return f"  feedback: {record['reason']}"
        case "PromptExecuted":
            return f"answer after {count_of(record['turns'], 'turn')}: {record['text']}"
        case _:
            return _change_line(record)


def _change_line(record: Any) -> str:  # Any: likewise
    """Returns the line of a change of the prompt, its tools or the conversation."""
    match record["event"]:
        case "ToolsInjected":
            return f"  new tools: {', '.join(record['tool_names'])}"
        case "ToolsWithdrawn":
            return f"  closed tools: {', '.join(record['tool_names'])}"
        case "VisibilityExpanded":
            return f"restarts with {', '.join(record['section_keys'])} open: {record['reason']}"
        case "Compacted":
            sizes = f"{record['tokens_before']:,} to {record['tokens_after']:,} tokens"
            return f"shorter conversation: {sizes}"
        case "OverridesDropped":
            return f"stale overrides: {', '.join(record['texts'])}"
        case "ParamsMissing":
            sections = ", ".join(record["sections"])
            return f"sections that cannot be opened: {sections}; {record['remedy']}"
        case other:
            return str(other)
