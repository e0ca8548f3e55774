"""Laws: whatever a model or a server did, each codec's requests pass the provider's validator.

`make test-transcripts` uses 10,000 conversations per validator, the gate a different thousand each
day.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from support.request_rules import check_chat, check_messages, check_responses
from support.transcripts import chat_codec, conversation, messages_codec, responses_codec
from weakincentives.adapters.codec import Codec, JsonObject
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import Message

COUNT = int(os.environ.get("TRANSCRIPTS", "25"))
FIRST = int(os.environ.get("TRANSCRIPTS_SEED", "0"))

# Any: bodies of requests
type Check = Callable[[dict[str, Any]], None]

NINE = "[a-zA-Z0-9]{9}"
VALIDATORS: dict[str, tuple[str, Callable[[], Codec], Check]] = {
    "chat": ("chat", chat_codec, check_chat),
    "chat-mistral": (
        "chat",
        partial(chat_codec, call_ids=NINE, reasoning="drop"),
        partial(check_chat, call_ids=NINE, reasoning=False),
    ),
    "chat-openai": (
        "chat",
        partial(chat_codec, user_after_tool=True),
        partial(check_chat, user_after_tool=True),
    ),
    "chat-any-order": (
        "chat",
        partial(chat_codec, user_after_tool=True, alternating_roles=False),
        partial(check_chat, user_after_tool=True, alternating_roles=False),
    ),
    "chat-reasoning-required": (
        "chat",
        partial(
            chat_codec,
            reasoning="require",
            reasoning_field="reasoning_content",
            missing_reasoning="(none)",
        ),
        partial(check_chat, reasoning_field="reasoning_content"),
    ),
    "chat-blank-reasoning": (
        "chat",
        partial(chat_codec, reasoning="require", reasoning_field="reasoning_content"),
        partial(check_chat, reasoning_field="reasoning_content", blank_reasoning=True),
    ),
    "chat-named-results": (
        "chat",
        partial(chat_codec, named_results=True),
        partial(check_chat, named_results=True),
    ),
    "chat-media-in-results": (
        "chat",
        partial(chat_codec, media_in_results=True),
        partial(check_chat, media_in_results=True),
    ),
    "chat-think-tags": (
        "chat",
        partial(chat_codec, think_tags=True, reasoning="drop"),
        partial(check_chat, reasoning=False),
    ),
    "responses": ("responses", responses_codec, check_responses),
    "responses-stateless": (
        "responses",
        partial(responses_codec, store=False),
        partial(check_responses, stored=False),
    ),
    "messages": ("messages", messages_codec, check_messages),
}


def items(body: dict[str, Any]) -> list[JsonObject]:
    """Returns a copy of a request's messages, without marks for the cache."""
    text = json.dumps(body.get("messages") or body["input"])
    copied: list[JsonObject] = json.loads(
        text, object_hook=lambda found: {k: v for k, v in found.items() if k != "cache_control"}
    )
    return copied


@pytest.mark.parametrize("name", VALIDATORS)
def test_every_request_is_valid_and_extends_the_previous_one(name: str) -> None:
    usual, new_codec, check = VALIDATORS[name]
    for seed in range(FIRST, FIRST + COUNT):
        codec, transcript = new_codec(), list[Message]()
        steps = conversation(seed, usual)
        stored = repr(steps)
        try:
            before: list[JsonObject] = []
            for added in steps:
                transcript += added
                body = codec.encode(ProviderRequest(1, transcript, (), None, None))
                check(body)
                sent = items(body)
                assert sent[: len(before)] == before, "an item has changed"
                before = sent
            body = new_codec().encode(ProviderRequest(1, transcript, (), None, None))
            assert items(body) == before, "a new codec sends other items"
            assert repr(steps) == stored, "the stored conversation has changed"
        except Exception as error:
            error.add_note(f"seed {seed}: {transcript}")
            raise
