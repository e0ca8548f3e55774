"""`CodecAdapter` is the base class for adapters that use a codec.

A subclass sends requests through its SDK. This module ensures that even a synchronous caller can
stop waiting at the deadline, and removes credentials from errors.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import ref

from ..content import MediaSupport
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import ProviderRequest, RunConfig
from ..evaluation.messages import AssistantMessage, Message, sendable
from ..evaluation.response import Delta, ReasoningDelta, TextDelta
from ..event_loops import portal, run_on, start_on, yield_from_thread
from ..limits import Clock, Deadline
from ..model_settings import ModelSettings
from ..prompt.renderer import AnyRenderedPrompt
from ..redaction import Redactor
from .codec import AnyJson, Codec, CodecOptions, JsonObject, decode_reply, read_arrived
from .core import Connection, LoopAdapter
from .deltas import DeltaReader
from .provider_errors import error_from_failure, redact_error, reported_failure
from .settings_encoder import name_setting

__all__ = ["CodecAdapter"]

_GRACE = 0.25
"""How many seconds a synchronous caller waits after the deadline for a request to end."""

_END = object()

_open_streams = set[object]()
"""Streams on the portal, kept here so that no other thread's garbage collector finalizes them."""

# Any: JSON bytes, JSON values, or an SDK's event stream.
type AnyReply = Any


class CodecAdapter(LoopAdapter):
    """An adapter that encodes and decodes with a codec; subclasses send the requests.

    The `left` argument of `send` and `send_async` is the number of seconds until the deadline.
    """

    def __init__(
        self,
        codec: type[Codec],
        options: CodecOptions,
        *,
        config: RunConfig | None,
        clock: Clock,
        settings: ModelSettings | None = None,
    ) -> None:
        super().__init__(config=config, settings=settings, clock=clock)
        self.model = options.model
        self._codec = codec
        self._options = options
        if self.config.settings is not None:
            self.check_settings(self.config.settings)
        self._codecs: dict[int, _CodecEntry] = {}

    def __repr__(self) -> str:
        host = f" at {self._options.origin}" if self._options.origin else ""
        return f"<{type(self).__name__} {self.model!r}{host}>"

    @property
    def media(self) -> MediaSupport:
        return self._codec.media if self._options.media is None else self._options.media

    def identity(self) -> dict[str, object]:
        return {**super().identity(), "options": self._options}

    def check_settings(self, settings: ModelSettings) -> None:
        by = f"{type(self).__name__} for {self.model!r}"
        self._codec.check_settings(settings, self._options.profile, by)

    @property
    def cancellable(self) -> bool:
        """Whether a synchronous evaluation with a deadline can use `send_async` on the portal.

        On the portal, the request can be cancelled. Otherwise, `send` runs in a thread, which
        continues after the deadline even though its caller has stopped waiting.
        """
        return True

    @abstractmethod
    def send(self, body: JsonObject, left: float | None, *, stream: bool) -> AnyReply:
        """Sends a request; returns the reply as JSON bytes or values, or as stream events."""

    @abstractmethod
    async def send_async(self, body: JsonObject, left: float | None, *, stream: bool) -> AnyReply:
        """Like `send`, but does not block the event loop."""

    def end(self, events: AnyReply) -> None:
        """Closes a stream, even if it was only partly read."""
        events.close()

    async def end_async(self, events: AnyReply) -> None:
        """Like `end`, but does not block the event loop."""
        await events.close()

    @abstractmethod
    def translate(self, error: Exception) -> PromptEvaluationError:
        """Converts an exception from `send` to the library's error, which may quote credentials."""

    @abstractmethod
    def redactor(self, error: Exception | None = None) -> Redactor:
        """Returns a redactor for the adapter's credentials and those in the request of `error`."""

    def safe_cause(self, error: Exception) -> Exception | None:
        """Returns `error` if it can be shown as a cause, or `None` if it may quote a credential."""
        return None if self.redactor(error).finds_in(error) else error

    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        return _CodecConnection(self, self.codec(rendered))

    def codec(self, rendered: AnyRenderedPrompt) -> Codec:
        """Creates a codec for one evaluation of `rendered`."""
        return self._codec(self._options, self.name)

    def keep_codec(self, codec: Codec, first: Message, answer: AssistantMessage) -> None:
        """Keeps `codec` for the conversation's next run, until `answer` is garbage-collected."""
        key = id(answer)

        def forget(_: object) -> None:
            self._codecs.pop(key, None)

        self._codecs[key] = _CodecEntry(codec, first, ref(answer, forget))

    def take_codec(self, request: ProviderRequest) -> Codec | None:
        """Returns the kept codec that encoded the conversation up to the model's last answer."""
        for index in range(len(request.transcript) - 1, -1, -1):
            message = request.transcript[index]
            if isinstance(message, AssistantMessage):
                entry = self._codecs.pop(id(message), None)
                if entry and entry.first is request.transcript[0]:
                    return entry.codec if entry.codec.continues(request, index) else None
                return None
        return None


class _CodecEntry(NamedTuple):
    """A conversation's codec, its first message, and a weak reference to its last answer.

    The entry is removed when the answer is garbage-collected.
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
    _deadline: Deadline | None = None
    _settings: ModelSettings | None = None
    _events: list[AnyJson] = field(default_factory=list[AnyJson])

    def close(self) -> None:
        if self._first is not None and self._answer is not None:
            self.adapter.keep_codec(self.codec, self._first, self._answer)

    def _encode(self, request: ProviderRequest) -> JsonObject:
        if self._first is None:
            self.codec = self.adapter.take_codec(request) or self.codec
            self._first = request.transcript[0]
        self._deadline, self._settings = self.adapter.deadline_of(request), request.settings
        self._answer = None  # if this request fails, the codec cannot be kept
        self._events = []
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
        with self._errors(), closing(self._replies(body, self._deadline, stream=False)) as replies:
            return self._decode(next(replies))

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        body = self._encode(request)
        with self._errors():
            reply = await self._send_async(body, self._deadline, stream=False)
            return self._decode(reply)

    def ask_stream(self, request: ProviderRequest, /) -> Iterator[Delta | AssistantMessage]:
        body = self.codec.streamed(self._encode(request))
        reader = self.codec.delta_reader()
        with self._errors():
            with closing(self._replies(body, self._deadline, stream=True)) as replies:
                for event in replies:
                    self.adapter.check_deadline(self._deadline)
                    yield from self._read_event(event, reader)
            last = self._join(reader)
        yield from last

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[Delta | AssistantMessage]:
        body = self.codec.streamed(self._encode(request))
        reader = self.codec.delta_reader()
        with self._errors():
            stream = await self._send_async(body, self._deadline, stream=True)
            source = aiter(stream)
            try:
                while (event := await self._next_event(source, self._deadline)) is not _END:
                    for delta in self._read_event(event, reader):
                        yield delta
            finally:
                await self._end_async(stream, source)
            last = self._join(reader)
        for piece in last:
            yield piece

    def _read_event(self, event: AnyJson, reader: DeltaReader) -> list[Delta]:
        """Stores a stream event and returns its deltas; raises any failure that it reports."""
        if failure := reported_failure(event):
            raise error_from_failure(self.adapter.name, failure)
        self._events.append(event)
        return reader.read(event)

    def _join(self, reader: DeltaReader) -> list[Delta | AssistantMessage]:
        """Returns the answer, preceded by any part of it that was not streamed."""
        answer = decode_reply(self.codec, self._events, streamed=True)
        last: list[Delta | AssistantMessage] = []
        if (streamed := sendable(reader.reasoning)) != answer.reasoning:
            if answer.reasoning.startswith(streamed):
                last.append(ReasoningDelta(answer.reasoning[len(streamed) :]))
            else:  # the deltas must add up to the message's reasoning
                answer = replace(answer, reasoning=streamed)
        if answer.text and not reader.has_text and answer.finish != "refusal":
            last.append(TextDelta(answer.text))
        self._answer = answer
        return [*last, answer]

    def _replies(
        self, body: JsonObject, deadline: Deadline | None, *, stream: bool
    ) -> Generator[AnyReply]:
        """Yields the reply or the stream's events, and enforces the deadline."""
        if deadline is None:
            return self._direct(body, None, stream=stream)
        if self.adapter.cancellable:
            return self._from_portal(body, deadline, stream=stream)

        def seconds_left() -> float:
            return self.adapter.seconds_left(deadline) or 0

        return yield_from_thread(
            lambda: self._direct(body, seconds_left(), stream=stream), seconds_left
        )

    def _direct(self, body: JsonObject, left: float | None, *, stream: bool) -> Generator[AnyReply]:
        reply = self.adapter.send(body, left, stream=stream)
        if not stream:
            yield reply
            return
        try:
            yield from reply
        finally:
            self.adapter.end(reply)

    def _from_portal(
        self, body: JsonObject, deadline: Deadline, *, stream: bool
    ) -> Generator[AnyReply]:
        """Reads asynchronously, so that any wait can be cancelled."""
        loop = portal.loop()

        def limit() -> float:
            return (self.adapter.seconds_left(deadline) or 0) + _GRACE

        reply = run_on(loop, self._send_async(body, deadline, stream=stream), limit())
        if not stream:
            yield reply
            return
        source = aiter(reply)
        _open_streams.add(source)
        try:
            while (event := run_on(loop, self._next_event(source, deadline), limit())) is not _END:
                yield event
        finally:
            # Not awaited, because the garbage collector may close this generator on the loop's
            # thread.
            start_on(loop, self._end_quietly(reply, source))

    async def _send_async(
        self, body: JsonObject, deadline: Deadline | None, *, stream: bool
    ) -> AnyReply:
        left = self.adapter.seconds_left(deadline)
        if left is None:
            return await self.adapter.send_async(body, None, stream=stream)
        # An SDK's own timeout restarts with each byte and each retry.
        async with asyncio.timeout(left):
            return await self.adapter.send_async(body, left, stream=stream)

    async def _next_event(
        self, source: AsyncIterator[AnyJson], deadline: Deadline | None
    ) -> AnyJson:
        """Returns a stream's next event, or `_END` after the last one."""
        if deadline is None:
            return await anext(source, _END)
        async with asyncio.timeout(self.adapter.seconds_left(deadline)):
            event = await anext(source, _END)
        # Events that arrive without a pause never trigger a timeout.
        self.adapter.check_deadline(deadline)
        return event

    async def _end_async(self, stream: AnyReply, source: AsyncIterator[AnyJson]) -> None:
        """Closes a stream and its generator, which other threads may otherwise finalize."""
        try:
            await self.adapter.end_async(stream)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    async def _end_quietly(self, stream: AnyReply, source: AsyncIterator[AnyJson]) -> None:
        with suppress(Exception):
            await self._end_async(stream, source)
        _open_streams.discard(source)

    def _name_setting(self, error: PromptEvaluationError) -> None:
        codec = self.codec
        name_setting(error, self._settings, codec.supported_settings(codec.options.profile))

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Converts exceptions from sending and reading, and masks credentials in them."""
        try:
            yield
        except PromptEvaluationError as error:
            redact_error(error, self.adapter.redactor(error))  # a reply may quote the request
            self._name_setting(error)
            raise
        except Exception as error:
            translated = redact_error(self.adapter.translate(error), self.adapter.redactor(error))
            self._name_setting(translated)
            raise translated from self.adapter.safe_cause(error)
