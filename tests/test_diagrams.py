"""The diagrams on the pages match the current behaviour of the code."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.diagrams import DRAWING, drawn
from tools.svg import Picture, width_of

ROOT = Path(__file__).parent.parent
NAMES = {
    page: re.findall(r"^<!-- diagram: ([a-z-]+) -->$", page.read_text(), re.MULTILINE)
    for page in sorted((ROOT / "docs").rglob("*.md"))
}
PAGES = [page for page, names in NAMES.items() if names]


def where(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=where)
def test_figures_of_each_page_are_up_to_date(page: Path) -> None:
    for file, new in drawn(page).items():
        assert file.read_text() == new, (
            f"{where(file)} is out of date; run `make diagrams` and look at it"
        )


def test_each_figure_appears_on_exactly_one_page() -> None:
    assert sorted(name for names in NAMES.values() for name in names) == sorted(DRAWING)


def test_each_picture_belongs_to_a_figure() -> None:
    pictures = [name for name in DRAWING if isinstance(DRAWING[name](), Picture)]
    files = {file.stem for file in (ROOT / "docs/figures").glob("*.svg")}
    assert files - {"icon"} == set(pictures)  # the site's icon is drawn by hand


@pytest.mark.parametrize("name", DRAWING)
def test_picture_contains_all_of_its_text(name: str) -> None:
    figure = DRAWING[name]()
    if isinstance(figure, Picture):
        root = ET.fromstring(figure.svg())  # noqa: S314 - our own text
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            length = width_of(text.text or "")
            left = float(text.get("x", "0")) - {"end": length, "middle": length / 2}.get(
                text.get("text-anchor", ""), 0
            )
            assert 0 <= left <= left + length <= figure.width, text.text
            assert float(text.get("y", "0")) <= figure.height
