"""Ready-made evaluators: each function returns an `Evaluator` whose score is true or false.

An expected value that differs between cases is given as a function of the case. The score does not
apply to a case for which it returns `None`; for the arguments of a call, `None` means any.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from .. import serde
from ..displays import cut
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

type FromCase[T] = T | Callable[[Case], T | None]
"""An expected value, or a function that returns it for a case, or `None` if there is none."""

type Arguments = Mapping[str, AnyJson]

INAPPLICABLE = Score(None, "the case has no expected value")


def equals(
    expected: FromCase[object] = lambda case: case.expected, *, name: str = "equals"
) -> Evaluator:
    """The answer equals `expected`, which defaults to the case's.

    Values are compared as JSON: a dataclass equals a mapping with the same fields, and 1 equals
    1.0. For a prompt without an output type, the answer is the text. Without an expected value, the
    score does not apply.
    """

    def check(case: Case, run: EvalRun) -> Score:
        if (value := value_for(expected, case)) is None:
            return INAPPLICABLE
        return _compared(run.text if run.output is None else run.output, value)

    return Evaluator(function=check, name=name)


def contains(text: FromCase[str], *more: FromCase[str], name: str = "contains") -> Evaluator:
    """The run's text contains all of the given texts."""

    def check(case: Case, run: EvalRun) -> Score:
        if (texts := _texts((text, *more), case)) is None:
            return INAPPLICABLE
        missing = [one for one in texts if one not in run.text]
        return Score(not missing, f"missing: {_show(missing)}")

    return Evaluator(function=check, name=name)


def not_contains(
    text: FromCase[str], *more: FromCase[str], name: str = "not_contains"
) -> Evaluator:
    """The run's text contains none of the given texts; a failed run has no score."""

    def check(case: Case, run: EvalRun) -> Score:
        if (texts := _texts((text, *more), case)) is None:
            return INAPPLICABLE
        found = [one for one in texts if one in run.text]
        return Score(not found, f"found: {_show(found)}")

    return Evaluator(function=check, name=name)


def matches_schema(schema: JsonSchema, *, name: str = "matches_schema") -> Evaluator:
    """The answer fits a JSON Schema; the text of a prompt without an output type is read as JSON.

    Needs the extra `json-schema`. Raises `SerdeError` for an invalid schema.
    """
    check_schema(schema)
    rules = json.dumps(schema)

    def check(_: Case, run: EvalRun) -> Score:
        try:
            value = json.loads(run.text) if run.output is None else serde.dump(run.output)
        except ValueError as error:
            return Score(value=False, reason=f"the text is not JSON: {error}")
        issues = validation_issues(rules, value)
        return Score(not issues, "; ".join(map(str, issues)) or "the answer fits the schema")

    return Evaluator(function=check, name=name)


def called(tool: str, arguments: FromCase[Arguments] | None = None, *, name: str = "") -> Evaluator:
    """The run has called a tool with all of `arguments`; the call may have failed.

    Ids and other arguments do not matter. Also applies to failed runs.
    """

    def check(case: Case, run: EvalRun) -> Score:
        return Score(_has_calls(run, [(tool, value_for(arguments, case))]), _made(run))

    return Evaluator(function=check, name=name or f"called_{tool}", on_failure=True)


def not_called(
    tool: str, arguments: FromCase[Arguments] | None = None, *, name: str = ""
) -> Evaluator:
    """The run has not called a tool, or not with all of `arguments`; see `called`.

    A failed run without such a call has no score, because it could have made one.
    """

    def check(case: Case, run: EvalRun) -> Score:
        is_called = _has_calls(run, [(tool, value_for(arguments, case))])
        if not is_called:
            _check_complete(run)
        return Score(not is_called, _made(run))

    return Evaluator(function=check, name=name or f"not_called_{tool}", on_failure=True)


def called_in_order(
    calls: FromCase[Sequence[str | tuple[str, Arguments]]], *, name: str = "called_in_order"
) -> Evaluator:
    """The run has made these calls in this order, with any other calls in between.

    A call is a tool's name, or a pair of a name and arguments; see `called`.
    """

    def check(case: Case, run: EvalRun) -> Score:
        if (expected := value_for(calls, case)) is None:
            return INAPPLICABLE
        pairs = [(call, None) if isinstance(call, str) else call for call in expected]
        return Score(_has_calls(run, pairs), f"{_made(run)}, expected {_show(expected)}")

    return Evaluator(function=check, name=name, on_failure=True)


def opened(section: str, *, name: str = "") -> Evaluator:
    """The model has opened a section, which is given by its key; also applies to failed runs."""

    def check(_: Case, run: EvalRun) -> Score:
        sections = ", ".join(run.opened) or "no sections"
        return Score(section in run.opened, f"the model opened {sections}")

    return Evaluator(function=check, name=name or f"opened_{section}", on_failure=True)


def state_equals[T](
    kind: type[T], values: FromCase[Sequence[object]], *, name: str = ""
) -> Evaluator:
    """The session's values of a type equal `values`, in order; also applies to failed runs."""

    def check(case: Case, run: EvalRun) -> Score:
        if (expected := value_for(values, case)) is None:
            return INAPPLICABLE
        return _compared(list(run.session[kind].all()), list(expected))

    return Evaluator(function=check, name=name or f"state_{kind.__name__}", on_failure=True)


def file_equals(path: str, content: FromCase[str | bytes], *, name: str = "") -> Evaluator:
    """A file in the prompt's filesystem has this content; also applies to failed runs."""

    def check(case: Case, run: EvalRun) -> Score:
        if (expected := value_for(content, case)) is None:
            return INAPPLICABLE
        data = expected.encode() if isinstance(expected, str) else expected
        if run.files is None:
            raise ScoreError("the prompt has no filesystem; add a WorkspaceSection")
        try:
            found = run.files.read_bytes(path)
        except OSError as error:
            return Score(value=False, reason=f"cannot read {path!r}: {error}")
        return _compared(found, data)

    return Evaluator(function=check, name=name or f"file_{path}", on_failure=True)


def cost_below(dollars: float, *, name: str = "cost_below") -> Evaluator:
    """The run has cost less than this; a run with an unknown cost has no score.

    A failed run has no score unless it has already cost as much.
    """
    return _below(lambda run: run.cost, dollars, "dollars", name)


def seconds_below(seconds: float, *, name: str = "seconds_below") -> Evaluator:
    """The run has taken less time than this.

    A failed run has no score unless it has already taken as long.
    """
    return _below(lambda run: run.seconds, seconds, "seconds", name)


def _below(
    measure: Callable[[EvalRun], float | None], limit: float, unit: str, name: str
) -> Evaluator:
    def check(_: Case, run: EvalRun) -> Score:
        if (value := measure(run)) is None:
            raise ScoreError(f"the {unit} of the run are unknown; pass prices=")
        if value < limit:
            _check_complete(run)
        return Score(value < limit, f"{value:.6g} {unit}, with a limit of {limit:.6g}")

    return Evaluator(function=check, name=name, on_failure=True)


def _check_complete(run: EvalRun) -> None:
    """Raises `ScoreError` for a failed run, which could have done more."""
    if run.error is not None:
        raise ScoreError("the run failed, so the rest of it is unknown")


def value_for[T](value: FromCase[T], case: Case) -> T | None:
    """Returns an expected value, or calls the function that returns it."""
    if not callable(value):
        return value
    result: AnyValue = value(case)  # for type checkers, T itself might be callable
    expected: T | None = result
    return expected


def _texts(values: Sequence[FromCase[str]], case: Case) -> list[str] | None:
    texts = [text for one in values if (text := value_for(one, case)) is not None]
    return texts if len(texts) == len(values) else None


def _has_calls(run: EvalRun, expected: Sequence[tuple[str, Arguments | None]]) -> bool:
    """Returns whether a run has made these calls in this order, among other calls."""
    rest = iter(run.calls)
    return all(any(_fits(call, *pair) for call in rest) for pair in expected)


def _fits(call: EvalCall, tool: str, arguments: Arguments | None) -> bool:
    return call.name == tool and all(
        key in call.arguments and _same(call.arguments[key], value)
        for key, value in (arguments or {}).items()
    )


def _made(run: EvalRun) -> str:
    calls = ", ".join([f"{call.name}({_show(call.arguments)})" for call in run.calls])
    return f"calls: {cut(calls, 500) or 'none'}"


def _compared(found: object, expected: object) -> Score:
    return Score(_same(found, expected), f"got {_show(found)}, expected {_show(expected)}")


def _same(one: AnyValue, other: AnyValue) -> bool:
    """Returns whether two values are equal as JSON."""
    if isinstance(one, str) and isinstance(other, str):
        return str(one) == str(other)
    return comparable(serde.dump(one)) == comparable(serde.dump(other))


def _show(value: object) -> str:
    return cut(repr(value), 200)
