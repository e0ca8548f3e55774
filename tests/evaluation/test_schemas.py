"""The schemas that providers get: strict where possible, and never wider than the type itself."""

import json
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema_rs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import ok, only_answer, prompt, tool
from support.provider_rules import check_plain, check_root
from support.sent_schemas import sent_output, sent_tool
from support.typed_values import Kind, Tree, dataclass_kinds
from weakincentives import serde
from weakincentives.errors import SerdeError
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.prompt.model_json import read_without_nulls, unwrap
from weakincentives.prompt.output import StructuredOutputConfig
from weakincentives.testing import ScriptedAdapter, call, say


@st.composite
def params(draw: st.DrawFn) -> tuple[Kind, Any]:
    kind = draw(dataclass_kinds(depth=1))
    return kind, draw(kind.values)


@given(params())
def test_strict_tool_schema_fits_the_profile_and_accepts_every_value(
    drawn: tuple[Kind, Any],
) -> None:
    kind, value = drawn
    spec = sent_tool(tool(params=kind.of))
    if not spec.strict:
        check_plain(spec.parameters)
        jsonschema_rs.validate(spec.parameters, serde.dump(value))
        return
    check_root(spec.parameters)
    jsonschema_rs.validate(spec.parameters, serde.dump(value))


@pytest.mark.claim("TL-26")
@given(params(), st.data())
def test_null_arguments_for_omitted_fields_use_the_defaults(
    drawn: tuple[Kind, Any], data: st.DataObject
) -> None:
    kind, value = drawn
    seen: list[object] = []

    # Any: the params are created for the test.
    def handler(params: Any, *, context: ToolContext) -> ToolResult[object]:
        seen.append(params)
        return ToolResult("ok")

    dumped = serde.dump(value)
    assert isinstance(dumped, dict)
    optional = [field.name for field in fields(kind.of) if field.default_factory is not MISSING]
    left_out = (
        set(data.draw(st.lists(st.sampled_from(optional), unique=True))) if optional else set[str]()
    )
    arguments = {name: None if name in left_out else one for name, one in dumped.items()}
    expected = {
        name: one
        for name, one in arguments.items()
        if one is not None or _takes_null(kind.of, name, dumped)
    }
    adapter = ScriptedAdapter([call(("probe", arguments)), say("done")])
    answer = only_answer(adapter, prompt(tool(handler, params=kind.of)))
    assert answer.content == "ok"
    assert seen == [serde.parse(kind.of, expected)]


def _takes_null(of: Any, name: str, whole: dict[str, Any]) -> bool:
    try:
        serde.parse(of, {**whole, name: None})
    except SerdeError:
        return False
    return True


@dataclass(frozen=True)
class Round:
    kind: Literal["round"]
    radius: float = 1.0
    name: str | None = None


@dataclass(frozen=True)
class Angled:
    kind: Literal["angled"]
    name: str | None
    sides: int = 4
    inside: "list[Round | Angled]" = field(default_factory=list["Round | Angled"])


@dataclass(frozen=True)
class Plain:
    shapes: list[Round | Angled]


@dataclass(frozen=True)
class Tagged:
    shapes: list[Annotated[Round | Angled, pydantic.Field(discriminator="kind")]]


@pytest.mark.parametrize("of", [Plain, Tagged])
@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"kind": "round", "radius": None, "name": None}, Round("round")),
        ({"kind": "angled", "name": None, "sides": None, "inside": None}, Angled("angled", None)),
        (
            {
                "kind": "angled",
                "name": "a",
                "sides": 3,
                "inside": [{"kind": "round", "radius": None, "name": "b"}],
            },
            Angled("angled", "a", 3, [Round("round", name="b")]),
        ),
    ],
)
def test_strict_schema_allows_omitting_fields_of_union_members(
    of: Any, sent: object, read: object
) -> None:
    spec = sent_tool(tool(params=of))
    assert spec.strict
    jsonschema_rs.validate(spec.parameters, {"shapes": [sent]})
    assert read_without_nulls(partial(serde.parse_json, of), json.dumps({"shapes": [sent, sent]}))[
        0
    ] == of([read] * 2)


@dataclass(frozen=True)
class First:
    left: int = 1
    right: str = ""


@dataclass(frozen=True)
class Second:
    left: int | None
    middle: int = 3


@dataclass(frozen=True)
class Either:
    one: First | Second


def test_nulls_do_not_change_the_selected_union_member() -> None:
    read = partial(serde.parse_json, Either)
    assert read_without_nulls(read, '{"one": {"left": null, "middle": null}}')[0] == Either(
        Second(None)
    )
    assert read_without_nulls(read, '{"one": {"left": null, "right": null}}')[0] == Either(First())
    for wrong in (
        '{"one": {"left": null, "middle": null, "more": 1}}',
        '{"one": null}',
        '{"one": {"middle": null}}',
    ):
        with pytest.raises(SerdeError):
            read_without_nulls(read, wrong)


@dataclass(frozen=True)
class Third:
    wide: int = 0


def test_null_that_selects_a_union_member_is_not_removed() -> None:
    read = partial(serde.parse_json, tuple[First | Third, ...])
    assert read_without_nulls(read, '[{"left": null}, {"wide": 2}]')[0] == (First(), Third(2))
    with pytest.raises(SerdeError, match="wide"):
        read_without_nulls(read, '[{"left": null}, {"wide": null}]')


# --- Examples


class Shade(Enum):
    DARK = "dark"


@dataclass(frozen=True)
class Inner:
    n: int


@dataclass(frozen=True)
class Rich:
    entity: str = field(metadata={"description": "Which one"})
    moment: datetime
    id: UUID
    path: Path
    word: Annotated[str, pydantic.Field(min_length=2, max_length=5, pattern="^x")]
    share: Annotated[float, pydantic.Field(ge=0, le=1)]
    price: Annotated[float, pydantic.Field(json_schema_extra={"format": "€"})]
    kind: Literal["a"]
    maybe: int | None
    inner: Inner
    many: list[Inner]
    shade: Shade = Shade.DARK
    related: bool = field(default=False, metadata={"description": "Neighbours too"})
    limit: int | None = None
    other: Inner = field(default_factory=lambda: Inner(1))


@pytest.mark.claim("TL-27")
def test_rich_type_is_strict_and_describes_unsupported_keywords() -> None:
    spec = sent_tool(tool(params=Rich))
    assert spec.strict
    check_root(spec.parameters)
    properties = spec.parameters["properties"]
    assert properties["entity"] == {"type": "string", "description": "Which one"}
    assert properties["moment"] == {"type": "string", "format": "date-time"}
    assert properties["path"] == {"type": "string", "description": 'format: "path"'}
    assert properties["word"] == {
        "type": "string",
        "pattern": "^x",
        "description": "minimum length: 2; maximum length: 5",
    }
    assert properties["share"] == {"type": "number", "minimum": 0, "maximum": 1}
    assert properties["price"] == {"type": "number", "description": 'format: "€"'}
    assert properties["kind"]["enum"] == ["a"]
    assert properties["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert properties["related"] == {
        "anyOf": [{"type": "boolean"}, {"type": "null"}],
        "description": "Neighbours too (default: false)",
    }
    assert properties["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert {"type": "null"} in properties["shade"]["anyOf"]
    assert {"type": "null"} in properties["other"]["anyOf"]


@pytest.mark.parametrize(
    "of", [dict[str, int], dict[str, Any], Any, object, list[Any], tuple[int, str]], ids=str
)
def test_types_unsupported_by_strict_mode_are_sent_unchanged(of: Any) -> None:
    description = field(metadata={"description": "Whatever it is."})
    for holder in (
        make_dataclass("Holder", [("value", of)]),
        make_dataclass("Holder", [("value", of, field(default=None))]),
        make_dataclass("Holder", [("value", of, description)]),
    ):
        spec = sent_tool(tool(params=holder))
        assert not spec.strict
        assert spec.parameters == spec.plain
        check_plain(spec.plain)


def test_recursive_type_has_an_object_at_the_root() -> None:
    @dataclass
    class Holder:
        tree: Tree

    for of in (Tree, Holder, Chain):
        spec = sent_tool(tool(params=of))
        assert spec.parameters["type"] == "object"
        assert "$ref" not in spec.parameters
    assert sent_tool(tool(params=Chain)).strict
    check_root(sent_tool(tool(params=Chain)).parameters)


@dataclass(frozen=True)
class Chain:
    """A recursive type that is strict nevertheless."""

    name: str
    next: "Chain | None" = None


@pytest.mark.claim("C-32")
def test_overridden_description_replaces_one_text_and_keeps_the_shared_schema() -> None:
    plain = sent_tool(tool(params=Rich))
    other = sent_tool(tool(params=Rich), {"entity": "Other words", "nope": "x"})
    assert other.parameters["properties"]["entity"]["description"] == "Other words"
    assert {**other.parameters["properties"], "entity": None} == {
        **plain.parameters["properties"],
        "entity": None,
    }
    assert sent_tool(tool(params=Rich)) == plain


def test_overridden_description_keeps_the_rest_of_an_external_schema() -> None:
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "A city.", "minLength": 2},
            "when": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "until": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        },
        "required": ["city"],
    }
    external = Tool.from_schema(name="t", description="T.", parameters=parameters, handler=ok)
    plain, other = sent_tool(external), sent_tool(external, {"when": "The day."})
    assert other.strict == plain.strict
    assert other.parameters["properties"]["when"]["description"] == "The day."
    assert {**other.parameters["properties"], "when": None} == {
        **plain.parameters["properties"],
        "when": None,
    }


def test_tool_without_params_has_an_empty_closed_object_schema() -> None:
    nothing = make_dataclass("Nothing", [])
    spec = sent_tool(tool(params=nothing))
    assert spec.strict
    assert {
        key: spec.parameters[key]
        for key in ("type", "properties", "required", "additionalProperties")
    } == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


# --- Outputs


def test_array_output_is_wrapped_in_an_object_with_definitions_at_the_root() -> None:
    spec = sent_output(StructuredOutputConfig(list[Rich]))
    assert (spec.strict, spec.name) == (True, "Rich")
    check_root(spec.parameters)
    assert list(spec.parameters["properties"]) == ["items"]
    assert spec.parameters["properties"]["items"]["type"] == "array"
    assert "items" not in sent_output(StructuredOutputConfig(Rich)).parameters["properties"]


@pytest.mark.parametrize(
    ("name", "sent"), [("Réponse", "R_ponse"), ("A" * 80, "A" * 64), ("My_Answer2", "My_Answer2")]
)
def test_output_name_is_sanitized_for_providers(name: str, sent: str) -> None:
    made: Any = make_dataclass(name, [("n", int)])
    assert sent_output(StructuredOutputConfig(made)).name == sent


@given(dataclass_kinds(depth=1))
def test_strict_output_schema_fits_the_profile(kind: Kind) -> None:
    for of in (kind.of, list[kind.of]):  # type: ignore[name-defined]
        spec = sent_output(StructuredOutputConfig(of))
        assert spec.strict is sent_tool(tool(params=kind.of)).strict
        if spec.strict:
            check_root(spec.parameters)


@pytest.mark.parametrize(
    ("text", "unwrapped"),
    [
        ('{"items": [1, "ä"]}', '[1, "ä"]'),
        ('{"items": [1], "more": 2}', '{"items": [1], "more": 2}'),
        ("[1]", "[1]"),
        ("no json", "no json"),
        ("", ""),
        ("```json\n[1]\n```", "```json\n[1]\n```"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_unwrap_requires_an_object_with_items_as_its_only_key(text: str, unwrapped: str) -> None:
    assert unwrap(text, "items") == unwrapped


def test_equal_types_give_the_same_schema_object() -> None:
    assert sent_tool(tool(params=Rich)).parameters is sent_tool(tool(params=Rich)).parameters
    assert json.dumps(sent_tool(tool(params=Rich)).parameters)
