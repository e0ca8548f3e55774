"""A logged event is JSON whatever it contains, and round-trips."""

import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall
from weakincentives.inspection.event_log import (
    LOG_START,
    event_record,
    read_events,
    write_events,
)
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import (
    AnswerRejected,
    Event,
    PromptRendered,
    ProviderCalled,
    ToolInvoked,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, call, say

SUMMARY = SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Order:
    number: str


def logged(run: Callable[[Session], object]) -> list[dict[str, Any]]:
    session, file = Session(), io.StringIO()
    stop = write_events(session.bus, file)
    run(session)
    stop()
    run(session)  # this is not logged
    return list(read_events(file.getvalue().splitlines()))


def refund(params: Order, *, context: ToolContext) -> ToolResult[Order]:
    """Pay back."""
    return ToolResult(message="Paid back.", value=params)


PROMPT = PromptTemplate(
    ns="shop",
    key="manual",
    sections=[
        MarkdownSection(title="Task", template="Help."),
        MarkdownSection(
            title="Refunds",
            summary="Paying back.",
            template="Within 30 days.",
            visibility=SUMMARY,
            tools=[Tool(name="refund", handler=refund)],
        ),
    ],
)


def evaluate(session: Session) -> None:
    read, pay = (
        call(("read_section", {"section_key": "refunds"})),
        call(("refund", {"number": "A-7"})),
    )
    ScriptedAdapter([read, pay, say("Done.")]).evaluate(PROMPT.bind(), session=session)


def test_every_event_of_a_run_is_logged_in_order() -> None:
    records = logged(evaluate)
    assert [record["event"] for record in records] == [
        "PromptRendered",
        "ProviderCalled",
        "ToolInvoked",
        "ToolsInjected",
        "ProviderCalled",
        "ToolInvoked",
        "ProviderCalled",
        "PromptExecuted",
    ]
    assert all(
        record["seconds"] > 0
        for record in records
        if record["event"] in {"ToolInvoked", "ProviderCalled"}
    )
    assert records[5]["params"] == {"number": "A-7"}
    assert records[5]["result"]["value"] == {"number": "A-7"}


@dataclass(frozen=True)
class Answer:
    total: int


def test_log_contains_model_text_and_feedback_on_rejected_answers() -> None:
    look = AssistantMessage(
        text="Let me see.", tool_calls=(ToolCall("1", "refund", '{"number": "A-7"}'),)
    )
    script = [look, say('{"sum": 1}'), say('{"total": 1}')]
    sections = [
        MarkdownSection(title="Task", template="Help.", tools=[Tool(name="refund", handler=refund)])
    ]
    prompt = Prompt[Answer](ns="shop", key="sum", sections=sections)
    records = logged(lambda session: ScriptedAdapter(script).evaluate(prompt, session=session))
    asked = [record for record in records if record["event"] == "ProviderCalled"]
    assert [record["text"] for record in asked] == ["Let me see.", '{"sum": 1}', '{"total": 1}']
    [rejected] = [record for record in records if record["event"] == "AnswerRejected"]
    assert records.index(asked[1]) < records.index(rejected) < records.index(asked[2])
    assert rejected["reason"].startswith(
        "Your answer does not fit the required JSON schema: Answer: total: Field"
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("look", '{"number": 7'),
        ("look", '{"amount": 7}'),
        ("nope", '{"number": "A-7"}'),
        ("look", "\ud800"),
    ],
)
def test_log_contains_arguments_as_the_model_wrote_them(name: str, arguments: str) -> None:
    mistaken = AssistantMessage(tool_calls=(ToolCall("1", name, arguments),), finish="tool_calls")
    sections = [
        MarkdownSection(title="Task", template="Help.", tools=[Tool(name="look", handler=refund)])
    ]
    prompt = Prompt(ns="shop", key="mistakes", sections=sections)
    script = [mistaken, call(("look", {"number": "A-7"})), say("Done.")]
    records = logged(lambda session: ScriptedAdapter(script).evaluate(prompt, session=session))
    refused, fine = (record for record in records if record["event"] == "ToolInvoked")
    assert (refused["params"], refused["arguments"]) == (None, arguments.replace("\ud800", "?"))
    assert (fine["params"], fine["arguments"]) == ({"number": "A-7"}, '{"number": "A-7"}')


def test_long_rejected_arguments_are_truncated_in_the_event() -> None:
    session, endless = Session(), '{"number": "' + "7" * 1_000_000
    mistaken = AssistantMessage(tool_calls=(ToolCall("1", "look", endless),), finish="tool_calls")
    sections = [
        MarkdownSection(title="Task", template="Help.", tools=[Tool(name="look", handler=refund)])
    ]
    ScriptedAdapter([mistaken, say("Done.")]).evaluate(
        Prompt(ns="n", key="k", sections=sections), session=session
    )
    [event] = session[ToolInvoked].all()
    assert event.arguments == endless[:10_000]


def test_event_references_the_model_text_without_copying_it() -> None:
    session, text = Session(), "word " * 1_000
    ScriptedAdapter([say(text)]).evaluate(PROMPT.bind(), session=session)
    [event] = session[ProviderCalled].all()
    assert event.text is text


@dataclass(frozen=True)
class Tone:
    word: str


def test_log_contains_everything_said_in_a_conversation() -> None:
    tone = MarkdownSection[Tone](title="Tone", template="Be $word.")
    template = PromptTemplate[Answer](ns="shop", key="talk", sections=[*PROMPT.sections, tone])
    prompt = template.bind(Tone("kind"))
    look = AssistantMessage(
        text="Let me see.",
        tool_calls=call(("read_section", {"section_key": "refunds"})).tool_calls,
    )
    script: list[Reply] = [
        look,
        call(("refund", {"number": "A-7"})),
        call(("refund", {"number": 7})),
        say('{"sum": 1}'),
        say('{"total": 1}'),
        say('{"total": 2}'),
    ]
    session, file = Session(), io.StringIO()
    write_events(session.bus, file)
    chat = Chat(MainLoop(ScriptedAdapter(script)), prompt, session=session)
    chat.send("I want my money back.")
    chat.prompt.bind(Tone("brief"))
    chat.send("And for A-8?")
    assert chat.conversation is not None
    said = [
        text
        for message in chat.conversation.messages
        for text in (
            *[getattr(message, "content", ""), getattr(message, "text", "")],
            *[call.name for call in getattr(message, "tool_calls", ())],
        )
    ]
    records = list(read_events(file.getvalue().splitlines()))
    written = [text for record in records for text in record.values() if isinstance(text, str)]
    assert [text for text in said if text not in written] == []
    begun = [record for record in records if record["event"] == "PromptRendered"]
    assert [record["message"] for record in begun] == ["I want my money back.", "And for A-8?"]
    assert begun[0]["changes"] == ""
    assert str(begun[1]["changes"]).endswith("## 3. Tone\n\nBe brief.")


def test_answer_rejected_is_published_even_if_the_model_is_not_asked_again() -> None:
    prompt = Prompt[Answer](ns="shop", key="sum", sections=PROMPT.sections)
    adapter = ScriptedAdapter([say("no")] * 3)
    session = Session()
    with suppress(PromptEvaluationError):
        adapter.evaluate(prompt, session=session)
    assert len(session[AnswerRejected].all()) == 3


def test_log_starts_with_its_version() -> None:
    file = io.StringIO()
    write_events(Session().bus, file)
    assert file.getvalue() == LOG_START
    assert list(read_events(file.getvalue().splitlines())) == []
    remedies = {"4": "read it with weakincentives 0.2", "6": "update weakincentives"}
    for version, remedy in remedies.items():
        other = LOG_START.replace("5", version)
        with pytest.raises(ValueError, match=f"line 1 starts a log of version {version}.*{remedy}"):
            list(read_events([other]))


def test_prompt_rendered_is_logged_with_section_sizes() -> None:
    (rendered, *_) = logged(evaluate)
    task, refunds = rendered["sections"]
    assert task == {
        "path": "task",
        "visibility": "full",
        "shown": 17,
        "summary": None,
        "expanded_size": 17,
        "tools": {},
    }
    assert (refunds["visibility"], refunds["shown"]) == ("summary", refunds["summary"])
    assert (
        refunds["expanded_size"]
        == len("## 2. Refunds\n\nWithin 30 days.") + refunds["tools"]["refund"]
    )
    assert "rendered" not in rendered
    assert sum(section["shown"] for section in rendered["sections"]) + 2 == len(rendered["text"])


def test_section_paths_are_logged_as_dotted_keys() -> None:
    (_, _, read, *_) = logged(evaluate)
    assert read["current_visibility_state"] == {"task": "full", "refunds": "summary"}


def test_value_that_is_not_json_serializable_is_logged_as_its_repr() -> None:
    (_, _, read, *_) = logged(evaluate)
    (tool,) = read["result"]["value"]["expanded_tools"]
    assert tool["name"] == "refund"
    assert tool["handler"]["$repr"].startswith("<function refund")


class Mute:
    def __repr__(self) -> str:
        raise OSError("not now")

    __str__ = __repr__


ODD = st.builds(Mute) | st.sampled_from(
    [object(), float("nan"), "\ud800", b"\xff", {1, 2}, print, Order("A"), Order, 1j]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | ODD,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.integers() | st.text() | st.builds(Mute), inner)
    ),
)


@given(VALUES)
def test_params_and_results_of_any_type_are_logged_as_one_json_line(value: object) -> None:
    event = ToolInvoked(
        name="t", call_id="1", params=value, result=ToolResult("m", value), content="c"
    )
    text = json.dumps(event_record(event))
    (back,) = read_events([text])
    assert back == json.loads(text)
    assert back["name"] == "t"


class Odd:
    def __repr__(self) -> str:
        return "\ud800"


def test_text_that_cannot_be_encoded_does_not_lose_the_event(tmp_path: Path) -> None:
    session = Session()
    result = ToolResult("m", {"\ud800": 1, ("a", "\ud800"): Odd()})
    event = ToolInvoked(name="t", call_id="1", params=None, result=result, content="m")
    with (tmp_path / "log").open("w+", encoding="utf-8") as file:
        stop = write_events(session.bus, file)
        session.bus.publish(event)
        stop()
        file.seek(0)
        (back,) = read_events(file)
    value = {"?": 1, "a.?": {"$repr": "?"}}
    assert back["result"] == {**asdict(ToolResult("m")), "media": [], "value": value}
    assert event_record(event) == back


def test_self_referencing_value_is_truncated() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert "$repr" in json.dumps(
        event_record(
            ToolInvoked(name="t", call_id="1", params=endless, result=ToolResult("m"), content="")
        )
    )


def test_events_of_other_types_are_logged() -> None:
    assert event_record("a plain text") == {"event": "str", "value": "a plain text"}


def test_prompt_rendered_without_a_rendered_prompt_has_no_sizes() -> None:
    event = PromptRendered(ns="n", key="k", name="p", adapter="a", text="t", tool_names=())
    assert event_record(event)["sections"] == []


@pytest.mark.parametrize(
    "line", ["", "[" * 100_000, '{"event": "Tool', "[]", '{"no": "event"}', '{"event": 1}', "NaN"]
)
def test_invalid_line_is_reported_with_its_number(line: str) -> None:
    good = json.dumps(event_record(Event()))
    with pytest.raises(ValueError, match="line 2 is not an event"):
        list(read_events([good, line + "\n"]))
    with pytest.raises(ValueError, match="line 2 is not an event"):
        list(read_events([good, line, good]))


def test_incomplete_last_line_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    lines = [json.dumps(event_record(Event())) + "\n", '{"event": "Too']
    assert [record["event"] for record in read_events(lines)] == ["Event"]
    assert caplog.messages == ["Line 2, the last one, is incomplete, so it was skipped"]


SURROGATE = chr(92) + "ud800"


@pytest.mark.parametrize("line", [SURROGATE, SURROGATE.upper().replace("U", "u"), "\ud800"])
def test_lone_surrogates_in_a_log_are_read_as_escapes(line: str) -> None:
    text = f'{{"event": "A{line}", "{line}": [{{"b": "{line}c"}}, 1, null]}}'
    ((record),) = read_events([text])
    assert record == {"event": f"A{SURROGATE}", SURROGATE: [{"b": f"{SURROGATE}c"}, 1, None]}
    ((emoji),) = read_events(['{"event": "' + chr(92) + "ud83d" + chr(92) + 'ude00"}'])
    assert emoji == {"event": "\U0001f600"}


@dataclass(frozen=True, kw_only=True)
class Delivery(Event):
    event: object


def test_field_named_event_is_logged_as_event_field() -> None:
    for value in (3, "PromptExecuted"):
        record = event_record(Delivery(event=value))
        assert (record["event"], record["event_field"]) == ("Delivery", value)


@pytest.mark.parametrize("name", ["LogStart", "PromptExecuted"])
def test_application_event_with_a_library_name_is_logged_with_its_module(name: str) -> None:
    clashing = make_dataclass(name, [("version", int)], bases=(Event,), frozen=True, kw_only=True)
    clashing.__module__ = "shop"
    session, file = Session(), io.StringIO()
    write_events(session.bus, file)
    session.bus.publish(clashing(version=1))
    [record] = read_events(file.getvalue().splitlines())
    assert record["event"] == f"shop:{name}"
