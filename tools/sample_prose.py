"""Draws sentences from the project with a seed, so that a reader can judge how native they sound.

`python tools/sample_prose.py --mix FILE > sheet` draws 100 sentences each from docstrings,
errors, pages, specifications and test names, mixes them with the lines of FILE (sentences of other
projects), and prints them as `number<TAB>sentence`. `--key` prints `number<TAB>source` instead.
"""

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MIN_WORDS = 4
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'])")
_MARKUP = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")  # links and figures
_PRAGMA = re.compile(r"#\s*(type:|pyright:|noqa|pragma|ruff|!)")


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences in a Markdown text that have `MIN_WORDS` or more words."""
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s", text):
        plain = " ".join(_MARKUP.sub(r"\1", paragraph).split())
        for sentence in _END.split(plain):
            if len(sentence.split()) >= MIN_WORDS and not sentence.startswith(("|", "#", "<", "=")):
                yield sentence


def prose_of_page(path: Path) -> Iterator[str]:
    """Yields the sentences of a page, without its code blocks and tables."""
    text = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<"))]
    yield from sentences("\n".join(lines))


def prose_of_module(path: Path) -> Iterator[str]:
    """Yields the sentences of a module's docstrings and comments."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from sentences(ast.get_docstring(node) or "")
    comment = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _PRAGMA.match(token.string):
            comment += f" {token.string.lstrip('# ')}"
        elif token.type not in (tokenize.NL, tokenize.NEWLINE):
            yield from sentences(comment)
            comment = ""


def errors_of_module(path: Path) -> Iterator[str]:
    """Yields the messages in a module's `raise` statements."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                if isinstance(argument, ast.JoinedStr | ast.Constant):
                    text = ast.unparse(argument).removeprefix("f").strip("'\"")
                    yield from [text] if len(text.split()) >= MIN_WORDS else []


def names_of_tests(path: Path) -> Iterator[str]:
    """Yields the names of a module's tests as words."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield node.name[5:].replace("_", " ")


def collect(root: Path) -> dict[str, list[str]]:
    """Returns the sentences of each source, in the order of the files."""
    source = sorted((root / "src").rglob("*.py"))
    tests = sorted((root / "tests").rglob("test_*.py"))
    pages = [*sorted((root / "docs").rglob("*.md")), root / "README.md", root / "llms.md"]
    return {
        "src": [text for path in source for text in prose_of_module(path)],
        "errors": [text for path in source for text in errors_of_module(path)],
        "docs": [text for path in pages for text in prose_of_page(path)],
        "specs": [
            text for path in sorted((root / "specs").rglob("*.md")) for text in prose_of_page(path)
        ],
        "tests": [text for path in tests for text in names_of_tests(path)],
    }


def main() -> None:
    """Prints the sheet, or its key."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--mix", type=Path, help="sentences of other projects, one a line")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=39)
    parser.add_argument("--key", action="store_true", help="print the sources, not the sentences")
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - repeatable
    drawn: list[tuple[str, str]] = []
    for name, found in collect(options.root).items():
        unique = sorted(set(found))
        drawn += [(name, text) for text in chance.sample(unique, min(options.count, len(unique)))]
    if options.mix:
        drawn += [("other", line) for line in options.mix.read_text().splitlines() if line.strip()]
    chance.shuffle(drawn)
    for number, (name, text) in enumerate(drawn, 1):
        print(number, name if options.key else text, sep="\t")


if __name__ == "__main__":
    main()
