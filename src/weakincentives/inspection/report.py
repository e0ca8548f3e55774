"""Writes a run as a self-contained HTML file, a visual version of the `wink show` output.

Each turn's data is JSON in a script tag of its own, which `report.js` displays when the turn is
opened. Without JavaScript, the page shows the text of messages and calls.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from difflib import unified_diff
from functools import partial
from hashlib import sha256
from html import escape
from math import isfinite
from pathlib import Path

from ..citations import Citation
from ..content import ContentError, ContentStore, Image
from ..displays import cut, escape_hidden
from ..serde.json_types import AnyJson
from .event_log import Record
from .run_timeline import NO_END, LoggedRun, RunEvaluation, RunSection, RunStep, RunTurn
from .secrets import mask_secrets

__all__ = [
    "ReportedRun",
    "asset",
    "data_tag",
    "page_frame",
    "readable",
    "report_frame",
    "run_data",
    "write_report",
]

type Price = Callable[[Record], float | None]
"""Returns the cost in dollars of a `ProviderCalled` record's request, or `None` if unknown."""

_FILES = Path(__file__).parent
_SHOWN_WITHOUT_SCRIPT = 4_000  # characters of each text
_LARGEST_DIFF = 200_000  # characters in a prompt; diffs take more than linear time
_LARGEST_PICTURE = 1_000_000  # bytes
_PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """A run on the page: its name, its log, and `notes` such as the line about its cost.

    `content` contains the bytes of the run's media; the page shows images of up to 1 MB.
    """

    name: str
    run: LoggedRun
    price: Price
    notes: Sequence[str] = ()
    content: ContentStore | None = None


def readable(value: AnyJson, *, name: str = "", secrets: bool = False) -> AnyJson:
    """Returns the JSON value with control characters escaped and secrets masked.

    `name` is the name of the field that contains the value; `secrets=True` keeps secrets.
    """
    match value:
        case str():
            return escape_hidden(value if secrets else mask_secrets(value, name))
        case dict():
            return {
                readable(key): readable(item, name=key, secrets=secrets)
                for key, item in value.items()
            }
        case list():
            return [readable(item, secrets=secrets) for item in value]
        case float() if not isfinite(value):  # Python accepts numbers that do not exist in JSON
            return str(value)
        case _:
            return value


def write_report(runs: Sequence[ReportedRun], write: Callable[[str], object]) -> None:
    """Passes the page for one run, or for two side by side, to `write` in chunks."""
    pages = [_Page(number, run) for number, run in enumerate(runs)]
    head, tail = report_frame(" and ".join(dict.fromkeys(map(_title, pages))))
    write(head)
    for page in pages:
        for name, body in page.bodies.items():
            write(data_tag(name, body))
    comparison = _comparison(pages) if len(pages) > 1 else None
    write(data_tag("index", {"runs": [page.index for page in pages], "comparison": comparison}))
    write("<noscript>\n")
    for page in pages:
        write(f"<h2>{escape(page.run.name)}</h2>\n")
        write("".join(f"<p>{escape(note)}</p>\n" for note in page.run.notes))
        for evaluation in page.run.run.evaluations:
            for piece in _static_evaluation(evaluation):
                write(piece)
    write("</noscript>\n")
    write(tail)


def report_frame(title: str) -> tuple[str, str]:
    """Returns a report's HTML before and after its data, which `data_tag` makes."""
    return page_frame(title, asset("report.css"), _report_script())


def page_frame(
    title: str, style: str, script: str, *, report_inside: bool = False
) -> tuple[str, str]:
    """Returns a page's HTML before and after its data; the script can use `elements.js`.

    The page can make no request. With `report_inside`, it can show reports in frames.
    """
    head, _, tail = asset("report.html").partition("{{body}}")
    styles, scripts = [style], [script]
    if report_inside:
        styles.append(asset("report.css"))
        scripts.append(_report_script())
    values = {
        "title": escape(title),
        "style": style,
        "style-hash": " ".join(map(_hash, styles)),
        "script-hash": " ".join(map(_hash, scripts)),
    }
    filled = re.sub(r"\{\{([a-z-]+)\}\}", lambda match: values[match[1]], head)
    return filled, tail.replace("{{script}}", script)


def run_data(run: ReportedRun) -> dict[str, object]:
    """Returns the data of a report of one run, by the ids of their tags."""
    page = _Page(0, run)
    return {**page.bodies, "index": {"runs": [page.index], "comparison": None}}


def data_tag(name: str, value: object) -> str:
    """Returns a tag with a value as JSON, for a script to read; the name must be safe in HTML."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def asset(name: str) -> str:
    """Returns the text of a file that pages are made of."""
    return (_FILES / name).read_text(encoding="utf-8")


def _report_script() -> str:
    return "".join(map(asset, ("elements.js", "report_views.js", "report.js")))


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@dataclass(slots=True)
class _Page:
    """A run as JSON: an index for the initial page, and bodies that are shown on demand.

    The index refers to evaluations, turns and section trees by number. Images are also bodies, in
    the form of data URLs.
    """

    number: int
    run: ReportedRun
    evaluations: list[Record] = field(default_factory=list[Record])
    turns: list[Record] = field(default_factory=list[Record])
    trees: dict[tuple[RunSection, ...], int] = field(
        default_factory=dict[tuple[RunSection, ...], int]
    )
    bodies: dict[str, object] = field(default_factory=dict[str, object])
    index: Record = field(init=False)

    def __post_init__(self) -> None:
        top = [self._add_evaluation(each, None) for each in self.run.run.evaluations]
        self.index = {
            "name": self.run.name,
            "head": _head(self.run.run.evaluations),
            "notes": list(self.run.notes),
            "top": top,
            "evaluations": self.evaluations,
            "turns": self.turns,
            "trees": [[asdict(section) for section in sections] for sections in self.trees],
        }

    def _add_evaluation(self, evaluation: RunEvaluation, turn: int | None) -> int:
        number, record = len(self.evaluations), evaluation.prompt.record
        entry: Record = {"line": _cut(evaluation.prompt.line), "turn": turn, "at": _clock(record)}
        self.evaluations.append(entry)
        entry["message"] = _cut(str(record.get("message", "")))
        entry["turns"] = [self._add_turn(each, number) for each in evaluation.turns]
        entry["changes"] = bool(record.get("changes"))
        entry["media"] = self._media(record)
        entry["steps"] = [_cut(step.line) for step in evaluation.steps]
        entry["end"] = _end(evaluation)
        entry["unfinished"] = [self._add_evaluation(each, turn) for each in evaluation.unfinished]
        body = {name: record.get(name, "") for name in ("text", "message", "changes")}
        self.bodies[f"e{self.number}-{number}"] = body
        return number

    def _add_turn(self, turn: RunTurn, evaluation: int) -> int:
        number = len(self.turns)
        requests = [step.record for step in turn.requests]
        calls = [step.record for step in turn.steps if step.event == "ToolInvoked"]
        decisions = [step.record for step in turn.steps if step.event == "ApprovalDecided"]
        usages = [record["usage"] for record in requests]
        entry: Record = {
            "line": _cut("; ".join(step.line for step in turn.requests)),
            "evaluation": evaluation,
            "number": turn.number,
            "at": _clock((turn.requests or turn.steps)[0].record),
            "input": sum(usage["input_tokens"] for usage in usages),
            "cached": sum(usage.get("cached_tokens", 0) for usage in usages),
            "output": sum(usage["output_tokens"] for usage in usages),
            "cost": _sum([self.run.price(record) for record in requests]) if requests else 0,
            "seconds": sum(_number(record["seconds"]) for record in requests),
            "call_seconds": sum(_number(record["seconds"]) for record in calls),
            "tree": self.trees.setdefault(turn.sections, len(self.trees)),
            "calls": [_cut(call["name"], 60) for call in calls],
            "failed": sum(not call["result"]["success"] for call in calls),
            "error": bool(requests and requests[-1]["error"]),
            "rejected": turn.rejected,
            "decisions": [record["decision"] for record in decisions],
            "spans": [
                span
                for kind, records in (("request", requests), ("tool", calls))
                for span in map(partial(_span, kind), records)
                if span
            ],
        }
        self.turns.append(entry)
        self.bodies[f"t{self.number}-{number}"] = {
            "text": turn.text,
            "requests": [{"line": step.line, **step.record, "text": ""} for step in turn.requests],
            "steps": [self._step(step, number) for step in turn.steps],
        }
        return number

    def _step(self, step: RunStep, turn: int) -> Record:
        record = step.record
        shown: Record = {"event": step.event, "name": record.get("name", "")}
        match step.event:
            case "ApprovalDecided":
                for name in ("approval", "decision", "reason", "seconds", "preview"):
                    shown[name] = record.get(name, "")
            case "ToolInvoked":
                names = ("call_id", "params", "arguments", "content", "seconds", "changes")
                shown |= {name: record[name] for name in names if name in record}
                shown["success"] = bool(record["result"]["success"])
                shown["media"] = self._media(record["result"])
                shown["replayed"] = record.get("replayed", False)
            case _:
                shown |= {"line": _cut(step.line), "previews": _previews(record)}
        if step.evaluations:
            shown["evaluations"] = [self._add_evaluation(each, turn) for each in step.evaluations]
        return shown

    def _media(self, record: Record) -> list[Record]:
        """Returns the media in a message or a result, and adds the images to the page."""
        media: list[Record] = record.get("media") or []
        store = self.run.content
        for item in media:
            if store and item["mime"] in _PICTURES and 0 < item["size"] <= _LARGEST_PICTURE:
                names = ("mime", "name", "digest", "size")
                try:  # the digest may be invalid, or the bytes may be missing
                    data = store.load(Image(**{name: item[name] for name in names}))
                except ContentError:
                    continue
                url = f"data:{item['mime']};base64,{b64encode(data).decode()}"
                self.bodies[f"m-{item['digest']}"] = url
        return media


def _title(page: _Page) -> str:
    """Returns the names of a run's prompts, or its file name if the log does not name any."""
    return ", ".join(page.index["head"]["prompts"][:3]) or page.run.name


def _end(evaluation: RunEvaluation) -> str:
    """Returns one word that explains why an evaluation has no answer, or `""` if it was continued.

    `cut` means that the log is incomplete.
    """
    if evaluation.stop is None:
        return "" if evaluation.has_end else "cut"
    return str(evaluation.stop.record["reason"])


def _head(evaluations: Sequence[RunEvaluation]) -> Record:
    """Returns a run's prompts, models, date, end and answer, for the top of its page."""
    prompts = [each.prompt.record for each in evaluations if "ns" in each.prompt.record]
    steps = [step.record for each in evaluations for step in each.all_steps]
    models = [str(record["model"]) for record in steps if record.get("model")]
    last = evaluations[-1] if evaluations else None
    return {
        "prompts": list(dict.fromkeys([f"{record['ns']}/{record['key']}" for record in prompts])),
        "models": list(dict.fromkeys(models)),
        "date": str(prompts[0].get("created_at", ""))[:16].replace("T", " ") if prompts else "",
        "end": _end(last) if last else "",
        "answer": _cut(str(last.answer.record["text"])) if last and last.answer else "",
    }


def _span(kind: str, record: Record) -> list[object] | None:
    """Returns a request's or call's kind, name, start in Unix time, and duration in seconds."""
    try:
        end = datetime.fromisoformat(str(record.get("created_at"))).timestamp()
    except ValueError:  # a suspended run does not record times
        return None
    seconds = _number(record["seconds"])
    name = record.get("name") or record.get("model") or record.get("adapter", "")
    return [kind, _cut(str(name), 60), end - seconds, seconds]


def _clock(record: Record) -> str:
    """Returns the record's time of day in UTC."""
    return str(record.get("created_at", "")).partition("T")[2][:8]


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0.0


def _sum(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None


def _cut(text: str, size: int = 2_000) -> str:
    return cut(text, size, counted=False)


def _comparison(pages: Sequence[_Page]) -> Record:
    """Returns two runs' totals side by side, and the differences between their first prompts."""
    names = {
        "input tokens": "input",
        "of them cached": "cached",
        "output tokens": "output",
        "seconds of requests": "seconds",
        "seconds of calls": "call_seconds",
        "dollars": "cost",
        "failed calls": "failed",
    }
    rows: list[list[object]] = [
        ["requests", *(sum(turn["number"] > 0 for turn in page.turns) for page in pages)],
        ["calls", *(sum(len(turn["calls"]) for turn in page.turns) for page in pages)],
    ]
    for title, name in names.items():
        rows.append([title, *(_sum([turn[name] for turn in page.turns]) for page in pages)])
    texts = [
        str(page.run.run.evaluations[0].prompt.record.get("text", ""))[:_LARGEST_DIFF].splitlines()
        if page.run.run.evaluations
        else []
        for page in pages
    ]
    first, second = [page.run.name for page in pages]
    diff = "\n".join(unified_diff(texts[0], texts[1], first, second, lineterm=""))
    return {"rows": rows, "prompt": diff}


def _static_evaluation(evaluation: RunEvaluation) -> Iterator[str]:
    """Yields an evaluation as HTML that does not require JavaScript."""
    record = evaluation.prompt.record
    yield f"<article><h3>{_text(evaluation.prompt.line)}</h3>\n"
    for name, title in {"text": "prompt", "changes": "changed", "message": "user"}.items():
        yield from _folded(title, [_pre(record.get(name))] if record.get(name) else [])
    yield from _static_steps(evaluation.steps)
    for turn in evaluation.turns:
        yield "<details><summary>"
        lines = [step.line for step in turn.requests] or ["before the first request"]
        yield "<br>".join(map(_text, lines)) + "</summary>\n"
        yield from _folded("Reasoning", [_pre(turn.reasoning)] if turn.reasoning else [])
        if turn.text:
            yield f"<p>{'rejected' if turn.rejected else 'says'}:</p>{_pre(turn.text)}"
        yield from map(_static_source, turn.citations)
        yield from _static_steps(turn.steps)
        yield "</details>\n"
    for inner in evaluation.unfinished:
        yield from _static_evaluation(inner)
    if not evaluation.has_end:
        yield f"<p>{NO_END}</p>\n"
    yield "</article>\n"


def _static_steps(steps: Iterable[RunStep]) -> Iterator[str]:
    for step in steps:
        pieces = [piece for each in step.evaluations for piece in _static_evaluation(each)]
        record = step.record
        if step.event == "ToolInvoked":
            arguments = record.get("arguments") or json.dumps(record["params"], ensure_ascii=False)
            pieces = [_pre(arguments), *pieces, _pre(record["content"])]
            if changes := record.get("changes"):
                undone = "" if record["result"]["success"] else " (rolled back)"
                pieces.append(f"<p>changed{undone}:</p>{_pre(json.dumps(changes, indent=1))}")
        else:
            pieces += [_pre(preview) for preview in _previews(record)]
        yield from _folded(step.line, pieces) if pieces else [f"<p>{_text(step.line)}</p>\n"]


def _static_source(citation: Record) -> str:
    """Returns a source as a paragraph, with a link if its URL may be linked to."""
    url, title, file_id = (str(citation.get(name) or "") for name in ("url", "title", "source"))
    source = Citation(url=url, title=title, source=file_id)
    if link := source.link:
        rel = "noopener noreferrer"
        return f'<p>cites: <a href="{escape(link)}" rel="{rel}">{_text(source.name)}</a></p>\n'
    return f"<p>cites: {_text(source.name)}</p>\n"


def _previews(record: Record) -> list[object]:
    """Returns the previews that the approver saw, as text."""
    shown: str | list[object] = record.get("preview") or record.get("pending") or []
    return [shown] if isinstance(shown, str) else list(shown)


def _folded(title: str, pieces: Sequence[str]) -> Iterator[str]:
    if pieces:
        yield f"<details><summary>{_text(title)}</summary>\n"
        yield from pieces
        yield "</details>\n"


def _text(text: str) -> str:
    return escape(_cut(" ".join(text[:_SHOWN_WITHOUT_SCRIPT].split()), 200))


def _pre(text: object) -> str:
    size, shown = len(f"{text}"), f"{text}"[:_SHOWN_WITHOUT_SCRIPT]
    rest = (
        "" if size <= len(shown) else f"\n[{size - len(shown):,} more characters: needs JavaScript]"
    )
    return f"<pre>{escape(shown + rest)}</pre>\n"
