"""Cases in YAML, JSON, JSON Lines and CSV: types decide how text is read, and errors name lines."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from weakincentives import MarkdownSection, PromptTemplate
from weakincentives.evals import Case, CaseFileError, Dataset, case_schema
from weakincentives.evals.case_files import Scalar
from weakincentives.prompt.template import AnyTemplate
from weakincentives.serde import Json
from weakincentives.testing import ScriptedAdapter, say

KEYS = "id, message, params, expected, cluster, metadata, state, files"
SUFFIXES = ("yaml", "json", "jsonl", "csv")
ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Item:
    kind: Literal["item"]
    value: int


@dataclass(frozen=True)
class Note:
    kind: Literal["note"]
    value: str


@dataclass(frozen=True)
class Question:
    text: str
    count: int = 1
    share: float = 0.5
    is_open: bool = False
    name: str | None = None
    either: int | str = 0
    answer: Literal["yes", "no"] = "no"
    level: Literal[1, 2] = 1
    price: Decimal = Decimal(0)
    day: date = date(2024, 1, 1)
    tags: list[str] = field(default_factory=list[str])
    parts: list[Item | Note] = field(default_factory=list[Item | Note])
    limits: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Customer:
    name: str = "Ada"


@dataclass(frozen=True)
class Answer:
    text: str
    score: float = 0.0


@dataclass(frozen=True)
class Seen:
    page: str


class Topic(TypedDict):
    topic: str


def prompt_of(*kinds: type[object], state: type[object] | None = None) -> AnyTemplate:
    sections = [
        MarkdownSection(title=f"{index}", template="Answer.", params_type=kind)
        for index, kind in enumerate(kinds)
    ]
    last = MarkdownSection(title="Last", template="Go.", state=[] if state is None else [state])
    return PromptTemplate[Answer](ns="tests", key="cases", sections=[*sections, last])


BOTH = prompt_of(Question, Customer, state=Seen)
ONE = prompt_of(Question)
UNTYPED = PromptTemplate(
    ns="tests",
    key="plain",
    sections=[MarkdownSection[Question](title="Question", template="${text}")],
)


def load(tmp_path: Path, text: str, name: str = "cases.yaml", target: AnyTemplate = ONE) -> Dataset:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return Dataset.load(path, target)


def problems(tmp_path: Path, text: str, name: str = "cases.yaml") -> list[str]:
    """Returns the problems of a file as `line: message`."""
    with pytest.raises(CaseFileError) as caught:
        load(tmp_path, text, name)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return [f"{problem.line}: {problem.message}" for problem in caught.value.problems]


# --- what is saved is loaded

# Lone surrogates are not Unicode text. The rest is anything, and what formats are fond of.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        *("", "null", "~", "NO", "yes", "0123", "1_000", "12:30:00", "1.10", "1e3", "0o17", "0x1F"),
        *("=", "<<", "- a", "a: b", "#", "[1", "[1]", '"a"', "{x}", " a ", "a\r\nb", "a\nb\n"),
        *("тест", "🙂", "\x00", "\x85", "\u2028", "\ufeff", "a\n\n b", "\n", "|", "> x", "'", "`"),
        *("{{x}} ${x} {% raw %} {#", "1.0e+20", ".5", "+1", "TRUE", "-", "?", "%a", "@a", "a,b;c"),
    ]
)
NAMES = TEXTS.filter(bool)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTS = st.integers(-(10**20), 10**20)
JSON = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
QUESTIONS = st.builds(
    Question,
    text=TEXTS,
    count=INTS,
    share=FLOATS,
    is_open=st.booleans(),
    name=st.none() | TEXTS,
    either=INTS | TEXTS,
    answer=st.sampled_from(["yes", "no"]),
    level=st.sampled_from([1, 2]),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    day=st.dates(),
    tags=st.lists(TEXTS, max_size=3),
    parts=st.lists(
        st.builds(Item, kind=st.just("item"), value=INTS)
        | st.builds(Note, kind=st.just("note"), value=TEXTS),
        max_size=2,
    ),
    limits=st.dictionaries(TEXTS, INTS, max_size=2),
)
PATHS = st.from_regex(r"[a-z.]{0,2}[a-z]{1,3}(/[a-z]{1,3}){0,2}", fullmatch=True)


def cases_of(expected: st.SearchStrategy[object]) -> st.SearchStrategy[list[Case]]:
    case = st.builds(
        Case,
        id=NAMES,
        message=st.none() | TEXTS,
        params=st.tuples(QUESTIONS) | st.tuples(QUESTIONS, st.builds(Customer, TEXTS)),
        expected=st.none() | expected,
        state=st.lists(st.builds(Seen, TEXTS), max_size=2).map(tuple),
        files=st.dictionaries(PATHS, st.binary(max_size=4) | TEXTS.map(str.encode), max_size=2),
        cluster=TEXTS,
        metadata=st.dictionaries(TEXTS, JSON, max_size=3),
    )
    return st.lists(case, min_size=1, max_size=3)


@pytest.mark.parametrize("suffix", ["yaml", "json", "jsonl"])
@given(cases=cases_of(st.builds(Answer, TEXTS, FLOATS)))
def test_load_returns_the_saved_cases(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, cases: list[Case]
) -> None:
    saved_and_loaded(tmp_path_factory.mktemp("cases") / f"cases.{suffix}", cases, BOTH)


@pytest.mark.parametrize("suffix", ["yaml", "json", "jsonl"])
@given(cases=cases_of(JSON))
def test_load_returns_the_saved_cases_of_a_prompt_without_an_output_type(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, cases: list[Case]
) -> None:
    cases = [Case(id=case.id, params=case.params[:1], expected=case.expected) for case in cases]
    saved_and_loaded(tmp_path_factory.mktemp("cases") / f"cases.{suffix}", cases, UNTYPED)


@given(cases=cases_of(st.builds(Answer, TEXTS, FLOATS)))
def test_load_returns_the_cases_saved_in_csv_unless_saving_raises(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Case]
) -> None:
    path = tmp_path_factory.mktemp("cases") / "cases.csv"
    dataset = unique(cases)
    if any(case.message == "" for case in dataset):
        with pytest.raises(ValueError, match=r"CSV cannot represent message=''.*save .* as \.yaml"):
            dataset.save(path)
        assert not path.exists()
    else:
        saved_and_loaded(path, cases, BOTH)
        first = path.read_bytes()
        Dataset.load(path, BOTH).save(path)
        assert path.read_bytes() == first


@given(cases=cases_of(JSON))
def test_load_returns_untyped_outputs_saved_in_csv_unless_saving_raises(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Case]
) -> None:
    path = tmp_path_factory.mktemp("cases") / "cases.csv"
    dataset = unique([Case(id=case.id, expected=case.expected) for case in cases])
    try:
        dataset.save(path)
    except ValueError:
        return
    assert [*map(exact, Dataset.load(path))] == [*map(exact, dataset)]


def unique(cases: list[Case]) -> Dataset:
    """Returns a dataset of the cases with different ids."""
    found: dict[str, Case] = {}
    for case in Dataset([Case(id=f"{index}") for index in range(len(cases))]):
        found[case.id] = case
    kept: list[Case] = []
    for case in cases:
        try:
            Dataset([*kept, case])
        except ValueError:
            continue
        kept.append(case)
    return Dataset(kept)


def saved_and_loaded(path: Path, cases: list[Case], target: AnyTemplate) -> None:
    dataset = unique(cases)
    dataset.save(path)
    assert [*map(exact, Dataset.load(path, target))] == [*map(exact, dataset)]


def exact(case: Case) -> str:
    """Returns a text that distinguishes 1, 1.0 and True, which are equal in Python.

    The columns of a table determine the order of keys.
    """
    sorted_keys = [sorted(case.metadata.items()), sorted(case.files.items())]
    case = replace(case, metadata={}, files={}, source="")
    return repr([sorted_keys, case])


HOSTILE = 'тё\u0301ж 🙂\tx \r\n  {{x}} ${x} {% raw %} {#\n\n a|b;c,"d"  '


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_are_readable_utf_8_whatever_the_locale(tmp_path: Path, suffix: str) -> None:
    """Runs in a process, because Python chooses the encoding of files when it starts."""
    path = tmp_path / f"cases.{suffix}"
    program = (
        "import sys; from pathlib import Path; from weakincentives.evals import Case, Dataset\n"
        f"case = Case(id='1', message={HOSTILE!a})\n"
        "Dataset([case]).save(sys.argv[1])\n"
        "assert [*Dataset.load(sys.argv[1])] == [case]\n"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", program, path], env=environment, check=True)
    assert {"т", "🙂"} < {*path.read_text(encoding="utf-8")}
    assert [case.message for case in Dataset.load(path)] == [HOSTILE]


# --- types decide

AMBIGUOUS = (
    *("NO", "yes", "on", "0123", "1_000", "12:30:00", "1:2", "1.10", "2024-01-01", "~", "null"),
    *("true", "1", "1e3", "0x1F", ".inf", "=", "007", "N/A", "None", "NaN"),
)


@pytest.mark.parametrize("text", AMBIGUOUS)
@pytest.mark.parametrize("suffix", ["yaml", "csv"])
def test_text_fields_have_the_text_as_it_is_written(tmp_path: Path, text: str, suffix: str) -> None:
    written = {
        "yaml": f"- id: {text}\n  message: {text}\n  params: {{text: {text}}}",
        "csv": f"id,message,params.text\n{text},{text},{text}\n",
    }
    [case] = load(tmp_path, written[suffix], f"cases.{suffix}")
    assert (case.id, case.message, case.params) == (text, text, (Question(text),))


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("count", "007", 7),
        ("count", "0x1F", 31),
        ("count", "0o17", 15),
        ("count", "+5", 5),
        ("share", "1", 1.0),
        ("share", "1e3", 1000.0),
        ("share", ".5", 0.5),
        ("is_open", "True", True),
        ("name", "null", None),
        ("name", "~", None),
        ("name", "NO", "NO"),
        ("either", "12", 12),
        ("either", "012", "012"),
        ("either", "x", "x"),
        ("answer", "no", "no"),
        ("level", "2", 2),
        ("price", "1.10", Decimal("1.10")),
        (
            "price",
            "0.1000000000000000055511151231257827",
            Decimal("0.1000000000000000055511151231257827"),
        ),
        ("day", "2024-02-03", date(2024, 2, 3)),
        ("limits", '{"a": 1}', {"a": 1}),
        ("tags", '["1", "a|b;c"]', ["1", "a|b;c"]),
        ("parts", '[{"kind": "item", "value": 1}]', [Item("item", 1)]),
    ],
)
@pytest.mark.parametrize("suffix", ["yaml", "csv"])
def test_types_decide_how_plain_text_is_read(
    tmp_path: Path, key: str, text: str, value: object, suffix: str
) -> None:
    cell = text.replace('"', '""')
    written = {
        "yaml": f"- id: 1\n  params:\n    text: x\n    {key}: {text}",
        "csv": f'id,params.text,params.{key}\n1,x,"{cell}"\n',
    }
    [case] = load(tmp_path, written[suffix], f"cases.{suffix}")
    [params] = case.params
    found = getattr(params, key)
    assert (found, type(found)) == (value, type(value))


def test_unions_are_read_as_the_member_that_their_literal_names(tmp_path: Path) -> None:
    text = """
- id: 1
  params:
    text: x
    parts: [{value: 1, kind: note}, {kind: item, value: 1}]
"""
    [case] = load(tmp_path, text)
    assert case.params == (Question("x", parts=[Note("note", "1"), Item("item", 1)]),)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("12", 12), ("1.5", 1.5), ("-0.0", -0.0), ("true", True), ("null", None), ("~", None)),
        *((text, text) for text in ("1.10", "0123", "+1", "1e3", "0x1F", "NO", "12:30:00", "1_0")),
        *(('"12"', "12"), ("'true'", "true")),
    ],
)
def test_untyped_values_are_numbers_only_if_json_writes_them_so(
    tmp_path: Path, text: str, value: Scalar
) -> None:
    written = f"- {{id: 1, params: {{text: x}}, metadata: {{a: {text}}}}}"
    [case] = load(tmp_path, written)
    assert repr(case.metadata["a"]) == repr(value)


def test_empty_values_are_errors_in_yaml_and_absent_in_csv(tmp_path: Path) -> None:
    text = "- id: 1\n  message:\n  params: {text: , count: }\n  metadata:\n"
    assert problems(tmp_path, text) == [
        '2: the value is missing; write "" for an empty text',
        '3: the value is missing; write "" for an empty text',
        "3: params.count: Input should be a valid integer, got ''",
        "4: metadata: Input should be an object, got ''",
    ]
    table = "id,message,params.text,params.count,expected,metadata.a\n1,,x,,,\n"
    [case] = load(tmp_path, table, "cases.csv")
    assert case == Case(id="1", params=(Question("x"),))
    table = "id,params.text,params.count\n1,,2\n"
    assert problems(tmp_path, table, "cases.csv") == ["2: params.text: Field required"]


def test_params_are_given_by_type_or_directly_if_there_is_one_type(tmp_path: Path) -> None:
    text = "- {id: 1, params: {text: a}}\n- {id: 2, params: {Question: {text: a}}}"
    assert [case.params for case in load(tmp_path, text)] == [(Question("a"),)] * 2
    text = "- {id: 1, params: {Customer: {}, Question: {text: a}}, state: {Seen: [{page: 1}]}}"
    [case] = load(tmp_path, text, target=BOTH)
    assert (case.params, case.state) == ((Customer(), Question("a")), (Seen("1"),))


def test_typed_dicts_are_params_too(tmp_path: Path) -> None:
    target = prompt_of(Topic)
    dataset = load(tmp_path, "- {id: 1, params: {topic: 007}}", target=target)
    assert dataset[0].params == ({"topic": "007"},)
    for suffix in SUFFIXES:
        dataset.save(tmp_path / f"saved.{suffix}")
        assert [*Dataset.load(tmp_path / f"saved.{suffix}", target)] == [*dataset]


def test_bound_params_need_not_be_in_cases(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text("- id: 1\n")
    assert Dataset.load(path, ONE.bind(Question("x")))[0].params == ()


def test_cases_without_a_prompt_have_json_as_their_expected_output(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text("- {id: 1, expected: {a: [1, b]}}\n")
    assert Dataset.load(path)[0].expected == {"a": [1, "b"]}


# --- hostile text reaches the model unchanged


def test_template_syntax_in_a_case_reaches_the_request_unchanged(tmp_path: Path) -> None:
    text = (
        "- {id: 1, message: '{{x}} ${x} {% raw %} {#', params: {text: '${y} {{z}}', tags: [a, b]}}"
    )
    [case] = load(tmp_path, text, target=UNTYPED)
    adapter = ScriptedAdapter([say("fine")])
    adapter.evaluate(UNTYPED.bind(*case.params), message=case.message)
    [request] = adapter.requests
    sent = f"{request.messages}"
    assert "{{x}} ${x} {% raw %} {#" in sent
    assert "${y} {{z}}" in sent


# --- problems


def test_all_problems_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """\
- id: 1
  params: {text: x, count: 1_0}
  timeout: 3
- params: {text: x}
- id: ""
  params: {text: x, tags: [a, [b]]}
- 5
- id: [true]
- id: true
  params: {Qestion: {}}
  expected:
    text: x
    scre: 2
  state: {Seen: []}
  metadata: 3
"""
    assert problems(tmp_path, text) == [
        "2: params.count: Input should be a valid integer, got '1_0'",
        f"3: unknown key 'timeout'; a case has {KEYS}",
        "4: id: Field required",
        "5: id must be text that is not empty",
        "6: params.tags.1: Input should be a valid string",
        "7: a case must be a mapping, got '5'",
        "8: id must be text",
        "8: params: Field required",
        "10: params.text: Field required",
        "10: params.Qestion: Unexpected keyword argument",
        "13: expected.scre: Unexpected keyword argument, got '2'",
        "14: state: unknown type 'Seen'; the prompt's sections declare no state",
        "15: metadata: Input should be an object, got '3'",
    ]


def test_problems_of_all_files_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- id: 1\n")
    (tmp_path / "b.json").write_text('[\n {"id": 1,\n  "x": 2}]')
    (tmp_path / "c.jsonl").write_text('{"id": 1, "params": {"text": "x"}}\n\n{"id": NaN}\n{"a')
    (tmp_path / "d.txt").write_text("")
    names = ["a.yaml", "b.json", "c.jsonl", "d.txt", "e.yaml", "f*.yaml", "."]
    with pytest.raises(CaseFileError) as caught:
        Dataset.load([tmp_path / name for name in names], ONE)
    assert str(caught.value).replace(f"{tmp_path}", "").split("\n") == (
        [
            "/a.yaml:1: params: Field required",
            "/b.json:2: params: Field required",
            f"/b.json:3: unknown key 'x'; a case has {KEYS}",
            "/c.jsonl:3: invalid JSON: NaN is not a number in JSON",
            "/c.jsonl:4: invalid JSON: Unterminated string starting at (column 2)",
            "/d.txt:1: its name must end in .yaml, .json, .jsonl, .csv",
            "/e.yaml:1: it is not a file; for the files of a folder, pass 'folder/*.yaml'",
            "/f*.yaml:1: no file matches this pattern",
            ":1: its name must end in .yaml, .json, .jsonl, .csv",
        ]
    )


def test_ids_are_compared_as_text_in_nfc_across_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("- id: 1\n- id: e\u0301\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"id": "1"}\n{"id": 2}\n{"id": "é"}', encoding="utf-8")
    with pytest.raises(CaseFileError) as caught:
        Dataset.load([tmp_path / "a.yaml", tmp_path / "b.jsonl"])
    assert str(caught.value).replace(f"{tmp_path}/", "") == (
        "b.jsonl:1: the id '1' is already used in a.yaml:1\n"
        "b.jsonl:3: the id 'é' is already used in a.yaml:2"
    )


def test_clusters_are_compared_in_nfc() -> None:
    first, second = Dataset([Case(id="1", cluster="e\u0301"), Case(id="2", cluster="\u00e9")])
    assert first.cluster == second.cluster


def test_cases_are_in_the_order_of_their_files(tmp_path: Path) -> None:
    for name, ids in (("b", [3, 1]), ("a", [9, 7])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in ids))
    dataset = Dataset.load(tmp_path / "*.jsonl")
    assert ([case.id for case in dataset], dataset.name) == (["9", "7", "3", "1"], "a")
    assert dataset[2].source == f"{tmp_path / 'b.jsonl'}:1"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- id: !!python/object/apply:os.system [ls]", "1: tags, anchors and aliases"),
        ("- {id: !!str 1, params: {text: x}}", "1: tags, anchors and aliases"),
        ("- id: 1\n  id: 2\n  params: {text: x}", "2: the key 'id' appears twice"),
        ("- id: 1\n  <<: {message: x}\n  params: {text: x}", "2: unknown key '<<'"),
        ("- [x]: 1", "1: a key must be text"),
        ("- id: *a", "1: tags, anchors and aliases"),
        ("- id: 1\n- &a [*a]", "2: tags, anchors and aliases"),
        ("- id: 1\n--- \n- id: 2", "3: it has a second document"),
        ("- id: a: b", "1: invalid YAML: mapping values are not allowed"),
        ("- id: 'a", "1: invalid YAML: "),
        ("- id: \x01", "1: invalid YAML: "),
        ("[" * 70 + "]" * 70, "1: it is nested more than 64 levels deep"),
        ("a: " * 3, "1: "),
        ("- id\n" + "- ? " * 5000, "2: it is nested more than 64 levels deep"),
        ("", "1: it has no cases"),
        ("# nothing\n", "1: it has no cases"),
        ("[]", "1: it has no cases"),
        ("cases: 3", "1: it must contain a list of cases"),
        ("cases: []\nmore: 1", "2: unknown key 'more' next to 'cases'"),
        ("text", "1: it must contain a list of cases"),
    ],
)
def test_hostile_yaml_is_rejected_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, text)[0].startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[{"id": 1, "id": 2, "params": {"text": "x"}}]', "1: the key 'id' appears twice"),
        ("[\n{]", "2: invalid JSON: Expecting property name"),
        ('[{"id" 1}]', "1: invalid JSON: Expecting ':' delimiter (column 8)"),
        ('[{"id": 1}\n{"id": 2}]', "2: invalid JSON: Expecting ',' delimiter (column 1)"),
        ('[{"id": 1},]', "1: invalid JSON: "),  # in the words of each version of Python
        ('[{"id": 1}', "1: invalid JSON: Expecting ',' delimiter (column 11)"),
        ("[] []", "1: invalid JSON: Extra data (column 4)"),
        ('[{"id": Infinity}]', "1: invalid JSON: Infinity is not a number in JSON"),
        ("[" * 100_000, "1: it is nested more than 64 levels deep"),
        ('[{"id": ' + "9" * 5000 + "}]", "1: invalid JSON: Exceeds the limit"),
        (
            '[{"id": 1,\n"metadata": {"a": 1e999}}]',
            "1: invalid JSON: 1e999 is not a number in JSON",
        ),
        ('[{"id": "\\ud83d"}]', "1: invalid JSON: 'utf-8' codec can't encode character '\\ud83d'"),
        ("[{1: 2}]", "1: invalid JSON: Expecting property name enclosed in double quotes"),
        ("{}", "1: it must contain a list of cases"),
    ],
)
def test_hostile_json_is_rejected_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    first, *others = problems(tmp_path, text, "cases.json")
    assert first.startswith(problem)
    assert not [other for other in others if "invalid" in other]


def test_files_that_are_too_long_or_not_utf_8_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    with path.open("wb") as file:
        file.truncate(50_000_001)
    with pytest.raises(CaseFileError, match="more than 50,000,000 bytes"):
        Dataset.load(path)
    path.write_bytes(b'[{"id":\n "\xff"}]')
    with pytest.raises(CaseFileError, match=r"json:2: it is not UTF-8 \(invalid start byte\)"):
        Dataset.load(path)


def test_json_may_name_its_schema_next_to_its_cases(tmp_path: Path) -> None:
    written = '{"id": 1, "params": {"text": "\\ud83d\\ude42"}}'
    text = f'{{"$schema": "cases.schema.json", "cases": [{written}]}}'
    [case] = load(tmp_path, text, "cases.json")
    assert case.params == (Question("🙂"),)


# --- CSV


def test_csv_may_have_a_byte_order_mark_crlf_and_separators_in_quotes(tmp_path: Path) -> None:
    text = '\ufeffid,message,params.text\r\n1,"a,\r\n""b""",x\r\n\r\n2,"",y'
    dataset = load(tmp_path, text, "cases.csv")
    assert [(case.id, case.message) for case in dataset] == [("1", 'a,\r\n"b"'), ("2", None)]
    assert [case.source.rpartition(":")[2] for case in dataset] == ["2", "5"]


@pytest.mark.parametrize("text", ['"0"', "[1]", "1.0e+20", "{}", "1e3", "null"])
def test_csv_ids_are_text_whatever_they_look_like(tmp_path: Path, text: str) -> None:
    cell = '"' + text.replace('"', '""') + '"'
    [case] = load(tmp_path, f"id,cluster,params.text\n{cell},{cell},x\n", "cases.csv")
    assert (case.id, case.cluster) == (text, text)


def test_csv_column_without_params_names_the_field(tmp_path: Path) -> None:
    assert problems(tmp_path, "id,text\n1,a\n", "cases.csv") == [
        (
            "1: unknown column 'text': cases of this prompt have no such key; for the field of the "
            "params, write 'params.text'"
        )
    ]


def test_all_problems_of_csv_are_reported_at_once_with_line_and_column(tmp_path: Path) -> None:
    text = 'id,params.cnt,foo,id,metadata.x,metadata\n1,2,3,4,5\n6,a"b,8,9,1\n77,"a"b,8,9,1\n'
    quote = 'a quote is not closed or misplaced; in a cell in quotes, write "" for a quote'
    assert problems(tmp_path, text, "cases.csv") == [
        "1: the column 'id' appears twice, or is part of another column",
        "1: unknown column 'params.cnt': cases of this prompt have no such key",
        "1: unknown column 'foo': cases of this prompt have no such key",
        "1: the column 'metadata.x' appears twice, or is part of another column",
        f"3: column 2: {quote}",
        f"4: column 2: {quote}",
    ]
    assert problems(tmp_path, "params.text\nx\n", "cases.csv") == ["1: the column 'id' is missing"]
    text = 'id,params,metadata\n1,[1,\n2,"{""text"": 1}",x\n3,4\n'
    assert problems(tmp_path, text, "cases.csv") == [
        "2: invalid JSON: Expecting ',' delimiter (column 3)",
        "2: params: Input should be an object, got '[1'",
        "3: params.text: Input should be a valid string, got '{\"text\": 1}'",
        "3: metadata: Input should be an object, got 'x'",
        "4: expected 3 cells, as in line 1, got 2",
    ]


def test_many_unclosed_quotes_are_reported_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "cases.csv"
    path.write_text("id\n" + 'x"\n' * 100_000)
    with pytest.raises(CaseFileError, match="and 99900 more") as caught:
        Dataset.load(path)
    assert len(caught.value.problems) == 100_000


# --- files of cases


def test_files_of_a_case_are_read_from_the_folder_of_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "data" / "deep").mkdir(parents=True)
    for name in ("data/a.txt", "data/b.md", "data/deep/c.txt"):
        (folder / name).write_bytes(name.encode() + b"\r\n")
    (folder / "cases.yaml").write_text(r"""
- id: 1
  files:
    notes/a.txt: {from: data\a.txt}
    copied: {from: 'data/**/*.txt'}
    written.txt: 007
    raw: {base64: AP8=}
""")
    program = (
        "import sys; from weakincentives.evals import Dataset\n"
        "print(dict(Dataset.load(sys.argv[1])[0].files))"
    )
    expected = {
        "notes/a.txt": b"data/a.txt\r\n",
        "copied/a.txt": b"data/a.txt\r\n",
        "copied/deep/c.txt": b"data/deep/c.txt\r\n",
        "written.txt": b"007",
        "raw": b"\x00\xff",
    }
    for place, path in (
        (tmp_path, "set/cases.yaml"),
        (folder, "cases.yaml"),
        (ROOT, folder / "cases.yaml"),
    ):
        run = subprocess.run(
            [sys.executable, "-c", program, path],
            cwd=place,
            check=True,
            capture_output=True,
            text=True,
        )
        assert run.stdout == f"{expected}\n"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ("a: {from: ../secret}", "'../secret' holds '..'"),
        ("a: {from: /etc/passwd}", "'/etc/passwd' is absolute"),
        ("a: {from: link}", "'link' is or leads through a link"),
        ("a: {from: 'li*'}", "no file matches 'li*' in the folder of the case"),
        ("a: {from: linked/x}", "'linked/x' is or leads through a link"),
        ("a: {from: nothing}", "there is no 'nothing'"),
        ("a: {from: sub}", "'sub' is a directory"),
        ("a: {from: '*.nope'}", "no file matches '*.nope' in the folder of the case"),
        ("../a: x", "'../a' holds '..'"),
        (r"..\a: x", "'../a' holds '..'"),
        ("a: {form: x}", "'a' must be text, {from: path} or {base64: text}"),
        ("a: [x]", "'a' must be text, {from: path} or {base64: text}"),
        ("{a: x, ./a: y}", "'a' is written twice; remove one of them"),
        ("{sub/z: x, sub: {from: '*.txt'}, sub/y.txt: y}", "'sub/y.txt' is written twice"),
        ("a: {base64: '?'}", "'a' must be text, {from: path} or {base64: text}"),
    ],
)
def test_files_never_come_from_outside_the_folder(tmp_path: Path, files: str, problem: str) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "set"
    (folder / "sub").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "y.txt").write_text("y")
    [found] = problems(folder, f"- id: 1\n  params: {{text: x}}\n  files:\n    {files}\n")
    assert found.startswith(f"4: files: {problem}")


def test_files_of_cases_are_limited_and_each_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(b"x" * 10_000_000)
    (tmp_path / "more.bin").write_bytes(b"x" * 10_000_001)
    lines = [f"{{'id': '{n}', 'files': {{a: {{from: 0.bin}}}}}}" for n in range(50)]
    (tmp_path / "cases.yaml").write_text("".join(f"- {line}\n" for line in lines))
    dataset = Dataset.load(tmp_path / "cases.yaml")
    assert len({id(case.files["a"]) for case in dataset}) == 1
    (tmp_path / "cases.yaml").write_text("- {id: 1, files: {a: {from: '*.bin'}}}\n")
    with pytest.raises(CaseFileError, match=r"'more\.bin'.* 10000001 bytes, the limit is 10000000"):
        Dataset.load(tmp_path / "cases.yaml")


def test_load_needs_a_path() -> None:
    with pytest.raises(ValueError, match="at least one path, got none"):
        Dataset.load([])


@pytest.mark.parametrize(
    "text", ["0x" + "f" * 4000, "9" * 4001, "9" * 400 + ".0", "1e999", "-.inf"]
)
def test_numbers_out_of_range_are_text_or_errors(tmp_path: Path, text: str) -> None:
    written = f"- {{id: 1, params: {{text: x}}, metadata: {{a: {text}}}}}"
    assert load(tmp_path, written)[0].metadata == {"a": text}
    for key in ("count", "share"):
        written = f"- {{id: 1, params: {{text: x, {key}: {text}}}}}"
        assert problems(tmp_path, written)[0].startswith(f"1: params.{key}: Input should be a ")


# --- selection


SELECTABLE = Dataset(
    [
        Case(id="a1", cluster="a", metadata={"level": 3, "tags": ["x", "y"], "note": None}),
        Case(id="a2", cluster="a", metadata={"level": 4, "tags": ["y"]}),
        Case(id="b1", metadata={"level": "3"}),
    ],
    name="tea",
)


@pytest.mark.parametrize(
    ("ids", "where", "selected"),
    [
        (None, None, ["a1", "a2", "b1"]),
        (["b1", "a1"], None, ["a1", "b1"]),
        ("a2", None, ["a2"]),
        (None, {"level": 3}, ["a1", "b1"]),
        (None, {"level": "3", "cluster": "a"}, ["a1"]),
        (None, {"tags": "y"}, ["a1", "a2"]),
        (None, {"note": None}, ["a1"]),
    ],
)
def test_select_keeps_the_order_and_the_name(
    ids: list[str] | None, where: dict[str, Json] | None, selected: list[str]
) -> None:
    dataset = SELECTABLE.select(ids, where)
    assert ([case.id for case in dataset], dataset.name) == (selected, "tea")


@pytest.mark.parametrize(
    ("ids", "where", "message"),
    [
        (["a1", "a3"], None, "no case has the id 'a3'; known: a1, a2, b1"),
        (None, {"levle": 3}, "no case has the key 'levle'; known: cluster, id, level, note, tags"),
        (None, {"level": 5}, "no case has the level '5'; known: 3, 4"),
        (None, {"cluster": "c"}, "no case has the cluster 'c'; known: a"),
        ("a2", {"level": 3}, "no case of 'tea' has all of ids='a2' and where={'level': 3}"),
    ],
)
def test_an_empty_selection_names_the_filter_and_the_known_values(
    ids: list[str] | None, where: dict[str, Json] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        SELECTABLE.select(ids, where)


# --- schema


def is_valid(target: AnyTemplate, document: object) -> bool:
    return validator_for(case_schema(target)).is_valid(document)


@given(cases=cases_of(st.builds(Answer, TEXTS, FLOATS)))
def test_saved_cases_satisfy_the_schema(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Case]
) -> None:
    path = tmp_path_factory.mktemp("cases") / "cases.json"
    unique(cases).save(path)
    assert is_valid(BOTH, json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "case",
    [
        {"params": {"text": "x"}},
        {"id": "1"},
        {"id": "1", "params": {"txt": "x"}},
        {"id": "1", "params": {"text": "x"}, "more": 1},
        {"id": "1", "params": {"text": "x"}, "expected": {"scre": 1}},
        {"id": "1", "params": {"text": "x"}, "files": {"a": {"form": "b"}}},
        {"id": "1", "params": {"text": "x"}, "state": {"Seen": []}},
    ],
)
def test_schema_rejects_what_loading_rejects(tmp_path: Path, case: object) -> None:
    assert not is_valid(ONE, [case])
    assert is_valid(ONE, {"cases": [{"id": 1, "params": {"text": "x"}}]})
    assert problems(tmp_path, json.dumps([case]), "cases.json")


def test_types_of_the_same_name_are_named_with_their_module(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Customer:
        age: int

    local = Customer
    target = prompt_of(globals()["Customer"], local)
    name = f"{__name__}.{local.__qualname__}"
    text = json.dumps([{"id": 1, "params": {name: {"age": 1}}}])
    [case] = load(tmp_path, text, "cases.json", target)
    assert case.params == (local(1),)
    text = '[{"id": 1, "params": {"Customer": {}}}]'
    with pytest.raises(CaseFileError, match=r"params\.Customer: Extra inputs"):
        load(tmp_path, text, "cases.json", target)


# --- saving


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_save_that_fails_leaves_the_file_as_it_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cases.{suffix}"
    path.write_text("before")
    for case in (Case(id="1", message="\ud800"), Case(id="1", metadata={"a": float("nan")})):
        with pytest.raises(ValueError, match=r"surrogates|NaN"):
            Dataset([case]).save(path)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("before", [path])


def test_save_rejects_an_unknown_suffix_and_a_message_with_media(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.yaml, .*, got 'cases\.xls'"):
        Dataset([]).save(tmp_path / "cases.xls")
    with pytest.raises(ValueError, match="case '1': a message with images or documents"):
        Dataset([Case(id="1", message=["a"])]).save(tmp_path / "cases.json")


def test_yaml_without_pyyaml_says_which_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise ImportError('No module named yaml')")
    (tmp_path / "cases.yaml").write_text("- id: 1")
    (tmp_path / "cases.json").write_text('[{"id": 1}]')
    program = (
        "from weakincentives.evals import Dataset\n"
        "assert len(Dataset.load('cases.json')) == 1\n"
        "try: Dataset.load('cases.yaml')\n"
        "except ImportError as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "A YAML file of cases needs PyYAML; run pip install '.[evals]'" in run.stdout
