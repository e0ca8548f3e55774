"""A run as a list of recorded steps, which a later attempt of the run replays.

Each request to the provider and each tool call is one step. Its record is one JSON object: a digest
of what was asked, the outcome, the changes of the session, and the time. Nothing here knows a
database; `Steps` stores the records. `outcomes` writes and reads the outcomes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from os import urandom
from typing import Any, Protocol

from ... import serde
from ...adapters.core import Connection, LoopAdapter
from ...errors import WeakIncentivesError
from ...evaluation.inner_loop import ProviderRequest
from ...evaluation.journal import CallIdentity, Journal
from ...evaluation.main_loop import MainLoop
from ...evaluation.messages import (
    AssistantMessage,
    ToolCall,
    ToolExecutionOutcome,
    ToolMessage,
)
from ...evaluation.suspension import SuspendedRun
from ...evaluation.tool_executor import ToolExecutor
from ...limits import Budget, Meter, RunUsage, utc_now
from ...prompt.context import Evaluator
from ...prompt.prompt import Prompt
from ...prompt.registry import RESERVED_TOOL_NAMES
from ...prompt.renderer import RenderedPrompt
from ...prompt.tool import AnyTool
from ...runtime.session import Session
from ...runtime.session.snapshots import parse_changes, types_by_name
from ...visibility import ShownSection
from .outcomes import (
    Record,
    StepFailedError,
    answer_to_json,
    call_to_json,
    check_to_json,
    error_from_json,
    request_from_json,
    wait_if_recorded,
)

__all__ = [
    "DurableAgent",
    "RecordedSteps",
    "ReplayError",
    "StepFailedError",
    "Steps",
    "durable",
]

# Part of an agent's version, so that runs with records of another format wait for their own code.
_RECORD_FORMAT = 6


class ReplayError(WeakIncentivesError):
    """A run's request differs from its record: its code or prompt has changed."""


class Steps(Protocol):
    """Stores the records of one run."""

    run_id: str

    def step(
        self, name: str, operation: Callable[[], Record], /, *, transactional: bool = False
    ) -> Record:
        """Returns the record at the next position, or stores and returns that of `operation`.

        With `transactional`, what `operation` writes to the application's database commits together
        with the record.
        """
        ...


class RecordedSteps:
    """Stores records in memory, as pairs of a step's name and its record.

    `records` holds the records of the first steps.
    """

    def __init__(
        self, records: Sequence[tuple[str, Record]] = (), *, run_id: str = "replay"
    ) -> None:
        self.run_id = run_id
        self.records = list(records)
        self._next = 0

    def step(
        self, name: str, operation: Callable[[], Record], /, *, transactional: bool = False
    ) -> Record:
        """Implements `Steps.step`; raises `ReplayError` when the record is of another step."""
        if self._next == len(self.records):
            self.records.append((name, operation()))
        recorded, record = self.records[self._next]
        if recorded != name:
            raise ReplayError(
                f"step {self._next} of run {self.run_id!r} is {recorded!r} in its record and now "
                f"{name!r}"
            )
        self._next += 1
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableAgent[Out]:
    """A prompt and the loop that executes it, of which runs can start; made by `durable`."""

    main_loop: MainLoop
    adapter: LoopAdapter
    prompt: Callable[[], Prompt[Out]]
    types: frozenset[type[Any]]
    session: Callable[[str], Session]

    @property
    def version(self) -> str:
        """Changes with texts, tools and record format, after which old runs cannot go on."""
        return _digest(
            _RECORD_FORMAT,
            self.prompt().descriptor.hash,
            [(tool.name, tool.effect, *_approval(tool)) for tool in self.tools],
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
    """Returns an agent whose runs record each step.

    `prompt` makes the prompt of a run, such as `template.bind`; `session` makes its session, with
    the reducers that the application registers. Session state may be of `types` and of those that
    have reducers. Raises `TypeError` for an adapter that has no steps to record.
    """
    adapter = main_loop.adapter
    if not isinstance(adapter, LoopAdapter) or type(adapter).evaluate is not LoopAdapter.evaluate:
        raise TypeError(
            f"{type(adapter).__name__} runs its own loop, which cannot be recorded; "
            "use a LoopAdapter"
        )
    return DurableAgent(
        main_loop=main_loop, adapter=adapter, prompt=prompt, types=frozenset(types), session=session
    )


class RunAttempt:
    """One attempt of a run, from its start to its end or to a crash; the next one replays it."""

    def __init__(self, steps: Steps, session: Session, types: Collection[type[Any]]) -> None:
        self._steps = steps
        self._session = session
        self._types = {*types, *session.snapshot().slices, SuspendedRun}
        self._now: datetime | None = utc_now()
        self._calls = 0

    def clock(self) -> datetime:
        """Returns the time of the last step, by which later attempts decide too.

        Within a step it is the present.
        """
        return self._now or utc_now()

    def step(
        self,
        name: str,
        digest: str,
        operation: Callable[[], Record],
        *,
        transactional: bool = False,
    ) -> tuple[Record, bool]:
        """Returns the outcome of the next step, and whether this attempt performed it.

        A recorded step changes the session as its record says. Raises `ReplayError` when the record
        has another digest.
        """
        before = self._session.snapshot()
        performed: Record = {}

        def perform() -> Record:
            if performed:  # the database tries the transaction again
                self._session.restore(before)
            self._now = None
            performed.update(digest=digest, outcome=operation())
            performed["state"] = self._session.snapshot().since(before)
            performed["time"] = serde.dump(utc_now())
            for slices in performed["state"].values():
                types_by_name(slices, self._types)  # raises for an unknown type
            return performed

        record = self._steps.step(name, perform, transactional=transactional)
        if record["digest"] != digest:
            raise ReplayError(
                f"step {name!r} of run {self._steps.run_id!r} was recorded for another request or "
                "prompt"
            )
        if record != performed:
            if performed:  # another attempt has taken over and was faster
                self._session.restore(before)
            self._replay(record)
        self._now = serde.parse(datetime, record["time"])
        return record["outcome"], record == performed

    def _replay(self, record: Record) -> None:
        """Changes the session as the record says."""
        for change, slice_type, values in parse_changes(record["state"], self._types):
            if change == "set":
                self._session[slice_type].seed(*values)
            else:
                for value in values:
                    self._session[slice_type].append(value)

    def identify(self, tool: AnyTool | None) -> CallIdentity:
        """Returns the identity of the next call; that of an at-most-once tool takes a step."""
        self._calls += 1
        began = False
        if tool is not None and tool.effect == "at_most_once":
            token = urandom(16).hex()
            _, performed = self.step(f"intent:{tool.name}", "", lambda: {"token": token})
            began = not performed
        return CallIdentity(f"{self._steps.run_id}:{self._calls}", began=began)


class RecordedAdapter(LoopAdapter):
    """The application's adapter, whose evaluations an attempt of a run records."""

    def __init__(self, inner: LoopAdapter, attempt: RunAttempt) -> None:
        config = replace(inner.config, parallel_tool_calls="in_order")
        super().__init__(config=config, clock=attempt.clock)
        self.name = inner.name
        self.model = inner.model
        self._inner = inner
        self._attempt = attempt

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._inner.supports_dynamic_tools

    @property
    def budget(self) -> Budget | None:
        return self._inner.budget

    @property
    def evaluator(self) -> Evaluator:
        """The application's adapter: an evaluation by a handler is a part of the handler's step."""
        return self._inner

    def connect(self, rendered: RenderedPrompt[Any], /) -> Connection:
        """Connects to the same provider."""
        return self._inner.connect(rendered)

    def journal(self, tools: ToolExecutor, meter: Meter, /) -> Journal:
        """Returns the journal of one evaluation."""
        return _RunJournal(self._attempt, tools, meter)


class _RunJournal:
    """The journal of one evaluation of a run."""

    def __init__(self, attempt: RunAttempt, tools: ToolExecutor, meter: Meter) -> None:
        self._attempt = attempt
        self._meter = meter
        self._tools = tools
        self._hash = sha256()
        self._hashed = 0

    def ask(
        self, request: ProviderRequest, ask: Callable[[], AssistantMessage], /
    ) -> AssistantMessage:
        operation = partial(answer_to_json, ask)
        outcome, _ = self._attempt.step("provider", self._digest(request), operation)
        if "error" in outcome:
            raise error_from_json(outcome["error"])
        return serde.parse(AssistantMessage, outcome["answer"])

    def _digest(self, request: ProviderRequest) -> str:
        """Returns a digest of all that the model has read; hashes only what is new."""
        if not self._hashed:
            self._hash.update(serde.dump_json((request.tools, request.output)).encode())
        for message in request.transcript[self._hashed :]:
            self._hash.update(f"{type(message).__name__}{serde.dump_json(message)}".encode())
        self._hashed = len(request.transcript)
        return self._hash.hexdigest()[:16]

    def execute(
        self,
        call: ToolCall,
        execute: Callable[[CallIdentity | None], ToolExecutionOutcome],
        check_decided: Callable[[], None] | None = None,
        /,
    ) -> ToolExecutionOutcome:
        available, meter = self._tools.available, Meter(parent=self._meter)
        tool = available.get(call.name)
        if check_decided and tool and tool.approval and tool.effect == "at_most_once":
            # before its intent, after which the call would count as begun
            asked, _ = self._attempt.step(
                f"ask:{tool.name}", _digest(call), partial(check_to_json, check_decided)
            )
            wait_if_recorded(asked)
        identity = replace(self._attempt.identify(tool), meter=meter)
        outcome, performed = self._attempt.step(
            f"tool:{'unknown' if tool is None else tool.name}",
            _digest(call),
            lambda: call_to_json(partial(execute, identity), meter),
            transactional=tool is not None and tool.effect == "transactional",
        )
        if not performed and "nested_usage" in outcome:
            meter.add_run(serde.parse(RunUsage, outcome["nested_usage"]), "of a nested run")
        wait_if_recorded(outcome)
        if "signal" in outcome:
            request = request_from_json(outcome)
            if call.name not in RESERVED_TOOL_NAMES:
                raise request
            answer = ToolMessage(call.call_id, str(request))
            return ToolExecutionOutcome(call.call_id, answer, answer.success, request=request)
        fields = outcome["call"]
        message = serde.parse(ToolMessage, fields["message"])
        return ToolExecutionOutcome(
            call.call_id,
            message,
            message.success,
            available.named(fields["tools"]),
            fields["section_key"],
            tuple(map(tuple, fields["opened"])),
            tuple(fields["closed_tools"]),
            shown=serde.parse(tuple[ShownSection, ...], fields["shown"]),
            closed=tuple(fields["closed"]),
        )


def combined_version(agents: Mapping[str, DurableAgent[Any]]) -> str:
    """Returns the version of all agents of a process."""
    return _digest([(name, agent.version) for name, agent in sorted(agents.items())])


def _approval(tool: AnyTool) -> list[str]:
    """Returns when calls need approval, which decides about steps; nothing if they never do."""
    match tool.approval:
        case None:
            return []
        case str() as mode:
            return [mode]
        case _:
            return ["selected"]


def _digest(*parts: object) -> str:
    return sha256(serde.dump_json(parts).encode()).hexdigest()[:16]


def succeeded(record: Record) -> bool:
    """Tells whether the tool call of a record takes effect."""
    outcome: Record = record["outcome"]
    return "call" not in outcome or outcome["call"]["message"]["success"] is True
