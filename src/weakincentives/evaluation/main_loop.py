"""`MainLoop` runs a prompt until the model answers, and opens the sections that it requests."""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import Unpack

from ..content import Part
from ..limits import Clock, check_count, utc_now
from ..model_settings import ModelSettings
from ..prompt.context import Evaluator
from ..signatures import with_remedies
from .adapter import (
    ExecutionOptions,
    ProviderAdapter,
    Runnable,
    RunOptions,
    takes_bindings,
    to_adapter,
    with_message,
)
from .approval import Decision
from .compaction import Compaction
from .config import RunConfig, layered, with_settings
from .errors import ExpansionLimitError
from .response import Execution, Expansion, StreamEvent
from .run import NestedAdapter, Run
from .run_stream import async_run_stream, run_stream
from .suspension import Suspension

__all__ = [
    "Execution",
    "ExecutionOptions",
    "Expansion",
    "ExpansionLimitError",
    "MainLoop",
    "NestedAdapter",
    "RunOptions",
]


class MainLoop:
    """Runs prompts on one adapter until the model answers.

    `adapter` is an adapter, or the name of a model, such as `"openai:gpt-5.2"`; see `adapter_for`.
    Without one, the variable `WINK_MODEL` has the name.

    When the model requests sections that only a new evaluation can open, the loop records the
    request in the session and evaluates the prompt again, at most `max_expansions` times. Each
    evaluation keeps the section decisions of the previous ones. The deadline and the budget apply
    to all evaluations together, and the prompt's resources stay open throughout. A call of a tool
    with `effect="at_most_once"` does not run again in a later evaluation.

    If `adapter` comes from a tool handler's context, the loop's runs are nested in that tool call.
    `compaction` determines when the loop shortens a conversation; without `compaction`,
    conversations are never shortened. The fields of `config` replace those of the adapter's config,
    and `settings` replace those of the template and the adapter.
    """

    @with_remedies
    def __init__(
        self,
        adapter: ProviderAdapter | Evaluator | str | None = None,
        *,
        max_expansions: int = 10,
        compaction: Compaction | None = None,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        check_count("max_expansions", max_expansions)
        self.adapter = to_adapter(adapter, "MainLoop")
        if not isinstance(compaction, Compaction | None):
            raise TypeError(
                "compaction must be a Compaction, such as Compaction(at_tokens, keep_turns), got "
                f"{compaction!r}"
            )
        self.max_expansions = max_expansions
        self.compaction = compaction
        self.config = with_settings(config, settings)
        self.clock = clock

    @takes_bindings
    def execute[Out](
        self,
        prompt: Runnable[Out],
        user_message: str | Sequence[Part] | None = None,
        /,
        **options: Unpack[ExecutionOptions],
    ) -> Execution[Out]:
        """Evaluates `prompt` until an evaluation returns a response.

        `options` are those of `ExecutionOptions`: `session`, `conversation`, `settings`, `config`,
        `budget`, `deadline`, `approver`, `adapter` and others.

        Raises `ExpansionLimitError` when the model requests sections more than `max_expansions`
        times, and the same errors as the adapter's `evaluate`.
        """
        return self._run(prompt, with_message(options, user_message)).result()

    @takes_bindings
    async def execute_async[Out](
        self,
        prompt: Runnable[Out],
        user_message: str | Sequence[Part] | None = None,
        /,
        **options: Unpack[ExecutionOptions],
    ) -> Execution[Out]:
        """Like `execute`, without blocking the event loop."""
        return await self._run(prompt, with_message(options, user_message)).result_async()

    def resume[Out](
        self,
        prompt: Runnable[Out],
        suspension: Suspension,
        decisions: Mapping[str, Decision],
        **options: Unpack[RunOptions],
    ) -> Execution[Out]:
        """Resumes a suspended run with the reviewer's decisions, which are given by call id.

        An approved call takes effect only if its effects are still the ones that its preview
        showed. If the preview is out of date, or there is no decision on a call, the `approver`
        decides; without an `approver`, the run is suspended again. A session without state is
        restored from the suspension; any other session must be the one in which the run was
        suspended. The run's earlier usage counts towards `budget`, but earlier time does not. To
        stream a resumed run, pass `suspension=` and `decisions=` to `stream`. Raises `ValueError`
        for another prompt, changed tools, unknown calls, or a run that was already resumed.
        """
        return self.execute(prompt, suspension=suspension, decisions=decisions, **options)

    @takes_bindings
    async def resume_async[Out](
        self,
        prompt: Runnable[Out],
        suspension: Suspension,
        decisions: Mapping[str, Decision],
        **options: Unpack[RunOptions],
    ) -> Execution[Out]:
        """Like `resume`, without blocking the event loop."""
        return await self.execute_async(
            prompt, suspension=suspension, decisions=decisions, **options
        )

    @takes_bindings
    @run_stream
    def stream[Out](
        self,
        prompt: Runnable[Out],
        user_message: str | Sequence[Part] | None = None,
        /,
        **options: Unpack[ExecutionOptions],
    ) -> Generator[StreamEvent[Out]]:
        """Like `execute`, but yields events as they happen; the last one contains the response.

        Discard earlier text after `Restarted` and `AnswerRejected`. The response's usage covers all
        evaluations. Leave its `with` block, or close it from any thread, to stop early.
        """
        yield from self._run(prompt, with_message(options, user_message), streamed=True).stream()

    @takes_bindings
    @async_run_stream
    async def stream_async[Out](
        self,
        prompt: Runnable[Out],
        user_message: str | Sequence[Part] | None = None,
        /,
        **options: Unpack[ExecutionOptions],
    ) -> AsyncGenerator[StreamEvent[Out]]:
        """Like `stream`, without blocking the event loop."""
        async with aclosing(
            self._run(prompt, with_message(options, user_message), streamed=True).stream_async()
        ) as events:
            async for event in events:
                yield event

    def _run[Out](
        self, prompt: Runnable[Out], options: ExecutionOptions, *, streamed: bool = False
    ) -> Run[Out]:
        options["config"] = layered(options.get("config"), self.config)
        return Run(
            self.adapter,
            prompt,
            options,
            restarts=self.max_expansions,
            compaction=self.compaction,
            clock=self.clock,
            streamed=streamed,
        )
