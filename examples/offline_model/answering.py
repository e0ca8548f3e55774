"""Composes the answer from the statements that score best. Pure: conversation in, text out.

It invents nothing: it quotes prose from tool results, opened sections and the prompt, and names the
files of these quotations as sources. Other values are chosen so that they validate.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .choosing import next_call
from .conversation import Call, Conversation, asks, evidence, find_question
from .fitting import Field, Supply, Unfit, fit
from .reading import NAMING, Statement, name_words
from .scoring import coverage, rank

NOTHING = "Nothing that I could read answers this."
MOST_QUOTED = 3
# Tuned on a separate set of questions, about documents that are not in this repository.
_SECTION_WEIGHT, _PROMPT_WEIGHT = 0.6, 0.5
# fractions of the best score that a further statement needs
_SAME_SOURCE, _OTHER_SOURCE, _NO_NEWS = 0.5, 0.85, 0.9


def extract(conversation: Conversation) -> Call | str:
    """Returns the extractive model's next step: a call while one helps, otherwise the answer."""
    return next_call(conversation) or compose(conversation)


def compose(conversation: Conversation) -> str:
    """Returns the final answer: JSON that fits the requested schema, or plain text if none is."""
    question = find_question(conversation)
    answer = Quotation(question, best_statements(conversation, question))
    if conversation.answer_schema is None:
        files = ", ".join(answer.sources())
        return answer.prose() + (f"\n\nSources: {files}" if files else "")
    try:
        return json.dumps(fit(conversation.answer_schema, answer), ensure_ascii=False)
    except Unfit:
        return answer.prose()


def best_statements(conversation: Conversation, question: str) -> list[Statement]:
    """Returns the few statements that answer best, best first.

    Each statement after the first must add something or score nearly as high.
    """
    statements = [
        statement
        for statement in evidence(conversation)
        if statement.text != question and not asks(statement.text)
    ]
    scores = _scores(statements, question)
    order = sorted(range(len(statements)), key=lambda index: (-scores[index], index))
    best: list[Statement] = []
    quoted = ""
    for index in order:
        statement, score = statements[index], scores[index]
        text = f"{quoted} {_in_context(statement)}"
        if best:
            part = _SAME_SOURCE if statement.source == best[0].source else _OTHER_SOURCE
            adds = coverage(question, text) > coverage(question, quoted)
            if score < scores[order[0]] * (part if adds else _NO_NEWS):
                continue
        if score and len(best) < MOST_QUOTED:
            best.append(statement)
            quoted = text
    return best


def _in_context(statement: Statement) -> str:
    return f"{statement.section.title} {statement.text}"


def _scores(statements: Sequence[Statement], question: str) -> list[float]:
    """Scores each statement and, with less weight, its section; the prompt weighs half."""
    sections = list(dict.fromkeys(statement.section for statement in statements))
    section_scores = rank(question, [f"{section.title}\n{section.body}" for section in sections])
    by_section = dict(zip(sections, section_scores, strict=True))
    ranks = rank(question, list(map(_in_context, statements)))
    scores: list[float] = []
    for statement, own_score in zip(statements, ranks, strict=True):
        score = own_score + coverage(question, statement.text)
        score += _SECTION_WEIGHT * by_section[statement.section]
        scores.append(score * (1.0 if statement.source else _PROMPT_WEIGHT) if own_score else 0.0)
    return scores


_SOURCES = (NAMING - {"name", "title"}) | {"citation", "origin", "link", "where"}
_OF_SOURCES = re.compile(r"\b(files?|paths?|sources?)\b", re.IGNORECASE)
_CONFIDENCE = frozenset(["confidence", "score", "probability", "certainty", "relevance"])
_FIRST_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?\b")
# Values that validate where quoted text cannot.
_FORMATS = {
    "date": "1970-01-01",
    "date-time": "1970-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "nobody@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-0000-0000-000000000000",
}


@dataclass(frozen=True, slots=True)
class Quotation(Supply):
    """Supplies an answer's values from the quoted statements."""

    question: str
    statements: Sequence[Statement]

    def prose(self) -> str:
        """Returns the quoted statements, or says that there are none."""
        return " ".join(statement.text for statement in self.statements) or NOTHING

    def sources(self) -> list[str]:
        """Returns the sources of the quoted statements, each once."""
        return list(
            dict.fromkeys(statement.source for statement in self.statements if statement.source)
        )

    def wants(self, field: Field, /) -> bool:
        return bool(self.statements) and field.schema["type"] in {"string", "array", "object"}

    def text(self, field: Field, /) -> str:
        words = name_words(field.name)
        if words & _SOURCES:
            return next(iter(self.sources()), "")
        if words & {"title", "heading", "topic", "subject"}:
            titles = [statement.section.title for statement in self.statements]
            return next(filter(None, titles), self.question)
        if words & {"question", "query"}:
            return self.question
        if words & {"quote", "excerpt", "headline"} and self.statements:
            return self.statements[0].text
        return _FORMATS.get(str(field.schema.get("format"))) or self.prose()

    def texts(self, field: Field, /) -> Sequence[str]:
        if name_words(field.name) & _SOURCES or _OF_SOURCES.search(field.description):
            return self.sources()
        return [statement.text for statement in self.statements]

    def number(self, field: Field, /) -> float | None:
        if name_words(field.name) & _CONFIDENCE:
            return round(coverage(self.question, self.prose()), 2)
        stated = _FIRST_NUMBER.search(self.statements[0].text) if self.statements else None
        return float(stated[0]) if stated else None

    def flag(self, _field: Field, /) -> bool:
        return bool(self.statements)

    def choose(self, _field: Field, options: Sequence[str], /) -> int:
        scores = rank(" ".join([self.question, *map(_in_context, self.statements)]), options)
        return scores.index(max(scores))

    def parts(self, _field: Field, /) -> Sequence[Supply]:
        return [Quotation(self.question, [statement]) for statement in self.statements]
