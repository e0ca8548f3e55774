"""What a provider is told about a tool or an output: names, texts and JSON schemas, strict where a schema allows it.

The strict profile, in this one place: every object closed with all properties required, fields with a default made
nullable, no keywords that strict decoders refuse (their meaning moves into the description). A schema that cannot be
brought to it, such as one with open maps, is sent as it is with `strict=False`. After decoding, the value is always
checked against the full type again.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .. import serde
from ..errors import Fault, SerdeError
from ..prompt.errors import OutputParseError
from ..prompt.structured_output import StructuredOutputConfig, json_text
from ..prompt.tool import AnyTool
from ..serde import JsonSchema

__all__ = [
    "WRAPPED_ITEMS",
    "OutputSpec",
    "ToolSpec",
    "output_to_spec",
    "read_without_nulls",
    "tool_to_spec",
    "unwrap_items",
]

WRAPPED_ITEMS = "items"
"""The one property of the object in which an array travels, since providers want an object at the root."""

_KEPT = {"$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "items", "properties"} | {
    *("required", "type", "pattern", "multipleOf", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
}
_SAYING_WHAT = {"$ref", "anyOf", "const", "enum", "oneOf", "type"}
_KEPT_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_SAID_IN_WORDS = {
    "default": "default",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "uniqueItems": "unique items",
    "format": "format",
}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a provider sees it; `strict` says that the schema fits the strict profile."""

    name: str
    description: str
    parameters: JsonSchema
    strict: bool

    def as_dict(self) -> dict[str, object]:
        """The form on which providers' APIs agree."""
        told = {"name": self.name, "description": self.description}
        return {**told, "parameters": self.parameters, "strict": self.strict}


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The declared output as a provider sees it; `wrapped` says that an array travels inside an object."""

    name: str
    schema: JsonSchema
    strict: bool
    wrapped: bool

    def as_dict(self) -> dict[str, object]:
        """The form on which providers' APIs agree."""
        return {"name": self.name, "schema": self.schema, "strict": self.strict}


def tool_to_spec(tool: AnyTool, param_descriptions: Mapping[str, str] | None = None) -> ToolSpec:
    """The spec of `tool`, with other texts for some params where given."""
    params_type: Any = tool.params_type  # Any: see `_strict_schema`
    if param_descriptions:
        schema, strict = _profiled(serde.json_schema(params_type), param_descriptions)
    else:
        schema, strict = _strict_schema(params_type)
    return ToolSpec(tool.name, tool.description, schema, strict)


# Any: an output of any type.
@lru_cache(maxsize=1024)
def output_to_spec(config: StructuredOutputConfig[Any]) -> OutputSpec:
    """The spec of a declared output, named after its type."""
    item_type: Any = config.item_type  # Any: see `_strict_schema`
    schema, strict = _strict_schema(item_type)
    wrapped = config.container == "array"
    if wrapped:
        definitions = schema.get("$defs")
        item = {key: value for key, value in schema.items() if key != "$defs"}
        schema = {
            "type": "object",
            "properties": {WRAPPED_ITEMS: {"type": "array", "items": item}},
            "required": [WRAPPED_ITEMS],
            "additionalProperties": False,
            **({"$defs": definitions} if definitions else {}),
        }
    name = re.sub(r"[^A-Za-z0-9_-]", "_", config.item_type.__name__)[:64]
    return OutputSpec(name, schema, strict, wrapped)


def unwrap_items(text: str) -> str:
    """The array inside an object that holds nothing but it, fenced or not; any other text unchanged."""
    value = _loaded(text)
    if isinstance(value, dict) and list(value) == [WRAPPED_ITEMS]:
        return json.dumps(value[WRAPPED_ITEMS], ensure_ascii=False)
    return text


def read_without_nulls[T](read: Callable[[str], T], text: str) -> tuple[T, str]:
    """What `read` makes of JSON `text`, fenced or not, and the text that it could be made of.

    In a strict schema a null stands for a field that was left out, so nulls are taken out where `read` finds fault with
    them. Raises what `read` does.
    """
    try:
        return read(text), text
    except (SerdeError, OutputParseError) as error:
        cause = error.__cause__ if isinstance(error, OutputParseError) else error
        value = _loaded(text) if "null" in text else None
        nulls, _ = _nulls(value, cause.faults) if isinstance(cause, SerdeError) else ([], False)
        if not nulls:
            raise
        for (*above, key), _ in nulls:
            holder: Any = value  # JSON of every shape
            for part in above:
                holder = holder[part]
            holder.pop(key, None)
        text = json.dumps(value, ensure_ascii=False)
        found = read(text)
        members = [path for path, member in nulls if member]
        dumped = serde.dump(found) if members else None
        if not all(_is_there(dumped, path) for path in members):
            raise  # without the null it was read as a member that has no such field
        return found, text


type _Nulls = list[tuple[tuple[str | int, ...], bool]]
_STRAY = ("Unexpected keyword argument", "Extra inputs are not permitted")


# Any: JSON of every shape.
def _nulls(
    value: Any, faults: Sequence[Fault], at: tuple[str | int, ...] = (), *, member: bool = False
) -> tuple[_Nulls, bool]:
    """The paths of nulls in `value` that `faults` are about, whether in a union's member, and whether that is all.

    What is wrong with the members of a union stands under a name for each, which is no key. The first member counts of
    which nothing but nulls are wrong, and none that it has no field for.
    """
    places: Any = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    below: dict[str | int, list[Fault]] = {}
    for path, message in faults:
        if path:
            below.setdefault(path[0], []).append(Fault(path[1:], message))
    found: _Nulls = []
    members: list[_Nulls | None] = []
    complete = all(fault.path for fault in faults)
    for key, inner in below.items():
        if isinstance(value, dict) and value.get(key, ...) is None:
            if member and inner[0].message in _STRAY:
                complete = False
            else:
                found.append(((*at, key), member))
            continue
        inside = key in places
        place = (*at, key) if inside else at
        nulls, all_of_them = _nulls(places.get(key, value), inner, place, member=member or not inside)
        if inside:
            found += nulls
            complete = complete and all_of_them
        else:
            members.append(nulls if all_of_them else None)
    chosen = next(filter(None, members), None)
    return found + (chosen or []), complete and (chosen is not None or not members)


def _is_there(value: Any, path: Sequence[str | int]) -> bool:  # Any: JSON of every shape
    for part in path:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return False
    return True


def _loaded(text: str) -> Any:  # Any: JSON of every shape
    try:
        return json.loads(json_text(text))
    except (ValueError, RecursionError):
        return None


class _NotStrict(Exception):
    pass


@lru_cache(maxsize=4096)
def _strict_schema(of: Any) -> tuple[JsonSchema, bool]:  # Any: typeshed does not know that every class has a hash
    """The type's schema in the strict profile and `True`, or unchanged and `False` when it does not fit."""
    return _profiled(serde.json_schema(of), {})


def _profiled(schema: JsonSchema, descriptions: Mapping[str, str]) -> tuple[JsonSchema, bool]:
    if "$ref" in schema:  # a type that holds itself; providers want to see at the root that it is an object
        schema = {**schema["$defs"][schema["$ref"].rpartition("/")[2]], "$defs": schema["$defs"]}
    if descriptions:
        properties: dict[str, JsonSchema] = {
            name: {**one, "description": descriptions[name]} if name in descriptions else one
            for name, one in schema.get("properties", {}).items()
        }
        schema = {**schema, "properties": properties}
    try:
        strict = _strict(schema)
    except _NotStrict:
        return schema, False
    return (strict, True) if strict.get("type") == "object" else (schema, False)


def _strict(schema: JsonSchema) -> JsonSchema:
    anything = schema.keys().isdisjoint(_SAYING_WHAT)
    if anything or schema.get("additionalProperties") not in (None, False) or "prefixItems" in schema:
        raise _NotStrict  # anything goes, an open map, or a tuple with a type for each place
    strict = {key: value for key, value in schema.items() if key in _KEPT}
    if "oneOf" in schema:
        strict["anyOf"] = schema["oneOf"]
    if schema.get("format") in _KEPT_FORMATS:
        strict["format"] = schema["format"]
    for key in schema.keys() - _KEPT - _SAID_IN_WORDS.keys() - {"oneOf", "examples", "discriminator", "deprecated"}:
        raise _NotStrict(key)
    if "const" in strict:
        strict["enum"] = [strict.pop("const")]
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(one) for one in strict["anyOf"]]
    if isinstance(strict.get("items"), dict):
        strict["items"] = _strict(strict["items"])
    if "$defs" in strict:
        strict["$defs"] = {name: _strict(one) for name, one in strict["$defs"].items()}
    if strict.get("type") == "object":
        required = strict.get("required", [])
        properties = strict.get("properties", {})
        strict["properties"] = {
            name: _strict(one) if name in required else _nullable(_strict(one)) for name, one in properties.items()
        }
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    said = [
        f"{words}: {json.dumps(schema[key], ensure_ascii=False)}"
        for key, words in _SAID_IN_WORDS.items()
        if key in schema and key not in strict and schema[key] not in (None, "", [], {})
    ]
    if said:
        text = schema.get("description", "")
        strict["description"] = f"{text} ({'; '.join(said)})" if text else "; ".join(said)
    if "$ref" in strict and len(strict) > 1:
        # A reference stands alone; what is said beside it goes around it.
        reference = {"$ref": strict.pop("$ref")}
        strict = {"anyOf": [reference], **strict}
    return strict


def _nullable(schema: JsonSchema) -> JsonSchema:
    """A field with a default: the model sends null to leave it out."""
    if any(one.get("type") == "null" for one in schema.get("anyOf", ())):
        return schema
    description = {"description": schema["description"]} if "description" in schema else {}
    bare = {key: value for key, value in schema.items() if key != "description"}
    options = bare["anyOf"] if list(bare) == ["anyOf"] else [bare]
    return {"anyOf": [*options, {"type": "null"}], **description}
