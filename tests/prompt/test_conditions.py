"""Four forms of selector, one way to call them."""

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

# Any: sections are made with wrong arguments here, which no type checker would let pass.
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


# Any: selectors of every form and answer.
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
def test_each_form_is_told_by_its_signature(
    selector: Callable[..., Any], params: bool, session: bool
) -> None:
    bound = bind_selector(selector)
    assert (bound.needs_params, bound.needs_session) == (params, session)


@pytest.mark.claim("PR-17")
def test_every_form_is_called_alike_and_given_what_it_asks_for() -> None:
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
def test_every_form_works_in_a_section_with_and_without_a_session(answer: bool) -> None:
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
def test_any_other_signature_is_refused_with_path_culprit_and_remedy(
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
def test_what_is_neither_constant_nor_function_is_refused(value: Any, which: str) -> None:
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


def test_a_visibility_of_none_is_refused_rather_than_taken_for_a_default() -> None:
    with pytest.raises(PromptValidationError, match=r"visibility must be .*, got None"):
        PromptTemplate(ns="n", key="k", sections=[Loose(title="S", template="", visibility=None)])


def test_a_builtin_without_a_signature_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        PromptValidationError,
        match=r"readable signature, got <class 'dict'>; wrap it in a function",
    ):
        PromptTemplate(ns="n", key="k", sections=[Loose(title="S", template="", enabled=dict)])


def test_a_coroutine_function_is_refused_since_its_answer_would_always_be_true() -> None:
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
def test_a_selector_over_params_needs_a_section_with_params(which: str) -> None:
    with pytest.raises(
        PromptValidationError, match=rf"{which} takes params, but the section has none"
    ) as caught:
        PromptTemplate(
            ns="tests", key="forms", sections=[Loose(title="S", template="", **{which: by_params})]
        )
    assert caught.value.section_path == ("s",)
    assert "write the section as MarkdownSection[Params](…)" in str(caught.value)


def test_what_a_selector_raises_is_told_with_the_path_and_only_session_readers_get_the_hint() -> (
    None
):
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


def test_a_bound_selector_of_a_module_level_function_is_a_value() -> None:
    bound = bind_selector(by_both)
    assert pickle.loads(pickle.dumps(bound)) == bound
    assert bound == bind_selector(by_both)
    assert bound != bind_selector(by_params)
