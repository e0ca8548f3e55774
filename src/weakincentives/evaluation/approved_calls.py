"""Runs tool calls that a person approves first; other calls run as they are.

A call whose effects are shown runs on forks of session and resources. The person decides, and only
then the forks are merged. If what they show is out of date by then, the call runs on new forks and
the person is asked again. Nothing is locked or changed while a person decides.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from ..errors import ControlFlow, message_of
from ..prompt.approval import ApprovalMode, approval_mode
from ..prompt.context import revoke
from ..prompt.errors import ToolValidationError
from ..prompt.tool import NON_REPEATABLE
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
    preview_arguments,
    preview_effects,
)
from .effects import Effects, Outcome
from .journal import CallIdentity
from .messages import ToolCall, ToolExecutionOutcome
from .parallel_calls import ForkedCall
from .response import ApprovalRequested
from .suspension import Resumption
from .tool_executor import ToolExecutor

__all__ = ["ApprovedCalls", "UndecidedError"]

_HIDDEN = "The effects cannot be shown"
_STALE = "What this call would change is different now, so it is asked about again."
_REPLACED = "These are the effects with the replaced arguments."


class UndecidedError(Exception):
    """Nobody has decided on the call of `preview`, so the run must wait."""

    def __init__(self, preview: Preview) -> None:
        super().__init__(preview.tool)
        self.preview = preview


class ApprovedCalls:
    """The calls of one evaluation; `approver` decides on those that need an approval.

    Decisions of `resumption` come first; an approval counts if the call would still do what was
    shown.
    """

    def __init__(
        self,
        tools: ToolExecutor,
        session: SessionProtocol,
        publish: Callable[[object], None],
        approver: Approver | None,
        resumption: Resumption | None = None,
        *,
        streamed: bool,
    ) -> None:
        self._tools = tools
        self._session = session
        self._publish = publish
        self._approver = approver
        self._streamed = streamed
        self.decisions: dict[str, Decision] = {}
        self._shown: dict[str, Preview] = {}
        if resumption is not None:
            self.decisions |= resumption.decisions
            self._shown = {item.call_id: item for item in resumption.suspension.pending}

    def execute(
        self,
        call: ToolCall,
        set_running: Callable[[tuple[ToolCall, ...]], None],
        identity: CallIdentity | None = None,
    ) -> Effects[ToolExecutionOutcome]:
        """Runs one call, after its approval if it needs one, and returns its outcome.

        Calls `set_running` while the call may count. Raises what the approver raises, and
        `UndecidedError` if a person must decide and there is no approver.
        """
        tools, reason = self._tools, ""
        call, replaced = self._as_shown(call)
        while True:
            try:
                mode = self._mode(call, identity)
            except Exception as error:  # of a selector: nobody has approved the call
                return tools.refuse(call, f"The call was not approved: {message_of(error)}")
            if mode is None or (replaced and mode == "arguments"):
                break
            preview, forked = yield from self._preview(call, mode, reason)
            decision = yield from self._decide(call, preview)
            match decision:
                case Deny(words):
                    return tools.refuse(call, f"A person denied this call. {words}".strip())
                case ReplaceArguments(arguments):
                    replaced, reason = True, _REPLACED
                    call = tools.replace_arguments(call, json.dumps(arguments, ensure_ascii=False))
                    if forked is None:
                        break
                case Approve():
                    if forked is None:
                        break
                    set_running((call,))
                    try:
                        return (yield from tools.merge(call, forked))
                    except NotIsolatedError:
                        set_running(())
                        reason = _STALE
        set_running((call,))
        return (yield from tools.execute(call, identity))

    def pending(self, first: Preview, later: Sequence[ToolCall]) -> Effects[list[Preview]]:
        """Returns what people must decide on before the run can go on."""
        previews = [first]
        for call in later:
            preview = yield from self._preview_later(call)
            if preview is not None:
                previews.append(preview)
        if self._streamed:
            for preview in previews:
                call = ToolCall(preview.call_id, preview.tool, preview.arguments)
                yield ApprovalRequested(call, preview)
        return previews

    def _preview_later(self, call: ToolCall) -> Effects[Preview | None]:
        """Returns what a person would decide on now; `None` for a call that needs no approval."""
        call, replaced = self._as_shown(call)
        try:
            mode = self._mode(call, None)
        except Exception:  # of a selector; the call is refused in its turn
            return None
        if mode is None or (replaced and mode == "arguments"):
            return None
        preview, _ = yield from self._preview(call, mode, "")
        return preview

    def _as_shown(self, call: ToolCall) -> tuple[ToolCall, bool]:
        """Returns the call with the arguments that a person has put in, and whether one has."""
        shown = self._shown.get(call.call_id)
        if shown is None or shown.arguments == call.arguments:
            return call, False
        return self._tools.replace_arguments(call, shown.arguments), True

    def _mode(self, call: ToolCall, identity: CallIdentity | None) -> ApprovalMode | None:
        """Returns what a person must approve before the call counts; `None` for nothing."""
        tools = self._tools
        tool = tools.available.get(call.name)
        if tool is None or tool.approval is None:
            return None
        try:
            _, _, params = tools.admit(call)
        except ToolValidationError:
            return None  # the model reads its mistake
        if tool.effect in NON_REPEATABLE and (
            tools.has_record(call, params) or (identity is not None and identity.began)
        ):
            return None  # it does not run again
        context = tools.context(call)
        try:
            return approval_mode(tool.approval, params, self._session, context)
        finally:
            revoke(context)

    def _preview(
        self, call: ToolCall, mode: ApprovalMode, reason: str
    ) -> Effects[tuple[Preview, ForkedCall | None]]:
        """Returns what the person decides on, and the call on forks if it shows its effects."""
        tool, handler, params = self._tools.admit(call)
        if mode == "effects" and tool.effect in NON_REPEATABLE:
            return preview_arguments(call, f"{_HIDDEN}: the tool is {tool.effect!r}."), None
        if mode == "effects" and not self._tools.can_fork:
            return preview_arguments(call, f"{_HIDDEN}: the session has no fork()."), None
        if mode == "arguments":
            return preview_arguments(call, reason), None
        forked, effects = self._tools.fork(call, handler, params, makes=True)
        yield from effects
        try:
            answer, success = self._answer(forked.outcome)
            forks = forked.resources.forks
            preview = preview_effects(call, forked.session, forks, answer, success=success)
            return replace(preview, reason=reason), forked
        except NotIsolatedError as error:
            cause = str(error) or "the call uses what forks cannot keep apart"
            return preview_arguments(call, f"{_HIDDEN}: {cause}."), None

    def _answer(self, outcome: Outcome) -> tuple[str, bool]:
        """Returns what the model would read, and whether the call would succeed."""
        result, error = outcome
        if isinstance(error, ControlFlow):  # a transaction commits when it passes
            return message_of(error), True
        if error is not None and not isinstance(error, Exception):
            raise error  # an interrupt
        return self._tools.read(result, error)

    def _decide(self, call: ToolCall, preview: Preview) -> Effects[Decision]:
        started = perf_counter()
        decision: object = self.decisions.pop(call.call_id, None)
        shown = self._shown.pop(call.call_id, preview)
        if isinstance(decision, Approve) and shown.digest != preview.digest:
            decision, preview = None, replace(preview, reason=_STALE)
        if decision is None:
            if self._approver is None:
                self._shown[call.call_id] = preview
                raise UndecidedError(preview)
            if self._streamed:
                yield ApprovalRequested(call, preview)
            decision, error = yield partial(self._approver, preview)
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
                session_id=self._session.session_id,
            )
        )
        return decision
