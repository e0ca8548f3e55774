"""The programs in tests/typing pass both type checkers in their strictest mode. Each page's Python
blocks, joined as they run, pass mypy, because users copy them into type-checked projects.

A line that must be rejected has both ignores, ``# type: ignore[code]  # pyright: ignore[rule]``:
each checker reports an unnecessary ignore, so the test fails if a line is no longer rejected.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted(Path(__file__).with_name("typing").glob("*.py"))
PAGES = sorted(
    page for pattern in ("*.md", "docs/**/*.md", "specs/**/*.md") for page in ROOT.glob(pattern)
)
NOT_CHECKED = (
    r">>>",  # a doctest, not a program
    r"# test_\w+\.py\n",  # pytest's functions, whose fixtures are usually not annotated
)
# Users do not have our exemptions. Blocks of one page define variants under one name, and the
# later one counts for what follows it.
OPTIONS = """
[mypy]
strict = True
enable_error_code = ignore-without-code
[mypy-pages.*]
allow_redefinition = True
disable_error_code = no-redef
"""
# Pyright as installed, with its own Node; it does not look for newer versions.
ENVIRONMENT = os.environ | {
    "PYRIGHT_PYTHON_GLOBAL_NODE": "0",
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
}


def program_of(page: Path) -> str:
    """Returns the page as a program; each line of its blocks keeps its line number on the page."""
    text = page.read_text()
    own_files = re.findall(r"^```python\n# (\w+)\.py$", text, re.MULTILINE)
    lines = [""] * len(text.splitlines())
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        skipped = any(re.match(start, token.content) for start in NOT_CHECKED)
        if token.type == "fence" and token.info == "python" and token.map and not skipped:
            first = token.map[0] + 1
            block = token.content.splitlines()
            lines[first : first + len(block)] = block
    # Names that a block imports from a file on the same page are already in the namespace.
    imports = [re.compile(rf"from {name} import [\w, ]+") for name in own_files]
    return "\n".join(
        "pass" if any(it.fullmatch(line) for it in imports) else line for line in lines
    )


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def mypy_report(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns mypy's report on the programs and the pages. It checks them together, because it
    spends most of its time on imports.
    """
    folder = tmp_path_factory.mktemp("typing")
    (folder / "mypy.ini").write_text(OPTIONS)
    pages = folder / "pages"
    pages.mkdir()
    (pages / "__init__.py").touch()
    places: dict[str, str] = {}
    for page in PAGES:
        program = program_of(page)
        if "from dbos" in program and find_spec("dbos") is None:
            continue  # `make test-durable` checks it
        if "from inspect_ai" in program and find_spec("inspect_ai") is None:
            continue  # `make test-inspect` runs it
        if program.strip():
            name = page.relative_to(ROOT).as_posix()
            file = pages / f"{re.sub(r'\W', '_', name)}.py"
            file.write_text(program)
            places[file.name] = name
    assert len(places) > 50
    ran = run(
        "mypy",
        f"--config-file={folder / 'mypy.ini'}",
        "--cache-dir=.mypy_cache/programs",
        *map(str, PROGRAMS),
        str(pages),
    )
    report = ran.stdout
    for file_name, name in places.items():
        report = re.sub(rf"^\S*pages/{re.escape(file_name)}", name, report, flags=re.MULTILINE)
    lines = report.splitlines()
    assert lines, ran.stderr
    assert f"{len(PROGRAMS) + len(places) + 1} source files" in lines[-1], report
    return lines[:-1]


def of_programs(line: str) -> bool:
    return line.startswith("tests/typing/")


@pytest.mark.claim("DT-02", "TL-04", "TL-14")
def test_mypy_strict_agrees_with_every_program(mypy_report: list[str]) -> None:
    faults = [line for line in mypy_report if of_programs(line)]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.claim("TL-43", "N-31")
def test_blocks_of_every_page_pass_mypy_strict(mypy_report: list[str]) -> None:
    faults = [line for line in mypy_report if not of_programs(line)]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_pyright_strict_agrees_with_every_program() -> None:
    ran = run(
        "pyright", "--outputjson", "--project", "tests/typing", "--pythonpath", sys.executable
    )
    assert ran.stdout, ran.stderr
    report = json.loads(ran.stdout)
    faults = [
        f"{at['file']}:{at['range']['start']['line'] + 1}: {at['message']}"
        for at in report["generalDiagnostics"]
    ]
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)
