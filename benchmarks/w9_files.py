"""W9: rolling back a tool that wrote k files under a large root; the floor is a small root."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import SINGLE_ROUND, Row, measure_cpu
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem

SMALL, LARGE = 100, 50_000
WRITTEN = (1, 10, 100)


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:
        hosts = {size: host(Path(place, str(size)), size) for size in (SMALL, LARGE)}
        for k in WRITTEN:
            yield row("host", k, hosts[SMALL], hosts[LARGE])
        for files in hosts.values():
            files.close()
    memories = [InMemoryFilesystem(dict.fromkeys(names(size), "old")) for size in (SMALL, LARGE)]
    for k in WRITTEN:
        yield row("memory", k, *memories)


def names(size: int) -> Iterator[str]:
    return (
        f"{number % 100}/{number}.txt"
        for number in range(min(size, 1_000) if SINGLE_ROUND else size)
    )


def host(root: Path, size: int) -> HostFilesystem:
    for number in range(100):
        (root / f"{number}").mkdir(parents=True)
    for name in names(size):
        (root / name).write_text("old")
    return HostFilesystem(root)


def row(where: str, k: int, small: Filesystem, large: Filesystem) -> Row:
    costs = measure_cpu(
        {"floor": write_and_undo(small, k), "ours": write_and_undo(large, k)}, per=k, rounds=5
    )
    case = f"{where}, k = {k}, root of {LARGE} files (floor: of {SMALL})"
    return Row("W9", case, "µs a file", costs, 1.5)


def write_and_undo(files: Filesystem, k: int) -> Callable[[], None]:
    prose = [f"{number}/{number}.txt" for number in range(k)]

    def run() -> None:
        snapshot = files.snapshot()
        for name in prose:
            files.write_bytes(name, b"new")
        files.restore(snapshot)

    run()
    assert all(files.read_bytes(name) == b"old" for name in prose)
    return run
