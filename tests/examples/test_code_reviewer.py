"""The code reviewer: guidelines open with their tools, and a finding is at an existing line."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from examples.code_reviewer.__main__ import main
from examples.code_reviewer.prompt import SAMPLE, Finding, Fix, Review, fixing, reviewer, sample
from support.commands import process
from support.example_agents import ROOT, answers, run_example, scripted
from support.scripted_server import Call, Say, ScriptedServer
from support.terminals import Terminal
from weakincentives.evaluation.approval import Approve, Decision, Deny, Preview
from weakincentives.evaluation.suspension import Suspension
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


def test_opened_topic_provides_its_tool_and_findings_are_typed_state() -> None:
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
            "Not reported: 'shop/rules.py' has 10 lines, so line 12 does not exist. Read the file.",
        ),
        ({"line": 0}, "so line 0 does not exist"),
        ({"path": "shop/rule.py"}, "Not reported: there is no 'shop/rule.py'; list its directory"),
        ({"path": "../../secret.py"}, "Not reported: '../../secret.py' holds '..'"),
        ({"path": "/etc/passwd"}, "Not reported: '/etc/passwd' is absolute"),
        ({"severity": "grave"}, "'blocker', 'major' or 'minor'"),
    ],
)
def test_finding_at_an_invalid_location_is_rejected_and_can_be_corrected(
    wrong: dict[str, object], answer: str
) -> None:
    session, _ = review(report(**wrong), report(), DONE)
    first, second = answers(session)
    assert answer in first
    assert second == 'Reported at: return eval(rule, {"price": price})'
    assert session[Finding].all() == (FOUND,)


def test_form_feed_does_not_start_a_new_line(tmp_path: Path) -> None:
    (tmp_path / "paged.py").write_text("import os\n\f\nrun = os.system\n")
    session, _ = review(report(path="paged.py", line=3), DONE, root=tmp_path)
    assert answers(session) == ["Reported at: run = os.system"]


def test_answer_that_is_not_a_review_is_repaired() -> None:
    _, output = review(Say('{"verdict": "fine", "summary": ""}'), DONE)
    assert output == Review("request changes", "One defect.")


def test_invalid_python_files_are_named_and_hidden_files_are_skipped(tmp_path: Path) -> None:
    root = shutil.copytree(SAMPLE, tmp_path / "project")
    (root / "broken.py").write_text("def (:\n")
    (root / ".venv").mkdir()
    (root / ".venv/eval.py").write_text("eval('1')\n")
    opening = Say(calls=(Call("read_section", {"section_key": "guidelines.security"}),))
    session, _ = review(opening, Say(calls=(Call("check_security"),)), DONE, root=root)
    assert answers(session)[1].startswith("2 places. Not Python: broken.py.\n")


def test_review_does_not_change_the_project(tmp_path: Path) -> None:
    root = shutil.copytree(SAMPLE, tmp_path / "project")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    session, _ = review(
        Say(calls=(Call("write_file", {"path": "new.py", "content": ""}),)), DONE, root=root
    )
    assert answers(session)[0].startswith("Unknown tool 'write_file'")
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_command_prints_review_and_findings_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ScriptedServer(report(), DONE) as server:
        assert main(["--json", "--model", "m", "--base-url", server.openai_url]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "review": {"verdict": "request changes", "summary": "One defect."},
        "findings": [asdict(FOUND)],
    }


def test_unreachable_server_exits_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "m", "--base-url", "http://127.0.0.1:9/v1"]) == 1
    assert "check base_url" in capsys.readouterr().err


def test_missing_folder_is_reported_in_one_line() -> None:
    process = run_example("code_reviewer", "nowhere")
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].endswith("'nowhere' is not a folder")


def test_folder_without_python_files_is_rejected(tmp_path: Path) -> None:
    process = run_example("code_reviewer", str(tmp_path))
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1].endswith("has no Python file to review")


def test_offline_run_opens_each_topic_and_reports_its_findings() -> None:
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


def test_prompts_have_no_findings() -> None:
    for template in (sample(), fixing(SAMPLE)):
        report = analyze(template)
        assert report.findings == ()
        assert report.states == 5


# --- Fixes

SWALLOWED = Fix(
    "shop/rules.py",
    "    except Exception:\n        pass",
    "    except ValueError:\n        pass",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return shutil.copytree(SAMPLE, tmp_path / "project")


def fix(root: Path, decision: Decision, **changes: object) -> tuple[str, list[Preview]]:
    """Returns the answer to a proposed fix, and the preview that the approver has seen."""
    shown: list[Preview] = []

    def approver(preview: Preview) -> Decision:
        shown.append(preview)
        assert tree(root) == before
        return decision

    before, session = tree(root), Session()
    propose = Say(calls=(Call("propose_fix", {**asdict(SWALLOWED), **changes}),))
    with ScriptedServer(propose, DONE) as server:
        scripted(server).evaluate(fixing(root).bind(), session=session, approver=approver)
    return answers(session)[0], shown


def tree(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_text() for path in files}


def test_approved_fix_changes_the_file_exactly_as_previewed(project: Path) -> None:
    before = tree(project)
    answer, [preview] = fix(project, Approve())
    assert answer == "Changed shop/rules.py."
    [change] = preview.changes
    assert (change.name, change.action) == ("shop/rules.py", "change")
    assert "-    except Exception:\n+    except ValueError:\n" in change.diff
    text = before["shop/rules.py"].replace("except Exception:", "except ValueError:")
    assert tree(project) == {**before, "shop/rules.py": text}


def test_denied_fix_changes_nothing(project: Path) -> None:
    before = tree(project)
    answer, shown = fix(project, Deny("Too narrow."))
    assert answer == "A person denied this call. Too narrow."
    assert (len(shown), tree(project)) == (1, before)


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        ({"old": "nowhere"}, "Not proposed: `old` is in 'shop/rules.py' 0 times."),
        ({"old": "e"}, "Not proposed: `old` is in 'shop/rules.py'"),
        ({"old": ""}, "Not proposed: `old` is in 'shop/rules.py' 0 times."),
        ({"new": "    except:\n"}, "Not proposed: it would not be Python"),
        ({"path": "shop/rule.py"}, "Not proposed: there is no 'shop/rule.py'"),
        ({"path": "../outside.py"}, "Not proposed: '../outside.py' holds '..'"),
        ({"path": ".env"}, "Not proposed: there is no '.env'"),
        ({"path": "link.py"}, "Not proposed: "),
    ],
)
def test_invalid_fix_is_previewed_as_failed(
    project: Path, wrong: dict[str, object], answer: str
) -> None:
    outside = project.parent / "outside.py"
    outside.write_text("    except Exception:\n        pass")
    (project / "link.py").symlink_to(outside)
    (project / ".env").write_text(outside.read_text())
    before = tree(project)
    told, [preview] = fix(project, Approve(), **wrong)
    assert told.startswith(answer)
    assert (preview.success, preview.changes, tree(project)) == (False, (), before)


def test_hidden_files_are_not_visible_in_fix_mode(project: Path) -> None:
    (project / ".env").write_text("KEY=secret")
    (project / ".venv").mkdir()
    (project / ".venv/eval.py").write_text("eval('1')\n")
    calls = (
        Call("list_directory"),
        Call("read_file", {"path": ".env"}),
        Call("read_file", {"path": ".venv/eval.py"}),
        Call("grep", {"pattern": "secret|eval"}),
    )
    session = Session()
    with ScriptedServer(Say(calls=calls), DONE) as server:
        scripted(server).evaluate(fixing(project).bind(), session=session)
        assert b"KEY=" not in server.requests[1].body
    listed, env, venv, found = answers(session)
    assert ".env" not in listed
    assert ".venv" not in listed
    assert ["there is no" in env, "there is no" in venv] == [True, True]
    assert "shop/rules.py" in found
    assert ".venv" not in found


def test_user_approves_a_fix_in_the_terminal(project: Path) -> None:
    before = tree(project)
    screen = Terminal(ROOT, str(project), "--fix", module="examples.code_reviewer")
    try:
        assert "-        pass\n+        raise\n" in screen.read_until("as JSON: ")
        assert tree(project) == before
        screen.keys("y\n")
        assert screen.read_until("request changes:")
        screen.end()
    finally:
        screen.close()
    changed = {path for path, text in tree(project).items() if text != before[path]}
    assert changed == {"shop/rules.py"}


def test_fix_without_a_terminal_is_suspended_in_a_file_for_wink_approve(project: Path) -> None:
    before, stored = tree(project), project.parent / "review.json"
    command = "code_reviewer", project, "--fix", "--run", stored
    waiting = run_example(*command)
    assert waiting.returncode == 3, waiting.stderr
    assert f"wink approve {stored}, then the same command again" in waiting.stderr
    listed = process(project.parent, "approve", "review.json")
    assert "+        raise" in listed.stderr
    assert run_example(*command).returncode == 3  # no decision has been made yet
    [call_id] = [preview.call_id for preview in Suspension.from_json(stored.read_text()).pending]
    assert tree(project) == before
    assert process(project.parent, "approve", "review.json", "--yes", call_id).returncode == 0
    done = run_example(*command)
    assert done.returncode == 0, done.stderr
    assert "request changes: The checks of four topics gave 7 findings." in done.stdout
    text = before["shop/rules.py"].replace("        pass", "        raise")
    assert tree(project) == {**before, "shop/rules.py": text}
    assert not stored.exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--fix"], "--fix changes files: name the folder"),
        ([SAMPLE, "--fix", "--run", ROOT / "pyproject.toml"], "is not a suspended run"),
    ],
)
def test_fix_requires_a_folder_and_a_suspended_run(arguments: list[object], problem: str) -> None:
    process = run_example("code_reviewer", *arguments)
    assert process.returncode == 2
    assert problem in process.stderr
