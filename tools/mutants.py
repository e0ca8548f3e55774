"""Changes one place of a package at a time, and counts how many changes a test notices.

`python tools/mutants.py evaluation` makes 300 changes from a fixed seed, such as `<` for `<=` or an
omitted statement. Each is tried with the tests that cover the changed line and take less than a
second. It prints the share of changes that a test noticed, and lists the others.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path
from queue import SimpleQueue
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory, mkdtemp
from time import monotonic, process_time
from typing import Any

MAX_TESTS = 400  # per change
MAX_SECONDS = 1.0  # per test
TIMEOUT = 120.0  # seconds for the tests of one change; a change that takes longer is noticed

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATORS: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//"}


@dataclass(frozen=True)
class Change:
    """`old` at line and column of a file (UTF-8 bytes, as in `ast`) becomes `new`."""

    path: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old.strip()} -> {self.new}"


class Sites(ast.NodeVisitor):
    """The changes possible in a module, outside types, docstrings and assertions."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.lines = path, source.encode().splitlines(keepends=True)
        self.changes: list[Change] = []

    def replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        if node.end_lineno != node.lineno or node.end_col_offset is None:
            return  # most expressions are on one line; these are enough
        text = self.lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()
        self.changes.append(
            Change(self.path, node.lineno, node.col_offset, node.end_col_offset, text, new)
        )

    def text(self, node: ast.expr) -> str:
        return ast.unparse(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        match node.ops:
            case [operator]:
                left, right = self.text(node.left), self.text(node.comparators[0])
                self.replace(node, f"{left} {COMPARISONS[type(operator)]} {right}")
            case _:
                pass
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = " or " if isinstance(node.op, ast.And) else " and "
        self.replace(node, f"({other.join(map(self.text, node.values))})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.replace(node, f"bool({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS and not isinstance(node.left, ast.Constant):
            left, right = self.text(node.left), self.text(node.right)
            self.replace(node, f"({left} {OPERATORS[type(node.op)]} {right})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self.replace(node, str(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.NamedExpr):
            self.replace(node.test, f"(not ({self.text(node.test)}))")
        if "TYPE_CHECKING" not in self.text(node.test):
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.replace(
            node,
            f"({self.text(node.orelse)} if {self.text(node.test)} else {self.text(node.body)})",
        )
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self.replace(node.value, "None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.replace(node, "pass")
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.replace(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.replace(node, "break")

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that `ast` gives it

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_TypeAlias(self, node: ast.TypeAlias) -> None:
        pass


def changes_of(root: Path, package: str) -> list[Change]:
    """Returns all changes possible in the modules of a package."""
    found: list[Change] = []
    for path in sorted((root / "src/weakincentives" / package).rglob("*.py")):
        source = path.read_text()
        sites = Sites(path.relative_to(root).as_posix(), source)
        sites.visit(ast.parse(source))
        found += sites.changes
    return found


# ------------------------------------------------------- as a plugin of pytest: how long tests take

_STARTED = "started"  # a key of an item's stash
_SECONDS: dict[str, float] = {}
_FAILED: set[str] = set()


def pytest_runtest_setup(item: Any) -> None:  # Any: pytest's item
    """Records when a test starts."""
    item.stash[_STARTED] = process_time(), monotonic()


def pytest_runtest_teardown(item: Any) -> None:  # Any: pytest's item
    """Adds a test's seconds to its reports, so that a busy machine makes few tests slow."""
    if started := item.stash.get(_STARTED, None):  # none for a skipped test
        processor, clock = started
        seconds = max(process_time() - processor, (monotonic() - clock) / 4)
        item.user_properties.append(("seconds", seconds))


def pytest_runtest_logreport(report: Any) -> None:  # Any: pytest's report
    """Collects the seconds, and the tests that do not pass."""
    _SECONDS[report.nodeid] = dict(report.user_properties).get("seconds", inf)
    if report.outcome != "passed":
        _FAILED.add(report.nodeid)


def pytest_sessionfinish(session: Any) -> None:  # Any: pytest's session
    """Writes the seconds of each test that passed."""
    if (file := os.environ.get("MUTANTS_SECONDS")) and not hasattr(session.config, "workerinput"):
        passed = {test: time for test, time in _SECONDS.items() if test not in _FAILED}
        Path(file).write_text(json.dumps(passed))


# ------------------------------------------------------------------------------------------ running


def covering_tests(root: Path, folder: Path) -> dict[str, dict[int, list[str]]]:
    """Returns the quick tests for each line of each file, quickest first."""
    seconds, data = folder / "seconds.json", folder / "coverage"
    environment = environment_of(root / "src", MUTANTS_SECONDS=str(seconds))
    environment["COVERAGE_FILE"] = str(data)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "-p", "mutants", "tests"]
    command += ["--cov=weakincentives", "--cov-context=test", "--cov-report="]
    command += ["--cov-fail-under=0", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=root, env=environment, check=False)
    from coverage import CoverageData

    times: dict[str, float] = json.loads(seconds.read_text())
    quick = {test for test, time in times.items() if time < MAX_SECONDS and "\n" not in test}
    coverage = CoverageData(str(data))
    coverage.read()
    found: dict[str, dict[int, list[str]]] = {}
    for file in coverage.measured_files():
        lines: dict[int, list[str]] = {}
        for line, contexts in coverage.contexts_by_lineno(file).items():
            tests = {context.rpartition("|")[0] for context in contexts} & quick
            lines[line] = sorted(tests, key=lambda test: (times[test], test))
        found[Path(file).relative_to(root).as_posix()] = lines
    return found


def environment_of(source: Path, **more: str) -> dict[str, str]:
    """Returns the environment of a process that imports the library from `source`."""
    path = os.pathsep.join([str(source), str(Path(__file__).parent)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


def is_noticed(root: Path, source: Path, change: Change, tests: list[str]) -> bool:
    """Runs tests against a copy of the source with the change."""
    file = source.parent / change.path
    before = file.read_bytes()
    lines = before.splitlines(keepends=True)
    line = lines[change.line - 1]
    lines[change.line - 1] = line[: change.start] + change.new.encode() + line[change.end :]
    chosen = source.parent / "tests.txt"
    chosen.write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", f"@{chosen}"]
    file.write_bytes(b"".join(lines))
    try:
        result = subprocess.run(
            command,
            cwd=root,
            env=environment_of(source),
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_bytes(before)
    return result.returncode != 0


def try_changes(
    package: str,
    covering: dict[str, dict[int, list[str]]],
    *,
    root: Path,
    count: int,
    seed: int,
    jobs: int,
) -> Iterator[str]:
    """Yields the changes that no test notices, and finally the share of the others."""
    every = changes_of(root, package)
    chosen = random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311 - repeatable
    copies: SimpleQueue[Path] = SimpleQueue()
    places = [Path(mkdtemp(prefix="mutants-")) for _ in range(jobs)]
    for place in places:
        copies.put(copytree(root / "src", place / "src"))

    def check(change: Change) -> bool:
        tests = covering.get(change.path, {}).get(change.line, [])
        if not tests:
            return False
        source = copies.get()
        try:
            return is_noticed(root, source, change, tests[:MAX_TESTS])
        finally:
            copies.put(source)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            noticed = 0
            for change, result in zip(chosen, pool.map(check, chosen), strict=True):
                noticed += result
                if not result:
                    yield str(change)
    finally:
        for place in places:
            rmtree(place)
    share = noticed / len(chosen)
    yield f"{package}: {noticed} of {len(chosen)} changes noticed ({share:.1%}; of {len(every)})"


def main() -> None:
    """Prints the changes in each package that no test notices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+", help="such as prompt, runtime, evaluation")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    root: Path = options.root.resolve()
    with TemporaryDirectory() as folder:
        covering = covering_tests(root, Path(folder))
    for package in options.packages:
        for line in try_changes(
            package,
            covering,
            root=root,
            count=options.count,
            seed=options.seed,
            jobs=options.jobs,
        ):
            print(line, flush=True)


if __name__ == "__main__":
    main()
