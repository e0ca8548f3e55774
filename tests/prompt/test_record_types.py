"""Pydantic models and TypedDicts work as params, results and state, like dataclasses."""

from dataclasses import dataclass
from typing import Annotated, Any, NewType, NotRequired, TypedDict

import pytest
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, RootModel

from support.sent_schemas import sent_spec
from weakincentives import serde
from weakincentives.errors import SerdeError
from weakincentives.inspection.analysis import analyze
from weakincentives.prompt import (
    MarkdownSection,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
    parse_structured_output,
)
from weakincentives.protocols import StateSlice
from weakincentives.runtime.session import Session, SessionSnapshot
from weakincentives.testing import ScriptedAdapter, call, say


class City(BaseModel):
    name: str = Field(description="As on maps")
    size: int = Field(default=1, description="In thousands")


class Trip(TypedDict):
    place: Annotated[str, Field(description="A city")]
    days: Annotated[NotRequired[int], Field(description="Nights, too")]


class Note(TypedDict):
    text: str


class Other(TypedDict):
    text: str


def visit(params: Trip, /, *, context: ToolContext) -> ToolResult[City]:
    return ToolResult(message="Went.", value=City(name=params["place"]))


def found(params: City, /, *, context: ToolContext) -> ToolResult[Trip]:
    context.session.dispatch(params)
    return ToolResult(message="Founded.", value={"place": params.name})


VISIT = Tool[Trip, City](name="visit", description="Visits.", handler=visit)
FOUND = Tool(name="found", description="Founds.", handler=found)
TEMPLATE = PromptTemplate(
    ns="tests",
    key="records",
    sections=[
        MarkdownSection[City](
            title="City", key="city", template="$name: $size.", tools=[VISIT, FOUND]
        ),
        MarkdownSection[Trip](
            title="Trip",
            key="trip",
            template="To $place for $$1.",
            enabled=lambda trip: trip["place"] != "home",
        ),
    ],
)


def test_sections_accept_models_and_typed_dicts_as_params() -> None:
    text = TEMPLATE.render(City(name="Rome"), Trip(place="Rome")).text
    assert text == "## 1. City\n\nRome: 1.\n\n## 2. Trip\n\nTo Rome for $1."
    assert "Trip" not in TEMPLATE.render(City(name="Rome"), Trip(place="home")).text


def test_handlers_take_and_return_models_and_dicts() -> None:
    adapter = ScriptedAdapter(
        [
            call(("visit", {"place": "Rome", "days": None}), ("found", City(name="Ur", size=2))),
            call(("visit", {"days": 1}), ("found", {"name": 1}), ("found", {"name": "x", "y": 1})),
            say("done"),
        ]
    )
    session = Session()
    bound = TEMPLATE.bind(City(name="Rome"), Trip(place="Rome"))
    adapter.evaluate(bound, session=session)
    assert [answer for seen in adapter.requests[1:] for answer in _answers(seen.messages)][:2] == [
        'Went.\n\n{"name":"Rome","size":1}',
        'Founded.\n\n{"place":"Ur"}',
    ]
    assert _answers(adapter.requests[2].messages)[2:] == [
        "Invalid arguments for 'visit': place: Field required",
        "Invalid arguments for 'found': name: Input should be a valid string",
        "Invalid arguments for 'found': y: Extra inputs are not permitted",
    ]
    assert session[City].all() == (City(name="Ur", size=2),)
    spec = adapter.requests[0].tools[1]
    assert sent_spec(spec).strict
    assert "In thousands" in spec.parameters["properties"]["size"]["description"]


def _answers(messages: Any) -> list[str]:
    return [message.content for message in messages if message.kind == "tool"]


def test_state_of_models_and_typed_dicts_round_trips_through_a_snapshot() -> None:
    session, other = Session(), Session()
    session[City].append(City(name="Rome"))
    session[Trip].append(Trip(place="Rome"))
    text = session.snapshot().to_json()
    other.restore(other.parse_snapshot(text, types=[City, Trip]))
    assert (other[City].all(), other[Trip].all()) == (session[City].all(), session[Trip].all())


def test_dict_that_fits_none_or_several_types_is_rejected() -> None:
    several = PromptTemplate(
        ns="tests",
        key="several",
        sections=[
            MarkdownSection[Note](title="One", template="$text"),
            MarkdownSection[Other](title="Two", template="$text"),
        ],
    )
    with pytest.raises(PromptValidationError, match=r"fits several of .*: Note, Other"):
        several.bind({"text": "x"})
    with pytest.raises(PromptValidationError, match=r"fits none of .*: Trip"):
        TEMPLATE.bind({"where": "Rome"})


def test_unbound_params_are_reported_with_their_type() -> None:
    with pytest.raises(PromptRenderError, match=r"(?s)no City is bound.*prompt\.bind\(City"):
        TEMPLATE.render(Trip(place="Rome"))
    with pytest.raises(PromptRenderError, match=r"no Trip is bound.*Trip requires place"):
        TEMPLATE.render(City(name="Rome"))


def test_placeholders_are_checked_against_the_fields() -> None:
    for kind in (City, Trip):
        with pytest.raises(
            PromptValidationError, match="the params have no field for a placeholder"
        ):
            PromptTemplate(
                ns="tests",
                key="wrong",
                sections=[MarkdownSection[kind](title="T", template="$nowhere")],  # type: ignore[valid-type]
            )


def test_prompt_with_models_and_typed_dicts_can_be_analyzed() -> None:
    assert [finding.code for finding in analyze(TEMPLATE).findings] == []


def test_model_is_parsed_strictly_unless_its_config_disables_it() -> None:
    class Lax(BaseModel):
        model_config = ConfigDict(strict=False, extra="ignore")
        n: int

    with pytest.raises(SerdeError, match="valid string"):
        serde.parse_json(City, '{"name": 1}')
    assert serde.parse_json(Lax, '{"n": "1", "more": 2}') == Lax(n=1)
    assert serde.parse_json(City, '{"name": "x", "more": 2}', allow_extra=True) == City(name="x")


# --------------------------------------------------------------------------------------------------
# other ways to write a record type


class Place(typing_extensions.TypedDict):
    name: str
    days: typing_extensions.NotRequired[int]


class Named[T](TypedDict):
    name: T


@dataclass(frozen=True)
class Box[T]:
    name: T


class BoxModel[T](BaseModel):
    model_config = ConfigDict(frozen=True)
    name: T


type Boxed = Box[str]
type BoxOf[T] = Box[T]
type Aliased[T] = BoxOf[T]
type Noted = Annotated[Boxed, "of a user"]
Older = typing_extensions.TypeAliasType("Older", Noted)  # noqa: UP040 - the class of typing_extensions
Fresh = NewType("Fresh", City)


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (Place, {"name": "x"}),
        (Named[str], {"name": "x"}),
        (Box[str], Box("x")),
        (BoxModel[str], BoxModel[str](name="x")),
        (Boxed, Box("x")),
        (BoxOf[str], Box("x")),
        (Aliased[str], Box("x")),
        (Noted, Box("x")),
        (Older, Box("x")),
        (Annotated[Place, "of a user"], {"name": "x"}),
        (Fresh, City(name="x")),
    ],
    ids=str,
)
def test_generic_and_alias_forms_of_a_record_type_are_equivalent(of: Any, value: Any) -> None:
    seen: list[object] = []

    def take(params: Any, *, context: ToolContext) -> ToolResult[Any]:
        seen.append(params)
        return ToolResult(message="taken", value=params)

    tool = Tool(
        name="take",
        handler=take,
        params_type=of,
        result_type=of,
        examples=[ToolExample("One", value, value)],
    )
    section = MarkdownSection[of](title="S", template="To $name.", tools=[tool])
    template = PromptTemplate[of](ns="tests", key="ways", sections=[section])
    prompt = template.bind(value)
    assert "To x." in prompt.render().text
    adapter = ScriptedAdapter(
        [call(("take", {"name": 1})), call(("take", {"name": "x"})), say('{"name": "x"}')]
    )
    response = adapter.evaluate(prompt, session=Session())
    assert seen == [value]
    assert type(seen[0]) is type(value)
    assert response.output == value
    assert template.structured_output is not None
    assert template.structured_output.container == "object"


@pytest.mark.parametrize("of", [Box[int], Noted, BoxOf[int], Annotated[Box[int], ""]], ids=str)
def test_alias_and_its_class_share_one_slice(of: Any) -> None:
    session = Session()
    session.declare(StateSlice(Box, {}))
    session[of].append(Box(1))
    assert session[Box].latest() == Box(1)
    text = session.snapshot().to_json()
    assert SessionSnapshot.from_json(text, types=[Box]).slices.keys() == {Box}
    section: Any = MarkdownSection(title="S", template="T", state=[of])
    PromptTemplate(ns="tests", key="state", sections=[section]).bind()
    assert section.state == (Box,)


type Cities = list[City]
type Text = str


@pytest.mark.parametrize("alias", ["list", "text"])
def test_alias_of_list_or_str_has_the_container_of_its_target(alias: str) -> None:
    of: Any = {"list": Cities, "text": Text}[alias]
    config = PromptTemplate[of](ns="tests", key="alias").structured_output
    assert config is not None
    assert config.container == {"list": "array", "text": "text"}[alias]


class Numbers(RootModel[list[int]]):
    """A model whose JSON is not an object."""


def test_root_model_is_rejected_as_params_and_wrapped_as_output() -> None:
    with pytest.raises(PromptValidationError, match=r"params type must be .*, got .*Numbers"):
        Tool(name="t", params_type=Numbers)
    with pytest.raises(PromptValidationError, match=r"params type must be .*, got .*Numbers"):
        MarkdownSection[Numbers](title="S", template="T")
    template = PromptTemplate[Numbers](ns="tests", key="root")
    for text in ("[1, 2]", '{"value": [1, 2]}'):
        assert parse_structured_output(text, template.render()) == Numbers([1, 2])


type Endless = Endless  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
type Undefined = Nowhere  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


@pytest.mark.parametrize("of", [Endless, Undefined, int, list[City], None], ids=str)
def test_type_that_is_not_a_record_is_rejected_as_params(of: Any) -> None:
    with pytest.raises(PromptValidationError):
        Tool(name="t", params_type=of)
