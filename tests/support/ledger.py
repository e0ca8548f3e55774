"""What is wrong with the ledger of claims: rows that are missing or untested, and tests that do not exist.

Run as a program it says that on standard error and exits with 1 if there is any; tests/test_ledger.py reads it too.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]

type Ledger = Mapping[str, Mapping[str, Sequence[str]]]


def read(path: Path = TESTS / "ledger.toml") -> tuple[Ledger, Mapping[str, int]]:
    """The rows by group, and how many each group should have. A row is a claim and the ids of its tests."""
    data = tomllib.loads(path.read_text())
    counts = data.pop("groups")
    return data, counts


@cache
def defined(path: Path) -> frozenset[str]:
    """The tests of a file by the names that pytest gives them, without parameters."""
    return frozenset(_names(ast.parse(path.read_text()).body)) if path.is_file() else frozenset()


def _names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for one in body:
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield name
            case ast.ClassDef(name=name):
                yield from (f"{name}::{inner}" for inner in _names(one.body))
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("Test"):
                yield name  # what a state machine is run by
            case _:
                pass


def exists(test: str, tests: Path = TESTS) -> bool:
    file, _, name = test.partition("::")
    return name in defined(tests / file)


def faults(ledger: Ledger, counts: Mapping[str, int], tests: Path = TESTS) -> Iterator[str]:
    """One line for each fault of `ledger`, whose groups should have as many rows as `counts` says."""
    for group in sorted(ledger.keys() | counts.keys()):
        rows = ledger.get(group, {})
        wanted = [f"{number:02}" for number in range(1, counts.get(group, 0) + 1)]
        yield from (f"{group}-{row}: there is no such row" for row in wanted if row not in rows)
        yield from (f"{group}-{row}: is beyond the group's {len(wanted)} rows" for row in rows if row not in wanted)
        for row, (claim, *named) in rows.items():
            if not 0 < len(claim) <= 100:
                yield f"{group}-{row}: the claim has {len(claim)} characters; use 1 to 100"
            if not named:
                yield f"{group}-{row}: no test checks {claim!r}; name one"
            yield from (f"{group}-{row}: there is no test {test!r}" for test in named if not exists(test, tests))


if __name__ == "__main__":
    sys.exit("\n".join(faults(*read())) or None)
