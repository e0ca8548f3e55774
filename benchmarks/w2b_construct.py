"""W2b: constructing a template of S sections; the floor compiles and checks plain templates."""

from collections.abc import Iterator
from functools import partial

from benchmarks.measure import Row, measure_cpu
from benchmarks.w2_render import PARAMS, SIZES, plain, template

FIELDS = frozenset(vars(PARAMS))


def check_placeholders(size: int) -> None:
    assert all(FIELDS.issuperset(part.get_identifiers()) for part in plain(size))


def rows() -> Iterator[Row]:
    for size in SIZES:
        costs = measure_cpu(
            {"floor": partial(check_placeholders, size), "ours": partial(template, size)}, per=size
        )
        yield Row("W2b", f"construct, S = {size}, per section", "µs", costs, 15)
