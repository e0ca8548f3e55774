"""A conversation as a neutral value: its question, its closed sections and its evidence.

`formats` creates these values from requests. This module neither scores nor decides.
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
    """A message of the system, a developer, the user or the model."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An earlier call with its output."""

    call: Call
    text: str

    @property
    def source(self) -> str | None:
        """The name of the thing that the call read, such as a file."""
        arguments = self.call.arguments.items()
        return identifier({key: value for key, value in arguments if name_words(key) & NAMING})

    @property
    def useful(self) -> bool:
        """Whether the output is neither a failure nor an echo of the call."""
        before, value = embedded_json(self.text)
        if isinstance(value, Mapping) and (value.get("error") or value.get("success") is False):
            return False
        if value is not None:
            return any(text not in self.call.arguments.values() for text in strings(value))
        is_failure = _FAILURE.match(before) and len(before) < _LONGEST_FAILURE
        return bool(before.strip()) and not is_failure


_THINGS = "result|match(es)?|document|file|hit|entry|entries|item|record|passage|page|section"
_FAILURE = re.compile(
    r"\s*(error\b|failed\b|unknown \w+|invalid \w+|not found|nothing (found|matche)"
    rf"|(no|0|none) (such |matching |relevant )?({_THINGS})s?\b)",
    re.IGNORECASE,
)
_LONGEST_FAILURE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The content of one request. `tool_choice` is auto, none, required or a tool's name."""

    turns: tuple[Message | Result, ...]
    tools: tuple[Tool, ...] = ()
    answer_schema: Mapping[str, object] | None = None
    tool_choice: str = "auto"

    @property
    def results(self) -> list[Result]:
        return [turn for turn in self.turns if isinstance(turn, Result)]

    @property
    def messages(self) -> list[Message]:
        """The messages that are not the model's own, instructions first."""
        messages = [turn for turn in self.turns if isinstance(turn, Message)]
        inputs = [message for message in messages if message.role != "assistant"]
        return sorted(inputs, key=lambda message: message.role == "user")

    def results_of(self, tool: Tool) -> list[Result]:
        """Returns the results of the calls of `tool`."""
        return [result for result in self.results if result.call.name == tool.name]


type Policy = Callable[[Conversation], Call | str]
"""Returns the next step of a conversation: a call, or the text of the answer."""

_TITLES = ("question", "query|request|ask", "task|objective|goal|problem")
_NO_TITLE = re.compile(r"\b(example|format|guide|history|output|rule)", re.IGNORECASE)
_ORDERS = "explain|describe|tell|list|give|show|find|name|summari[sz]e|compare|look|search"
_ORDER = re.compile(rf"\s*({_ORDERS})\b", re.IGNORECASE)
_QUESTION = re.compile(r"[^.!?\n]*(?:\.\w[^.!?\n]*)*\?")
_LONG = 300


def find_question(conversation: Conversation) -> str:
    """Returns the newest question: a section with such a title, sentences with `?`, or orders."""
    texts = [message.text for message in reversed(conversation.messages)]
    return next(filter(None, map(_question_in, texts)), next(iter(texts), ""))


def _question_in(text: str) -> str:
    parts = [section for section in sections(text) if section.body]
    for titles in _TITLES:
        pattern = re.compile(rf"\b({titles})s?\b", re.IGNORECASE)
        for part in reversed(parts):
            if pattern.search(part.title) and not _NO_TITLE.search(part.title):
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


def closed_sections(conversation: Conversation) -> list[ClosedSection]:
    """Returns the summarized sections in messages and in opened sections, each key once."""
    closed: dict[str, ClosedSection] = {}
    texts = [message.text for message in conversation.messages]
    while texts:
        for section in sections(texts.pop(0)):
            for tool, key, rest in _MARKER.findall(section.body):
                if key in closed:
                    continue
                children = _LISTED.search(rest)
                subsections = children[1] if children else ""
                summary = _MARKER.sub("", section.body)
                about = f"{section.title} {key} {subsections} {summary}"
                closed[key] = ClosedSection(tool, key, about)
                for result in openings(conversation, closed[key]):
                    texts += result_texts(result)
    return list(closed.values())


def openings(conversation: Conversation, section: ClosedSection) -> list[Result]:
    """Returns the results of the calls that opened this section."""
    calls = [result for result in conversation.results if result.call.name == section.tool]
    return [result for result in calls if section.key in strings(result.call.arguments)]


def result_texts(result: Result) -> list[str]:
    """Returns the strings of a result's JSON, or its text."""
    before, value = embedded_json(result.text)
    return [before, *strings(value)]


def evidence(conversation: Conversation) -> list[Statement]:
    """Returns each quotable statement once: from tool results, then from the prompt itself."""
    openers = {section.tool for section in closed_sections(conversation)}
    results = [result for result in conversation.results if result.useful]
    sources = {result.source for result in results}
    quotable: list[Statement] = []
    for result in results:
        if result.call.name in openers:  # part of the prompt, whatever files it names
            for text in result_texts(result):
                quotable += statements(text, None)
        else:
            # a snippet adds nothing if the complete text was read
            quotable += [
                statement
                for statement in result_statements(result.text, result.source)
                if result.source or statement.source not in sources
            ]
    for message in conversation.messages:
        quotable += statements(message.text, None)
    unique: dict[str, Statement] = {}
    for statement in quotable:
        unique.setdefault(statement.text, statement)
    return [statement for statement in unique.values() if not _MARKER.search(statement.text)]
