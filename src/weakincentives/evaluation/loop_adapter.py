"""`LoopAdapter` is the base class for adapters that use the library's inner loop."""

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Unpack

from .adapter import ConnectingAdapter, LoopOptions, Runnable, takes_bindings
from .response import PromptResponse, StreamEvent
from .run import Run
from .run_stream import async_run_stream, run_stream

__all__ = ["LoopAdapter"]

_FACES = ("evaluate", "evaluate_async", "stream", "stream_async")


class LoopAdapter(ConnectingAdapter):
    """An adapter that uses the library's inner loop; a subclass connects to its provider.

    An evaluation is a run that does not restart to open sections: it raises
    `VisibilityExpansionRequired` instead. If a subclass overrides one of the four methods below,
    `MainLoop` assumes that it has its own loop and asks it for complete responses.
    """

    has_own_loop = False

    def __init_subclass__(cls, **arguments: object) -> None:
        super().__init_subclass__(**arguments)
        if not cls.__dict__.keys().isdisjoint(_FACES):
            cls.has_own_loop = True

    @takes_bindings
    def evaluate[Out](
        self, prompt: Runnable[Out], /, **options: Unpack[LoopOptions]
    ) -> PromptResponse[Out]:
        return Run(self, prompt, options).result().response

    # These three methods accept more keywords than the base's, which pyright rejects.
    @takes_bindings
    async def evaluate_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Runnable[Out], /, **options: Unpack[LoopOptions]
    ) -> PromptResponse[Out]:
        return (await Run(self, prompt, options).result_async()).response

    @takes_bindings
    @run_stream
    def stream[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Runnable[Out], /, **options: Unpack[LoopOptions]
    ) -> Generator[StreamEvent[Out]]:
        """Evaluates `prompt` and yields events as they happen; the last one contains the response.

        Leave its `with` block, or close it from any thread, to stop early: no further calls run,
        and finished calls keep their effects.
        """
        yield from Run(self, prompt, options, streamed=True).stream()

    @takes_bindings
    @async_run_stream
    async def stream_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Runnable[Out], /, **options: Unpack[LoopOptions]
    ) -> AsyncGenerator[StreamEvent[Out]]:
        """Like `stream`, without blocking the event loop."""
        async with aclosing(Run(self, prompt, options, streamed=True).stream_async()) as events:
            async for event in events:
                yield event
