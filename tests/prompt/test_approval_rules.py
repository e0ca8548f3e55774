"""Approval of tool calls: the forms of `approval=`, and the mode that each call gets."""

from collections.abc import Callable
from typing import Any

import pytest

from support.agents import Args, ok, tool
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool
from weakincentives.prompt.approval_rules import approval_mode
from weakincentives.prompt.errors import PromptValidationError

SESSION: Any = "the session"
CONTEXT: Any = "the context"


async def asynchronous() -> None:
    return None


def refused(approval: Any, message: str, *, effect: Any = "repeatable") -> None:
    """Checks that neither a tool nor a section accepts `approval`."""
    with pytest.raises(PromptValidationError, match=rf"^tool 'run': {message}"):
        Tool[Args, object](
            name="run", description="R.", handler=ok, effect=effect, approval=approval
        )
    with pytest.raises(PromptValidationError, match=rf"^section 'task': {message}"):
        MarkdownSection(title="Task", template="Do it.", approval=approval)


@pytest.mark.parametrize(
    ("approval", "message"),
    [
        ("always", "approval must be 'arguments', 'effects' or a function, got 'always'"),
        (3, "approval must be .*, got 3"),
        (asynchronous, "approval= must be a plain function, got a coroutine function"),
        (lambda one, two: None, r"approval= must take .* takes \(one, two\)"),
        (lambda *, prompt: None, r"approval= must take .* takes \(\*, prompt\)"),
    ],
    ids=["word", "number", "coroutine", "two params", "prompt"],
)
def test_approval_of_another_form_is_rejected(approval: Any, message: str) -> None:
    refused(approval, message)


@pytest.mark.parametrize(
    ("effect", "problem"),
    [
        ("undeclared", "the tool declares no effect; declare effect='repeatable' if .*"),
        ("at_most_once", "the tool is 'at_most_once'; "),
        ("transactional", "the tool is 'transactional'; "),
    ],
)
def test_effects_of_a_tool_that_must_not_run_twice_cannot_be_approved(
    effect: Any, problem: str
) -> None:
    message = rf"but {problem}.*use approval='arguments'$"
    with pytest.raises(PromptValidationError, match=message):
        Tool[Args, object](
            name="run", description="R.", handler=ok, effect=effect, approval="effects"
        )


def test_unknown_effect_is_rejected() -> None:
    wrong: Any = "safe"
    with pytest.raises(PromptValidationError, match=r"effect must be one of .*, got 'safe'"):
        Tool[Args, object](name="run", description="R.", handler=ok, effect=wrong)


@pytest.mark.parametrize(
    ("approval", "mode"),
    [
        (None, None),
        ("arguments", "arguments"),
        ("effects", "effects"),
        (lambda: None, None),
        (lambda: "effects", "effects"),
        (lambda params: params, "arguments"),
        (lambda *, session: "arguments" if session == SESSION else None, "arguments"),
        (lambda *, context: "effects" if context == CONTEXT else None, "effects"),
        (
            lambda params, *, session, context: (
                params if (session, context) == (SESSION, CONTEXT) else None
            ),
            "arguments",
        ),
    ],
    ids=[
        "none",
        "arguments",
        "effects",
        "no parameter",
        "mode",
        "params",
        "session",
        "context",
        "all",
    ],
)
def test_approval_mode_of_a_call(approval: Any, mode: str | None) -> None:
    assert approval_mode(approval, "arguments", SESSION, CONTEXT) == mode


def test_other_results_of_an_approval_function_raise_type_error() -> None:
    wrong: Callable[..., Any] = lambda: "sometimes"  # noqa: E731 - as users write it
    with pytest.raises(TypeError, match=r"approval= must return .*, got 'sometimes'"):
        approval_mode(wrong, None, SESSION, CONTEXT)


def test_section_approval_applies_to_its_tools_without_one() -> None:
    own = Tool[Args, object](name="own", description="O.", handler=ok, approval="arguments")
    reads = Tool[Args, object](name="reads", description="R.", handler=ok, effect="pure")
    section = MarkdownSection(
        title="Task", template="Do it.", tools=[tool(), own, reads], approval="effects"
    )
    template = PromptTemplate(ns="tests", key="agent", sections=[section])
    modes = {each.name: each.approval for each in template.registry.sections[0].tools}
    assert modes == {"probe": "effects", "own": "arguments", "reads": None}
