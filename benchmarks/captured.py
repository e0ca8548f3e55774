"""An adapter for chats that sends nothing: it captures the requests that its codec writes.

The costs of the SDK and the network, which handle the whole request on each turn, are not ours.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from os.path import commonprefix
from time import process_time
from typing import Any, NamedTuple

from weakincentives.adapters.chat_completions import ChatCodec
from weakincentives.adapters.codec import Codec, CodecOptions, JsonObject
from weakincentives.adapters.codec_adapter import CodecAdapter
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.adapters.provider_errors import error_from_request
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.limits import utc_now
from weakincentives.prompt import Prompt
from weakincentives.redaction import Redactor
from weakincentives.runtime.session import Session

ITEMS: Mapping[type[Codec], str] = {ResponsesCodec: "input", ChatCodec: "messages"}
APIS: Mapping[type[Codec], str] = {ResponsesCodec: "Responses", ChatCodec: "Chat Completions"}
ARGUMENTS = json.dumps({"account": "A-17", "since": "2026-05-01", "limit": 2})


class Captured(CodecAdapter):
    """Replies with a call and an answer alternately; `keeps` also stores the requests as JSON."""

    name = "captured"

    def __init__(self, codec: type[Codec], *, keeps: bool = False) -> None:
        options = CodecOptions(model="gpt-5.2")
        super().__init__(codec, options, config=None, clock=utc_now)
        self._reply = chat_reply if codec is ChatCodec else responses_reply
        self._items = ITEMS[codec]
        self._keeps = keeps
        self._count = 0
        self.sent: list[str] = []
        self.item_sizes: list[int] = []

    def send(self, body: JsonObject, left: float | None, *, stream: bool) -> JsonObject:
        if self._keeps:
            items = body[self._items]
            rest = {name: value for name, value in body.items() if name != self._items}
            self.sent.append(json.dumps({**rest, self._items: items}))
            self.item_sizes.append(len(json.dumps(items)))
        self._count += 1
        return self._reply(self._count)

    async def send_async(self, body: JsonObject, left: float | None, *, stream: bool) -> JsonObject:
        return self.send(body, left, stream=stream)

    def translate(self, error: Exception) -> PromptEvaluationError:
        return error_from_request(self.name, "connection", str(error))

    def redactor(self, error: Exception | None = None) -> Redactor:
        return Redactor(())


def responses_reply(count: int) -> JsonObject:
    call = {"type": "function_call", "call_id": f"call_{count}", "name": "look"}
    text = {"type": "output_text", "text": "All is paid.", "annotations": []}
    message = {"type": "message", "role": "assistant", "content": [text]}
    output = [{**call, "arguments": ARGUMENTS}] if count % 2 else [message]
    usage = {"input_tokens": 900, "output_tokens": 20}
    return {"status": "completed", "output": output, "usage": usage}


def chat_reply(count: int) -> JsonObject:
    function = {"name": "look", "arguments": ARGUMENTS}
    calls = [{"id": f"call_{count}", "type": "function", "function": function}]
    message: JsonObject = {"role": "assistant", "content": None if count % 2 else "All is paid."}
    if count % 2:
        message["tool_calls"] = calls
    usage = {"prompt_tokens": 900, "completion_tokens": 20}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


class Talk(NamedTuple):
    """A chat: the time at which each turn ended, and its last conversation."""

    times: list[float]
    conversation: Conversation


# Any: a prompt with any output type
def talk(
    adapter: Captured, prompt: Prompt[Any], turns: int, conversation: Conversation | None = None
) -> Talk:
    """Sends `turns` messages one after another; the model answers each after a call."""
    # a new session for each turn, so that its logs do not add to the cost of the conversation
    loop, times = MainLoop(adapter), [process_time()]
    for turn in range(turns):
        execution = loop.execute(
            prompt,
            session=Session(),
            message=f"What of {turn:04}?",
            conversation=conversation,
        )
        conversation = execution.conversation
        times.append(process_time())
    assert conversation is not None
    assert isinstance(conversation.messages[-1], AssistantMessage)
    return Talk(times, conversation)


def shared_prefix(a: str, b: str) -> int:
    """Returns the length of the common prefix."""
    return len(commonprefix([a, b]))  # noqa: RUF071 - of texts, not of paths


# Any: as above
def fresh_share(codec: type[Codec], prompt: Prompt[Any], turns: int) -> tuple[float, float]:
    """Returns thousands of characters over `turns` turns: new ones, and fresh ones."""
    adapter = Captured(codec, keeps=True)
    talk(adapter, prompt, turns)
    sent, sizes = adapter.sent, adapter.item_sizes
    new = len(sent[0]) + sizes[-1] - sizes[0]
    fresh = len(sent[0]) + sum(
        [len(after) - shared_prefix(before, after) for before, after in pairwise(sent)]
    )
    return new / 1e3, fresh / 1e3
