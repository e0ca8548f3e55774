"""W2b: constructing the template of S sections, against compiling and checking as many plain ones."""

from collections.abc import Iterator
from functools import partial

from benchmarks.measure import Row, interleaved
from benchmarks.w2_render import PARAMS, SIZES, plain, template

FIELDS = frozenset(vars(PARAMS))


def checked(size: int) -> None:
    assert all(FIELDS.issuperset(one.get_identifiers()) for one in plain(size))


def rows() -> Iterator[Row]:
    for size in SIZES:
        took = interleaved(
            {"floor": partial(checked, size), "ours": partial(template, size)}, per=size
        )
        yield Row(
            workload="W2b",
            case=f"construct, S = {size}, per section",
            unit="µs",
            took=took,
            target=15,
        )
