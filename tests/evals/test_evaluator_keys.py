"""An evaluator's key changes with everything that determines its scores, and only with that."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import SerdeError
from weakincentives.evals.cases import Case
from weakincentives.evals.evaluators import called, contains, equals
from weakincentives.evals.judges import Judged, PassOrFail, Verdict, judge
from weakincentives.evals.keys import case_digests, digest, key_of, prompt_parts
from weakincentives.evals.scores import EvalRun, Evaluator, Scale
from weakincentives.model_settings import ModelSettings
from weakincentives.prompt import (
    MarkdownSection,
    OutputRejected,
    Prompt,
    PromptTemplate,
    ToolContext,
)
from weakincentives.prompt.overrides.model import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.testing import ScriptedAdapter

SOURCE = """
import re
LIMIT = 5
PATTERN = re.compile("tea")
def helper(text):
    return len(text) < LIMIT
def make(word):
    def check(case, run, bonus=1):
        return helper(run.text) and word in run.text and PATTERN.search(run.text)
    return check
check = make("tea")
short = (
    lambda case, run: helper(run.text) and any(helper(word) for word in [run.text])
    and len(run.text) < 3
)
"""


def module(source: str, tmp_path: Path) -> dict[str, Any]:
    """Imports `source` from a new file, whose source can be read."""
    number = len(list(tmp_path.iterdir()))
    path = tmp_path / f"evaluators_{number}.py"
    path.write_text(source)
    values: dict[str, Any] = {"__name__": "my_evaluators"}
    exec(compile(source, str(path), "exec"), values)  # noqa: S102 - source of this test
    return values


def key(function: Callable[..., Any], **options: Any) -> str:
    return key_of(Evaluator(function=function, name="it", **options))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 5", "LIMIT = 6"),
        ('"tea")\ndef', '"tea", re.I)\ndef'),
        ("< LIMIT", "<= LIMIT"),
        ("bonus=1", "bonus=2"),
        ('make("tea")', 'make("milk")'),
        ("and word in", "and word not in"),
    ],
)
def test_key_changes_with_source_closure_defaults_and_constants(
    old: str, new: str, tmp_path: Path
) -> None:
    assert SOURCE.count(old) == 1
    first, same = (key(module(SOURCE, tmp_path)["check"]) for _ in range(2))
    assert first == same
    assert key(module(SOURCE.replace(old, new), tmp_path)["check"]) != first


VALUES = """
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
LIMITS = {"polite": [1, 2]}
WORDS = {"tea", "milk"}
class Base:
    offset = 0
    def counted(self, text):
        return len(text) + self.offset
class Counter(Base):
    def __init__(self, least):
        self.least = least
    def is_long(self, text):
        return self.counted(text) >= self.least
    @property
    def doubled(self):
        return self.least * 2
    @staticmethod
    def first(text):
        return text[:4]
    @cached_property
    def tripled(self):
        return self.least * 3
class Slots:
    __slots__ = ("size",)
    def __init__(self):
        self.size = 30
@dataclass(frozen=True, slots=True)
class Rule:
    word: str = "tea"
    def fits(self, text):
        return self.word in text
class Level(Enum):
    LOW = 40
COUNTER = Counter(10)
SLOTS = Slots()
RULES = [Rule("milk")]
class Unused:
    limit = 50
@lru_cache
def cached(text):
    return text.upper()
def joined(text, mark):
    return text + mark
marked = partial(joined, mark="!")
def check(case, run):
    return (
        LIMITS, WORDS, COUNTER.is_long(run.text), SLOTS.size, RULES[0].fits(run.text), Rule(),
        Level.LOW, cached(run.text), marked(run.text),
    )
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[1, 2]", "[1, 3]"),
        ('{"tea", "milk"}', '{"tea"}'),
        ("Counter(10)", "Counter(11)"),
        ("text) >= self.least", "text) > self.least"),
        ("least * 2", "least * 4"),
        ("[:4]", "[:5]"),
        ("least * 3", "least * 5"),
        ("offset = 0", "offset = 1"),
        ("len(text) + ", "len(text) - "),
        ("size = 30", "size = 31"),
        ('Rule("milk")', 'Rule("tea")'),
        ('word: str = "tea"', 'word: str = "coffee"'),
        ("self.word in text", "self.word not in text"),
        ("LOW = 40", "LOW = 41"),
        ("text.upper()", "text.lower()"),
        ("text + mark", "mark + text"),
        ('mark="!"', 'mark="?"'),
    ],
)
def test_key_changes_with_values_objects_and_classes_of_the_module(
    old: str, new: str, tmp_path: Path
) -> None:
    assert VALUES.count(old) == 1
    first, same = (key(module(VALUES, tmp_path)["check"]) for _ in range(2))
    assert first == same
    assert key(module(VALUES.replace(old, new), tmp_path)["check"]) != first
    assert key(module(VALUES.replace("limit = 50", "limit = 51"), tmp_path)["check"]) == first


def test_key_of_a_method_changes_with_the_methods_that_it_calls(tmp_path: Path) -> None:
    source = """
class Short:
    def size(self, run):
        return len(run.text)
    def check(self, case, run):
        return self.size(run) < 5
    def __call__(self, case, run):
        return self.size(run) < 5
"""
    for name in ("check", "__call__"):
        texts = [source, source, source.replace("len(run.text)", "run.seconds")]
        keys = [key(getattr(module(text, tmp_path)["Short"](), name)) for text in texts]
        assert keys[0] == keys[1] != keys[2]
        objects = [key(module(text, tmp_path)["Short"]()) for text in texts]
        assert objects[0] == objects[1] != objects[2]


def test_key_is_new_each_time_for_what_cannot_be_described() -> None:
    itself: list[Any] = []
    itself.append(itself)
    assert key(partial(limited, limit=itself)) != key(partial(limited, limit=itself))


@pytest.mark.parametrize("has_source", [True, False])
def test_key_of_a_lambda_changes_with_its_code(has_source: bool, tmp_path: Path) -> None:
    def lambda_key(source: str) -> str:
        values: dict[str, Any] = {"__name__": "shell"}
        if has_source:
            values = module(source, tmp_path)
        else:
            exec(source, values)  # noqa: S102 - source of this test
        return key(values["short"])

    assert lambda_key(SOURCE) == lambda_key(SOURCE)
    assert lambda_key(SOURCE) != lambda_key(SOURCE.replace("< 3", "< 4"))
    assert lambda_key(SOURCE) != lambda_key(SOURCE.replace("LIMIT = 5", "LIMIT = 6"))
    assert lambda_key(SOURCE) == lambda_key(SOURCE.replace('make("tea")', 'make("milk")'))


def test_key_of_the_librarys_own_functions_does_not_change_with_their_source(
    tmp_path: Path,
) -> None:
    """Otherwise, each release would make all earlier results incomparable."""

    def own_key(source: str) -> str:
        function = module(source, tmp_path)["check"]
        function.__module__ = "weakincentives.evals.evaluators"
        return key(function)

    assert own_key(SOURCE) == own_key(SOURCE.replace("and word in", "and word not in"))
    assert own_key(SOURCE) != own_key(SOURCE.replace('make("tea")', 'make("milk")'))


def test_key_changes_with_keyword_defaults() -> None:
    def make(limit: int) -> Callable[..., bool]:
        def check(case: Case, run: EvalRun, *, most: int = limit) -> bool:
            return len(run.text) < most

        return check

    assert key(make(1)) != key(make(2))


def limited(case: Case, run: EvalRun, *, limit: object = 1) -> bool:
    return bool(limit)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.floats(0, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@given(PLAIN, PLAIN)
def test_keys_of_partials_are_equal_exactly_if_their_arguments_are(one: Any, other: Any) -> None:
    keys = [key(partial(limited, limit=limit)) for limit in (one, other)]
    assert (keys[0] == keys[1]) is (repr(one) == repr(other))


def test_key_changes_with_settings_bounds_and_on_failure_only() -> None:
    plain = Evaluator(function=limited, name="it")
    changed = [
        replace(plain, settings={"threshold": 1}),
        replace(plain, settings={"threshold": 2}),
        replace(plain, scale=Scale(bounds=(0, 1))),
        replace(plain, on_failure=True),
    ]
    assert len({key_of(one) for one in [plain, *changed]}) == 5
    unchanged = replace(plain, name="other", scale=Scale(higher_is_better=False, margin=0.1))
    assert key_of(unchanged) == key_of(plain)


@dataclass
class Longer:
    than: int

    def __call__(self, case: Case, run: EvalRun) -> bool:
        return len(run.text) > self.than

    def method(self, case: Case, run: EvalRun) -> bool:
        return len(run.text) > self.than


def test_keys_of_objects_and_methods_change_with_their_fields() -> None:
    keys = {key(Longer(1)), key(Longer(2)), key(Longer(1).method), key(Longer(2).method)}
    assert len(keys) == 4
    assert key(Longer(1)) in keys


@pytest.mark.parametrize("decorator", ["@dataclass", ""])
def test_key_of_a_callable_object_changes_with_its_source(decorator: str, tmp_path: Path) -> None:
    source = f"""
from dataclasses import dataclass
{decorator}
class Short:
    limit = 5
    def __call__(self, case, run):
        return len(run.text) < self.limit
"""
    texts = [source, source, source.replace("<", "<=")]
    keys = [key(module(text, tmp_path)["Short"]()) for text in texts]
    assert keys[0] == keys[1] != keys[2]


def test_keys_of_ready_made_evaluators_change_with_their_arguments() -> None:
    made = [
        equals(),
        equals("a"),
        contains("a"),
        called("a"),
        called("a", {"b": 1}),
        called("a", lambda case: {"b": 2}),
        called("a", lambda case: {"b": 3}),
    ]
    assert len({key_of(one) for one in made}) == len(made)
    assert key_of(contains("a")) == key_of(contains("a", name="other"))


def named(model: str) -> ScriptedAdapter:
    adapter = ScriptedAdapter([])
    adapter.model = model
    return adapter


def rejects_all(output: Verdict, /, *, context: ToolContext) -> None:
    raise OutputRejected("no")


def template(text: str = "Judge: $output", **options: Any) -> PromptTemplate[Verdict]:
    section = MarkdownSection[Judged](title="Task", key="task", template=text)
    values = {"ns": "tests", "key": "judge", "sections": [section], "output_type": Verdict}
    definition: Any = values | options
    return PromptTemplate(**definition)


def test_key_of_a_judge_changes_with_its_prompt_model_and_settings(tmp_path: Path) -> None:
    store = LocalPromptOverridesStore(tmp_path)
    store.upsert(
        template().descriptor, SectionOverride(("task",), body="Be strict: $output"), tag="strict"
    )
    made = [
        judge(template(), model="openai:gpt-5.2"),
        judge(template(), model="openai:gpt-5.2-mini"),
        judge(template("Grade: $output"), model="openai:gpt-5.2"),
        judge(template(settings=ModelSettings(temperature=1)), model="openai:gpt-5.2"),
        judge(template(output_type=PassOrFail), model="openai:gpt-5.2"),
        judge(
            Prompt(template(), overrides_store=store, overrides_tag="strict"),
            model="openai:gpt-5.2",
        ),
        judge(template(), model=ScriptedAdapter([])),
        judge(template(), model=ScriptedAdapter([], settings=ModelSettings(seed=1))),
        judge(template(), model=named("gpt-5.2")),
        judge(template(accept=rejects_all), model=ScriptedAdapter([])),
        judge(template(), params=lambda case, run: Judged("", run.text, "")),
        judge("The answer is polite."),
        judge("The answer is short."),
    ]
    assert len({key_of(one) for one in made}) == len(made)
    assert key_of(judge(template())) == key_of(judge(template()))


def test_key_of_a_judge_without_a_model_changes_with_the_default_model() -> None:
    without, own = judge(template()), judge(template(), model="openai:gpt-5.2")
    models = [None, "openai:gpt-5.2", "openai:gpt-5.2-mini"]
    assert len({key_of(without, model) for model in models}) == 3
    assert len({key_of(own, model) for model in models}) == 1
    assert len({key_of(equals(), model) for model in models}) == 1


def test_key_of_a_judge_changes_when_its_override_changes(tmp_path: Path) -> None:
    store = LocalPromptOverridesStore(tmp_path)
    one = judge(Prompt(template(), overrides_store=store))
    before = key_of(one)
    store.upsert(template().descriptor, SectionOverride(("task",), body="Be strict: $output"))
    assert key_of(one) != before


def test_key_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{SOURCE}{VALUES.replace('def check', 'def checks')}")
    program = (
        "from mine import *; from functools import partial\n"
        "from weakincentives.evals.keys import digest, key_of\n"
        "from weakincentives.evals.scores import Evaluator\n"
        "function = partial(check, checks, words={*'abcdefgh'}, client=object())\n"
        "print(key_of(Evaluator(function=function, name='it')))"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(keys) == 1
    assert re.fullmatch(r"[0-9a-f]{16}\n", keys.pop())


def test_key_of_recursive_functions_and_cycles_ends() -> None:
    def check(case: Case, run: EvalRun) -> bool:
        return not check(case, run)

    late: Any = Longer(1)
    late.itself = late
    assert key(check)
    assert key(late)


def test_key_changes_with_a_template_in_a_closure() -> None:
    def make(used: PromptTemplate[Verdict]) -> Callable[..., bool]:
        return lambda case, run: used.key in run.text

    keys = [key(make(template(text))) for text in ("a", "a", "b")]
    assert keys[0] == keys[1] != keys[2]


@given(st.lists(st.builds(Longer, st.integers(0, 2)), max_size=4))
def test_digest_of_values_does_not_change_with_their_identity(values: list[Longer]) -> None:
    known = {value.than: value for value in values}
    assert digest(values) == digest([known[value.than] for value in values])


def test_digest_of_an_object_that_is_not_a_value_is_an_error() -> None:
    with pytest.raises(SerdeError):
        digest([object()])
    assert key(partial(limited, limit=object()))


TOOL = """
from dataclasses import dataclass
from enum import Enum
LIMIT = 5
SEEN = []
class Level(Enum):
    LOW = 40
@dataclass(frozen=True)
class Rule:
    word: str = "tea"
    def fits(self, text):
        return self.word in text
class Store:
    rows = [60]
STORE = Store()
RULE = Rule("milk")
def helper(text):
    return len(text) < LIMIT
def find(text: str) -> bool:
    '''Finds a text.'''
    SEEN.append(text)
    return helper(text) and RULE.fits(text) and bool(Level.LOW) and text not in STORE.rows
"""


def tool_key(source: str, tmp_path: Path) -> str:
    section = MarkdownSection(
        title="Task", key="task", template="Go.", tools=[module(source, tmp_path)["find"]]
    )
    return prompt_parts(Prompt(PromptTemplate(ns="tests", key="tool", sections=[section])))[
        "tool find"
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 5", "LIMIT = 6"),
        ("LOW = 40", "LOW = 41"),
        ('Rule("milk")', 'Rule("tea")'),
        ("self.word in text", "self.word not in text"),
        ("len(text) < ", "len(text) <= "),
    ],
)
def test_key_of_a_tool_changes_with_its_module_but_not_with_what_a_run_can_change(
    old: str, new: str, tmp_path: Path
) -> None:
    assert TOOL.count(old) == 1
    first = tool_key(TOOL, tmp_path)
    assert tool_key(TOOL.replace(old, new), tmp_path) != first
    same = TOOL.replace("SEEN = []", "SEEN = [1]").replace("[60]", "[61]")
    assert tool_key(same.replace("def find", "# a comment\ndef find"), tmp_path) == first


@dataclass
class Stock:
    counts: dict[str, int]


def test_key_does_not_change_with_the_order_of_mappings_that_no_template_shows() -> None:
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert digest(ModelSettings(extra=one)) == digest(ModelSettings(extra=other))
    counts = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]
    states = [Case(id="1", state=(Stock(it),), expected=it, metadata={**it}) for it in counts]
    assert case_digests(states[0]) == case_digests(states[1])
    params = [Case(id="1", params=(Stock(it),)) for it in counts]
    assert case_digests(params[0]) != case_digests(params[1])
    assert digest({"a": 1}) != digest({"a": 2})


def test_key_is_the_same_with_each_version_of_python_and_formatting() -> None:
    def check(case: Case, run: EvalRun) -> bool:
        # a baseline that another Python has written stays comparable
        found = [f"{word!r:>{len(word)}} {word + 'x'}" for word in run.text.split() if word]
        return bool(found) and all(word for word in found)

    assert key_of(Evaluator(function=check, name="it")) == "dff731291b71e9c9"
