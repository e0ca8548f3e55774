"""A conversation can move from one adapter to any other through JSON."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import without_provider_items
from support.harnesses import HttpHarness, sent_by_chat, sent_by_messages, sent_by_responses
from support.scripted_server import Request, ScriptedServer
from weakincentives.adapters.core import LoopAdapter
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, Message
from weakincentives.runtime.session import Session
from weakincentives.testing.conformance import Harness, ScriptedHarness, SentRequest
from weakincentives.testing.scenarios import SCENARIOS, Scenario, World

REQUESTS: list[Request] = []


# Any: names of APIs, adapter options of all types
def openai(server: ScriptedServer, api: Any, **options: Any) -> LoopAdapter:
    from weakincentives.adapters.openai import OpenAIAdapter

    url = server.openai_url
    return OpenAIAdapter("m", api=api, base_url=url, api_key="k", max_retries=0, **options)


def anthropic(server: ScriptedServer, **options: Any) -> LoopAdapter:
    from weakincentives.adapters.anthropic import AnthropicAdapter

    return AnthropicAdapter("m", base_url=server.url, api_key="k", max_retries=0, **options)


def litellm(server: ScriptedServer, model: str, **options: Any) -> LoopAdapter:
    from weakincentives.adapters.litellm import LiteLLMAdapter

    url = server.openai_url if model.startswith("openai/") else server.url
    return LiteLLMAdapter(model, base_url=url, api_key="k", max_retries=0, **options)


def http(make: Callable[..., LoopAdapter], read: Callable[[Request], SentRequest]) -> HttpHarness:
    def sent(request: Request) -> SentRequest:
        REQUESTS.append(request)
        return read(request)

    return HttpHarness(make, sent)


HARNESSES: dict[str, Harness] = {"scripted": ScriptedHarness()}
if find_spec("openai"):
    HARNESSES["responses"] = http(partial(openai, api="responses"), sent_by_responses)
    HARNESSES["chat"] = http(partial(openai, api="chat"), sent_by_chat)
if find_spec("anthropic"):
    HARNESSES["anthropic"] = http(anthropic, sent_by_messages)
if find_spec("litellm"):
    HARNESSES["litellm"] = http(partial(litellm, model="openai/gpt-4o"), sent_by_chat)
    claude = partial(litellm, model="anthropic/claude-sonnet-4-5")
    HARNESSES["litellm, anthropic"] = http(claude, sent_by_messages)
TURNS = [
    scenario
    for scenario in SCENARIOS
    if scenario.prompt == SCENARIOS[0].prompt
    and scenario.config == SCENARIOS[0].config
    and scenario.seconds is None
    and scenario.budget is None
    and not scenario.expect["error"]
    and not scenario.needs
]


def play(
    turns: Sequence[tuple[Harness, Scenario]], marks: str = ""
) -> list[tuple[Conversation, list[SentRequest]]]:
    """Plays the scenarios as turns of one conversation; returns it after each with its requests.

    `marks` appear in the call ids of each turn.
    """
    world, session = World(), Session()
    prompt = SCENARIOS[0].prompt().bind(resources={World: world})
    conversation: Conversation | None = None
    played: list[tuple[Conversation, list[SentRequest]]] = []
    for number, (harness, scenario) in enumerate(turns):
        with ExitStack() as stack:
            mark = marks[number] if marks else "_"
            steps = [_renamed(step, f"turn{number}{mark}") for step in scenario.steps]
            stage = stack.enter_context(
                harness.open(steps, config=scenario.config, clock=world.clock)
            )
            execution = MainLoop(stage.adapter, clock=world.clock).execute(
                prompt, session=session, message=f"Message {number}.", conversation=conversation
            )
            sent = list(stage.sent())
        assert execution.conversation is not None
        conversation = Conversation.from_json(execution.conversation.to_json())
        assert conversation == execution.conversation
        played.append((conversation, sent))
    return played


def _renamed(step: Any, prefix: str) -> Any:
    """Returns the step with call ids that no other turn uses."""
    calls = [replace(each, call_id=f"{prefix}{each.call_id}") for each in step.tool_calls]
    return replace(step, tool_calls=tuple(calls))


def plain(conversation: Conversation) -> Conversation:
    def neutral(message: Message) -> Message:
        message = without_provider_items(message)
        return replace(message, model="") if isinstance(message, AssistantMessage) else message

    return replace(conversation, messages=tuple(map(neutral, conversation.messages)))


def check_request(request: Request) -> None:
    """Checks that each call in a request is answered before any other message."""
    waiting: list[str] = []
    body = request.json
    for item in body.get("input") or body["messages"]:
        content = item.get("content")
        blocks = content if isinstance(content, list) else []
        match item:
            case {"role": "assistant", "tool_calls": calls}:
                assert not waiting
                waiting = [each["id"] for each in calls]
            case {"type": "function_call", "call_id": call_id}:
                assert len(call_id) <= 64
                waiting.append(call_id)
            case {"role": "tool", "tool_call_id": call_id} | {
                "type": "function_call_output",
                "call_id": call_id,
            }:
                assert waiting.pop(0) == call_id
            case {"role": "assistant"} if any(each["type"] == "tool_use" for each in blocks):
                assert not waiting
                waiting = [each["id"] for each in blocks if each["type"] == "tool_use"]
            case {"role": "user"} if blocks:
                answered = [each["tool_use_id"] for each in blocks if "tool_use_id" in each]
                assert answered == waiting
                waiting = []
            case _:
                assert not waiting
        if "/messages" in request.path:
            assert all(re.fullmatch(r"[\w-]+", call_id) for call_id in waiting)
    assert not waiting


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(HARNESSES)), st.sampled_from(TURNS)),
        min_size=2,
        max_size=4,
    )
)
def test_conversation_continues_with_any_adapter_as_with_one(
    turns: list[tuple[str, Scenario]],
) -> None:
    REQUESTS.clear()
    # an id that some providers reject
    marks = "".join([":" if name == "scripted" else "_" for name, _ in turns])
    expected = play([(ScriptedHarness(), scenario) for _, scenario in turns], marks)
    played = play([(HARNESSES[name], scenario) for name, scenario in turns], marks)
    for (conversation, sent), (reference, wanted) in zip(played, expected, strict=True):
        assert plain(conversation) == plain(reference)
        assert len(sent) == len(wanted)
        for request, other in zip(sent, wanted, strict=True):
            words = "\0".join(request.texts)
            assert all(text in words for text in other.texts)
            assert sorted(request.tools) == sorted(other.tools)
            assert [text for _, text in request.answers] == [text for _, text in other.answers]
    for each in REQUESTS:
        check_request(each)


def test_conversation_moves_between_every_pair_of_adapters() -> None:
    """Unlike Hypothesis, this does not leave the pairs to chance."""
    scenario = next(each for each in TURNS if each.name == "a section with tools")
    for first in HARNESSES.values():
        for second in HARNESSES.values():
            play([(first, scenario), (second, scenario), (first, scenario)])
