"""Composes the answer from the statements that score best. Pure: conversation in, text out.

Nothing is invented: prose is quoted from tool results, opened sections and the prompt, and sources
are the files that the quoted statements came from. Values of other kinds are made to validate.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .choosing import next_call
from .conversation import Call, Connection, asks, evidence, question
from .fitting import Field, Supply, Unfit, fit
from .reading import NAMING, Statement, name_words
from .scoring import coverage, rank

NOTHING = "Nothing that I could read answers this."
MOST_QUOTED = 3
# Tuned on questions of their own, over documents that are not in this repository.
_SECTION_WEIGHT, _PROMPT_WEIGHT = 0.6, 0.5
# parts of the best score that a further statement needs
_SAME_SOURCE, _OTHER_SOURCE, _NO_NEWS = 0.5, 0.85, 0.9


def extract(conversation: Connection) -> Call | str:
    """The next step of the extractive model: a call while one helps, else the answer."""
    return next_call(conversation) or compose(conversation)


def compose(conversation: Connection) -> str:
    """The final answer: JSON that fits the requested schema, or plain text without one."""
    asked = question(conversation)
    answer = Quoting(asked, chosen(conversation, asked))
    if conversation.answer_schema is None:
        files = ", ".join(answer.sources())
        return answer.prose() + (f"\n\nSources: {files}" if files else "")
    try:
        return json.dumps(fit(conversation.answer_schema, answer), ensure_ascii=False)
    except Unfit:
        return answer.prose()


def chosen(conversation: Connection, asked: str) -> list[Statement]:
    """The few statements that answer best, best first; later ones must add something or be nearly
    as good.
    """
    told = [each for each in evidence(conversation) if each.text != asked and not asks(each.text)]
    scored = sorted(
        zip(_scores(told, asked), range(len(told)), strict=True),
        key=lambda pair: (-pair[0], pair[1]),
    )
    kept: list[Statement] = []
    said = ""
    for score, i in scored:
        text = f"{said} {_in_context(told[i])}"
        if kept:
            needed = _SAME_SOURCE if told[i].source == kept[0].source else _OTHER_SOURCE
            adds = coverage(asked, text) > coverage(asked, said)
            if score < scored[0][0] * (needed if adds else _NO_NEWS):
                continue
        if score and len(kept) < MOST_QUOTED:
            kept.append(told[i])
            said = text
    return kept


def _in_context(statement: Statement) -> str:
    return f"{statement.section.title} {statement.text}"


def _scores(told: Sequence[Statement], asked: str) -> list[float]:
    """How well each statement answers: itself, and less its section; what the prompt says counts
    for half.
    """
    sections = list(dict.fromkeys(each.section for each in told))
    wholes = rank(asked, [f"{section.title}\n{section.body}" for section in sections])
    by_section = dict(zip(sections, wholes, strict=True))
    scores = []
    for each, alone in zip(told, rank(asked, list(map(_in_context, told))), strict=True):
        score = alone + coverage(asked, each.text) + _SECTION_WEIGHT * by_section[each.section]
        scores.append(score * (1.0 if each.source else _PROMPT_WEIGHT) if alone else 0.0)
    return scores


_SOURCES = (NAMING - {"name", "title"}) | {"citation", "origin", "link", "where"}
_OF_SOURCES = re.compile(r"\b(files?|paths?|sources?)\b", re.IGNORECASE)
_CONFIDENCE = frozenset(["confidence", "score", "probability", "certainty", "relevance"])
_FIRST_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?\b")
# Values that validate where no text can: nothing that was read is meant by them.
_FORMATS = {
    "date": "1970-01-01",
    "date-time": "1970-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "nobody@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-0000-0000-000000000000",
}


@dataclass(frozen=True, slots=True)
class Quoting(Supply):
    """Supplies an answer's values out of the chosen statements."""

    asked: str
    quoted: Sequence[Statement]

    def prose(self) -> str:
        """The quoted statements, or that there is none."""
        return " ".join(each.text for each in self.quoted) or NOTHING

    def sources(self) -> list[str]:
        """What the quoted statements are from, each once."""
        return list(dict.fromkeys(each.source for each in self.quoted if each.source))

    def wants(self, field: Field, /) -> bool:
        return bool(self.quoted) and field.schema["type"] in {"string", "array", "object"}

    def text(self, field: Field, /) -> str:
        named = name_words(field.name)
        if named & _SOURCES:
            return next(iter(self.sources()), "")
        if named & {"title", "heading", "topic", "subject"}:
            return next(
                (each.section.title for each in self.quoted if each.section.title), self.asked
            )
        if named & {"question", "query"}:
            return self.asked
        if named & {"quote", "excerpt", "headline"} and self.quoted:
            return self.quoted[0].text
        return _FORMATS.get(str(field.schema.get("format"))) or self.prose()

    def texts(self, field: Field, /) -> Sequence[str]:
        if name_words(field.name) & _SOURCES or _OF_SOURCES.search(field.description):
            return self.sources()
        return [each.text for each in self.quoted]

    def number(self, field: Field, /) -> float | None:
        if name_words(field.name) & _CONFIDENCE:
            return round(coverage(self.asked, self.prose()), 2)
        stated = _FIRST_NUMBER.search(self.quoted[0].text) if self.quoted else None
        return float(stated[0]) if stated else None

    def flag(self, _field: Field, /) -> bool:
        return bool(self.quoted)

    def choose(self, _field: Field, options: Sequence[str], /) -> int:
        scores = rank(" ".join([self.asked, *map(_in_context, self.quoted)]), options)
        return scores.index(max(scores))

    def parts(self, _field: Field, /) -> Sequence[Supply]:
        return [Quoting(self.asked, [each]) for each in self.quoted]
