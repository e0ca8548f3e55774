"""An adapter whose model follows a script, with the loop, executor and events of a real adapter."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count
from textwrap import shorten

from .. import serde
from ..adapters.core import Connection, LoopAdapter
from ..content import MAX_CONTENT_BYTES, Media, MediaSupport, text_of
from ..evaluation.inner_loop import ProviderRequest, RunConfig
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
from ..prompt.prompt import AnyRenderedPrompt

__all__ = ["Reply", "ScriptExhaustedError", "ScriptedAdapter", "SeenRequest", "call", "say"]


class ScriptExhaustedError(AssertionError):
    """The adapter got more requests than its script has replies."""


def say(output: object = "done", *, usage: TokenUsage | None = None) -> AssistantMessage:
    """Returns the model's last reply: a text, or the JSON of a value."""
    text = output if isinstance(output, str) else serde.dump_json(output)
    return AssistantMessage(text=text, usage=usage or TokenUsage(10, 5))


def call(*calls: tuple[str, object], usage: TokenUsage | None = None) -> AssistantMessage:
    """Returns a reply that calls tools: pairs of a name and arguments.

    Arguments are a dict, a params dataclass or JSON text. The adapter adds call ids when it plays
    the reply. Raises `TypeError` for what is no pair.
    """
    for pair in calls:
        match pair:
            case (str(), _):
                pass
            case _:
                raise TypeError(
                    "call must get pairs of a tool name and arguments, such as call((name, "
                    f"arguments)), got {pair!r}"
                )
    return AssistantMessage(
        tool_calls=tuple(ToolCall("", name, _json(arguments)) for name, arguments in calls),
        finish="tool_calls",
        usage=usage or TokenUsage(10, 5),
    )


def _json(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments) if isinstance(arguments, dict) else serde.dump_json(arguments)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """What the model saw: the evaluation's transcript up to the end of this request."""

    request: ProviderRequest
    length: int

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation up to this request."""
        return tuple(self.request.transcript[: self.length])

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Every tool that the model could call; one that was added twice stands there twice."""
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


_END = AssistantMessage()  # stands behind the last reply


def _check_reply(number: int, reply: object) -> AssistantMessage:
    if not isinstance(reply, AssistantMessage):
        raise TypeError(
            f"reply {number} of the script must be say(…) or call(…), got {reply!r:.200}"
        )
    return reply


class ScriptedAdapter(LoopAdapter, Connection):
    """Plays `replies` in order and records every request; evaluations share one script.

    `replies` holds the rest of the script, and `requests` what the model saw. With
    `dynamic_tools=False`, opening a section with tools starts the evaluation again. Raises
    `ScriptExhaustedError` when the script has no reply left, and `TypeError` for an invalid reply:
    at once when `replies` is a list or a tuple.
    """

    name = "scripted"

    def __init__(
        self,
        replies: Iterable[Reply],
        *,
        dynamic_tools: bool = True,
        config: RunConfig | None = None,
        clock: Clock = utc_now,
    ) -> None:
        super().__init__(config=config, clock=clock)
        if isinstance(replies, str | AssistantMessage | Exception) or callable(replies):
            raise TypeError(
                "the script must be a list of replies, such as ScriptedAdapter([…]), got "
                f"{replies!r:.200}"
            )
        for number, reply in enumerate(replies if isinstance(replies, list | tuple) else (), 1):
            if not callable(reply) and not isinstance(reply, Exception):
                _check_reply(number, reply)
        self.replies = iter(replies)
        self._dynamic_tools = dynamic_tools
        self._ids = map("call_{}".format, count(1))
        self.requests: list[SeenRequest] = []

    @property
    def media(self) -> MediaSupport:
        return MediaSupport(types={"*": MAX_CONTENT_BYTES}, urls=(Media,))

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._dynamic_tools

    def connect(self, rendered: AnyRenderedPrompt, /) -> "ScriptedAdapter":
        """Returns this adapter, so that the script goes on over evaluations."""
        return self

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        """Returns the next reply of the script."""
        seen = SeenRequest(request, len(request.transcript))
        self.requests.append(seen)
        reply = next(self.replies, _END)
        if reply is _END:
            raise ScriptExhaustedError(
                f"the script has no reply for request {len(self.requests)}{_last_words(request)}"
            )
        if callable(reply):
            reply = reply(seen)
        if isinstance(reply, Exception):
            raise reply
        message = _check_reply(len(self.requests), reply)
        calls = (
            replace(tool_call, call_id=tool_call.call_id or next(self._ids))
            for tool_call in message.tool_calls
        )
        return replace(message, tool_calls=tuple(calls))

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        """Does what `ask` does."""
        return self.ask(request)


def _last_words(request: ProviderRequest) -> str:
    for message in request.transcript[:0:-1]:
        if isinstance(message, UserMessage | ToolMessage):
            return f"; the model last read {shorten(text_of(message.content), 200)!r}"
    return ""
