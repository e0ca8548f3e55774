"""`Cassette` records a model's answers in a file, and later plays them without the provider."""

import os
import re
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from .. import serde
from ..adapters.core import Connection, LoopAdapter
from ..adapters.model_names import adapter_for
from ..content import MAX_CONTENT_BYTES, Media, MediaSupport
from ..evaluation.adapter import source_of
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import ProviderRequest, RunConfig
from ..evaluation.logged_run import ProviderFailure
from ..evaluation.messages import AssistantMessage
from ..evaluation.response import AnswerRejected, Delta, ReasoningDelta, TextDelta
from ..limits import Clock, utc_now
from ..model_settings import ModelSettings
from ..prompt.renderer import AnyRenderedPrompt
from ..redaction import MASK, SECRET_NAMES, Redactor, credentials_in
from ..signatures import did_you_mean
from .cassette_diffs import Asked, describe_miss
from .cassette_files import Line, Recording, Recordings
from .recorded_events import RecordedEvents

__all__ = ["Cassette", "CassetteMiss", "Mode"]

type Mode = Literal["once", "none", "rewrite"]
type Piece = Delta | AnswerRejected | AssistantMessage

_MODES = ("once", "none", "rewrite")
_NAMES = "|".join(("key", *SECRET_NAMES))
_IN_URL = re.compile(rf"(?<=//)[^/@\s\"]+(?=@)|(?<=[?&])((?:{_NAMES})=)[^&#\s\"]+", re.IGNORECASE)


class CassetteMiss(AssertionError):
    """A request that is not in the cassette; the message says what differs from the nearest one."""


class Cassette(LoopAdapter):
    """An adapter that records another adapter's answers in a file and plays them later.

    In the mode `"once"`, a new file is recorded and an existing one is played; `"none"` only plays,
    and `"rewrite"` records again. The default is `"once"`, or `"none"` if the variable `CI` is set.
    Use the cassette as a context manager: the file is written in one step, when the block ends
    without an error. `adapter` can be the name of a model, which needs no key until a request is
    recorded.

    A request is found by its messages, tools, output, settings and model. The file contains these,
    and the answers, but no keys, no headers and no bytes of media. Equal requests play their
    answers in order. `volatile` are keys of sections whose texts do not count. `normalize` replaces
    whatever varies in texts, such as ids in results; it is applied to each request as JSON, and to
    the recorded ones when the file is read.

    Raises `CassetteMiss` for a request that is not recorded, and `ValueError` for an unknown mode
    or for a line that is not a recording.
    """

    name = "cassette"
    events: RecordedEvents | None = None  # records the runs, if a fixture created the cassette

    def __init__(
        self,
        adapter: LoopAdapter | str,
        path: str | os.PathLike[str],
        *,
        mode: Mode | None = None,
        volatile: Iterable[str] = (),
        normalize: Callable[[str], str] | None = None,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        if mode not in (None, *_MODES):
            raise ValueError(f"mode must be 'once', 'none' or 'rewrite', got {mode!r}")
        self.mode: Mode = mode or ("none" if os.environ.get("CI") else "once")
        keys = (volatile,) if isinstance(volatile, str) else volatile
        self._volatile, self._section_keys = frozenset(keys), set[str]()
        self.recordings = Recordings(Path(path), self._volatile, normalize or str)
        self.records = self.mode == "rewrite" or (
            self.mode == "once" and not self.recordings.path.exists()
        )
        if not self.records:
            self.recordings.load()
        self._adapter: LoopAdapter | None = None if isinstance(adapter, str) else adapter
        self._model_name = adapter if isinstance(adapter, str) else ""
        if self._known is not None:
            config = config or self._known.config
        super().__init__(config=config, settings=settings, clock=clock)
        self.config = self.limited(self.config)

    @property
    def inner(self) -> LoopAdapter:
        """The adapter that is recorded, which is created on first use if its model was named."""
        if self._adapter is None:
            try:
                self._adapter = adapter_for(self._model_name)
            except (ValueError, ImportError) as error:
                raise type(error)(f"{error}; {self.why_recorded}") from error
        return self._adapter

    @property
    def _known(self) -> LoopAdapter | None:
        """The adapter if it exists or is needed to record."""
        return self.inner if self.records else self._adapter

    def identity(self) -> dict[str, object]:
        if self._model_name:
            return {"model": self._model_name}
        return self.inner.identity()

    @property
    def why_recorded(self) -> str:
        """Why the cassette needs its provider."""
        path, reason = self.recordings.path, "" if self.mode == "rewrite" else " does not exist and"
        return f"the cassette {path}{reason} is recorded in the mode {self.mode!r}"

    def check_settings(self, settings: ModelSettings) -> None:
        if self._known is not None:
            self._known.check_settings(settings)

    def limited(self, config: RunConfig) -> RunConfig:
        config = super().limited(config)
        if self._known is not None:
            return self._known.limited(config)
        if (chars := self.recordings.facts.get("max_result_chars")) is not None:
            config = replace(config, max_result_chars=min(config.max_result_chars or chars, chars))
        return config

    @property
    def supports_dynamic_tools(self) -> bool:
        if self._known is not None:
            return self._known.supports_dynamic_tools
        return bool(self.recordings.facts.get("dynamic_tools", True))

    @property
    def media(self) -> MediaSupport:
        if self._known is not None:
            return self._known.media
        return MediaSupport(types={"*": MAX_CONTENT_BYTES}, urls=(Media,))

    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        if self.events is not None:
            self.events.watch_run(rendered)
        if self._volatile:
            for node in source_of(rendered).template.registry.sections:
                self._section_keys |= {node.key, node.section.key}
        return _Recorder(self, rendered) if self.records else _Player(self, rendered)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self.records:
            self.save()

    def _unknown_keys(self) -> str:
        """Returns what is wrong with `volatile`, if anything was asked."""
        if not self._section_keys or not (keys := sorted(self._volatile - self._section_keys)):
            return ""
        nearest = did_you_mean(keys[0], sorted(self._section_keys))
        return f"volatile={keys[0]!r} is not the key of a section; {nearest}"

    def save(self) -> None:
        """Writes what was recorded, in one step.

        Raises `FileExistsError` if another process has recorded a file in the mode `"once"`, and
        `ValueError` if no prompt had a section for a key in `volatile`.
        """
        if problem := self._unknown_keys():
            raise ValueError(problem)
        inner = self.inner
        facts: Line = {"dynamic_tools": inner.supports_dynamic_tools}
        facts["max_result_chars"] = inner.limited(RunConfig(max_result_chars=None)).max_result_chars
        self.recordings.save(facts, replaces=self.mode == "rewrite")

    def asked(self, request: ProviderRequest, rendered: AnyRenderedPrompt) -> Asked:
        """Returns the parts of a request that can change its answer."""
        settings = request.settings or ModelSettings()
        given = {name: getattr(settings, name) for name in sorted(settings.given - {"timeout"})}
        redact = Redactor().extend(credentials_in(given))
        messages: list[Any] = [serde.dump(message) for message in request.transcript]
        if messages[0].get("content") == rendered.text:
            messages[0]["content"] = {
                ".".join(span.path): rendered.text[span.start : span.end] for span in rendered.spans
            }
        for message in messages:
            message.pop("usage", None)
            message.pop("model", None)  # the name that the provider reported
        parts = {
            "messages": messages,
            "tools": [tool.as_dict() for tool in request.tools],
            "output": request.output.as_dict() if request.output else None,
            "settings": serde.dump(given),
            "model": self._model_name.partition(":")[2] or self.inner.model,
        }
        text = _IN_URL.sub(lambda match: f"{match[1] or ''}{MASK}", serde.dump_json(parts))
        return Asked.from_json(serde.load_unique("request", redact(text)))

    def play(self, asked: Asked) -> Line:
        """Returns the next recorded reply to a request; raises `CassetteMiss` if there is none."""
        reply, recording = self.recordings.take(asked)
        if reply is not None:
            return reply
        mode = "rewrite" if self.recordings.path.exists() else "once"
        verb = "record again" if mode == "rewrite" else "record it"
        remedy = f"to {verb}, run pytest --cassette={mode}, or pass mode={mode!r}"
        raise CassetteMiss(f"{self._miss(asked, recording)}\n{remedy}")

    def _miss(self, asked: Asked, recording: Recording | None) -> str:
        place, count = f"{self.recordings.path} (mode {self.mode!r})", self.recordings.left
        if not self.recordings.path.exists():
            return f"the cassette {place} does not exist{self.recordings.renamed(asked)}"
        if recording is not None:
            times = len(recording.replies)
            return (
                f"{place} recorded this request {times} times, but it was asked {times + 1} times"
            )
        differences = describe_miss(asked, self.recordings)
        if problem := self._unknown_keys():
            differences = f"- {problem}\n{differences}"
        return f"{place} has no answer to this request; {count} others are left:\n{differences}"


class _Player(Connection):
    """Plays the answers to one evaluation's requests."""

    def __init__(self, cassette: Cassette, rendered: AnyRenderedPrompt) -> None:
        self._cassette, self._rendered = cassette, rendered
        self._falls_back = False

    def fall_back(self, error: PromptEvaluationError, /) -> bool:
        return self._falls_back

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        *_, answer = self.ask_stream(request)
        assert isinstance(answer, AssistantMessage)
        return answer

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return self.ask(request)

    def ask_stream(self, request: ProviderRequest, /) -> Iterator[Piece]:
        line = self._cassette.play(self._cassette.asked(request, self._rendered))
        reply: AssistantMessage | ProviderFailure = line["reply"]
        if isinstance(reply, ProviderFailure):
            self._falls_back = reply.fell_back
            raise reply.to_error()
        for delta in line.get("deltas", ()):
            is_text = "text" in delta
            yield TextDelta(delta["text"]) if is_text else ReasoningDelta(delta["reasoning"])
        yield reply

    async def ask_stream_async(self, request: ProviderRequest, /) -> AsyncGenerator[Piece]:
        for piece in self.ask_stream(request):
            yield piece


class _Recorder(Connection):
    """Records the answers to one evaluation's requests."""

    def __init__(self, cassette: Cassette, rendered: AnyRenderedPrompt) -> None:
        self._cassette, self._rendered = cassette, rendered
        self._inner = cassette.inner.connect(rendered)
        self.provider_tools = self._inner.provider_tools
        self._last: Line = {}

    def target(self) -> tuple[str, str]:
        return self._inner.target()

    def arrived(self) -> AssistantMessage | None:
        return self._inner.arrived()

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def fall_back(self, error: PromptEvaluationError, /) -> bool:
        self._last["reply"]["fell_back"] = self._inner.fall_back(error)
        return bool(self._last["reply"]["fell_back"])

    @contextmanager
    def _recording(self, request: ProviderRequest) -> Generator[list[Piece]]:
        """Yields a list for the pieces of the answer, and records them, or the failure."""
        asked = self._cassette.asked(request, self._rendered)
        pieces: list[Piece] = []
        try:
            yield pieces
        except PromptEvaluationError as error:
            self._last = {"reply": serde.dump(ProviderFailure.of(error))}
            self._cassette.recordings.add(asked, self._last)
            if error.code == "authentication":
                error.remedy = f"{error.remedy}; {self._cassette.why_recorded}"
            raise
        self._last = {"reply": serde.dump(pieces[-1])}
        if deltas := [
            {"reasoning" if isinstance(piece, ReasoningDelta) else "text": piece.text}
            for piece in pieces
            if isinstance(piece, TextDelta | ReasoningDelta)
        ]:
            self._last["deltas"] = deltas
        self._cassette.recordings.add(asked, self._last)

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        with self._recording(request) as pieces:
            answer = self._inner.ask(request)
            pieces.append(answer)
        return answer

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        with self._recording(request) as pieces:
            answer = await self._inner.ask_async(request)
            pieces.append(answer)
        return answer

    def ask_stream(self, request: ProviderRequest, /) -> Iterator[Piece]:
        with self._recording(request) as pieces:
            for piece in self._inner.ask_stream(request):
                pieces.append(piece)
                yield piece

    async def ask_stream_async(self, request: ProviderRequest, /) -> AsyncGenerator[Piece]:
        with self._recording(request) as pieces:
            async with aclosing(self._inner.ask_stream_async(request)) as stream:
                async for piece in stream:
                    pieces.append(piece)
                    yield piece
