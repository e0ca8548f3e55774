"""A function used as a tool equals the `Tool[Params, Result]` written by hand."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, make_dataclass, replace
from datetime import date
from enum import Enum
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from support.sent_schemas import sent_tool
from weakincentives import Approve, MainLoop, RunSuspended, Session, tool
from weakincentives.errors import SerdeError
from weakincentives.inspection.analysis import analyze
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolOverride,
    ToolResult,
)
from weakincentives.prompt.function_tools import as_tool
from weakincentives.prompt.overrides.model import TextId
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.runtime.events import ToolInvoked
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.arguments import argument_strategies


@dataclass
class Line:
    item: str
    count: int = 1


class Place(BaseModel):
    name: str
    lines: list[Line] = []


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Drawn(NamedTuple):
    """A parameter; `text` is its description, in the annotation or in the docstring."""

    kind: Any  # any type
    default: Any  # MISSING for none
    text: str
    in_docstring: bool


KINDS: list[tuple[Any, Any]] = [  # any types, each with a default
    (str, "x"),
    (int, 3),
    (float, 0.5),
    (bool, False),
    (str | None, None),
    (list[int], MISSING),
    (dict[str, Line], MISSING),
    (Line, MISSING),
    (Place, MISSING),
    (Color, Color.RED),
    (date, MISSING),
    (Literal["a", "b"], "a"),
    (Annotated[int, Field(gt=0)], 1),
]


@st.composite
def parameters(draw: st.DrawFn) -> Drawn:
    kind, default = draw(st.sampled_from(KINDS))
    words = draw(st.sampled_from(["", "The first.", "What to find, if anything."]))
    given_default = draw(st.booleans()) and default is not MISSING
    return Drawn(kind, default if given_default else MISSING, words, draw(st.booleans()))


signatures = st.dictionaries(
    st.sampled_from(["order", "city", "_path", "self", "json", "model_config", "count"]),
    parameters(),
    max_size=4,
)


class Twins(NamedTuple):
    by_function: Tool[Any, Any]
    by_hand: Tool[Any, Any]

    def templates(self) -> list[PromptTemplate[None]]:
        return [template(item) for item in self]


def template(item: Tool[Any, Any]) -> PromptTemplate[None]:
    section = MarkdownSection(title="Task", template="Do it.", tools=[item])
    return PromptTemplate[None](ns="tests", key="twins", sections=[section])


def twins(drawn: Mapping[str, Drawn], **options: Any) -> Twins:
    """Creates both tools for a signature; both answer with the values that they receive."""

    def look_up(**values: Any) -> str:
        return f"{sorted(values.items())!r}"

    def look_up_by_hand(params: Any, *, context: ToolContext) -> ToolResult[object]:
        """Look it up."""
        return ToolResult(look_up(**vars(params)))

    lines = ["Look it up.", "", "Args:"]
    lines += [f"    {name}: {it.text}" for name, it in drawn.items() if it.in_docstring and it.text]
    look_up.__doc__ = "\n".join(lines)
    shown = {
        name: it.kind if it.in_docstring or not it.text else Annotated[it.kind, it.text]
        for name, it in drawn.items()
    }
    look_up.__signature__ = Signature(  # type: ignore[attr-defined] # read by `inspect`
        [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if it.default is MISSING else it.default,
                annotation=shown[name],
            )
            for name, it in drawn.items()
        ]
    )
    fields = [
        (
            name,
            Annotated[it.kind, Field(description=it.text)] if it.text else it.kind,
            field() if it.default is MISSING else field(default=it.default),
        )
        for name, it in drawn.items()
    ]
    params_type = make_dataclass("LookUp", fields, kw_only=True)
    by_hand = Tool(name="look_up", handler=look_up_by_hand, params_type=params_type, **options)
    return Twins(as_tool(tool(look_up, **options)), by_hand)


def single_record(drawn: Mapping[str, Drawn]) -> bool:
    """Returns whether the only parameter is a record, whose fields become the params."""
    return len(drawn) == 1 and all(
        it.kind in (Line, Place) and it.default is MISSING for it in drawn.values()
    )


drawn_signatures = signatures.filter(lambda drawn: not single_record(drawn))


@given(drawn_signatures)
def test_twins_have_the_same_schemas_hashes_texts_and_findings(
    drawn: Mapping[str, Drawn],
) -> None:
    ours, theirs = both = twins(drawn)
    assert ours.params_schema() == theirs.params_schema()
    assert sent_tool(ours) == sent_tool(theirs)
    first, second = both.templates()
    assert first.descriptor.hash == second.descriptor.hash
    assert first.descriptor.tools == second.descriptor.tools
    found = [
        [replace(it, message=re.sub(r" \(.*?:\d+\)", "", it.message)) for it in report.findings]
        for report in map(analyze, (first, second))
    ]
    assert found[0] == found[1]


@given(st.data())
def test_twins_read_and_refuse_the_same_arguments(data: st.DataObject) -> None:
    ours, theirs = twins(data.draw(drawn_signatures))
    fitting, others = argument_strategies(ours.params_schema())
    anything = st.text() | st.sampled_from(["null", "", "{}", "[]", '{"order": 1, "order": 2}'])
    text = data.draw(fitting.map(json.dumps) | others.map(json.dumps) | anything)
    outcomes: list[object] = []
    for made in (ours, theirs):
        try:
            outcomes.append(vars(made.parse_params(text)))
        except SerdeError as error:
            outcomes.append(error.issues)
    assert outcomes[0] == outcomes[1]


@given(st.data())
def test_twins_give_the_same_answers_and_events(data: st.DataObject) -> None:
    both = twins(data.draw(drawn_signatures))
    fitting, others = argument_strategies(both[0].params_schema())
    arguments = data.draw(fitting | others)
    seen: list[object] = []
    for it in both.templates():
        adapter, session = ScriptedAdapter([call(("look_up", arguments)), say("Done.")]), Session()
        response = adapter.evaluate(it.bind(), session=session, message="Go.")
        [event] = session[ToolInvoked].all()
        params = None if event.params is None else vars(event.params)
        assert response.conversation is not None
        seen.append((response.conversation.messages[2:], params, event.result, event.content))
    assert seen[0] == seen[1]


@given(drawn_signatures)
def test_override_written_for_one_twin_applies_to_the_other(drawn: Mapping[str, Drawn]) -> None:
    first, second = twins(drawn).templates()
    ids = {text_id for text_id in first.descriptor.texts if text_id.kind in ("tool", "param")}
    assert TextId("tool", "look_up") in ids
    assert {it: first.descriptor.texts[it].hash for it in ids} == {
        it: second.descriptor.texts[it].hash for it in ids
    }


def test_stored_override_of_a_function_applies_until_its_docstring_changes(tmp_path: Path) -> None:
    def find(order: str) -> str:
        """Find an order."""
        return order

    store = LocalPromptOverridesStore(tmp_path)
    written = template(as_tool(find))
    store.upsert(
        written.descriptor,
        ToolOverride("Search.", {"order": "The number."}, "find"),
    )

    def shown(made: Any) -> tuple[str, list[str]]:
        bound = template(made).bind()
        bound = type(bound)(bound.template, overrides_store=store)
        rendered = bound.render()
        return str(rendered.tools[0].description), [it.code for it in analyze(bound).findings]

    by_hand = Tool[Any, Any](
        name="find",
        description="Find an order.",
        params_type=make_dataclass("Find", [("order", str)]),
    )
    assert shown(as_tool(find))[0] == shown(by_hand)[0]

    def other_body(order: str) -> str:
        """Find an order."""
        return order * 2

    other_body.__name__ = "find"
    assert "override-stale" not in shown(as_tool(other_body))[1]
    other_body.__doc__ = "Find one."

    def other_text(order: str) -> str:
        """Find one."""
        return order

    other_text.__name__ = "find"
    assert "override-stale" in shown(as_tool(other_text))[1]


def test_twins_show_the_same_preview_and_each_resumes_the_others_run() -> None:
    drawn = {"order": Drawn(str, MISSING, "Its number.", in_docstring=True)}
    options = {"effect": "repeatable", "approval": "effects"}
    first, second = twins(drawn, **options).templates()
    waiting: list[RunSuspended] = []
    for it in (first, second):
        loop = MainLoop(ScriptedAdapter([call(("look_up", {"order": "1"}))]))
        try:
            loop.execute(it.bind(), session=Session(), message="Go.")
        except RunSuspended as suspended:
            waiting.append(suspended)
    previews = [it.suspension.pending[0] for it in waiting]
    assert previews[0].arguments == previews[1].arguments
    assert previews[0].answer == previews[1].answer == "[('order', '1')]"
    for error, other in ((waiting[0], second), (waiting[1], first)):
        loop = MainLoop(ScriptedAdapter([say("Done.")]))
        response = loop.execute(
            other.bind(),
            suspension=error.suspension,
            decisions={error.suspension.pending[0].call_id: Approve()},
            session=Session(),
        ).response
        assert response.text == "Done."
