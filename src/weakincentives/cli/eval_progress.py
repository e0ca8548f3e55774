"""The progress of `wink eval` on stderr: a bar on a terminal, a few lines in files and CI."""

import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import inf
from time import monotonic

from rich.console import Console

from ..displays import count_of
from ..evals.options import Progress

__all__ = ["SparseLines", "progress_text", "showing_progress"]

_SECONDS, _SHARE, _MEANS = 30, 0.1, 4


class Means:
    """The means of the scores so far, which decide nothing while runs are missing."""

    def __init__(self) -> None:
        self._sums = dict[str, tuple[float, int]]()

    def add(self, progress: Progress) -> None:
        """Adds the scores of the run that has ended."""
        if progress.result is None:
            return
        for name, value in progress.result.scores.items():
            if isinstance(value, int | float):
                label = f"{progress.variant} {name}".strip()
                total, count = self._sums.get(label, (0.0, 0))
                self._sums[label] = total + value, count + 1

    def texts(self) -> list[str]:
        """Returns the means of the first scores, with the numbers of their runs."""
        means = [f"{name} = {total / n:.3g} (n = {n:,})" for name, (total, n) in self._sums.items()]
        return means[:_MEANS]


def progress_text(progress: Progress, means: Sequence[str] = ()) -> str:
    """Returns one line: the runs of this session, failures, means, cost, and the time left."""
    done, total = (count - progress.reused for count in (progress.done, progress.total))
    parts = [f"{done:,} of {total:,} to run"]
    if progress.reused:
        parts[0] += f" ({progress.reused:,} reused)"
    if progress.failures:
        parts.append(f"{progress.failures:,} failed")
    parts += means
    spent = progress.spent
    if spent.cost is not None or spent.known_cost:
        least = "at least " * (spent.cost is None)
        parts.append(f"{least}${spent.cost or spent.known_cost:.2f}")
    if progress.waiting_until is not None:
        until = progress.waiting_until.astimezone()
        parts.append(f"the provider asks to wait until {until:%H:%M:%S}")
    elif progress.seconds_left is not None and progress.done < progress.total:
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        left = count_of(minutes, "minute") if minutes else count_of(seconds, "second")
        parts.append(f"about {left} left")
    return ", ".join(parts)


class SparseLines:
    """Writes a line when a tenth of the runs has ended or 30 seconds have passed since the last.

    A pause that the provider asks for is reported at once, if none was in the last 30 seconds.
    """

    def __init__(
        self, write: Callable[[str], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._write, self._clock = write, clock
        self._time, self._share, self._paused = clock(), 0.0, -inf
        self._means = Means()

    def __call__(self, progress: Progress) -> None:
        self._means.add(progress)
        share, now = progress.done / progress.total, self._clock()
        is_due = share - self._share >= _SHARE - 1e-9 or now - self._time >= _SECONDS
        if progress.waiting_until is not None and now - self._paused >= _SECONDS:
            is_due, self._paused = True, now
        if is_due or (progress.done == progress.total and share > self._share):
            self._share, self._time = share, now
            self._write(f"{progress_text(progress, self._means.texts())}\n")


@contextmanager
def showing_progress() -> Generator[Callable[[Progress], object]]:
    """Yields the function that shows the progress during the block."""
    console = Console(stderr=True, highlight=False)
    is_plain = os.environ.get("CI") or os.environ.get("NO_COLOR") or console.is_dumb_terminal
    if is_plain or not console.is_terminal:
        yield SparseLines(sys.stderr.write)
        return
    from rich.progress import BarColumn, TextColumn  # slow to import
    from rich.progress import Progress as Bar

    means, text = Means(), TextColumn("{task.description}", markup=False)
    with Bar(BarColumn(), text, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(progress: Progress) -> None:
            means.add(progress)
            line = progress_text(progress, means.texts())
            bar.update(task, description=line, completed=progress.done, total=progress.total)

        yield show
