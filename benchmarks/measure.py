"""Timing that a shared machine cannot bend much: candidates take turns, CPU time is read, medians
are compared.
"""

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from time import process_time
from types import ModuleType
from typing import Literal

MICRO = 1e6
# for a test, which wants to know that all of it runs, and no figures
NON_REPEATABLE = "BENCH_ONCE" in os.environ
ROUNDS = 1 if NON_REPEATABLE else 9
SAMPLE_SECONDS = 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Of what each candidate `took`, `"ours"` is judged: against `"floor"`, or by itself.
    """

    workload: str
    case: str
    unit: str
    took: Mapping[str, float]
    target: float
    judged: Literal["ratio", "difference", "value"] = "ratio"

    @property
    def figure(self) -> float:
        """What the target bounds."""
        match self.judged:
            case "ratio":
                return self.took["ours"] / self.took["floor"]
            case "difference":
                return self.took["ours"] - self.took["floor"]
            case "value":
                return self.took["ours"]

    @property
    def met(self) -> bool:
        return self.figure <= self.target


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, per: int, rounds: int = ROUNDS
) -> dict[str, float]:
    """Microseconds of CPU for each candidate by name, divided by `per`: medians over rounds of A B
    A B …
    """
    wanted = 0 if NON_REPEATABLE else SAMPLE_SECONDS
    loops = {
        name: max(1, round(wanted / max(cpu_seconds(run), 1e-9)))
        for name, run in candidates.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.freeze()  # what earlier workloads left behind is nobody's cost here
    for _ in range(1 if NON_REPEATABLE else rounds):
        for name, run in candidates.items():
            samples[name].append(cpu_seconds(run, loops[name]) / loops[name] / per)
    gc.unfreeze()
    return {name: median(taken) * MICRO for name, taken in samples.items()}


def cpu_seconds(run: Callable[[], object], loops: int = 1) -> float:
    """CPU seconds of `loops` calls."""
    started = process_time()
    for _ in range(loops):
        run()
    return process_time() - started


def peer(name: str) -> ModuleType | None:
    """An optional library to compare with, if it is installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None
