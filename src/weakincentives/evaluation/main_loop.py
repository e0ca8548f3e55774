"""The loop around evaluations: opens the sections that the model requests and evaluates again."""

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Unpack

from ..content import MediaSupport, Part, to_content
from ..limits import Budget, Clock, Meter, RunUsage, check_count, utc_now
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..protocols import EventBus, SessionProtocol
from ..runs import Reservation, Run
from ..runtime.events import Compacted, Operation, VisibilityExpanded
from ..visibility import SectionDecisions, SetVisibilityOverride
from .adapter import (
    LoopOptions,
    ParentRun,
    ProviderAdapter,
    check_arguments,
    parameters_of,
    publisher,
    source_of,
    takes_bindings,
)
from .approval import Decision
from .call_history import CallHistory
from .compaction import Compaction, Plan, plan_compaction, request_tokens
from .conversation import Conversation
from .errors import CompactionRequired, PromptEvaluationError
from .evaluation_events import stop_event
from .execution import (
    Execution,
    ExecutionOptions,
    Expansion,
    ExpansionLimitError,
    RunOptions,
    add_run,
    options_of,
)
from .messages import UserMessage
from .response import Completed, PromptResponse, Restarted, StreamEvent
from .run_logs import Identity
from .run_stream import run_stream
from .suspension import RunSuspended, Suspension, check_resumable

__all__ = [
    "Execution",
    "ExecutionOptions",
    "Expansion",
    "ExpansionLimitError",
    "MainLoop",
    "NestedAdapter",
]

# Any: adapters with the seed's signature take no `call_history`, which only few prompts need.
type _Evaluate = Callable[..., Any]


class MainLoop:
    """Runs prompts to their end on one adapter.

    When the model requests sections that only a new evaluation can open, the loop writes the
    request to the session and evaluates the prompt again, at most `max_expansions` times. Each
    evaluation keeps the section decisions of those before it. Deadline and budget hold for all
    evaluations together, and the prompt's resources stay open from the first to the last. A call of
    a tool with `effect="at_most_once"` does not run again in a later evaluation.

    `compaction` says when the loop makes a conversation shorter; without it, it never does.
    """

    def __init__(
        self,
        adapter: ProviderAdapter,
        *,
        max_expansions: int = 10,
        compaction: Compaction | None = None,
        clock: Clock = utc_now,
    ) -> None:
        check_count("max_expansions", max_expansions)
        if not isinstance(adapter, ProviderAdapter):
            raise TypeError(
                f"MainLoop got {adapter!r}; pass an adapter, such as OpenAIAdapter(model)"
            )
        self.adapter = adapter
        if not isinstance(compaction, Compaction | None):
            raise TypeError(
                f"compaction is {compaction!r}; pass a Compaction(at_tokens, keep_turns)"
            )
        self.max_expansions = max_expansions
        self.compaction = compaction
        self.clock = clock

    @takes_bindings
    def execute[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], **options: Unpack[ExecutionOptions]
    ) -> Execution[Out]:
        """Evaluates `prompt` until an evaluation returns a response.

        Raises `ExpansionLimitError` when the model requests sections more than `max_expansions`
        times, and what the adapter's `evaluate` raises.
        """
        evaluations = _Evaluations(self, prompt, **options)
        evaluate: _Evaluate = evaluations.adapter.evaluate
        with evaluations.reserved(), evaluations.operation, evaluations.resources:
            while True:
                with evaluations:
                    evaluations.compact()
                    response = evaluate(evaluations.render(), **evaluations.options)
                    return evaluations.finish(response)

    @takes_bindings
    async def execute_async[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], **options: Unpack[ExecutionOptions]
    ) -> Execution[Out]:
        """Like `execute`, without blocking the event loop."""
        evaluations = _Evaluations(self, prompt, **options)
        evaluate: _Evaluate = evaluations.adapter.evaluate_async
        with evaluations.reserved(), evaluations.operation:
            async with evaluations.resources:
                while True:
                    with evaluations:
                        await evaluations.compact_async()
                        response = await evaluate(evaluations.render(), **evaluations.options)
                        return evaluations.finish(response)

    def resume[Out](
        self,
        prompt: Prompt[Out],
        suspension: Suspension,
        decisions: Mapping[str, Decision],
        **options: Unpack[RunOptions],
    ) -> Execution[Out]:
        """Goes on with a suspended run, with a person's decisions by call id.

        A call counts only if it would still do what the person was shown. Where that is different
        now, and for calls without a decision, the `approver` decides; without one the run is
        suspended again. A session without state is restored to the suspension's; another one must
        be that of the suspended run. What the run has used counts for `budget`; no time does. Pass
        `suspension=` and `decisions=` to `stream`. Raises `ValueError` for another prompt, changed
        tools, unknown calls and a run that was resumed.
        """
        return self.execute(prompt, suspension=suspension, decisions=decisions, **options)

    @takes_bindings
    async def resume_async[Out](
        self,
        prompt: Prompt[Out],
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
        self, prompt: Prompt[Out] | RenderedPrompt[Out], **options: Unpack[ExecutionOptions]
    ) -> Generator[StreamEvent[Out]]:
        """Like `execute`, and yields what happens; the last event holds the response.

        After `Restarted` and `AnswerRejected` earlier text is void. The response has the usage of
        all evaluations. Close the generator to stop early, from any thread.
        """
        evaluations = _Evaluations(self, prompt, streamed=True, **options)
        stream: _Evaluate = evaluations.adapter.stream
        with evaluations.reserved(), evaluations.operation, evaluations.resources:
            while evaluations.execution is None:
                with evaluations:
                    if compacted := evaluations.compact():
                        yield compacted
                    rendered = evaluations.render()
                    with closing(stream(rendered, **evaluations.options)) as events:
                        for event in events:
                            if isinstance(event, Completed):
                                evaluations.finish(event.response)
                            else:
                                yield event
                if restarted := evaluations.take_restart():
                    yield restarted
        yield evaluations.completed

    @takes_bindings
    async def stream_async[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], **options: Unpack[ExecutionOptions]
    ) -> AsyncGenerator[StreamEvent[Out]]:
        """Like `stream`, without blocking the event loop."""
        evaluations = _Evaluations(self, prompt, streamed=True, **options)
        stream: _Evaluate = evaluations.adapter.stream_async
        with evaluations.reserved(), evaluations.operation:
            async with evaluations.resources:
                while evaluations.execution is None:
                    with evaluations:
                        if compacted := await evaluations.compact_async():
                            yield compacted
                        events = stream(evaluations.render(), **evaluations.options)
                        async with aclosing(events):
                            async for event in events:
                                if isinstance(event, Completed):
                                    evaluations.finish(event.response)
                                else:
                                    yield event
                    if restarted := evaluations.take_restart():
                        yield restarted
        yield evaluations.completed


class _Evaluations[Out]:
    """The state that an execution keeps between evaluations: a context manager around each one."""

    def __init__(
        self,
        loop: MainLoop,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        *,
        streamed: bool = False,
        **options: Unpack[ExecutionOptions],
    ) -> None:
        check_arguments(prompt, options, ExecutionOptions, Prompt, RenderedPrompt)
        suspension = options.get("suspension")
        if suspension is not None:
            options = options_of(suspension, options)
        session, self.adapter = options["session"], options.get("adapter") or loop.adapter
        parent = _caller(session, self.adapter, loop.adapter)  # another model counts for it too
        if isinstance(self.adapter, NestedAdapter):
            self.adapter = self.adapter.adapter
        self._first: RenderedPrompt[Out] | None = None
        if isinstance(prompt, RenderedPrompt):
            self._first, prompt = prompt, source_of(prompt)
        parent.check_depth(prompt.name)
        prompt.declare_state(session)
        bus = options.get("bus") or parent.bus
        budget = options.get("budget") or self.adapter.budget
        self._prompt = prompt
        self.resources = prompt.resources
        self._session, self._save = session, options.get("save")
        self._publish = publisher(session, bus)
        self._max_expansions = loop.max_expansions
        self.operation = Operation(
            bus=session.bus if bus is None else bus,
            kind="execution",
            name=prompt.name,
            streamed=streamed,
            session_id=session.session_id,
            parent=parent.operation,
        )
        self._overrides = dict(options.get("visibility_overrides") or {})
        self._conversation = options.get("conversation")
        self._decisions: SectionDecisions | None = None
        if self._conversation and (known := self._conversation.decisions_for(prompt)):
            known.overrides = {**known.overrides, **self._overrides}
            self._decisions = known
        self._expansions: list[Expansion] = []
        self._restarted: Restarted | None = None
        self._turns, self._spent_before = 0, RunUsage()  # of earlier evaluations
        self._budget = budget
        self.execution: Execution[Out] | None = None
        budget_deadline = budget and budget.deadline(loop.clock())
        deadlines = options.get("deadline"), budget_deadline, parent.deadline
        self._deadline = min([moment for moment in deadlines if moment], default=None)
        meter = Meter(budget, parent.meter)
        approver = options.get("approver") or parent.approver
        self._run = Run(prompt.name, options.get("caller") or parent.run, streamed)
        log = None if parent.nested is None else parent.nested.begin(prompt)
        caller_id = parent.evaluation_id
        own = ParentRun(self._run, session, meter, bus, self._deadline, caller_id, approver)
        own = replace(own, levels_left=parent.levels_left, operation=self.operation)
        self._parent, summaries = replace(own, log=log), log.summaries if log else None
        self._nested = NestedAdapter(self.adapter, replace(own, nested=summaries))
        self._set_options(loop, options)

    def _set_options(self, loop: MainLoop, options: ExecutionOptions) -> None:
        """Notes the arguments of evaluations; raises `TypeError` for one that none takes."""
        passed = LoopOptions.__annotations__.keys() & options.keys()
        # Any: an adapter with the seed's signature takes only what the caller has passed.
        self._options: dict[str, Any] = {
            name: value for name, value in options.items() if name in passed
        }
        known = self._parameters = parameters_of(type(self.adapter).evaluate)
        self._options |= {"bus": self._parent.bus, "deadline": self._deadline}
        if self._parent.approver is not None:
            self._options["approver"] = self._parent.approver
        if "save" in known:
            self._options["save"] = self._keep
        self._is_metered = "parent" in known
        if self._is_metered:
            self._options["parent"] = self._parent
        self._take_conversation(loop, options.get("message"))
        if self._prompt.template.registry.has_non_repeatable_tools:
            self._options["call_history"] = CallHistory()
        if suspension := options.get("suspension"):
            self._restore(suspension)
            self._options["resume"] = check_resumable(
                self._prompt, suspension, options.get("decisions") or {}, self._session
            )
        for name in self._options.keys() - known:
            raise TypeError(
                f"{type(self.adapter).__name__}.evaluate takes no {name}{_PURPOSES.get(name, '')}; "
                "take **options and pass them on"
            )

    @property
    def options(self) -> dict[str, Any]:  # Any: see `__init__`
        """The arguments of the next evaluation, with what is left of the budget."""
        budget = self._budget if self._is_metered else self._parent.meter.left
        options = {**self._options, "budget": budget}
        if self._options.pop("resume", None) is None:  # later evaluations begin anew
            self._spent_before = self._parent.meter.usage
        return options

    def _count(self, usage: RunUsage, turns: int) -> None:
        """Counts an evaluation that has ended; most adapters have counted its usage."""
        self._turns += turns
        if not self._is_metered:
            self._parent.meter.add_run(usage, type(self.adapter).__name__)

    def render(self) -> RenderedPrompt[Out]:
        """Renders the prompt for the next evaluation."""
        rendered, self._first = self._first, None
        rendered = rendered or self._prompt.render(
            session=self._session,
            visibility_overrides=self._overrides,
            decisions=self._decisions,
            deadline=self._deadline,
        )
        self._decisions = rendered.view.decisions
        return rendered

    def finish(self, response: PromptResponse[Out]) -> Execution[Out]:
        """Returns the result of the execution."""
        self._count(RunUsage(response.usage, response.turns), response.turns)
        expansions, usage = tuple(self._expansions), self._parent.meter.usage.usage
        execution = Execution(response=response, expansions=expansions, usage=usage)
        self.operation.set_result(execution)
        self.execution = execution
        self._conversation = response.conversation or self._conversation
        return execution

    def take_restart(self) -> Restarted | None:
        """Returns the event of a restart, once; `None` without one."""
        restarted, self._restarted = self._restarted, None
        return restarted

    @property
    def completed(self) -> Completed[Out]:
        """The last event of a stream."""
        assert self.execution is not None  # noqa: S101 - `finish` has set it
        return Completed(self.execution.whole_response)

    @contextmanager
    def reserved(self) -> Generator[None]:
        """Reserves the session, and calls the caller's `save` at the end, whatever ends the run."""
        # An adapter that takes no parent reserves the session itself, for each evaluation.
        stacks = self._prompt.runs_with(self._session) if self._is_metered else []
        with Reservation(self._run, stacks):
            try:
                yield
            finally:
                if self._save is not None and self._conversation is not None:
                    self._save(self._conversation)

    def _keep(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Opens requested sections or compacts and continues, or adds the usage to the error."""
        if isinstance(error, VisibilityExpansionRequired):
            self._expand(error)
            return True
        if isinstance(error, CompactionRequired) and error.conversation is not None:
            self._count(error.run_usage, error.turns)
            self._go_on(error.conversation)
            return True
        if isinstance(error, RunSuspended):
            history, spent = self._options.get("call_history"), self._spent_before
            raise add_run(error, spent, self._turns, self._expansions, history) from None
        if not isinstance(error, PromptEvaluationError):
            return False
        turns = self._turns
        self._count(RunUsage(error.usage, error.turns), error.turns)
        if self._shortens(error):
            return True
        if turns or error.usage != self._parent.meter.usage.usage:
            complete = self._with_usage(error)
            try:
                raise complete
            finally:
                complete.__context__ = error.__context__  # and not the error that it replaces
                del complete  # an exception must not lead to itself by its traceback
        return False

    def _restore(self, suspension: Suspension) -> None:
        """Takes over what the suspended run knew beside its evaluation."""
        self._spent_before, self._turns = suspension.spent_before, suspension.turns_before
        self._parent.meter.add_run(self._spent_before, type(self.adapter).__name__)
        self._too_long = False
        self._expansions = [
            Expansion(item.section_keys, item.reason) for item in suspension.restarts
        ]
        known = suspension.conversation.decisions_for(self._prompt)
        self._decisions = known or self._decisions
        if suspension.previous_turns:
            self._options["previous_turns"] = suspension.previous_turns
        if history := self._options.get("call_history"):
            history.restore(suspension.calls)

    def _take_conversation(self, loop: MainLoop, message: str | Sequence[Part] | None) -> None:
        """Notes whether the conversation must become shorter before the first request."""
        can_go_on = {"message", "conversation"} <= self._parameters
        self._compaction = loop.compaction if can_go_on else None
        self._too_long = self._refused = False
        if self._compaction is None:
            return
        limit = self._compaction.at_tokens
        if "max_request_tokens" in self._parameters:
            self._options["max_request_tokens"] = limit
        if self._conversation is not None:
            new = (UserMessage(to_content(message)),) if message else ()
            messages, tools = self._conversation.messages, self._conversation.tools
            self._too_long = request_tokens((*messages, *new), tools) > limit

    def _go_on(self, conversation: Conversation) -> None:
        """Continues a conversation that is too long in the next evaluation."""
        self._conversation, self._too_long = conversation, True
        self._decisions = conversation.decisions_for(self._prompt)
        self._options |= {"conversation": conversation, "message": None}
        if "previous_turns" in self._parameters:
            self._options["previous_turns"] = self._turns
        if "call_history" in self._options:  # its calls are messages of the conversation
            self._options["call_history"] = CallHistory()

    def _shortens(self, error: PromptEvaluationError) -> bool:
        """Prepares to compact if the provider refused a request as too long; says if so."""
        conversation = error.conversation if error.code == "context_length" else None
        if self._compaction is None or self._refused or conversation is None:
            return False
        self._refused = True
        self._go_on(conversation.retried())
        return True

    def compact(self) -> Compacted | None:
        """Makes a conversation that is too long shorter; `None` if it is not or cannot be."""
        plan, execution = self._plan(), None
        if plan and (summary := self._summary(plan)):
            prompt, options = summary
            with self._summarizing():
                execution = MainLoop(self._nested).execute(prompt, **options)
        return self._apply(plan, execution) if plan else None

    async def compact_async(self) -> Compacted | None:
        """Like `compact`, without blocking the event loop."""
        plan, execution = self._plan(), None
        if plan and (summary := self._summary(plan)):
            prompt, options = summary
            with self._summarizing():
                execution = await MainLoop(self._nested).execute_async(prompt, **options)
        return self._apply(plan, execution) if plan else None

    def _plan(self) -> Plan | None:
        too_long, self._too_long = self._too_long, False
        if not too_long or self._compaction is None or self._conversation is None:
            return None
        return plan_compaction(self._compaction, self._conversation, self.render())

    # Any: the summary counts as text, whatever its output
    def _summary(self, plan: Plan) -> tuple[Prompt[Any], ExecutionOptions] | None:
        """Returns the prompt of the summary and its arguments; `None` if there is none to make."""
        template = None if self._compaction is None else self._compaction.summary
        if template is None or not (text := plan.older_text()):
            return None
        return template.bind(), ExecutionOptions(session=self._session, message=text)

    @contextmanager
    def _summarizing(self) -> Generator[None]:
        """Adds the conversation to an error of the summary, whose own conversation is another."""
        try:
            yield
        except PromptEvaluationError as error:
            self._refused = True  # by its own request, which is not tried again
            raise error.with_progress(
                usage=error.usage, turns=error.turns, conversation=self._conversation
            ) from error

    def _apply(self, plan: Plan, summary: Execution[Any] | None) -> Compacted:  # Any: as above
        """Goes on with the shorter conversation."""
        text = "" if summary is None else summary.text
        shorter = plan.apply(self.render(), text)
        self._conversation = self._options["conversation"] = shorter
        event = plan.event(shorter, text, self._session.session_id)
        self._publish(event)
        return event

    def _expand(self, signal: VisibilityExpansionRequired) -> None:
        """Opens the sections for the next evaluation; raises `ExpansionLimitError` at the limit."""
        self._count(signal.run_usage, signal.turns)
        if len(self._expansions) >= self._max_expansions:
            error = ExpansionLimitError(
                f"the model asked for further sections after {len(self._expansions)} expansions: "
                f"{signal}",
                phase="limit",
                code="expansions",
                remedy="raise max_expansions, or show the sections it always needs in full",
            )
            complete = self._with_usage(error)
            self._publish(stop_event(complete, self.operation, complete.usage, self._turns))
            raise complete from signal
        keys, reason, session = signal.section_keys, signal.reason, self._session
        self._expansions.append(Expansion(keys, reason))
        self._restarted = Restarted(keys, reason)
        event = VisibilityExpanded(section_keys=keys, reason=reason, session_id=session.session_id)
        self._publish(event)
        for path, visibility in signal.requested_overrides.items():
            session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
        decisions = signal.decisions or self._decisions
        if decisions is not None:
            self._decisions = decisions.changed(signal.requested_overrides)

    def _with_usage[E: PromptEvaluationError](self, error: E) -> E:
        """Returns the error with the usage of all evaluations."""
        conversation = error.conversation or self._conversation
        usage = self._parent.meter.usage.usage
        return error.with_progress(usage=usage, turns=self._turns, conversation=conversation)


@dataclass(frozen=True, slots=True, eq=False)
class NestedAdapter(ProviderAdapter):
    """The adapter that a tool's handler receives: what it evaluates is a part of the tool call.

    An evaluation is a whole run by a `MainLoop`, so the sections that its model requests open
    inside. It inherits bus and deadline of `parent` and counts in its meter. A `MainLoop` with this
    adapter runs in the same way. `call` is a tool call of `caller`: its session, bus and identity.
    """

    adapter: ProviderAdapter
    caller: ParentRun
    clock: Clock = utc_now
    call: tuple[SessionProtocol, EventBus, Identity | None] | None = None

    @property
    def parent(self) -> ParentRun:
        """The run that an evaluation by this adapter is a part of."""
        return self.caller if self.call is None else self.caller.for_call(*self.call)

    @property
    def supports_dynamic_tools(self) -> bool:
        return self.adapter.supports_dynamic_tools

    @property
    def budget(self) -> Budget | None:
        return self.adapter.budget

    @property
    def media(self) -> MediaSupport:
        return self.adapter.media

    def evaluate[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[ExecutionOptions]
    ) -> PromptResponse[Out]:
        return self._loop(options).execute(prompt, **options).whole_response

    # These three take what the base takes and more keywords, which pyright compares with all.
    @takes_bindings
    async def evaluate_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[ExecutionOptions]
    ) -> PromptResponse[Out]:
        execution = await self._loop(options).execute_async(prompt, **options)
        return execution.whole_response

    def stream[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[ExecutionOptions]
    ) -> Generator[StreamEvent[Out]]:
        return self._loop(options).stream(prompt, **options)

    def stream_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[ExecutionOptions]
    ) -> AsyncGenerator[StreamEvent[Out]]:
        return self._loop(options).stream_async(prompt, **options)

    def _loop(self, options: ExecutionOptions) -> MainLoop:
        """Returns the loop of a run; an `adapter` among `options` asks the model in its place."""
        adapter = options.pop("adapter", None) or self.adapter
        return MainLoop(replace(self, adapter=adapter), clock=self.clock)


def _caller(session: SessionProtocol, *adapters: ProviderAdapter) -> ParentRun:
    """Returns the run of the first adapter that belongs to one, otherwise an empty one."""
    nested = [adapter for adapter in adapters if isinstance(adapter, NestedAdapter)]
    return nested[0].parent if nested else ParentRun(None, session, Meter())


_PURPOSES = {"call_history": ", which keeps tools that are not repeatable from running twice"}
