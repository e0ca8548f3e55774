"""A run as a list of recorded steps: what each record holds, and how a later life of the run takes
it for the work.

Every request to the provider and every tool call is one step, and its record one JSON value: what
was asked, what came of it, what it changed in the session, and when. Nothing here knows a database;
`Steps` is where records are kept.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from os import urandom
from typing import Any, Protocol

from ... import serde
from ...adapters.core import Connection, LoopAdapter, PromptResponse
from ...errors import WeakIncentivesError
from ...evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    PromptEvaluationError,
    ThrottleError,
    TurnLimitError,
)
from ...evaluation.inner_loop import ProviderRequest
from ...evaluation.journal import CallIdentity, Journal
from ...evaluation.main_loop import Execution, Expansion, ExpansionLimitError, MainLoop
from ...evaluation.messages import (
    AssistantMessage,
    ToolCall,
    ToolExecutionOutcome,
    ToolMessage,
    sendable,
)
from ...evaluation.tool_executor import ToolExecutor
from ...limits import Budget, Deadline, TokenUsage, utc_now
from ...prompt.context import Evaluator
from ...prompt.errors import VisibilityExpansionRequired
from ...prompt.output import parse_output
from ...prompt.prompt import Prompt
from ...prompt.registry import RESERVED_TOOL_NAMES
from ...prompt.renderer import RenderedPrompt
from ...prompt.tool import AnyTool
from ...runtime.session import Session
from ...runtime.session.snapshots import parse_changes, type_name, types_by_name
from ...visibility import SetVisibilityOverride

__all__ = [
    "DurableAgent",
    "RecordedSteps",
    "ReplayError",
    "StepFailedError",
    "Steps",
    "durable",
    "execute_run",
    "to_input",
]

# of the records; part of an agent's version, so that runs begun in another one wait for their own
# code
_FORMAT = 2

# Any: records are JSON objects, read key by key.
type Record = dict[str, Any]


class ReplayError(WeakIncentivesError):
    """A run asked for something else than its record holds: its code or prompt has changed since."""


class StepFailedError(WeakIncentivesError):
    """What a step raised that is no failure of an evaluation, told by its name and message."""


class Steps(Protocol):
    """Where the records of one run are kept."""

    run_id: str

    def step(
        self, name: str, work: Callable[[], Record], /, *, transactional: bool = False
    ) -> Record:
        """The record at the next position, or that of `work`, which is then kept.

        With `transactional`, what `work` writes to the application's database commits together with
        the record.
        """
        ...


class RecordedSteps:
    """Keeps records in memory, as pairs of a step's name and its record; those given stand for the
    first steps.
    """

    def __init__(
        self, records: Sequence[tuple[str, Record]] = (), *, run_id: str = "replay"
    ) -> None:
        self.run_id = run_id
        self.records = list(records)
        self._next = 0

    def step(
        self, name: str, work: Callable[[], Record], /, *, transactional: bool = False
    ) -> Record:
        """As `Steps.step`. Raises `ReplayError` when the record is of another step."""
        if self._next == len(self.records):
            self.records.append((name, work()))
        found, record = self.records[self._next]
        if found != name:
            raise ReplayError(
                f"step {self._next} of run {self.run_id!r} is {found!r} in its record and now {name!r}"
            )
        self._next += 1
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableAgent[Out]:
    """What runs can be started of: a prompt and the loop that executes it, made by `durable`."""

    main_loop: MainLoop
    adapter: LoopAdapter
    prompt: Callable[[], Prompt[Out]]
    types: frozenset[type[Any]]
    session: Callable[[str], Session]

    @property
    def version(self) -> str:
        """Changes when a run that was begun before could no longer be taken up: with texts, tools
        and record format.
        """
        return _digest(
            _FORMAT,
            self.prompt().descriptor.hash,
            [(tool.name, tool.effect) for tool in self.tools],
        )

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """All tools of the prompt, open or not."""
        return tuple(
            [tool for node in self.prompt().template.registry.sections for tool in node.tools]
        )


def durable[Out](
    main_loop: MainLoop,
    prompt: Callable[[], Prompt[Out]],
    *,
    types: Collection[type[Any]] = (),
    session: Callable[[str], Session] = lambda run_id: Session(session_id=run_id),
) -> DurableAgent[Out]:
    """An agent whose runs are recorded step by step.

    `prompt` makes the prompt of each run, such as `template.bind`; `session` its session, with the
    reducers that the application registers. Session state may be of `types` and of those that have
    reducers. Raises `TypeError` for an adapter whose requests cannot be recorded one by one.
    """
    adapter = main_loop.adapter
    if not isinstance(adapter, LoopAdapter) or type(adapter).evaluate is not LoopAdapter.evaluate:
        raise TypeError(
            f"{type(adapter).__name__} runs its own loop, which cannot be recorded; use a LoopAdapter"
        )
    return DurableAgent(
        main_loop=main_loop, adapter=adapter, prompt=prompt, types=frozenset(types), session=session
    )


# Any: prompts of every output.
def execute_run(agent: DurableAgent[Any], given: Record, steps: Steps) -> Record:
    """Executes a run, or what is left of it, and gives its result as JSON; `given` is what
    `to_input` made.
    """
    session = agent.session(steps.run_id)
    if given["session"] is not None:
        session.restore(session.parse_snapshot(given["session"], types=agent.types))
    # what could not be written at the end is found before any work is done
    session.snapshot().to_json()
    run = _Life(steps, session, agent.types)
    run.step("start", agent.version, dict)
    prompt = agent.prompt()
    kinds = types_by_name(given["params"], prompt.template.registry.params_types)
    prompt.bind(*(serde.parse(kinds[name], value) for name, value in given["params"].items()))
    loop = copy(agent.main_loop)
    loop.adapter, loop.clock = _Recorded(agent.adapter, run), run.clock
    try:
        execution = loop.execute(
            prompt,
            session=session,
            deadline=serde.parse(Deadline | None, given["deadline"]),
            budget=serde.parse(Budget | None, given["budget"]),
        )
    except PromptEvaluationError as error:
        result = {
            "error": _error_to_json(error),
            "usage": serde.dump(error.usage),
            "turns": error.turns,
        }
    else:
        response = execution.response
        result = {
            "text": response.text,
            "output": serde.dump(response.output),
            "turns": response.turns,
        }
        result |= {
            "expansions": serde.dump(execution.expansions),
            "usage": serde.dump(execution.usage),
        }
        result["last_usage"] = serde.dump(response.usage)
    return {**result, "session": session.snapshot().to_json()}


def to_input(
    *params: object,
    session: Session | None = None,
    deadline: Deadline | None = None,
    budget: Budget | None = None,
) -> Record:
    """What a run is given, as JSON."""
    return {
        "params": {type_name(type(one)): serde.dump_lossless(type(one), one) for one in params},
        "session": None if session is None else session.snapshot().to_json(),
        "deadline": serde.dump(deadline),
        "budget": serde.dump(budget),
    }


def to_execution[Out](agent: DurableAgent[Out], result: Record) -> Execution[Out]:
    """The execution that `execute_run` told of, without its transcript; raises the
    `PromptEvaluationError` that it told.
    """
    usage = serde.parse(TokenUsage, result["usage"])
    if "error" in result:
        error = _error_from_json(result["error"])
        if isinstance(error, PromptEvaluationError):
            error = error.with_progress(usage=usage, turns=result["turns"], transcript=())
        raise error
    prompt = agent.prompt()
    declared: Any = prompt.template.structured_output  # Any: Out is what it declares
    response = PromptResponse[Any](
        prompt_name=prompt.name,
        text=result["text"],
        # as the evaluation did
        output=None if declared is None else parse_output(result["text"], declared)[0],
        usage=serde.parse(TokenUsage, result["last_usage"]),
        turns=result["turns"],
    )
    expansions = serde.parse(tuple[Expansion, ...], result["expansions"])
    return Execution(response=response, expansions=expansions, usage=usage)


class _Life:
    """One life of a run: from its start, or from its start again after a crash, to its end or the
    next crash.
    """

    def __init__(self, steps: Steps, session: Session, types: Collection[type[Any]]) -> None:
        self.run_id = steps.run_id
        self.calls = 0
        self._steps = steps
        self._session = session
        self._types = {*types, *session.snapshot().slices}
        self._now: datetime | None = utc_now()

    def clock(self) -> datetime:
        """The time of the last step, since a later life decides by the same times; within a step
        the present.
        """
        return self._now or utc_now()

    def step(
        self, name: str, asked: str, work: Callable[[], Record], *, transactional: bool = False
    ) -> tuple[Record, bool]:
        """What came of the next step, and whether it was `work` of this life.

        Raises `ReplayError`.
        """
        before = self._session.snapshot()
        mine: Record = {}

        def record() -> Record:
            if mine:  # the transaction is tried again
                self._session.restore(before)
            self._now = None
            mine["asked"] = asked
            mine["came"] = work()
            mine["state"] = self._session.snapshot().since(before)
            mine["at"] = serde.dump(utc_now())
            for slices in mine["state"].values():
                # what could not be read back must not be written
                types_by_name(slices, self._types)
            return mine

        kept = self._steps.step(name, record, transactional=transactional)
        if kept["asked"] != asked:
            raise ReplayError(
                f"step {name!r} of run {self.run_id!r} was recorded for another request or prompt"
            )
        own = kept == mine
        if not own:
            if mine:  # another life has taken over and was faster
                self._session.restore(before)
            for how, of, values in parse_changes(kept["state"], self._types):
                if how == "set":
                    self._session[of].seed(*values)
                else:
                    for value in values:
                        self._session[of].append(value)
        self._now = serde.parse(datetime, kept["at"])
        return kept["came"], own

    def begun_before(self, name: str) -> bool:
        """Whether an earlier life has recorded that it was about to make the call at this position."""
        _, own = self.step(f"intent:{name}", "", lambda: {"token": urandom(16).hex()})
        return not own


class _Recorded(LoopAdapter):
    """The application's adapter, with the work of its evaluations recorded."""

    def __init__(self, inner: LoopAdapter, run: _Life) -> None:
        super().__init__(
            config=replace(inner.config, parallel_tool_calls="in_order"), clock=run.clock
        )
        self.name = inner.name
        self.model = inner.model
        self._inner = inner
        self._run = run

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._inner.supports_dynamic_tools

    @property
    def budget(self) -> Budget | None:
        return self._inner.budget

    def connect(self, rendered: RenderedPrompt[Any], /) -> Connection:
        """A line to the same provider."""
        return self._inner.connect(rendered)

    @property
    def evaluator(self) -> Evaluator:
        """The application's adapter: what a handler evaluates is a part of its own step."""
        return self._inner

    def journal(self, tools: ToolExecutor, /) -> Journal:
        """The record of the run."""
        return _RunJournal(self._run, tools)


class _RunJournal:
    """The journal of one evaluation of a run."""

    def __init__(self, run: _Life, tools: ToolExecutor) -> None:
        self._run = run
        self._tools = tools
        self._told = sha256()
        self._read = 0

    def ask(
        self, request: ProviderRequest, ask: Callable[[], AssistantMessage], /
    ) -> AssistantMessage:
        came, _ = self._run.step("provider", self._digest(request), lambda: _answer(ask))
        if "error" in came:
            raise _error_from_json(came["error"])
        return serde.parse(AssistantMessage, came["answer"])

    def _digest(self, request: ProviderRequest) -> str:
        """Stands for all that the model was told until now; costs what is new."""
        if not self._read:
            self._told.update(serde.dump_json((request.tools, request.output)).encode())
        for message in request.transcript[self._read :]:
            self._told.update(f"{type(message).__name__}{serde.dump_json(message)}".encode())
        self._read = len(request.transcript)
        return self._told.hexdigest()[:16]

    def execute(
        self,
        call: ToolCall,
        execute: Callable[[CallIdentity | None], ToolExecutionOutcome],
        /,
    ) -> ToolExecutionOutcome:
        tools, tool = self._tools, self._tools.available.get(call.name)
        effect = None if tool is None else tool.effect
        name = "unknown" if tool is None else call.name
        self._run.calls += 1
        identity = CallIdentity(
            f"{self._run.run_id}:{self._run.calls}",
            began=effect == "at_most_once" and self._run.begun_before(name),
        )
        came, own = self._run.step(
            f"tool:{name}",
            _digest(call),
            lambda: _outcome(partial(execute, identity)),
            transactional=effect == "transactional",
        )
        if "signal" in came:
            if not own:
                tools.recall(call, None)
            opened = serde.parse(list[SetVisibilityOverride], came["signal"])
            request = VisibilityExpansionRequired(
                *came["args"],
                requested_overrides={one.path: one.visibility for one in opened},
                reason=came["reason"],
                section_keys=tuple(came["section_keys"]),
            )
            if call.name not in RESERVED_TOOL_NAMES:
                raise request
            answer = ToolMessage(call.call_id, str(request))
            return ToolExecutionOutcome(call.call_id, answer, answer.success, request=request)
        told = came["outcome"]
        message = serde.parse(ToolMessage, told["message"])
        if not own:
            tools.recall(call, message)
        return ToolExecutionOutcome(
            call.call_id,
            message,
            message.success,
            tools.available.named(told["tools"]),
            told["section_key"],
            tuple(map(tuple, told["opened"])),
            tuple(told["closed_tools"]),
        )


def _answer(ask: Callable[[], AssistantMessage]) -> Record:
    try:
        told = ask()
        calls = [
            replace(one, name=sendable(one.name), arguments=sendable(one.arguments))
            for one in told.tool_calls
        ]
        return {
            "answer": serde.dump(replace(told, text=sendable(told.text), tool_calls=tuple(calls)))
        }
    except Exception as error:
        return {"error": _error_to_json(error)}


def _outcome(execute: Callable[[], ToolExecutionOutcome]) -> Record:
    try:
        one = execute()
    except VisibilityExpansionRequired as request:
        return _request(request)
    if one.request is not None:
        return _request(one.request)
    outcome: Record = {"message": one.message, "tools": [tool.name for tool in one.expanded_tools]}
    outcome |= {name: getattr(one, name) for name in ("section_key", "opened", "closed_tools")}
    return {"outcome": serde.dump(outcome)}


def _request(request: VisibilityExpansionRequired) -> Record:
    opened = [
        SetVisibilityOverride(path=path, visibility=to)
        for path, to in request.requested_overrides.items()
    ]
    told = {
        "reason": sendable(request.reason),
        "section_keys": list(request.section_keys),
        "args": list(request.args),
    }
    return {"signal": serde.dump(opened), **told}


def combined_version(agents: Mapping[str, DurableAgent[Any]]) -> str:
    """The version of all agents of a process."""
    return _digest([(name, agent.version) for name, agent in sorted(agents.items())])


def _digest(*parts: object) -> str:
    return sha256(serde.dump_json(parts).encode()).hexdigest()[:16]


def succeeded(record: Record) -> bool:
    """Whether the tool call of this record counts."""
    came: Mapping[str, Any] = record["came"]
    return "outcome" not in came or came["outcome"]["message"]["success"] is True


_KINDS = (
    ThrottleError,
    DeadlineExceededError,
    BudgetExceededError,
    TurnLimitError,
    ExpansionLimitError,
)
_ERRORS: dict[str, type[PromptEvaluationError]] = {
    kind.__name__: kind for kind in (*_KINDS, PromptEvaluationError)
}
_ARGUMENTS = ("message", "phase", "code", "provider", "status", "remedy")


def _error_to_json(error: Exception) -> Record:
    if not isinstance(error, PromptEvaluationError):
        return {"is": "", "message": f"{type(error).__name__}: {error}"}
    kind = next(name for name, kind in _ERRORS.items() if isinstance(error, kind))
    after = serde.dump(getattr(error, "retry_after", None))
    return {"is": kind, **{name: getattr(error, name) for name in _ARGUMENTS}, "retry_after": after}


def _error_from_json(told: Record) -> PromptEvaluationError | StepFailedError:
    if not told["is"]:
        return StepFailedError(told["message"])
    error = _ERRORS[told["is"]](**{name: told[name] for name in _ARGUMENTS})
    if isinstance(error, ThrottleError):
        error.retry_after = serde.parse(timedelta | None, told["retry_after"])
    return error
