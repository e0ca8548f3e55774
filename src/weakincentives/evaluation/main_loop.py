"""The loop around an evaluation: opens what the model asked for and evaluates again, within one
deadline and budget.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from ..limits import Budget, Clock, Deadline, RunUsage, TokenUsage, check_count, utc_now
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..prompt.tool import NON_REPEATABLE
from ..protocols import EventBus, SessionProtocol
from ..runtime.events import Operation, VisibilityExpanded
from ..visibility import SectionDecisions, SectionPath, SectionVisibility, SetVisibilityOverride
from .adapter import LoopOptions, ProviderAdapter, check_arguments, publisher
from .call_history import CallHistory
from .errors import LimitError, PromptEvaluationError
from .response import PromptResponse

__all__ = ["Execution", "Expansion", "ExpansionLimitError", "MainLoop"]


class ExpansionLimitError(LimitError):
    """The model asked for one more section than `max_expansions` allows."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Sections that were opened by starting again, and why."""

    section_keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution[Out]:
    """The final response, what was opened on the way to it, and the tokens of all evaluations
    together.
    """

    response: PromptResponse[Out]
    expansions: tuple[Expansion, ...]
    usage: TokenUsage

    @property
    def restarts(self) -> int:
        """How often evaluation started again."""
        return len(self.expansions)

    @property
    def output(self) -> Out | None:
        """The typed answer of the final response."""
        return self.response.output

    @property
    def text(self) -> str:
        """The text of the final response."""
        return self.response.text


# `...`: adapters with the seed's signature take no `call_history`, which only few prompts need.
type _Evaluate[Out] = Callable[..., PromptResponse[Out]]
type _EvaluateAsync[Out] = Callable[..., Awaitable[PromptResponse[Out]]]


class MainLoop:
    """Runs prompts to their end on one adapter.

    When the model asks for sections that only a new evaluation can open, the request is written to
    the session and the prompt evaluated again, at most `max_expansions` times. Each evaluation goes
    on with what the ones before it had decided about the sections; the session and conditions are
    not asked again. Deadline and budget hold for all evaluations together, and the prompt's
    resources stay open from the first to the last. A tool declared `effect="at_most_once"` is not
    run again when a new evaluation asks for a call that was made before.
    """

    def __init__(
        self, adapter: ProviderAdapter, *, max_expansions: int = 10, clock: Clock = utc_now
    ) -> None:
        check_count("max_expansions", max_expansions)
        if not isinstance(adapter, ProviderAdapter):
            raise TypeError(
                f"MainLoop got {adapter!r}; give it an adapter, such as OpenAIAdapter(model)"
            )
        self.adapter = adapter
        self.max_expansions = max_expansions
        self.clock = clock

    def execute[Out](
        self,
        prompt: Prompt[Out],
        *,
        session: SessionProtocol,
        adapter: ProviderAdapter | None = None,
        bus: EventBus | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        visibility_overrides: Mapping[SectionPath, SectionVisibility] | None = None,
    ) -> Execution[Out]:
        """Evaluates `prompt` until it gives a response; `adapter` replaces the loop's own for this
        call.

        Raises `ExpansionLimitError` when the model never stops asking, and what the adapter's
        `evaluate` raises.
        """
        chosen = adapter or self.adapter
        budget = budget or chosen.budget
        run = _Run(
            self,
            prompt,
            session,
            bus,
            deadline=deadline,
            budget=budget,
            overrides=visibility_overrides,
        )
        evaluate: _Evaluate[Out] = chosen.evaluate
        with run.work, prompt.resources:
            while True:
                with run:
                    return run.finish(evaluate(run.rendered(), **run.options))

    async def execute_async[Out](
        self,
        prompt: Prompt[Out],
        *,
        session: SessionProtocol,
        adapter: ProviderAdapter | None = None,
        bus: EventBus | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        visibility_overrides: Mapping[SectionPath, SectionVisibility] | None = None,
    ) -> Execution[Out]:
        """As `execute`, without blocking the event loop."""
        chosen = adapter or self.adapter
        budget = budget or chosen.budget
        run = _Run(
            self,
            prompt,
            session,
            bus,
            deadline=deadline,
            budget=budget,
            overrides=visibility_overrides,
        )
        evaluate: _EvaluateAsync[Out] = chosen.evaluate_async
        with run.work:
            async with prompt.resources:
                while True:
                    with run:
                        return run.finish(await evaluate(run.rendered(), **run.options))


class _Run[Out]:
    """What one execution carries from one evaluation to the next; each evaluation is a block of it."""

    def __init__(
        self,
        loop: MainLoop,
        prompt: Prompt[Out],
        session: SessionProtocol,
        bus: EventBus | None,
        *,
        deadline: Deadline | None,
        budget: Budget | None,
        overrides: Mapping[SectionPath, SectionVisibility] | None,
    ) -> None:
        check_arguments(prompt, session, deadline, budget, kinds=(Prompt,))
        self._loop = loop
        self._prompt = prompt
        self._session = session
        self._publish = publisher(session, bus)
        bus = session.bus if bus is None else bus
        self.work = Operation(
            bus=bus, kind="execution", name=prompt.name, session_id=session.session_id
        )
        self._overrides = dict(overrides or {})
        self._decisions: SectionDecisions | None = None
        tools = [tool for node in prompt.template.registry.sections for tool in node.tools]
        self._options = LoopOptions(session=session, bus=bus)
        if any(tool.effect in NON_REPEATABLE for tool in tools):
            self._options["call_history"] = CallHistory()
        self._expansions: list[Expansion] = []
        self._spent = RunUsage()
        self._budget = budget
        ends = [one for one in (deadline, budget and budget.deadline(loop.clock())) if one]
        self._deadline = min(ends, default=None)

    @property
    def options(self) -> LoopOptions:
        """The arguments of the next evaluation, with what is left of the budget."""
        budget = self._budget
        return {
            **self._options,
            "deadline": self._deadline,
            "budget": None if budget is None else budget.after(self._spent),
        }

    def rendered(self) -> RenderedPrompt[Out]:
        """The prompt as the next evaluation opens with it."""
        rendered = self._prompt.render(
            session=self._session,
            visibility_overrides=self._overrides,
            decisions=self._decisions,
            deadline=self._deadline,
        )
        self._decisions = rendered.view.decisions
        return rendered

    def __enter__(self) -> None:
        """Begins an evaluation."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Ends one: a request for sections is met and lets the next one begin, an error is told
        what all took.
        """
        if isinstance(error, VisibilityExpansionRequired):
            self._expand(error)
            return True
        if isinstance(error, PromptEvaluationError):
            run_usage = self._spent
            if run_usage != RunUsage():
                raise error.with_progress(
                    usage=run_usage.usage + error.usage,
                    turns=run_usage.calls + error.turns,
                    transcript=error.transcript,
                ) from error.__cause__
        return False

    def _expand(self, signal: VisibilityExpansionRequired) -> None:
        """Writes what the model asked for to the session, or refuses at the limit."""
        self._spent += signal.run_usage
        if len(self._expansions) >= self._loop.max_expansions:
            error = ExpansionLimitError(
                f"the model asked for further sections after {len(self._expansions)} expansions: {signal}",
                phase="limit",
                code="expansions",
                remedy="raise max_expansions, or show the sections it always needs in full",
            )
            run_usage = self._spent
            raise error.with_progress(
                usage=run_usage.usage, turns=run_usage.calls, transcript=()
            ) from signal
        self._expansions.append(Expansion(signal.section_keys, signal.reason))
        of = self._session.session_id
        self._publish(
            VisibilityExpanded(
                section_keys=signal.section_keys, reason=signal.reason, session_id=of
            )
        )
        for path, visibility in signal.requested_overrides.items():
            self._session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
        decisions = signal.decisions or self._decisions
        if decisions is not None:
            self._decisions = decisions.changed(signal.requested_overrides)

    def finish(self, response: PromptResponse[Out]) -> Execution[Out]:
        """The result of the whole execution."""
        execution = Execution(
            response=response,
            expansions=tuple(self._expansions),
            usage=self._spent.usage + response.usage,
        )
        self.work.set_result(execution)
        return execution
