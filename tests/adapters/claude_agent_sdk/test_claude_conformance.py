"""The conformance suite with the SDK's real CLI, which takes almost a second per evaluation.

Therefore, scenarios run in only one way, in which sections open with a restart, the adapter's
default; a few also run with injection.
"""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import soak
from support.claude_cli import connect
from support.harnesses import HttpHarness, played, sent_by_messages
from support.scripted_server import Call, Request, Say, ScriptedServer
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.testing.conformance import SentRequest, check, scenarios
from weakincentives.testing.scenarios import SCENARIOS, Capability, Scenario
from weakincentives.testing.scenarios import Step as Played

_OUTPUT = "StructuredOutput"  # the tool with which the CLI receives typed output


def own_name(tool: str) -> str:
    return tool.rpartition("__")[2]


def play(step: Played) -> Any:  # Any: a step, or a function that creates one from the request
    """Returns the step with the CLI's names: tools are named as in the request, and typed output is
    a call.
    """
    plain = played(step)
    if not isinstance(plain, Say):
        return plain

    def say(request: Request) -> Say:
        offered = {own_name(tool["name"]): tool["name"] for tool in request.json.get("tools", ())}
        if plain.calls or _OUTPUT not in offered:
            calls = [
                Call(offered.get(call.name, call.name), call.arguments, call.id)
                for call in plain.calls
            ]
            return replace(plain, calls=tuple(calls))
        return Say(calls=(Call(_OUTPUT, json.loads(plain.text)),), usage=plain.usage)

    return say


def sent(request: Request) -> SentRequest:
    seen = sent_by_messages(request)
    return SentRequest(
        seen.texts, tuple([name for name in seen.tools if name != _OUTPUT]), seen.answers
    )


def harness(*, inject: bool) -> HttpHarness:
    # Any: prompts with any output type
    def make(server: ScriptedServer, **changes: Any) -> ClaudeAgentSDKAdapter:
        return connect(server, dynamic_tools=inject, **changes)

    lacks = (
        Capability.OWN_LOOP
        | Capability.STREAM
        | Capability.CODES
        | Capability.ARGUMENTS
        | Capability.FILTER
        | Capability.MEDIA  # that scenario's tool returns a PDF, which the CLI does not send
    )
    return HttpHarness(make, sent, ~(lacks if inject else lacks | Capability.INJECT), play=play)


RESTARTS, INJECTS = harness(inject=False), harness(inject=True)
INJECTING = {
    "a section with tools",
    "inside a hidden section",
    "step by step",
    "twice in one turn",
    "state is kept",
}


CHATTING = {
    "three calls of one turn",
    "a section with tools",
    "a tool raises",
    "typed output after opening a section",
    "turns",
}


@pytest.mark.parametrize("scenario", scenarios(RESTARTS), ids=str)
def test_claude_passes_conformance_scenario(scenario: Scenario) -> None:
    check(scenario, RESTARTS, "execute_async", beginnings=["prompt"])


@pytest.mark.parametrize(
    "scenario", [scenario for scenario in scenarios(RESTARTS) if scenario.name in CHATTING], ids=str
)
def test_claude_passes_conformance_scenario_in_a_conversation(scenario: Scenario) -> None:
    check(scenario, RESTARTS, "execute", beginnings=["message", "conversation"])


@pytest.mark.parametrize(
    "scenario", [scenario for scenario in scenarios(INJECTS) if scenario.name in INJECTING], ids=str
)
def test_claude_passes_conformance_scenario_with_dynamic_tools(scenario: Scenario) -> None:
    check(scenario, INJECTS, "evaluate", beginnings=["prompt"])


def test_only_scenarios_decided_by_the_cli_are_skipped() -> None:
    assert [scenario.name for scenario in SCENARIOS if scenario not in scenarios(INJECTS)] == [
        "an empty answer",
        "no arguments mean the defaults",
        "images and documents",
        "an unknown tool",
        "a tool of a hidden section",
        "broken JSON",
        "nothing to close",
        "too early",
        "closing",
        "a closed tool",
        "reopening",
        "an object with a null",
        "an object in a fence",
        "a bare list",
        "a repaired object",
        "repairs around a call",
        "never an object",
        "no repairs",
        "a failure: throttled 429 7s",
        "a failure: context_length 400",
        "a failure: quota 429",
        "a filtered answer",
        "a truncated turn",
    ]


@pytest.mark.parametrize(
    ("name", "seed", "kind"), [("claude", 0, "composed"), ("claude-injects", 1, "scenario")]
)
def test_soak_runs_the_claude_subject(name: str, seed: int, kind: str) -> None:
    [subject] = soak.subjects([name])
    assert soak.played(subject, Random(seed)) == kind  # noqa: S311 - not a secret
