"""Runs tool calls once they are approved; calls that do not need approval run immediately.

A call whose effects are previewed runs on forks of the session and resources. The forks are merged
only after the reviewer has approved the effects. If the preview is out of date by then, the call
runs on new forks and the reviewer is asked again. While the reviewer decides, nothing is locked or
changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from ..errors import ControlFlow, message_of
from ..prompt.approval_rules import ApprovalMode, approval_mode
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
from .call_fork import ForkedCall
from .effects import Effects, Outcome, Wait
from .logged_run import CallKey
from .messages import ToolCall, ToolExecutionOutcome, unwrap_arguments
from .response import ApprovalRequested
from .run_log import OpenCall, UndecidedError
from .tool_executor import ToolExecutor, runs_again

__all__ = ["ApprovedCalls"]

_HIDDEN = "The effects cannot be shown"
_STALE = "What this call would change is different now, so it is asked about again."
_REPLACED = "These are the effects with the replaced arguments."


class ApprovedCalls:
    """Runs the calls of one evaluation; `approver` decides on those that need approval.

    Decisions that were made while the run was suspended are taken from the log first. An approval
    applies only if the call would still have the effects that its preview showed. The approver can
    take up to `seconds_left()` to decide, and `check_limits(expired)` raises if no more calls may
    run. If `can_suspend` is true, nested runs can be suspended, too.
    """

    def __init__(
        self,
        tools: ToolExecutor,
        session: SessionProtocol,
        publish: Callable[[object], None],
        approver: Approver | None,
        *,
        check_limits: Callable[[bool], None],
        seconds_left: Callable[[], float | None],
        can_suspend: bool,
        streamed: bool,
    ) -> None:
        self._tools = tools
        self._session = session
        self._publish = publish
        self._approver = approver
        self._log = tools.log
        self._check_limits = check_limits
        self._seconds_left = seconds_left
        self._can_suspend = can_suspend
        self._streamed = streamed

    def begin(self, call: ToolCall, key: CallKey, *, is_preview: bool = False) -> OpenCall:
        """Starts executing a call, and determines whether its nested runs can be suspended."""
        tool = self._tools.available.get(call.name)
        can_suspend = self._can_suspend and tool is not None and runs_again(tool)
        return self._log.begin_call(key, call, can_suspend=can_suspend, is_preview=is_preview)

    def execute(
        self, call: ToolCall, key: CallKey, set_running: Callable[[tuple[ToolCall, ...]], None]
    ) -> Effects[ToolExecutionOutcome]:
        """Runs one call, once approved if it needs approval, and returns its outcome.

        Calls `set_running` before the call can take effect. Raises the approver's errors, and
        `UndecidedError` if the call, or a call in a nested run, needs a decision but there is no
        approver.
        """
        tool = self._tools.available.get(call.name)
        if (tool is not None and tool.approval is not None) or self._log.was_suspended_for(key):
            return self._execute_approved(call, key, set_running)
        set_running((call,))
        return self._tools.execute(call, self.begin(call, key))

    def _execute_approved(
        self, call: ToolCall, key: CallKey, set_running: Callable[[tuple[ToolCall, ...]], None]
    ) -> Effects[ToolExecutionOutcome]:
        tools, reason = self._tools, ""
        call, replaced = self._with_replaced_arguments(call, key)
        while True:
            try:
                mode = self._mode(call, key)
            except Exception as error:  # the selector failed, so the call is not approved
                return tools.refuse(call, key, f"The call was not approved: {message_of(error)}")
            if mode is None or (replaced and mode == "arguments"):
                break
            inside = self.begin(call, key)
            preview, forked = yield from self._preview(inside, mode, reason)
            decision: Decision | None = None
            try:
                decision = yield from self._decide(call, key, preview)
            finally:
                if forked and not isinstance(decision, Approve):
                    forked.discard()
            match decision:
                case Deny(words):
                    reason = f"A person denied this call. {words}".strip()
                    return tools.refuse(call, key, reason)
                case ReplaceArguments(arguments):
                    replaced, reason = True, _REPLACED
                    call = tools.replace_arguments(call, arguments_json(arguments))
                    if forked is None:
                        break
                case Approve():
                    if forked is None:
                        break
                    set_running((call,))
                    try:
                        return (yield from tools.merge(inside, forked))
                    except NotIsolatedError:
                        forked.discard()
                        set_running(())
                        reason = _STALE
        set_running((call,))
        return (yield from tools.execute(call, self.begin(call, key)))

    def ask_later(self, later: Sequence[tuple[ToolCall, CallKey]]) -> Effects[None]:
        """Logs the decisions needed after the first pending call, and yields all of them as events.

        `later` contains the calls after the pending one. If one of them ran in parallel with it,
        calls in its nested runs may also be pending. Other nested runs do not start yet: a later
        call that needs them is previewed when its turn comes.
        """
        for call, key in later:
            if (preview := (yield from self._preview_own(call, key))) is not None:
                self._log.ask(key, preview, keep=True)
        if self._streamed:
            for preview in self._log.pending():
                call = ToolCall(preview.call_id, preview.tool, preview.arguments)
                yield ApprovalRequested(call, preview)

    def _preview_own(self, call: ToolCall, key: CallKey) -> Effects[Preview | None]:
        """Returns the call's current preview, or `None`.

        There is no preview for a call that does not need approval or that starts nested runs.
        """
        call, replaced = self._with_replaced_arguments(call, key)
        try:
            mode = self._mode(call, key)
        except Exception:  # the selector failed; the call is rejected when its turn comes
            return None
        if mode is None or (replaced and mode == "arguments"):
            return None
        inside = self.begin(call, key, is_preview=True)
        try:
            preview, forked = yield from self._preview(inside, mode, "")
        except UndecidedError:  # calls in nested runs need decisions
            return None
        if forked is not None:
            forked.discard()
        return None if inside.has_runs else preview

    def _with_replaced_arguments(self, call: ToolCall, key: CallKey) -> tuple[ToolCall, bool]:
        """Returns the call, with the reviewer's replacement arguments if there are any.

        Also returns whether a decision on these arguments was already applied. If so, the call has
        run with them and is waiting for a call in a nested run.
        """
        shown, ran = self._log.shown(key), self._log.record.inside.get(key)
        latest = ran or shown
        if latest is None or latest.arguments in (call.arguments, unwrap_arguments(call.arguments)):
            return call, False
        replaced = latest.arguments
        is_decided = shown is None or shown.arguments != replaced
        if is_decided:
            self._log.take_decision(key)
        return self._tools.replace_arguments(call, replaced), is_decided

    def _mode(self, call: ToolCall, key: CallKey) -> ApprovalMode | None:
        """Returns the approval that the call needs to take effect; `None` if it needs none."""
        tools, decision = self._tools, self._log.decision(key)
        # Such a decision applies even if the call no longer needs approval.
        against = isinstance(decision, Deny | ReplaceArguments)
        tool = tools.available.get(call.name)
        if tool is None or (tool.approval is None and not against):
            return None
        try:
            _, _, params = tools.admit(call)
        except ToolValidationError:
            return None  # the model is told about its mistake
        denied = isinstance(decision, Deny)  # a denied call has not started
        began = not denied and self._log.has_begun(key)
        if tool.effect in NON_REPEATABLE and (began or tools.earlier.has(call, params)):
            return None  # the call does not run again
        context = tools.context(call)
        try:
            mode = approval_mode(tool.approval, params, self._session, context)
        finally:
            revoke(context)
        return "arguments" if mode is None and against else mode

    def _preview(
        self, inside: OpenCall, mode: ApprovalMode, reason: str
    ) -> Effects[tuple[Preview, ForkedCall | None]]:
        """Returns the preview, and the call on forks if the preview shows its effects."""
        call, approval_id = inside.call, inside.key.partition("/")[2]
        tool = self._tools.available.get(call.name)
        if mode == "effects" and (problem := self._problem(tool)):
            mode, reason = "arguments", f"{_HIDDEN}: {problem}."
        if mode == "arguments":
            return replace(preview_arguments(call, reason), call_id=approval_id), None
        preview, forked = yield from self._show(inside, reason)
        return replace(preview, call_id=approval_id), forked

    def _problem(self, tool: AnyTool | None) -> str:
        """Explains why the tool cannot run before approval; returns `""` if it can."""
        if tool is not None and (problem := preview_problem(tool.effect, tool.handler)):
            return problem
        return "" if self._tools.can_fork else "the session has no fork()"

    def _show(self, inside: OpenCall, reason: str) -> Effects[tuple[Preview, ForkedCall | None]]:
        call = inside.call
        _, handler, params = self._tools.admit(call)
        forked, effects = self._tools.fork(inside, handler, params, makes=True)
        try:
            yield from effects
            inside.end()
            answer, success = self._answer(call, forked.outcome)
            parts = forked.session, forked.resources.forks, answer
            result = forked.outcome[0] if success else None
            preview = preview_effects(call, *parts, success=success, result=result)
            return preview.with_reason(reason), forked
        except NotIsolatedError as error:
            forked.discard()
            cause = str(error) or "the call uses what forks cannot keep apart"
            return preview_arguments(call, f"{_HIDDEN}: {cause}."), None
        except BaseException:
            forked.discard()
            raise

    def _answer(self, call: ToolCall, outcome: Outcome) -> tuple[str, bool]:
        """Returns the answer that the model would see, and whether the call would succeed."""
        result, error = outcome
        if isinstance(error, ControlFlow):  # transactions that it passes through are committed
            return message_of(error), True
        if error is not None and not isinstance(error, Exception):
            raise error  # an interrupt
        return self._tools.read(call, result, error)

    def _decide(self, call: ToolCall, key: CallKey, preview: Preview) -> Effects[Decision]:
        started, expired = perf_counter(), False
        decision: object = self._log.take_decision(key)
        if self._is_stale(decision, key, preview, call):
            decision, preview = None, preview.with_reason(_STALE)
        if decision is None:
            if self._approver is None:
                self._log.ask(key, preview)
                raise UndecidedError(call.name)
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
                "the approver must return Approve(), Deny(reason) or "
                f"ReplaceArguments(arguments), got {decision!r}"
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
                **self._log.ids(self._session.session_id),
            )
        )
        if not isinstance(decision, Deny):
            self._check_limits(expired)  # the approver may have taken a long time
        return decision

    def _is_stale(self, decision: object, key: CallKey, now: Preview, call: ToolCall) -> bool:
        """Whether the approved preview differs from the call's current effects.

        If no effects could be shown, for example in a parallel call, the approval covers the
        arguments.
        """
        shown = self._log.shown(key)
        if not isinstance(decision, Approve) or shown is None:
            return False
        return not (shown.shows_same(now) or shown.shows_same(preview_arguments(call)))
