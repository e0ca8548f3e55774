"""The schemas that each provider receives, strict and plain, in its own dialect."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from time import process_time
from typing import Annotated, Any, Literal

import jsonschema_rs
import pydantic
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support.agents import ok, tool
from support.external_schemas import external_schemas
from support.messages_api import check_strict
from support.provider_rules import check_openai_tool, check_plain
from support.sent_schemas import ANTHROPIC, OPENAI, sent_tool
from weakincentives.adapters.anthropic.codec import MessagesCodec, MessagesOptions
from weakincentives.adapters.chat_completions import ChatCodec
from weakincentives.adapters.codec import CodecOptions, JsonObject
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.adapters.schema_dialects import Dialect, encode_schema
from weakincentives.errors import SerdeError
from weakincentives.evaluation.schemas import tool_to_spec
from weakincentives.prompt import PromptValidationError, Tool
from weakincentives.prompt.tool import AnyTool
from weakincentives.serde import JsonSchema
from weakincentives.testing.arguments import argument_strategies


def external(schema: JsonSchema) -> AnyTool:
    return Tool.from_schema(name="t", description="T.", parameters=schema, handler=ok)


def sent_by_all(one: AnyTool) -> Mapping[str, JsonObject]:
    """Returns the tool as each codec sends it."""
    spec = tool_to_spec(one)
    options = MessagesOptions(
        model="m", max_tokens=1, tool_changes="list", strict_tools=True, cache=None
    )
    return {
        "chat": ChatCodec(CodecOptions(model="m"), "openai").encode_tool(spec),
        "responses": ResponsesCodec(CodecOptions(model="m"), "openai").encode_tool(spec),
        "messages": MessagesCodec(options, "anthropic").encode_tool(spec),
    }


def check_all(one: AnyTool) -> Mapping[str, JsonObject]:
    """Fails if a provider rejects its codec's schema; returns the schemas."""
    sent = sent_by_all(one)
    check_openai_tool(sent["chat"])
    check_openai_tool(sent["responses"])
    messages = sent["messages"]
    check_strict({"tools": [messages], "messages": []})
    if not messages.get("strict"):
        check_plain(messages["input_schema"])
    for part in _parts_with_properties(messages["input_schema"]):
        assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in part["properties"])
    return sent


def _parts_with_properties(value: Any) -> list[Any]:
    match value:
        case dict():
            inner = [found for each in value.values() for found in _parts_with_properties(each)]
            return [value, *inner] if isinstance(value.get("properties"), dict) else inner
        case list():
            return [found for each in value for found in _parts_with_properties(each)]
        case _:
            return []


@pytest.mark.claim("N-23")
@settings(max_examples=50)
@given(external_schemas())
def test_no_codec_sends_a_schema_that_its_provider_rejects(schema: JsonSchema) -> None:
    check_all(external(schema))


IN_WORDS = re.compile("does not fit (oneOf|minLength|minimum|exclusiveMinimum|format|pattern)")


@pytest.mark.parametrize("dialect", [OPENAI, ANTHROPIC])
@settings(max_examples=10, suppress_health_check=[HealthCheck.filter_too_much])
@given(external_schemas(), st.data())
def test_arguments_that_fit_the_strict_schema_fit_the_external_schema(
    dialect: Dialect, schema: JsonSchema, data: st.DataObject
) -> None:
    # a validator of the draft that a schema names does not know OpenAPI's null
    assume("$schema" not in schema or '"nullable"' not in json.dumps(schema))
    one = external(schema)
    strict = encode_schema(tool_to_spec(one).parameters, dialect).strict
    assume(strict is not None)
    assert strict is not None
    text = json.dumps(strict)
    # rules stated in prose do not bind a decoder, and a recursive schema may have no finite value
    assume("It also fits" not in text)
    assume('"$ref"' not in text)
    arguments, _ = argument_strategies(strict)
    issues = issues_of(one, json.dumps(data.draw(arguments)))
    assert [issue for issue in issues if not IN_WORDS.match(issue)] == []


def issues_of(one: AnyTool, arguments: str) -> list[str]:
    try:
        one.parse_params(arguments)
    except SerdeError as error:
        return [issue.message for issue in error.issues]
    return []


class Level(Enum):
    LOW = "low"
    HIGH = "high"
    TOP = "high"  # noqa: PIE796 - an alias


@dataclass(frozen=True)
class Point:
    x: int = 0


@dataclass(frozen=True)
class Rich:
    level: Level = Level.LOW
    other: Level = field(default=Level.HIGH, metadata={"description": "Second."})
    point: Point = Point(3)
    mixed: Literal[1, "a"] = 1
    month: Annotated[str, pydantic.Field(examples=["2026-01"])] = ""


def test_defaults_and_examples_are_described_by_every_codec() -> None:
    for body in check_all(tool(params=Rich)).values():
        function = body.get("function", body)
        schema = function.get("parameters") or function["input_schema"]
        assert function["strict"]
        words = {name: part.get("description") for name, part in schema["properties"].items()}
        assert words["level"] == 'default: "low"'
        assert words["other"] == 'Second. (default: "high")'
        assert words["point"] == 'default: {"x": 3}'
        assert words["month"] == 'examples: ["2026-01"]'
        assert "2026-01" in json.dumps(schema)


@dataclass(frozen=True)
class Size:
    größe: int  # noqa: PLC2401 - the subject of the test
    level: Level


@dataclass(frozen=True)
class Sizes:
    sizes: list[Size]
    name: str


def test_property_name_rejected_by_anthropic_is_described_at_any_depth() -> None:
    sent = check_all(tool(params=Sizes))
    assert sent["chat"]["function"]["strict"]
    assert "größe" in json.dumps(sent["chat"], ensure_ascii=False)
    assert "strict" not in sent["messages"]
    schema = sent["messages"]["input_schema"]
    assert list(schema["properties"]) == ["sizes", "name"]
    size = schema["$defs"]["Size"]
    assert list(size["properties"]) == ["level"]
    assert size["description"] == (
        'It also fits {"properties": {"größe": {"type": "integer"}}, "required": ["größe"]}'
    )
    jsonschema_rs.validate(schema, {"sizes": [{"größe": 1, "level": "low"}], "name": "a"})


class Reading(pydantic.BaseModel):
    serial: str = pydantic.Field(alias="Serial Number")


def test_alias_rejected_by_anthropic_is_described() -> None:
    schema = check_all(tool(params=Reading))["messages"]["input_schema"]
    assert "Serial Number" in schema["description"]


@dataclass(frozen=True)
class Search:
    max_price: float = math.inf
    bounds: tuple[float, ...] = (0.0, math.inf)
    tags: dict[str, str] = field(default_factory=dict[str, str])


def test_infinite_default_is_described() -> None:
    for body in check_all(tool(params=Search)).values():
        assert "default: Infinity" in json.dumps(body)
        assert "default: [0.0, Infinity]" in json.dumps(body)


@pytest.mark.parametrize("many", [{}, {"description": "Words."}])
def test_doubly_referenced_definitions_are_encoded_without_blowup(many: JsonSchema) -> None:
    """If definitions were copied, their number would double with each of the 40."""
    definitions: JsonSchema = {"d40": {"type": "string"}}
    for number in range(40):
        following = {"$ref": f"#/$defs/d{number + 1}", **many}
        definitions[f"d{number}"] = {
            "type": "object",
            "properties": {"a": following, "b": following},
            "required": ["a", "b"],
        }
    one = external({"$ref": "#/$defs/d0", "$defs": definitions})
    start = process_time()
    sent_by_all(one)  # the tests' own checks would double too
    assert process_time() - start < 10


def test_very_deep_schema_is_rejected_or_truncated_without_check_schema() -> None:
    schema: JsonSchema = {"type": "string"}
    for _ in range(150):
        schema = {"type": "array", "items": {"type": "object", "properties": {"a": schema}}}
    schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(PromptValidationError, match="nested too deeply"):
        external(schema)
    one = Tool.from_schema(
        name="t", description="T.", parameters=schema, handler=ok, check_schema=False
    )
    assert len(json.dumps(tool_to_spec(one).parameters)) < 10_000
    check_all(one)


def test_equal_schemas_are_encoded_once() -> None:
    first = tool_to_spec(external({"type": "object", "properties": {"q": {"type": "string"}}}))
    again: JsonSchema = json.loads(json.dumps(first.parameters))
    assert encode_schema(first.parameters, OPENAI) is encode_schema(again, OPENAI)


def test_only_referenced_openapi_components_are_sent() -> None:
    unused = {f"U{number}": {"type": "string"} for number in range(50)}
    used: JsonSchema = {
        "A": {"type": "object", "properties": {"b": {"$ref": "#/components/schemas/B"}}}
    }
    used |= {"B": {"type": "integer", "nullable": True, "example": 3}}
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/components/schemas/A"}},
        "required": ["a"],
        "components": {"schemas": used | unused},
    }
    sent = sent_tool(external(schema))
    assert sent.strict
    assert sent.parameters["$defs"].keys() == {"A", "B"}
    assert "components" not in sent.parameters
    assert sent.plain["$defs"]["B"] == {
        "anyOf": [{"type": "integer"}, {"type": "null"}],
        "description": "examples: [3]",
    }
    assert external(schema).parse_params('{"a": {"b": null}}') == {"a": {"b": None}}


def test_allof_objects_are_merged_into_one_strict_object() -> None:
    base = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    schema = {
        "type": "object",
        "properties": {
            "pet": {
                "allOf": [
                    {"$ref": "#/definitions/Base"},
                    {"type": "object", "properties": {"name": {"type": "string"}}},
                ],
                "description": "A pet.",
            }
        },
        "required": ["pet"],
        "definitions": {"Base": base},
    }
    sent = sent_tool(external(schema))
    assert sent.strict
    assert list(sent.parameters["properties"]["pet"]["properties"]) == ["id", "name"]
    assert sent.parameters["properties"]["pet"]["description"] == "A pet."
