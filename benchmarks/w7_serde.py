"""W7: parsing 1,000 rows into dataclasses, and the JSON schema of a dataclass of 30 fields."""

import json
from collections.abc import Callable, Iterator
from dataclasses import field, fields, make_dataclass
from functools import partial
from typing import Any, get_type_hints

from benchmarks.measure import Row, measure_cpu, peer
from weakincentives import serde

NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}
FIELDS = [(f"field_{i}", kind) for i, kind in enumerate([*NAMES] * 8)][:30]

# Any: created at run time, so a type checker cannot know them.
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
    """The floor for the schema: annotations and metadata, read by hand."""
    hints = get_type_hints(Wide)
    return {
        "type": "object",
        "properties": {
            item.name: {
                "type": NAMES[hints[item.name]],
                "description": item.metadata["description"],
            }
            for item in fields(Wide)
        },
        "required": [item.name for item in fields(Wide)],
        "additionalProperties": False,
    }


def parse_lines() -> Any:
    return serde.parse_json(LINES, TEXT)


def rows() -> Iterator[Row]:
    assert [vars(line) for line in parse_lines()] == json.loads(TEXT)
    assert serde.json_schema(Wide) == plain_schema()
    parse: dict[str, Callable[[], object]] = {
        "floor": partial(json.loads, TEXT),
        "ours": parse_lines,
    }
    schema: dict[str, Callable[[], object]] = {
        "floor": plain_schema,
        "ours": partial(serde.json_schema, Wide),
    }
    msgspec = peer("msgspec")
    if msgspec is not None:
        parse["msgspec"] = partial(msgspec.json.Decoder(LINES).decode, TEXT)
        schema["msgspec"] = partial(msgspec.json.schema, Wide)
        assert parse["msgspec"]() == parse_lines()
    yield Row("W7", "parse 1,000 rows", "µs", measure_cpu(parse, per=1), 1.5)
    costs = measure_cpu(schema, per=1)
    yield Row("W7", "schema of 30 fields, cached", "µs", costs, 0.05)
