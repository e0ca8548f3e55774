"""`InspectAdapter`: the request that an Inspect model receives, and its reply."""
# pyright: reportMissingImports=false, reportUntypedClassDecorator=false, reportUntypedBaseClass=false

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.model import (
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelCall,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolFunction

from weakincentives import (
    MainLoop,
    MarkdownSection,
    ModelSettings,
    PromptEvaluationError,
    PromptTemplate,
    Session,
)
from weakincentives.contrib.inspect import InspectAdapter

KEY = "sk-of-this-test-0123456789"


@dataclass(frozen=True)
class Item:
    name: str
    kind: Literal["book"]
    parts: "list[Item]" = field(default_factory=list["Item"])


@dataclass(frozen=True)
class Basket:
    items: list[Item]


def pack(item: Item) -> str:
    """Pack an item."""
    return f"packed {item.name}"


template = PromptTemplate(
    ns="inspect",
    key="shop",
    sections=[MarkdownSection(title="Task", template="Help.", tools=[pack])],
)
typed = PromptTemplate[Basket](
    ns="inspect", key="typed", sections=[MarkdownSection(title="Task", template="List.")]
)


@dataclass
class Received:
    """A request as the model received it."""

    messages: Sequence[Any]
    tools: Sequence[Any]
    choice: Any
    config: GenerateConfig


class Script:
    """A model of Inspect that gives these outputs, and the requests that it received."""

    def __init__(self, *outputs: ModelOutput | Exception, name: str = "model") -> None:
        self.received: list[Received] = []
        self._outputs = iter(outputs)
        self.model = get_model(
            f"mockllm/{name}", custom_outputs=self._play, memoize=False, api_key=KEY
        )

    def _play(self, *request: Any) -> ModelOutput:
        self.received.append(Received(*request))
        output = next(self._outputs)
        if isinstance(output, Exception):
            raise output
        output.usage = output.usage or ModelUsage()  # otherwise, Inspect downloads a tokenizer
        return output

    def run(self, prompt: Any = template, conversation: Any = None, **options: Any) -> Any:
        loop = MainLoop(InspectAdapter(self.model, **options))
        return asyncio.run(loop.execute_async(prompt, "Hello.", conversation=conversation))


def said(*content: Any, calls: Sequence[ToolCall] = (), **usage: int) -> ModelOutput:
    message = ChatMessageAssistant(content=[*content], tool_calls=[*calls] or None)
    output = ModelOutput.from_message(message, "tool_calls" if calls else "stop")
    output.usage = ModelUsage(**usage)
    return output


packing = ToolCall("c1", "pack", {"name": "A", "kind": "book"})
counts = st.integers(0, 10_000)


@given(counts, counts, counts, counts, st.data())
def test_usage_includes_cached_tokens_in_the_input(
    fresh: int, read: int, written: int, output: int, data: st.DataObject
) -> None:
    reasoning = data.draw(st.integers(0, output))
    script = Script(
        said(
            ContentText(text="Done."),
            input_tokens=fresh,
            input_tokens_cache_read=read,
            input_tokens_cache_write=written,
            output_tokens=output,
            reasoning_tokens=reasoning,
        )
    )
    usage = script.run().usage
    assert usage.total_tokens == fresh + read + written + output
    assert (usage.cached_tokens, usage.cache_write_tokens) == (read, written)
    assert usage.reasoning_tokens == reasoning


words = st.text(st.characters(codec="utf-8"), max_size=20)
blocks = st.one_of(
    words.filter(str.strip).map(lambda text: ContentText(text=text)),
    st.builds(
        lambda text, signature, internal: ContentReasoning(
            reasoning=text, signature=signature, internal=internal
        ),
        words,
        words,
        st.dictionaries(words, words, max_size=2),
    ),
)


@given(st.lists(blocks, min_size=1, max_size=4))
def test_answer_is_sent_back_with_the_reasoning_and_the_data_of_its_provider(
    content: list[Any],
) -> None:
    script = Script(said(*content, calls=[packing]), said(ContentText(text="Done.")))
    script.run()
    sent_back = script.received[1].messages[2]
    assert (sent_back.content, sent_back.tool_calls) == (content, [packing])


def test_another_model_receives_the_text_without_the_reasoning() -> None:
    thought = ContentReasoning(reasoning="hm", signature="signed")
    first = Script(said(thought, ContentText(text="One.")), name="one")
    conversation = first.run().response.conversation
    for name, kept in (("one", True), ("two", False)):
        script = Script(said(ContentText(text="Two.")), name=name)
        script.run(conversation=conversation)
        sent_back = script.received[0].messages[2]
        assert sent_back.text == "One."
        assert (thought in sent_back.content_list) is kept


def test_reasoning_and_citations_are_in_the_response() -> None:
    cited: Any = [{"type": "url", "url": "https://example.org", "title": "A"}]
    script = Script(
        said(
            ContentReasoning(reasoning="secret", redacted=True),
            ContentReasoning(reasoning="long", summary="short"),
            ContentText(text="It is so.", citations=cited),
        )
    )
    response = script.run().response
    assert response.reasoning == "(hidden)\n\nshort"
    assert [(it.url, it.passage(response.text)) for it in response.citations] == [
        ("https://example.org", "It is so.")
    ]


def test_each_message_keeps_its_id_in_later_requests() -> None:
    calls = [ToolCall(f"c{number}", "pack", packing.arguments) for number in range(2)]
    script = Script(said(calls=calls[:1]), said(calls=calls[1:]), said(ContentText(text="Done.")))
    script.run()
    ids = [[message.id for message in request.messages] for request in script.received]
    assert ids[0] == ids[2][:2]
    assert ids[1] == ids[2][:4]
    assert len(set(ids[2])) == len(ids[2]) == 6


def test_schemas_are_sent_without_references() -> None:
    script = Script(said(ContentText(text='{"items": []}')), said(ContentText(text="Done.")))
    assert script.run(typed).output == Basket([])
    output: Any = script.received[0].config.response_schema
    items = output.json_schema.properties["items"]
    assert items.items.properties["kind"].enum == ["book"]
    recursive = items.items.properties["parts"].items
    assert recursive.model_dump(exclude_none=True) == {}

    script.run()
    [tool] = script.received[1].tools
    assert tool.parameters.properties["name"].type == "string"


def test_prompted_output_is_requested_in_the_prompt() -> None:
    script = Script(said(ContentText(text='{"items": []}')))
    script.run(typed, structured_output="prompted")
    request = script.received[0]
    assert request.config.response_schema is None
    assert "JSON schema" in request.messages[0].text


def test_settings_become_the_generate_config() -> None:
    script = Script(said(calls=[packing]), said(ContentText(text="Done.")))
    settings = ModelSettings(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=100,
        reasoning="low",
        seed=7,
        stop=["END"],
        tool_choice="pack",
        parallel_tool_calls=False,
        extra={"top_k": 3},
    )
    script.run(settings=settings)
    config = script.received[0].config.model_dump(exclude_none=True)
    assert config == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 100,
        "reasoning_effort": "low",
        "seed": 7,
        "stop_seqs": ["END"],
        "parallel_tool_calls": False,
        "top_k": 3,
    }
    assert script.received[0].choice == ToolFunction("pack")
    assert script.received[1].choice == "auto"


@pytest.mark.parametrize(("choice", "sent"), [("required", "any"), ("none", "none")])
def test_tool_choice_has_the_word_of_inspect(choice: str, sent: str) -> None:
    script = Script(said(calls=[packing]), said(ContentText(text="Done.")))
    script.run(settings=ModelSettings(tool_choice=choice))
    assert script.received[0].choice == sent


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (ModelSettings(cache_ttl="1h"), "cache_ttl"),
        (ModelSettings(extra={"topk": 3}), "topk"),
    ],
)
def test_setting_that_inspect_does_not_have_is_rejected(
    settings: ModelSettings, named: str
) -> None:
    with pytest.raises(ValueError, match=f"does not support the setting.*{named}"):
        InspectAdapter(settings=settings)


def test_arguments_that_inspect_cannot_parse_are_an_error_for_the_model() -> None:
    broken = ToolCall("c1", "pack", {}, parse_error="cannot parse the arguments: {bad")
    script = Script(said(calls=[broken]), said(ContentText(text="Sorry.")))
    script.run()
    answer = script.received[1].messages[-1]
    assert answer.error is not None
    assert "JSON" in answer.error.message


def test_a_failed_call_is_sent_as_an_error_and_other_results_are_not() -> None:
    unknown = ToolCall("c2", "nothing", {})
    script = Script(said(calls=[packing, unknown]), said(ContentText(text="Done.")))
    script.run()
    packed, failed = script.received[1].messages[-2:]
    assert (packed.text, packed.error, packed.function) == ("packed A", None, "pack")
    assert failed.error.message == failed.text


def stopped(reason: Any, **more: Any) -> ModelOutput:
    return ModelOutput.from_content("mock", "I", stop_reason=reason, **more)


def test_unfinished_answers_and_failures_have_a_code() -> None:
    outputs = {
        "truncated": [stopped("max_tokens"), stopped("model_length")],
        "content_filter": [stopped("content_filter", error="blocked")],
        "refused": [said(ContentText(text="No.", refusal=True))],
        "malformed": [ModelOutput(model="mock")],
        "provider_failed": [stopped("unknown"), ModelOutput(model="mock", error="down")],
        "connection": [ConnectionResetError()],
        "client_error": [ValueError("odd")],
    }
    for code, each in outputs.items():
        for output in each:
            with pytest.raises(PromptEvaluationError) as caught:
                Script(output).run()
            assert caught.value.code == code, output


def test_streamed_answer_that_was_filtered_has_the_same_code() -> None:
    async def stream(model: Any) -> list[object]:
        events = InspectAdapter(model).stream_async(template, message="Hello.")
        return [event async for event in events]

    with pytest.raises(PromptEvaluationError) as caught:
        asyncio.run(stream(Script(stopped("content_filter", error="odd words")).model))
    assert caught.value.code == "content_filter"


@modelapi("rejecting")
class Rejecting(ModelAPI):  # type: ignore[misc]  # Any where Inspect is not installed
    """A provider that returns an error together with the request, as Inspect's own do."""

    async def generate(self, *_: Any, **__: Any) -> Any:
        return StatusError("the prompt is odd"), ModelCall.create({"prompt": "very long"}, {})


class StatusError(Exception):
    status_code = 422


def test_providers_error_is_reported_without_the_request_that_inspect_quotes() -> None:
    loop = MainLoop(InspectAdapter("rejecting/model"))
    with pytest.raises(PromptEvaluationError) as caught:
        asyncio.run(loop.execute_async(template, "Hello."))
    assert (caught.value.message, caught.value.status) == ("the prompt is odd", 422)


def test_error_does_not_contain_the_models_key() -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        Script(ValueError(f"bad header: {KEY}")).run()
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None


def test_synchronous_run_is_an_error_that_names_the_asynchronous_one() -> None:
    script = Script(said(ContentText(text="Done.")))
    with pytest.raises(PromptEvaluationError, match="use execute_async"):
        MainLoop(InspectAdapter(script.model)).execute(template, "Hello.", session=Session())
    assert script.received == []


def test_request_times_out_after_the_settings_timeout() -> None:
    async def wait(*_: Any) -> ModelOutput:
        await asyncio.sleep(60)
        raise AssertionError

    model = get_model("mockllm/model", custom_outputs=wait, memoize=False)
    loop = MainLoop(InspectAdapter(model, settings=ModelSettings(timeout=0.05)))
    with pytest.raises(PromptEvaluationError) as caught:
        asyncio.run(loop.execute_async(template, "Hello."))
    assert caught.value.code == "timeout"
