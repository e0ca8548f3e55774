"""A limit on examples applies to every kind of law."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from support.sizes import EXAMPLES, limit_examples


def test_a_law_runs_as_many_examples_as_the_limit() -> None:
    tried: list[int] = []

    @settings(max_examples=EXAMPLES + 30)
    @given(st.integers())
    def law(number: int) -> None:
        tried.append(number)

    limit_examples(law)
    law()
    assert len(tried) == EXAMPLES


def test_a_law_with_fewer_examples_than_the_limit_keeps_them() -> None:
    tried: list[int] = []

    @settings(max_examples=3)
    @given(st.integers())
    def law(number: int) -> None:
        tried.append(number)

    limit_examples(law)
    law()
    assert len(tried) == 3


def test_a_rule_based_test_runs_as_many_examples_as_the_limit() -> None:
    machines: list[object] = []

    class Counts(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            machines.append(self)

        @rule()
        def step(self) -> None:
            pass

    case: Any = Counts.TestCase  # Hypothesis creates the class
    case.settings = settings(max_examples=EXAMPLES + 30, stateful_step_count=2)
    limit_examples(case.runTest, case)
    case("runTest").runTest()
    assert len(machines) <= EXAMPLES + 1  # Hypothesis creates the first to print it
