"""Chooses the next tool call, or none when it is time to answer. Pure: conversation in, call out.

Calls are proposed in a fixed order (open a summarized section, search, read what was found); the
first that was not made yet is the next. Each kind is bounded, so that every conversation ends.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from .conversation import (
    Call,
    Connection,
    Result,
    Tool,
    closed_sections,
    evidence,
    openings,
    question,
)
from .fitting import Field, Supply, Unfit, fields, fit
from .reading import NAMING, Record, identifier, is_path, name_words, records, strings
from .scoring import coverage, key_terms, rank

MOST_CALLS, MOST_OPENED, MOST_QUERIES, FIRST_READ, MOST_READ = 12, 3, 4, 2, 4
ENOUGH_SHARED = 0.6  # of the question's telling words, in what was read or, failing that, found
_FIRST_BONUS = 0.5  # for what a search puts first; half of it for the second, and so on

# What a text says that offers to look things up, whatever is asked.
_OFFER = (
    "search find look up browse query list read fetch tools documents documentation files sources"
)
_LISTING = frozenset(
    ["search", "find", "lookup", "look", "query", "list", "grep", "browse", "index"]
)
# Verbs of tools that change something: called only when the question has the verb.
_CHANGES = (
    "write delete remove create update send post put set edit move rename run execute drop add insert append cancel "
    "book pay buy order submit publish upload call email save clear reset"
)
_CHANGING = frozenset(_CHANGES.split())


def next_call(conversation: Connection) -> Call | None:
    """The call that helps most now; None when enough is known or nothing more can be done."""
    if conversation.tool_choice == "none" or len(conversation.results) >= MOST_CALLS:
        return None
    made = {_fingerprint(result.call) for result in conversation.results}
    proposed = _proposals(conversation, question(conversation))
    return next((call for call in proposed if _fingerprint(call) not in made), None)


def _fingerprint(call: Call) -> str:
    return json.dumps([call.name, call.arguments], sort_keys=True)


def _proposals(conversation: Connection, asked: str) -> Iterator[Call]:
    choice = conversation.tool_choice
    named = [tool for tool in conversation.tools if tool.name == choice]
    openers = {section.tool for section in closed_sections(conversation)}
    tools = named or [tool for tool in conversation.tools if tool.name not in openers]
    searchers, readers = _by_role(tools, asked)
    found = _found(conversation, asked)
    if not named:
        yield from _openings(conversation, asked, able=bool(searchers or (readers and found)))
    known = _known(conversation, asked)
    if known < 1:
        yield from _searches(conversation, asked, searchers, anew=False)
        yield from _readings(conversation, asked, readers, found, most=FIRST_READ)
        if known < ENOUGH_SHARED:
            yield from _searches(conversation, asked, searchers, anew=True)
        yield from _readings(conversation, asked, readers, found, most=MOST_READ)
    if choice != "auto" and not conversation.results:
        for tool in tools:
            yield from _filled(tool, Arguments(asked=asked))


def _about(tool: Tool) -> str:
    return " ".join(
        [tool.name, tool.description, *(each.name for each, _ in fields(tool.parameters))]
    )


def _openings(conversation: Connection, asked: str, *, able: bool) -> Iterator[Call]:
    """Sections whose summaries share words with the question; while no tool can help, those that
    offer some.
    """
    closed = closed_sections(conversation)
    tools = {tool.name: tool for tool in conversation.tools}
    texts = [*(section.about for section in closed), *map(_about, conversation.tools)]
    fits, offers = rank(asked, texts)[: len(closed)], rank(_OFFER, texts)[: len(closed)]
    best = max(fits, default=0.0)
    wanted = [i for i, score in enumerate(fits) if score and score >= best / 2]
    if not able:
        wanted = wanted + [i for i, score in enumerate(offers) if score and i not in wanted] or [
            *range(len(closed))
        ]
    opened = [section for section in closed if openings(conversation, section)]
    for i in sorted(wanted, key=lambda i: (-fits[i] - offers[i] / 4, i)):
        section = closed[i]
        if section not in opened and len(opened) < MOST_OPENED and section.tool in tools:
            key = Record({"key": section.key}, section.about)
            yield from _filled(tools[section.tool], Arguments(asked=asked, record=key))


def _by_role(tools: Sequence[Tool], asked: str) -> tuple[list[Tool], list[Tool]]:
    """The tools that find things by words, and those that need the name of one thing; best first."""
    texts = list(map(_about, tools))
    fits, offers = rank(asked, texts), rank(_OFFER, texts)
    searchers, readers = [], []
    for i in sorted(range(len(tools)), key=lambda i: (-fits[i] - offers[i], i)):
        verbs = name_words(tools[i].name)
        purposes = {purpose(each) for each, needed in fields(tools[i].parameters) if needed}
        if verbs & _CHANGING and not verbs & _CHANGING & name_words(asked):
            continue
        if "identifier" in purposes:
            readers.append(tools[i])
        elif fits[i] or verbs & _LISTING or "query" in purposes:
            searchers.append(tools[i])
    return searchers, readers


def _searches(
    conversation: Connection, asked: str, tools: Sequence[Tool], *, anew: bool
) -> Iterator[Call]:
    """The best tool with all key terms; with one term at a time, and then other tools, if nothing
    came or `anew`.
    """
    terms = key_terms(asked)
    single = sorted(terms, key=lambda term: ("_" not in term, -len(term)))
    for tool in tools:
        told = " ".join(result.text for result in _useful(conversation, tool))
        if told and (not anew or coverage(asked, told) >= ENOUGH_SHARED):
            return
        for query in [" ".join(terms) or asked, *single][:MOST_QUERIES]:
            yield from _filled(tool, Arguments(asked=asked, query=query))
        if told:
            return


def _useful(conversation: Connection, tool: Tool) -> list[Result]:
    return [
        result for result in conversation.results if result.call.name == tool.name and result.useful
    ]


def _readings(
    conversation: Connection, asked: str, tools: Sequence[Tool], found: Sequence[Record], most: int
) -> Iterator[Call]:
    """The best things found, one by one; if none was found, what the question itself names."""
    for tool in tools:
        read = [result for result in conversation.results if result.call.name == tool.name]
        if len(read) >= most:
            return
        for record in found[:most]:
            yield from _filled(tool, Arguments(asked=asked, record=record))
        if found:
            return
        for entity in entities(asked)[:1] if rank(asked, [_about(tool)])[0] else ():
            yield from _filled(tool, Arguments(asked=asked, record=Record({"": entity}, asked)))


def _known(conversation: Connection, asked: str) -> float:
    """The most of the question's telling words that one statement of a thing that was read has."""
    read = {result.source for result in conversation.results}
    told = [
        statement
        for statement in evidence(conversation)
        if statement.source and statement.source in read
    ]
    return max((coverage(asked, f"{each.section.title} {each.text}") for each in told), default=0.0)


def _found(conversation: Connection, asked: str) -> list[Record]:
    """What earlier results listed, one record a thing: the best context first, a search's own order
    counting too.
    """
    openers = {section.tool for section in closed_sections(conversation)}
    merged: dict[str, tuple[Record, float]] = {}
    for result in conversation.results:
        searched = bool(result.call.arguments) and result.call.name not in openers
        if result.useful and not any(map(is_path, strings(result.call.arguments))):
            for place, record in enumerate(records(result.text), start=1):
                name = identifier(record.fields) or record.text
                known, bonus = merged.get(name, (Record(record.fields, ""), 0.0))
                bonus = max(bonus, _FIRST_BONUS / place if searched else 0.0)
                merged[name] = (Record(known.fields, f"{known.text}\n{record.text}"), bonus)
    things = list(merged.values())
    scores = rank(asked, [thing.text for thing, _ in things])
    order = sorted(range(len(things)), key=lambda i: (-scores[i] - things[i][1], i))
    return [things[i][0] for i in order]


def entities(text: str) -> list[str]:
    """What a text names: quoted or code spans, then names with capitals, dots or underscores."""
    quoted = [code or words for code, words in re.findall(r"`([^`]+)`|[\"“]([^\"”]+)[\"”]", text)]
    named = re.findall(r"(?<=[\w,] )[A-Z]\w+(?: [A-Z]\w+)*|\b\w+(?:[_./]\w+)+", text)
    return list(dict.fromkeys([*quoted, *named]))


_QUERIES = "query q question text search term keyword pattern regex prompt topic phrase word subject needle"
_PURPOSES = {
    "reason": frozenset(["reason", "why", "rationale", "justification", "thought", "explanation"]),
    "query": frozenset(_QUERIES.split()),
    "identifier": NAMING,
    "limit": frozenset(["limit", "max", "top", "k", "n", "count", "size", "result", "number"]),
}
_LOCATED = re.compile(r"\b(path|identifier|file ?name|url|id)\b", re.IGNORECASE)
_DEFAULT = re.compile(r"default\w*\W+(?:is |to )?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?\b")
_FEW = 5
_LONGEST_REASON = 200


def purpose(field: Field) -> str:
    """What a parameter is for, by its name, then by its description."""
    named = name_words(field.name)
    counts = field.schema["type"] in {"integer", "number"} and not named & {"id", "key"}
    for name, words in _PURPOSES.items():
        if named & words and not (counts and name == "identifier"):
            return name
    return "identifier" if _LOCATED.search(field.description) and not counts else "other"


def _filled(tool: Tool, arguments: "Arguments") -> Iterator[Call]:
    try:
        value = fit({**tool.parameters, "type": "object"}, arguments)
    except Unfit:
        return
    if isinstance(value, dict):
        yield Call(name=tool.name, arguments=value)


@dataclass(slots=True, kw_only=True)
class Arguments(Supply):
    """Supplies tool arguments: the question, its terms, and the thing that the call is about."""

    asked: str
    query: str = ""
    record: Record | None = None
    numbers_used: int = field(default=0, init=False)

    def wants(self, field: Field, /) -> bool:
        return bool(self.query) and purpose(field) == "query"

    def text(self, field: Field, /) -> str | None:
        match purpose(field):
            case "reason":
                return f"Needed to answer: {self.asked}"[:_LONGEST_REASON]
            case "query":
                return (
                    self.asked
                    if name_words(field.name) & {"question", "prompt"}
                    else self.query or self.asked
                )
            case "identifier" | "other" if self.record:
                same = self._same_named(field)
                return (
                    str(
                        same
                        or identifier(self.record.fields)
                        or "".join(strings(self.record.fields)[:1])
                    )
                    or None
                )
            case other:
                named = next(iter(entities(self.asked)), None)
                return named if named or other == "identifier" else self.query or self.asked

    def _same_named(self, field: Field) -> object:
        thing = self.record.fields if self.record else {}
        return next((thing[key] for key in thing if name_words(key) & name_words(field.name)), None)

    def texts(self, field: Field, /) -> Sequence[str]:
        if purpose(field) == "query" or not (self.record or purpose(field) == "identifier"):
            return key_terms(self.query or self.asked)
        text = self.text(field)
        return [] if text is None else [text]

    def number(self, field: Field, /) -> float | None:
        if isinstance(same := self._same_named(field), int | float) and isfinite(same):
            return same
        if "default" in field.schema:
            return None
        if stated := _DEFAULT.search(field.description):
            return int(stated[1])
        if purpose(field) == "limit":
            return _FEW
        numbers = _NUMBER.findall(self.asked)[self.numbers_used :]
        self.numbers_used += bool(numbers)
        return float(numbers[0]) if numbers else None

    def flag(self, _field: Field, /) -> bool:
        return False

    def choose(self, field: Field, options: Sequence[str], /) -> int:
        scores = rank(self.asked, options)
        default = str(field.schema.get("default"))
        return (
            options.index(default)
            if default in options and not any(scores)
            else scores.index(max(scores))
        )

    def parts(self, _field: Field, /) -> Sequence[Supply]:
        return [self]
