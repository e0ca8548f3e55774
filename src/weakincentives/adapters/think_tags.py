"""Separates text from reasoning that a server leaves in it, between `<think>` and `</think>`."""

import re
from typing import Literal

__all__ = ["ThoughtFilter", "split_thoughts"]

_TAGS = ("<think>", "<thinking>")
_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_END_ON_ITS_LINE = re.compile(rf"^[ \t]*{_END.pattern}[ \t]*$", re.IGNORECASE | re.MULTILINE)
_MAX_TAG = len("</thinking>")


def split_thoughts(text: str) -> tuple[str, str]:
    """Returns the reasoning at the beginning of a text, and the rest of the text.

    The opening tag is often part of the model's template instead of its answer. If there is no
    opening tag, a closing tag ends the reasoning only if it is on a line of its own.
    """
    begin = text.lstrip()
    if begin[:_MAX_TAG].lower().startswith(_TAGS):
        thought = begin[begin.index(">") + 1 :]
        end = _END.search(thought)
        if end is None:
            return thought.strip(), ""
        return thought[: end.start()].strip(), thought[end.end() :].lstrip()
    end = _END_ON_ITS_LINE.search(text)
    if end is None or "<think" in text[: end.start()].lower():
        return "", text
    return text[: end.start()].strip(), text[end.end() :].lstrip()


class ThoughtFilter:
    """Separates the reasoning at the beginning of a text that arrives in chunks from the text.

    Reasoning without an opening tag is not recognized, because only its end would reveal it.
    """

    def __init__(self) -> None:
        self._held = ""
        self._blanks: list[str] = []  # at the end of the reasoning so far
        self._has_thought = False
        self._state: Literal["start", "thought", "gap", "text"] = "start"

    def feed(self, chunk: str) -> tuple[str, str]:
        """Returns the additional reasoning and text that can be shown so far."""
        thought = ""
        if self._state == "start":
            self._held += chunk
            begin = self._held.lstrip()
            tag = begin[:_MAX_TAG].lower()
            if not tag.startswith(_TAGS):
                if any(known.startswith(tag) for known in _TAGS):
                    return "", ""  # it may turn out to be a tag
                self._state = "text"
                return "", self._held
            self._state, self._held, chunk = "thought", "", begin[begin.index(">") + 1 :]
        if self._state == "thought":
            self._held += chunk
            end = _END.search(self._held)
            # The chunk may end with the beginning of a tag.
            ready = self._held[: end.start()] if end else self._held[:-_MAX_TAG]
            thought, chunk = self._without_blanks(ready), ""
            if end is None:
                self._held = self._held[len(ready) :]
            else:
                self._state, chunk = "gap", self._held[end.end() :]
        if self._state == "gap" and (chunk := chunk.lstrip()):
            self._state = "text"
        return thought, chunk

    def _without_blanks(self, thought: str) -> str:
        """Returns a chunk of the reasoning; keeps blanks until more reasoning follows them."""
        if not self._has_thought:
            thought = thought.lstrip()
        text = thought.rstrip()
        if not text:
            self._blanks.append(thought)
            return ""
        before, self._blanks = "".join(self._blanks), [thought[len(text) :]]
        self._has_thought = True
        return before + text
