"""The conformance suite over the real LiteLLM, on the routes of two provider formats."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import soak
from support.harnesses import HttpHarness, played, sent_by_chat, sent_by_messages
from support.litellm_routes import ANTHROPIC, OPENAI, connect
from support.scripted_server import Raw, Request, ScriptedServer, Step
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.testing.conformance import SentRequest, check, scenarios
from weakincentives.testing.scenarios import SCENARIOS, Capability, ProviderFault, Scenario
from weakincentives.testing.scenarios import Step as Played


def play(step: Played) -> Step:
    """LiteLLM treats a web page as a server failure, so malformed means broken JSON."""
    return (
        Raw(b"{") if isinstance(step, ProviderFault) and step.code == "malformed" else played(step)
    )


def harness(
    model: str,
    sent: Callable[[Request], SentRequest],
    lacks: Capability = Capability(0),  # noqa: B008 - immutable
) -> HttpHarness:
    # Any: prompts with any output type
    def make(server: ScriptedServer, **changes: Any) -> LiteLLMAdapter:
        return connect(server, model, **changes)

    return HttpHarness(make, sent, ~lacks, play=play)


HARNESSES = {
    "openai": harness(OPENAI, sent_by_chat),
    # Arguments are JSON values there, not texts; filtered is called refused, and LiteLLM calls it
    # filtered again.
    "anthropic": harness(
        ANTHROPIC,
        sent_by_messages,
        Capability.CODES | Capability.ARGUMENTS | Capability.REFUSAL,
    ),
}
# LiteLLM's version of a stream: it drops refusals, and an empty stream is an empty
# answer.
LOST_IN_STREAMS = {"a refusal", "no reply"}
WHOLE = ("execute", "execute_async", "evaluate", "evaluate_async")


@pytest.mark.parametrize("scenario", scenarios(HARNESSES["openai"]), ids=str)
def test_litellm_passes_conformance_scenario_over_chat_completions(scenario: Scenario) -> None:
    check(scenario, HARNESSES["openai"], *(WHOLE if scenario.name in LOST_IN_STREAMS else ()))


@pytest.mark.parametrize("scenario", scenarios(HARNESSES["anthropic"]), ids=str)
def test_litellm_passes_conformance_scenario_over_messages(scenario: Scenario) -> None:
    check(scenario, HARNESSES["anthropic"], *(WHOLE if scenario.name in LOST_IN_STREAMS else ()))


def test_only_scenarios_unsupported_by_the_messages_api_are_skipped() -> None:
    assert scenarios(HARNESSES["openai"]) == SCENARIOS
    assert [
        scenario.name for scenario in SCENARIOS if scenario not in scenarios(HARNESSES["anthropic"])
    ] == [
        "no arguments mean the defaults",
        "broken JSON",
        "a failure: throttled 429 7s",
        "a failure: context_length 400",
        "a failure: quota 429",
        "a refusal",
    ]


@pytest.mark.parametrize(
    ("name", "seed", "kind"), [("litellm", 1, "scenario"), ("litellm-anthropic", 0, "composed")]
)
def test_soak_runs_the_litellm_subjects(name: str, seed: int, kind: str) -> None:
    [subject] = soak.subjects([name])
    assert soak.played(subject, Random(seed)) == kind  # noqa: S311 - not a secret
