"""W1: importing the library in a fresh process, against importing what any typed code imports."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile

from benchmarks.measure import NON_REPEATABLE, Row

FLOOR = "import dataclasses, string, json"
DOORS = ("import weakincentives", "from weakincentives.prompt import MarkdownSection, Prompt, Tool")
ROUNDS = 1 if NON_REPEATABLE else 15

# Linux's own account where there is one: getrusage also counts the process from which this one was
# started.
REPORT = """
import sys
count = len(sys.modules)
try:
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
print(count, peak)
"""


def measured(code: str) -> tuple[float, int, float]:
    """Milliseconds of CPU, number of modules and peak megabytes of a fresh process that runs
    `code`.
    """
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
        found = re.fullmatch(rb"(\d+) (\d+)\n", output.read())
    assert status == 0, code
    assert found, code
    return (usage.ru_utime + usage.ru_stime) * 1e3, int(found[1]), int(found[2]) / 1024


def rows() -> Iterator[Row]:
    samples: dict[str, list[tuple[float, int, float]]] = {code: [] for code in (FLOOR, *DOORS)}
    for code in samples:
        measured(code)  # the first one writes bytecode
    for _ in range(ROUNDS):
        for code, taken in samples.items():
            taken.append(measured(code))
    floor, *ours = [tuple(map(median, zip(*taken, strict=True))) for taken in samples.values()]
    for code, door in zip(DOORS, ours, strict=True):
        case = code.partition(" import Mark")[0]
        cpu, modules, memory = (
            {"floor": least, "ours": own} for least, own in zip(floor, door, strict=True)
        )
        yield Row(workload="W1", case=case, unit="ms", took=cpu, target=2.0)
        yield Row(
            workload="W1", case=case, unit="modules", took=modules, target=130, judged="value"
        )
        yield Row(workload="W1", case=case, unit="MB", took=memory, target=18, judged="value")
