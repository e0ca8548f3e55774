"""The pytest plugin's fixtures are typed: events by their type, adapters and prompts by their
output.
"""

from dataclasses import dataclass
from typing import assert_type

import weakincentives
import weakincentives.testing
from weakincentives import Prompt, PromptTemplate
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.runtime.events import InProcessEventBus, PromptExecuted, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import (
    Events,
    PromptsWithOverrides,
    RecordedEvents,
    ScriptedAdapters,
    SeenRequest,
    call,
    say,
)


@dataclass(frozen=True)
class Answer:
    text: str


template = PromptTemplate[Answer](ns="n", key="one")


def test_events(wink_events: RecordedEvents) -> None:
    assert_type(wink_events[ToolInvoked], Events[ToolInvoked])
    assert_type(wink_events[ToolInvoked][0], ToolInvoked)
    assert_type(wink_events[ToolInvoked][1:], Events[ToolInvoked])
    assert_type(
        wink_events[ToolInvoked].where(lambda event: event.success, name="find"),
        Events[ToolInvoked],
    )
    assert_type([event.turns for event in wink_events[PromptExecuted]], list[int])
    assert_type(wink_events[0], object)
    assert_type(wink_events.watch(InProcessEventBus()), InProcessEventBus)
    assert wink_events.names() == ["ToolInvoked"]


def test_adapters(
    scripted_adapter: ScriptedAdapters, function_adapter: ScriptedAdapters, wink_session: Session
) -> None:
    adapter = scripted_adapter([call(("find", {})), ValueError(), say("done")], dynamic_tools=False)
    assert_type(adapter.evaluate(template.bind(), session=wink_session).output, Answer)
    assert_type(adapter.requests, list[SeenRequest])
    function_adapter(lambda request: say(request.tool_names))

    def decide(request: SeenRequest) -> AssistantMessage | Exception:
        return say(Answer("x")) if request.messages else ValueError()

    function_adapter(decide)


def test_overrides(wink_overrides: PromptsWithOverrides) -> None:
    assert_type(wink_overrides(template), Prompt[Answer])
    assert_type(wink_overrides(template.bind()), Prompt[Answer])


# Errors that the types catch.
def test_wrong(scripted_adapter: ScriptedAdapters) -> None:
    scripted_adapter(["done"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    assert weakincentives.Promt  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    assert weakincentives.testing.say_it  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
