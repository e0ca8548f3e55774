"""A section's selectors and defaults are checked against its params type.

Only pyright checks the lambdas: mypy infers a lambda only if a single callable is expected, and a
selector has four forms. Neither infers a keyword-only parameter of a lambda, so a selector that
reads the session should be an annotated function, which both check.
"""

from dataclasses import dataclass
from typing import Any, assert_type

from weakincentives import MarkdownSection, SectionVisibility
from weakincentives.prompt import Section, SectionPath
from weakincentives.protocols import StateView

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Task:
    detailed: bool = False


@dataclass(frozen=True)
class Other:
    count: int = 0


def always() -> bool:
    return True


def by_session(*, session: StateView) -> bool:
    return session[Other].latest() is not None


def by_params(params: Task) -> bool:
    return params.detailed


def by_both(params: Task, *, session: StateView) -> bool:
    return params.detailed and session[Other].latest() is not None


def wrong_params(params: Other) -> bool:
    return bool(params.count)


def wrong_answer(params: Task) -> str:
    return str(params.detailed)


def shown_by_both(params: Task, *, session: StateView) -> SectionVisibility:
    return FULL if params.detailed and len(session[Other]) else SUMMARY


# Functions in all four forms.
assert_type(MarkdownSection[Task](title="T", template="", enabled=always), MarkdownSection[Task])
assert_type(
    MarkdownSection[Task](title="T", template="", enabled=by_session), MarkdownSection[Task]
)
assert_type(MarkdownSection[Task](title="T", template="", enabled=by_params), MarkdownSection[Task])
assert_type(MarkdownSection[Task](title="T", template="", enabled=by_both), MarkdownSection[Task])
assert_type(
    MarkdownSection[Task](title="T", template="", visibility=shown_by_both), MarkdownSection[Task]
)
assert_type(
    MarkdownSection[Task](title="T", template="", enabled=True, visibility=SUMMARY),
    MarkdownSection[Task],
)

# Lambdas in all four forms.
MarkdownSection[Task](title="T", template="", enabled=lambda: True, visibility=lambda: FULL)
MarkdownSection[Task](
    title="T",
    template="",
    enabled=lambda params: assert_type(params, Task).detailed,  # type: ignore[assert-type]
    visibility=lambda params: FULL if assert_type(params, Task).detailed else SUMMARY,  # type: ignore[assert-type]
)
MarkdownSection[Task](
    title="T",
    template="",
    enabled=lambda *, session: len(session[Other]) > 0,  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
)
MarkdownSection[Task](
    title="T",
    template="",
    enabled=lambda params, *, session: assert_type(params, Task).detailed,  # type: ignore[assert-type]  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
)

# Mismatches are rejected.
MarkdownSection[Task](
    title="T",
    template="",
    enabled=wrong_params,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
MarkdownSection[Task](
    title="T",
    template="",
    enabled=wrong_answer,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
MarkdownSection[Task](
    title="T",
    template="",
    visibility=by_params,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
MarkdownSection[Task](
    title="T",
    template="",
    default_params=Other(),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)

# The type comes from the subscript, from `params_type=`, from `default_params=`, or is not given.
assert_type(MarkdownSection(title="T", template="", params_type=Task), MarkdownSection[Task])
assert_type(MarkdownSection(title="T", template="", default_params=Task()), MarkdownSection[Task])
assert_type(MarkdownSection(title="T", template=""), MarkdownSection[Any])
assert_type(MarkdownSection[Task](title="T", template="").params_type, type[Task] | None)
assert_type(MarkdownSection[Task](title="T", template="").clone(title="U"), MarkdownSection[Task])


class Counting(Section[Task]):
    """A subclass fixes the params type for its own methods too."""

    def render_body(self, params: Task, *, path: SectionPath) -> str:
        return str(params.detailed)


assert_type(Counting(title="T").params_type, type[Task] | None)
Counting(title="T", enabled=by_params)
Counting(title="T", enabled=wrong_params)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Section[Task](title="T")  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
