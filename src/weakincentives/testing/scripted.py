"""An adapter whose model follows a script, through the same loop, executor and events as a real
one.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass, replace
from itertools import count
from textwrap import shorten
from typing import Any

from .. import serde
from ..adapters.core import Connection, LoopAdapter
from ..evaluation.inner_loop import InnerLoopConfig, ProviderRequest
from ..evaluation.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
)
from ..evaluation.schemas import ToolSpec
from ..limits import Clock, TokenUsage, utc_now
from ..prompt.renderer import RenderedPrompt

__all__ = ["Reply", "ScriptExhaustedError", "ScriptedAdapter", "SeenRequest", "call", "say"]


class ScriptExhaustedError(AssertionError):
    """The model was asked more often than its script has replies."""


def say(output: object = "", *, usage: TokenUsage | None = None) -> AssistantMessage:
    """The model's final word: a text, or a value given as its JSON."""
    text = output if isinstance(output, str) else serde.dump_json(output)
    return AssistantMessage(text=text, usage=usage or TokenUsage(10, 5))


def call(*calls: tuple[str, object], usage: TokenUsage | None = None) -> AssistantMessage:
    """The model calls tools: pairs of a name and arguments, given as a dict, a params dataclass or
    JSON text.

    Call ids are filled in when the message is played. Raises `TypeError` for what is no pair.
    """
    for one in calls:
        match one:
            case (str(), _):
                pass
            case _:
                raise TypeError(
                    f"call got {one!r}; give it pairs of a name and arguments: call((name, arguments))"
                )
    return AssistantMessage(
        tool_calls=tuple(ToolCall("", name, _arguments(value)) for name, value in calls),
        finish="tool_calls",
        usage=usage or TokenUsage(10, 5),
    )


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    return serde.dump_json(value) if is_dataclass(value) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """What the model was sent, read from the evaluation's own transcript up to where that request
    ended.
    """

    request: ProviderRequest
    length: int

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation until then."""
        return tuple(self.request.transcript[: self.length])

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Every tool that the model could call."""
        tools = list(self.request.tools)
        for message in self.messages:
            match message:
                case ToolsAdded(added):
                    tools += added
                case ToolsRemoved(names):
                    tools = [tool for tool in tools if tool.name not in names]
                case _:
                    pass
        return tuple(tools)

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the tools, in the order in which they became available."""
        return tuple(tool.name for tool in self.tools)


type Reply = AssistantMessage | Exception | Callable[[SeenRequest], AssistantMessage | Exception]
"""One step of a script: a message, an error to raise, or a function that decides by the request."""


_OVER = AssistantMessage()  # stands behind the last reply


def _check_reply(number: int, reply: object) -> AssistantMessage:
    if not isinstance(reply, AssistantMessage):
        raise TypeError(f"reply {number} of the script is {reply!r}; write say(…) or call(…)")
    return reply


class ScriptedAdapter(LoopAdapter, Connection):
    """Plays `replies` in order and keeps every request in `requests`; one script over all
    evaluations.

    `replies` holds what is left of the script. With `dynamic_tools=False` opening a section with
    tools starts evaluation again. Raises `ScriptExhaustedError` when the script is over, and
    `TypeError` for a reply that is none: at once when `replies` is a list or a tuple.
    """

    name = "scripted"

    def __init__(
        self,
        replies: Iterable[Reply],
        *,
        dynamic_tools: bool = True,
        config: InnerLoopConfig | None = None,
        clock: Clock = utc_now,
    ) -> None:
        super().__init__(config=config, clock=clock)
        for number, reply in enumerate(
            replies if isinstance(replies, list | tuple) else (), start=1
        ):
            if not callable(reply) and not isinstance(reply, Exception):
                _check_reply(number, reply)
        self.replies = iter(replies)
        self._dynamic_tools = dynamic_tools
        self._ids = map("call_{}".format, count(1))
        self.requests: list[SeenRequest] = []

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._dynamic_tools

    # Any: prompts of every output
    def connect(self, rendered: RenderedPrompt[Any], /) -> "ScriptedAdapter":
        """This adapter itself: the script goes on over evaluations."""
        return self

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        """The next reply of the script."""
        seen = SeenRequest(request, len(request.transcript))
        self.requests.append(seen)
        reply = next(self.replies, _OVER)
        if reply is _OVER:
            later = (
                one.content
                for one in request.transcript[:0:-1]
                if isinstance(one, UserMessage | ToolMessage)
            )
            told = next((f"; the model was last told {shorten(one, 200)!r}" for one in later), "")
            raise ScriptExhaustedError(
                f"the script has no reply for request {len(self.requests)}{told}"
            )
        if callable(reply):
            reply = reply(seen)
        if isinstance(reply, Exception):
            raise reply
        message = _check_reply(len(self.requests), reply)
        calls = [replace(one, call_id=one.call_id or next(self._ids)) for one in message.tool_calls]
        return replace(message, tool_calls=tuple(calls))

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        """As `ask`."""
        return self.ask(request)
