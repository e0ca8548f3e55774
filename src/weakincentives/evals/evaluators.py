"""Ready-made evaluators: each function returns an `Evaluator` whose score is true or false.

Expected values that differ between cases are given as a function of the case.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .. import serde
from ..displays import count_of, cut
from ..serde.json_types import AnyJson, AnyValue, JsonSchema, comparable
from ..serde.validation import check_schema, validation_issues
from .cases import Case
from .scores import EvalCall, EvalRun, Evaluator, Score, ScoreError

__all__ = [
    "called",
    "called_in_order",
    "contains",
    "cost_below",
    "equals",
    "file_equals",
    "matches_schema",
    "not_called",
    "not_contains",
    "opened",
    "seconds_below",
    "state_equals",
]

type FromCase[T] = T | Callable[[Case], T]
"""An expected value, or a function that returns it for a case."""

type ExpectedCall = str | tuple[str, Mapping[str, AnyJson]]
"""A tool's name, or the name and arguments that the call must contain."""


def equals(expected: FromCase[object] = lambda case: case.expected, *, name: str = "") -> Evaluator:
    """The answer equals `expected`, which defaults to the case's.

    Values are compared as JSON: a dataclass equals a mapping with the same fields, and 1 equals
    1.0. For a prompt without an output type, the answer is the text. Without an expected value, the
    score does not apply.
    """

    def check(case: Case, run: EvalRun) -> Score:
        value, answer = value_for(expected, case), _answer(run)
        if value is None:
            return Score(None, "the case has no expected value")
        return Score(_same(answer, value), f"got {_show(answer)}, expected {_show(value)}")

    return Evaluator(function=check, name=name or "equals")


def contains(*texts: FromCase[str], ignore_case: bool = False, name: str = "contains") -> Evaluator:
    """The run's text contains all `texts`."""
    _check_given(texts, "contains", "text")

    def check(case: Case, run: EvalRun) -> Score:
        missing = [
            text for text, found in _found(texts, case, run, ignore_case=ignore_case) if not found
        ]
        return Score(not missing, f"missing: {_show(missing)}" if missing else "all texts found")

    return Evaluator(function=check, name=name)


def not_contains(
    *texts: FromCase[str], ignore_case: bool = False, name: str = "not_contains"
) -> Evaluator:
    """The run's text contains none of `texts`; a failed run has no score."""
    _check_given(texts, "not_contains", "text")

    def check(case: Case, run: EvalRun) -> Score:
        present = [
            text for text, found in _found(texts, case, run, ignore_case=ignore_case) if found
        ]
        return Score(not present, f"found: {_show(present)}" if present else "no text found")

    return Evaluator(function=check, name=name)


def matches_schema(schema: JsonSchema, *, name: str = "matches_schema") -> Evaluator:
    """The answer fits a JSON Schema; the text of a prompt without an output type is read as JSON.

    Needs the extra `json-schema`. Raises `SerdeError` for an invalid schema.
    """
    check_schema(schema)
    schema_text = json.dumps(schema)

    def check(_: Case, run: EvalRun) -> Score:
        try:
            value = json.loads(run.text) if run.output is None else serde.dump(run.output)
        except ValueError as error:
            return Score(value=False, reason=f"the text is not JSON: {error}")
        issues = validation_issues(schema_text, value)
        return Score(not issues, "; ".join(map(str, issues)) or "the answer fits the schema")

    return Evaluator(function=check, name=name)


def called(
    tool: str,
    arguments: FromCase[Mapping[str, AnyJson]] | None = None,
    *,
    times: int | None = None,
    name: str = "",
) -> Evaluator:
    """The run has called a tool: at least once, or exactly as many `times`.

    Only calls that contain all of `arguments` count; further arguments and ids do not matter. Calls
    that failed count too. Also applies to failed runs, except if the number of calls fits so far.
    """

    def check(case: Case, run: EvalRun) -> Score:
        count = sum(_fits(call, tool, value_for(arguments, case)) for call in run.calls)
        fits = count > 0 if times is None else count == times
        if fits and times is not None:
            _check_complete(run)
        return Score(fits, _calls_text(tool, count, run))

    return Evaluator(function=check, name=name or f"called_{tool}", on_failure=True)


def not_called(
    tool: str, arguments: FromCase[Mapping[str, AnyJson]] | None = None, *, name: str = ""
) -> Evaluator:
    """The run has not called a tool, or not with these arguments; see `called`.

    A failed run without a call has no score, because it might have called the tool later.
    """

    def check(case: Case, run: EvalRun) -> Score:
        count = sum(_fits(call, tool, value_for(arguments, case)) for call in run.calls)
        if not count:
            _check_complete(run)
        return Score(not count, _calls_text(tool, count, run))

    return Evaluator(function=check, name=name or f"not_called_{tool}", on_failure=True)


def called_in_order(
    *calls: ExpectedCall | Callable[[Case], Iterable[ExpectedCall]], name: str = "called_in_order"
) -> Evaluator:
    """The run has made these calls in this order, with any other calls in between.

    A call is a tool's name, or a pair of a name and arguments; see `called`.
    """
    _check_given(calls, "called_in_order", "call")

    def check(case: Case, run: EvalRun) -> Score:
        expected = [one for call in calls for one in (call(case) if callable(call) else [call])]
        rest = iter(run.calls)
        for number, one in enumerate(expected, 1):
            tool, arguments = (one, None) if isinstance(one, str) else one
            if not any(_fits(call, tool, arguments) for call in rest):
                return Score(
                    value=False,
                    reason=f"no call for {_show(one)}, number {number} of {len(expected)} in order",
                )
        return Score(value=True, reason=f"made {count_of(len(expected), 'call')} in order")

    return Evaluator(function=check, name=name, on_failure=True)


def opened(section: str, *, name: str = "") -> Evaluator:
    """The model has opened a section, which is given by its key; also applies to failed runs."""

    def check(_: Case, run: EvalRun) -> Score:
        sections = ", ".join(run.opened) or "no sections"
        return Score(section in run.opened, f"the model opened {sections}")

    return Evaluator(function=check, name=name or f"opened_{section}", on_failure=True)


def state_equals[T](
    kind: type[T], values: Callable[[Case], Sequence[T]] | Sequence[T], *, name: str = ""
) -> Evaluator:
    """The session's values of a type equal `values`, in order; also applies to failed runs."""

    def check(case: Case, run: EvalRun) -> Score:
        found, expected = list(run.session[kind].all()), list(value_for(values, case))
        return Score(_same(found, expected), f"got {_show(found)}, expected {_show(expected)}")

    return Evaluator(function=check, name=name or f"state_{kind.__name__}", on_failure=True)


def file_equals(path: str, content: FromCase[str | bytes], *, name: str = "") -> Evaluator:
    """A file in the prompt's filesystem has this content; also applies to failed runs."""

    def check(case: Case, run: EvalRun) -> Score:
        expected = value_for(content, case)
        data = expected.encode() if isinstance(expected, str) else expected
        if run.files is None:
            raise ScoreError("the prompt has no filesystem; add a WorkspaceSection")
        try:
            found = run.files.read_bytes(path)
        except OSError as error:
            return Score(value=False, reason=f"cannot read {path!r}: {error}")
        return Score(found == data, f"{path!r} has {_show(found)}, expected {_show(data)}")

    return Evaluator(function=check, name=name or f"file_{path}", on_failure=True)


def cost_below(dollars: float, *, name: str = "cost_below") -> Evaluator:
    """The run has cost less than this; a run with an unknown cost has no score.

    A failed run has no score unless it has already cost as much.
    """

    def check(_: Case, run: EvalRun) -> Score:
        if run.cost is None:
            raise ScoreError("the cost of the run is unknown; pass prices=")
        return _below(run, run.cost, dollars, "dollars")

    return Evaluator(function=check, name=name, on_failure=True)


def seconds_below(seconds: float, *, name: str = "seconds_below") -> Evaluator:
    """The run has taken less time than this.

    A failed run has no score unless it has already taken as long.
    """

    def check(_: Case, run: EvalRun) -> Score:
        return _below(run, run.seconds, seconds, "seconds")

    return Evaluator(function=check, name=name, on_failure=True)


def _below(run: EvalRun, value: float, limit: float, unit: str) -> Score:
    if value < limit:
        _check_complete(run)
    return Score(value < limit, f"{value:.6g} {unit}, with a limit of {limit:.6g}")


def _check_complete(run: EvalRun) -> None:
    """Raises `ScoreError` for a failed run, which could have done more."""
    if run.error is not None:
        raise ScoreError("the run failed, so the rest of it is unknown")


def _check_given(given: Sequence[object], function: str, noun: str) -> None:
    if not given:
        raise ValueError(f"{function} takes at least one {noun}")


def value_for[T](value: FromCase[T], case: Case) -> T:
    if not callable(value):
        return value
    result: AnyValue = value(case)  # for type checkers, T itself might be callable
    expected: T = result
    return expected


def _answer(run: EvalRun) -> AnyValue:
    return run.text if run.output is None else run.output


def _found(
    texts: Sequence[FromCase[str]], case: Case, run: EvalRun, *, ignore_case: bool
) -> list[tuple[str, bool]]:
    """Returns each text, and whether the run's text contains it."""
    fold: Callable[[str], str] = str.casefold if ignore_case else str
    expected = [value_for(text, case) for text in texts]
    return [(text, fold(text) in fold(run.text)) for text in expected]


def _fits(call: EvalCall, tool: str, arguments: Mapping[str, AnyJson] | None) -> bool:
    expected: Mapping[str, Any] = arguments or {}
    return call.name == tool and all(
        key in call.arguments and _same(call.arguments[key], value)
        for key, value in expected.items()
    )


def _calls_text(tool: str, count: int, run: EvalRun) -> str:
    calls = ", ".join([f"{call.name}({_show(call.arguments)})" for call in run.calls])
    return f"{count_of(count, 'such call')} of {tool}; calls: {cut(calls, 500) or 'none'}"


def _same(one: AnyValue, other: AnyValue) -> bool:
    """Returns whether two values are equal as JSON."""
    return comparable(serde.dump(one)) == comparable(serde.dump(other))


def _show(value: object) -> str:
    return cut(repr(value), 200)
