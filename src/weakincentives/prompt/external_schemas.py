"""Converts JSON Schemas of any draft to a form that every provider accepts for a tool.

OpenAI, Anthropic and others reject an entire request if a single schema breaks their rules. The
form follows these rules: the root is an object without unions; references point only to `$defs`,
without sibling keywords; each part has one type or `anyOf`; properties and items are explicit; all
values are valid JSON. The form accepts every object that the schema accepts, and possibly more,
because arguments are checked against the original schema. Rules that the form cannot express are
moved into descriptions.
"""

import json
import re
from collections.abc import Mapping
from math import isfinite

from ..serde import JsonSchema, map_parts
from ..serde.json_types import AnyJson

__all__ = ["ANY_NAME", "SAFE_NAME", "describe", "to_provider_form", "upgrade_dialect"]

type _Schema = AnyJson  # an external schema, which can contain anything anywhere

ANY_NAME = re.compile("(?s:.*)")
SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # Anthropic's rule for properties
_MAX_DEPTH = 40  # nested parts, which is about 120 levels of JSON; pydantic writes at most 255

_ANNOTATIONS = ("description", "default", "examples")
_OF_OBJECTS = {"properties", "required", "additionalProperties", "minProperties", "maxProperties"}
_BOUNDS = {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_OF_TYPE = {
    "string": {
        *("pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType")
    },
    "number": _BOUNDS | {"format"},
    "integer": _BOUNDS | {"format"},
    "boolean": set[str](),
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "object": _OF_OBJECTS,
    "null": set[str](),
}
_OF_ANY_TYPE = {"allOf", "const", "enum"}
_KEPT = {"$ref", "anyOf", "oneOf", "type", *_OF_ANY_TYPE, *_OF_OBJECTS}.union(*_OF_TYPE.values())
# rules that few decoders support; widening a negated part would narrow the schema as a whole
_DESCRIBED = {
    *("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "patternProperties"),
    *("propertyNames", "contains", "minContains", "maxContains"),
    *("unevaluatedItems", "unevaluatedProperties", "additionalItems"),
}
_NOT_AT_ROOT = {"oneOf", "anyOf", "allOf", "enum", "const"}
_MERGED = {"type", "properties", "required"}


def describe(form: JsonSchema, notes: Mapping[str, object]) -> None:
    """Adds notes, by name, to a form's description, because they are not allowed as keywords."""
    words = [
        f"{name}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in notes.items()
        if value not in (None, "", [], {})
    ]
    if words:
        text = form.get("description", "")
        form["description"] = f"{text} ({'; '.join(words)})" if text else "; ".join(words)


def upgrade_dialect(schema: _Schema) -> _Schema:
    """Converts a schema from an older draft or OpenAPI 3.0 to the newest draft.

    The new schema accepts the same values. A schema that names its draft in `$schema` is returned
    unchanged.
    """
    if not isinstance(schema, dict) or "$schema" in schema:
        return schema
    schema = map_parts(_upgraded(schema), upgrade_dialect)
    match schema.get("components"):
        case {"schemas": dict() as definitions, **others}:  # where OpenAPI has definitions
            upgraded = {name: upgrade_dialect(part) for name, part in definitions.items()}
            schema["components"] = {**others, "schemas": upgraded}
        case _:
            pass
    return schema


def _upgraded(schema: JsonSchema) -> JsonSchema:
    """Returns the schema with its own keywords upgraded, but not the keywords of its parts."""
    schema = dict(schema)
    for limit in ("Minimum", "Maximum"):  # draft 4: true makes the other limit exclusive
        if isinstance(schema.get(f"exclusive{limit}"), bool):
            exclusive = schema.pop(f"exclusive{limit}")
            if exclusive and limit.lower() in schema:
                schema[f"exclusive{limit}"] = schema.pop(limit.lower())
    if isinstance(schema.get("items"), list):  # drafts before 2020
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    if "example" in schema:  # an OpenAPI keyword
        schema.setdefault("examples", [schema.pop("example")])
    if schema.pop("nullable", None) is True:  # an OpenAPI keyword
        if "type" in schema:
            schema["type"] = [*dict.fromkeys([*_types(schema), "null"])]
            if None not in schema.get("enum", [None]):
                schema["enum"] = [*schema["enum"], None]
        else:
            outer = {key: schema.pop(key) for key in _ANNOTATIONS if key in schema}
            schema = {"anyOf": [schema, {"type": "null"}], **outer}
    return schema


def to_provider_form(
    schema: JsonSchema,
    descriptions: Mapping[str, str] | None = None,
    *,
    names: re.Pattern[str] = SAFE_NAME,
) -> JsonSchema:
    """Returns the form of an object's schema, which accepts all objects that `schema` accepts.

    `descriptions` overrides property descriptions by name. A property whose name does not match
    `names` is moved into the description.
    """
    try:
        return _root_form(schema, descriptions or {}, names)
    # The schema is invalid: either an earlier check rejects it, or each call's check does.
    except (AttributeError, TypeError, ValueError, RecursionError):
        return {"type": "object", "properties": {}, "additionalProperties": True}


def _root_form(
    schema: JsonSchema, descriptions: Mapping[str, str], names: re.Pattern[str]
) -> JsonSchema:
    form = _Form(schema, names)
    schema = form.merged(_upgraded({**form.resolved(schema), "nullable": False}))
    for name in descriptions.keys() & schema.get("properties", {}).keys():
        part = schema["properties"][name]
        part = {**(part if isinstance(part, dict) else {}), "description": descriptions[name]}
        schema = {**schema, "properties": {**schema["properties"], name: part}}
    unions = {key: schema[key] for key in sorted(schema.keys() & _NOT_AT_ROOT)}
    ours = {key: value for key, value in schema.items() if key not in {"$ref", *unions}}
    root = form.of({**ours, "type": "object"})
    if unions:
        root.setdefault("additionalProperties", True)  # union members can name other properties
        form.state(root, unions)
    definitions = form.definitions()
    return {**root, "$defs": definitions} if definitions else root


class _Form:
    """The forms of a schema's parts, and of the definitions that these parts refer to."""

    def __init__(self, schema: JsonSchema, names: re.Pattern[str]) -> None:
        self._schema = schema
        self._property_names = names
        self._definition_names: dict[str, str] = {}  # by reference
        self._depth = 0

    def of(self, schema: _Schema) -> JsonSchema:
        """Returns the form of a schema, or of a part of it."""
        if not isinstance(schema, dict) or self._depth > _MAX_DEPTH:  # `true`, `false`, too deep
            return {}
        self._depth += 1
        schema = self.merged(_upgraded(schema))
        unsafe = {
            key: schema.pop(key) for key in _BOUNDS | {"default"} if not _is_json(schema.get(key))
        }
        body = {key: value for key, value in schema.items() if key in _KEPT}
        rules = {key: schema[key] for key in sorted(schema.keys() & _DESCRIBED)}
        if "oneOf" in body:  # after widening, a value could match several members
            (rules if "anyOf" in body else body)["anyOf"] = body.pop("oneOf")
        if len(body.get("allOf", ())) == 1 and "anyOf" not in body:
            body["anyOf"] = body.pop("allOf")
        form: JsonSchema = self._form_of(body, rules)
        outer = {key: schema[key] for key in ("description", "default") if key in schema}
        # an existing form's description can refer to definitions
        for reference in re.findall(r"#/\$defs/\w+", str(schema.get("description", ""))):
            self._reference(reference)
        if "$ref" in form and (outer or rules or "examples" in schema):
            form = {"anyOf": [form]}  # a reference must not have sibling keywords
        words = form.pop("description", "")  # describes properties that cannot be kept in the form
        form |= outer
        if words:
            form["description"] = f"{outer.get('description', '')}\n{words}".strip()
        if rules:
            self.state(form, rules)
        describe(form, {**unsafe, "examples": schema.get("examples")})
        self._depth -= 1
        return {
            key: form[key] for key in {**schema, **form} if key in form
        }  # in the author's order

    def _form_of(self, body: JsonSchema, rules: JsonSchema) -> JsonSchema:
        """Returns a part's form without annotations; adds rules that do not fit to `rules`."""
        types = [name for name in _types(body) if name in _OF_TYPE]
        siblings = {key: body[key] for key in body if key not in ("$ref", "anyOf", "type")}
        if "$ref" in body:
            rules |= {key: body[key] for key in body.keys() - {"$ref", "type"}}
            return {"$ref": self._reference(body["$ref"])}
        if body.get("anyOf") and not (types and siblings):
            rules |= siblings
            return {"anyOf": [self.of(_with_types(member, types)) for member in body["anyOf"]]}
        if "anyOf" in body:
            rules |= {"anyOf": body.pop("anyOf")}
            if "object" in types:
                body.setdefault("additionalProperties", True)  # members can name other properties
        types = types or _types_of_values(body)
        forms = [form for name in types if (form := self._form_of_type(name, body)) is not None]
        if not forms:  # the part allows every type or has no matching value
            rules |= {key: body.pop(key) for key in ("enum", "const") if key in body}
            return self._with_parts({**body, "type": types[0]} if types else body)
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def _form_of_type(self, name: str, body: JsonSchema) -> JsonSchema | None:
        """Returns a form for values of one type only; `None` if no value matches."""
        form = {key: body[key] for key in body if key in _OF_TYPE[name] | _OF_ANY_TYPE}
        if "const" in form and not _fits(form["const"], name):
            return None
        if "enum" in form:
            # drop repeated values, but distinguish 1 from true
            fitting = [value for value in form.pop("enum") if _fits(value, name)]
            unique = {(type(value), repr(value)): value for value in fitting}
            if not unique:
                return None
            if name != "null":
                form["enum"] = [*unique.values()]
        return self._with_parts({"type": name, **form})

    def _with_parts(self, form: JsonSchema) -> JsonSchema:
        """Replaces the parts of a schema with their forms, and makes implied parts explicit."""
        for key in ("allOf", "prefixItems"):
            if key in form:
                form[key] = [self.of(part) for part in form[key]]
        if "items" in form or form.get("type") == "array":
            form["items"] = self.of(form.get("items"))
        if "properties" in form or form.get("type") == "object":
            self._state_properties(form)
        if isinstance(form.get("additionalProperties"), dict):
            form["additionalProperties"] = self.of(form["additionalProperties"])
        return form

    def _state_properties(self, form: JsonSchema) -> None:
        if "properties" not in form:
            form.setdefault("additionalProperties", True)
        required = [*dict.fromkeys(form.get("required", ()))]
        properties = {**form.get("properties", {})}
        properties |= {name: {} for name in required if name not in properties}
        safe = {name for name in properties if self._property_names.fullmatch(name)}
        form["properties"] = {
            name: self.of(properties[name]) for name in properties if name in safe
        }
        if "required" in form:
            form["required"] = [name for name in required if name in safe]
        if others := {name: properties[name] for name in properties if name not in safe}:
            form["additionalProperties"] = True
            unsafe = [name for name in required if name not in safe]
            self.state(form, {"properties": others, **({"required": unsafe} if unsafe else {})})

    def state(self, form: JsonSchema, rules: JsonSchema) -> None:
        """Adds rules to a form's description, because the form cannot express them."""

        def rename(part: _Schema) -> _Schema:
            if not isinstance(part, dict):
                return part
            named = {"$ref": self._reference(part["$ref"])} if "$ref" in part else {}
            return {**map_parts(part, rename), **named}

        text = f"It also fits {json.dumps(rename(rules), ensure_ascii=False)}"
        form["description"] = f"{form.get('description', '')}\n{text}".strip()

    def _reference(self, reference: str) -> str:
        """Returns a reference to a definition that contains the form of the original target."""
        if reference not in self._definition_names:
            name = re.sub(r"[^A-Za-z0-9_]", "_", reference.rpartition("/")[2]) or "_"
            while name in self._definition_names.values():
                name += "_"
            self._definition_names[reference] = name
        return f"#/$defs/{self._definition_names[reference]}"

    def definitions(self) -> dict[str, JsonSchema]:
        """Returns the definitions that the forms refer to, directly or indirectly."""
        definitions: dict[str, JsonSchema] = {}
        while len(definitions) < len(self._definition_names):
            for reference, name in [*self._definition_names.items()][len(definitions) :]:
                definitions[name] = self.of(self.target(reference))
        return definitions

    def resolved(self, schema: _Schema) -> _Schema:
        """Returns a schema with its reference replaced by the referenced schema."""
        references = set[str]()
        while isinstance(schema, dict) and (reference := schema.get("$ref")) is not None:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = rest if reference in references else {**self.target(reference), **rest}
            references.add(reference)
        return schema

    def merged(self, schema: JsonSchema) -> JsonSchema:
        """Returns an object schema merged with the properties of its `allOf` members."""
        members = schema.get("allOf", ())
        if len(members) < (1 if "properties" in schema else 2):
            return schema
        parts = [_upgraded(self.resolved(member)) for member in members]
        own = {key: value for key, value in schema.items() if key != "allOf"}
        merged: JsonSchema = {"properties": {}, "required": []}
        count = 0
        for part in [own, *map(self.merged, parts)]:
            rules = part.keys() & (_KEPT | _DESCRIBED)
            if not rules <= _MERGED or part.get("type", "object") != "object":
                return schema
            properties, required = part.get("properties", {}), part.get("required", ())
            merged["properties"] |= properties
            merged["required"] += required
            merged = {**part, **merged}
            count += len(properties)
        # a property in two members must match both
        return schema if len(merged["properties"]) < count else merged

    def target(self, reference: str) -> _Schema:
        """Returns the target of a JSON pointer, or an empty schema."""
        from urllib.parse import unquote  # takes as long to import as the rest of this module

        pointer = reference.removeprefix(str(self._schema.get("$id", "")).rstrip("#"))
        value: _Schema = self._schema
        for part in pointer.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) and pointer.startswith("#") else {}


def _types(schema: JsonSchema) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _with_types(schema: _Schema, types: list[str]) -> _Schema:
    """Returns a union's member with the union's types, unless the member has its own."""
    if not types or not isinstance(schema, dict) or schema.keys() & {"type", "$ref", "anyOf"}:
        return schema
    return {**schema, "type": types}


def _type_of(value: object) -> str:
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return _TYPES_IN_JSON.get(type(value), "object")


_TYPES_IN_JSON: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    str: "string",
    list: "array",
    type(None): "null",
}


def _types_of_values(schema: JsonSchema) -> list[str]:
    """Returns the types of the values listed in a schema that has no type."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    types = [*dict.fromkeys(map(_type_of, filter(_is_json, values)))]
    return [name for name in types if name != "integer" or "number" not in types]


def _fits(value: object, name: str) -> bool:
    return _is_json(value) and _type_of(value) in {name, "integer" if name == "number" else name}


def _is_json(value: object) -> bool:
    """Returns whether a value is valid JSON, which excludes infinities."""
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    return not isinstance(value, list) or all(map(_is_json, value))
