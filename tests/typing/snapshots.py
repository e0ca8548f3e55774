"""A comparison with a golden file type-checks, although prompts are not syrupy assertions."""

from typing import assert_type

from syrupy.assertion import SnapshotAssertion

from weakincentives import Prompt, PromptTemplate
from weakincentives.evaluation.schemas import OutputSpec, ToolSpec
from weakincentives.testing import PromptState, render_states


def test_prompts(
    prompt: Prompt[None], template: PromptTemplate[int], prompt_snapshot: SnapshotAssertion
) -> None:
    assert prompt == prompt_snapshot
    assert template == prompt_snapshot(name="template")
    assert render_states(prompt, limit=3) == prompt_snapshot


def test_states(template: PromptTemplate[int]) -> None:
    states = render_states(template)
    assert_type(states, tuple[PromptState, ...])
    assert_type(states[0].tools, tuple[ToolSpec, ...])
    assert_type(states[0].output, OutputSpec | None)
