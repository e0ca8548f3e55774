"""W7: parsing a thousand rows into dataclasses, and the JSON schema of a dataclass of thirty
fields.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import field, fields, make_dataclass
from functools import partial
from typing import Any, get_type_hints

from benchmarks.measure import Row, interleaved, peer
from weakincentives import serde

NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}
FIELDS = [(f"field_{i}", kind) for i, kind in enumerate([*NAMES] * 8)][:30]

# Any: made at run time, no types that a checker could read.
Wide: Any = make_dataclass(
    "Wide", [(name, kind, field(metadata={"description": f"The {name}."})) for name, kind in FIELDS]
)
Line: Any = make_dataclass(
    "Line",
    [
        ("id", int),
        ("name", str),
        ("price", float),
        ("sold", bool),
        ("tags", list[str]),
        ("note", str | None),
    ],
)
LINES: Any = list.__class_getitem__(Line)
TEXT = json.dumps(
    [
        {
            "id": i,
            "name": f"line {i}",
            "price": i / 4,
            "sold": i % 2 == 0,
            "tags": ["a", "b"],
            "note": None,
        }
        for i in range(1_000)
    ]
)


def plain_schema() -> dict[str, object]:
    """The floor of the schema: annotations and metadata read by hand."""
    hints = get_type_hints(Wide)
    return {
        "type": "object",
        "properties": {
            one.name: {"type": NAMES[hints[one.name]], "description": one.metadata["description"]}
            for one in fields(Wide)
        },
        "required": [one.name for one in fields(Wide)],
        "additionalProperties": False,
    }


def parsed() -> Any:
    return serde.parse_json(LINES, TEXT)


def rows() -> Iterator[Row]:
    assert [vars(line) for line in parsed()] == json.loads(TEXT)
    assert serde.json_schema(Wide) == plain_schema()
    parse: dict[str, Callable[[], object]] = {"floor": partial(json.loads, TEXT), "ours": parsed}
    schema: dict[str, Callable[[], object]] = {
        "floor": plain_schema,
        "ours": partial(serde.json_schema, Wide),
    }
    msgspec = peer("msgspec")
    if msgspec is not None:
        parse["msgspec"] = partial(msgspec.json.Decoder(LINES).decode, TEXT)
        schema["msgspec"] = partial(msgspec.json.schema, Wide)
        assert parse["msgspec"]() == parsed()
    yield Row(
        workload="W7",
        case="parse 1,000 rows",
        unit="µs",
        took=interleaved(parse, per=1),
        target=1.5,
    )
    took = interleaved(schema, per=1)
    yield Row(workload="W7", case="schema of 30 fields, cached", unit="µs", took=took, target=0.05)
