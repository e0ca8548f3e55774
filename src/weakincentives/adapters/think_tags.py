"""Removes reasoning that a server leaves in the text, between `<think>` and `</think>`."""

import re

__all__ = ["ThoughtFilter", "without_thoughts"]

_TAGS = ("<think>", "<thinking>")
_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_END_ON_ITS_LINE = re.compile(rf"^[ \t]*{_END.pattern}[ \t]*$", re.IGNORECASE | re.MULTILINE)
_MAX_TAG = len("</thinking>")


def without_thoughts(text: str) -> str:
    """Removes the reasoning at the beginning of a text.

    The opening tag is often part of the model's template instead of its answer. If there is no
    opening tag, a closing tag ends the reasoning only if it is on a line of its own.
    """
    if text.lstrip()[:_MAX_TAG].lower().startswith(_TAGS):
        end = _END.search(text)
        return text[end.end() :].lstrip() if end else ""
    end = _END_ON_ITS_LINE.search(text)
    if end is None or "<think" in text[: end.start()].lower():
        return text
    return text[end.end() :].lstrip()


class ThoughtFilter:
    """Removes the reasoning at the beginning of a text that arrives in chunks.

    Reasoning without an opening tag is not removed, because only its end would reveal it.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_thought = False
        self._passes = False

    def feed(self, chunk: str) -> str:
        """Returns the additional text that can be shown so far."""
        if self._passes:
            return chunk
        self._held += chunk
        if not self._is_thought:
            begin = self._held.lstrip()[:_MAX_TAG].lower()
            self._is_thought = begin.startswith(_TAGS)
            if not self._is_thought:
                if any(tag.startswith(begin) for tag in _TAGS):
                    return ""  # it may turn out to be a tag
                self._passes = True
                return self._held
        end = _END.search(self._held)
        if end is None:
            # The chunk may end with the beginning of a tag.
            self._held = _TAGS[0] + self._held[-_MAX_TAG:]
            return ""
        shown = self._held[end.end() :].lstrip()
        self._passes = bool(shown)
        return shown
