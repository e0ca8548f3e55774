"""The documents: read once, split at their headings, searched with BM25."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt

from examples.offline_model.scoring import rank

__all__ = ["Library", "Passage"]

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "specs")


@dataclass(frozen=True, slots=True)
class Passage:
    """The text under one heading of a document, with the headings above it."""

    path: str
    headings: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Library:
    """Markdown documents under `root`, by their paths relative to it, in sorted order."""

    documents: dict[str, str]

    @classmethod
    def load(cls, root: Path = ROOT, folders: tuple[str, ...] = FOLDERS) -> "Library":
        """Reads every Markdown file in `folders` of `root`."""
        files = sorted(file for folder in folders for file in (root / folder).rglob("*.md"))
        paths = [file.relative_to(root).as_posix() for file in files]
        texts = [file.read_text(encoding="utf-8") for file in files]
        return cls(dict(zip(paths, texts, strict=True)))

    def title(self, path: str) -> str:
        """Returns the document's first heading, or its path if it has no heading."""
        lines = self.documents[path].splitlines()
        return next((line.lstrip("# ") for line in lines if line.startswith("#")), path)

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """Every passage of every document, in order."""
        return tuple(
            passage for path, text in self.documents.items() for passage in _split(path, text)
        )

    def search(self, query: str, limit: int) -> list[Passage]:
        """Returns the passages that share a telling word with `query`, best first."""
        texts = [
            f"{passage.path} {' '.join(passage.headings)}\n{passage.text}"
            for passage in self.passages
        ]
        scores = rank(query, texts)
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return [self.passages[index] for index in order[:limit] if scores[index] > 0]


def _split(path: str, text: str) -> list[Passage]:
    """Returns the document's passages, one for each heading."""
    lines = text.splitlines()
    tokens = MarkdownIt().parse(text)
    starts = [
        (token.map[0], int(token.tag[1:]), following.content)
        for token, following in pairwise(tokens)
        if token.type == "heading_open" and token.map is not None
    ]
    ends = [line for line, _, _ in starts[1:]] + [len(lines)]
    passages: list[Passage] = []
    open_headings: dict[int, str] = {}  # by level
    for (start, level, heading), end in zip(starts, ends, strict=True):
        above = {key: text for key, text in open_headings.items() if key < level}
        open_headings = {**above, level: heading}
        if body := "\n".join(lines[start + 1 : end]).strip():
            passages.append(Passage(path, tuple(open_headings.values()), body))
    return passages
