"""`Citation` is a source that a model cites, with the passage of its answer that cites it."""

from dataclasses import dataclass, replace

__all__ = ["Citation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A source that the model cites; `text[start:end]` of its message is the cited passage.

    `start` and `end` count code points; both are `None` if the provider does not report a passage.
    `source` is the provider's id of a file or a document, and `quote` is the text that the provider
    quotes from the source. Unknown texts are empty.
    """

    url: str = ""
    title: str = ""
    source: str = ""
    quote: str = ""
    start: int | None = None
    end: int | None = None

    @property
    def span(self) -> tuple[int, int] | None:
        """The passage as a pair, or `None` if it is unknown."""
        return None if self.start is None or self.end is None else (self.start, self.end)

    def passage(self, text: str) -> str:
        """Returns the cited passage of the message's text, or `""` if it is unknown."""
        return "" if self.span is None else text[self.start : self.end]

    def moved(self, distance: int) -> "Citation":
        """Returns the citation of a text that has `distance` more code points before it."""
        if self.start is None or self.end is None or not distance:
            return self
        return replace(self, start=self.start + distance, end=self.end + distance)

    @property
    def link(self) -> str:
        """The URL if a page may link to it, which means HTTP or HTTPS; otherwise `""`."""
        return self.url if self.url.lower().startswith(("https://", "http://")) else ""

    @property
    def name(self) -> str:
        """The source's title, URL or id, or `""` if it has none of them."""
        return self.title or self.url or self.source
