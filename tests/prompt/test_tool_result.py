"""Tool results: their content, and the part that the model receives."""

import inspect
import json
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives import serde
from weakincentives.errors import SerdeError
from weakincentives.prompt import ToolRenderableResult, ToolResult


@dataclass(frozen=True)
class Found:
    url: str
    note: str | None = None


@dataclass
class Unhashable:
    items: list[str]


@pytest.mark.claim("TL-01", "TL-02")
def test_tool_result_has_five_fields_and_requires_only_message() -> None:
    assert [field.name for field in fields(ToolResult)] == [
        "message",
        "value",
        "success",
        "exclude_value_from_context",
        "media",
    ]
    result = ToolResult(message="m", value=Found("u"))
    assert (result.success, result.exclude_value_from_context) == (True, False)
    assert ToolResult[Found](message="m", value=Found("u")) == result
    assert ToolResult(message="m") == ToolResult("m", None)


@pytest.mark.claim("TL-05")
@given(st.builds(Found, st.text(), st.none() | st.text()))
def test_value_is_rendered_as_json_without_nones(value: Found) -> None:
    rendered = ToolResult(message="m", value=value).render()
    assert json.loads(rendered) == serde.dump(value, exclude_none=True)
    assert ("note" in json.loads(rendered)) is (value.note is not None)


class Table:
    def __init__(self, text: Any) -> None:
        self.text = text

    def render(self) -> str:
        return self.text  # type: ignore[no-any-return]


@pytest.mark.claim("TL-04", "TL-06")
def test_render_method_of_a_value_replaces_its_json() -> None:
    assert isinstance(Table("a table"), ToolRenderableResult)
    assert not isinstance(Found("u"), ToolRenderableResult)
    assert ToolResult(message="m", value=Table("a table")).render() == "a table"


@pytest.mark.claim("TL-07")
def test_render_that_does_not_return_a_string_raises_type_error() -> None:
    with pytest.raises(TypeError, match=r"Table\.render\(\) must return a string, got int"):
        ToolResult(message="m", value=Table(1)).render()


@pytest.mark.claim("C-31", "TL-10")
def test_result_without_a_value_renders_as_an_empty_string() -> None:
    assert ToolResult(message="m").render() == ""
    assert ToolResult[Found](message="m", success=False).content() == "m"


@pytest.mark.claim("C-31", "TL-08")
def test_content_is_message_and_value_unless_excluded_or_empty() -> None:
    value = Table("a table")
    assert ToolResult("m", value).content() == "m\n\na table"
    assert ToolResult("m", value, exclude_value_from_context=True).content() == "m"
    assert ToolResult("m", Table("")).content() == "m"


@pytest.mark.claim("U-14")
def test_value_that_is_not_json_serializable_raises_serde_error() -> None:
    with pytest.raises(SerdeError):
        ToolResult("m", Unhashable([object()])).render()  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


@pytest.mark.claim("TL-11")
def test_rendering_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from dataclasses import dataclass\n"
        "from weakincentives.prompt import ToolResult\n"
        "@dataclass\n"
        "class Bag:\n"
        "    words: frozenset[str]\n"
        "    counts: dict[str, int]\n"
        "print(ToolResult('m', Bag(frozenset('abcdefgh'), {'b': 1, 'a': 2})).render())"
    )
    source = Path(inspect.getfile(ToolResult)).parents[2]
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert texts == {'{"words":["a","b","c","d","e","f","g","h"],"counts":{"b":1,"a":2}}\n'}
