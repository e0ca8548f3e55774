"""The ledger of claims, built from the tests: a test that checks a claim is marked with
`@pytest.mark.claim("DT-13")`.

`tests/ledger.toml` contains the claims. As a program, this module prints each claim with its tests,
and then the table of combinations. If a claim has no test or a mark has no claim, it reports that
on standard error and exits with 1.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.combinations import read_table, table_lines

TESTS = Path(__file__).parents[1]

type Claims = Mapping[str, str]
"""Each claim's text by its id, such as `DT-13`."""


def read_claims(path: Path = TESTS / "ledger.toml") -> tuple[Claims, Mapping[str, int]]:
    """Returns the claims by id, and how many each group should have."""
    groups = tomllib.loads(path.read_text())
    counts = groups.pop("groups")
    return {
        f"{group}-{row}": claim for group, rows in groups.items() for row, claim in rows.items()
    }, counts


def read_marks(tests: Path = TESTS) -> Mapping[str, Sequence[str]]:
    """Returns the ids of the tests that are marked with each claim."""
    marks: dict[str, list[str]] = {}
    for file in sorted(tests.rglob("test_*.py")):
        for test, claim in _marks(ast.parse(file.read_text()).body):
            marks.setdefault(claim, []).append(f"{file.relative_to(tests).as_posix()}::{test}")
    return marks


def _marks(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement in body:
        match statement:
            case (
                ast.FunctionDef(name=name, decorator_list=decorators)
                | ast.AsyncFunctionDef(name=name, decorator_list=decorators)
            ):
                yield from (
                    (name, claim) for decorator in decorators for claim in _claims(decorator)
                )
            case ast.ClassDef(name=name):
                yield from ((f"{name}::{inner}", claim) for inner, claim in _marks(statement.body))
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id=name), attr="pytestmark")],
                value=ast.List(elts=marks),
            ):  # a state machine's test case
                yield from ((name, claim) for mark in marks for claim in _claims(mark))
            case _:
                pass


def _claims(mark: ast.expr) -> Iterator[str]:
    match mark:
        case ast.Call(func=ast.Attribute(attr="claim"), args=arguments):
            yield from (
                str(argument.value) for argument in arguments if isinstance(argument, ast.Constant)
            )
        case _:
            pass


def find_faults(
    claims: Claims, counts: Mapping[str, int], marks: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yields one line for each fault in the ledger, whose groups should have `counts` claims."""
    expected = [
        f"{group}-{number:02}" for group, count in counts.items() for number in range(1, count + 1)
    ]
    yield from (f"{claim}: the claim is missing" for claim in expected if claim not in claims)
    yield from (
        f"{claim}: is beyond the group's count" for claim in claims if claim not in expected
    )
    for claim, text in claims.items():
        if not 0 < len(text) <= 100:
            yield f"{claim}: the claim has {len(text)} characters; use 1 to 100"
        if claim not in marks:
            yield f'{claim}: no test checks {text!r}; mark one with @pytest.mark.claim("{claim}")'
    for claim, tests in marks.items():
        if claim not in claims:
            yield f"{claim}: {tests[0]} is marked with it, but tests/ledger.toml has no such claim"


def main() -> int:
    """Prints the ledger and its faults."""
    claims, counts = read_claims()
    marks = read_marks()
    for claim, text in claims.items():
        lines = [f"{claim}  {text}", *(f"    {test}" for test in marks.get(claim, ()))]
        sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.writelines(f"{line}\n" for line in ("", *table_lines(read_table())))
    faults = list(find_faults(claims, counts, marks))
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
