"""The documents: read once, cut at their headings, searched with BM25."""

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
        return cls(
            {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}
        )

    def title(self, path: str) -> str:
        """The document's first heading."""
        return next(
            (
                line.lstrip("# ")
                for line in self.documents[path].splitlines()
                if line.startswith("#")
            ),
            path,
        )

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """Every passage of every document, in order."""
        return tuple(
            passage for path, text in self.documents.items() for passage in _cut(path, text)
        )

    def search(self, query: str, limit: int) -> list[Passage]:
        """The passages that share most with `query`, best first; none when no telling word is
        shared.
        """
        scores = rank(
            query,
            [
                f"{passage.path} {' '.join(passage.headings)}\n{passage.text}"
                for passage in self.passages
            ],
        )
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return [self.passages[index] for index in order[:limit] if scores[index] > 0]


def _cut(path: str, text: str) -> list[Passage]:
    """The document's passages, one a heading."""
    lines = text.splitlines()
    tokens = MarkdownIt().parse(text)
    starts = [
        (token.map[0], int(token.tag[1:]), following.content)
        for token, following in pairwise(tokens)
        if token.type == "heading_open" and token.map is not None
    ]
    passages: list[Passage] = []
    trail: list[tuple[int, str]] = []
    for index, (line, level, heading) in enumerate(starts):
        end = starts[index + 1][0] if index + 1 < len(starts) else len(lines)
        trail = [*(one for one in trail if one[0] < level), (level, heading)]
        body = "\n".join(lines[line + 1 : end]).strip()
        if body:
            passages.append(Passage(path, tuple(name for _, name in trail), body))
    return passages
