"""The code reviewer: guidelines open with their tools, and a finding is at an existing line."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from examples.code_reviewer.__main__ import main
from examples.code_reviewer.prompt import SAMPLE, Finding, Review, reviewer, sample
from support.example_agents import answers, run_example, scripted
from support.scripted_server import Call, Say, ScriptedServer
from weakincentives.inspection.analysis import analyze
from weakincentives.runtime.events import ToolsInjected
from weakincentives.runtime.session import Session

DONE = Say('{"verdict": "request changes", "summary": "One defect."}')
FOUND = Finding("shop/rules.py", 7, "blocker", "eval", "Rules are run.", "Parse them.")


def report(**changes: object) -> Say:
    return Say(calls=(Call("report_finding", {**asdict(FOUND), **changes}),))


def review(*steps: Say, root: Path = SAMPLE) -> tuple[Session, Review | None]:
    session = Session()
    with ScriptedServer(*steps) as server:
        response = scripted(server).evaluate(reviewer(root).bind(), session=session)
    return session, response.output


def test_a_topic_brings_its_tool_and_findings_are_typed_state() -> None:
    opening = Say(calls=(Call("read_section", {"section_key": "guidelines.security"}),))
    session, output = review(opening, Say(calls=(Call("check_security"),)), report(), DONE)
    assert [event.tool_names for event in session[ToolsInjected]] == [("check_security",)]
    assert '"path":"shop/rules.py","line":7' in answers(session)[1]
    assert session[Finding].all() == (FOUND,)
    assert output == Review("request changes", "One defect.")


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (
            {"line": 12},
            "Not reported: 'shop/rules.py' has 10 lines, so there is no line 12. Read the file.",
        ),
        ({"line": 0}, "so there is no line 0"),
        ({"path": "shop/rule.py"}, "Not reported: there is no 'shop/rule.py'; list its directory"),
        ({"path": "../../secret.py"}, "Not reported: '../../secret.py' holds '..'"),
        ({"path": "/etc/passwd"}, "Not reported: '/etc/passwd' is absolute"),
        ({"severity": "grave"}, "'blocker', 'major' or 'minor'"),
    ],
)
def test_a_finding_at_a_place_that_is_none_is_refused_and_can_be_mended(
    wrong: dict[str, object], answer: str
) -> None:
    session, _ = review(report(**wrong), report(), DONE)
    first, second = answers(session)
    assert answer in first
    assert second == 'Reported at: return eval(rule, {"price": price})'
    assert session[Finding].all() == (FOUND,)


def test_lines_count_as_python_counts_them(tmp_path: Path) -> None:
    (tmp_path / "paged.py").write_text("import os\n\f\nrun = os.system\n")
    session, _ = review(report(path="paged.py", line=3), DONE, root=tmp_path)
    assert answers(session) == ["Reported at: run = os.system"]


def test_an_answer_that_is_no_review_is_repaired() -> None:
    _, output = review(Say('{"verdict": "fine", "summary": ""}'), DONE)
    assert output == Review("request changes", "One defect.")


def test_files_that_are_no_python_are_named_and_hidden_ones_stay_unseen(tmp_path: Path) -> None:
    root = shutil.copytree(SAMPLE, tmp_path / "project")
    (root / "broken.py").write_text("def (:\n")
    (root / ".venv").mkdir()
    (root / ".venv/eval.py").write_text("eval('1')\n")
    opening = Say(calls=(Call("read_section", {"section_key": "guidelines.security"}),))
    session, _ = review(opening, Say(calls=(Call("check_security"),)), DONE, root=root)
    assert answers(session)[1].startswith("2 places. Not Python: broken.py.\n")


def test_a_review_leaves_the_project_as_it_was(tmp_path: Path) -> None:
    root = shutil.copytree(SAMPLE, tmp_path / "project")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    session, _ = review(
        Say(calls=(Call("write_file", {"path": "new.py", "content": ""}),)), DONE, root=root
    )
    assert answers(session)[0].startswith("Unknown tool 'write_file'")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_command_prints_verdict_and_findings_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ScriptedServer(report(), DONE) as server:
        assert main(["--json", "--model", "m", "--base-url", server.openai_url]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "review": {"verdict": "request changes", "summary": "One defect."},
        "findings": [asdict(FOUND)],
    }


def test_a_server_that_is_not_there_ends_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "m", "--base-url", "http://127.0.0.1:9/v1"]) == 1
    assert "check base_url" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_one_clear_line() -> None:
    process = run_example("code_reviewer", "nowhere")
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].endswith("'nowhere' is no folder")


def test_a_folder_without_python_files_is_not_approved(tmp_path: Path) -> None:
    process = run_example("code_reviewer", str(tmp_path))
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].endswith("has no Python file to review")


def test_the_offline_run_opens_each_topic_and_reports_what_the_checks_find() -> None:
    process = run_example("code_reviewer")
    assert process.returncode == 0, process.stderr
    assert "no LLM" in process.stdout.splitlines()[0]
    for topic in ("security", "correctness", "tests", "style"):
        assert f"+ tools from guidelines.{topic} check_{topic}" in process.stdout
    assert [line.partition(". ")[0] for line in process.stdout.splitlines()[-8:-1]] == [
        "shop/orders.py:18: blocker: SQL is put together from text",
        "shop/rules.py:7: blocker: text is run as code",
        "shop/orders.py:6: major: all calls share one default",
        "shop/rules.py:8: major: every error is swallowed",
        "shop/orders.py:16: minor: no test names 'find_orders'",
        "shop/rules.py:4: minor: no test names 'apply_rule'",
        "shop/orders.py:12: minor: 'total' has no docstring",
    ]


def test_nothing_in_its_prompt_misleads() -> None:
    report = analyze(sample())
    assert report.findings == ()
    assert report.states == 5
