"""`DurableTarget` lets workers perform an experiment's runs, as durable runs in a database.

The process that calls `evaluate` starts the runs, copies their logs into its folder once they have
ended, and scores them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..adapters.core import LoopAdapter
from ..evaluation.errors import BudgetExceededError, PromptEvaluationError
from ..evaluation.logged_run import usage_of
from ..evaluation.stored_log import Row, read_rows
from ..filesystem import Filesystem
from ..limits import RunUsage
from ..prompt.template import AnyPrompt
from ..runtime.session import Session
from .cases import Case
from .keys import digest, variant_parts
from .pacing import OVER_BUDGET, PacedAdapter
from .run_logs import before_failure, is_final

if TYPE_CHECKING:  # experiments without workers do not load the package
    from ..contrib.durable import DurableAgent, DurableRun, DurableRuns

__all__ = ["DurableTarget", "EndedRun"]

_POLL = 0.2  # seconds between two looks at a run, if there are few
_LOOKS = 50  # a second, at all runs together
_AGENT_DECIDES = ("model", "tag", "settings", "config", "timeout", "approver")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that has ended.

    If workers performed it, `rows` and `session` are what they stored. `is_reused` is true if it
    had ended before it was asked for.
    """

    text: str = ""
    output: object = None
    error: Exception | None = None
    rows: Sequence[Row] = ()
    session: Session | None = None
    seconds: float = 0.0
    is_reused: bool = False


@dataclass(slots=True)
class DurableTarget:
    """The target of an experiment whose runs are durable runs of an installed agent.

    `runs` comes from `contrib.durable.install`, in a process that has launched DBOS. The runs are
    performed by the workers that serve `queue`, or by this process if there is no queue. The
    agent's own prompt, model, settings and limits apply. A case can have state of types that the
    agent knows, but neither files nor media with bytes of their own.

    A run's id is its key. If it ended with a failure that is not the model's, the next experiment
    continues it in a new run, whose id has a number after the key. A run starts only if the budget
    allows one as large as the last one; those in progress are finished, and those that no worker
    has started after the budget's `max_seconds` are cancelled.
    """

    runs: "DurableRuns"
    agent: str
    queue: str | None = None
    _open: set[str] = field(default_factory=set[str], repr=False)
    _expected: RunUsage = field(default=RunUsage(calls=1, cost=0.0), repr=False)  # of the next run

    def __call__(self, case: Case, /) -> AnyPrompt:
        """Returns the agent's prompt with a case's params."""
        return self.installed.prompt().for_run().bind(*case.params)

    @property
    def installed(self) -> "DurableAgent[Any]":  # Any: the agent's output type
        """The agent; raises `ValueError` if it is not installed."""
        if (agent := self.runs.agents.get(self.agent)) is None:
            known = ", ".join(map(repr, self.runs.agents))
            raise ValueError(f"no agent {self.agent!r} is installed; there are {known}")
        return agent

    def check_options(self, *options: Mapping[str, object]) -> None:
        """Raises `ValueError` for options that would not reach the workers."""
        for name in _AGENT_DECIDES:
            if any(given.get(name) for given in options):
                raise ValueError(
                    f"{name}= does not apply to the runs of the durable agent {self.agent!r}, "
                    "whose workers decide on it; change the agent, or install another one"
                )

    def parts(self, adapter: LoopAdapter) -> Mapping[str, str]:
        """Returns the digests of what determines the answers, besides the prompt and the case."""
        agent = self.installed
        loop = agent.main_loop
        compaction, summary = loop.compaction, ""
        if compaction is not None and (template := compaction.summary) is not None:
            compaction, summary = replace(compaction, summary=None), template.descriptor.hash
        return {
            **variant_parts(adapter, loop.config, (agent.prompt().settings,)),
            "agent": digest(self.agent),
            "loop": digest(loop.max_expansions, compaction, summary),
        }

    def check_case(self, case: Case, prompt: AnyPrompt) -> None:
        """Raises `ValueError` for a case that workers cannot run, or that cannot be stored."""
        from ..contrib.durable import to_input

        if case.files or Filesystem in prompt.resources.by_kind:
            raise ValueError("a durable run cannot have files because other machines continue it")
        session = self.installed.session("check")
        prompt.declare_state(session)
        known = {*self.installed.types, *session.snapshot().slices}
        if unknown := {type(value).__name__ for value in case.state if type(value) not in known}:
            names = ", ".join(sorted(unknown))
            raise ValueError(f"the agent {self.agent!r} has no state of {names}; pass types=")
        for value in case.state:
            session[type(value)].append(value)
        to_input(*case.params, session=session, message=case.message)

    async def perform(
        self, key: str, case: Case, session: Session, adapter: PacedAdapter, seconds: float | None
    ) -> EndedRun:
        """Returns a run once it has ended; starts it unless the database has it.

        After `seconds`, a run that no worker has started is cancelled.
        """
        found = await asyncio.to_thread(self._find, key)
        if isinstance(found, EndedRun):
            return found
        ledger, started = adapter.ledger, monotonic()
        try:  # threads release what is reserved
            while not ledger.reserve(estimate := self._expected):  # noqa: ASYNC110
                await asyncio.sleep(_POLL)
        except BudgetExceededError as error:
            return EndedRun(error=error)
        self._open.add(key)
        try:
            run = await asyncio.to_thread(self._start, *found, case, session)
            while await asyncio.to_thread(lambda: run.status) != "ended":
                pause = max(_POLL, len(self._open) / _LOOKS)
                await asyncio.sleep(pause)
                is_late = seconds is not None and monotonic() > started + seconds
                if is_late and await asyncio.to_thread(lambda: run.is_queued):
                    await asyncio.to_thread(self.runs.cancel, run.run_id)
                    return EndedRun(error=self._not_started())
            ended = await asyncio.to_thread(self._ended, run)
            earlier = {(row.path, row.position) for row in found[1]}
            new = [row for row in ended.rows if (row.path, row.position) not in earlier]
            used = adapter.priced(usage_of(read_rows(new), adapter.model))
            adapter.meter.add_run(used, adapter.model)
            if ended.error is None:
                self._expected = replace(used, cost=used.cost or 0.0)
            return ended
        finally:
            self._open.discard(key)
            ledger.release(estimate)

    def _not_started(self) -> BudgetExceededError:
        return BudgetExceededError(
            f"no worker of the queue {self.queue!r} has started this run within max_seconds",
            phase="limit",
            code=OVER_BUDGET,
            remedy="start workers that serve this queue",
        )

    def _find(self, key: str) -> EndedRun | tuple[str, Sequence[Row]]:
        """Returns a run that has ended, or the id of the run and the start of its log."""
        run_id, rows = key, list[Row]()
        for number in count(2):
            stored = self.runs.list_runs(run_ids=[run_id])
            if not stored or stored[0].status in ("running", "waiting"):
                break
            ended = self._ended(self.runs.find(self.agent, run_id), is_reused=True)
            if ended.error is None or is_final(ended.error):
                return ended
            run_id, rows = f"{key}.{number}", before_failure(ended.rows)
        return run_id, rows

    def _start(
        self, run_id: str, rows: Sequence[Row], case: Case, session: Session
    ) -> "DurableRun":
        return self.runs.start(
            self.agent,
            *case.params,
            session=session if case.state else None,
            run_id=run_id,
            queue=self.queue,
            message=case.message,
            log=rows,
        )

    def _ended(self, run: "DurableRun", *, is_reused: bool = False) -> EndedRun:
        text, output, error, session = "", None, None, None
        try:
            execution = run.result()
            text, output = execution.text, execution.output
        except Exception as raised:
            error = raised
        if error is None or isinstance(error, PromptEvaluationError):
            session = run.session()
        return EndedRun(
            text=text,
            output=output,
            error=error,
            rows=self.runs.rows(run.run_id),
            session=session,
            seconds=run.seconds,
            is_reused=is_reused,
        )
