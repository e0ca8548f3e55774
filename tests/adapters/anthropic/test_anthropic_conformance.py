"""The conformance suite over the Messages API, with each way to change the tools, against a server
that rejects every request that breaks a documented rule or rewrites earlier messages.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import pytest

from support.harnesses import HttpHarness, played, sent_by_messages
from support.messages_api import MessagesAPI, too_long
from support.scripted_server import Fail, ScriptedServer
from support.scripted_server import Step as Answer
from support.sizes import FULL
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.anthropic.codec import ToolChanges
from weakincentives.testing.conformance import Stage, check, scenarios
from weakincentives.testing.scenarios import SCENARIOS, Capability, ProviderFault, Scenario, Step

WAYS: tuple[ToolChanges, ...] = get_args(ToolChanges.__value__)


def play(step: Step) -> Answer:
    """Returns the step in the terms of Anthropic's API."""
    match step:
        case ProviderFault(code="context_length"):
            return too_long()
        case ProviderFault(code="quota", status=int() as status):
            return Fail(status, kind="billing_error")
        case _:
            return played(step)


class AnthropicHarness(HttpHarness):
    def __init__(self, tool_changes: ToolChanges) -> None:
        def make(server: ScriptedServer, **options: Any) -> AnthropicAdapter:
            return AnthropicAdapter(
                "claude-sonnet-5-5",
                base_url=server.url,
                api_key="sk-test",
                max_retries=0,
                tool_changes=tool_changes,
                **options,
            )

        # the API has no content filter that would end an answer, only refusals
        super().__init__(make, sent_by_messages, ~Capability.FILTER)
        self._growing_tools = tool_changes == "list"

    @contextmanager
    def open(self, steps: Sequence[Step], /, **options: Any) -> Generator[Stage]:
        api = MessagesAPI(growing_tools=self._growing_tools)
        self._play = lambda step: api.play(play(step))
        with super().open(steps, **options) as stage:
            yield stage


HARNESSES = {way: AnthropicHarness(way) for way in WAYS}
# A tool that was loaded by reference cannot be removed: the loop rejects its calls.
NEVER_CLOSED = {"closing", "a closed tool", "reopening"}


@pytest.mark.parametrize(
    ("way", "scenario"),
    [
        pytest.param(way, scenario, id=f"{way}: {scenario}")
        for way in WAYS
        for scenario in scenarios(HARNESSES[way])
        if FULL or SCENARIOS.index(scenario) % len(WAYS) == WAYS.index(way)
        if way != "deferred" or scenario.name not in NEVER_CLOSED
    ],
)
def test_anthropic_adapter_passes_conformance_scenario(
    way: ToolChanges, scenario: Scenario
) -> None:
    check(scenario, HARNESSES[way])


def test_only_the_content_filter_scenario_is_skipped() -> None:
    for way in WAYS:
        left_out = {scenario.name for scenario in SCENARIOS} - {
            scenario.name for scenario in scenarios(HARNESSES[way])
        }
        assert left_out == {"a filtered answer"}
    assert {scenario.name for scenario in SCENARIOS} > NEVER_CLOSED
