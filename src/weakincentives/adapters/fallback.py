"""`FallbackAdapter` continues a conversation with another adapter if one fails."""

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing
from copy import copy
from dataclasses import replace
from typing import Self

from ..content import MediaSupport
from ..evaluation.config import with_settings
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import ProviderRequest, RunConfig
from ..evaluation.messages import AssistantMessage
from ..evaluation.response import AnswerRejected, Delta, ReasoningDelta, TextDelta
from ..limits import Clock, utc_now
from ..model_settings import ModelSettings
from ..prompt.renderer import AnyRenderedPrompt
from .core import Connection, LoopAdapter
from .model_names import adapter_for
from .provider_errors import ERROR_CODES

__all__ = ["FALLBACK_CODES", "FallbackAdapter"]

FALLBACK_CODES = frozenset(
    {"connection", "malformed", "provider_failed", "server_error", "throttled", "timeout"}
)
"""The errors after which `FallbackAdapter` tries the next adapter, unless `on` names others."""


class FallbackAdapter(LoopAdapter):
    """Evaluates prompts with several adapters; if one fails, the next one takes over.

    Pass adapters, or names of models, as in `FallbackAdapter("openai:gpt-5.2", "claude:opus")`.

    If a request fails with one of the codes in `on`, the next adapter sends it, with the
    conversation so far, and is used for the rest of the evaluation. `on` can also contain
    `"refused"`, `"content_filter"` and `"truncated"`: the answer is then discarded, but its tokens
    still count. A tool call that has run does not run again. If the last adapter fails, the
    evaluation ends with that error, whose notes contain the earlier errors. Limits apply to all
    adapters together. Each adapter does its own retries before falling back.

    `config` defaults to the first adapter's. Raises `TypeError` for an adapter that runs its own
    loop, and `ValueError` for fewer than two adapters or an unknown code.
    """

    name = "fallback"

    def __init__(
        self,
        *models: LoopAdapter | str,
        on: str | Collection[str] = FALLBACK_CODES,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        adapters: list[LoopAdapter] = []
        for model in models:
            adapter = adapter_for(model) if isinstance(model, str) else model
            if not isinstance(adapter, LoopAdapter):
                raise TypeError(
                    "FallbackAdapter takes adapters of this library and names of models, such as "
                    f"FallbackAdapter('openai:gpt-5.2', other), got {adapter!r}"
                )
            adapters.append(adapter)
        if len(adapters) <= 1:
            raise ValueError(
                "FallbackAdapter takes at least two adapters, in the order in which to try them"
            )
        codes = frozenset({on} if isinstance(on, str) else on)
        if unknown := sorted(codes - ERROR_CODES):
            known = ", ".join(sorted(ERROR_CODES))
            raise ValueError(f"on must contain error codes from {known}, got {unknown[0]!r}")
        if any(it.config.settings and it.config.settings.forces_call for it in adapters):
            raise ValueError(
                "tool_choice cannot be set on an adapter of a FallbackAdapter, because it holds "
                "for the whole run; pass it in FallbackAdapter(settings=…)"
            )
        self.adapters = tuple(adapters)
        if config is None:  # the members' own limits
            given = [it.config for it in adapters if "max_result_chars" in it.config.given]
            chars = [it.max_result_chars for it in (adapters[0].config, *given)]
            config = replace(
                adapters[0].config,
                max_result_chars=min([limit for limit in chars if limit], default=None),
                settings=None,  # each adapter's own settings are for its own requests
            )
        own = with_settings(config, settings) or config
        super().__init__(config=self.limited(own), clock=clock)
        self.on = codes

    def identity(self) -> dict[str, object]:
        members = [adapter.identity() for adapter in self.adapters]
        return {**super().identity(), "adapters": members, "on": sorted(self.on)}

    def without_retries(self) -> Self:
        adapter = copy(self)
        adapter.adapters = tuple([member.without_retries() for member in self.adapters])
        return adapter

    def check_settings(self, settings: ModelSettings) -> None:
        """Raises `ValueError` for settings that one of the adapters does not support."""
        for adapter in self.adapters:
            own = adapter.config.settings
            adapter.check_settings(settings.over(own) if own else settings)

    def limited(self, config: RunConfig) -> RunConfig:
        for adapter in self.adapters:
            config = adapter.limited(config)
        return super().limited(config)

    @property
    def supports_dynamic_tools(self) -> bool:
        return all(adapter.supports_dynamic_tools for adapter in self.adapters)

    @property
    def media(self) -> MediaSupport:
        """The media that the first adapter supports; a later adapter may reject them."""
        return self.adapters[0].media

    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        """Opens a connection for each adapter.

        Raises `ValueError` for an adapter whose provider runs tools, because no other adapter could
        continue its conversation.
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
    """Uses one adapter's connection, until `fall_back` moves to the next adapter's."""

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
        # Whether any of the last answer was shown and, if so, why that answer was discarded.
        self._shown = False
        self._discarded = ""

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
        self._discarded = str(error) if self._shown else ""
        return True

    def arrived(self) -> AssistantMessage | None:
        return self._connection.arrived()

    def _with_settings(self, request: ProviderRequest) -> ProviderRequest:
        """Returns the request with the current adapter's own settings where the run has none."""
        if (own := self._adapters[self._current].config.settings) is None:
            return request
        nearer = request.settings or ModelSettings()
        return replace(request, settings=nearer.over(own))

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        return self._connection.ask(self._with_settings(request))

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return await self._connection.ask_async(self._with_settings(request))

    def ask_stream(
        self, request: ProviderRequest, /
    ) -> Iterator[Delta | AnswerRejected | AssistantMessage]:
        if self._discarded:
            yield AnswerRejected(self._discarded)
        self._discarded, self._shown = "", False
        for chunk in self._connection.ask_stream(self._with_settings(request)):
            self._shown = self._shown or isinstance(chunk, TextDelta | ReasoningDelta)
            yield chunk

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[Delta | AnswerRejected | AssistantMessage]:
        if self._discarded:
            yield AnswerRejected(self._discarded)
        self._discarded, self._shown = "", False
        request = self._with_settings(request)
        async with aclosing(self._connection.ask_stream_async(request)) as chunks:
            async for chunk in chunks:
                self._shown = self._shown or isinstance(chunk, TextDelta | ReasoningDelta)
                yield chunk

    def close(self) -> None:
        with ExitStack() as stack:
            for connection in self._connections:
                stack.callback(connection.close)

    async def aclose(self) -> None:
        async with AsyncExitStack() as stack:
            for connection in self._connections:
                stack.push_async_callback(connection.aclose)
