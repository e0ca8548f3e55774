"""L9: the compiled substitution equals string.Template's, including errors."""

import pickle
import string
import textwrap
from collections.abc import Callable
from dataclasses import InitVar, dataclass, fields, is_dataclass, make_dataclass
from itertools import dropwhile
from typing import Any, ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weakincentives.prompt import MarkdownSection
from weakincentives.prompt.text_template import CompiledTemplate, dedented

NAMES = ("a", "b", "_x1", "Name", "é", "class_", "items")

# Text built from parts with a meaning in templates, so that odd combinations are frequent.
PIECES = st.sampled_from(
    [
        "$",
        "$$",
        "${",
        "}",
        "{",
        "%",
        "%s",
        "%(a)s",
        "%%",
        " ",
        "\n",
        "é",
        "1",
        *NAMES,
        *(f"${n}" for n in NAMES),
    ]
    + [f"${{{name}}}" for name in NAMES]
)
SOURCES = st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=12)
VALUES = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["$a", "${b}", "%s", "%", "$$"]),
    st.integers(),
    st.none(),
    st.tuples(st.integers()),
    st.dictionaries(st.sampled_from(["a", "b"]), st.integers(), max_size=1),
    st.builds(object),
)


def params_of(values: dict[str, object]) -> object:
    kind = make_dataclass("Params", values)
    return kind(**values)


def outcome(call: Callable[[], str]) -> tuple[str, object]:
    try:
        return "text", call()
    except (KeyError, ValueError) as error:
        return type(error).__name__, error.args


def oracle(source: str, params: object) -> tuple[str, object]:
    names = [f.name for f in fields(params)] if is_dataclass(params) else []
    return outcome(
        lambda: string.Template(source).substitute({name: getattr(params, name) for name in names})
    )


@pytest.mark.claim("C-05", "PR-24")
@given(SOURCES, st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5))
@settings(max_examples=400)
@example("$a $", {})
@example("$ $a", {})
@example("$a$b$$%s", {"a": "%s", "b": ("x",)})
@example("$items", {})
@example("${a", {"a": 1})
def test_compiled_substitution_matches_string_template_including_errors(
    source: str, values: dict[str, object]
) -> None:
    params = params_of(values)
    compiled = CompiledTemplate(source)
    expected = oracle(source, params)
    assert outcome(lambda: compiled.substitute(params)) == expected
    assert outcome(lambda: compiled.substitute(params)) == expected  # also when the type is known


@given(
    SOURCES,
    st.lists(
        st.dictionaries(st.sampled_from(NAMES), st.integers(), max_size=4), min_size=2, max_size=4
    ),
)
@settings(max_examples=100)
def test_compiled_template_can_substitute_params_of_many_types(
    source: str, many: list[dict[str, object]]
) -> None:
    compiled = CompiledTemplate(source)
    for values in [*many, *many]:
        params = params_of(values)
        assert outcome(lambda params=params: compiled.substitute(params)) == oracle(source, params)  # type: ignore[misc]


@given(SOURCES)
def test_names_and_malformed_predict_the_result_of_substitution(source: str) -> None:
    compiled = CompiledTemplate(source)
    template = string.Template(source)
    assert (compiled.malformed is None) is template.is_valid()
    if template.is_valid():
        assert compiled.names == frozenset(template.get_identifiers())
    else:
        assert compiled.malformed is not None
        assert source[compiled.malformed] == "$"


@pytest.mark.parametrize("name", ["__class__", "__doc__", "method", "shared", "computed", "given"])
def test_attributes_that_are_not_fields_are_not_placeholders(name: str) -> None:
    @dataclass
    class Params:
        """Not a field."""

        given: InitVar[int] = 1
        shared: ClassVar[int] = 2
        own: int = 3

        @property
        def computed(self) -> int:
            return 4

        def method(self) -> None: ...

    compiled = CompiledTemplate(f"${name} $own")
    for _ in range(2):
        assert outcome(lambda: compiled.substitute(Params())) == ("KeyError", (name,))
    assert CompiledTemplate("$own").substitute(Params()) == "3"


@pytest.mark.parametrize("params", [None, 5, "text"])
def test_value_that_is_not_a_dataclass_instance_has_no_fields(params: object) -> None:
    assert outcome(lambda: CompiledTemplate("$real").substitute(params)) == ("KeyError", ("real",))
    assert CompiledTemplate("plain $$ %s").substitute(params) == "plain $ %s"


def test_error_raised_by_a_values_str_propagates() -> None:
    class Broken:
        def __str__(self) -> str:
            raise AttributeError("broken")

    with pytest.raises(AttributeError, match="broken"):
        CompiledTemplate("$a").substitute(params_of({"a": Broken()}))


@given(SOURCES)
@settings(max_examples=50)
def test_compiled_template_can_be_pickled(source: str) -> None:
    compiled: Any = CompiledTemplate(source)
    copy = pickle.loads(pickle.dumps(compiled))
    assert copy.source == compiled.source
    params = params_of(dict.fromkeys(NAMES, "x"))
    assert outcome(lambda: copy.substitute(params)) == outcome(lambda: compiled.substitute(params))


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("    code\n\ntext\n", "    code\n\ntext"),
        ("\n        code\n\n    text\n    ", "    code\n\ntext"),
        ("\r\n    code\r\ntext\r\n", "    code\r\ntext"),
        ("  \n\t\n  key: 1\n  list:\n    - x\n", "key: 1\nlist:\n  - x"),
        ("First.\n    Second.\n", "First.\n    Second."),
        (" \n \n", ""),
    ],
)
def test_dedented_keeps_extra_indentation_of_the_first_line(text: str, body: str) -> None:
    assert dedented(text) == body
    assert MarkdownSection(title="T", template=text, summary=text).template == body


@given(st.text(" \tab\n"))
def test_dedented_removes_the_indentation_that_textwrap_removes(text: str) -> None:
    lines = textwrap.dedent(text).rstrip().splitlines(keepends=True)
    assert dedented(text) == "".join(dropwhile(str.isspace, lines))
