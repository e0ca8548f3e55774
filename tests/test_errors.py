"""The root errors: one base, and faults that say where and what."""

import copy

import pytest

from weakincentives.errors import ControlFlow, Fault, SerdeError, WeakIncentivesError


def test_a_fault_reads_as_its_path_and_its_message() -> None:
    assert f"{Fault(('items', 0, 'name'), 'is missing')}" == "items.0.name: is missing"
    assert f"{Fault((), 'is no object')}" == "is no object"


def test_all_faults_stand_in_the_message() -> None:
    error = SerdeError("Order", (Fault(("a",), "one"), Fault((), "two")))
    assert str(error) == "Order: a: one; two"


def test_a_serde_error_is_caught_as_ours_and_as_a_value_error() -> None:
    for family in (WeakIncentivesError, ValueError):
        with pytest.raises(family):
            raise SerdeError("Order", (Fault((), "no"),))


def test_a_copied_error_says_the_same() -> None:
    error = SerdeError("Order", (Fault(("a",), "one"),))
    assert (str(copy.copy(error)), copy.copy(error).faults) == (str(error), error.faults)


def test_control_flow_is_ours_and_no_failure_of_data() -> None:
    assert issubclass(ControlFlow, WeakIncentivesError)
    assert not issubclass(ControlFlow, ValueError)
