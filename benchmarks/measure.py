"""Timing on shared machines: candidates take turns, and each figure is a median of CPU times."""

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
# for a test of the benchmarks, which needs no figures
SINGLE_ROUND = "BENCH_ONCE" in os.environ
ROUNDS = 1 if SINGLE_ROUND else 9
SAMPLE_SECONDS = 0.015


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `costs` are keyed by candidate. The target limits the cost of `"ours"`: its ratio to `"floor"`,
    its difference from it, or its own value.
    """

    workload: str
    case: str
    unit: str
    costs: Mapping[str, float]
    target: float
    compare: Literal["ratio", "difference", "value"] = "ratio"

    @property
    def figure(self) -> float:
        """The figure that the target limits."""
        match self.compare:
            case "ratio":
                return self.costs["ours"] / self.costs["floor"]
            case "difference":
                return self.costs["ours"] - self.costs["floor"]
            case "value":
                return self.costs["ours"]

    @property
    def is_met(self) -> bool:
        return self.figure <= self.target


def measure_cpu(
    candidates: Mapping[str, Callable[[], object]], *, per: int, rounds: int = ROUNDS
) -> dict[str, float]:
    """Returns the CPU microseconds of each candidate, divided by `per`.

    The candidates take turns (A B A B …); each figure is a median over the rounds.
    """
    seconds = 0 if SINGLE_ROUND else SAMPLE_SECONDS
    loops = {
        name: max(1, round(seconds / max(cpu_seconds(run), 1e-9)))
        for name, run in candidates.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.freeze()  # objects from earlier workloads should not cost anything here
    for _ in range(1 if SINGLE_ROUND else rounds):
        for name, run in candidates.items():
            samples[name].append(cpu_seconds(run, loops[name]) / loops[name] / per)
    gc.unfreeze()
    return {name: median(times) * MICRO for name, times in samples.items()}


def cpu_seconds(run: Callable[[], object], loops: int = 1) -> float:
    """Returns the CPU seconds of `loops` calls."""
    started = process_time()
    for _ in range(loops):
        run()
    return process_time() - started


def peer(name: str) -> ModuleType | None:
    """Returns an optional library to compare with, if it is installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None
