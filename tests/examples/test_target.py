"""The demo's prompt is a target for `wink`, and has no findings."""

from examples.docs_assistant.target import offline, prompt
from weakincentives.inspection.analysis import analyze
from weakincentives.runtime.session import Session


def test_docs_assistant_prompt_has_no_findings() -> None:
    report = analyze(prompt())
    assert report.findings == ()
    assert report.states == 2


def test_offline_model_serves_while_its_context_is_open() -> None:
    with offline() as adapter:
        response = adapter.evaluate(prompt(), session=Session())
    assert response.output is not None
