"""A command line's target is found and bound; each usage error says what to write instead."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.cli.run_options import load_adapter
from weakincentives.cli.target import (
    UsageError,
    how_to_set,
    load,
    load_prompt,
    visibility_overrides,
)
from weakincentives.contrib.skills import SkillError, SkillWarning
from weakincentives.errors import SerdeError
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, SectionVisibility

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Question:
    text: str
    limit: int = 3


@dataclass(frozen=True)
class Filter:
    tags: tuple[str, ...] = ()
    since: date | None = None
    limit: int = 1


class Route(TypedDict):
    start: str
    end: str
    over: NotRequired[str]


class Other:
    @dataclass(frozen=True)
    class Question:
        reason: str


template = PromptTemplate(
    ns="n",
    key="k",
    sections=[
        MarkdownSection[Question](title="Question", template="$text $limit"),
        MarkdownSection[Filter](
            title="Filter",
            template="$tags",
            children=[MarkdownSection(title="Inner", template="x")],
        ),
    ],
)
bound = template.bind(Question("bound", 9))
number = 7
plain = Prompt(ns="n", key="p", sections=[MarkdownSection(title="S", template="s")])


def factory() -> Prompt[None]:
    return template.bind(Question("made"))


def failing() -> Prompt[None]:
    raise OSError("no file")


def of_question(question: Question, *, limit: int) -> Prompt[None]:
    return template.bind(question)


def leaving() -> Prompt[None]:
    raise SystemExit(3)


def name(attribute: str) -> str:
    return f"{__name__}:{attribute}"


def params(
    settings: Iterable[str] = (), file: Path | None = None, of: str = "template"
) -> dict[str, object]:
    prompt = load_prompt(name(of), file, settings).params
    return {kind.__name__: value for kind, value in prompt.items()}


@pytest.mark.parametrize("attribute", ["template", "bound", "factory"])
def test_template_prompt_and_function_can_be_targets(attribute: str) -> None:
    assert load_prompt(name(attribute), None, None).template is template


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("module", "write it as package.module:name"),
        (":x", "write it as package.module:name"),
        ("app/desk.py:main", "is a file; pass its module, as in app.desk:main"),
        (
            "no_such_module:x",
            "importing 'no_such_module' failed: .*; run wink where it can be imported",
        ),
        ("json.nothing:x", "importing 'json.nothing' failed: ModuleNotFoundError"),
        (name("nothing"), "cannot find 'nothing'; prompts there are template, bound, plain"),
        (name("number"), "must be a PromptTemplate, .*, got int"),
        (name("failing"), "OSError: no file"),
        (
            name("of_question"),
            r"because it requires question, limit; .*; pass them by --set Question\.text=…, or by",
        ),
        (name("params.nothing"), "cannot find 'nothing'"),
        (name("template.nothing"), "cannot find 'nothing'"),
        (name("leaving"), "SystemExit: 3"),
    ],
)
def test_target_that_is_not_a_prompt_is_rejected_with_a_fix(target: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_prompt(target, None, None)


def test_module_that_fails_to_import_is_reported_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "wink_failing.py").write_text("import no_such_thing")
    (tmp_path / "wink_broken.py").write_text("1 / 0")
    (tmp_path / "wink_leaving.py").write_text("raise SystemExit(3)")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(
            UsageError,
            match="importing 'wink_failing' failed: ModuleNotFoundError: No module named 'no_such",
        ):
            load("wink_failing:x", "prompt")
        with pytest.raises(UsageError, match="importing 'wink_broken' failed: ZeroDivisionError"):
            load("wink_broken:x", "prompt")
        with pytest.raises(UsageError, match="importing 'wink_leaving' failed: SystemExit: 3"):
            load("wink_leaving:x", "prompt")


@pytest.mark.parametrize(
    ("setting", "kind", "value"),
    [
        ("Question.text=7", "Question", Question("7")),
        ("text=a=b", "Question", Question("a=b")),
        ("text=", "Question", Question("")),
        ('tags=["a", "b"]', "Filter", Filter(tags=("a", "b"))),
        ("since=2026-01-31", "Filter", Filter(since=date(2026, 1, 31))),
        ("since=null", "Filter", Filter()),
        ("Filter.limit=5", "Filter", Filter(limit=5)),
    ],
)
def test_set_option_is_parsed_as_the_type_of_its_field(
    setting: str, kind: str, value: object
) -> None:
    assert params([setting]) == {kind: value}


@given(st.text())
def test_string_value_is_passed_unchanged(text: str) -> None:
    assert params([f"Question.text={text}"]) == {"Question": Question(text)}


def test_set_option_replaces_single_fields_of_bound_params() -> None:
    assert params(["text=new"], of="bound") == {"Question": Question("new", 9)}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("text", "must be Type.field=value"),
        (
            "limit=3",
            "2 params types have a field 'limit'; use one of Filter.tags, .*, Question.limit",
        ),
        ("nothing=3", "0 params types have a field 'nothing'; use one of Filter.tags"),
        ("Nothing.x=3", "no params type 'Nothing'; use one of Filter, Question"),
    ],
)
def test_set_option_that_matches_no_single_field_is_rejected(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        params([setting])


def test_how_to_set_names_all_required_fields() -> None:
    assert how_to_set(Question) == "pass them by --set Question.text=…, or by --params"
    assert how_to_set(Filter) == "pass them by --set Filter.tags=…, or by --params"
    assert how_to_set(Route) == (
        "pass them by --set Route.start=… --set Route.end=…, or by --params"
    )


@pytest.mark.parametrize("setting", ["x=1", "Nothing.x=1"])
def test_set_option_for_a_prompt_without_params_is_rejected(setting: str) -> None:
    with pytest.raises(UsageError, match=r"^--set '.*': the prompt takes no params$"):
        load_prompt(name("plain"), None, [setting])


def test_issues_of_all_params_are_reported_together() -> None:
    with pytest.raises(SerdeError) as error:
        params(["Question.limit=many", "Filter.since=soon", "Filter.extra=1"])
    assert {fault.path for fault in error.value.issues} == {
        ("Question", "text"),
        ("Question", "limit"),
        ("Filter", "since"),
        ("Filter", "extra"),
    }


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (
            ".json",
            json.dumps(
                {"Question": {"text": "file", "limit": 4}, "Filter": {"since": "2026-01-31"}}
            ),
        ),
        (".yaml", "Question: {text: file, limit: 4}\nFilter: {since: 2026-01-31}"),
        (".yml", "Question:\n  text: file\n  limit: 4\nFilter:\n  since: '2026-01-31'"),
    ],
)
def test_params_come_from_a_file_and_set_takes_precedence(
    tmp_path: Path, suffix: str, text: str
) -> None:
    file = tmp_path / f"params{suffix}"
    file.write_text(text)
    since = Filter(since=date(2026, 1, 31))
    assert params(file=file) == {"Question": Question("file", 4), "Filter": since}
    assert params(["text=set"], file) == {"Question": Question("set", 4), "Filter": since}


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        (".json", '{"Question": {"te', "Expecting|Unterminated"),
        (".yaml", "Question: [", "while parsing a flow node"),
        (".json", "[]", "params must be {Type: {field: value}}"),
        (".json", '{"Question": 1}', "params must be {Type: {field: value}}"),
        (".yaml", "Nothing: {}", "no params type 'Nothing'"),
    ],
)
def test_file_without_valid_params_is_named(
    tmp_path: Path, suffix: str, text: str, message: str
) -> None:
    file = tmp_path / f"params{suffix}"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"params{suffix}.*(?:{message})"):
        params(file=file)


def test_params_types_of_the_same_name_are_distinguished_by_module() -> None:
    both = PromptTemplate(
        ns="n",
        key="two",
        sections=[
            MarkdownSection[Question](title="One", template="$text"),
            MarkdownSection[Other.Question](title="Other", template="$reason"),
        ],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "both", both)
        prompt = load_prompt(name("both"), None, [f"{__name__}.Question.text=a", "reason=b"])
        assert prompt.render().text == "## 1. One\n\na\n\n## 2. Other\n\nb"


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_params_file_that_is_not_utf8_is_named(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"params{suffix}"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=f"params{suffix} is not UTF-8 text"):
        params(file=file)


def test_opening_a_section_opens_its_ancestors() -> None:
    assert visibility_overrides(factory(), ["filter.inner"], ["question"]) == {
        ("question",): SUMMARY,
        ("filter",): FULL,
        ("filter", "inner"): FULL,
    }
    assert visibility_overrides(factory(), ["filter.inner"], ["filter"]) == {
        ("filter",): FULL,
        ("filter", "inner"): FULL,
    }


def test_unknown_section_is_rejected_with_the_known_keys() -> None:
    with pytest.raises(
        UsageError,
        match=r"no section has the key 'nope'; use one of question, filter, filter\.inner",
    ):
        visibility_overrides(factory(), ["nope"], None)


LAZY = """
import sys
from types import ModuleType

from weakincentives import MarkdownSection, PromptTemplate


class Proxy:
    @property
    def __class__(self):
        vars(sys.modules[__name__])[f"loaded_{id(self)}_{len(vars(sys.modules[__name__]))}"] = 1
        raise ImportError("no module named 'missing'")


for number in range(3):
    globals()[f"proxy_{number}"] = Proxy()
template = PromptTemplate(ns="n", key="k", sections=[MarkdownSection(title="T", template="x")])


def __getattr__(name):
    if name == "optional":
        raise ImportError("optional needs missing")
    raise AttributeError(name)
"""


def test_module_that_imports_lazily_can_be_searched_for_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_parts.py").write_text(LAZY)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"cannot find 'x'; prompts there are template$"):
        load("lazy_parts:x", "prompt")
    with pytest.raises(UsageError, match=r"cannot find 'x'$"):
        load("lazy_parts:x", "adapter")
    with pytest.raises(UsageError, match="failed: ImportError: optional needs missing"):
        load("lazy_parts:optional", "adapter")


@pytest.mark.parametrize("name", ["openai:gpt-5.2", "anthropic:claude"])
def test_adapter_name_that_contains_a_model_is_a_usage_error(name: str) -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="; pass --adapter"):
        load_adapter(name, stack, model=None)


def test_byte_order_mark_of_a_params_file_is_dropped(tmp_path: Path) -> None:
    for name in ("p.json", "p.yaml"):
        (tmp_path / name).write_bytes(b'\xef\xbb\xbf{"Question": {"text": "a"}}')
        prompt = load_prompt(f"{__name__}:template", tmp_path / name)
        assert prompt.params[Question] == Question("a")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"---\nname: plans\n---\n\nA caf\xe9.\n", "'utf-8' codec can't decode"),
        ("---\nname: plans\n---\n\nA.\n".encode("utf-16"), "'utf-8' codec can't decode"),
        (b"---\nname: plans\n---\n\nA\0.\n", "NUL"),
    ],
)
def test_unreadable_skill_is_reported_with_file_and_reason(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "SKILL.md").write_bytes(data)
    for folder in (tmp_path, tmp_path / "plans"):
        with pytest.warns(SkillWarning), pytest.raises(SkillError) as caught:
            load_prompt(str(folder))
        assert "plans/SKILL.md:1: " in str(caught.value)
        assert reason in str(caught.value)
