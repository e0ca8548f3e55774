"""Tools from a JSON Schema: their construction, their arguments, and the text for the model."""

import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from time import process_time
from typing import Any

import pytest

from support.agents import prompt
from support.commands import environment
from weakincentives.errors import SerdeError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import ToolMessage
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    SectionVisibility,
    TaskExample,
    TaskExamplesSection,
    TaskStep,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.prompt.tool import JsonParams
from weakincentives.runtime.session import Session
from weakincentives.serde import Json
from weakincentives.serde.validation import parse_object
from weakincentives.testing import ScriptedAdapter, assert_tool_contract, call, say

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "pattern": "^/"},
        "depth": {"type": "integer", "default": 1},
        "filter": {
            "oneOf": [
                {"type": "object", "properties": {"name": {"type": "string"}}},
                {"type": "array", "items": {"$ref": "#/$defs/word"}},
            ]
        },
    },
    "required": ["path"],
    "additionalProperties": False,
    "$defs": {"word": {"enum": ["a", "b"]}},
}


def echo(params: JsonParams, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(message=f"{dict(params)}")


def schema_tool(parameters: Mapping[str, object] | None = SCHEMA) -> Tool[JsonParams, None]:
    return Tool.from_schema(
        name="look", description="Looks.", parameters=parameters, handler=echo, effect="pure"
    )


def test_parse_params_returns_a_mapping_that_fits_the_schema() -> None:
    arguments: dict[str, Json] = {"path": "/a", "filter": ["b"]}
    assert schema_tool().parse_params(json.dumps(arguments)) == arguments


@pytest.mark.parametrize(
    ("arguments", "path", "word"),
    [
        ({}, (), "lacks 'path'"),
        ({"path": 3}, ("path",), "type"),
        ({"path": "a"}, ("path",), "pattern"),
        ({"path": "/", "depth": "1"}, ("depth",), "integer"),
        ({"path": "/", "filter": ["c"]}, ("filter", 0), "enum"),
        ({"path": "/", "more": 1}, (), "unknown properties; there are 'path', 'depth', 'filter'"),
    ],
)
def test_invalid_arguments_are_reported_with_their_path(
    arguments: object, path: tuple[str | int, ...], word: str
) -> None:
    with pytest.raises(SerdeError) as caught:
        schema_tool().parse_params(json.dumps(arguments))
    assert any(issue.path == path and word in issue.message for issue in caught.value.issues)


def test_issues_never_quote_the_data() -> None:
    arguments = {"path": "hush", "depth": "hush", "filter": {"name": 1, "hush": 2}, "hush": "hush"}
    with pytest.raises(SerdeError) as caught:
        schema_tool().parse_params(json.dumps(arguments))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("arguments", [{"depth": None}, {"filter": {"name": None}}])
def test_null_not_allowed_by_the_schema_is_treated_as_absent(
    arguments: dict[str, Json],
) -> None:
    params = schema_tool().parse_params(json.dumps({"path": "/a", **arguments}))
    assert params == ({"path": "/a"} if "depth" in arguments else {"path": "/a", "filter": {}})


def test_null_allowed_by_the_schema_is_kept() -> None:
    tool = schema_tool({"type": "object", "properties": {"a": {"type": ["string", "null"]}}})
    assert tool.parse_params('{"a": null}') == {"a": None}


def test_only_objects_are_accepted_without_a_schema() -> None:
    tool = schema_tool(None)
    assert tool.parse_params('{"a": [1]}') == {"a": [1]}
    for text in ("[]", "3", "{", '{"a": NaN}'):
        with pytest.raises(SerdeError):
            tool.parse_params(text)


@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:9/schema.json", "#/$defs/none", "file:///etc/hosts"]
)
def test_unresolvable_reference_is_reported_and_never_fetched(reference: str) -> None:
    tool = schema_tool({"type": "object", "properties": {"a": {"$ref": reference}}})
    with pytest.raises(SerdeError, match="leads nowhere"):
        tool.parse_params('{"a": 1}')


def test_check_of_a_self_referencing_schema_terminates() -> None:
    with pytest.raises(SerdeError, match="goes in circles"):
        schema_tool({"$ref": "#"}).parse_params("{}")
    nested = {"type": "object", "properties": {"inner": {"$ref": "#"}}}
    assert schema_tool(nested).parse_params('{"inner": {"inner": {}}}') == {"inner": {"inner": {}}}


def test_pattern_is_matched_in_linear_time() -> None:
    tool = schema_tool({"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}})
    start = process_time()
    with pytest.raises(SerdeError, match="pattern"):
        tool.parse_params(json.dumps({"a": "a" * 5_000 + "b"}))
    assert process_time() - start < 10  # the engine of `re` would need years


def test_check_work_is_limited_in_proportion_to_the_arguments() -> None:
    branches = [
        {"properties": {"op": {"const": op}, "of": {"$ref": "#/$defs/rule"}}, "required": ["of"]}
        for op in ("and", "or", "not")
    ]
    schema = json.dumps({"type": "object", "$defs": {"rule": {"anyOf": branches}}, **branches[0]})
    nested = '{"of":' * 40 + "{}" + "}" * 40
    with pytest.raises(SerdeError, match="takes too long; send less, and nest it less deeply"):
        parse_object(schema, nested)
    fits = {"op": "and", "of": {"op": "or", "of": "x"}}
    assert parse_object(schema, json.dumps(fits)) == fits


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        (
            [{"k": number} for number in range(20_000)],
            True,
        ),  # comparing pairs would take 20 minutes
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ([1, True, "1", None, [1], {"1": 1}, 0, False], True),
        ([[1], [1.0]], False),
        ([], True),
    ],
)
def test_unique_items_are_compared_by_value(items: list[Any], *, unique: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    text = json.dumps({"a": items})
    if unique:
        assert parse_object(json.dumps(schema), text) == {"a": items}
    else:
        with pytest.raises(SerdeError, match="a: does not fit uniqueItems: true"):
            parse_object(json.dumps(schema), text)


@pytest.mark.parametrize(
    ("schema", "arguments", "answer"),
    [
        ({"a": {"divisibleBy": 0.1}}, '{"a": 1' + "0" * 400 + "}", "the schema cannot check this"),
        ({"a": {"required": True}}, "{}", "a: does not fit required: true"),
    ],
)
def test_arguments_that_fail_a_draft_3_check_are_reported(
    schema: dict[str, Any], arguments: str, answer: str
) -> None:
    oldest = "http://json-schema.org/draft-03/schema#"
    text = json.dumps({"$schema": oldest, "type": "object", "properties": schema})
    with pytest.raises(SerdeError, match=answer):
        parse_object(text, arguments)


def test_pattern_that_the_engine_does_not_support_is_not_checked() -> None:
    tool = schema_tool({"type": "object", "properties": {"a": {"pattern": "^(?!x)"}}})
    assert tool.parse_params('{"a": "x"}') == {"a": "x"}


@pytest.mark.parametrize(
    "parameters",
    [{"type": "objekt"}, {"type": ["array"]}, {"required": True}, {"x": {1}}, {"x": float("nan")}],
)
def test_invalid_schema_is_rejected_when_the_tool_is_built(
    parameters: Mapping[str, object],
) -> None:
    with pytest.raises(PromptValidationError, match="'look': parameters= is not a JSON Schema"):
        schema_tool(parameters)


def test_schema_tool_is_a_value_unaffected_by_later_schema_changes() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = schema_tool(parameters)
    parameters["properties"] = {}
    assert tool.params_schema()["properties"] == {"a": {"type": "string"}}
    assert pickle.loads(pickle.dumps(tool)) == tool
    changed = replace(tool, description="Else.")
    assert (changed.schema, changed.description) == (tool.schema, "Else.")


def test_model_sees_validation_errors_and_calls_again() -> None:
    adapter = ScriptedAdapter(
        [call(("look", {"path": "a"})), call(("look", {"path": "/a"})), say("done")]
    )
    adapter.evaluate(prompt(schema_tool()), session=Session())
    contents = [
        message.content
        for message in adapter.requests[-1].messages
        if isinstance(message, ToolMessage)
    ]
    assert contents[0].startswith("Invalid arguments for 'look': path: does not fit pattern")
    assert contents[1] == "{'path': '/a'}"


def test_at_most_once_call_is_recognized_in_any_argument_order() -> None:
    runs: list[JsonParams] = []

    def record(params: JsonParams, *, context: ToolContext) -> ToolResult[None]:
        runs.append(params)
        return ToolResult(message="ok")

    tool = replace(schema_tool(), effect="at_most_once", handler=record)
    hidden = MarkdownSection(
        title="More",
        key="more",
        template="More.",
        summary="S",
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool.from_schema(name="late", description="L", parameters=None, handler=echo)],
    )
    template = PromptTemplate(
        ns="tests",
        key="k",
        sections=[
            MarkdownSection(title="Task", key="task", template="Do it.", tools=[tool]),
            hidden,
        ],
    )
    first = call(("look", {"path": "/a", "depth": 2}))
    again = call(("look", {"depth": 2, "path": "/a"}))
    restart = call(("read_section", {"section_key": "more"}))
    adapter = ScriptedAdapter([first, restart, again, say("done")], dynamic_tools=False)
    execution = MainLoop(adapter).execute(template.bind(), session=Session())
    assert (execution.restarts, len(runs)) == (1, 1)


def test_examples_render_the_input_mapping() -> None:
    tool = Tool.from_schema(
        name="look",
        description="Looks.",
        parameters=SCHEMA,
        handler=echo,
        examples=[ToolExample(description="One.", input={"path": "/"}, output=None)],
    )
    task = TaskExamplesSection(
        title="Examples",
        key="examples",
        examples=[
            TaskExample(
                objective="Look.",
                steps=(TaskStep(tool="look", input={"path": "/x"}, result="ok"),),
                outcome="done",
            )
        ],
    )
    section = MarkdownSection(title="Task", key="task", template="Do it.", tools=[tool])
    text = PromptTemplate(ns="tests", key="k", sections=[section, task]).bind().render().text
    assert '{"path":"/"}' in text
    assert '{"path":"/x"}' in text


def test_schema_params_are_listed_in_the_descriptor() -> None:
    descriptor = prompt(schema_tool()).descriptor
    names = [text_id.at for text_id in descriptor.texts if text_id.kind == "param"]
    assert names == ["look.path", "look.depth", "look.filter"]


def test_schema_tool_passes_the_tool_contract() -> None:
    assert_tool_contract(schema_tool(), max_examples=20)


PROGRAM = """
import sys
sys.modules["jsonschema"] = None
from weakincentives import MarkdownSection, Prompt, Tool
parameters = {{"type": "object", "properties": {{}}}}
tool = Tool.from_schema(
    name="look", description="L", parameters=parameters, handler=None, check_schema={check}
)
section = MarkdownSection(title="Task", template="Go.", tools=[tool])
assert Prompt(ns="n", key="k", sections=[section]).render().tools == (tool,)
"""


def run_without_jsonschema(*, check: bool) -> str:
    program = PROGRAM.format(check=check)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


def test_checked_schema_needs_no_jsonschema_until_a_call() -> None:
    assert run_without_jsonschema(check=False) == ""


def test_missing_jsonschema_error_names_the_extra() -> None:
    assert "pip install '.[json-schema]'" in run_without_jsonschema(check=True)


INTEGERS = json.dumps(
    {
        "properties": {
            "whole": {"type": "integer"},
            "either": {"type": ["integer", "null"]},
            "listed": {"items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
            "any": {"type": "number"},
            "free": {},
        }
    }
)


def test_number_without_a_fraction_is_an_integer_where_the_schema_allows_it() -> None:
    text = '{"whole": 3.0, "either": 4.0, "listed": [5.0, "x"], "any": 6.0, "free": {"a": 7.0}}'
    arguments = parse_object(INTEGERS, text)
    assert json.dumps(arguments) == text.replace("3.0", "3").replace("4.0", "4").replace("5.0", "5")
    assert parse_object(INTEGERS, '{"whole": 2.0, "free": null}')["whole"] == 2


@pytest.mark.parametrize(
    ("factor", "number", "fits"),
    [
        (0.01, 19.99, True),
        (0.01, 0.07, True),
        (0.1, 0.3, True),
        (0.01, 0.005, False),
        (5, 10, True),
        (5, 11, False),
        (1e-308, 1e308, True),
    ],
)
def test_multiple_of_is_checked_in_decimal_digits(factor: float, number: float, fits: bool) -> None:
    schema = json.dumps({"properties": {"a": {"type": "number", "multipleOf": factor}}})
    if fits:
        assert parse_object(schema, json.dumps({"a": number})) == {"a": number}
        return
    with pytest.raises(SerdeError, match="does not fit multipleOf"):
        parse_object(schema, json.dumps({"a": number}))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^[\p{L}]+$", "Zürich"),
        (r"^(?<y>\d{4})$", "2026"),
        (r"^[\w-.]+$", "a-b."),
        (r"^\u{1F600}$", "\N{GRINNING FACE}"),
    ],
)
def test_patterns_use_ecmascript_syntax(pattern: str, text: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    assert parse_object(json.dumps(schema), json.dumps({"a": text})) == {"a": text}
    Tool.from_schema(name="t", description="x", handler=echo, parameters=schema)
