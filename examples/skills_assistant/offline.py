"""Replaces the model with a rule that compares words. It is not an LLM."""

import json

from examples.common.models import Offline
from examples.offline_model import Call, Conversation
from examples.offline_model.conversation import closed_sections, find_question
from examples.offline_model.reading import statements
from examples.offline_model.scoring import rank

__all__ = ["OFFLINE"]

_LEVELS = 2  # a skill, and one of its headings
_QUOTES = 2


def open_and_quote(conversation: Conversation) -> Call | str:
    """Opens the best skill and its best heading, closes the skill again, and quotes from both."""
    question = find_question(conversation)
    results = conversation.results
    opened = [
        str(result.call.arguments["section_key"])
        for result in results
        if result.call.name == "read_section"
    ]
    above = f"{opened[0]}." if opened else ""
    closed = [
        section
        for section in closed_sections(conversation)
        if section.key not in opened
        and section.key.startswith(above)
        and not section.key.endswith(".files")
        and ("." in section.key) == bool(opened)
    ]
    scores = rank(question, [section.about for section in closed])
    if closed and max(scores) > 0 and len(opened) < _LEVELS:
        best = closed[scores.index(max(scores))]
        return Call(name=best.tool, arguments={"section_key": best.key})
    if opened and all(result.call.name != "close_section" for result in results):
        return Call(name="close_section", arguments={"section_key": opened[0]})
    quotable = [
        statement
        for result in results
        if result.call.name == "read_section"
        for statement in statements(result.text.partition("\n")[2], None)
        if "read_section" not in statement.text
    ]
    scores = rank(question, [f"{each.section.title} {each.text}" for each in quotable])
    closest = sorted(zip(scores, quotable, strict=True), key=lambda pair: -pair[0])[:_QUOTES]
    quotes = [statement.text for score, statement in closest if score > 0]
    return json.dumps({"answer": " ".join(quotes), "sources": opened})


OFFLINE = Offline(
    "an offline rule (no LLM: it opens what shares words with the question, and quotes)",
    open_and_quote,
)
