"""The conformance suite over a model of Inspect that plays each scenario's steps."""
# pyright: reportMissingImports=false

import json
from base64 import b64decode
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pytest
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.tool import ToolCall

from weakincentives.contrib.inspect import InspectAdapter
from weakincentives.evaluation import RunConfig
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.limits import Clock
from weakincentives.testing.conformance import SentRequest, Stage, check, scenarios
from weakincentives.testing.scenarios import SCENARIOS, Capability, ProviderFault, Scenario, Step

REASONS: Any = {"length": "max_tokens", "refusal": "stop"}


class ProviderError(Exception):
    """A failure in the form of an SDK's error, which Inspect passes on."""

    def __init__(self, fault: ProviderFault) -> None:
        super().__init__("no")
        self.status_code = fault.status
        self.body = {"message": "no", "code": fault.kind}


def output(message: AssistantMessage) -> ModelOutput:
    """Returns a step as Inspect's providers return it."""
    usage = message.usage
    citations: Any = [{"type": "url", "url": it.url, "title": it.title} for it in message.citations]
    refused = message.finish == "refusal" or None
    text = ContentText(text=message.text, citations=citations or None, refusal=refused)
    thought = [ContentReasoning(reasoning=message.reasoning)] if message.reasoning else []
    calls = [
        ToolCall(it.call_id, it.name, json.loads(it.arguments or "{}")) for it in message.tool_calls
    ]
    reply = ChatMessageAssistant(content=[*thought, text], tool_calls=calls or None)
    reason = REASONS.get(message.finish, message.finish)
    return ModelOutput(
        model="mock",
        choices=[ChatCompletionChoice(message=reply, stop_reason=reason)],
        usage=ModelUsage(
            input_tokens=usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            output_tokens=usage.output_tokens,
            total_tokens=usage.total_tokens,
            input_tokens_cache_read=usage.cached_tokens,
            input_tokens_cache_write=usage.cache_write_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        ),
    )


class InspectHarness:
    # Inspect's providers parse arguments themselves
    capabilities = ~(Capability.ARGUMENTS | Capability.CODES)

    @contextmanager
    def open(
        self, steps: Sequence[Step], /, *, config: RunConfig, clock: Clock
    ) -> Generator[Stage]:
        script, requests = [*steps], list[SentRequest]()

        def play(messages: Any, tools: Any, choice: object, options: object) -> ModelOutput:
            requests.append(sent(messages, tools))
            match script.pop(0):
                case AssistantMessage() as message:
                    return output(message)
                case ProviderFault(status=None, code="connection"):
                    raise ConnectionResetError
                case ProviderFault(status=None):
                    return ModelOutput(model="mock", usage=ModelUsage())
                case fault:
                    raise ProviderError(fault)

        model = get_model("mockllm/model", custom_outputs=play, memoize=False)
        yield Stage(InspectAdapter(model, config=config, clock=clock), lambda: requests)


def sent(messages: Sequence[Any], tools: Sequence[Any]) -> SentRequest:
    contents = [(message, content) for message in messages for content in message.content_list]
    media = [
        sha256(b64decode(getattr(content, content.type).partition(",")[2])).hexdigest()
        for _, content in contents
        if content.type in ("image", "document")
    ]
    own = [message for message in messages if message.role == "assistant"]
    return SentRequest(
        texts=tuple(
            [
                content.text
                for message, content in contents
                if message.role in ("system", "user") and content.type == "text"
            ]
        ),
        tools=tuple([tool.name for tool in tools]),
        answers=tuple(
            [(message.tool_call_id, message.text) for message in messages if message.role == "tool"]
        ),
        media=tuple(media),
        replies=tuple([message.text for message in own]),
        calls=tuple([call.id for message in own for call in message.tool_calls or ()]),
    )


HARNESS = InspectHarness()
# A handler that blocks cannot ask Inspect's models, which are asynchronous.
BLOCKING = "a tool asks the model"
# Only `MainLoop` continues after a restart that opens a section.
RESTARTED = {"open_sections", "a tool opens a section", "sent once", "requests with a restart"}
PLAYED = [scenario for scenario in scenarios(HARNESS) if scenario.name != BLOCKING]


@pytest.mark.parametrize("scenario", PLAYED, ids=str)
def test_inspect_adapter_passes_conformance_scenario(scenario: Scenario) -> None:
    if scenario.name in RESTARTED:
        check(scenario, HARNESS, "execute_async")
    else:
        check(scenario, HARNESS, "execute_async", "evaluate_async", "stream_async")


def test_only_scenarios_that_inspect_cannot_represent_are_skipped() -> None:
    assert [it.name for it in SCENARIOS if it not in PLAYED] == [
        "no arguments mean the defaults",
        "a tool asks the model",
        "broken JSON",
        "a failure: throttled 429 7s",
        "a failure: context_length 400",
        "a failure: quota 429",
    ]
