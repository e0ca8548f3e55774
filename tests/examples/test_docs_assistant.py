"""The demo with its embedded default model: questions whose answers are in the documents."""

import json

from examples.common.models import Choice, chosen_model
from examples.docs_assistant.library import Library
from examples.docs_assistant.prompt import Answer, assistant
from support.example_agents import ROOT, run_example
from support.sizes import only_full
from weakincentives.adapters.core import PromptResponse
from weakincentives.runtime.events import ToolInvoked, ToolsInjected
from weakincentives.runtime.session import Session

QUESTIONS = json.loads((ROOT / "tests/data/demo_questions.json").read_text(encoding="utf-8"))
WANTED = 0.9  # 18 of 20


def ask(question: str, library: Library, session: Session) -> PromptResponse[Answer]:
    with chosen_model(Choice()) as (_, adapter):
        return adapter.evaluate(assistant(library), session=session, message=question)


@only_full
def test_nine_of_ten_questions_cite_a_file_that_answers_them() -> None:
    library = Library.load()
    assert len(QUESTIONS) >= 20
    missed = []
    for entry in QUESTIONS:
        response = ask(entry["question"], library, Session())
        sources = getattr(response.output, "sources", [])
        assert set(sources) <= set(library.documents)
        if not set(sources) & set(entry["sources"]):
            missed.append((entry["question"], sources))
    assert len(missed) <= len(QUESTIONS) * (1 - WANTED), missed


def test_expected_source_files_exist() -> None:
    assert {file for entry in QUESTIONS for file in entry["sources"]} <= set(
        Library.load().documents
    )


def test_tools_are_available_after_their_section_is_read() -> None:
    session = Session()
    ask("How long may a tool description be?", Library.load(), session)
    names = [event.name for event in session[ToolInvoked]]
    assert names[0] == "read_section"
    assert [event.tool_names for event in session[ToolsInjected]] == [("search_docs", "read_doc")]
    assert {"search_docs", "read_doc"} <= set(names[1:])


def test_equal_questions_get_equal_answers_shown_to_the_letter_with_their_brackets() -> None:
    question = "How do I install it?"
    first, second = (run_example("docs_assistant", "--json", question) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert json.loads(first.stdout).keys() == {"answer", "sources"}
    answer = json.loads(first.stdout)["answer"]
    assert "[openai,cli]" in answer, "brackets are what a terminal could take for colours"
    shown = (
        run_example("docs_assistant", question)
        .stdout.partition("─ Answer ─")[2]
        .translate(dict.fromkeys(map(ord, "│─╮")))
    )
    assert " ".join(shown.split()).startswith(answer)


def test_first_line_states_that_the_model_is_not_an_llm() -> None:
    process = run_example("docs_assistant")
    assert process.returncode == 0, process.stderr
    assert "no LLM" in process.stdout.splitlines()[0]


def test_unreachable_server_is_reported_without_a_traceback() -> None:
    process = run_example("docs_assistant", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert process.returncode == 1
    assert "check base_url" in process.stderr
    assert "Traceback" not in process.stderr
