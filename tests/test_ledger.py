"""The ledger of claims is whole: every row is there and names tests that exist. Whether they check it, people read."""

import re
from pathlib import Path

import pytest

from support.ledger import TESTS, Ledger, exists, faults, read


def test_every_claim_names_tests_that_exist() -> None:
    ledger, counts = read()
    assert sum(counts.values()) == 253
    assert list(faults(ledger, counts)) == []


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ({"01": ["One.", "t.py::test_one"]}, "A-02: there is no such row"),
        ({"01": ["One.", "t.py::test_one"], "02": ["Two."]}, "A-02: no test checks 'Two.'"),
        ({"01": ["One.", "t.py::test_one"], "02": ["", "t.py::test_one"]}, "A-02: the claim has 0 characters; use"),
        ({"01": ["One.", "t.py::test_one"], "02": ["x" * 101, "t.py::test_one"]}, "A-02: the claim has 101 char"),
        (
            {"01": ["One.", "t.py::test_one"], "02": ["Two.", "t.py::test_one", "t.py::test_two"]},
            "A-02: there is no test 't.py::test_two'",
        ),
        (
            {row: ["One.", "t.py::test_one"] for row in ("01", "02", "03")},
            "A-03: is beyond the group's 2 rows",
        ),
    ],
    ids=["missing", "untested", "empty", "long", "gone", "beyond"],
)
def test_each_fault_of_a_ledger_is_found(tmp_path: Path, rows: dict[str, list[str]], fault: str) -> None:
    (tmp_path / "t.py").write_text("def test_one(): ...\ndef helper(): ...\n")
    ledger: Ledger = {"A": rows}
    [found] = faults(ledger, {"A": 2}, tmp_path)
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("test", "there"),
    [
        ("t.py::test_one", True),
        ("t.py::test_later", True),
        ("t.py::TestGroup::test_inside", True),
        ("t.py::TestMachine", True),
        ("t.py::helper", False),
        ("t.py::test_inside", False),
        ("t.py", False),
        ("gone.py::test_one", False),
    ],
)
def test_a_test_is_known_by_the_id_that_pytest_gives_it(tmp_path: Path, test: str, there: bool) -> None:  # noqa: FBT001 - a table
    (tmp_path / "t.py").write_text(
        "def test_one(): ...\nasync def test_later(): ...\ndef helper(): ...\n"
        "class TestGroup:\n    def test_inside(self): ...\nTestMachine = Machine.TestCase\n"
    )
    assert exists(test, tmp_path) is there


def test_the_numbers_of_rows_stand_in_the_ledger_alone() -> None:
    number = re.compile(rf"\b(?:{'|'.join(read()[1])})-\d\d\b")
    pages = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    assert [path.name for path in pages if number.search(path.read_text())] == []
