"""What codecs are and share: writing a transcript piece by piece, reading a reply without trusting
its shape.

And the conversation that goes by way of one: what asking is like, whichever SDK sends the requests.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import InnerLoopConfig, ProviderRequest
from ..evaluation.messages import (
    AssistantMessage,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    sendable,
)
from ..evaluation.response import TextDelta
from ..evaluation.schemas import OutputSpec, ToolSpec
from ..limits import Clock, Deadline, TokenUsage
from ..prompt.renderer import RenderedPrompt
from ..serde import Json
from .core import Connection, LoopAdapter
from .portal import pieces_from_thread, portal
from .provider_errors import error_from_request

__all__ = [
    "Codec",
    "CodecAdapter",
    "CodecOptions",
    "call_of",
    "decoded",
    "malformed",
    "output_instructions",
    "provider_failed",
    "usage_of",
]

_GRACE = 0.25
"""Seconds that a request may take to end after its deadline before a synchronous caller leaves it
behind.
"""

_NO_EVENT = object()

# Any: wire payloads are dicts of the provider's grammar, and become keyword arguments of its SDK.
type Wire = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecOptions:
    """How requests are written.

    `prompt_role` is the role of the prompt's message: every server takes a user message, not all a
    system message. `structured_output` asks for typed output by the API's own means, or by words in
    the prompt for servers without it. `tools_in_conversation` places tools that are added later in
    the conversation instead of the tools list, which keeps the part of the request that the
    provider has cached. `extra` goes into every request and replaces what it names there, but for
    the prompt's tools, before which its own stand, and the declared output. Raises `ValueError` for
    a role or a way of output that there is not, and for `extra` that holds the conversation or
    `stream`.
    """

    model: str
    prompt_role: Literal["user", "system", "developer"] = "user"
    structured_output: Literal["native", "prompted"] = "native"
    tools_in_conversation: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.structured_output not in ("native", "prompted"):
            raise ValueError(
                f"structured_output is {self.structured_output!r}; use 'native' or 'prompted'"
            )
        if self.prompt_role not in ("user", "system", "developer"):
            raise ValueError(
                f"prompt_role is {self.prompt_role!r}; use 'user', 'system' or 'developer'"
            )
        if ours := self.extra.keys() & {"input", "messages", "stream"}:
            raise ValueError(f"options {sorted(ours)} are set by the adapter; leave them out")

    def around(self, body: Wire) -> Wire:
        """A whole request of what the prompt puts into it."""
        body = {"model": self.model, **body}
        for key, value in self.extra.items():
            match key, value, body.get(key):
                case _, Mapping(), dict() as own:
                    body[key] = {**value, **own}
                case "tools", [*theirs], [*own]:  # the last to come stand last, for caches
                    body[key] = [*theirs, *own]
                case _:
                    body[key] = value
        return body


class Codec(ABC):
    """One conversation in a provider's terms; it encodes only what is new since its last request.

    `items` are the messages of the next request and `tools` its tools by name; both only grow, but
    for removed tools. A subclass says how each of them is written and how a reply is read.
    """

    def __init__(self, options: CodecOptions, provider: str) -> None:
        self.options = options
        self.provider = provider
        self.items: list[Wire] = []
        self.tools: dict[str, Wire] = {}
        self._encoded = 0

    def encode(self, request: ProviderRequest) -> Wire:
        """The request's body; its lists are this codec's own."""
        if not self._encoded:
            self.tools = {spec.name: self.tool(spec) for spec in request.tools}
        output, native = request.output, self.options.structured_output == "native"
        for message in request.transcript[self._encoded :]:
            match message:
                case UserMessage(content) if self.items:
                    self.items.append({"role": "user", "content": content})
                case UserMessage(content):
                    asked = "" if output is None or native else f"\n\n{output_instructions(output)}"
                    self.items.append(
                        {"role": self.options.prompt_role, "content": content + asked}
                    )
                case AssistantMessage():
                    self.items += self.assistant(message)
                case ToolMessage():
                    self.items.append(self.answer(message))
                case ToolsAdded(added):
                    self.add_tools({spec.name: self.tool(spec) for spec in added})
                case ToolsRemoved(names):
                    self.remove_tools(names)
                case never:
                    assert_never(never)
        self._encoded = len(request.transcript)
        tools = {"tools": list(self.tools.values())} if self.tools else {}
        return self.options.around({**self.body(output if native else None), **tools})

    @abstractmethod
    # Any: read key by key, each checked where it matters
    def decode(self, reply: Any) -> AssistantMessage:
        """The reply, given as plain JSON values.

        Raises `PromptEvaluationError` for what is no reply.
        """

    streaming: Wire
    """What a request has besides when its reply is to come in pieces."""

    @abstractmethod
    def text_of(self, event: Any) -> str:  # Any: as in `decode`
        """The text that one event of a streamed reply brings, `""` for none."""

    @abstractmethod
    def joined(self, events: list[Any]) -> object:  # Any: as in `decode`
        """The whole reply for `decode`, from all events of its stream; `None` when they do not make
        one.
        """

    @abstractmethod
    def body(self, output: OutputSpec | None) -> Wire:
        """The request's own part: the items, and the declared output if the API is to be asked for
        it.
        """

    @abstractmethod
    def tool(self, spec: ToolSpec) -> Wire:
        """One entry of the tools list."""

    @abstractmethod
    def assistant(self, message: AssistantMessage) -> list[Wire]:
        """The items by which the model's own message is sent back."""

    @abstractmethod
    def answer(self, message: ToolMessage) -> Wire:
        """The item that answers a tool call."""

    def add_tools(self, added: Mapping[str, Wire]) -> None:
        """Makes further tools available from here on."""
        self.tools |= added

    def remove_tools(self, names: Collection[str]) -> None:
        """Takes tools away from here on."""
        for name in names:
            self.tools.pop(name, None)


class CodecAdapter(LoopAdapter):
    """An adapter that asks by way of a codec; a subclass sends the requests and says what it means
    when that fails.

    `left` are the seconds until the deadline, `None` without one.
    """

    def __init__(
        self,
        codec: type[Codec],
        options: CodecOptions,
        *,
        config: InnerLoopConfig | None,
        clock: Clock,
    ) -> None:
        super().__init__(config=config, clock=clock)
        self.model = options.model
        self._codec = codec
        self._options = options

    @property
    def cancellable(self) -> bool:
        """Whether a synchronous evaluation with a deadline may ask by `send_async`, on an event
        loop of ours.

        It can be cancelled there. Otherwise `send` runs in a thread, which is left behind when the
        deadline passes.
        """
        return True

    @abstractmethod
    # Any: bytes of JSON, JSON, or a stream
    def send(self, body: Wire, left: float | None, *, stream: bool) -> Any:
        """The reply to a request as JSON, in bytes or in plain values, or its events, to iterate
        over.
        """

    @abstractmethod
    # Any: as above
    async def send_async(self, body: Wire, left: float | None, *, stream: bool) -> Any:
        """As `send`, without blocking the event loop."""

    def end(self, events: Any) -> None:
        """Ends a stream, read to its end or not."""
        events.close()

    async def end_async(self, events: Any) -> None:
        """As `end`, without blocking the event loop."""
        await events.close()

    @abstractmethod
    def fault(self, error: Exception) -> PromptEvaluationError:
        """What sending raised, as one of our errors."""

    @abstractmethod
    def safe_cause(self, error: Exception) -> Exception | None:
        """`error` as a cause to show, unless it could quote the key."""

    @abstractmethod
    def without_keys(self, text: str) -> str:
        """`text` without the keys of this adapter."""

    # Any: a prompt of any output
    def connect(self, rendered: RenderedPrompt[Any], /) -> Connection:
        """A new conversation with this adapter's model."""
        return _CodecConversation(self, self._codec(self._options, self.name))


@dataclass(frozen=True, slots=True)
class _CodecConversation(Connection):
    adapter: CodecAdapter  # Any: prompts of every output
    codec: Codec

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        body = self.codec.encode(request)
        with self._faults(request.deadline) as left:
            if left is None:
                return decoded(self.codec, self.adapter.send(body, None, stream=False))
            if not self.adapter.cancellable:
                with closing(self._from_thread(body, request.deadline, stream=False)) as replies:
                    return decoded(self.codec, next(replies))
            with portal.open() as run:
                reply = run(self._reply(body, left), left + _GRACE)
            return decoded(self.codec, reply)

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        body = self.codec.encode(request)
        with self._faults(request.deadline) as left:
            return decoded(self.codec, await self._reply(body, left))

    # Any: as `send` gives it
    async def _reply(self, body: Wire, left: float | None, *, stream: bool = False) -> Any:
        # an SDK's own time-out starts anew with each byte and each retry
        async with asyncio.timeout(left):
            return await self.adapter.send_async(body, left, stream=stream)

    def ask_stream(self, request: ProviderRequest, /) -> Iterator[TextDelta | AssistantMessage]:
        body, deadline = self.codec.encode(request) | self.codec.streaming, request.deadline
        events: list[Any] = []  # Any: the SDK's own, or JSON
        with self._faults(deadline):
            if deadline is None:
                source = self._direct(body, None, stream=True)
            elif self.adapter.cancellable:
                source = self._from_portal(body, deadline)
            else:
                source = self._from_thread(body, deadline, stream=True)
            with closing(source):
                for event in source:
                    self.adapter.check_deadline(deadline)
                    events.append(event)
                    if text := self.codec.text_of(event):
                        yield TextDelta(text)
            answer = decoded(self.codec, events, joined=True)
        yield answer

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[TextDelta | AssistantMessage]:
        body = self.codec.encode(request) | self.codec.streaming
        events: list[Any] = []  # Any: the SDK's own, or JSON
        with self._faults(request.deadline) as left:
            source = await self._reply(body, left, stream=True)
            try:
                async for event in (
                    source if left is None else self._timed(source, request.deadline)
                ):
                    events.append(event)
                    if text := self.codec.text_of(event):
                        yield TextDelta(text)
            finally:
                await self.adapter.end_async(source)
            answer = decoded(self.codec, events, joined=True)
        yield answer

    # Any: an SDK's own stream
    async def _timed(self, source: Any, deadline: Deadline | None) -> AsyncGenerator[Any]:
        """The events of a stream, each of which must come before the deadline."""
        events = aiter(source)
        while (event := await self._next_event(events, deadline)) is not _NO_EVENT:
            yield event

    # Any: an SDK's iterator and its items
    async def _next_event(self, events: Any, deadline: Deadline | None) -> Any:
        """The next event of a stream, `_NO_EVENT` at its end."""
        async with asyncio.timeout(self.adapter.seconds_left(deadline)):
            event = await anext(events, _NO_EVENT)
        # a flood of events leaves a time-out no moment to act
        self.adapter.check_deadline(deadline)
        return event

    # Any: as `send` gives it
    def _direct(self, body: Wire, left: float | None, *, stream: bool) -> Generator[Any]:
        """The events of a stream, or the one reply."""
        reply = self.adapter.send(body, left, stream=stream)
        if not stream:
            yield reply
            return
        try:
            yield from reply
        finally:
            self.adapter.end(reply)

    def _from_portal(self, body: Wire, deadline: Deadline) -> Generator[Any]:  # Any: as above
        """The events of a stream that is read asynchronously, so that each wait for one can be
        cancelled.
        """
        with portal.open() as run:
            left = self.adapter.seconds_left(deadline) or 0
            source = run(self._reply(body, left, stream=True), left + _GRACE)
            try:
                events = aiter(source)
                while True:
                    left = self.adapter.seconds_left(deadline) or 0
                    event = run(self._next_event(events, deadline), left + _GRACE)
                    if event is _NO_EVENT:
                        return
                    yield event
            finally:
                # not awaited: the garbage collector may close this on the loop's thread
                run.start(self._end(source))

    async def _end(self, source: Any) -> None:  # Any: an SDK's own stream
        with suppress(Exception):  # such as that the garbage collector has begun to close it
            await self.adapter.end_async(source)

    # Any: as above
    def _from_thread(
        self, body: Wire, deadline: Deadline | None, *, stream: bool
    ) -> Generator[Any]:
        """The events of a stream, or the one reply, from a client that can only be left behind."""

        def seconds_left() -> float:
            return self.adapter.seconds_left(deadline) or 0

        return pieces_from_thread(
            lambda: self._direct(body, seconds_left(), stream=stream), seconds_left
        )

    @contextmanager
    def _faults(self, deadline: Deadline | None) -> Generator[float | None]:
        """Makes what sending raises one of our errors, without keys; gives the seconds until the
        deadline.
        """
        try:
            yield self.adapter.seconds_left(deadline)
        except PromptEvaluationError as error:
            # of a reply that quotes the request
            error.message = self.adapter.without_keys(error.message)
            error.args = (error.message,)
            raise
        except Exception as error:
            raise self.adapter.fault(error) from self.adapter.safe_cause(error)


def output_instructions(output: OutputSpec) -> str:
    """Words that ask for the declared output where the API cannot."""
    schema = json.dumps(output.schema, ensure_ascii=False)
    return f"Give your final answer as one JSON value that fits this JSON schema, and nothing beside it:\n\n{schema}"


# Any: as in `Codec.decode`
def decoded(codec: Codec, reply: Any, *, joined: bool = False) -> AssistantMessage:
    """What `codec` reads in `reply`, or in the events of its stream if it is to be `joined` from
    them.

    A shape that the codec did not expect is a malformed reply, whatever it trips over.
    """
    try:
        if joined:
            reply = codec.joined(reply)
        elif isinstance(reply, bytes):
            reply = json.loads(reply)
        # What is read must go back: no lone surrogates, which JSON can spell, and no objects of an
        # SDK.
        return codec.decode(
            json.loads(sendable(json.dumps(reply, ensure_ascii=False, default=str)))
        )
    except PromptEvaluationError:
        raise
    except Exception as error:
        told = None if isinstance(error, UnicodeError) else error  # its repr holds the whole reply
        raise malformed(codec.provider, f"reading it failed with {type(error).__name__}") from told


def provider_failed(provider: str, message: object) -> PromptEvaluationError:
    """The error for a reply that says itself that there is no answer."""
    return error_from_request(
        provider, "provider_failed", str(message), "try again later", phase="response"
    )


def malformed(provider: str, what: str) -> PromptEvaluationError:
    """The error for a reply of the wrong shape."""
    told, remedy = f"the reply is malformed: {what}", "check that base_url serves this API"
    return error_from_request(provider, "malformed", told, remedy, phase="response")


def call_of(call_id: object, name: object, arguments: object, *, fallback_id: str) -> ToolCall:
    """A tool call; some servers leave the id out or send arguments as an object."""
    text = (
        arguments
        if isinstance(arguments, str)
        else json.dumps({} if arguments is None else arguments)
    )
    return ToolCall(str(call_id or fallback_id), str(name or ""), text)


def usage_of(usage: Json, names: tuple[str, str, str]) -> TokenUsage:
    """Token counts by the provider's `names` for input, output and the details that hold cached
    input.
    """
    if not isinstance(usage, dict):
        return TokenUsage()
    details = usage.get(names[2])
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return TokenUsage(_count(usage.get(names[0])), _count(usage.get(names[1])), _count(cached))


def _count(value: object) -> int:
    # less than nothing would lengthen a budget
    return max(int(value), 0) if isinstance(value, int | float) else 0
