"""Files of experiments: strict JSON that keeps everything a comparison needs."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.eval_results import experiment, variant
from weakincentives.evals.experiment_files import (
    experiment_json,
    load_experiment,
    parse_experiment,
    save_baseline,
)
from weakincentives.evals.results import CaseInfo, RunResult
from weakincentives.evals.scores import Scale, Value
from weakincentives.limits import RunUsage, TokenUsage

SAVED = experiment(
    variant("a", {"ok": "1E 01 --", "other": "11 0- 00"}, clusters=["x", "x", "y"]),
    variant("b", {"ok": "11 U1 F1"}, scales={"ok": Scale(bounds=(0.0, 1.0), margin=0.02)}),
    repeats=2,
)


def refuse(constant: str) -> NoReturn:
    raise AssertionError(constant)


def strict(text: str) -> object:
    value: object = json.loads(text, parse_constant=refuse)
    text.encode()  # without lone surrogates
    return value


def test_experiment_is_restored_with_every_score(tmp_path: Path) -> None:
    path = tmp_path / "experiment.json"
    save_baseline(SAVED, path)
    loaded = load_experiment(path)
    assert "".join(experiment_json(loaded)) == path.read_text(encoding="utf-8")
    for name, one in SAVED.variants.items():
        assert loaded[name].cases == one.cases
        assert loaded[name].results == one.results
        assert loaded[name].evaluators == one.evaluators
        assert loaded[name].values("ok") == one.values("ok")


TEXTS = st.text(st.characters(), max_size=6)  # with lone surrogates
RESULTS = st.builds(
    RunResult,
    case=st.just("c"),
    repeat=st.just(0),
    outcome=st.just("answered"),
    error=TEXTS,
    scores=st.dictionaries(
        TEXTS, st.booleans() | st.none() | TEXTS | st.floats(-(2.0**53), 2.0**53)
    ),
    reasons=st.dictionaries(TEXTS, TEXTS),
    usage=st.builds(RunUsage, st.builds(TokenUsage, st.integers(0, 9)), cost=st.floats(0, 9)),
)


@given(RESULTS, TEXTS)
@example(RunResult(case="", repeat=0, outcome="answered", reasons={"\ud800": "\ud800"}), "\udfff")
def test_all_texts_and_numbers_survive(result: RunResult, name: str) -> None:
    result = replace(result, case=name)
    one = replace(variant(name, {"ok": "1"}), cases={name: CaseInfo(digest=name)}, results=[result])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "experiment.json"
        save_baseline(experiment(one), path)
        strict(path.read_text(encoding="utf-8"))
        assert load_experiment(path)[name].results == [result]


def test_json_has_a_summary_of_each_score_and_a_line_for_each_run() -> None:
    parts = [*experiment_json(experiment(variant("a", {"ok": "1 E 1"})))]
    value = json.loads("".join(parts))
    summary = value["variants"]["a"]["summaries"]["ok"]
    assert (summary["mean"], summary["scored"], summary["runs"]) == (1.0, 2, 3)
    assert sum('"repeat"' in line for line in "".join(parts).splitlines()) == 3
    assert max(map(len, parts)) < 1_500  # never the entire text


def test_json_has_the_summaries_of_groups_and_is_loaded_without_them() -> None:
    one = variant("a", {"ok": "1 E 1"})
    cases = {
        case: replace(info, metadata={"kind": ["x" if case == "c0" else "y"]})
        for case, info in one.cases.items()
    }
    saved = experiment(replace(one, cases=cases))
    text = "".join(experiment_json(saved, "kind"))
    groups = json.loads(text)["variants"]["a"]["groups"]
    expected = {key: part.summary("ok").scored for key, part in saved["a"].groups("kind").items()}
    assert {key: scores["ok"]["scored"] for key, scores in groups.items()} == expected
    assert len(groups) == 2
    assert parse_experiment(text)["a"].results == saved["a"].results


def test_means_are_not_a_baseline(tmp_path: Path) -> None:
    path = tmp_path / "means.json"
    save_baseline(SAVED, path)
    value = json.loads(path.read_text(encoding="utf-8"))
    for one in value["variants"].values():
        del one["results"]
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"results: Field required.*scores of each case and repeat"
    ):
        load_experiment(path)
    for one in value["variants"].values():
        one["results"] = []
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(ValueError, match="variant 'a' must have results of its cases"):
        load_experiment(path)


@pytest.mark.parametrize("number", ["1e999", "1e308", "-9007199254740994"])
def test_number_that_is_too_large_is_not_loaded(tmp_path: Path, number: str) -> None:
    path = tmp_path / "large.json"
    numbers: list[list[Value]] = [[7.5]]
    save_baseline(experiment(variant("a", {"s": numbers})), path)
    path.write_text(path.read_text(encoding="utf-8").replace('{"s": 7.5}', f'{{"s": {number}}}'))
    with pytest.raises(
        ValueError,
        match=r"scores.*a finite number|the score 's' of 'c0' must be a finite number from -9007",
    ):
        load_experiment(path)


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", '{"variants": {}}', '{"version": 9, "variants": {}}', "[" * 100_000]
)
def test_other_files_are_errors_that_say_how_to_write_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"other.json cannot be compared: .*write it with wink eval"
    ):
        load_experiment(path)
