"""A conversation as a neutral value, and what it asks, offers to open, and has told so far.

`wire` makes these values of requests. Nothing here scores or decides.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .reading import (
    NAMING,
    Statement,
    embedded_json,
    identifier,
    name_words,
    result_statements,
    sections,
    statements,
    strings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call; `parameters` is its JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Something said by the system, a developer, the user or the model itself."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call, to make or made."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A call made earlier, with the text that came back."""

    call: Call
    text: str

    @property
    def source(self) -> str | None:
        """What the call asked for by name, such as a file."""
        return identifier(
            {key: value for key, value in self.call.arguments.items() if name_words(key) & NAMING}
        )

    @property
    def useful(self) -> bool:
        """Whether it holds anything beyond an echo of the call or a failure."""
        before, value = embedded_json(self.text)
        if isinstance(value, Mapping) and (value.get("error") or value.get("success") is False):
            return False
        if value is not None:
            return any(text not in self.call.arguments.values() for text in strings(value))
        return bool(before.strip()) and not (
            _FAILURE.match(before) and len(before) < _LONGEST_FAILURE
        )


_THINGS = "result|match(es)?|document|file|hit|entry|entries|item|record|passage|page|section"
_FAILURE = re.compile(
    r"\s*(error\b|failed\b|unknown \w+|invalid \w+|not found|nothing (found|matche)"
    rf"|(no|0|none) (such |matching |relevant )?({_THINGS})s?\b)",
    re.IGNORECASE,
)
_LONGEST_FAILURE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """All that one request says. `tool_choice`: auto, none, required, or a tool's name."""

    turns: tuple[Message | Result, ...]
    tools: tuple[Tool, ...] = ()
    answer_schema: Mapping[str, object] | None = None
    tool_choice: str = "auto"

    @property
    def results(self) -> list[Result]:
        return [turn for turn in self.turns if isinstance(turn, Result)]

    @property
    def given(self) -> list[Message]:
        """The messages that are not the model's own, instructions first."""
        said = [
            turn for turn in self.turns if isinstance(turn, Message) and turn.role != "assistant"
        ]
        return sorted(said, key=lambda message: message.role == "user")


type Policy = Callable[[Connection], Call | str]
"""Gives the next step of a conversation: a call, or the text of the answer."""

_TITLES = ("question", "query|request|ask", "task|objective|goal|problem")
_NO_TITLE = re.compile(r"\b(example|format|guide|history|output|rule)", re.IGNORECASE)
_ORDERS = "explain|describe|tell|list|give|show|find|name|summari[sz]e|compare|look|search"
_ORDER = re.compile(rf"\s*({_ORDERS})\b", re.IGNORECASE)
_QUESTION = re.compile(r"[^.!?\n]*(?:\.\w[^.!?\n]*)*\?")
_LONG = 300


def question(conversation: Connection) -> str:
    """The newest text that asks: a section titled so, else sentences ending in `?`, else an order."""
    given = [message.text for message in reversed(conversation.given)]
    return next(filter(None, map(_asked_in, given)), next(iter(given), ""))


def _asked_in(text: str) -> str:
    parts = [section for section in sections(text) if section.body]
    for titles in _TITLES:
        for part in reversed(parts):
            if re.search(rf"\b({titles})s?\b", part.title, re.IGNORECASE) and not _NO_TITLE.search(
                part.title
            ):
                return _core(part.body)
    if "?" in (prose := "\n".join(unit for part in parts for unit in part.units)):
        return _core(prose)
    return text.strip() if asks(text) else ""


def asks(text: str) -> bool:
    """Whether a text is a question or an order rather than a statement."""
    return text.rstrip().endswith("?") or bool(_ORDER.match(text))


def _core(text: str) -> str:
    asking = [sentence.strip() for sentence in _QUESTION.findall(text)]
    return " ".join(asking) if asking and len(text) > _LONG else text.strip()


@dataclass(frozen=True, slots=True)
class ClosedSection:
    """A section shown as a summary, with the tool and the key that open it."""

    tool: str
    key: str
    about: str


# The renderer's marker: [This section is summarized. ... call `tool` with key "a.b" ...]
_MARKER = re.compile(
    r"\[[^\[\]]*\bcall\s+`([^`]+)`\s+with\s+key\s+\"([^\"]+)\"([^\[\]]*)\]", re.IGNORECASE
)
_LISTED = re.compile(r"subsections:\s*(.*)", re.IGNORECASE | re.DOTALL)


def closed_sections(conversation: Connection) -> list[ClosedSection]:
    """Every summarized section shown, each key once: in messages, and in what an opening call gave
    back.
    """
    found: dict[str, ClosedSection] = {}
    texts = [message.text for message in conversation.given]
    while texts:
        for section in sections(texts.pop(0)):
            for tool, key, rest in _MARKER.findall(section.body):
                children = _LISTED.search(rest)
                about = " ".join(
                    [
                        section.title,
                        key,
                        children[1] if children else "",
                        _MARKER.sub("", section.body),
                    ]
                )
                if key not in found:
                    found[key] = ClosedSection(tool, key, about)
                    texts += [
                        text
                        for result in openings(conversation, found[key])
                        for text in result_texts(result)
                    ]
    return list(found.values())


def openings(conversation: Connection, section: ClosedSection) -> list[Result]:
    """The results of calls that opened this section."""
    calls = [result for result in conversation.results if result.call.name == section.tool]
    return [result for result in calls if section.key in strings(result.call.arguments)]


def result_texts(result: Result) -> list[str]:
    """The strings of a result one by one, if it holds JSON; else its text."""
    before, value = embedded_json(result.text)
    return [before, *strings(value)]


def evidence(conversation: Connection) -> list[Statement]:
    """Every quotable statement, each once: of tool results, then of the prompt itself."""
    found: dict[str, Statement] = {}
    openers = {section.tool for section in closed_sections(conversation)}
    told = [result for result in conversation.results if result.useful]
    read = {result.source for result in told}
    for result in told:
        if result.call.name in openers:  # part of the prompt, whatever files it names
            told_here = [each for text in result_texts(result) for each in statements(text, None)]
        else:
            told_here = list(result_statements(result.text, result.source))
        for statement in told_here:
            # a snippet adds nothing to the whole text
            if result.source or statement.source not in read:
                found.setdefault(statement.text, statement)
    for message in conversation.given:
        for statement in statements(message.text, None):
            found.setdefault(statement.text, statement)
    return [statement for statement in found.values() if not _MARKER.search(statement.text)]
