"""`Place` is the part of a JSON Schema that applies at one place in a value that is arriving.

It decides what can be shown there: a free string while it grows, and any other scalar once it is
complete. In a union, all options apply until a complete scalar excludes some of them.
"""

import re
from collections.abc import Sequence

from .json_schemas import target_name
from .json_types import AnyJson, Json, JsonSchema, comparable

__all__ = ["Place"]

_ANY: JsonSchema = {}
_UNIONS = ("anyOf", "oneOf", "allOf")
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
_ALL_KINDS = frozenset({*_KINDS.values(), "object", "array"})
# In these formats, a part of a string means something else, or nothing. Other strings can grow.
_WHOLE_FORMATS = {
    *("date", "date-time", "time", "duration", "uuid", "uuid1", "uuid3", "uuid4", "uuid5"),
    *("base64", "base64url", "binary", "email", "idn-email", "hostname", "ipv4", "ipv6"),
    *("ipvanyaddress", "uri", "uri-reference", "iri", "regex", "json-pointer"),
}
_CAN_BECOME_NUMBER = re.compile(r"[-+.\deE]{0,64}", re.ASCII)


class Place:
    """The subschemas, none of them a union or a reference, that a value can satisfy.

    Equal places are the same object, so a recursive type has a finite number of them.
    """

    def __init__(
        self,
        members: Sequence[JsonSchema],
        root: JsonSchema,
        known: "dict[tuple[int, ...], Place] | None" = None,
    ) -> None:
        self._root = root
        self._known = {} if known is None else known
        self._members = members = list(_flat(members, root))
        literals = [member for member in members if "enum" in member or "const" in member]
        self._literals: list[AnyJson] = [
            value for member in literals for value in member.get("enum", [member.get("const")])
        ]
        self._words = [word for word in self._literals if isinstance(word, str)]
        free = [member for member in members if member not in literals]
        self.kinds = frozenset[str]().union(*map(_kinds_of, free))
        has_format = any(member.get("format") in _WHOLE_FORMATS for member in free)
        self.grows = "string" in self.kinds and not has_format
        self._has_numbers = not self.kinds.isdisjoint({"integer", "number"}) and _ANY not in free

    def shows(self, text: str) -> bool:
        """Whether an open string can be shown: it cannot become a literal or a number any more."""
        return (
            self.grows
            and not any(word.startswith(text) for word in self._words)
            and not (self._has_numbers and _CAN_BECOME_NUMBER.fullmatch(text))
        )

    def admits(self, value: Json) -> bool:
        """Whether a complete scalar has a type of this place, or is one of its literals."""
        kind = _KINDS.get(type(value), "")
        if kind in self.kinds or (kind == "integer" and "number" in self.kinds):
            return True
        if isinstance(value, float) and value.is_integer() and "integer" in self.kinds:
            return True
        return comparable(value) in map(comparable, self._literals)

    def property(self, key: str) -> "Place | None":
        """Returns the place of an object's property, or `None` if no member has it."""
        return self._of([_property(member, key) for member in self._with("object")])

    def item(self, index: int) -> "Place | None":
        """Returns the place of an array's item, or `None` if no member has it."""
        return self._of([_item(member, index) for member in self._with("array")])

    def narrowed(self, key: str, value: Json) -> "Place":
        """Returns the place without the members whose property `key` does not admit the scalar.

        A null can represent an absent field, so it excludes nothing.
        """
        members = self._with("object")
        if len(members) < 2 or value is None:  # noqa: PLR2004 - a choice
            return self
        parts = [(member, self._of([_property(member, key)])) for member in members]
        kept = [member for member, part in parts if part is None or part.admits(value)]
        return self._of(kept) or self

    def _with(self, kind: str) -> list[JsonSchema]:
        return [member for member in self._members if kind in _kinds_of(member)]

    def _of(self, schemas: Sequence[AnyJson]) -> "Place | None":
        parts = [_ANY if part is True else part for part in schemas if part not in (None, False)]
        if not parts:
            return None
        ids = tuple(map(id, parts))  # the schemas live as long as their root
        if ids not in self._known:
            self._known[ids] = Place(parts, self._root, self._known)
        return self._known[ids]


def _flat(schemas: Sequence[JsonSchema], root: JsonSchema) -> list[JsonSchema]:
    """Replaces references and unions by their members."""
    members: list[JsonSchema] = []
    open_schemas, seen = [*reversed(schemas)], set[int]()
    while open_schemas:
        schema = open_schemas.pop()
        if "$ref" in schema:  # an author's own schema may refer to anything
            schema = root.get("$defs", {}).get(target_name(schema["$ref"]), _ANY)
        options = [
            _ANY if option is True else option
            for union in _UNIONS
            for option in schema.get(union, ())
            if option is not False
        ]
        if options and id(schema) not in seen:
            seen.add(id(schema))
            open_schemas += reversed(options)
        elif not options:
            members.append(schema)
    return members


def _kinds_of(schema: JsonSchema) -> frozenset[str]:
    kind = schema.get("type")
    if kind is None:
        return frozenset({"object"}) if "properties" in schema else _ALL_KINDS
    return frozenset([kind] if isinstance(kind, str) else kind)


def _property(schema: JsonSchema, key: str) -> AnyJson:
    """Returns the subschema of a property; `None` if the schema describes other ones only."""
    properties = schema.get("properties", {})
    if key in properties:
        return properties[key]
    for part in schema.get("patternProperties", {}).values():
        return part
    return schema.get("additionalProperties", None if "properties" in schema else True)


def _item(schema: JsonSchema, index: int) -> AnyJson:
    first = schema.get("prefixItems", ())
    if index < len(first):
        return first[index]
    return schema.get("items", None if first else True)
