"""Errors about prompts: their messages and attributes, copied and pickled."""

import copy
import pickle
import traceback
from types import MappingProxyType

import pytest

import weakincentives.prompt
from weakincentives.errors import ControlFlow, WeakIncentivesError
from weakincentives.limits import RunUsage
from weakincentives.prompt import SectionPath, SectionVisibility, errors
from weakincentives.prompt.errors import (
    OutputParseError,
    PromptError,
    PromptRenderError,
    PromptValidationError,
    ToolValidationError,
    VisibilityExpansionRequired,
)

FULL = SectionVisibility.FULL
PATHS = {("a",): FULL, ("b", "c"): FULL}


def expansion(*message: str) -> VisibilityExpansionRequired:
    error = VisibilityExpansionRequired(
        *message, requested_overrides=PATHS, reason="why", section_keys=("a", "b.c")
    )
    return error.with_progress(RunUsage(calls=2), None, 2)


@pytest.mark.claim("C-29", "PD-13", "PS-30")
def test_prompt_errors_share_a_base_and_are_importable_from_both_modules() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, PromptError)
        assert issubclass(kind, WeakIncentivesError)
        assert getattr(weakincentives.prompt, name) is kind
    assert [name for name in errors.__all__ if issubclass(getattr(errors, name), ControlFlow)] == [
        "VisibilityExpansionRequired"
    ]


@pytest.mark.parametrize("kind", [PromptValidationError, PromptRenderError])
def test_error_text_contains_message_detail_section_and_placeholder(
    kind: type[PromptValidationError | PromptRenderError],
) -> None:
    assert str(kind("Wrong.")) == "Wrong."
    error = kind("Wrong.", detail="Got 1.", section_path=("a", "b"), placeholder="$x")
    assert str(error) == "Wrong. Got 1. (section 'a.b', placeholder '$x')"
    assert (error.message, error.detail, error.section_path, error.placeholder) == (
        "Wrong.",
        "Got 1.",
        ("a", "b"),
        "$x",
    )
    assert error.args == ("Wrong.",)


@pytest.mark.claim("C-29", "PD-14", "PD-15", "PD-16")
def test_expansion_text_names_keys_and_reason() -> None:
    for error in (expansion(), expansion("Section expansion requires restart")):
        assert str(error) == "Visibility expansion required for sections: a, b.c. Reason: why"
        assert (dict(error.requested_overrides), error.reason, error.section_keys) == (
            PATHS,
            "why",
            ("a", "b.c"),
        )
    assert expansion().args == ("Visibility expansion required",)
    assert expansion("Section expansion requires restart").args == (
        "Section expansion requires restart",
    )


@pytest.mark.claim("U-06")
def test_expansion_is_an_immutable_exception() -> None:
    error = expansion()
    assert isinstance(error.requested_overrides, MappingProxyType)
    assert error != expansion()
    assert len({error, error}) == 1
    assert ExceptionGroup("several", [error]).exceptions == (error,)
    for name in ("requested_overrides", "reason", "section_keys"):
        with pytest.raises(AttributeError):
            setattr(error, name, None)
    with pytest.raises(TypeError):
        error.requested_overrides[("x",)] = FULL  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    cause = ValueError("cause")
    with pytest.raises(VisibilityExpansionRequired) as caught:
        raise error from cause
    assert caught.value.__cause__ is cause
    assert "Reason: why" in "".join(traceback.format_exception(caught.value))


def test_expansion_copies_its_requested_overrides() -> None:
    requested: dict[SectionPath, SectionVisibility] = {("a",): FULL}
    error = VisibilityExpansionRequired(
        requested_overrides=requested, reason="", section_keys=("a",)
    )
    requested.clear()
    assert dict(error.requested_overrides) == {("a",): FULL}


@pytest.mark.claim("U-06")
@pytest.mark.parametrize(
    "error",
    [
        PromptValidationError("Wrong.", detail="d", section_path=("a",), placeholder="$x"),
        PromptRenderError("Wrong.", section_path=("a",)),
        ToolValidationError("no"),
        OutputParseError("no", raw_response="{}"),
        expansion("Section expansion requires restart"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_survives_copy_and_pickle(error: PromptError) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert (str(twin), twin.args) == (str(error), error.args)
        for name in ("message", "detail", "section_path", "placeholder", "raw_response"):
            assert getattr(twin, name, None) == getattr(error, name, None)
        for name in ("reason", "section_keys", "spent"):
            assert getattr(twin, name, None) == getattr(error, name, None)
        if isinstance(error, VisibilityExpansionRequired) and isinstance(
            twin, VisibilityExpansionRequired
        ):
            assert twin.requested_overrides == error.requested_overrides
