"""JSON Schemas that others wrote, in the form that providers accept for a tool.

OpenAI and Anthropic refuse a whole request for one schema that breaks their rules: an object at the
root, without unions there; properties and items that are stated; references to `$defs` alone. The
form admits every object that the foreign schema admits, perhaps more; arguments are checked against
the foreign schema itself.
"""

import json
import re
from typing import Any

from ..serde import JsonSchema

__all__ = ["to_provider_form"]

type _Schema = Any  # Any: a foreign schema, which may hold anything anywhere

_DROPPED = {
    *("$schema", "$id", "$comment", "$anchor", "$dynamicAnchor", "$dynamicRef", "$defs", "title"),
    *("definitions", "examples", "deprecated", "readOnly", "writeOnly"),
}
_PROPERTY = r"[A-Za-z0-9_.-]{1,64}"  # Anthropic's
_UNIONS = {"anyOf", "allOf", "prefixItems"}
_NOT_AT_ROOT = {"oneOf", "anyOf", "allOf", "enum", "const"}
# rules that few decoders know; a wider form of what they negate would narrow the whole
_DESCRIBED = {
    *("not", "if", "then", "else", "dependentSchemas", "dependentRequired", "patternProperties"),
    *("propertyNames", "contains", "minContains", "maxContains"),
    *("unevaluatedItems", "unevaluatedProperties", "additionalItems"),
}


def to_provider_form(schema: JsonSchema) -> JsonSchema:
    """Returns a schema of an object that admits all objects which `schema` admits.

    What may not stand at the root moves into its description.
    """
    try:
        return _root_form(schema)
    # It is no valid schema. A check would have refused it, or refuses every call.
    except (AttributeError, TypeError, ValueError, RecursionError):
        return {"type": "object", "properties": {}, "additionalProperties": True}


def _root_form(schema: JsonSchema) -> JsonSchema:
    form = _Form(schema)
    references = set[str]()
    while (reference := schema.get("$ref")) is not None and reference not in references:
        references.add(reference)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**form.target(reference), **rest}
    unions = {key: schema[key] for key in sorted(schema.keys() & _NOT_AT_ROOT)}
    ours = {key: value for key, value in schema.items() if key not in {"$ref", *unions}}
    root = form.of({**ours, "type": "object"})
    if unions:
        root.setdefault("additionalProperties", True)  # a union may name other properties
        _describe(root, unions)
    return {**root, "$defs": form.definitions} if form.definitions else root


class _Form:
    """The forms of a schema's parts; references add to `definitions`."""

    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._names: dict[str, str] = {}  # of definitions, by reference
        self.definitions: dict[str, JsonSchema] = {}

    def of(self, schema: _Schema) -> JsonSchema:
        """Returns the form of a schema or of a part."""
        if not isinstance(schema, dict):  # `true` or `false`
            return {}
        rules = {key: schema[key] for key in sorted(schema.keys() & _DESCRIBED)}
        form = {
            key: value for key, value in schema.items() if key not in _DROPPED and key not in rules
        }
        if rules:
            _describe(form, rules)
        if "patternProperties" in rules:
            form["additionalProperties"] = True
        if "oneOf" in form:  # wider members could both fit
            form.setdefault("anyOf", form.pop("oneOf"))
        if "$ref" in form:
            form["$ref"] = f"#/$defs/{self._define(form['$ref'])}"
        if isinstance(items := form.get("items"), list):  # of earlier drafts
            form |= {"prefixItems": items, "items": {}}
        elif "items" in form or "array" in _types(form):
            form["items"] = self.of(items)
        if "properties" in form or "object" in _types(form):
            self._form_object(form)
        if isinstance(form.get("additionalProperties"), dict):
            form["additionalProperties"] = self.of(form["additionalProperties"])
        for key in _UNIONS & form.keys():
            form[key] = [self.of(inner) for inner in form[key]]
        others = _types(form) - {"null"}
        if len(others) == 1 and others != _types(form):
            return _nullable(form, *others)
        return form

    def _form_object(self, form: JsonSchema) -> None:
        if "properties" not in form:
            form.setdefault("additionalProperties", True)
        properties = {name: {} for name in form.get("required", ())} | form.get("properties", {})
        names = [*{**form.get("properties", {}), **properties}]  # in the author's order
        form["properties"] = {
            name: self.of(properties[name]) for name in names if re.fullmatch(_PROPERTY, name)
        }
        if others := {name: properties[name] for name in names if name not in form["properties"]}:
            form["required"] = [
                name for name in form.get("required", ()) if name in form["properties"]
            ]
            form["additionalProperties"] = True
            _describe(form, {"properties": others})

    def _define(self, reference: str) -> str:
        """Returns the name of the definition that a reference leads to."""
        if reference not in self._names:
            name = re.sub(r"[^A-Za-z0-9_]", "_", reference.rpartition("/")[2])
            while name in self._names.values():
                name += "_"
            self._names[reference] = name
            self.definitions[name] = {}  # its place, while the target refers to itself
            self.definitions[name] = self.of(self.target(reference))
        return self._names[reference]

    def target(self, reference: str) -> _Schema:
        """Returns what a JSON pointer leads to, or an empty schema."""
        value: _Schema = self._schema
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) and reference.startswith("#") else {}


def _describe(form: JsonSchema, rules: JsonSchema) -> None:
    """Adds rules to the description of a form that cannot hold them."""
    text = f"It also fits {json.dumps(rules, ensure_ascii=False)}"
    form["description"] = f"{form.get('description', '')}\n{text}".strip()


def _types(form: JsonSchema) -> set[str]:
    types = form.get("type", [])
    return {types} if isinstance(types, str) else set(types)


def _nullable(form: JsonSchema, other: str) -> JsonSchema:
    """Returns the union of a type and null; every provider knows unions, not all lists of types."""
    outer: JsonSchema = {key: form.pop(key) for key in ("description", "default") if key in form}
    form["type"] = other
    if "enum" in form:
        form["enum"] = [value for value in form["enum"] if value is not None]
    return {"anyOf": [form, {"type": "null"}], **outer}
