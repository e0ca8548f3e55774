"""The single-file examples: an airline's desk, a bank on SQLite, SQL that the database checks."""

import json
from collections.abc import Generator
from contextlib import closing

import pytest

from examples.airline_triage import DESK, Booking
from examples.bank_support import SUPPORT, Bank, Support
from examples.sql_generation import QUERIES, Query, open_shop, table
from support.example_agents import ROOT, answers, run_example, scripted
from support.scripted_server import Call, Say, ScriptedServer
from weakincentives import Chat, MainLoop, Session
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.inspection.analysis import analyze
from weakincentives.runtime.events import AnswerRejected, ToolsInjected

NAMES = ["airline_triage", "bank_support", "sql_generation"]


@pytest.mark.parametrize("name", NAMES)
def test_example_has_fewer_than_120_lines(name: str) -> None:
    assert len((ROOT / f"examples/{name}.py").read_text().splitlines()) < 120


def test_prompts_have_no_findings() -> None:
    assert [analyze(prompt).findings for prompt in (DESK, SUPPORT, QUERIES)] == [(), (), ()]


# --------------------------------------------------------------------------------------------------
# the airline's desk


def test_offline_airline_desk_opens_topics_and_changes_the_seat() -> None:
    process = run_example("airline_triage")
    assert process.returncode == 0, process.stderr
    assert "no LLM" in process.stdout.splitlines()[0]
    assert "+ tools from seats change_seat" in process.stdout
    assert "12A is not free. Free are 12C, 12D, 20F." in process.stdout
    assert process.stdout.splitlines()[-2] == "The seat is 12C now."


def test_opened_topic_hands_over_within_the_same_conversation() -> None:
    session = Session()
    opening = Say(calls=(Call("read_section", {"section_key": "seats"}),))
    early, taken, free = (
        Say(calls=(Call("change_seat", {"seat": seat}),)) for seat in ("20F", "12A", "20F")
    )
    with ScriptedServer(early, opening, taken, Say("Taken."), free, Say("Done.")) as server:
        chat = Chat(MainLoop(scripted(server)), DESK.bind(), session=session)
        assert chat.send("12A, please.").output == "Taken."
        assert "seat 1A" in DESK.bind().render(session=session).text
        assert chat.send("20F then.").output == "Done."
    assert answers(session)[0].startswith("Tool 'change_seat' is closed")
    assert answers(session)[2:] == [
        "12A is not free. Free are 12C, 12D, 20F.",
        "The seat is 20F now.",
    ]
    assert [event.tool_names for event in session[ToolsInjected]] == [("change_seat",)]
    assert session[Booking].latest() == Booking(seat="20F")
    assert "seat 20F" in DESK.bind().render(session=session).text


# --------------------------------------------------------------------------------------------------
# the bank


@pytest.fixture
def bank() -> Generator[Bank]:
    bank = Bank("Ada")
    with closing(bank.database):
        yield bank


def support(bank: Bank, *steps: Say) -> tuple[Session, Support]:
    session = Session()
    with ScriptedServer(*steps) as server:
        prompt = SUPPORT.bind(resources={Bank: bank})
        output = scripted(server).evaluate(prompt, session=session, message="Help!").output
    return session, output


def transfer(to: str, pounds: object) -> Say:
    return Say(calls=(Call("transfer", {"to": to, "pounds": pounds}),))


def answer(*, blocked: bool) -> Say:
    return Say(json.dumps({"advice": "Done.", "card_blocked": blocked, "fraud_risk": 1}))


def test_offline_bank_support_rolls_back_rejects_and_recovers() -> None:
    process = run_example("bank_support")
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("rolled back to the byte") == 1
    assert "✗ Your answer is rejected: card_blocked is True" in process.stdout


@pytest.mark.parametrize(
    ("to", "pounds", "why"),
    [
        ("Bo", 121, "Ada has no account, or too little in it."),
        ("Eve", 1, "Eve has no account, or too little in it."),
        ("Bo", -100, "pounds"),
        ("Bo", "all", "pounds"),
    ],
)
def test_failed_transfer_leaves_the_database_unchanged(
    bank: Bank, to: str, pounds: object, why: str
) -> None:
    before = bank.text()
    session, _ = support(bank, transfer(to, pounds), answer(blocked=False))
    assert why in answers(session)[0]
    assert bank.text() == before
    assert not bank.database.in_transaction


def test_transfer_moves_money_and_keeps_the_total(bank: Bank) -> None:
    support(bank, transfer("Bo", 20), answer(blocked=False))
    rows = bank.database.execute("select name, pounds from account order by name").fetchall()
    assert rows == [("Ada", 100), ("Bo", 25)]


@pytest.mark.parametrize("blocked", [True, False])
def test_answer_that_contradicts_the_database_is_corrected(bank: Bank, blocked: bool) -> None:
    blocking = [Say(calls=(Call("block_card", {"reason": "lost"}),))] if blocked else []
    session, output = support(bank, *blocking, answer(blocked=not blocked), answer(blocked=blocked))
    assert output.card_blocked is blocked
    assert len(session[AnswerRejected]) == 1


# --------------------------------------------------------------------------------------------------
# the queries


def query(sql: str) -> Say:
    return Say(json.dumps({"sql": sql, "meaning": "Names."}))


def test_offline_query_is_corrected_and_executed() -> None:
    process = run_example("sql_generation")
    assert process.returncode == 0, process.stderr
    assert "SQLite says: no such column: price" in process.stdout
    assert process.stdout.splitlines()[-2:] == ["name | spent", "Ada | 125"]
    assert set(json.loads(run_example("sql_generation", "--json").stdout)) == {"sql", "meaning"}


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("select nickname from customer", "no such column: nickname"),
        ("delete from customer", "not authorized"),
        ("drop table customer", "not authorized"),
        ("attach '/tmp/x' as x", "not authorized"),
        ("pragma query_only = 0", "not authorized"),
        ("select 1; drop table customer", "one statement at a time"),
        ("select " + "(" * 5000, "parser stack overflow"),
        ("who?", "syntax error"),
    ],
)
def test_query_that_the_database_rejects_is_retried(sql: str, why: str) -> None:
    session, good = Session(), "select name from customer order by name"
    with ScriptedServer(query(sql), query(good)) as server:
        response = scripted(server).evaluate(QUERIES.bind(), session=session, message="Who?")
    assert response.output == Query(good, "Names.")
    [rejection] = session[AnswerRejected]
    assert why in rejection.reason


def test_query_that_remains_invalid_raises_evaluation_error() -> None:
    wrong = query("select nickname from customer")
    with (
        ScriptedServer(wrong, wrong, wrong) as server,
        pytest.raises(PromptEvaluationError, match="no such column: nickname"),
    ):
        scripted(server).evaluate(QUERIES.bind(), session=Session(), message="Who?")


def test_endless_or_oversized_query_is_stopped() -> None:
    endless = (
        "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"
    )
    with closing(open_shop()) as shop:
        assert table(shop, Query(endless, "")) == "SQLite says: interrupted"
        assert "too big" in table(shop, Query("select randomblob(1000000000)", ""))
