"""What `wink` shows on a terminal while a typed answer arrives."""

from io import StringIO
from typing import Any

from rich.console import Console

from weakincentives.cli.printing import output_so_far
from weakincentives.evaluation import OutputDelta


def test_partial_answer_that_is_nested_too_deeply_is_not_shown() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    console = Console(file=StringIO(), height=24)
    assert output_so_far(OutputDelta(deep), console).plain == "…"
    long = output_so_far(OutputDelta(list(range(100))), console).plain
    assert long.endswith("  99\n]")
    assert len(long.splitlines()) == 20
