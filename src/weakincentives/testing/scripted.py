"""An adapter with a scripted model, but the same loop, executor and events as real adapters."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from textwrap import shorten

from .. import serde
from ..adapters.core import Connection, LoopAdapter
from ..citations import Citation
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
from ..model_settings import ModelSettings
from ..prompt.renderer import AnyRenderedPrompt

__all__ = ["Reply", "ScriptExhaustedError", "ScriptedAdapter", "SeenRequest", "call", "say"]


class ScriptExhaustedError(AssertionError):
    """The adapter received more requests than its script has replies."""


def say(
    output: object = "done",
    *,
    usage: TokenUsage | None = None,
    reasoning: str = "",
    citations: Sequence[Citation] = (),
) -> AssistantMessage:
    """Returns the model's final reply: a text, or a value as JSON."""
    text = output if isinstance(output, str) else serde.dump_json(output)
    return AssistantMessage(
        text=text, usage=usage or TokenUsage(10, 5), reasoning=reasoning, citations=tuple(citations)
    )


def call(
    *calls: tuple[str, object], usage: TokenUsage | None = None, reasoning: str = ""
) -> AssistantMessage:
    """Returns a reply with tool calls; each call is a pair of name and arguments.

    Arguments are a dict, a params dataclass or JSON text. The adapter adds call ids when it plays
    the reply. Raises `TypeError` for anything that is not a pair.
    """
    for pair in calls:
        match pair:
            case (str(), _):
                pass
            case _:
                raise TypeError(
                    "call takes pairs of a tool name and arguments, such as call((name, "
                    f"arguments)), got {pair!r}"
                )
    return AssistantMessage(
        tool_calls=tuple(ToolCall("", name, _json(arguments)) for name, arguments in calls),
        finish="tool_calls",
        usage=usage or TokenUsage(10, 5),
        reasoning=reasoning,
    )


def _json(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments) if isinstance(arguments, dict) else serde.dump_json(arguments)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as the model saw it: the evaluation's transcript up to that point."""

    request: ProviderRequest
    length: int

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation up to this request."""
        return tuple(self.request.transcript[: self.length])

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """All tools that the model could call; a tool that was added twice is listed twice."""
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
        """The names of the tools, in the order in which they became available."""
        return tuple(tool.name for tool in self.tools)


type Reply = AssistantMessage | Exception | Callable[[SeenRequest], AssistantMessage | Exception]
"""A step in a script: a message, an error to raise, or a function that receives the request."""


_END = AssistantMessage()  # marks the end of the replies


def _check_reply(number: int, reply: object) -> AssistantMessage:
    if not isinstance(reply, AssistantMessage):
        raise TypeError(
            f"reply {number} of the script must be say(…) or call(…), got {reply!r:.200}"
        )
    return reply


class ScriptedAdapter(LoopAdapter, Connection):
    """Plays `replies` in order and records every request; evaluations share one script.

    `replies` contains the rest of the script, and `requests` contains the requests that the model
    saw. With `dynamic_tools=False`, opening a section with tools restarts the evaluation. Raises
    `ScriptExhaustedError` if the script has no replies left, `AssertionError` for a reply that
    `tool_choice` does not allow, and `TypeError` for an invalid reply. If `replies` is a list or a
    tuple, the constructor already raises this `TypeError`.
    """

    name = "scripted"

    def __init__(
        self,
        replies: Iterable[Reply],
        *,
        dynamic_tools: bool = True,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        super().__init__(config=config, settings=settings, clock=clock)
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

    def check_settings(self, settings: ModelSettings) -> None:
        """Accepts all settings; a request has them in `request.settings`."""

    def connect(self, rendered: AnyRenderedPrompt, /) -> "ScriptedAdapter":
        """Returns this adapter, so that all evaluations continue the same script."""
        return self

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        """Returns the script's next reply."""
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
        _check_choice(len(self.requests), message, request.settings)
        calls = (
            replace(tool_call, call_id=tool_call.call_id or next(self._ids))
            for tool_call in message.tool_calls
        )
        return replace(message, tool_calls=tuple(calls))

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        """Like `ask`."""
        return self.ask(request)


def _check_choice(number: int, message: AssistantMessage, settings: ModelSettings | None) -> None:
    """Raises `AssertionError` for a complete reply without the call that the settings force."""
    if settings is None or message.finish not in ("stop", "tool_calls"):
        return
    choice, names = settings.tool_choice, [call.name for call in message.tool_calls]
    if choice == "none" and names:
        needed = "no tool call"
    elif settings.forces_call and not names:
        needed = "a tool call"
    elif settings.forces_call and choice not in ("required", *names):
        needed = f"a call of {choice!r}"
    else:
        return
    raise AssertionError(
        f"reply {number} must have {needed} because of tool_choice={choice!r}, which providers "
        f"enforce; got {', '.join(names) or repr(shorten(message.text, 200))}"
    )


def _last_words(request: ProviderRequest) -> str:
    for message in request.transcript[:0:-1]:
        if isinstance(message, UserMessage | ToolMessage):
            return f"; the model last read {shorten(text_of(message.content), 200)!r}"
    return ""
