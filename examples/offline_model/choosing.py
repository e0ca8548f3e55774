"""Chooses the next tool call, or none when it is time to answer. Pure: conversation in, call out.

Calls are proposed in a fixed order: open a summarized section, search, read the search's hits. The
first call that has not been made yet is chosen. Each kind of call is limited, so that every
conversation ends.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite

from .conversation import (
    Call,
    Conversation,
    Tool,
    closed_sections,
    evidence,
    find_question,
    openings,
)
from .fitting import Field, Supply, Unfit, fields, fit
from .reading import NAMING, Record, identifier, is_path, name_words, records, strings
from .scoring import coverage, key_terms, rank

MOST_CALLS, MOST_OPENED, MOST_QUERIES, FIRST_READ, MOST_READ = 12, 3, 4, 2, 4
ENOUGH_SHARED = 0.6  # of the question's telling words, in the documents or, failing that, the hits
_FIRST_BONUS = 0.5  # for the first hit of a search; the second gets half of it, and so on

# A text that shares these words offers to look things up, whatever the question.
_OFFER = (
    "search find look up browse query list read fetch tools documents documentation files sources"
)
_LISTINGS = "search find lookup look query list grep browse index"
_LISTING = frozenset(_LISTINGS.split())
# Verbs of tools that change something: called only if the question contains the verb.
_CHANGES = (
    "write delete remove create update send post put set edit move rename run execute drop add "
    "insert append cancel book pay buy order submit publish upload call email save clear reset"
)
_CHANGING = frozenset(_CHANGES.split())


def next_call(conversation: Conversation) -> Call | None:
    """Returns the call that helps most now; `None` when it is time to answer."""
    if conversation.tool_choice == "none" or len(conversation.results) >= MOST_CALLS:
        return None
    earlier = {_fingerprint(result.call) for result in conversation.results}
    proposals = _proposals(conversation, find_question(conversation))
    return next((call for call in proposals if _fingerprint(call) not in earlier), None)


def _fingerprint(call: Call) -> str:
    return json.dumps([call.name, call.arguments], sort_keys=True)


def _proposals(conversation: Conversation, question: str) -> Iterator[Call]:
    choice = conversation.tool_choice
    chosen = [tool for tool in conversation.tools if tool.name == choice]
    openers = {section.tool for section in closed_sections(conversation)}
    tools = chosen or [tool for tool in conversation.tools if tool.name not in openers]
    searchers, readers = _by_role(tools, question)
    hits = _hits(conversation, question)
    if not chosen:
        yield from _openings(conversation, question, able=bool(searchers or (readers and hits)))
    shared = _shared_with_documents(conversation, question)
    if shared < 1:
        yield from _searches(conversation, question, searchers, again=False)
        yield from _readings(conversation, question, readers, hits[:FIRST_READ], most=FIRST_READ)
        if shared < ENOUGH_SHARED:
            yield from _searches(conversation, question, searchers, again=True)
        yield from _readings(conversation, question, readers, hits[:MOST_READ], most=MOST_READ)
    if choice != "auto" and not conversation.results:
        for tool in tools:
            yield from _calls(tool, question)


def _about(tool: Tool) -> str:
    names = [parameter.name for parameter, _ in fields(tool.parameters)]
    return " ".join([tool.name, tool.description, *names])


def _openings(conversation: Conversation, question: str, *, able: bool) -> Iterator[Call]:
    """Proposes sections whose summaries share words with the question.

    Unless a tool is `able` to help, also proposes sections that offer such tools.
    """
    closed = closed_sections(conversation)
    tools = {tool.name: tool for tool in conversation.tools}
    texts = [*(section.about for section in closed), *map(_about, conversation.tools)]
    fits, offers = rank(question, texts)[: len(closed)], rank(_OFFER, texts)[: len(closed)]
    best = max(fits, default=0.0)
    indexes = [index for index, score in enumerate(fits) if score and score >= best / 2]
    if not able:
        indexes += [i for i, score in enumerate(offers) if score and i not in indexes]
        indexes = indexes or [*range(len(closed))]
    opened = [section for section in closed if openings(conversation, section)]
    for index in sorted(indexes, key=lambda index: (-fits[index] - offers[index] / 4, index)):
        section = closed[index]
        if section not in opened and len(opened) < MOST_OPENED and section.tool in tools:
            record = Record({"key": section.key}, section.about)
            yield from _calls(tools[section.tool], question, record=record)


def _by_role(tools: Sequence[Tool], question: str) -> tuple[list[Tool], list[Tool]]:
    """Returns the tools that search by words and those that read a named thing, best first."""
    texts = list(map(_about, tools))
    fits, offers = rank(question, texts), rank(_OFFER, texts)
    searchers: list[Tool] = []
    readers: list[Tool] = []
    for index in sorted(range(len(tools)), key=lambda index: (-fits[index] - offers[index], index)):
        tool = tools[index]
        verbs, parameters = name_words(tool.name), fields(tool.parameters)
        purposes = {purpose(parameter) for parameter, required in parameters if required}
        if verbs & _CHANGING and not verbs & _CHANGING & name_words(question):
            continue
        if "identifier" in purposes:
            readers.append(tool)
        elif fits[index] or verbs & _LISTING or "query" in purposes:
            searchers.append(tool)
    return searchers, readers


def _searches(
    conversation: Conversation, question: str, tools: Sequence[Tool], *, again: bool
) -> Iterator[Call]:
    """Proposes a search for all key terms with the best tool.

    If that finds nothing, or to search `again`, proposes single terms, and then other tools.
    """
    terms = key_terms(question)
    single = sorted(terms, key=lambda term: ("_" not in term, -len(term)))
    for tool in tools:
        results = [result for result in conversation.results_of(tool) if result.useful]
        text = " ".join(result.text for result in results)
        if text and (not again or coverage(question, text) >= ENOUGH_SHARED):
            return
        for query in [" ".join(terms) or question, *single][:MOST_QUERIES]:
            yield from _calls(tool, question, query=query)
        if text:
            return


def _readings(
    conversation: Conversation,
    question: str,
    tools: Sequence[Tool],
    hits: Sequence[Record],
    most: int,
) -> Iterator[Call]:
    """Proposes reading each hit or, without hits, the first thing that the question names."""
    for tool in tools:
        if len(conversation.results_of(tool)) >= most:
            return
        for record in hits:
            yield from _calls(tool, question, record=record)
        if hits:
            return
        if rank(question, [_about(tool)])[0]:
            for entity in entities(question)[:1]:
                yield from _calls(tool, question, record=Record({"": entity}, question))


def _shared_with_documents(conversation: Conversation, question: str) -> float:
    """Returns the largest share of the question's telling words found in one document statement."""
    documents = {result.source for result in conversation.results}
    shares = [
        coverage(question, f"{statement.section.title} {statement.text}")
        for statement in evidence(conversation)
        if statement.source and statement.source in documents
    ]
    return max(shares, default=0.0)


def _hits(conversation: Conversation, question: str) -> list[Record]:
    """Returns the things that earlier results list, best first; a search's order matters too."""
    openers = {section.tool for section in closed_sections(conversation)}
    hits: dict[str, tuple[Record, float]] = {}
    for result in conversation.results:
        is_search = bool(result.call.arguments) and result.call.name not in openers
        if result.useful and not any(map(is_path, strings(result.call.arguments))):
            for place, record in enumerate(records(result.text), start=1):
                name = identifier(record.fields) or record.text
                hit, bonus = hits.get(name, (Record(record.fields, ""), 0.0))
                bonus = max(bonus, _FIRST_BONUS / place if is_search else 0.0)
                hits[name] = (Record(hit.fields, f"{hit.text}\n{record.text}"), bonus)
    scores = rank(question, [hit.text for hit, _ in hits.values()])
    # stable, so that equal hits keep their order
    pairs = zip(hits.values(), scores, strict=True)
    order = sorted(pairs, key=lambda pair: -pair[1] - pair[0][1])
    return [hit for (hit, _), _ in order]


def entities(text: str) -> list[str]:
    """Returns the names in a text: quoted or code spans, then words with capitals, dots or `_`."""
    spans = [code or words for code, words in re.findall(r"`([^`]+)`|[\"“]([^\"”]+)[\"”]", text)]
    names = re.findall(r"(?<=[\w,] )[A-Z]\w+(?: [A-Z]\w+)*|\b\w+(?:[_./]\w+)+", text)
    return list(dict.fromkeys([*spans, *names]))


_QUERIES = (
    "query q question text search term keyword pattern regex prompt topic phrase word subject "
    "needle"
)
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
    """Returns the purpose of a parameter, judged by its name, then by its description."""
    words = name_words(field.name)
    is_count = field.schema["type"] in {"integer", "number"} and not words & {"id", "key"}
    for name, typical in _PURPOSES.items():
        if words & typical and not (is_count and name == "identifier"):
            return name
    return "identifier" if _LOCATED.search(field.description) and not is_count else "other"


def _calls(
    tool: Tool, question: str, query: str = "", record: Record | None = None
) -> Iterator[Call]:
    """Yields a call if its arguments can be supplied."""
    arguments = Arguments(question=question, query=query, record=record)
    try:
        value = fit({**tool.parameters, "type": "object"}, arguments)
    except Unfit:
        return
    if isinstance(value, dict):
        yield Call(name=tool.name, arguments=value)


@dataclass(slots=True, kw_only=True)
class Arguments(Supply):
    """Supplies tool arguments from the question, its terms, and the record that the call reads."""

    question: str
    query: str = ""
    record: Record | None = None
    numbers_used: int = field(default=0, init=False)

    def wants(self, field: Field, /) -> bool:
        return bool(self.query) and purpose(field) == "query"

    def text(self, field: Field, /) -> str | None:
        match purpose(field):
            case "reason":
                return f"Needed to answer: {self.question}"[:_LONGEST_REASON]
            case "query":
                is_whole = name_words(field.name) & {"question", "prompt"}
                return self.question if is_whole else self.query or self.question
            case "identifier" | "other" if self.record:
                thing = self.record.fields
                name = self._same_field(field) or identifier(thing) or "".join(strings(thing)[:1])
                return str(name) or None
            case other:
                name = next(iter(entities(self.question)), None)
                return name if name or other == "identifier" else self.query or self.question

    def _same_field(self, field: Field) -> object:
        """Returns the record's value for a field of that name."""
        thing = self.record.fields if self.record else {}
        words = name_words(field.name)
        return next((value for key, value in thing.items() if name_words(key) & words), None)

    def texts(self, field: Field, /) -> Sequence[str]:
        if purpose(field) == "query" or not (self.record or purpose(field) == "identifier"):
            return key_terms(self.query or self.question)
        text = self.text(field)
        return [] if text is None else [text]

    def number(self, field: Field, /) -> float | None:
        if isinstance(same := self._same_field(field), int | float) and isfinite(same):
            return same
        if "default" in field.schema:
            return None
        if stated := _DEFAULT.search(field.description):
            return int(stated[1])
        if purpose(field) == "limit":
            return _FEW
        numbers = _NUMBER.findall(self.question)[self.numbers_used :]
        self.numbers_used += bool(numbers)
        return float(numbers[0]) if numbers else None

    def flag(self, _field: Field, /) -> bool:
        return False

    def choose(self, field: Field, options: Sequence[str], /) -> int:
        scores = rank(self.question, options)
        default = str(field.schema.get("default"))
        if default in options and not any(scores):
            return options.index(default)
        return scores.index(max(scores))

    def parts(self, _field: Field, /) -> Sequence[Supply]:
        return [self]
