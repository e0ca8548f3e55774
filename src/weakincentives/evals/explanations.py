"""Says why runs are performed again: which parts of their keys differ from an earlier experiment's.

The parts of each variant are in the experiment's folder, in a file named after their digest.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..atomic_writes import replacing

__all__ = ["Explanations", "store_parts"]

_SHOWN = 8  # parts in one note


def store_parts(folder: Path, variant: str, parts: Mapping[str, str]) -> None:
    """Stores the parts of a variant, unless they are known."""
    path = folder / "variants" / f"{variant}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(parts).encode())


class Explanations:
    """Compares new runs with the runs of the same variant, case and repeat in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: dict[tuple[str, str, int], Sequence[str]] = {}
        self._counts = Counter[tuple[str, str]]()
        paths = sorted((folder / "runs").glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        for path in paths:
            with suppress(OSError, ValueError, LookupError, TypeError), path.open("rb") as file:
                run = json.loads(file.readline())["run"]
                self._before[run["variant"], run["case"], run["repeat"]] = run["digests"]

    def add(self, run: Mapping[str, Any]) -> None:
        """Adds a run that had to be performed, by the first line of its file."""
        before = self._before.get((run["variant"], run["case"], run["repeat"]))
        if before is not None and before != run["digests"]:
            self._counts[run["variant"], self._reason(before, run["digests"])] += 1

    def _reason(self, before: Sequence[str], now: Sequence[str]) -> str:
        parts = [*self._changed(before[0], now[0])]
        if before[1] != now[1]:
            parts.append("the case")
        more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
        return ", ".join(parts[:_SHOWN]) + more

    def _changed(self, before: str, now: str) -> Iterator[str]:
        if before == now:
            return
        try:
            old, new = (
                json.loads((self._folder / "variants" / f"{digest}.json").read_bytes())
                for digest in (before, now)
            )
        except (OSError, ValueError):
            yield "the variant"
            return
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                yield name

    def notes(self) -> Iterator[str]:
        """Yields a note for each variant and reason."""
        for (name, reason), count in self._counts.items():
            runs = "1 run" if count == 1 else f"{count} runs"
            verb = "is" if count == 1 else "are"
            yield f"{runs} of variant {name!r} {verb} new: {reason} changed"
