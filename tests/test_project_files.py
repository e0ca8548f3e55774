"""Rules of the project that no other tool checks.

They cover the installed package, and whether documents and the Makefile are right.
"""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from importlib.metadata import requires
from io import StringIO
from pathlib import Path
from token import NAME
from tokenize import generate_tokens

import pytest
from markdown_it import MarkdownIt
from sybil import Document
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for pattern in ("README.md", "llms.md", "docs/**/*.md", "specs/**/*.md")
    for page in ROOT.glob(pattern)
)
# Identifiers that readers had to decode, and the words that they might come back as.
BANNED_WORDS = set(
    re.findall(
        r"\w+",
        """
    ports specialised Specialised door Scene scene Visit Written tool_spec Fault faults status_fault
    request_fault Given converse harmless Flow Came Attempt together _alone Work WorkKind gave heard
    _Living _Made _Mark born Link by_hand overlaid held_against _Life Takeover _tell _hear _settle
    spares ONCE speakable Mistake
    came held living made mine said those told whole
        """,
    )
)
MODULES = sorted((ROOT / "src").rglob("*.py"))
PROJECT = (ROOT / "pyproject.toml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()

# Python and console blocks are run (conftest.py), and `make` lines in sh blocks are checked below;
# the others cannot be run.
LANGUAGES = {"python", "console", "sh", "text", "json", "toml", "yaml", "mermaid", "markdown"}


def where(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fences(page: Path) -> list[tuple[str, str]]:
    """Returns the language and source of each fenced or indented block, according to CommonMark."""
    tokens = MarkdownIt().parse(page.read_text())
    return [
        (token.info.strip(), token.content)
        for token in tokens
        if token.type in {"fence", "code_block"}
    ]


def strings(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for item in value for text in strings(item)]
        case _:
            return []


def test_no_line_of_the_library_is_longer_than_100_columns() -> None:
    lines = [(where(path), line) for path in MODULES for line in path.read_text().splitlines()]
    long = [(path, line) for path, line in lines if len(line) > 100]
    # the reason for an exemption is in its line
    code = [(path, re.split(r"  # (?:noqa|pyright):", line)[0]) for path, line in long]
    assert [(path, line) for path, line in code if len(line) > 100] == []


def test_no_module_has_more_than_600_lines_and_no_function_more_than_60() -> None:
    for module in MODULES:
        text = module.read_text()
        assert text.count("\n") <= 600, f"{where(module)} is too long; split it by topic"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 60, (where(module), node.name)


def test_package_is_marked_as_typed() -> None:
    assert (ROOT / "src/weakincentives/py.typed").is_file()


def test_only_pydantic_and_typing_extensions_are_required() -> None:
    needed = [text for text in requires("weakincentives") or [] if "extra ==" not in text]
    assert {re.split(r"[^\w-]", text)[0] for text in needed} == {"pydantic", "typing-extensions"}


@pytest.mark.parametrize("module", MODULES, ids=where)
def test_every_module_has_a_docstring(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text()))


def test_every_dependency_and_exemption_has_a_reason() -> None:
    data = tomllib.loads(PROJECT)
    lint = data["tool"]["ruff"]["lint"]
    owed = strings(
        [
            data["build-system"]["requires"],
            data["project"]["dependencies"],
            *data["project"]["optional-dependencies"].values(),
            *data["dependency-groups"].values(),
            lint["ignore"],
            *lint["per-file-ignores"].values(),
        ]
    )
    explained = re.findall(
        r'^ *(?:requires = \[)?"([^"]+)"[\],]+ +# *\w\S* \S', PROJECT, re.MULTILINE
    )
    assert owed
    assert Counter(owed) - Counter(explained) == Counter()


@pytest.mark.claim("PD-38")
@pytest.mark.parametrize("page", PAGES, ids=where)
def test_every_code_block_is_tested(page: Path) -> None:
    """Sybil finds blocks with its own pattern; CommonMark determines which blocks exist."""
    found = fences(page)
    assert {language for language, _ in found} <= LANGUAGES
    document = Document(page.read_text(), str(page))
    for run in ("python", "console"):
        blocks = [source for language, source in found if language == run]
        assert [str(r.parsed) for r in CodeBlockParser(run, lambda _: None)(document)] == blocks


@pytest.mark.parametrize("page", PAGES, ids=where)
def test_python_code_on_a_page_has_at_most_88_columns(page: Path) -> None:
    """A line of 88 characters fits the column of a page that is 1280 pixels wide."""
    lines = [
        line
        for language, source in fences(page)
        if language == "python"
        for line in source.splitlines()
    ]
    assert [line for line in lines if len(line) > 88] == []


@pytest.mark.parametrize("page", PAGES, ids=where)
def test_every_make_command_in_a_document_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9.-]+):", MAKEFILE, re.MULTILINE))
    shown = [
        target
        for language, source in fences(page)
        if language == "sh"
        for target in re.findall(r"^\$?\s*(?:\w+=\S+ )*make ([a-z0-9.-]+)", source, re.MULTILINE)
    ]
    assert [target for target in shown if target not in targets] == []


@pytest.mark.parametrize("file", [*MODULES, *PAGES], ids=where)
def test_code_uses_no_banned_names(file: Path) -> None:
    """These names have plainer ones, such as `ValidationIssue` for `Fault`."""
    sources = (
        [file.read_text()]
        if file.suffix == ".py"
        else [source for language, source in fences(file) if language == "python"]
    )
    tokens = [
        token.string
        for source in sources
        for token in generate_tokens(StringIO(source).readline)
        if token.type == NAME
    ]
    assert sorted(BANNED_WORDS & set(tokens)) == []


def test_every_make_target_is_described() -> None:
    phony = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert phony
    assert [
        t for t in phony if not re.search(rf"^{re.escape(t)}:.*## \w", MAKEFILE, re.MULTILINE)
    ] == []


@cache
def quick_test_files() -> list[str]:
    """Returns the text of each test file with a function that `make test-fast` runs."""
    slow = set((ROOT / "tests/slow.txt").read_text().splitlines())
    files = {where(file): file.read_text() for file in sorted((ROOT / "tests").rglob("test_*.py"))}
    return [
        text
        for name, text in files.items()
        if name not in slow
        and {f"{name}::{test}" for test in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
        - slow
    ]


@pytest.mark.parametrize(
    "package", [file for file in MODULES if file.stem == "__init__"], ids=where
)
def test_make_test_fast_runs_tests_of_every_package(package: Path) -> None:
    name = ".".join(package.parent.relative_to(ROOT / "src").parts)
    assert any(f"from {name}" in text for text in quick_test_files())


def test_tests_import_nothing_from_each_other() -> None:
    """Shared code is in tests/support."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - {"support"}
    pattern = rf"^from (?:{'|'.join(sorted(folders))})\.(?:\w+\.)*test_\w+ import"
    importing = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert importing == []
