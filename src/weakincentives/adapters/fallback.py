"""`FallbackAdapter`: when an adapter fails, the next one goes on in the same conversation."""

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing
from dataclasses import replace

from ..content import MediaSupport
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import ProviderRequest, RunConfig
from ..evaluation.messages import AssistantMessage
from ..evaluation.response import AnswerRejected, TextDelta
from ..limits import Clock, utc_now
from ..prompt.renderer import AnyRenderedPrompt
from .core import Connection, LoopAdapter
from .provider_errors import ERROR_CODES

__all__ = ["FALLBACK_CODES", "FallbackAdapter"]

FALLBACK_CODES = frozenset(
    {"connection", "malformed", "provider_failed", "server_error", "throttled", "timeout"}
)
"""The failures after which `FallbackAdapter` asks its next adapter, unless `on` names others."""


class FallbackAdapter(LoopAdapter):
    """Evaluates prompts on the first of several adapters that answers.

    A request that fails with one of the codes `on` goes to the next adapter, with all that was said
    before, and that adapter stays for the rest of the evaluation. `"refused"`, `"content_filter"`
    and `"truncated"` are such codes too: the answer is void, and its tokens count. A tool call that
    has run does not run again. The last adapter's failure ends the evaluation; its notes hold the
    earlier ones. Limits hold for all adapters together, and retries of an adapter come first.

    `config` is by default that of the first adapter. Raises `TypeError` for an adapter with a loop
    of its own, and `ValueError` for fewer than two adapters and for an unknown code.
    """

    name = "fallback"

    def __init__(
        self,
        *adapters: LoopAdapter,
        on: str | Collection[str] = FALLBACK_CODES,
        config: RunConfig | None = None,
        clock: Clock = utc_now,
    ) -> None:
        for adapter in adapters:
            if not isinstance(adapter, LoopAdapter):
                raise TypeError(
                    f"FallbackAdapter must get adapters of this library, got {adapter!r}"
                )
        if len(adapters) <= 1:
            raise ValueError(
                "FallbackAdapter must get at least two adapters, in the order in which to try them"
            )
        codes = frozenset({on} if isinstance(on, str) else on)
        if unknown := sorted(codes - ERROR_CODES):
            known = ", ".join(sorted(ERROR_CODES))
            raise ValueError(f"on must contain error codes from {known}, got {unknown[0]!r}")
        config = config or adapters[0].config
        bounds = [config.max_result_chars, *(each.config.max_result_chars for each in adapters)]
        chars = min([bound for bound in bounds if bound is not None], default=None)
        super().__init__(config=replace(config, max_result_chars=chars), clock=clock)
        self.adapters = adapters
        self.on = codes

    @property
    def supports_dynamic_tools(self) -> bool:
        return all(adapter.supports_dynamic_tools for adapter in self.adapters)

    @property
    def media(self) -> MediaSupport:
        """What the first adapter can show; a later one may refuse it."""
        return self.adapters[0].media

    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        """Opens a connection of each adapter.

        Raises `ValueError` for an adapter whose provider runs tools: others could not go on.
        """
        connections = [adapter.connect(rendered) for adapter in self.adapters]
        for adapter, connection in zip(self.adapters, connections, strict=True):
            if names := [tool.name for tool in connection.provider_tools]:
                raise ValueError(
                    f"{type(adapter).__name__} cannot be part of a FallbackAdapter, because its "
                    f"provider runs the tools {names!r} and no other adapter could; remove these "
                    "tools"
                )
        return _FallbackConnection(self.adapters, connections, self.on)


class _FallbackConnection(Connection):
    """Asks by the connection of one adapter, until `fall_back` goes to that of the next one."""

    def __init__(
        self,
        adapters: Sequence[LoopAdapter],
        connections: Sequence[Connection],
        codes: frozenset[str],
    ) -> None:
        self._adapters = adapters
        self._connections = connections
        self._codes = codes
        self._current = 0
        # whether the last answer had text that a reader has seen, and if so why it is void
        self._shown = False
        self._void = ""

    def target(self) -> tuple[str, str]:
        adapter = self._adapters[self._current]
        name, model = self._connection.target()
        return name or adapter.name, model or adapter.model

    @property
    def _connection(self) -> Connection:
        return self._connections[self._current]

    def fall_back(self, error: PromptEvaluationError) -> bool:
        if not self._connection.fall_back(error):
            if error.code not in self._codes or self._current + 1 == len(self._connections):
                return False
            self._current += 1
        self._void = str(error) if self._shown else ""
        return True

    def arrived(self) -> AssistantMessage | None:
        return self._connection.arrived()

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        return self._connection.ask(request)

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return await self._connection.ask_async(request)

    def ask_stream(
        self, request: ProviderRequest, /
    ) -> Iterator[TextDelta | AnswerRejected | AssistantMessage]:
        if self._void:
            yield AnswerRejected(self._void)
        self._void, self._shown = "", False
        for piece in self._connection.ask_stream(request):
            self._shown = self._shown or isinstance(piece, TextDelta)
            yield piece

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[TextDelta | AnswerRejected | AssistantMessage]:
        if self._void:
            yield AnswerRejected(self._void)
        self._void, self._shown = "", False
        async with aclosing(self._connection.ask_stream_async(request)) as pieces:
            async for piece in pieces:
                self._shown = self._shown or isinstance(piece, TextDelta)
                yield piece

    def close(self) -> None:
        with ExitStack() as stack:
            for connection in self._connections:
                stack.callback(connection.close)

    async def aclose(self) -> None:
        async with AsyncExitStack() as stack:
            for connection in self._connections:
                stack.push_async_callback(connection.aclose)
