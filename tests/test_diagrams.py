"""The diagrams of the pages say what the code does now."""

import re
from pathlib import Path

import pytest

from tools.diagrams import DRAWING, drawn

ROOT = Path(__file__).parent.parent
NAMES = {
    page: re.findall(r"^<!-- diagram: ([a-z-]+) -->$", page.read_text(), re.MULTILINE)
    for page in sorted((ROOT / "docs").rglob("*.md"))
}
PAGES = [page for page, names in NAMES.items() if names]


def where(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=where)
def test_a_page_has_the_diagrams_that_the_code_draws(page: Path) -> None:
    text = page.read_text()
    assert drawn(text) == text, f"a diagram of {where(page)} is out of date; run `make diagrams` and look at it"


def test_each_drawing_stands_on_one_page() -> None:
    assert sorted(name for names in NAMES.values() for name in names) == sorted(DRAWING)


@pytest.mark.parametrize("name", DRAWING)
def test_a_drawing_is_narrow_enough_to_be_read(name: str) -> None:
    assert max(map(len, DRAWING[name]())) <= 100
