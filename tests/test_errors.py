"""All errors have one base, and issues say where and what."""

import ast
import copy
from pathlib import Path

import pytest

from weakincentives import errors
from weakincentives.errors import ControlFlow, SerdeError, ValidationIssue, WeakIncentivesError


def test_issue_text_is_its_path_and_message() -> None:
    assert f"{ValidationIssue(('items', 0, 'name'), 'is missing')}" == "items.0.name: is missing"
    assert f"{ValidationIssue((), 'is not an object')}" == "is not an object"


def test_error_message_lists_all_issues() -> None:
    error = SerdeError("Order", (ValidationIssue(("a",), "one"), ValidationIssue((), "two")))
    assert str(error) == "Order: a: one; two"


def test_serde_error_is_a_weak_incentives_error_and_a_value_error() -> None:
    for family in (WeakIncentivesError, ValueError):
        with pytest.raises(family):
            raise SerdeError("Order", (ValidationIssue((), "no"),))


def test_copied_error_has_the_same_text_and_issues() -> None:
    error = SerdeError("Order", (ValidationIssue(("a",), "one"),))
    assert (str(copy.copy(error)), copy.copy(error).issues) == (str(error), error.issues)


def test_control_flow_is_a_weak_incentives_error_but_not_a_value_error() -> None:
    assert issubclass(ControlFlow, WeakIncentivesError)
    assert not issubclass(ControlFlow, ValueError)


def test_error_tree_lists_every_leaf_error_class() -> None:
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
