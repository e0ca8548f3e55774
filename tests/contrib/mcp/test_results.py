"""A server's answers as results of calls."""

from typing import Any

import pytest
from mcp.types import CallToolResult

from weakincentives.contrib.mcp.results import to_tool_result


def result_of(*texts: str, structured: Any = None, failed: bool = False) -> CallToolResult:
    content = [{"type": "text", "text": text} for text in texts]
    answer = {"content": content, "structuredContent": structured, "isError": failed}
    return CallToolResult.model_validate(answer)


@pytest.mark.parametrize(
    ("texts", "structured", "read"),
    [
        (["hello"], None, "hello"),
        ([], None, "The tool answered without content."),
        ([""], None, "The tool answered without content."),
        (['{"a": 1}'], {"a": 1}, '{"a": 1}'),
        (["3"], {"result": 3}, "3"),
        (["hello"], {"result": "hello"}, "hello"),
        (["a word first", '{"a": 1}'], {"a": 1}, 'a word first\n\n{"a": 1}'),
        (["about one"], {"a": 1}, 'about one\n\n{"a":1}'),
        (["hello"], {"result": "other"}, 'hello\n\n{"result":"other"}'),
    ],
)
def test_structured_content_appears_once_in_the_result(
    texts: list[str], structured: dict[str, object] | None, read: str
) -> None:
    result = to_tool_result(result_of(*texts, structured=structured))
    assert result.value == structured
    assert result.success
    assert result.content() == read


def test_structured_content_without_text_is_the_result() -> None:
    result = to_tool_result(result_of(structured={"a": 1}))
    assert (result.message, result.content().strip()) == ("", '{"a":1}')


def test_unreadable_resource_is_named() -> None:
    resource = {"uri": "file:///c", "blob": "not base64"}
    content = [{"type": "resource", "resource": resource}]
    result = to_tool_result(CallToolResult.model_validate({"content": content}))
    assert result.message == "[resource file:///c of unknown type, which cannot be read]"
    assert result.media == []


def test_resource_without_a_type_is_detected_as_an_image() -> None:
    resource = {"uri": "file:///d", "blob": "iVBORw0KGgo="}
    content = [{"type": "resource", "resource": resource}]
    (image,) = to_tool_result(CallToolResult.model_validate({"content": content})).media
    assert (image.mime, image.name) == ("image/png", "file:///d")


def test_result_marked_as_an_error_is_unsuccessful() -> None:
    result = to_tool_result(result_of("no", failed=True))
    assert (result.success, result.message) == (False, "no")
