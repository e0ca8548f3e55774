"""All errors have one base, and issues say where and what."""

import ast
import copy
from pathlib import Path

import pytest

from weakincentives import errors
from weakincentives.errors import ControlFlow, SerdeError, ValidationIssue, WeakIncentivesError


def test_an_issue_reads_as_its_path_and_its_message() -> None:
    assert f"{ValidationIssue(('items', 0, 'name'), 'is missing')}" == "items.0.name: is missing"
    assert f"{ValidationIssue((), 'is no object')}" == "is no object"


def test_the_message_lists_all_issues() -> None:
    error = SerdeError("Order", (ValidationIssue(("a",), "one"), ValidationIssue((), "two")))
    assert str(error) == "Order: a: one; two"


def test_a_serde_error_is_caught_as_ours_and_as_a_value_error() -> None:
    for family in (WeakIncentivesError, ValueError):
        with pytest.raises(family):
            raise SerdeError("Order", (ValidationIssue((), "no"),))


def test_a_copied_error_has_the_same_text_and_issues() -> None:
    error = SerdeError("Order", (ValidationIssue(("a",), "one"),))
    assert (str(copy.copy(error)), copy.copy(error).issues) == (str(error), error.issues)


def test_control_flow_is_ours_and_no_failure_of_data() -> None:
    assert issubclass(ControlFlow, WeakIncentivesError)
    assert not issubclass(ControlFlow, ValueError)


def test_the_tree_shows_every_kind_of_error_that_has_no_kinds_of_its_own() -> None:
    trees = [ast.parse(path.read_text()) for path in Path(errors.__file__).parent.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for node in classes
    }
    ours = {"WeakIncentivesError"}
    while more := {name for name, above in bases.items() if above & ours} - ours:
        ours |= more
    leaves = ours - set[str]().union(*bases.values())
    assert {"SerdeError", "ExpansionLimitError", "VisibilityExpansionRequired"} <= leaves
    assert {name for name in leaves if name not in (errors.__doc__ or "")} == set()
