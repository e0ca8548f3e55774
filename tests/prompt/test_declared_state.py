"""Sections declare the state that they need, and show it; nothing is registered elsewhere."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.prompt import (
    MarkdownSection,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.protocols import StateView
from weakincentives.runtime.session import Append, Replace, Session, StateSlice, reducer
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class Booked:
    seats: int


@dataclass(frozen=True)
class Booking:
    seats: int = 0

    @reducer(on=Booked)
    def booked(self, event: Booked) -> "Booking":
        return replace(self, seats=self.seats + event.seats)


@dataclass(frozen=True)
class Line:
    text: str


@dataclass(frozen=True)
class Status:
    seats: int


def shout(view: Any, event: Line) -> Append[Line]:
    return Append(Line(event.text.upper()))


def keep_last(view: Any, event: Line) -> Replace[Line]:
    return Replace((event,))


def book(params: Booked, /, *, context: ToolContext) -> ToolResult[None]:
    context.session.dispatch(params)
    context.session.dispatch(Line("booked"))
    return ToolResult(message="Booked.")


def status(session: StateView) -> Status:
    return Status((session[Booking].latest() or Booking()).seats)


def template(*more: Any) -> PromptTemplate[None]:
    booking = MarkdownSection[Status](
        title="Booking",
        key="booking",
        template="$seats seats.",
        params_from=status,
        state=[Booking, StateSlice(Line, {Line: shout})],
        tools=[Tool(name="book", description="Books.", handler=book)],
    )
    return PromptTemplate(ns="tests", key="state", sections=[booking, *more])


def run(session: Session, seats: int) -> ScriptedAdapter:
    adapter = ScriptedAdapter([call(("book", {"seats": seats})), say("done")])
    MainLoop(adapter).execute(template().bind(), session=session)
    return adapter


def test_prompt_reducers_are_installed_once_per_session() -> None:
    session = Session()
    run(session, 2)
    adapter = run(session, 3)
    assert session[Booking].all() == (Booking(5),)
    assert session[Line].all() == (Line("BOOKED"), Line("BOOKED"))
    assert "2 seats." in repr(adapter.requests[0].messages[0])


def test_declared_reducers_work_after_a_restore_and_in_forks() -> None:
    session, other = Session(), Session()
    run(session, 2)
    template().bind().declare_state(other)
    other.restore(other.parse_snapshot(session.snapshot().to_json()))
    run(other, 1)
    assert other[Booking].latest() == Booking(3)
    fork = other.fork()
    template().bind().declare_state(fork)
    fork.dispatch(Booked(4))
    assert other.merge(fork)
    assert other[Booking].latest() == Booking(7)


def test_slice_installed_manually_is_not_installed_again() -> None:
    session = Session()
    session.install(Booking)
    run(session, 2)
    assert session[Booking].latest() == Booking(2)


def test_two_sections_can_declare_one_slice_with_the_same_reducers() -> None:
    second = MarkdownSection(title="Two", template="", state=[Booking, StateSlice(Line, {})])
    with pytest.raises(
        PromptValidationError, match="Line has different reducers in section 'booking'"
    ):
        template(second)
    same = MarkdownSection(
        title="Two", template="", state=[Booking, StateSlice(Line, {Line: shout})]
    )
    session = Session()
    template(same).bind().declare_state(session)
    session.dispatch(Line("a"))
    assert session[Line].all() == (Line("A"),)


def test_sections_may_reduce_different_events_into_one_slice() -> None:
    def count(view: Any, event: Booked) -> Append[Line]:
        return Append(Line(f"{event.seats} seats"))

    session = Session()
    second = MarkdownSection(title="Two", template="", state=[StateSlice(Line, {Booked: count})])
    template(second).bind().declare_state(session)
    session.dispatch(Line("a"))
    session.dispatch(Booked(2))
    assert session[Line].all() == (Line("A"), Line("2 seats"))


def test_conflicting_reducers_are_rejected_with_both_section_paths() -> None:
    other = MarkdownSection(title="Two", template="", state=[StateSlice(Line, {Line: keep_last})])
    with pytest.raises(PromptValidationError, match="in section 'booking'") as caught:
        template(other)
    assert caught.value.section_path == ("two",)


def test_bound_params_take_precedence_over_params_from_the_session() -> None:
    assert "9 seats." in template().render(Status(9), session=Session()).text


def test_params_from_without_a_session_raises_render_error() -> None:
    with pytest.raises(PromptRenderError, match="no Status is bound"):
        template().render()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda _: 1 / 0, "params_from raised ZeroDivisionError"),
        (lambda _: 5, "must return a Status, got 5"),
    ],
)
def test_failing_params_from_is_reported_with_its_section(source: Any, message: str) -> None:
    section = MarkdownSection[Status](title="S", template="$seats", params_from=source)
    prompt = PromptTemplate(ns="tests", key="source", sections=[section])
    with pytest.raises(PromptRenderError, match=message) as caught:
        prompt.render(session=Session())
    assert caught.value.section_path == ("s",)


@pytest.mark.parametrize(
    "arguments", [{"state": [5]}, {"state": 5}, {"params_from": status}, {"params_from": 5}]
)
def test_invalid_state_and_params_from_are_rejected(arguments: dict[str, Any]) -> None:
    with pytest.raises(PromptValidationError):
        MarkdownSection(title="S", template="", **arguments)
