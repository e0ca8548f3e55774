"""Keeps the calls from a run's earlier evaluations that must not run twice."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from .. import serde
from ..errors import SerdeError
from ..prompt.model_json import read_without_nulls
from ..prompt.tool import NON_REPEATABLE, AnyTool, ToolResult
from .logged_run import LoggedCall, Rendered
from .messages import AssistantMessage, Message, ToolCall, ToolMessage, unwrap_arguments
from .run_log import Called, Entry

__all__ = ["UNKNOWN", "EarlierCalls", "call_key"]

UNKNOWN: ToolResult[object] = ToolResult(
    "This call was begun before and its outcome is unknown; it is not run again.", success=False
)

type _Key = tuple[str, str]
type _Call = tuple[ToolCall | None, ToolMessage, ToolResult[object]]
"""A call (`None` if the conversation already contains it), with its answer and its result."""


class EarlierCalls:
    """The calls made before a run's last restart, with their answers, by tool and arguments.

    `unknown` are calls in the conversation with an unknown outcome. `get_tool` returns a tool of
    the prompt by name. Equal calls match in order: the second call matches the second earlier one.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        unknown: Iterable[ToolCall],
        get_tool: Callable[[str], AnyTool | None],
    ) -> None:
        self._get_tool = get_tool
        self._calls: dict[_Key, deque[_Call]] = {}
        for call in unknown:
            self.add_unknown(call)
        for called in _before_restart(entries) if entries else ():
            if called.has_run:
                self._add(called.call, (called.call, *_answer_of(called)))

    def _add(self, call: ToolCall, entry: _Call) -> None:
        if (key := self._key_of(call)) is not None:
            self._calls.setdefault(key, deque()).append(entry)

    def add_unknown(self, call: ToolCall) -> None:
        """Adds an interrupted call that is already in the conversation."""
        self._add(call, (None, *_unknown(call)))

    def _key_of(self, call: ToolCall) -> _Key | None:
        """Returns the key of a call that must not run twice; `None` for any other call."""
        tool = self._get_tool(call.name)
        if tool is None or tool.effect not in NON_REPEATABLE:
            return None
        try:
            params, _ = read_without_nulls(tool.parse_params, unwrap_arguments(call.arguments))
        except SerdeError:
            return None
        return call.name, call_key(call, params)

    def has(self, call: ToolCall, params: object) -> bool:
        """Whether an earlier evaluation made an equal call that has not been repeated yet."""
        return bool(self._calls) and (call.name, call_key(call, params)) in self._calls

    def take(self, call: ToolCall, params: object) -> ToolResult[object] | None:
        """Removes the first equal call and returns its result, if there is one."""
        if not self.has(call, params):
            return None
        key = call.name, call_key(call, params)
        _, _, result = self._calls[key].popleft()
        if not self._calls[key]:
            del self._calls[key]
        return result

    def repeat(self, call: ToolCall) -> None:
        """Removes the first equal call, because the recorded `call` repeated its answer."""
        if self._calls and (key := self._key_of(call)) is not None and key in self._calls:
            self._calls[key].popleft()
            if not self._calls[key]:
                del self._calls[key]

    def rest(self) -> list[Message]:
        """Returns the calls that were not repeated, with their answers, as messages.

        Append them to a conversation that would otherwise not contain them. Calls that it already
        contains are omitted.
        """
        calls: list[ToolCall] = []
        answers: list[ToolMessage] = []
        for call, answer, _ in [
            item for items in self._calls.copy().values() for item in items.copy()
        ]:
            if call is not None:
                calls.append(call)
                answers.append(answer)
        return [AssistantMessage(tool_calls=tuple(calls)), *answers] if calls else []


def _unknown(call: ToolCall) -> tuple[ToolMessage, ToolResult[object]]:
    answer = ToolMessage(call.call_id, UNKNOWN.content(), success=False, unknown=True)
    return answer, UNKNOWN


def _answer_of(called: Called | LoggedCall) -> tuple[ToolMessage, ToolResult[object]]:
    result = None
    if isinstance(called, LoggedCall):
        request, answer = called.request is not None, called.answer
    else:
        request, answer = called.outcome.request is not None, called.outcome.message
        result = called.result
    if request:  # a handler that requested sections has not answered
        return _unknown(called.call)
    read = ToolResult[object](answer.content, None, answer.success, media=answer.media)
    return answer, result or read


def _before_restart(entries: Iterable[Entry]) -> list[Called | LoggedCall]:
    """Returns the calls that are missing from the current evaluation's conversation."""
    calls: list[Called | LoggedCall] = []
    for entry in entries:
        match entry:
            case Rendered(cause=cause) if cause != "restart":
                calls.clear()
            case Called() | LoggedCall():
                calls.append(entry)
            case _:
                pass
    return calls


def call_key(call: ToolCall, params: object) -> str:
    """Returns a key, which is the same for all calls with equal params."""
    try:
        if isinstance(params, dict):  # its keys are in the order in which the model wrote them
            return json.dumps(params, sort_keys=True, default=str)
        return serde.dump_json_lossless(type(params), params)
    except SerdeError:  # the params cannot be converted to JSON, so compare the model's text
        return _normalize(call.arguments)


def _normalize(arguments: str) -> str:
    """Returns a form of the arguments that is the same for equal JSON values."""
    try:
        return json.dumps(json.loads(arguments.strip() or "{}"), sort_keys=True)
    except ValueError:
        return arguments
