"""W1: importing the library in a fresh process, compared with the imports of any typed code."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile

from benchmarks.measure import SINGLE_ROUND, Row

FLOOR = "import dataclasses, string, json"
IMPORTS = (
    "import weakincentives",
    "from weakincentives.prompt import MarkdownSection, Prompt, Tool",
)
ROUNDS = 1 if SINGLE_ROUND else 15

# Reads Linux's own figure where it exists, because getrusage includes the process that started this
# one.
REPORT = """
import sys
count = len(sys.modules)
try:
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak //= 1024 if sys.platform == "darwin" else 1
print(count, peak)
"""


def measure_import(code: str) -> tuple[float, int, float]:
    """Runs `code` in a fresh process; returns CPU milliseconds, modules and peak megabytes."""
    source = str(Path(__file__).parent.parent / "src")
    with TemporaryFile() as output:
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", code + REPORT],
            {"PYTHONPATH": source},
            file_actions=[(os.POSIX_SPAWN_DUP2, output.fileno(), 1)],
        )
        _, status, usage = os.wait4(child, 0)
        output.seek(0)
        report = re.fullmatch(rb"(\d+) (\d+)\n", output.read())
    assert status == 0, code
    assert report, code
    return (usage.ru_utime + usage.ru_stime) * 1e3, int(report[1]), int(report[2]) / 1024


def rows() -> Iterator[Row]:
    samples: dict[str, list[tuple[float, int, float]]] = {code: [] for code in (FLOOR, *IMPORTS)}
    for code in samples:
        measure_import(code)  # the first one writes bytecode
    for _ in range(ROUNDS):
        for code, figures in samples.items():
            figures.append(measure_import(code))
    floor, *ours = [tuple(map(median, zip(*figures, strict=True))) for figures in samples.values()]
    for code, cost in zip(IMPORTS, ours, strict=True):
        case = code.partition(" import Mark")[0]
        cpu, modules, memory = (
            {"floor": least, "ours": own} for least, own in zip(floor, cost, strict=True)
        )
        yield Row("W1", case, "ms", cpu, 2.0)
        yield Row("W1", case, "modules", modules, 110, "value")
        yield Row("W1", case, "MB", memory, 17, "value")
