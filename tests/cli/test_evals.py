"""`wink eval-schema` prints the JSON Schema of a prompt's cases."""

import json
from pathlib import Path

import pytest
from jsonschema_rs import validator_for

from support.commands import Wink, write_shop


@pytest.fixture
def wink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Wink:
    write_shop(tmp_path)
    return Wink(tmp_path, monkeypatch, capsys)


def test_eval_schema_prints_the_schema_of_the_prompts_cases(wink: Wink) -> None:
    schema = json.loads(wink("eval-schema", "shop:template").stdout)
    case = {"id": "a", "params": {"text": "Hello"}, "expected": {"text": "Hi"}}
    assert validator_for(schema).is_valid([case])
    assert not validator_for(schema).is_valid([case | {"expected": {"txt": "Hi"}}])


def test_eval_schema_of_something_else_is_a_usage_error(wink: Wink) -> None:
    done = wink("eval-schema", "shop:scripted")
    assert done.returncode == 2
    assert "must be a PromptTemplate" in done.stderr
