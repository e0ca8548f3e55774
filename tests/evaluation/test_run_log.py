"""A run's log repeats recorded steps, and a conversation can be built from its entries."""

import pytest

from support.agents import prompt
from weakincentives.evaluation.conversation import begin
from weakincentives.evaluation.inner_loop import Finished, InnerLoop
from weakincentives.evaluation.logged_run import (
    Answered,
    LoggedCall,
    LoggedRun,
    NestedRun,
    Rendered,
    RunsInside,
    inconsistency_in,
)
from weakincentives.evaluation.messages import AssistantMessage, ToolCall, ToolExecutionOutcome
from weakincentives.evaluation.run_log import RunLog, replay

RECORD = NestedRun(ns="tests", key="inner", log=LoggedRun())
ASKS = Answered(AssistantMessage(tool_calls=(ToolCall("c", "probe", "{}"),)))


@pytest.mark.parametrize(("arguments", "runs"), [('{"a": 1}', (RECORD,)), ('{"a": 2}', ())])
def test_call_repeats_its_nested_runs_only_with_the_same_arguments(
    arguments: str, runs: tuple[NestedRun, ...]
) -> None:
    inside = RunsInside(tool="go", arguments='{"a": 1}', runs=(RECORD,))
    log = RunLog("run", record=LoggedRun(inside={"1/c": inside}))
    assert log.begin_call("1/c", ToolCall("c", "go", arguments)).to_value().runs == runs


def test_replay_continues_after_entries_that_are_not_steps_of_the_loop() -> None:
    def outcome_of(called: LoggedCall) -> ToolExecutionOutcome:
        raise AssertionError(f"there is no call, got {called}")

    loop = InnerLoop(conversation=begin(prompt().render(), (), None))
    action = replay(loop, [Rendered(), Answered(AssistantMessage(text="Done."))], outcome_of)
    assert isinstance(action, Finished)
    assert action.text == "Done."


@pytest.mark.parametrize(
    ("turn", "issue"), [(0, ""), (1, ""), (2, "a run is nested in a call that was not made")]
)
def test_runs_are_nested_only_in_calls_of_turns_that_the_log_has(turn: int, issue: str) -> None:
    inside = {f"{turn}/c": RunsInside(tool="probe", arguments="{}", runs=(RECORD,))}
    assert inconsistency_in(LoggedRun(entries=(Rendered(), ASKS), inside=inside)) == issue
