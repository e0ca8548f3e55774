"""The Python blocks of each page, joined as they run, pass mypy at its strictest.

A user copies them into a project that is type-checked.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page for pattern in ("*.md", "docs/**/*.md", "specs/**/*.md") for page in ROOT.glob(pattern)
)
NOT_CHECKED = (
    r">>>",  # a doctest; it is no program
    r"# test_\w+\.py\n",  # pytest's functions, whose fixtures most people leave without annotations
)
# Blocks of one page show variants under one name, and the later one counts for what follows it.
VARIANTS = ("--allow-redefinition", "--disable-error-code=no-redef")


def program_of(page: Path) -> str:
    """Returns the page as a program: each line of its blocks has the line number of the page."""
    text = page.read_text()
    own_files = re.findall(r"^```python\n# (\w+)\.py$", text, re.MULTILINE)
    lines = [""] * len(text.splitlines())
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        skipped = any(re.match(start, token.content) for start in NOT_CHECKED)
        if token.type == "fence" and token.info == "python" and token.map and not skipped:
            first = token.map[0] + 1
            block = token.content.splitlines()
            lines[first : first + len(block)] = block
    # What a block imports from a file of the same page is in the same namespace already.
    imports = [re.compile(rf"from {name} import [\w, ]+") for name in own_files]
    return "\n".join(
        "pass" if any(it.fullmatch(line) for it in imports) else line for line in lines
    )


@pytest.mark.claim("TL-43", "N-31")
def test_blocks_of_every_page_pass_mypy_strict(tmp_path: Path) -> None:
    pages: dict[str, str] = {}
    for page in PAGES:
        program = program_of(page)
        if "from dbos" in program and find_spec("dbos") is None:
            continue  # `make test-durable` has it
        if program.strip():
            name = re.sub(r"\W", "_", page.relative_to(ROOT).as_posix())
            (tmp_path / f"{name}.py").write_text(program)
            pages[f"{tmp_path.name}/{name}.py"] = page.relative_to(ROOT).as_posix()
    assert len(pages) > 50
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", *VARIANTS),
            "--config-file=",  # the exemptions of this project are not a user's
            "--enable-error-code=ignore-without-code",
            f"--cache-dir={ROOT / '.mypy_cache/pages'}",
            *(f"{tmp_path}/{Path(program).name}" for program in pages),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    report = ran.stdout
    for program, where in pages.items():
        report = re.sub(rf"\S*{re.escape(program)}", where, report)
    if ran.returncode:
        pytest.fail(report + ran.stderr, pytrace=False)
