"""The data cleaner: a tool that fails halfway leaves rows and records unchanged; the file is
written at the end.
"""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.data_cleaner.__main__ import main
from examples.data_cleaner.prompt import CLEANER, Conclusion, Table
from examples.data_cleaner.sheet import Sheet
from examples.data_cleaner.tools import Change, Drop
from support.example_agents import answers, run_example, scripted
from support.scripted_server import Call, Request, Say, ScriptedServer
from weakincentives.inspection.analysis import analyze
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

MESSY = "order,amount\nA, 1 200\nB,n/a\nC,7\n"
DONE = Say(json.dumps({"summary": "Mended.", "doubts": []}))
CONVERT = Say(calls=(Call("convert_column", {"column": "amount", "to": "number"}),))


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    path = tmp_path / "messy.csv"
    path.write_text(MESSY)
    return path


def clean(path: Path, *steps: Say) -> tuple[Session, list[str], Conclusion | None]:
    """Plays the steps: the session, the sheet's text after each call, and the answer."""
    sheet, session, texts = Sheet.read(path), Session(), list[str]()
    session.bus.subscribe(ToolInvoked, lambda _: texts.append(sheet.text()))
    prompt = CLEANER.bind(Table("messy.csv", "order, amount"), resources={Sheet: sheet})
    with ScriptedServer(*steps) as server:
        response = scripted(server).evaluate(prompt, session=session)
    return session, texts, response.output


def test_conversion_that_fails_halfway_restores_rows_and_changes(messy: Path) -> None:
    session, texts, _ = clean(messy, CONVERT, DONE)
    assert (
        "Row 2: 'n/a' is not a number. 1 cells had been changed; that is undone."
        in answers(session)[0]
    )
    assert texts == [MESSY]
    assert session[Change].all() == ()


def test_model_can_retry_and_changes_are_recorded_in_the_session(messy: Path) -> None:
    mend = Say(
        calls=(Call("set_cell", {"row": 2, "column": "amount", "value": "", "reason": "missing"}),)
    )
    session, texts, conclusion = clean(messy, CONVERT, mend, CONVERT, DONE)
    assert texts == [MESSY, MESSY.replace("n/a", ""), "order,amount\nA,1200\nB,\nC,7\n"]
    assert session[Change].all() == (
        Change(2, "amount", "n/a", "", "missing"),
        Change(1, "amount", " 1 200", "1200", "written as number"),
    )
    assert conclusion == Conclusion("Mended.", [])


def test_drop_rows_drops_nothing_if_any_row_is_missing(messy: Path) -> None:
    drop = Say(calls=(Call("drop_rows", {"rows": [1, 9], "reason": "old"}),))
    again = Say(calls=(Call("drop_rows", {"rows": [1], "reason": "old"}),))
    session, texts, _ = clean(messy, drop, again, again, DONE)
    assert answers(session)[0] == "Row 9 does not exist. No row was dropped."
    assert texts == [MESSY, *["order,amount\nB,n/a\nC,7\n"] * 2]
    assert answers(session)[2] == "Row 1 does not exist. No row was dropped."
    assert session[Drop].all() == (Drop(1, "old"),)


CELLS = st.lists(
    st.sampled_from(["", "7", " 1 200", "n/a", "1.50", "01/03/2026", "2026-03-01"]), max_size=6
)


@given(CELLS, st.sampled_from(["text", "number", "date"]))
def test_conversion_is_atomic_and_its_changes_reproduce_the_sheet(
    cells: list[str], to: str
) -> None:
    sheet = Sheet(["a"], {number: {"a": cell} for number, cell in enumerate(cells, start=1)})
    before, session = Sheet(["a"], dict(sheet.rows)), Session()
    arguments = {"column": "a", "to": to, "date_formats": ["%d/%m/%Y"]}
    adapter = ScriptedAdapter([call(("convert_column", arguments)), say(Conclusion("", []))])
    adapter.evaluate(CLEANER.bind(Table("t", "a"), resources={Sheet: sheet}), session=session)
    for change in session[Change]:
        before.put(change.row, change.column, change.after)
    assert sheet.text() == before.text()
    [event] = session[ToolInvoked]
    assert event.success or session[Change].all() == ()


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (
            Call("convert_column", {"column": "price", "to": "number"}),
            "No cell 'price' in row 1; columns are",
        ),
        (
            Call("set_cell", {"row": 7, "column": "order", "value": "", "reason": "?"}),
            "No cell 'order' in row 7",
        ),
        (Call("convert_column", {"column": "amount", "to": "money"}), "'text', 'number' or 'date'"),
        (Call("convert_column", '{"column": '), "Invalid arguments"),
    ],
)
def test_invalid_argument_gets_a_reply_and_changes_nothing(
    messy: Path, wrong: Call, answer: str
) -> None:
    session, texts, _ = clean(messy, Say(calls=(wrong,)), DONE)
    assert answer in answers(session)[0]
    assert texts == [MESSY]


def test_file_is_written_after_the_run(messy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = messy.with_name("clean.csv")
    written: list[bool] = []

    def convert(request: Request) -> Say:
        written.append(output.exists())
        return Say(calls=(Call("convert_column", {"column": "order", "to": "text"}),))

    with ScriptedServer(convert, DONE) as server:
        options = ["--output", str(output), "--json", "--model", "m"]
        assert main([str(messy), *options, "--base-url", server.openai_url]) == 0
    assert written == [False]
    assert (output.read_text(), messy.read_text()) == (MESSY, MESSY)
    assert json.loads(capsys.readouterr().out) == {
        "rows": 3,
        "changes": [],
        "drops": [],
        "conclusion": {"summary": "Mended.", "doubts": []},
    }


def test_nothing_is_written_when_the_provider_fails(
    messy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = messy.with_name("clean.csv")
    assert main([str(messy), "--output", str(output), "--base-url", "http://127.0.0.1:9/v1"]) == 1
    assert "check base_url" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the header is []"),
        (b"a,a\n1,2\n", "the header is ['a', 'a']"),
        (b"a,b\n1,2\n\n1\n", "row 2 has 1 cells, the header 2"),
        (b"a\n\xff\n", "'utf-8' codec can't decode"),
    ],
)
def test_invalid_table_is_reported_in_one_line(
    messy: Path, data: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    messy.write_bytes(data)
    assert main([str(messy)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{messy} cannot be read: {why}")


def test_output_folder_is_checked_before_the_run(
    messy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(messy), "--output", str(messy.with_name("no") / "clean.csv")])
    assert "it is not a folder" in capsys.readouterr().err


def test_offline_run_shows_attempts_rollbacks_and_the_report(tmp_path: Path) -> None:
    process = run_example("data_cleaner", folder=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "no LLM" in process.stdout.splitlines()[0]
    assert (
        "Row 5: '6 March 2026' is not a date. 3 cells had been changed; that is undone."
        in process.stdout
    )
    assert process.stdout.count("rolled back to the byte") == process.stdout.count("✗") == 5
    assert "row 6 dropped: amount 'twelve' is not a number" in process.stdout
    assert process.stdout.splitlines()[-1] == "5 rows kept, 2 dropped; written to orders.clean.csv"
    assert (tmp_path / "orders.clean.csv").read_text() == (
        "order,date,customer,amount\n"
        "1001,2026-03-01,Ada Lovelace,1120.50\n"
        "1002,2026-03-02,Grace Hopper,80\n"
        "1003,2026-03-03,Alan Turing,1204.75\n"
        "1004,2026-03-05,Edsger Dijkstra,\n"
        "1005,2026-03-06,Barbara Liskov,64.20\n"
    )


def test_prompt_has_no_findings() -> None:
    assert analyze(CLEANER).findings == ()
