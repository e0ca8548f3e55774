"""`CodecAdapter`: an adapter that talks to its provider through a codec.

A subclass sends requests through its SDK. This module chooses a way of sending in which even a
synchronous caller can stop waiting at the deadline, and it removes credentials from errors.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

from ..content import MediaSupport
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import ProviderRequest, RunConfig
from ..evaluation.messages import AssistantMessage, Message
from ..evaluation.response import TextDelta
from ..event_loops import portal, run_on, start_on, yield_from_thread
from ..limits import Clock, Deadline
from ..prompt.renderer import AnyRenderedPrompt
from ..redaction import Redactor
from .codec import AnyJson, Codec, CodecOptions, Wire, decode_reply, read_arrived
from .core import Connection, LoopAdapter
from .provider_errors import error_from_failure, redact_error, reported_failure
from .think_tags import ThoughtFilter

__all__ = ["CodecAdapter"]

_GRACE = 0.25
"""Seconds that a synchronous caller waits beyond the deadline for a request to end."""

_END = object()

_being_read = set[object]()
"""Streams on the portal: the garbage collector would finalize them from another thread."""

# Any: bytes of JSON, JSON values, or an SDK's stream of events.
type AnyReply = Any


class CodecAdapter(LoopAdapter):
    """An adapter that writes and reads with a codec; a subclass sends the requests.

    The argument `left` of `send` and `send_async` is the number of seconds until the deadline.
    """

    def __init__(
        self,
        codec: type[Codec],
        options: CodecOptions,
        *,
        config: RunConfig | None,
        clock: Clock,
    ) -> None:
        super().__init__(config=config, clock=clock)
        self.model = options.model
        self._codec = codec
        self._options = options
        self._codecs: dict[int, _CodecEntry] = {}

    @property
    def media(self) -> MediaSupport:
        return self._codec.media if self._options.media is None else self._options.media

    @property
    def cancellable(self) -> bool:
        """Whether a synchronous evaluation with a deadline may use `send_async` on the portal.

        The request can be cancelled there. Otherwise `send` runs in a thread, which goes on
        after the deadline without its caller.
        """
        return True

    @abstractmethod
    def send(self, body: Wire, left: float | None, *, stream: bool) -> AnyReply:
        """Returns the reply to a request as bytes of JSON or as JSON values, or its events."""

    @abstractmethod
    async def send_async(self, body: Wire, left: float | None, *, stream: bool) -> AnyReply:
        """Like `send`, without blocking the event loop."""

    def end(self, events: AnyReply) -> None:
        """Closes a stream, which may have been read only in part."""
        events.close()

    async def end_async(self, events: AnyReply) -> None:
        """Like `end`, without blocking the event loop."""
        await events.close()

    @abstractmethod
    def translate(self, error: Exception) -> PromptEvaluationError:
        """Returns the library's error for what `send` raised; its text may hold credentials."""

    @abstractmethod
    def redactor(self, error: Exception | None = None) -> Redactor:
        """Returns a redactor of the adapter's credentials and those in the request of `error`."""

    def safe_cause(self, error: Exception) -> Exception | None:
        """Returns `error` as a cause to show, `None` if it or its own causes quote a credential."""
        return None if self.redactor(error).finds_in(error) else error

    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        return _CodecConnection(self, self.codec(rendered))

    def codec(self, rendered: AnyRenderedPrompt) -> Codec:
        """Returns a new codec, for one evaluation of `rendered`."""
        return self._codec(self._options, self.name)

    def keep_codec(self, codec: Codec, first: Message, answer: AssistantMessage) -> None:
        """Keeps `codec` for the next run of its conversation, as long as `answer` lives."""
        key = id(answer)

        def forget(_: object) -> None:
            self._codecs.pop(key, None)

        self._codecs[key] = _CodecEntry(codec, first, ref(answer, forget))

    def take_codec(self, request: ProviderRequest) -> Codec | None:
        """Returns the codec that has written the conversation up to the model's last answer."""
        for index in range(len(request.transcript) - 1, -1, -1):
            message = request.transcript[index]
            if isinstance(message, AssistantMessage):
                entry = self._codecs.pop(id(message), None)
                if entry and entry.first is request.transcript[0]:
                    return entry.codec if entry.codec.continues(request, index) else None
                return None
        return None


class _CodecEntry(NamedTuple):
    """The codec of a conversation, its first message, and a reference to its last answer.

    When nothing else refers to the answer, the reference removes the entry.
    """

    codec: Codec
    first: Message
    answer: ref[AssistantMessage]


@dataclass(slots=True)
class _CodecConnection(Connection):
    """The requests of one evaluation."""

    adapter: CodecAdapter
    codec: Codec
    _first: Message | None = None
    _answer: AssistantMessage | None = None
    _events: list[AnyJson] = field(default_factory=list[AnyJson])
    _thoughts: ThoughtFilter | None = None

    def close(self) -> None:
        if self._first is not None and self._answer is not None:
            self.adapter.keep_codec(self.codec, self._first, self._answer)

    def _encode(self, request: ProviderRequest) -> Wire:
        if self._first is None:
            self.codec = self.adapter.take_codec(request) or self.codec
            self._first = request.transcript[0]
        self._answer = None  # without an answer to this request, the codec is of no further use
        self._events = []
        self._thoughts = ThoughtFilter() if self.codec.options.profile.think_tags else None
        return self.codec.encode(request)

    def _decode(self, reply: AnyJson) -> AssistantMessage:
        self._events = [reply]
        self._answer = decode_reply(self.codec, reply)
        return self._answer

    def arrived(self) -> AssistantMessage | None:
        if self._answer is not None or not self._events:
            return None
        return read_arrived(self.codec, self._events)

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        body = self._encode(request)
        with (
            self._errors(),
            closing(self._replies(body, request.deadline, stream=False)) as replies,
        ):
            return self._decode(next(replies))

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        body = self._encode(request)
        with self._errors():
            reply = await self._send_async(body, request.deadline, stream=False)
            return self._decode(reply)

    def ask_stream(self, request: ProviderRequest, /) -> Iterator[TextDelta | AssistantMessage]:
        body = self.codec.streamed(self._encode(request))
        has_text = False
        with self._errors():
            with closing(self._replies(body, request.deadline, stream=True)) as replies:
                for event in replies:
                    self.adapter.check_deadline(request.deadline)
                    if text := self._read_event(event):
                        has_text = True
                        yield TextDelta(text)
            answer = self._join()
        if unseen := _unseen(answer, has_text=has_text):
            yield unseen
        yield answer

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[TextDelta | AssistantMessage]:
        body = self.codec.streamed(self._encode(request))
        has_text = False
        with self._errors():
            stream = await self._send_async(body, request.deadline, stream=True)
            try:
                source = aiter(stream)
                while (event := await self._next_event(source, request.deadline)) is not _END:
                    if text := self._read_event(event):
                        has_text = True
                        yield TextDelta(text)
            finally:
                await self.adapter.end_async(stream)
            answer = self._join()
        if unseen := _unseen(answer, has_text=has_text):
            yield unseen
        yield answer

    def _read_event(self, event: AnyJson) -> str:
        """Keeps an event of a stream and returns its text; raises the failure that it reports."""
        if failure := reported_failure(event):
            raise error_from_failure(self.adapter.name, failure)
        self._events.append(event)
        text = self.codec.read_text(event)
        return text if self._thoughts is None else self._thoughts.feed(text)

    def _join(self) -> AssistantMessage:
        self._answer = decode_reply(self.codec, self._events, streamed=True)
        return self._answer

    def _replies(
        self, body: Wire, deadline: Deadline | None, *, stream: bool
    ) -> Generator[AnyReply]:
        """Yields the reply, or the events of a stream, in a way that keeps the deadline."""
        if deadline is None:
            return self._direct(body, None, stream=stream)
        if self.adapter.cancellable:
            return self._from_portal(body, deadline, stream=stream)

        def seconds_left() -> float:
            return self.adapter.seconds_left(deadline) or 0

        return yield_from_thread(
            lambda: self._direct(body, seconds_left(), stream=stream), seconds_left
        )

    def _direct(self, body: Wire, left: float | None, *, stream: bool) -> Generator[AnyReply]:
        reply = self.adapter.send(body, left, stream=stream)
        if not stream:
            yield reply
            return
        try:
            yield from reply
        finally:
            self.adapter.end(reply)

    def _from_portal(self, body: Wire, deadline: Deadline, *, stream: bool) -> Generator[AnyReply]:
        """Reads asynchronously, so that each wait can be cancelled."""
        loop = portal.loop()

        def limit() -> float:
            return (self.adapter.seconds_left(deadline) or 0) + _GRACE

        reply = run_on(loop, self._send_async(body, deadline, stream=stream), limit())
        if not stream:
            yield reply
            return
        source = aiter(reply)
        _being_read.add(source)
        try:
            while (event := run_on(loop, self._next_event(source, deadline), limit())) is not _END:
                yield event
        finally:
            # not awaited: the garbage collector may close this generator on the loop's thread
            start_on(loop, self._end_quietly(reply, source))

    async def _send_async(self, body: Wire, deadline: Deadline | None, *, stream: bool) -> AnyReply:
        left = self.adapter.seconds_left(deadline)
        if left is None:
            return await self.adapter.send_async(body, None, stream=stream)
        # an SDK's own time-out starts anew with each byte and each retry
        async with asyncio.timeout(left):
            return await self.adapter.send_async(body, left, stream=stream)

    async def _next_event(
        self, source: AsyncIterator[AnyJson], deadline: Deadline | None
    ) -> AnyJson:
        """Returns the next event of a stream, `_END` after the last one."""
        if deadline is None:
            return await anext(source, _END)
        async with asyncio.timeout(self.adapter.seconds_left(deadline)):
            event = await anext(source, _END)
        # events that come without a pause never let a time-out fire
        self.adapter.check_deadline(deadline)
        return event

    async def _end_quietly(self, stream: AnyReply, source: object) -> None:
        with suppress(Exception):
            await self.adapter.end_async(stream)
        _being_read.discard(source)

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Translates exceptions of sending and reading, and masks credentials in them."""
        try:
            yield
        except PromptEvaluationError as error:
            redact_error(error, self.adapter.redactor(error))  # a reply may quote the request
            raise
        except Exception as error:
            translated = redact_error(self.adapter.translate(error), self.adapter.redactor(error))
            raise translated from self.adapter.safe_cause(error)


def _unseen(answer: AssistantMessage, *, has_text: bool) -> TextDelta | None:
    """Returns the text of an answer that came whole where a stream was asked for."""
    shown = has_text or not answer.text or answer.finish == "refusal"
    return None if shown else TextDelta(answer.text)
