"""`InnerLoop` runs a conversation as a state machine: each step returns the next action.

This module knows nothing about clocks, I/O, budgets or handlers. `Evaluation` performs each action,
if the run's limits allow it, and passes the result back:

    start ──► ProviderRequest ──receive──► ToolCalls ──submit──► ProviderRequest …
                                      └──► ProviderRequest (repair of the output, or after a pause)
                                      └──► Finished

When calls in a turn request sections that only a new evaluation can open, `submit` returns one
`Restart` for all of them, after every disclosure call of the turn has been answered. If the next
request would be too long, it returns `TooLong` instead. The inner loop consists of plain values, so
it can be pickled between two actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..content import ContentStore
from ..limits import Deadline, Meter, TokenUsage
from ..model_settings import ModelSettings
from ..prompt.errors import OutputParseError, VisibilityExpansionRequired
from ..prompt.output import StructuredOutputConfig, parse_output
from ..prompt.progressive_disclosure import combine_requests
from ..prompt.registry import RESERVED_TOOL_NAMES
from .compaction import request_tokens
from .config import InnerLoopConfig, RunConfig
from .conversation import Conversation
from .errors import PromptEvaluationError
from .messages import (
    AssistantMessage,
    Finish,
    Message,
    ToolCall,
    ToolExecutionOutcome,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    media_of,
    refused,
)
from .schemas import OutputSpec, ToolSpec, output_to_spec, tool_to_spec

__all__ = [
    "Action",
    "Finished",
    "InnerLoop",
    "InnerLoopConfig",
    "ProviderRequest",
    "Restart",
    "RunConfig",
    "TooLong",
    "ToolCalls",
    "unfinished_error",
]

_UNFINISHED: Mapping[Finish, tuple[str, str, str]] = {
    "length": (
        "the answer was cut off at its length limit",
        "truncated",
        "allow more output tokens or ask for less",
    ),
    "content_filter": ("the provider's content filter stopped the answer", "content_filter", ""),
    "refusal": ("the model refused: {}", "refused", ""),
    "error": ("the provider failed in the middle of the answer", "provider_failed", "try again"),
}
"""The error message, code and remedy for each reason to stop without an answer."""


@dataclass(slots=True)  # not frozen, because that costs 2 µs per request
class ProviderRequest:
    """Ask the provider to continue `transcript`.

    `transcript` is the inner loop's own list, which grows later: read it only up to its current
    length and do not change it. `tools` are the tools at the start of the conversation; later
    changes appear in the transcript as `ToolsAdded` and `ToolsRemoved`. Apply `changes` before
    sending the request. `content` stores the media bytes of the transcript. `settings` are those of
    the run, the prompt and the adapter together.
    """

    turn: int
    transcript: Sequence[Message]
    tools: tuple[ToolSpec, ...]
    output: OutputSpec | None
    deadline: Deadline | None
    changes: tuple[ToolExecutionOutcome, ...] = ()
    content: ContentStore | None = field(default=None, repr=False, compare=False)
    settings: ModelSettings | None = None

    @property
    def tool_messages(self) -> Sequence[ToolsAdded | ToolsRemoved]:
        """The tool changes at the end of the transcript."""
        messages: list[ToolsAdded | ToolsRemoved] = []
        for message in reversed(self.transcript):
            if not isinstance(message, ToolsAdded | ToolsRemoved):
                break
            messages.append(message)
        return messages[::-1]


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Run these calls, or the first of them, and submit their outcomes in order."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The model has finished; `output` is the typed answer, or `None` for text."""

    text: str
    output: object


@dataclass(frozen=True, slots=True)
class Restart:
    """Evaluate the prompt again and open the sections that the model has requested."""

    request: VisibilityExpansionRequired


@dataclass(frozen=True, slots=True)
class TooLong:
    """Shorten the conversation: the next request would exceed `max_request_tokens`."""


_MAX_QUOTED = 500  # characters of a refusal quoted in its error; the transcript has it all
_MAX_ISSUES = 4_000  # characters; an answer can have more issues than a request should list
# the provider rejects the request because of its content, and would reject it again
_REFUSALS = {"bad_request", "content_filter", "context_length", "too_large"}
_SERVER_FAILED = 500
_LEFT_OUT = "a conversation that continues with another message leaves the rejected one out"
_NOT_RUN = "Not run: the evaluation ended."
_NOT_APPROVED = "Not run: a person has not approved it yet."
_UNKNOWN = "This call was interrupted and its outcome is unknown."

type Action = ProviderRequest | ToolCalls | Finished | Restart | TooLong


@dataclass(slots=True, kw_only=True)
class InnerLoop:
    """One run: call `start` once, then `receive` and `submit` as the actions require.

    The run continues `conversation`, and `conversation_now` also includes the messages that the run
    has added. A failed run raises `PromptEvaluationError`, with the usage, turns and conversation.
    Apply `tool_changes` even then, because the transcript already contains them. The caller counts
    the run's usage in `meter`. `turns` is the number of the run's requests. `has_called` is true
    once the model has called a tool; from then on, no setting forces it to.
    """

    conversation: Conversation
    structured_output: StructuredOutputConfig[object] | None = None
    config: RunConfig = field(default_factory=RunConfig)
    param_descriptions: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )

    max_request_tokens: int | None = None
    content: ContentStore | None = None
    meter: Meter = field(default_factory=Meter)
    transcript: list[Message] = field(default_factory=list, init=False)
    turns: int = field(default=0, init=False)
    repairs: int = field(default=0, init=False)
    pending: tuple[ToolCall, ...] = field(default=(), init=False)
    running: tuple[ToolCall, ...] = field(default=(), init=False)
    available: set[str] = field(default_factory=set, init=False)
    tool_changes: list[ToolExecutionOutcome] = field(default_factory=list, init=False)
    transcribed_changes: int = field(default=0, init=False)
    section_changes: list[ToolExecutionOutcome] = field(default_factory=list, init=False)
    requests: list[VisibilityExpansionRequired] = field(default_factory=list, init=False)
    # the number of messages that precede the first unanswered one
    accepted: int = field(default=0, init=False)
    has_called: bool = False
    sent: int = field(default=0, init=False)  # the number of messages in the last request

    def __post_init__(self) -> None:
        self.transcript.extend(self.conversation.messages)
        self.accepted = len(self.transcript) - len(self.conversation.unanswered)

    @property
    def usage(self) -> TokenUsage:
        """The tokens that the run has used so far, including nested runs."""
        return self.meter.tokens

    @property
    def conversation_now(self) -> Conversation:
        """The conversation so far; call `stop` first if calls are pending."""
        return self.conversation.with_messages(self.transcript, self.usage, self.section_changes)

    def start(self) -> Action:
        """Returns the first request."""
        self.available = set(self.conversation.available_tools)
        return self._request()

    def receive(self, answer: AssistantMessage) -> Action:
        """Accepts the provider's answer to the last request and returns the next action."""
        self.transcript.append(answer)
        self.accepted = len(self.transcript)
        self.pending = answer.tool_calls
        self.has_called = self.has_called or bool(self.pending)
        if (error := unfinished_error(answer)) is not None:
            raise self.failed(error)
        if self.pending:
            return ToolCalls(self.pending)
        if answer.finish == "pause":
            return self._request()
        text = self._final_text()
        if missing := self._missing_part(answer, text):
            return self._repair(
                f"{missing} Answer again.", f"{missing[:-1]} after {self.repairs} repairs"
            )
        return self._finish(text)

    def _missing_part(self, answer: AssistantMessage, text: str) -> str:
        """Describes the missing part of an answer without calls; returns `""` if it is complete.

        A typed answer counts as complete, because parsing the output finds everything missing.
        """
        if self.structured_output is not None and self.structured_output.container != "text":
            return ""
        if answer.finish == "tool_calls":
            return "The answer announces tool calls and has none."
        return "" if text.strip() else "The answer is empty."

    def submit(self, outcomes: Sequence[ToolExecutionOutcome]) -> Action:
        """Accepts the outcomes of the first pending calls, in order, and returns the next action.

        The action is `Restart` at the end of a turn that requested sections, and `TooLong` if the
        next request would exceed `max_request_tokens`. Raises `ValueError` if an outcome belongs to
        another call.
        """
        for outcome in outcomes:
            if not self.pending or outcome.tool_call_id != self.pending[0].call_id:
                pending = self.pending[0].call_id if self.pending else "none"
                raise ValueError(
                    f"outcome of call {outcome.tool_call_id!r} was submitted, but the pending "
                    f"calls are {pending!r}"
                )
            self.pending, self.running = self.pending[1:], self.running[1:]
            self.transcript.append(outcome.message)
            if outcome.opened or outcome.expanded_tools or outcome.closed_tools:
                self.tool_changes.append(outcome)
            if outcome.shown or outcome.opened or outcome.closed or outcome.request:
                self.section_changes.append(outcome)
            if outcome.request is not None:
                self.requests.append(outcome.request)
        if self.requests:
            return self._next_disclosure_calls()
        if self.pending:
            return ToolCalls(self.pending)
        if self.tool_changes:
            self._add_tool_changes()
        limit = self.max_request_tokens
        if limit and request_tokens(self.transcript, self.conversation.tools) > limit:
            return TooLong()
        return self._request()

    def stop(self, *, suspended: bool = False) -> None:
        """Answers each pending call with a note that it was not run, so the run can continue.

        The `running` calls had already started, so their outcome is unknown. With `suspended`, the
        note says that the call is not approved yet.
        """
        answered: list[str] = []
        for message in reversed(self.transcript):
            if not isinstance(message, ToolMessage):
                break
            answered.append(message.call_id)
        last = self.transcript[-1 - len(answered)]
        for call in last.tool_calls if isinstance(last, AssistantMessage) else ():
            if call.call_id in answered:
                answered.remove(call.call_id)  # servers may repeat ids
            else:
                was_running = call in self.running
                text = _UNKNOWN if was_running else _NOT_APPROVED if suspended else _NOT_RUN
                answer = ToolMessage(call.call_id, text, success=False, unknown=was_running)
                self.transcript.append(answer)
        self.pending = self.running = ()
        self._add_tool_changes()

    def failed[E: PromptEvaluationError](self, error: E) -> E:
        """Returns a copy of `error` with the usage, turns and conversation of this run.

        If the provider rejected the new messages of the last request, they are marked as `refused`.
        """
        self.stop()
        is_refused = error.phase == "request" and self._mark_refused(error)
        error = error.with_progress(
            usage=self.usage, turns=self.turns, conversation=self.conversation_now
        )
        if is_refused:
            error.remedy = "; ".join(filter(None, [error.remedy, _LEFT_OUT]))
        return error

    def _mark_refused(self, error: PromptEvaluationError) -> bool:
        """Marks the messages that `error` rejects, and returns whether there are any."""
        # other codes, such as those for an overloaded server, are not about the messages
        only_media = error.code == "content" or error.status == _SERVER_FAILED
        if error.code not in _REFUSALS and not only_media:
            return False
        is_refused = False
        for index in range(max(self.accepted, 1), self.sent):  # skip the prompt, which comes first
            message = self.transcript[index]
            if media_of(message) or (
                isinstance(message, UserMessage | ToolMessage) and not only_media
            ):
                self.transcript[index] = refused(message)
                is_refused |= self.transcript[index] != message
        if is_refused:
            known = len(self.conversation.messages)
            messages = tuple(self.transcript[:known])
            self.conversation = replace(self.conversation, messages=messages)
        return is_refused

    def _next_disclosure_calls(self) -> ToolCalls | Restart:
        """Returns the remaining disclosure calls of a turn that requested sections, then `Restart`.

        The other calls of the turn do not run.
        """
        self.pending = tuple([call for call in self.pending if call.name in RESERVED_TOOL_NAMES])
        return ToolCalls(self.pending) if self.pending else self.restart()

    def restart(self) -> Restart:
        """Returns the restart that opens the sections requested in this turn so far."""
        return Restart(combine_requests(self.requests))

    def _request(self) -> ProviderRequest:
        changes = tuple(self.tool_changes)
        if changes:
            self.tool_changes.clear()
            self.transcribed_changes = 0
        self.turns += 1
        self.sent = len(self.transcript)
        config, settings = self.structured_output, self.config.settings
        if settings is not None and self.has_called:
            settings = settings.without_forced_call()
        return ProviderRequest(
            turn=self.turns,
            transcript=self.transcript,
            tools=self.conversation.tools,
            output=output_to_spec(config) if config and config.container != "text" else None,
            deadline=self.config.deadline,
            changes=changes,
            content=self.content,
            settings=settings,
        )

    def _add_tool_changes(self) -> None:
        """Adds the tools that calls opened or closed to the transcript, each only once."""
        for outcome in self.tool_changes[self.transcribed_changes :]:
            self._add_changes_of(outcome)
        self.transcribed_changes = len(self.tool_changes)

    def _add_changes_of(self, outcome: ToolExecutionOutcome) -> None:
        removed = tuple([name for name in outcome.closed_tools if name in self.available])
        if removed:
            self.available.difference_update(removed)
            self.transcript.append(ToolsRemoved(removed))
        added = [tool for tool in outcome.expanded_tools if tool.name not in self.available]
        if added:
            self.available.update([tool.name for tool in added])
            texts = self.param_descriptions
            self.transcript.append(
                ToolsAdded(tuple([tool_to_spec(tool, texts.get(tool.name)) for tool in added]))
            )

    def _final_text(self) -> str:
        """Returns the text of the last answer, including the parts before its pauses."""
        texts: list[str] = []
        for message in reversed(self.transcript):
            if not isinstance(message, AssistantMessage) or (texts and message.finish != "pause"):
                break
            texts.append(message.text)
        return "".join(reversed(texts))

    def _finish(self, text: str) -> Action:
        if self.structured_output is None:
            return Finished(text, None)
        wrapper = self.structured_output.wrapper
        try:
            output, text = parse_output(text, self.structured_output)
            return Finished(text, output)
        except OutputParseError as error:
            form = f', as an object with the one property "{wrapper}"' if wrapper else ""
            return self._repair(
                "Your answer does not fit the required JSON schema: "
                f"{str(error)[:_MAX_ISSUES]}\n"
                f"Answer again with the corrected JSON alone{form}.",
                f"the answer is not the declared output after {self.repairs} repairs: {error}",
                error,
            )

    def reject(self, reason: str) -> Action:
        """Rejects a finished answer for `reason` and returns the request for another one."""
        return self._repair(
            f"Your answer is rejected: {reason[:_MAX_ISSUES]}\nAnswer again.",
            f"the answer is rejected after {self.repairs} repairs: {reason}",
        )

    def _repair(self, request: str, problem: str, cause: Exception | None = None) -> Action:
        self.transcript.append(UserMessage(request, repair=True))
        if self.repairs >= self.config.max_repairs:
            failure = PromptEvaluationError(problem, phase="response", code="output")
            raise self.failed(failure) from cause
        self.repairs += 1
        return self._request()


def unfinished_error(answer: AssistantMessage) -> PromptEvaluationError | None:
    """Returns the error for a truncated or refused answer; `None` for a complete answer."""
    if answer.finish not in _UNFINISHED:
        return None
    message, code, remedy = _UNFINISHED[answer.finish]
    message = message.format(answer.text[:_MAX_QUOTED])
    return PromptEvaluationError(message, phase="response", code=code, remedy=remedy)
