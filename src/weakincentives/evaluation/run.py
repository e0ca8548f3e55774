"""`Run` evaluates a prompt until one evaluation returns an answer.

`Run.course` is a generator of effects, written once. It starts an evaluation, and further ones to
open sections or to continue with a shorter conversation. Four methods perform these effects:
`result`, `stream` and their async versions.
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack, final

from ..content import MediaSupport, to_content
from ..event_loops import closing_shielded
from ..limits import Budget, Clock, Meter, RunUsage, TokenUsage, utc_now
from ..locks import Reservation, RunToken
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.renderer import RenderedPrompt
from ..prompt.template import Prompt
from ..protocols import EventBus, SessionProtocol
from ..runtime.events import Operation, VisibilityExpanded
from ..visibility import SectionDecisions, SetVisibilityOverride
from .adapter import (
    ConnectingAdapter,
    ConversationOptions,
    EvaluationStart,
    ExecutionOptions,
    LoopOptions,
    ParentRun,
    ProviderAdapter,
    Runnable,
    adapter_in,
    bound,
    check_arguments,
    publisher,
    session_in,
    source_of,
    takes_bindings,
)
from .chat_turn import ChatTurn
from .compaction import Compaction, Plan, plan_compaction, request_tokens
from .config import layered, with_settings
from .conversation import Conversation
from .effects import Ask, Close, Effects, perform, perform_async, run
from .errors import ExpansionLimitError, PromptEvaluationError, raise_instead
from .evaluation_events import stop_event
from .evaluations import Evaluation
from .inner_loop import Restart, TooLong
from .logged_run import Rendered, usage_of
from .messages import UserMessage, keep_media
from .response import Completed, Execution, Expansion, PromptResponse, Restarted, StreamEvent
from .run_log import OpenCall
from .run_records import new_log, with_record
from .run_stream import async_run_stream, run_stream
from .tool_executor import AdapterOfCall
from .whole_evaluations import OWN_LOOP, WholeEvaluation, WholeEvaluations, check_config

__all__ = ["NestedAdapter", "Run", "has_own_loop"]

_RESTARTS = 10
_NO_PARENT = ParentRun(None, Meter())


class Run[Out]:
    """One run of a prompt; call `result`, `stream` or one of their async versions, once.

    The run restarts at most `restarts` times to open the sections that the model requests. If
    `restarts` is `None`, the run is a single evaluation, which raises `VisibilityExpansionRequired`
    instead. `compaction` determines when the run shortens a conversation.
    """

    def __init__(
        self,
        adapter: ProviderAdapter,
        prompt: Runnable[Out],
        options: ExecutionOptions | LoopOptions,
        *,
        restarts: int | None = None,
        compaction: Compaction | None = None,
        clock: Clock = utc_now,
        streamed: bool = False,
    ) -> None:
        known = LoopOptions if restarts is None else ExecutionOptions
        check_arguments(prompt := bound(prompt), options, known, Prompt, RenderedPrompt)
        every: Any = options  # ExecutionOptions has all keys of LoopOptions
        given = with_record(every)
        session, used = session_in(given), adapter_in(given, adapter)
        parent = _caller(used, adapter)
        self._config = with_settings(given.get("config"), given.pop("settings", None))
        self._adapter = _plain(used)
        self._first: RenderedPrompt[Out] | None = None
        if isinstance(prompt, RenderedPrompt):
            self._first, prompt = prompt, source_of(prompt)
        of_parent = parent.inherited(same_model=_plain(adapter) is self._adapter)
        given["config"] = layered(self._config, with_settings(None, prompt.settings), of_parent)
        parent.check_depth(prompt.name, session)
        prompt.declare_state(session)
        self._prompt, self._session, self._save = prompt, session, given.get("save")
        self._restarts, self._compaction, self._streamed = restarts, compaction, streamed
        self._publish = publisher(session, given.get("bus") or parent.bus)
        self._token = RunToken(prompt.name, given.get("caller") or parent.run, streamed)
        self._is_whole = restarts is not None and has_own_loop(self._adapter)
        stacks = [] if self._is_whole else prompt.runs_with(session)
        self._reservation = Reservation(self._token, stacks)
        self._conversation: Conversation | None = None  # without the current evaluation's messages
        self._set_conversation(given)
        self._expansions: list[Expansion] = []
        self._turns = 0  # the requests of earlier evaluations
        self._evaluation: Evaluation[Out] | WholeEvaluation[Out] | None = None
        self._evaluations: list[Evaluation[Out]] = []  # kept for a chat's turn
        self._execution: Execution[Out] | None = None
        names = ConversationOptions.__annotations__
        # Any: what was passed
        kept: Any = {name: value for name, value in given.items() if name in names}
        self._options: EvaluationStart = kept
        self.log = new_log(prompt, given, parent)
        self._options["log"], self._ids = self.log, self.log.ids(session.session_id)
        self._own = None if restarts is None else self._as_parent(given, parent, clock)
        self._operation = None if self._own is None else self._own.operation
        if self.log.record.entries or self.log.record.inside:
            self._take_over()
        self._turn = turn = given.get("turn")
        if turn is not None:
            turn.begin(session, self.log, self.so_far)
            if self.log.record.entries:
                self._conversation = turn.latest or self._conversation

    def _set_conversation(self, options: ExecutionOptions) -> None:
        """Stores the initial conversation, and checks whether it is already too long."""
        self._overrides = dict(options.get("visibility_overrides") or {})
        self._start = self._conversation = options.get("conversation")
        message = options.get("message")
        self._decisions: SectionDecisions | None = None
        self._is_too_long = self._was_refused = False
        if self._conversation is None:
            return
        if known := self._conversation.decisions_for(self._prompt):
            known.overrides = {**known.overrides, **self._overrides}
            self._decisions = known
        if self._compaction is not None:
            new = (UserMessage(to_content(message)),) if message else ()
            messages, tools = self._conversation.messages, self._conversation.tools
            tokens = request_tokens((*messages, *new), tools)
            self._is_too_long = tokens > self._compaction.at_tokens

    def _as_parent(self, options: ExecutionOptions, parent: ParentRun, clock: Clock) -> ParentRun:
        """Returns the parent of the run's evaluations, and stores their arguments."""
        bus = options.get("bus") or parent.bus
        nearer = options.get("config")
        source = nearer if nearer and "budget" in nearer.given else self._adapter
        self._budget = options.get("budget") or source.budget
        deadlines = (
            *(options.get("deadline"), parent.deadline, nearer and nearer.deadline),
            self._budget and self._budget.deadline(clock()),
        )
        deadline = min([moment for moment in deadlines if moment], default=None)
        approver = options.get("approver") or parent.approver
        operation = Operation(
            bus=self._session.bus if bus is None else bus,
            kind="execution",
            name=self._prompt.name,
            streamed=self._streamed,
            parent=parent.operation,
            **self._ids,
        )
        own = ParentRun(
            self._token,
            Meter(self._budget, parent.meter if parent.run else None),
            bus,
            deadline,
            approver,
            parent.levels_left,
            nearer,
            operation,
        )
        self._options["bus"], self._options["deadline"] = bus, deadline
        if approver is not None:
            self._options["approver"] = approver
        if self._is_whole:
            return own
        self._options["budget"], self._options["parent"] = self._budget, own
        if self._compaction is not None:
            self._options["max_request_tokens"] = self._compaction.at_tokens
        return own

    def result(self) -> Execution[Out]:
        """Performs the run in this thread."""
        with self, self._prompt.resources, closing(self):
            run(self.course())
        return self.execution

    async def result_async(self) -> Execution[Out]:
        """Performs the run without blocking the event loop."""
        async for _ in self.stream_async():
            pass
        return self.execution

    def stream(self) -> Generator[StreamEvent[Out]]:
        """Performs the run in this thread and yields its events; the last contains the response."""
        with self, self._prompt.resources, closing(self):
            yield from perform(self.course())
        # after the cleanup, because a reader may stop at this event
        yield Completed(self.execution.whole_response)

    async def stream_async(self) -> AsyncGenerator[StreamEvent[Out]]:
        """Like `stream`, without blocking the event loop."""
        with self:
            events = perform_async(self.course())
            async with self._prompt.resources, closing_shielded(self), closing_shielded(events):
                async for event in events:
                    yield event
        yield Completed(self.execution.whole_response)

    @property
    def execution(self) -> Execution[Out]:
        """The result of the finished run."""
        assert self._execution is not None  # `course` has set it or raised
        return self._execution

    def __enter__(self) -> Self:
        self._reservation.__enter__()
        try:
            if self._operation is not None:
                self._operation.__enter__()
        except BaseException:
            self._reservation.__exit__()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Saves the conversation and publishes how the run ended."""
        evaluation = self._evaluation
        if isinstance(error, PromptEvaluationError):
            error.session = self._session
        try:
            if evaluation is not None:
                if error is not None:
                    self._conversation = evaluation.stop(error) or self._conversation
                self._evaluation = None
                evaluation.end(error)
        finally:
            try:
                if self._operation is not None:
                    self._operation.__exit__(kind, error, trace)
                if self._save and self._conversation is not None:
                    self._save(self._conversation)
            finally:
                try:
                    if self._turn is not None:
                        self._end_turn(self._turn, error)
                finally:
                    self._reservation.__exit__()

    def _end_turn(self, turn: ChatTurn, error: BaseException | None) -> None:
        """Saves the conversation of a turn that has ended, for example when its stream closes."""
        has_continued = "resumes" not in self._options
        if isinstance(error, Exception | GeneratorExit | None) and has_continued:
            turn.end(self._session, self._conversation)
        else:
            turn.settle(self._session)

    def so_far(self, size: int | None = None) -> Conversation | None:
        """Returns the conversation after the first `size` log entries, or after all of them."""
        if size is None or size == len(self.log.entries):
            evaluation = self._evaluation
            return (evaluation and evaluation.so_far()) or self._conversation
        for past in reversed(self._evaluations):
            if past.begins < size:
                return past.so_far(size)
        return None if self._turn is None else self._turn.latest

    def close(self) -> None:
        """Closes the connection to the provider, if it is open."""
        if self._evaluation is not None and (connection := self._evaluation.take_connection()):
            connection.close()

    async def aclose(self) -> None:
        """Like `close`, without blocking the event loop."""
        if self._evaluation is not None and (connection := self._evaluation.take_connection()):
            await connection.aclose()

    def course(self) -> Effects[None]:
        """Evaluates the prompt until an evaluation returns an answer."""
        while self._execution is None:
            try:
                if self._is_too_long:
                    yield from self._compact()
                evaluation = self._begin_evaluation()
                end = yield from evaluation.effects()
            except PromptEvaluationError as error:
                if self._own is None:
                    raise
                turns = self._turns
                self._count(error.usage, error.turns)
                if self._prepare_compaction(error):
                    yield from self._end_evaluation(error)
                elif turns or error.usage != self._own.meter.tokens:
                    raise_instead(error, self._with_usage(error))
                else:
                    raise
            else:
                yield from self._take(end, evaluation)

    def _take(
        self,
        end: PromptResponse[Out] | Restart | TooLong,
        evaluation: Evaluation[Out] | WholeEvaluation[Out],
    ) -> Effects[None]:
        """Ends the run with a response, or prepares the next evaluation."""
        match end:
            case PromptResponse():
                self._finish(end)
            case Restart(request):
                if self._own is None:
                    raise request
                if self._is_whole and self._prompt.template.registry.has_non_repeatable_tools:
                    raise TypeError(OWN_LOOP.format(type(self._adapter).__name__))
                self._conversation = evaluation.stop(request) or self._conversation
                yield from self._end_evaluation(request)
                yield from self._restart(request)
            case TooLong():
                self._count(TokenUsage(), evaluation.turns)
                conversation = evaluation.stop(None)
                yield from self._end_evaluation(None)
                self._continue_with(conversation or self._conversation)

    def _end_evaluation(self, error: Exception | None) -> Effects[None]:
        """Ends an evaluation before the next one starts."""
        evaluation = self._evaluation
        if evaluation is not None:
            if connection := evaluation.take_connection():
                yield Close(connection)
            self._evaluation = None
            evaluation.end(error)

    def _begin_evaluation(self) -> Evaluation[Out] | WholeEvaluation[Out]:
        rendered = self._render()
        options = self._options.copy()
        if self.log.is_repeated:
            self.log.next_recorded(Rendered)
        adapter = self._adapter
        if isinstance(adapter, ConnectingAdapter) and not self._is_whole:
            evaluation = Evaluation(adapter, rendered, options, self._token, _adapter_of_call)
            self._evaluation = evaluation
            if self._turn is not None:
                self._evaluations.append(evaluation)
            self._options.pop("resumes", None)
            evaluation.begin()
            return evaluation
        if self._own is not None:
            options["budget"] = self._own.meter.left
        known = ConversationOptions.__annotations__.keys() - {"config"}
        asked = WholeEvaluations(adapter, {k: v for k, v in options.items() if k in known})
        check_config(adapter, with_settings(self._config, self._prompt.settings))
        self._evaluation = WholeEvaluation(asked, rendered, streamed=self._streamed)
        return self._evaluation

    def _render(self) -> RenderedPrompt[Out]:
        """Renders the prompt for the next evaluation."""
        rendered, self._first = self._first, None
        rendered = rendered or self._prompt.render(
            session=self._session,
            visibility_overrides=self._overrides,
            decisions=self._decisions,
            deadline=self._options.get("deadline"),
        )
        self._decisions = rendered.view.decisions
        return rendered

    def _count(self, usage: TokenUsage | RunUsage, turns: int) -> None:
        """Counts a finished evaluation; the engine's own evaluations have already counted usage."""
        self._turns += turns
        if self._is_whole and self._own is not None:
            usage = RunUsage(usage, turns) if isinstance(usage, TokenUsage) else usage
            self._own.meter.add_run(usage, type(self._adapter).__name__)

    def _finish(self, response: PromptResponse[Out]) -> None:
        self._count(response.usage, response.turns)
        if response.session is not self._session:
            response = replace(response, session=self._session)
        usage = response.usage if self._own is None else self._own.meter.tokens
        expansions = tuple(self._expansions)
        self._execution = Execution(response=response, expansions=expansions, usage=usage)
        if self._operation is not None:
            self._operation.set_result(self._execution)
        self._conversation = response.conversation or self._conversation

    def _take_over(self) -> None:
        """Continues from the run's record, unless its calls were undone and must be repeated."""
        log, known = self.log, usage_of(self.log.record)
        if self._own is not None:
            self._own.meter.load(known, type(self._adapter).__name__)
        if log.is_repeated or not log.record.entries:
            return
        log.take_over()
        self._options["resumes"], self._is_too_long = True, False
        self._turns = log.requests_before("start", "restart", "compaction")
        if shortened := log.requests_before("compaction"):
            self._options["previous_turns"] = shortened
        for entry in log.entries:
            if isinstance(entry, Rendered) and entry.cause == "restart":
                self._expansions.append(Expansion(entry.section_keys, entry.reason))
        rendered_entry = log.entries[log.begins]
        if isinstance(rendered_entry, Rendered) and rendered_entry.conversation is not None:
            self._decisions = (
                rendered_entry.conversation.decisions_for(self._prompt) or self._decisions
            )
            if rendered_entry.cause == "compaction":
                self._conversation = self._options["conversation"] = rendered_entry.conversation
                self._options["message"] = None

    def _restart(self, signal: VisibilityExpansionRequired) -> Effects[None]:
        """Opens sections for the next evaluation; raises `ExpansionLimitError` at the limit."""
        self._count(signal.run_usage, signal.turns)
        if self._operation is not None and len(self._expansions) >= (self._restarts or 0):
            error = ExpansionLimitError(
                f"the model asked for further sections after {len(self._expansions)} expansions: "
                f"{signal}",
                phase="limit",
                code="expansions",
                remedy="raise max_expansions, or show the sections it always needs in full",
            )
            complete = self._with_usage(error)
            usage, turns = complete.usage, self._turns
            self._publish(stop_event(complete, self._operation, usage, turns, ids=self._ids))
            raise complete from signal
        keys, reason, session = signal.section_keys, signal.reason, self._session
        self._expansions.append(Expansion(keys, reason))
        self._options["rendering"] = Rendered(cause="restart", section_keys=keys, reason=reason)
        self._publish(VisibilityExpanded(section_keys=keys, reason=reason, **self._ids))
        for path, visibility in signal.requested_overrides.items():
            session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
        decisions = signal.decisions or self._decisions
        if decisions is not None:
            self._decisions = decisions.changed(signal.requested_overrides)
        if self._streamed:
            yield Restarted(keys, reason)

    def _continue_with(self, conversation: Conversation | None) -> None:
        """Prepares the next evaluation to continue a conversation that is too long."""
        self._conversation, self._is_too_long = conversation, True
        self._decisions = None if conversation is None else conversation.decisions_for(self._prompt)
        self._options["conversation"], self._options["message"] = conversation, None
        if not self._is_whole:
            self._options["previous_turns"] = self._turns
        self._options["rendering"] = Rendered(cause="compaction")

    def _prepare_compaction(self, error: PromptEvaluationError) -> bool:
        """If a provider rejected a request as too long, prepares to compact and returns true."""
        conversation = error.conversation if error.code == "context_length" else None
        if self._compaction is None or self._was_refused or conversation is None:
            return False
        if self._is_whole and self._start is None:
            return False  # it is unknown whether the adapter accepts conversations
        self._was_refused = True
        self._continue_with(conversation.retried())
        return True

    def _compact(self) -> Effects[None]:
        """Shortens a conversation that is too long, if possible."""
        self._is_too_long = False
        if self._compaction is None or self._conversation is None:
            return
        plan = plan_compaction(self._compaction, self._conversation, self._render())
        if plan is None:
            return
        if message := self._options.get("message"):  # kept even if there is no summary
            new = keep_media(UserMessage(to_content(message)), self._session.content)
            self._conversation = self._conversation.extended([new])
        summary = yield from self._summarize(plan, self._compaction)
        shorter = plan.apply(self._render(), summary)
        self._conversation = self._options["conversation"] = shorter
        self._options["rendering"] = Rendered(cause="compaction")
        event = plan.event(shorter, summary, self._ids)
        self._publish(event)
        if self._streamed:
            yield event

    def _summarize(self, plan: Plan, compaction: Compaction) -> Effects[str]:
        """Returns a summary of the removed turns, written by a nested run."""
        if compaction.summary is None or self._own is None or not (text := plan.older_text()):
            return ""
        parent = replace(self._own, call=self.log.begin_summary())
        options = ExecutionOptions(session=self._session, message=text)
        asked = WholeEvaluations(NestedAdapter(self._adapter, parent), options)
        completed, failure = yield Ask(asked, compaction.summary.bind())
        try:
            if failure is not None:
                raise failure
        except PromptEvaluationError as error:
            self._was_refused = True  # the summary's own request was rejected; do not try again
            # replace the conversation of the run that wrote the summary
            raise error.with_progress(
                usage=error.usage, turns=error.turns, conversation=self._conversation
            ) from error
        finally:
            del failure  # otherwise, the exception's traceback would refer to the exception
        answer: str = completed.response.text
        return answer

    def _with_usage[E: PromptEvaluationError](self, error: E) -> E:
        """Returns the error with the total usage of all evaluations."""
        conversation = error.conversation or self._conversation
        usage = error.usage if self._own is None else self._own.meter.tokens
        return error.with_progress(usage=usage, turns=self._turns, conversation=conversation)


@final  # so that comparing types is enough, which is faster than isinstance with an ABC
@dataclass(slots=True, eq=False)  # not frozen, because that costs 1 µs per call
class NestedAdapter(ProviderAdapter):
    """The adapter that a tool's handler receives; its evaluations are part of the tool call.

    Each evaluation is a complete run, as with `MainLoop`, which opens the sections that its model
    requests. It inherits the bus and the deadline of `parent`, and counts its usage in the parent's
    meter, as a `MainLoop` does that uses this adapter. `call` is a tool call with its bus.
    """

    adapter: ProviderAdapter
    caller: ParentRun
    clock: Clock = utc_now
    call: tuple[EventBus, OpenCall] | None = None

    @property
    def parent(self) -> ParentRun:
        """The parent of this adapter's runs."""
        return self.caller if self.call is None else self.caller.for_call(*self.call)

    def for_call(self, session: SessionProtocol, bus: EventBus, call: OpenCall) -> "NestedAdapter":
        """Returns the adapter for one tool call; `session` can be a fork."""
        return NestedAdapter(self.adapter, self.parent, self.clock, (bus, call))

    @property
    def supports_dynamic_tools(self) -> bool:
        return self.adapter.supports_dynamic_tools

    @property
    def budget(self) -> Budget | None:
        return self.adapter.budget

    @property
    def media(self) -> MediaSupport:
        return self.adapter.media

    @takes_bindings
    def evaluate[Out](
        self, prompt: Runnable[Out], /, **options: Unpack[ExecutionOptions]
    ) -> PromptResponse[Out]:
        return self._run(prompt, options).result().whole_response

    # These three methods accept more keywords than the base's, which pyright rejects.
    @takes_bindings
    async def evaluate_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Runnable[Out], /, **options: Unpack[ExecutionOptions]
    ) -> PromptResponse[Out]:
        return (await self._run(prompt, options).result_async()).whole_response

    @takes_bindings
    @run_stream
    def stream[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Runnable[Out], /, **options: Unpack[ExecutionOptions]
    ) -> Generator[StreamEvent[Out]]:
        yield from self._run(prompt, options, streamed=True).stream()

    @takes_bindings
    @async_run_stream
    async def stream_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Runnable[Out], /, **options: Unpack[ExecutionOptions]
    ) -> AsyncGenerator[StreamEvent[Out]]:
        async with aclosing(self._run(prompt, options, streamed=True).stream_async()) as events:
            async for event in events:
                yield event

    def _run[Out](
        self, prompt: Runnable[Out], options: ExecutionOptions, *, streamed: bool = False
    ) -> "Run[Out]":
        """Returns a run; an `adapter` in `options` replaces the wrapped one."""
        adapter = adapter_in(options, self.adapter)
        options = {**options, "adapter": replace(self, adapter=adapter)}
        return Run(self, prompt, options, restarts=_RESTARTS, clock=self.clock, streamed=streamed)


def _adapter_of_call(adapter: ProviderAdapter, caller: ParentRun, clock: Clock) -> AdapterOfCall:
    return NestedAdapter(adapter, caller, clock).for_call


def _caller(used: ProviderAdapter, adapter: ProviderAdapter) -> ParentRun:
    """Returns the parent run of the first adapter that has one, or an empty parent."""
    if type(used) is NestedAdapter:
        return used.parent
    return adapter.parent if type(adapter) is NestedAdapter else _NO_PARENT


def _plain(adapter: ProviderAdapter) -> ProviderAdapter:
    return adapter.adapter if type(adapter) is NestedAdapter else adapter


def has_own_loop(adapter: ProviderAdapter) -> bool:
    """Whether an adapter has its own loop, which reserves the session for each evaluation."""
    adapter = _plain(adapter)
    return not isinstance(adapter, ConnectingAdapter) or adapter.has_own_loop
