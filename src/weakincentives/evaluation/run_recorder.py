"""Records what a nested run does, and repeats it when its root run goes on after it has waited.

The call around the nested run was undone. So calls that have changed something run again, and the
model still reads what it has read before.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..prompt.prompt import Prompt
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.tool import MAY_RUN_ON_FORKS, NON_REPEATABLE
from ..protocols import SessionProtocol
from ..runtime.session.snapshots import Changes, SessionSnapshot, parse_changes
from ..runtime.transactions import (
    CompositeSnapshot,
    changes_since,
    create_snapshot,
    release_snapshot,
)
from .effects import Effects
from .errors import LimitError, PromptEvaluationError
from .messages import AssistantMessage, ToolCall, ToolExecutionOutcome
from .nested_runs import NestedCall, ProviderFailure
from .run_log import Called
from .run_logs import NestedRunLog, OpenCalls
from .tool_executor import ToolExecutor

__all__ = ["RunRecorder"]


class RunRecorder:
    """One evaluation of a nested run, whose answers and calls `log` records."""

    def __init__(
        self,
        log: NestedRunLog,
        tools: ToolExecutor,
        open_calls: OpenCalls,
        prompt: Prompt[Any],  # Any: a prompt of any output
        session: SessionProtocol,
    ) -> None:
        self._log = log
        self._tools = tools
        self._open = open_calls
        self._prompt = prompt
        self._session = session

    def ask(self, effects: Effects[AssistantMessage]) -> Effects[AssistantMessage]:
        """Returns the model's next answer, which is recorded or comes from `effects`."""
        recorded = self._log.take_answer()
        if isinstance(recorded, ProviderFailure):
            raise recorded.to_error()
        if recorded is not None:
            return recorded
        try:
            answer = yield from effects
        except LimitError:  # which a later run may not reach
            raise
        except PromptEvaluationError as error:
            self._log.add_answer(ProviderFailure.of(error))
            raise
        self._log.add_answer(answer)
        return answer

    def take(self, call: ToolCall) -> NestedCall | None:
        """Returns the record of the next call; disclosure tools have none and just run again."""
        return self._log.take_call(call)

    def repeat(self, record: NestedCall, approval_id: str) -> Effects[ToolExecutionOutcome]:
        """Repeats a call and returns its recorded outcome.

        Raises `PromptEvaluationError` if it succeeded before and now fails.
        """
        call, tools = record.call, self._tools
        tool, log = tools.available.get(call.name), self._open.start(approval_id, call)
        runs_again = tool is not None and (
            tool.effect == "repeatable" or (tool.effect == "undeclared" and not record.is_complete)
        )
        if not record.answer.success or not runs_again:
            log.meter.add_run(record.nested.spent, "")
            self._change_state(record.state)
            outcome = tools.recall(call, record.answer)
            tools.log.append(Called(call, outcome))
            return outcome
        log.repeat(record.nested)
        outcome = yield from tools.execute(call, log)
        if not outcome.success:
            raise PromptEvaluationError(
                f"the call of {call.name!r}, which succeeded before the run waited, fails now: "
                f"{outcome.message.content}",
                phase="response",
                code="not_repeated",
            )
        return replace(outcome, message=record.answer)

    def execute(
        self, call: ToolCall, approval_id: str, effects: Effects[ToolExecutionOutcome]
    ) -> Effects[ToolExecutionOutcome]:
        """Runs a call and records it with what it changes, unless it may run twice."""
        tool = self._tools.available.get(call.name)
        if tool is None or tool.effect in MAY_RUN_ON_FORKS:
            outcome = yield from effects
            self.record([call], [approval_id], [outcome])
            return outcome
        snapshot = create_snapshot(self._session, self._prompt.resources, call.name)
        try:
            outcome = yield from effects
            incomplete = outcome.success and self._may_have_changed_resources(snapshot)
            if incomplete and tool.effect in NON_REPEATABLE:
                self._log.caller.root.unrepeatable = call.name
            state = self._state_since(snapshot.parts[0][1])
        finally:
            release_snapshot(snapshot)
        self.record([call], [approval_id], [outcome], state, is_complete=not incomplete)
        return outcome

    def record(
        self,
        calls: Sequence[ToolCall],
        approval_ids: Sequence[str],
        outcomes: Sequence[ToolExecutionOutcome],
        state: Changes | None = None,
        *,
        is_complete: bool = False,
    ) -> None:
        """Records calls with their outcomes; `state` is what a call has changed in the session."""
        for call, approval_id, outcome in zip(calls, approval_ids, outcomes, strict=False):
            if call.name not in RESERVED_TOOL_NAMES:
                ran, nested = self._open.record(approval_id, call)
                self._log.add_call(
                    NestedCall(
                        call=ran,
                        answer=outcome.message,
                        nested=nested,
                        state=state or {},
                        is_complete=is_complete,
                    )
                )

    def _may_have_changed_resources(self, snapshot: CompositeSnapshot) -> bool:
        """Whether resources have changed, also where they cannot tell."""
        before = [part for part, _ in snapshot.parts[1:]]
        if any(not hasattr(type(part), "changes_since") for part in before):
            return True
        ids = set(map(id, before))
        if any(id(part) not in ids for part in self._prompt.resources):
            return True
        return bool(changes_since(snapshot).keys() - {"state"})

    # Any: the snapshot of a session or of a fork of one, which has the state of its own
    def _state_since(self, before: Any) -> Changes:
        after: Any = self._session.snapshot()
        after, before = getattr(after, "state", after), getattr(before, "state", before)
        return after.since(before) if isinstance(after, SessionSnapshot) else {}

    def _change_state(self, changes: Changes) -> None:
        snapshot: Any = self._session.snapshot()  # Any: as above
        types = getattr(snapshot, "state", snapshot).slices.keys()
        for how, slice_type, values in parse_changes(changes, types):
            if how == "set":
                self._session[slice_type].seed(*values)
            else:
                for value in values:
                    self._session[slice_type].append(value)
