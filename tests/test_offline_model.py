"""The offline model's decisions: its next call, and its answer."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter

from examples.offline_model import (
    Call,
    Conversation,
    Message,
    Result,
    Tool,
    compose,
    next_call,
)
from examples.offline_model.choosing import MOST_CALLS, MOST_OPENED
from examples.offline_model.conversation import closed_sections, find_question
from examples.offline_model.reading import sections
from examples.offline_model.scoring import coverage, key_terms, rank
from support.offline_library import (
    ANSWER,
    DOCS,
    OPEN,
    QUESTIONS,
    READ,
    SEARCH,
    TEXT,
    TEXTS,
    Schema,
    run_tool,
    schema,
    suffix,
)


def ask(
    text: str, *tools: Tool, results: tuple[Result, ...] = (), choice: str = "auto"
) -> Conversation:
    turns: tuple[Message | Result, ...] = (Message(role="user", text=text), *results)
    return Conversation(turns=turns, tools=tools, tool_choice=choice)


def result_of(name: str, text: str, **arguments: object) -> Result:
    return Result(call=Call(name=name, arguments=arguments), text=text)


# --- scoring and reading ---


def test_words_match_across_common_endings_and_inside_identifiers() -> None:
    assert rank("closing sections", ["it closed a section", "apples"]) == [1.0, 0.0]
    assert rank("read_section", ["read a section", "call read_section"]) == [
        pytest.approx(0.5, abs=0.4),
        1.0,
    ]
    assert key_terms("What does `read_section` do with a key?") == ["read_section", "key"]
    assert coverage("red lamp", "the lamp") == 0.5


@pytest.mark.parametrize(
    ("query", "texts"),
    [("", ["a word"]), ("the of", ["a word"]), ("word", []), ("word", ["", "the"])],
)
def test_texts_without_shared_words_score_zero(query: str, texts: list[str]) -> None:
    assert rank(query, texts) == [0.0] * len(texts)


def test_sections_are_split_at_headings_and_not_inside_code() -> None:
    parts = sections("Intro.\n\n## 1.2. Title\n\nOne. Two.\n\n```sh\n# comment\n```\n")
    assert [(part.title, part.units) for part in parts] == [
        ("", ("Intro.",)),
        ("Title", ("One.", "Two.")),
    ]
    assert "# comment" in parts[1].body


def test_lead_in_stays_with_its_list_and_question_with_its_answer() -> None:
    assert sections(DOCS["garden.md"])[2].units == (
        "If plants have blight: remove them; never compost them",
    )
    assert sections(DOCS["town/library.md"])[2].units[0] == "What does a lost book cost? Its price."
    assert sections(DOCS["manual/coffee.md"])[3].units[0] == "red: water tank empty"


@pytest.mark.parametrize(
    ("texts", "question"),
    [
        (
            ["## 1. Role\n\nAre you ready?\n\n## 2. Question\n\nWhy tea\n\n## 3. Output\n\nJSON."],
            "Why tea",
        ),
        (["## 1. Task\n\nUse the question.\n\n## 2. User's question\n\nWhy tea"], "Why tea"),
        (["Some context.\n\nWhy is tea hot?"], "Some context.\nWhy is tea hot?"),
        (["Context. " * 60 + "Why is tea hot? And so on."], "Why is tea hot?"),
        (["What is tea?", "And what is milk?"], "And what is milk?"),
        (["What is tea?", "Your answer is not valid JSON. Answer again."], "What is tea?"),
        (["Describe tea"], "Describe tea"),
        (["tea"], "tea"),
    ],
)
def test_question_is_the_latest_text_that_asks(texts: list[str], question: str) -> None:
    turns = tuple(Message(role="user", text=text) for text in texts)
    assert find_question(Conversation(turns=turns)) == question


def test_question_comes_from_instructions_if_the_user_asks_nothing() -> None:
    turns = (
        Message(role="system", text="## Question\n\nWhy tea?"),
        Message(role="user", text="Begin."),
    )
    assert find_question(Conversation(turns=turns)) == "Why tea?"


# --- opening sections ---

GUIDE = f"""## 1. Prices

What drinks cost.

{suffix("prices")}

## 2. Staff

Who works here.

---
[This section is summarized. Call `read_section` with key "staff" to view full content
including subsections: rota, holidays.]

## 3. Question

"""


def test_both_forms_of_the_summary_suffix_are_parsed() -> None:
    closed = closed_sections(ask(GUIDE))
    assert [(section.tool, section.key) for section in closed] == [
        ("read_section", "prices"),
        ("read_section", "staff"),
    ]
    assert "rota, holidays" in closed[1].about
    assert "summarized" not in closed[1].about


@pytest.mark.parametrize(
    ("question", "key"), [("What do drinks cost?", "prices"), ("Who has which rota?", "staff")]
)
def test_relevant_section_is_opened_before_searching(question: str, key: str) -> None:
    call = next_call(ask(GUIDE + question, SEARCH, READ, OPEN))
    assert call == Call(name="read_section", arguments={"section_key": key})


def test_section_is_opened_once_and_its_children_can_be_opened_next() -> None:
    text = GUIDE + "What do hot drinks cost?"
    opened = result_of(
        "read_section",
        f"### 1.1. Hot drinks\n\nTheir cost.\n\n{suffix('prices.hot')}",
        section_key="prices",
    )
    second = next_call(ask(text, OPEN, results=(opened,)))
    assert second == Call(name="read_section", arguments={"section_key": "prices.hot"})
    hot = result_of(
        "read_section", "### 1.1. Hot drinks\n\nTea is 2 euros.", section_key="prices.hot"
    )
    conversation = ask(text, OPEN, results=(opened, hot))
    assert next_call(conversation) is None
    assert "Tea is 2 euros." in compose(conversation) or "Their cost." in compose(conversation)


def test_number_of_opened_sections_is_limited() -> None:
    text = (
        "".join(f"## {i}. Tea {i}\n\nAbout tea.\n\n{suffix(f'tea{i}')}\n\n" for i in range(9))
        + "## Question\n\nWhy tea?"
    )
    results: tuple[Result, ...] = ()
    while call := next_call(ask(text, OPEN, results=results)):
        results += (Result(call=call, text="Nothing about that."),)
    assert len({str(result.call.arguments) for result in results}) == len(results) == MOST_OPENED


def test_section_that_offers_tools_is_opened_if_no_tool_helps() -> None:
    text = (
        f"## 1. Library\n\nTools to search the documents.\n\n{suffix('library')}\n\n"
        "## 2. Question\n\nWhy tea?"
    )
    assert next_call(ask(text, OPEN)) == Call(
        name="read_section", arguments={"section_key": "library"}
    )
    assert next_call(ask(text, OPEN, SEARCH)) == Call(
        name="search_docs", arguments={"query": "tea"}
    )


def test_tool_for_several_keys_receives_keys_and_reason() -> None:
    tool = Tool(
        name="open_sections",
        description="Open.",
        parameters=schema(section_keys=TEXTS, reason=TEXT),
    )
    call = next_call(
        ask(
            f"## Tea\n\nAbout tea.\n\n{suffix('a.tea', 'open_sections')}\n\n"
            "## Question\n\nWhy tea?",
            tool,
        )
    )
    assert call is not None
    assert call.arguments == {"section_keys": ["a.tea"], "reason": "Needed to answer: Why tea?"}


def test_opening_tool_receives_the_key_whatever_its_parameter_name() -> None:
    text = f"## Tea\n\nAbout tea.\n\n{suffix('tea', 'expand')}\n\n## Question\n\nWhy tea?"
    for parameters, arguments in (
        (schema(section=TEXT), {"section": "tea"}),
        (schema(parts=TEXTS), {"parts": ["tea"]}),
    ):
        tool = Tool(name="expand", description="Expand.", parameters=parameters)
        assert next_call(ask(text, tool)) == Call(name="expand", arguments=arguments)


def test_files_listed_in_an_opened_section_are_not_sources() -> None:
    opened = result_of(
        "read_section", "### Catalogue\n\n- `tea.md`: Why tea is drunk", section_key="tea"
    )
    text = f"## Tea\n\nAbout tea.\n\n{suffix('tea')}\n\n## Question\n\nWhy is tea drunk?"
    answer = json.loads(
        compose(Conversation(turns=ask(text, results=(opened,)).turns, answer_schema=ANSWER))
    )
    assert answer == {"answer": "`tea.md`: Why tea is drunk", "sources": []}


def test_summary_suffix_in_a_document_is_ignored() -> None:
    read = result_of("read_doc", f"# Tea\n\nAll about tea.\n\n{suffix('tea')}", path="tea.md")
    conversation = ask(
        "Why tea?",
        SEARCH,
        READ,
        OPEN,
        results=(result_of("search_docs", '["tea.md"]', query="tea"), read),
    )
    assert closed_sections(conversation) == []
    assert next_call(conversation) is None


# --- searching and reading ---


def test_model_searches_then_reads_the_best_document_then_answers() -> None:
    results: tuple[Result, ...] = ()
    while call := next_call(ask("When do I need a doctor's note?", SEARCH, READ, results=results)):
        results += (Result(call=call, text=run_tool(call.name, call.arguments)),)
    search_call, read_call = (result.call for result in results)
    assert search_call == Call(name="search_docs", arguments={"query": "need doctor note"})
    assert read_call == Call(name="read_doc", arguments={"path": "rules/leave.md"})
    assert compose(ask("When do I need a doctor's note?", results=results)) == (
        "From the fourth day on, a doctor's note is needed.\n\nSources: rules/leave.md"
    )


def test_empty_search_is_repeated_with_single_words() -> None:
    empty = result_of("search_docs", "Found 0 documents.\n\n[]", query="doctor note")
    call = next_call(ask("A doctor note?", SEARCH, results=(empty,)))
    assert call == Call(name="search_docs", arguments={"query": "doctor"})


@pytest.mark.parametrize(
    "listed",
    [
        '["src/lexer.py", "src/parser.py"]',
        '{"files": [{"path": "src/lexer.py", "size": 1}, {"path": "src/parser.py", "size": 2}]}',
        "src/lexer.py: cuts text\nsrc/parser.py: builds trees",
        "- `src/lexer.py`\n- `src/parser.py`",
    ],
)
def test_file_names_are_parsed_from_json_and_plain_lines(listed: str) -> None:
    files = Tool(
        name="list_files", description="All files.", parameters={"type": "object", "properties": {}}
    )
    text = "Where is the parser?"
    assert next_call(ask(text, files, READ)) == Call(name="list_files", arguments={})
    call = next_call(ask(text, files, READ, results=(result_of("list_files", listed),)))
    assert call == Call(name="read_doc", arguments={"path": "src/parser.py"})


def test_tool_that_changes_data_is_called_only_on_request() -> None:
    delete = Tool(name="delete_doc", description="Delete a document.", parameters=schema(path=TEXT))
    search = result_of(
        "search_docs", '[{"path": "tea.md", "snippet": "how to delete tea"}]', query="tea"
    )
    assert next_call(ask("Why tea?", SEARCH, delete, results=(search,))) is None
    call = next_call(ask("Can you delete tea?", SEARCH, delete, results=(search,)))
    assert call == Call(name="delete_doc", arguments={"path": "tea.md"})


def optional(kind: str) -> Schema:
    return {"anyOf": [{"type": kind}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (schema(query=TEXT, limit={"type": "integer"}), {"query": "tea Paris", "limit": 5}),
        (
            schema(query=TEXT, limit={"type": "integer", "maximum": 3}),
            {"query": "tea Paris", "limit": 3},
        ),
        (
            schema(query=TEXT, limit={"type": "integer", "default": 7}),
            {"query": "tea Paris", "limit": 7},
        ),
        (
            schema(query=TEXT, page={"type": "integer", "description": "Default: 2."}),
            {"query": "tea Paris", "page": 2},
        ),
        (schema(query=TEXT, limit=optional("integer")), {"query": "tea Paris", "limit": None}),
        (schema(question=TEXT), {"question": "Is there tea in Paris?"}),
        (schema(keywords=TEXTS), {"keywords": ["tea", "Paris"]}),
        (schema(city={"type": "string", "description": "City name"}), {"city": "Paris"}),
        (
            schema(drink={"enum": ["milk", "tea"]}, query=TEXT),
            {"drink": "tea", "query": "tea Paris"},
        ),
        (schema(query=TEXT, exact={"type": "boolean"}), {"query": "tea Paris", "exact": False}),
        (schema(query={"type": ["string", "null"]}), {"query": "tea Paris"}),
        (
            {"properties": {"query": TEXT, "near": TEXT}, "required": ["query"]},
            {"query": "tea Paris"},
        ),
        (
            {"$defs": {"F": schema(text=TEXT)}, **schema(filters={"$ref": "#/$defs/F"})},
            {"filters": {"text": "tea Paris"}},
        ),
    ],
)
def test_arguments_follow_the_schema(parameters: Schema, arguments: Schema) -> None:
    tool = Tool(name="find_tea", description="Find tea.", parameters=parameters)
    assert next_call(ask("Is there tea in Paris?", tool)) == Call(
        name="find_tea", arguments=arguments
    )


def test_numbers_in_the_question_fill_number_arguments_in_order() -> None:
    tool = Tool(
        name="add",
        description="Add numbers.",
        parameters=schema(a={"type": "integer"}, b={"type": "number"}),
    )
    assert next_call(ask("Please add 2 and 40.5", tool)) == Call(
        name="add", arguments={"a": 2, "b": 40.5}
    )


def test_file_name_is_never_invented() -> None:
    assert next_call(ask("Why tea?", READ)) is None
    assert next_call(ask("Read `tea.md` please, what does the document say?", READ)) == Call(
        name="read_doc", arguments={"path": "tea.md"}
    )


def test_tool_choice_is_obeyed() -> None:
    assert next_call(ask("Why tea?", SEARCH, choice="none")) is None
    add = Tool(name="add", description="Add.", parameters=schema(a={"type": "integer"}))
    assert next_call(ask("Why tea?", add)) is None
    assert next_call(ask("Why tea?", add, choice="required")) == Call(
        name="add", arguments={"a": 0}
    )
    assert next_call(ask("Why tea?", SEARCH, add, choice="add")) == Call(
        name="add", arguments={"a": 0}
    )


outputs = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            *DOCS.values(),
            "",
            "null",
            "[]",
            "{",
            "Unknown tool.",
            '{"error": "broken"}',
            suffix("a.b"),
        ]
    ),
    st.recursive(
        st.none()
        | st.booleans()
        | st.floats()
        | st.text(max_size=8)
        | st.sampled_from(["a/b.md", "c.md", "tea"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["path", "text", "id"]), inner)
        ),
        max_leaves=8,
    ).map(json.dumps),
)


@given(st.data(), st.sampled_from([*QUESTIONS, "", "?", GUIDE + "Why `x_y` and 3?"]))
def test_every_conversation_ends_without_a_repeated_call(data: st.DataObject, text: str) -> None:
    results: tuple[Result, ...] = ()
    while call := next_call(ask(text, SEARCH, READ, OPEN, results=results)):
        assert call not in [result.call for result in results]
        results += (Result(call=call, text=data.draw(outputs)),)
        assert len(results) <= MOST_CALLS
    conversation = ask(text, results=results)
    assert compose(conversation)
    TypeAdapter(Answer).validate_json(
        compose(Conversation(turns=conversation.turns, answer_schema=ANSWER))
    )


# --- answers ---


@dataclass(frozen=True)
class Answer:
    answer: str
    sources: list[str]


@dataclass(frozen=True)
class Fact:
    quote: str
    file: str
    lines: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    title: Annotated[str, Field(min_length=1, max_length=12)]
    facts: Annotated[list[Fact], Field(min_length=1)]
    found: bool
    confidence: Annotated[float, Field(ge=0, le=1)]
    cents: Annotated[int, Field(gt=0, le=50, multiple_of=5)]
    kind: Literal["bug", "fee"]
    note: str | None
    rest: "Report | None" = None


FEES = result_of("read_doc", DOCS["town/library.md"], path="town/library.md")
QUESTION_MESSAGE = Message(role="user", text="What do late books cost?")


@pytest.mark.parametrize(
    "kind", [Answer, Report, list[Fact], dict[str, int], int, str, Literal[3], bool, None]
)
@pytest.mark.parametrize("turns", [(QUESTION_MESSAGE, FEES), (QUESTION_MESSAGE,)])
def test_answer_is_valid_with_and_without_evidence(
    kind: Any, turns: tuple[Message | Result, ...]
) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(kind)
    adapter.validate_json(compose(Conversation(turns=turns, answer_schema=adapter.json_schema())))


def test_values_are_quoted_and_sources_are_the_files_quoted() -> None:
    adapter = TypeAdapter(Report)
    other = result_of("read_doc", DOCS["garden.md"], path="garden.md")
    turns = (QUESTION_MESSAGE, other, FEES)
    report = adapter.validate_json(
        compose(Conversation(turns=turns, answer_schema=adapter.json_schema()))
    )
    assert report.facts[0].quote == "Late books cost 20 cents a day, at most 10 euros."
    assert {fact.file for fact in report.facts} == {"town/library.md"}
    assert (report.title, report.found, report.confidence, report.cents, report.kind) == (
        "Fees",
        True,
        1.0,
        20,
        "fee",
    )


def test_content_is_quoted_whatever_its_field_name() -> None:
    text = json.dumps({"document": f"{DOCS['town/library.md']}", "path": "town/library.md"})
    answer = compose(
        Conversation(turns=(QUESTION_MESSAGE, result_of("read_doc", text, path="town/library.md")))
    )
    assert answer == "Late books cost 20 cents a day, at most 10 euros.\n\nSources: town/library.md"


def test_missing_evidence_is_stated_in_the_answer() -> None:
    answer = json.loads(compose(Conversation(turns=(QUESTION_MESSAGE,), answer_schema=ANSWER)))
    assert answer == {"answer": "Nothing that I could read answers this.", "sources": []}


def test_prompt_itself_can_contain_the_answer() -> None:
    text = "## Hours\n\nThe shop opens at nine.\n\n## Question\n\nWhen does the shop open?"
    assert compose(ask(text)) == "The shop opens at nine."


def test_failed_results_and_instructions_are_not_quoted() -> None:
    failed = result_of("search_docs", "No documents about late books.", query="late books")
    broken = result_of("read_doc", '{"error": "late books cannot be read"}', path="late.md")
    conversation = ask("Describe late books. Find all about late books.", results=(failed, broken))
    assert compose(conversation) == "Nothing that I could read answers this."
