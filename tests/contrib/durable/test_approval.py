"""A durable run refuses tools for which it would have to wait."""

import pytest

from evaluation.test_approval import asking
from support.agents import ok, prompt
from weakincentives.contrib.durable import durable
from weakincentives.contrib.durable.journal import RecordedSteps, execute_run, to_input
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.testing import ScriptedAdapter, say


def test_a_durable_run_refuses_tools_that_ask_for_approval() -> None:
    agent = durable(MainLoop(ScriptedAdapter([say("done")])), lambda: prompt(asking(ok)))
    with pytest.raises(ValueError, match=r"the tools \['run'\] ask for approval"):
        execute_run(agent, to_input(), RecordedSteps())
