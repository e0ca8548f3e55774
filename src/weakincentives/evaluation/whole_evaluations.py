"""Evaluations by an adapter with its own loop, which returns a complete response."""

from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.renderer import AnyRenderedPrompt, RenderedPrompt
from ..prompt.template import AnyPrompt
from .adapter import ProviderAdapter
from .config import RunConfig
from .conversation import Conversation
from .effects import Ask, Effects
from .inner_loop import Restart
from .partial_answer import partial_answer
from .response import Completed, PromptResponse, StreamEvent

__all__ = ["OWN_LOOP", "WholeEvaluation", "WholeEvaluations", "check_config"]

OWN_LOOP = (
    "cannot evaluate again with further sections open because {} has a loop of its own, in which a "
    "tool that must not run twice could run again; derive the adapter from LoopAdapter and "
    "override connect alone"
)


def check_config(adapter: ProviderAdapter, config: RunConfig | None) -> None:
    """Raises `ValueError` for fields of a config that an adapter with its own loop cannot apply."""
    names = sorted(config.given - {"budget", "deadline"}) if config else []
    if names:
        raise ValueError(
            f"cannot apply {', '.join(names)} of the config because {type(adapter).__name__} has a "
            "loop of its own; set it on the adapter"
        )


class WholeEvaluations:
    """Makes an adapter usable as a connection whose requests are prompts, with `options`."""

    # Any, throughout: the adapter's arguments, and prompts of every output type
    def __init__(self, adapter: ProviderAdapter, options: Mapping[str, Any]) -> None:
        self._adapter: Any = adapter
        self._options = options

    def ask(self, prompt: AnyPrompt | AnyRenderedPrompt, /) -> Completed[object]:
        return Completed(self._adapter.evaluate(prompt, **self._options))

    async def ask_async(self, prompt: AnyPrompt | AnyRenderedPrompt, /) -> Completed[object]:
        return Completed(await self._adapter.evaluate_async(prompt, **self._options))

    def ask_stream(self, prompt: AnyPrompt | AnyRenderedPrompt, /) -> Iterator[StreamEvent[object]]:
        return iter(self._adapter.stream(prompt, **self._options))

    def ask_stream_async(
        self, prompt: AnyPrompt | AnyRenderedPrompt, /
    ) -> AsyncGenerator[StreamEvent[object]]:
        events: AsyncGenerator[StreamEvent[object]] = self._adapter.stream_async(
            prompt, **self._options
        )
        return events


class WholeEvaluation[Out]:
    """One evaluation by an adapter with its own loop; has the same methods as `Evaluation`."""

    turns = 0

    def __init__(
        self, adapter: WholeEvaluations, rendered: RenderedPrompt[Out], *, streamed: bool
    ) -> None:
        self._partial = partial_answer(rendered.structured_output, streamed=streamed)
        self._ask = Ask(adapter, rendered, streamed, partial=self._partial)

    def effects(self) -> Effects[PromptResponse[Out] | Restart]:
        """Asks for the response; returns a restart if the model requests sections."""
        completed, error = yield self._ask
        try:
            if error is not None:
                raise error
        except VisibilityExpansionRequired as signal:
            return Restart(signal)
        finally:
            del error  # otherwise, the exception's traceback would refer to the exception
        response: PromptResponse[Out] = completed.response
        delta = None if self._partial is None else self._partial.end(response.output)
        if delta is not None:
            yield delta
        return response

    def take_connection(self) -> None:
        """Returns `None`, because the adapter closes its own connections."""

    def stop(self, error: BaseException | None) -> Conversation | None:
        """Returns `None`, because the adapter keeps the conversation of a stopped evaluation."""
        return None

    def so_far(self) -> None:
        """Returns `None`, like `stop`."""

    def end(self, error: BaseException | None) -> None:
        """Does nothing, because the adapter publishes how the evaluation ended."""
