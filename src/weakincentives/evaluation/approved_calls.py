"""Runs tool calls that a person approves first; other calls run as they are.

A call whose effects are shown runs on forks of session and resources. The person decides, and only
then the forks are merged. If what they show is out of date by then, the call runs on new forks and
the person is asked again. Nothing is locked or changed while a person decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from ..errors import ControlFlow, message_of
from ..prompt.approval import ApprovalMode, approval_mode
from ..prompt.context import revoke
from ..prompt.errors import ToolValidationError
from ..prompt.tool import NON_REPEATABLE, AnyTool, preview_problem
from ..protocols import SessionProtocol
from ..resources import NotIsolatedError
from ..runtime.events import ApprovalDecided
from .approval import (
    Approve,
    Approver,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
    arguments_json,
    preview_arguments,
    preview_effects,
)
from .effects import Effects, Outcome, Wait, run
from .messages import ToolCall, ToolExecutionOutcome, unwrap_arguments
from .nested_runs import UndecidedError, may_wait
from .parallel_calls import ForkedCall
from .response import ApprovalRequested
from .run_logs import CallLog, Identity, OpenCalls
from .suspension import RunSuspended
from .tool_executor import ToolExecutor

__all__ = ["ApprovedCalls"]

_HIDDEN = "The effects cannot be shown"
_STALE = "What this call would change is different now, so it is asked about again."
_REPLACED = "These are the effects with the replaced arguments."


class ApprovedCalls:
    """The calls of one evaluation; `approver` decides on those that need an approval.

    Decisions that were made while the run waited come first; an approval counts if the call would
    still do what was shown. The wait for the approver ends after `seconds_left()`, and
    `check_limits(expired)` raises if no call may run any more. `open_calls` records the runs inside
    calls, which may wait too if `records` is true.
    """

    def __init__(
        self,
        tools: ToolExecutor,
        session: SessionProtocol,
        publish: Callable[[object], None],
        approver: Approver | None,
        open_calls: OpenCalls,
        *,
        check_limits: Callable[[bool], None],
        seconds_left: Callable[[], float | None],
        records: bool,
        streamed: bool,
    ) -> None:
        self._tools = tools
        self._session = session
        self._publish = publish
        self._approver = approver
        self._open = open_calls
        self._check_limits = check_limits
        self._seconds_left = seconds_left
        self._records = records
        self._streamed = streamed

    def identify(
        self, call: ToolCall, approval_id: str, *, is_preview: bool = False
    ) -> CallLog | None:
        """Returns the log of a call that is about to run, if the runs inside it can wait."""
        can_wait = self._records and may_wait(self._tools.available.get(call.name))
        if not can_wait and approval_id not in self._open.waited.nested:
            return None
        return self._open.start(approval_id, call, is_preview=is_preview)

    def execute(
        self,
        call: ToolCall,
        approval_id: str,
        set_running: Callable[[tuple[ToolCall, ...]], None],
        identity: Identity | None = None,
    ) -> Effects[ToolExecutionOutcome]:
        """Runs one call, after its approval if it needs one, and returns its outcome.

        Calls `set_running` while the call may count. A journal passes the call's `identity`. Raises
        what the approver raises, and `UndecidedError` if a person must decide on the call, or on
        one inside it, and there is no approver.
        """
        tool = self._tools.available.get(call.name)
        if self._open.has_waited or (tool is not None and tool.approval is not None):
            return self._execute_approved(call, approval_id, set_running, identity)
        set_running((call,))
        return self._tools.execute(call, identity or self.identify(call, approval_id))

    def _execute_approved(
        self,
        call: ToolCall,
        approval_id: str,
        set_running: Callable[[tuple[ToolCall, ...]], None],
        identity: Identity | None,
    ) -> Effects[ToolExecutionOutcome]:
        tools, reason, approved = self._tools, "", None
        call, replaced = self._as_shown(call, approval_id)
        while True:
            try:
                mode = self._mode(call, approval_id, identity)
            except Exception as error:  # of a selector: nobody has approved the call
                return tools.refuse(call, f"The call was not approved: {message_of(error)}")
            if mode is None or (replaced and mode == "arguments"):
                break
            preview, forked = yield from self._preview(
                call, approval_id, mode, reason, identity=identity
            )
            decision = yield from self._decide(call, preview)
            match decision:
                case Deny(words):
                    return tools.refuse(call, f"A person denied this call. {words}".strip())
                case ReplaceArguments(arguments):
                    replaced, reason = True, _REPLACED
                    call = tools.replace_arguments(call, arguments_json(arguments))
                    if forked is None:
                        break
                case Approve():
                    if forked is None:
                        approved = decision
                        break
                    set_running((call,))
                    try:
                        return (yield from tools.merge(call, forked))
                    except NotIsolatedError:
                        set_running(())
                        reason = _STALE
        set_running((call,))
        try:
            return (yield from tools.execute(call, identity or self.identify(call, approval_id)))
        except UndecidedError:  # on a call inside this one
            if approved is not None:
                self._open.decisions[approval_id] = approved
            raise

    def recorded(
        self,
        call: ToolCall,
        approval_id: str,
        suspend: Callable[[UndecidedError], Effects[RunSuspended]],
    ) -> tuple[Callable[[Identity | None], ToolExecutionOutcome], Callable[[], None]]:
        """Returns the two callables of `Journal.execute` for a call.

        They raise what `suspend` returns if a person must decide first.
        """
        self._records = False  # the journal records whole calls, so no run inside one can wait

        def perform[T](effects: Effects[T]) -> T:
            try:
                return run(effects)
            except UndecidedError as undecided:
                raise run(suspend(undecided)) from None

        def execute(identity: Identity | None) -> ToolExecutionOutcome:
            return perform(self.execute(call, approval_id, lambda _: None, identity))

        return execute, lambda: perform(self._check_decided(call, approval_id))

    def _check_decided(self, call: ToolCall, approval_id: str) -> Effects[None]:
        previews = yield from self._preview_later(call, approval_id)
        if not previews or self._approver is not None:
            return
        decision = self._open.decisions.get(approval_id)
        shown = self._open.shown.get(approval_id, previews[0])
        if decision is None or _is_stale(decision, shown, previews[0], call):
            raise UndecidedError(previews)

    def pending(
        self, first: Sequence[Preview], later: Sequence[tuple[ToolCall, str]]
    ) -> Effects[list[Preview]]:
        """Returns what people must decide on before the run can go on.

        `later` are the calls after the first that waits, with their approval ids.
        """
        previews = [*first]
        for call, approval_id in later:
            previews += yield from self._preview_later(call, approval_id)
        if self._streamed:
            for preview in previews:
                call = ToolCall(preview.call_id, preview.tool, preview.arguments)
                yield ApprovalRequested(call, preview)
        return previews

    def _preview_later(self, call: ToolCall, approval_id: str) -> Effects[list[Preview]]:
        """Returns what a person would decide on now; nothing for a call that needs no approval.

        A call that ran beside the first one may wait for calls inside it. Other runs inside a call
        do not begin yet: what they would do is shown when it is the call's turn.
        """
        call, replaced = self._as_shown(call, approval_id)
        try:
            mode = self._mode(call, approval_id, None)
        except Exception:  # of a selector; the call is refused in its turn
            return []
        if mode is None or (replaced and mode == "arguments"):
            undecided = self._open.undecided(approval_id)
        else:
            try:
                preview, _ = yield from self._preview(call, approval_id, mode, "", is_preview=True)
                return [] if self._open.has_runs(approval_id) else [preview]
            except UndecidedError as error:
                undecided = error
        self._open.decisions |= undecided.decisions
        return [*undecided.previews]

    def _as_shown(self, call: ToolCall, approval_id: str) -> tuple[ToolCall, bool]:
        """Returns the call, with the arguments that a person put in their place, if one did.

        Tells also whether a decision on them exists: the call has run with them, and waits for a
        call inside it.
        """
        shown, ran = self._open.shown.get(approval_id), self._open.waited.nested.get(approval_id)
        put_in = shown or ran
        if put_in is None or put_in.arguments in (call.arguments, unwrap_arguments(call.arguments)):
            return call, False
        return self._tools.replace_arguments(call, put_in.arguments), shown is None

    def _mode(
        self, call: ToolCall, approval_id: str, identity: Identity | None
    ) -> ApprovalMode | None:
        """Returns what a person must approve before the call counts; `None` for nothing."""
        tools, decision = self._tools, self._open.decisions.get(approval_id)
        # Such a decision counts even if the call needs no approval any more.
        against = isinstance(decision, Deny | ReplaceArguments)
        tool = tools.available.get(call.name)
        if tool is None or (tool.approval is None and not against):
            return None
        try:
            _, _, params = tools.admit(call)
        except ToolValidationError:
            return None  # the model reads its mistake
        denied = isinstance(decision, Deny)  # so it has not begun
        began = identity is not None and identity.began and not denied
        if tool.effect in NON_REPEATABLE and (began or tools.has_record(call, params)):
            return None  # it does not run again
        context = tools.context(call)
        try:
            mode = approval_mode(tool.approval, params, self._session, context)
        finally:
            revoke(context)
        return "arguments" if mode is None and against else mode

    def _preview(
        self,
        call: ToolCall,
        approval_id: str,
        mode: ApprovalMode,
        reason: str,
        *,
        identity: Identity | None = None,
        is_preview: bool = False,
    ) -> Effects[tuple[Preview, ForkedCall | None]]:
        """Returns what the person decides on, and the call on forks if it shows its effects."""
        tool = self._tools.available.get(call.name)
        if mode == "effects" and (problem := self._problem(tool)):
            mode, reason = "arguments", f"{_HIDDEN}: {problem}."
        if mode == "arguments":
            return replace(preview_arguments(call, reason), call_id=approval_id), None
        if identity is None:
            identity = self.identify(call, approval_id, is_preview=is_preview)
        preview, forked = yield from self._show(call, identity, reason)
        return replace(preview, call_id=approval_id), forked

    def _problem(self, tool: AnyTool | None) -> str:
        """Returns why a call of the tool cannot run before its approval; `""` if it can."""
        if tool is not None and (problem := preview_problem(tool.effect, tool.handler)):
            return problem
        return "" if self._tools.can_fork else "the session has no fork()"

    def _show(
        self, call: ToolCall, identity: Identity | None, reason: str
    ) -> Effects[tuple[Preview, ForkedCall | None]]:
        _, handler, params = self._tools.admit(call)
        forked, effects = self._tools.fork(call, handler, params, makes=True, identity=identity)
        yield from effects
        if isinstance(identity, CallLog):
            identity.end()
        try:
            answer, success = self._answer(call, forked.outcome)
            parts = forked.session, forked.resources.forks, answer
            result = forked.outcome[0] if success else None
            preview = preview_effects(call, *parts, success=success, result=result)
            return preview.with_reason(reason), forked
        except NotIsolatedError as error:
            cause = str(error) or "the call uses what forks cannot keep apart"
            return preview_arguments(call, f"{_HIDDEN}: {cause}."), None

    def _answer(self, call: ToolCall, outcome: Outcome) -> tuple[str, bool]:
        """Returns what the model would read, and whether the call would succeed."""
        result, error = outcome
        if isinstance(error, ControlFlow):  # a transaction commits when it passes
            return message_of(error), True
        if error is not None and not isinstance(error, Exception):
            raise error  # an interrupt
        return self._tools.read(call, result, error)

    def _decide(self, call: ToolCall, preview: Preview) -> Effects[Decision]:
        started, expired = perf_counter(), False
        decision: object = self._open.decisions.pop(preview.call_id, None)
        shown = self._open.shown.pop(preview.call_id, preview)
        if _is_stale(decision, shown, preview, call):
            decision, preview = None, preview.with_reason(_STALE)
        if decision is None:
            if self._approver is None:
                self._open.shown[preview.call_id] = preview
                raise UndecidedError([preview])
            if self._streamed:
                yield ApprovalRequested(call, preview)
            seconds = self._seconds_left()
            decision, error = yield Wait(partial(self._approver, preview), seconds)
            if isinstance(error, TimeoutError) and seconds is not None:
                expired = perf_counter() - started >= seconds
                self._check_limits(expired)
            if error is not None:
                raise error
        if not isinstance(decision, Approve | Deny | ReplaceArguments):
            raise TypeError(
                f"the approver returned {decision!r}; "
                "return Approve(), Deny(reason) or ReplaceArguments(arguments)"
            )
        self._publish(
            ApprovalDecided(
                name=call.name,
                call_id=call.call_id,
                approval=preview.approval,
                decision=decision.kind,
                reason=decision.reason if isinstance(decision, Deny) else "",
                seconds=perf_counter() - started,
                preview=str(preview),
                session_id=self._session.session_id,
            )
        )
        if not isinstance(decision, Deny):
            self._check_limits(expired)  # the approver may have taken long
        return decision


def _is_stale(decision: object, shown: Preview, now: Preview, call: ToolCall) -> bool:
    """Whether a person has approved something else than what the call would do now.

    Where no effects could be shown, such as in a parallel call, the arguments are approved.
    """
    if not isinstance(decision, Approve):
        return False
    return not (shown.shows_same(now) or shown.shows_same(preview_arguments(call)))
