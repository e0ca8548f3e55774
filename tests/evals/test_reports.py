"""Reports as text, JUnit XML and Markdown, also of texts that try to break them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from support.eval_results import experiment, rows_of, variant
from weakincentives.evals.ci_reports import junit_xml, markdown
from weakincentives.evals.comparisons import compare
from weakincentives.evals.experiment_files import experiment_json
from weakincentives.evals.page import experiment_page
from weakincentives.evals.reports import comparison_lines, experiment_lines, mean_text
from weakincentives.evals.results import Experiment, RunResult, VariantResults
from weakincentives.evals.scores import Scale, Value
from weakincentives.limits import RunUsage, TokenUsage

type Rows = str | Sequence[Sequence[Value]]

HOSTILE = [
    *("\x1b[31m", "\x00", "\ufffe", "\ud800", "\u2028", "\r\n", "a\tb", "😀👨‍👩‍👧", "]]>"),
    *('"', "'", "<b>", "&amp;", "@all", "#12", "GH-12", "<!--", "a|b", "a\\|b", "`", "``|``"),
    *("http://a.b", "www.a.b", "![x](y)", "| --- |", "\n\n# h", "*", "</testcase>"),
]


def lines(one: Experiment) -> str:
    return "\n".join(experiment_lines(one))


def test_rate_is_reported_with_its_range_by_errors() -> None:
    summary = variant("base", {"ok": " ".join("1" * 80 + "0" * 10 + "E" * 10)}).summary("ok")
    assert mean_text(summary) == (
        "88.9 % of 90 scored (80.0-90.0 % if the 10 errors were all wrong or right)"
    )


def test_errors_are_not_zeros_in_any_report() -> None:
    one = variant("base", {"ok": "1 E 1 -"})
    saved = experiment(one)
    expected = (
        "100.0 % of 2 scored (66.7-100.0 % if the error was wrong or right), "
        "95 % interval 34.2-100.0 %, 2 of 3 scored, 1 not applicable"
    )
    compared = compare(one, replace(one, name="other"))
    for text in (
        "".join(junit_xml(saved)),
        markdown(saved),
        markdown(saved, [compared]),
        "".join(experiment_page(saved)),
        "".join(experiment_page(experiment(one, compared.b), comparisons=[compared])),
    ):
        assert expected in text
    assert "  2 of 3 scored, 1 not applicable\n" in lines(saved)
    by_errors = "100.0 % of 2 scored (66.7-100.0 % if the error was wrong or right)"
    assert f"\nbase, ok: {by_errors}\n" in lines(saved)
    assert f"\n  ok, other: {by_errors}" in "\n".join(comparison_lines(compared))
    [found] = json.loads("".join(experiment_json(saved)))["variants"].values()
    summary = found["summaries"]["ok"]
    counts = [summary[name] for name in ("mean", "scored", "runs", "errors", "inapplicable")]
    assert counts == [1.0, 2, 4, 1, 1]


def test_scores_of_zero_are_shown() -> None:
    zeros: list[list[Value]] = [[0.0], [0]]
    one = variant("base", {"s": zeros, "ok": [[False], [False]]})
    rows = rows_of(lines(experiment(one)))
    assert ["base", "s", "0", "2 scored"] in rows
    assert ["base", "ok", "0.0 %", "0.0-65.8 %", "2 scored"] in rows
    xml = "".join(junit_xml(experiment(one)))
    assert "s: 0\nok: fail" in xml


def test_numbers_have_their_range_and_labels_their_counts() -> None:
    numbers: list[list[Value]] = [[49.0], ["E"]]
    words: list[list[Value]] = [["formal"], ["casual"]]
    one = variant("a", {"s": numbers, "t": words}, scales={"s": Scale(bounds=(0, 100))})
    text = lines(experiment(one))
    assert (
        "s: mean 49 over 1 scored (24.5 to 74.5 if the error had the lowest or the highest score)"
    ) in text
    assert ["a", "s", "49", "1 of 2 scored"] in rows_of(text)
    assert ["a", "t", "formal 1, casual 1", "2 scored"] in rows_of(text)


def test_errors_without_a_range_are_only_counted_in_the_table() -> None:
    words: list[list[Value]] = [["formal"], ["E"]]
    counts: list[list[Value]] = [[3.0], ["E"]]
    text = lines(experiment(variant("a", {"word": words, "count": counts, "ok": "E E"})))
    assert [row[1:] for row in rows_of(text)[4:7]] == [
        ["word", "formal 1", "1 of 2 scored"],
        ["count", "3", "1 of 2 scored"],
        ["ok", "no score", "0 of 2 scored"],
    ]
    assert rows_of(text)[7] == [""]


def test_report_begins_with_the_cost_of_now_and_of_all_runs() -> None:
    one = variant("base", {"ok": "1 0"})
    paid = [replace(it, usage=RunUsage(calls=1, cost=0.25)) for it in one.results]
    saved = replace(
        experiment(replace(one, results=paid), repeats=2),
        spent=RunUsage(calls=1, cost=0.25),
        reused=1,
        is_complete=False,
        notes=["c1: the section 'rules' has changed"],
    )
    text = lines(saved)
    assert text.startswith("cases: 2 cases, 2 repeats; spent $0.2500, 1 run reused\n")
    assert "\nbase: 2 answered; these runs cost $0.5000\n" in text
    assert text.endswith("\nc1: the section 'rules' has changed\nThe experiment is not complete.")
    unpriced = [replace(it, usage=RunUsage(calls=1)) for it in one.results]
    text = lines(experiment(replace(one, results=unpriced)))
    assert "these runs cost an unknown amount" in text
    text = lines(experiment(replace(one, results=[paid[0], unpriced[1]])))
    assert "these runs cost at least $0.2500\n" in text
    other = replace(one.results[1], usage=RunUsage(calls=2, unpriced={"a": 1, "": 1}))
    text = lines(experiment(replace(one, results=[paid[0], other])))
    reason = "(no price is known for 1 request to a, 1 request to an unnamed model)"
    assert f"these runs cost at least $0.2500 {reason}\n" in text


def test_tokens_are_reported_if_there_are_any() -> None:
    one = variant("base", {"ok": "1 0"})
    used = RunUsage(TokenUsage(input_tokens=1_200, output_tokens=30), calls=1, cost=0.25)
    text = lines(experiment(replace(one, results=[replace(it, usage=used) for it in one.results])))
    assert "these runs cost $0.5000, 2,400 input and 60 output tokens\n" in text


def test_reason_follows_its_score_and_is_marked_if_it_is_truncated() -> None:
    one = variant("base", {"ok": "0 0"})
    reasons = ["no number", f"no number in {'x' * 5_000}"]
    pairs = zip(one.results, reasons, strict=True)
    results = [replace(it, reasons={"ok": reason}) for it, reason in pairs]
    *_, first, second = lines(experiment(replace(one, results=results))).splitlines()
    assert first == "base, c0: ok: fail, no number"
    assert second.startswith("base, c1: ok: fail, no number in xxx")
    assert second.endswith("x…")
    assert len(second) < 320


def test_difference_and_its_interval_have_the_same_number_of_decimals() -> None:
    before: list[list[Value]] = [[1 / 3], [0.5], [0.1], [0.2]]
    after: list[list[Value]] = [[2 / 3], [0.7], [0.1], [0.25]]
    compared = compare(variant("a", {"s": before}), variant("b", {"s": after}))
    text = "\n".join(comparison_lines(compared))
    assert ["+0.146", "-0.095 to +0.386"] in [row[4:6] for row in rows_of(text)]


def test_numbers_have_their_spread() -> None:
    numbers: list[list[Value]] = [[1.0, 2.0], [4.0, 4.0], [6.5, "E"]]
    text = lines(experiment(variant("base", {"s": numbers}), repeats=2))
    assert ["base", "s", "4", "1 to 6.5", "2.5", "5 of 6 scored"] in rows_of(text)
    one: list[list[Value]] = [[1.0, 2.0]]
    text = lines(experiment(variant("base", {"s": one})))
    assert rows_of(text)[-1] == ["base", "s", "1.5", "1 to 2", "2 scored"]


def test_scores_are_reported_by_the_values_of_metadata() -> None:
    one = variant("base", {"ok": "11 10 0E"}, clusters=["x", "x", "y"])
    levels: list[list[str]] = [["hard"], ["easy", "short"], []]
    infos = zip(one.cases, one.cases.values(), levels, strict=True)
    cases = {
        case: replace(info, metadata={"level": level} if level else {})
        for case, info, level in infos
    }
    saved = experiment(replace(one, cases=cases), repeats=2)
    text = "\n".join(experiment_lines(saved, "level"))
    assert [row[1:3] + row[-1:] for row in rows_of(text)[4:9]] == [
        ["ok", "50.0 %", "5 of 6 scored"],
        ["without level, 1 case", "0.0 %", "1 of 2 scored"],
        ["level easy, 1 case", "50.0 %", "2 scored"],
        ["level hard, 1 case", "100.0 %", "2 scored"],
        ["level short, 1 case", "50.0 %", "2 scored"],
    ]
    by_errors = "0.0 % of 1 scored (0.0-50.0 % if the error was wrong or right)"
    assert f"\nbase, ok, without level, 1 case: {by_errors}\n" in text
    assert "` ok, level hard, 1 case `" in markdown(saved, by="level")
    assert [*saved["base"].groups("cluster")] == ["x", "y"]
    with pytest.raises(ValueError, match="no case has the key 'lvl'; known: cluster, level"):
        saved["base"].groups("lvl")


def test_comparison_has_the_verdict_the_pairs_and_the_changed_cases() -> None:
    a = variant("a", {"ok": "1 1 0 1 0 1 1 0 1 0"})
    b = variant("b", {"ok": "1 1 1 1 E 1 1 E 1 1"})
    text = "\n".join(comparison_lines(compare(a, b)))
    assert text.splitlines()[0] == "b against a: 10 cases; p-values are corrected for 1 comparison"
    assert rows_of(text)[2] == [
        *("ok", "inconclusive", "60.0 %", "100.0 %"),
        *("+25.0 points", "-13.7 to +63.7", "0.5"),
    ]
    changes = "there is no margin for equivalence; 2 up: c2, c9; 0 down"
    assert f"{changes}\n" in text
    assert (
        f"{changes}; +25.0 points, 95 % interval -13.7 to +63.7, p = 0.5 (exact McNemar), "
        "+20.0 to +40.0 by errors; 8 of 10 pairs\n"
    ) in "\n".join(comparison_lines(compare(a, b), verbose=True))


def test_names_of_changed_cases_are_cut_unless_the_report_is_verbose() -> None:
    compared = compare(variant("a", {"ok": "0 " * 7}), variant("b", {"ok": "1 " * 7}))
    assert [*comparison_lines(compared)][-1] == "  ok: 7 up: c0, c1, c2, c3, c4, …; 0 down"
    full = [*comparison_lines(compared, verbose=True)][-1]
    assert "7 up: c0, c1, c2, c3, c4, c5, c6; 0 down; +100.0 points" in full


def test_comparison_without_an_interval_has_a_dash_and_the_reason() -> None:
    one: list[list[Value]] = [[0.5]]
    other: list[list[Value]] = [[0.9]]
    text = "\n".join(
        comparison_lines(compare(variant("a", {"s": one}), variant("b", {"s": other})))
    )
    assert text.endswith("\n  s: no standard error: 1 case; 1 up: c0; 0 down")
    row = ["s", "inconclusive", "0.5", "0.9", "+0.4", "\N{EN DASH}"]
    assert rows_of(text)[2] == row


def test_comparison_of_common_cases_counts_them_in_the_first_line() -> None:
    a, b = variant("a", {"ok": "1 1 1"}), variant("b", {"ok": "1 1 1 1 1"})
    first, *_ = comparison_lines(compare(a, b, common_cases=True))
    assert first.startswith("b against a: 3 cases in common, 2 left out; ")


def test_comparison_says_the_split_of_variance_and_the_cases_that_are_needed() -> None:
    a = variant("a", {"ok": "110 000 111 010 111 101"})
    b = variant("b", {"ok": "111 110 111 000 010 111"})
    text = "\n".join(comparison_lines(compare(a, b, margin=0.1), verbose=True))
    assert (
        "ok: the corrected p-value 0.79 is not below 0.05, and equivalence within "
        "the margin 0.1 is not certain; about 183 more cases needed for the margin"
    ) in text
    assert "variance 0.148 by cases, 0.0926 by repeats" in text


@pytest.mark.parametrize(
    ("rows", "clusters", "found"),
    [
        ("1 1 1 0", [], "30.1-95.4 %"),
        ("11 11 11 00", [], "30.1-95.4 % over 4 cases"),
        ("1 1 1 0", ["a", "a", "b", "b"], "19.8-97.3 % over 2 clusters"),
        ("11 11 11 00", ["a", "a", "", ""], "25.6-96.3 % over 3 clusters"),
        ("1 1 1 0", ["a", "b", "c", "d"], "30.1-95.4 %"),
    ],
)
def test_interval_names_the_clusters_or_cases_that_it_counts(
    rows: str, clusters: list[str], found: str
) -> None:
    report = lines(experiment(variant("base", {"ok": rows}, clusters=clusters)))
    assert rows_of(report)[4][3] == found


def test_comparison_says_how_many_clusters_it_has() -> None:
    a, b = (
        variant(name, {"ok": row}, clusters=["x", "x", "y", "y"])
        for name, row in {"a": "0 0 0 1", "b": "1 1 0 1"}.items()
    )
    found = "; 4 of 4 pairs in 2 clusters (standard error 0.5, without clusters 0.289)"
    assert found in "\n".join(comparison_lines(compare(a, b), verbose=True))


def test_lower_is_better_is_said_and_decides_what_is_worse_first() -> None:
    scales = {"cost": Scale(higher_is_better=False)}
    before: list[list[Value]] = [[1.0], [2.0], [3.0]]
    after: list[list[Value]] = [[0.5], [4.0], [3.0]]
    compared = compare(
        variant("a", {"cost": before}, scales=scales), variant("b", {"cost": after}, scales=scales)
    )
    assert "\ncost (lower is better)  " in "\n".join(comparison_lines(compared))
    rows = table_rows(markdown(experiment(compared.b), [compared]))
    assert [row[1] for row in rows if row[0] == "b"][-2:] == ["c1", "c0"]


def test_report_lists_the_first_problems_of_each_variant() -> None:
    saved = experiment(variant("base", {"ok": "00 " * 6 + "1F"}), repeats=2)
    text = lines(saved)
    assert "\nbase, c0 #1: ok: fail\nbase, c0 #2: ok: fail\nbase, c1 #1: ok: fail\n" in text
    assert text.endswith("\nbase: 10 more problems")
    assert [*experiment_lines(saved, verbose=True)][-2:] == [
        "base, c5 #2: ok: fail",
        "base, c6 #2: failed: the tool broke",
    ]
    broken = variant("base", {"ok": "1 F"})
    assert lines(experiment(broken)).endswith("\nbase, c1: failed: the tool broke")


# --- JUnit


def parsed(xml: str) -> ET.Element:
    return ET.fromstring(xml)  # noqa: S314 - our own text


def hostile(text: str) -> Experiment:
    one = variant(f"v{text}", {f"s{text}": "1 0 E F U"})
    results = [
        replace(
            it,
            case=f"{it.case}{text}",
            error=it.error and text,
            reasons={f"s{text}": text},
            score_errors=dict.fromkeys(it.score_errors, text),
        )
        for it in one.results
    ]
    cases = {f"{case}{text}": info for case, info in one.cases.items()}
    return replace(experiment(replace(one, results=results, cases=cases)), dataset=f"cases{text}")


@pytest.mark.parametrize("text", HOSTILE)
def test_junit_is_valid_xml_whatever_the_texts_are(text: str) -> None:
    root = parsed("".join(junit_xml(hostile(text))))
    [suite] = root
    assert {key: suite.attrib[key] for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "1",
        "errors": "2",
        "skipped": "1",
    }
    assert [len(test.findall("system-out")) for test in suite.findall("testcase")] == [1] * 5


@given(st.text(st.characters(), max_size=8))
def test_junit_keeps_texts_and_shows_other_characters_as_escapes(text: str) -> None:
    root = parsed("".join(junit_xml(hostile(text))))
    name = root[0].attrib["name"].removeprefix("v")
    assert name == text or "\\" in name


def test_junit_shows_hidden_characters_as_escapes_and_keeps_emoji() -> None:
    xml = "".join(junit_xml(hostile("\x1b\ufffe\ud800\u202e👨‍👩‍👧")))
    assert "v\\x1b\\ufffe\\ud800\\u202e👨‍👩‍👧" in xml


def test_junit_names_all_problems_of_a_run_and_its_repeat() -> None:
    one = variant(
        "base", {"a": "00", "b": "E0", "c": "10"}, scales={"c": Scale(higher_is_better=False)}
    )
    root = parsed("".join(junit_xml(experiment(one, repeats=2))))
    first, second = root.iter("testcase")
    assert (first.attrib["name"], second.attrib["name"]) == ("c0 #1", "c0 #2")
    assert first.findtext("failure") == "a: fail\nc: pass\nb: no verdict"
    assert second.findtext("failure") == "a: fail\nb: fail"


# --- Markdown


ROW_LEVEL = 4  # of texts in cells


def table_rows(text: str) -> list[list[str]]:
    """Returns the cells of all tables as their readers see them."""
    rows: list[list[str]] = []
    for token in MarkdownIt().enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and token.level == ROW_LEVEL:
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_shows_hostile_texts_literally(text: str) -> None:
    saved = hostile(text)
    source = markdown(saved)
    source.encode()
    tokens = MarkdownIt().enable("table").parse(source)
    inline = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in inline} <= {"text", "code_inline"}
    rows = table_rows(source)
    assert {len(row) for row in rows} == {3}
    assert len(rows) == 1 + 1 + 1 + 3  # one score, and three runs with problems
    for child in inline:  # whatever a reader's Markdown does with plain text, this has only ours
        if child.type == "text":
            assert not set(child.content) & set("@#<>`|[]*&\\")


def test_markdown_of_5000_changes_fits_and_says_how_many_more_there_are() -> None:
    rows = [f"{'1' * 3}" for _ in range(5_000)]
    changed = ["000" if index % 2 else "011" for index in range(5_000)]
    a, b = variant("a", {"ok": " ".join(rows)}), variant("b", {"ok": " ".join(changed)})
    text = markdown(experiment(a, b), [compare(a, b)])
    assert 60_000 < len(text) <= 65_000
    shown = [row for row in table_rows(text) if row[0] == "b" and len(row) == 5][1:]
    after = [row[4] for row in shown]
    assert after[0] == "0 %"
    assert after == sorted(after, key=lambda cell: float(cell.removesuffix(" %")))
    assert text.endswith(f"\nand {5_000 - len(shown):,} more\n")


def test_markdown_sorts_changes_of_several_scales_and_lists_runs_that_failed() -> None:
    scales = {"tokens": Scale(higher_is_better=False), "grade": Scale(bounds=(0, 10))}
    before: dict[str, Rows] = {"tokens": [[200]] * 3, "ok": "1 1 1", "grade": [[8]] * 3}
    after: dict[str, Rows] = {"tokens": [[220], [210], ["F"]], "ok": "1 0 F"}
    after["grade"] = [[8], [6], ["F"]]
    a, b = variant("a", before, scales=scales), variant("b", after, scales=scales)
    rows = table_rows(markdown(experiment(a, b), [compare(a, b)]))
    assert rows[0][-1] == "verdict"
    changed = [row[1:3] for row in rows if len(row) == 5 and row[1].startswith("c")][1:]
    assert changed == [["c1", "ok"], ["c1", "grade"], ["c0", "tokens"], ["c1", "tokens"]]
    assert rows[-1] == ["b", "c2", "failed: the tool broke"]


def test_markdown_of_many_variants_and_long_names_fits() -> None:
    long = "|`" * 200
    variants: list[VariantResults] = [
        variant(f"{long}{index}", {f"{long}{score}": "1 0" for score in range(10)})
        for index in range(100)
    ]
    pairs = [compare(variants[0], one) for one in variants[1:]]
    assert len(markdown(experiment(*variants), pairs)) <= 65_000
    assert len(markdown(experiment(*variants))) <= 65_000


def test_markdown_without_a_comparison_lists_the_problems() -> None:
    one = variant("base", {"ok": "1 0 E F"})
    rows = table_rows(markdown(experiment(one)))
    assert [row[1:] for row in rows[3:]] == [
        ["c1", "ok: fail"],
        ["c2", "ok: no verdict"],
        ["c3", "failed: the tool broke"],
    ]


def test_variants_with_the_same_name_are_told_apart() -> None:
    a, b = variant("base", {"ok": "1 1"}), variant("base", {"ok": "1 0"})
    found = [*comparison_lines(compare(a, b))]
    assert found[0].startswith("base (B) against base (A): 2 cases")
    assert rows_of(found[1])[0][2:4] == ["base (A)", "base (B)"]
    rows = table_rows(markdown(experiment(b), [compare(a, b)]))
    assert rows[1][:2] == ["base (B)", "base (A)"]


def test_summary_of_an_unknown_score_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="no score 'okay'; there are ok"):
        variant("base", {"ok": "1"}).summary("okay")


def test_provider_failures_and_runs_that_did_not_take_place_are_named() -> None:
    one = variant("base", {"ok": "1 U F 1"})
    results = [*one.results[:3], replace(one.results[3], outcome="provider")]
    head = lines(experiment(replace(one, results=results))).splitlines()[1]
    assert head.startswith("base: 1 answered, 1 failed, 1 provider failures, 1 not run; ")


def test_markdown_numbers_the_repeats_of_a_case() -> None:
    rows = table_rows(markdown(experiment(variant("base", {"ok": "10 00"}), repeats=2)))
    assert [row[1] for row in rows[3:]] == ["c0 #2", "c1 #1", "c1 #2"]


def test_unscored_runs_have_no_problem_in_any_report() -> None:
    result = RunResult(case="c0", repeat=0, outcome="answered")
    one = replace(variant("base", {}), results=[result])
    assert "problem" not in markdown(experiment(one))
    assert lines(experiment(one)).endswith("base: 1 answered; these runs cost $0\n\n")
