"""Selectors have four forms, and one way to call them."""

import functools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.prompt import (
    MarkdownSection,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
)
from weakincentives.prompt.conditions import bind_selector
from weakincentives.runtime.session import Session

# Any: sections are created with wrong arguments, which type checkers would reject.
Loose: Any = MarkdownSection


@dataclass(frozen=True)
class Mode:
    debug: bool = False


def nothing() -> object:
    return "nothing"


def by_session(*, session: object) -> object:
    return session


def by_params(params: object) -> object:
    return params


def by_both(params: object, *, session: object) -> object:
    return params, session


class Methods:
    def by_params(self, params: object) -> object:
        return params

    def by_session(self, *, session: object) -> object:
        return session

    def __call__(self, params: object, *, session: object) -> object:
        return params, session


# Any: selectors of all forms and results.
FORMS: list[tuple[Callable[..., Any], bool, bool]] = [
    (nothing, False, False),
    (by_session, False, True),
    (by_params, True, False),
    (by_both, True, True),
    (lambda: 1, False, False),
    (lambda *, session: session, False, True),
    (lambda params, /: params, True, False),
    (lambda anything, *, session: (anything, session), True, True),
    (lambda params=None: params, True, False),
    (Methods().by_params, True, False),
    (Methods().by_session, False, True),
    (Methods(), True, True),
    (functools.partial(by_both, Mode()), False, True),
]


@pytest.mark.parametrize(("selector", "params", "session"), FORMS, ids=range(len(FORMS)))
def test_selector_form_is_determined_by_its_signature(
    selector: Callable[..., Any], params: bool, session: bool
) -> None:
    bound = bind_selector(selector)
    assert (bound.needs_params, bound.needs_session) == (params, session)


@pytest.mark.claim("PR-17")
def test_bound_selector_passes_only_the_arguments_that_its_form_takes() -> None:
    session = Session()
    answers = [
        bind_selector(form)(Mode(), session, ("s",))
        for form in (nothing, by_session, by_params, by_both)
    ]
    assert answers == ["nothing", session, Mode(), (Mode(), session)]
    empty = [
        bind_selector(form)(None, None, ("s",))
        for form in (nothing, by_session, by_params, by_both)
    ]
    assert empty == ["nothing", None, None, (None, None)]


@pytest.mark.claim("PR-12", "PR-17")
@pytest.mark.parametrize("answer", [True, False])
def test_every_selector_form_works_with_and_without_a_session(answer: bool) -> None:
    # Any: a table of forms
    forms: list[Any] = [
        lambda: answer,
        lambda *, session: answer,
        lambda params: answer,
        lambda params, *, session: answer,
    ]
    for form in forms:
        tree = PromptTemplate(
            ns="tests",
            key="forms",
            sections=[MarkdownSection[Mode](title="S", template="x", enabled=form)],
        )
        assert (
            tree.render().text
            == tree.render(session=Session()).text
            == ("## 1. S\n\nx" if answer else "")
        )


@pytest.mark.claim("PR-12")
@pytest.mark.parametrize(
    ("selector", "culprit"),
    [
        (lambda one, two: True, r"\(one, two\)"),
        (lambda *, state: True, r"\(\*, state\)"),
        (lambda *, session, state: True, r"\(\*, session, state\)"),
        (lambda *params: True, r"\(\*params\)"),
        (lambda **session: True, r"\(\*\*session\)"),
        (lambda params, session: True, r"\(params, session\)"),
    ],
    ids=["two params", "state", "too many", "args", "kwargs", "positional session"],
)
@pytest.mark.parametrize("which", ["enabled", "visibility"])
def test_selector_with_any_other_signature_is_rejected_with_path_and_fix(
    selector: Any, culprit: str, which: str
) -> None:
    section = Loose[Mode](title="Inner", template="", **{which: selector})
    with pytest.raises(
        PromptValidationError, match=rf"{which} must be .*<lambda>.* takes {culprit}"
    ) as caught:
        PromptTemplate(
            ns="tests",
            key="forms",
            sections=[MarkdownSection(title="Group", template="", children=[section])],
        )
    assert caught.value.section_path == ("group", "inner")
    assert "a function of (), (*, session), (params) or (params, *, session), got" in str(
        caught.value
    )


@pytest.mark.parametrize("which", ["enabled", "visibility"])
@pytest.mark.parametrize("value", [5, "summary", ()], ids=repr)
def test_selector_that_is_neither_constant_nor_function_is_rejected(value: Any, which: str) -> None:
    with pytest.raises(PromptValidationError, match=r"must be .* or a function of") as caught:
        PromptTemplate(
            ns="tests", key="forms", sections=[Loose(title="S", template="", **{which: value})]
        )
    assert caught.value.section_path == ("s",)
    assert repr(value) in str(caught.value)
    assert str(caught.value).startswith(f"{which} must be ")
    constants = {"enabled": "True, False", "visibility": r"SectionVisibility\.FULL, \.SUMMARY"}
    assert caught.match(
        rf"{constants[which]} or a function of .*\(params, \*, session\), got .*'s'"
    )


def test_visibility_none_is_rejected_instead_of_using_the_default() -> None:
    with pytest.raises(PromptValidationError, match=r"visibility must be .*, got None"):
        PromptTemplate(ns="n", key="k", sections=[Loose(title="S", template="", visibility=None)])


def test_builtin_without_a_signature_is_rejected_as_selector() -> None:
    with pytest.raises(
        PromptValidationError,
        match=r"readable signature, got <class 'dict'>; wrap it in a function",
    ):
        PromptTemplate(ns="n", key="k", sections=[Loose(title="S", template="", enabled=dict)])


def test_coroutine_function_is_rejected_as_selector() -> None:
    async def enabled() -> bool:
        return False

    class Enabled:
        async def __call__(self) -> bool:
            return False

    for selector in (enabled, functools.partial(enabled), Enabled()):
        with pytest.raises(
            PromptValidationError, match=r"must be a plain function, .*coroutine function"
        ):
            PromptTemplate(
                ns="n", key="k", sections=[Loose(title="S", template="", enabled=selector)]
            )


@pytest.mark.parametrize("which", ["enabled", "visibility"])
def test_selector_over_params_requires_a_section_with_params(which: str) -> None:
    with pytest.raises(
        PromptValidationError, match=rf"{which} takes params, but the section has none"
    ) as caught:
        PromptTemplate(
            ns="tests", key="forms", sections=[Loose(title="S", template="", **{which: by_params})]
        )
    assert caught.value.section_path == ("s",)
    assert "write the section as MarkdownSection[Params](…)" in str(caught.value)


def test_selector_error_has_the_path_and_a_hint_only_for_a_missing_session() -> None:
    def over_session(*, session: Any) -> bool:
        return bool(session[Mode].latest())

    with pytest.raises(PromptRenderError, match=r"TypeError: .*render\(session=…\)") as caught:
        bind_selector(over_session)(None, None, ("a", "b"))
    assert caught.value.section_path == ("a", "b")
    assert isinstance(caught.value.__cause__, TypeError)

    def over_params(params: Any) -> bool:
        return bool(params.missing)

    with pytest.raises(PromptRenderError, match="AttributeError") as caught:
        bind_selector(over_params)(Mode(), None, ("a",))
    assert "session" not in str(caught.value)

    def over_both(params: Any, *, session: Any) -> bool:
        raise RuntimeError("own fault")

    with pytest.raises(PromptRenderError, match="own fault") as caught:
        bind_selector(over_both)(Mode(), Session(), ("a",))
    assert "render(session=…)" not in str(caught.value)


def test_bound_selectors_compare_by_function_and_can_be_pickled() -> None:
    bound = bind_selector(by_both)
    assert pickle.loads(pickle.dumps(bound)) == bound
    assert bound == bind_selector(by_both)
    assert bound != bind_selector(by_params)
