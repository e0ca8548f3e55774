"""The ledger of claims is complete: no claim is missing, and each has a test marked with it."""

from pathlib import Path

import pytest

from support.ledger import find_faults, read_claims, read_marks


def test_every_claim_has_a_marked_test() -> None:
    claims, counts = read_claims()
    assert len(claims) == 285
    assert list(find_faults(claims, counts, read_marks())) == []


@pytest.mark.parametrize(
    ("claims", "fault"),
    [
        ({"A-01": "One."}, "A-02: the claim is missing"),
        ({"A-01": "One.", "A-02": "Two.", "A-03": "Three."}, "A-03: is beyond the group's count"),
        ({"A-01": "One.", "A-02": ""}, "A-02: the claim has 0 characters; use"),
        ({"A-01": "One.", "A-02": "x" * 101}, "A-02: the claim has 101 char"),
    ],
    ids=["missing", "beyond", "empty", "long"],
)
def test_each_kind_of_fault_in_the_claims_is_found(claims: dict[str, str], fault: str) -> None:
    marks = {claim: ["t.py::test_one"] for claim in claims}
    [found] = find_faults(claims, {"A": 2}, marks)
    assert found.startswith(fault)


def test_claims_without_marks_and_marks_without_claims_are_found(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        '@pytest.mark.claim("A-01", "A-09")\ndef test_one(): ...\n'
        '@other\n@pytest.mark.claim("A-02")\nasync def test_later(): ...\n'
        'class TestGroup:\n    @pytest.mark.claim("A-02")\n    def test_inside(self): ...\n'
        'TestMachine = Machine.TestCase\nTestMachine.pytestmark = [pytest.mark.claim("A-01")]\n'
    )
    marks = read_marks(tmp_path)
    assert marks == {
        "A-01": ["test_it.py::test_one", "test_it.py::TestMachine"],
        "A-02": ["test_it.py::test_later", "test_it.py::TestGroup::test_inside"],
        "A-09": ["test_it.py::test_one"],
    }
    claims = {"A-01": "One.", "A-02": "Two.", "A-03": "Three."}
    unchecked, unknown = find_faults(claims, {"A": 3}, marks)
    assert unchecked.startswith("A-03: no test checks 'Three.'")
    assert unknown.startswith("A-09: test_it.py::test_one is marked with it")
