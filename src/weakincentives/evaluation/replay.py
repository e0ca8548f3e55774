"""Repeats the steps of a nested run when the parent call's handler runs again after a suspension.

The parent call was undone, so the nested run's calls that changed something run again. The model
still sees the same answers as before: the provider's answers come from the run's record, and so do
the answers to calls that failed, changed nothing or must not run twice.
"""

from collections.abc import Callable
from dataclasses import replace

from ..errors import SerdeError
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.template import AnyPrompt
from ..prompt.tool import MAY_RUN_ON_FORKS, NON_REPEATABLE
from ..protocols import SessionProtocol, Snapshot
from ..runtime.session.snapshots import Changes, SessionSnapshot, parse_changes
from ..runtime.transactions import (
    CompositeSnapshot,
    changes_since,
    create_snapshot,
    release_snapshot,
)
from .effects import Effects
from .errors import PromptEvaluationError
from .logged_run import LoggedCall
from .messages import ToolExecutionOutcome
from .run_log import Called, OpenCall
from .tool_executor import ToolExecutor

__all__ = ["Replay"]


class Replay:
    """Repeats the calls of a suspended nested run, and records how to repeat new ones."""

    def __init__(self, tools: ToolExecutor, prompt: AnyPrompt, session: SessionProtocol) -> None:
        self._tools = tools
        self._log = tools.log
        self._prompt = prompt
        self._session = session

    def repeat(self, called: LoggedCall, inside: OpenCall) -> Effects[ToolExecutionOutcome]:
        """Repeats a call and returns its recorded outcome.

        Raises `PromptEvaluationError` if the call succeeded before but fails now.
        """
        tools, entries, name = self._tools, self._log.entries, called.call.name
        tool = tools.available.get(name)
        runs_again = name in RESERVED_TOOL_NAMES or (
            tool is not None
            and called.answer.success
            and (
                tool.effect == "repeatable"
                or (tool.effect == "undeclared" and not called.is_complete)
            )
        )
        if not called.has_run or not runs_again:
            self._change_state(called.state)
            outcome = tools.available.outcome_of(called)
            tools.recall(Called(called.key, called.call, outcome, called.has_run))
            entries.append(called)
            if outcome.request is not None:
                raise outcome.request
            return outcome
        outcome = yield from tools.execute(called.call, inside)
        if called.answer.success and not outcome.success:
            raise PromptEvaluationError(
                f"cannot resume the run because the call of {name!r} succeeded before the "
                f"suspension and fails now: {outcome.message.content}",
                phase="response",
                code="not_repeated",
            )
        entries[-1] = called
        return replace(outcome, message=called.answer)

    def record(
        self, execute: Callable[[], Effects[ToolExecutionOutcome]], tool_name: str
    ) -> Effects[ToolExecutionOutcome]:
        """Executes a call and records its changes in its entry, unless it may run again."""
        tool = self._tools.available.get(tool_name)
        if tool is None or tool.effect in MAY_RUN_ON_FORKS or tool_name in RESERVED_TOOL_NAMES:
            return (yield from execute())
        snapshot = create_snapshot(self._session, self._prompt.resources, tool_name)
        try:
            outcome = yield from execute()
            incomplete = outcome.success and self._may_have_changed_resources(snapshot)
            try:
                state = self._state_since(snapshot.parts[0][1])
            except SerdeError:  # the state cannot be saved as JSON
                state, incomplete = {}, outcome.success
            if incomplete and tool.effect in NON_REPEATABLE and self._log.caller is not None:
                self._log.caller.root.unrepeatable = tool_name
        finally:
            release_snapshot(snapshot)
        entry = self._log.entries[-1]
        if isinstance(entry, Called):
            self._log.entries[-1] = entry._replace(state=state, is_complete=not incomplete)
        return outcome

    def _may_have_changed_resources(self, snapshot: CompositeSnapshot) -> bool:
        """Whether resources have changed, or cannot be compared."""
        before = [part for part, _ in snapshot.parts[1:]]
        if any(not hasattr(type(part), "changes_since") for part in before):
            return True
        ids = set(map(id, before))
        if any(id(part) not in ids for part in self._prompt.resources):
            return True
        return bool(changes_since(snapshot).keys() - {"state"})

    def _state_since(self, before: Snapshot) -> Changes:
        # a fork's snapshot contains a session's snapshot
        after = self._session.snapshot()
        after, before = getattr(after, "state", after), getattr(before, "state", before)
        return after.since(before) if isinstance(after, SessionSnapshot) else {}

    def _change_state(self, changes: Changes) -> None:
        snapshot = self._session.snapshot()
        state: Snapshot = getattr(snapshot, "state", snapshot)
        types = state.slices.keys()
        for how, slice_type, values in parse_changes(changes, types):
            if how == "set":
                self._session[slice_type].seed(*values)
            else:
                for value in values:
                    self._session[slice_type].append(value)
