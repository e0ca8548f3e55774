"""Converts a run's events to AG-UI events, for any front end that supports AG-UI.

Needs the `ag-ui` extra. `AgUiRun` converts a stream's events; `new_message` and
`earlier_conversation` read the front end's request. This module does not include an HTTP server.
"""

from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from itertools import count
from typing import assert_never

from .. import serde
from ..citations import Citation
from ..errors import missing_extra
from ..evaluation.conversation import Conversation
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    sendable,
)
from ..evaluation.response import (
    AnswerRejected,
    ApprovalRequested,
    Completed,
    OutputDelta,
    PromptResponse,
    ReasoningDelta,
    Restarted,
    StreamEvent,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from ..evaluation.suspension import RunSuspended
from ..limits import TokenUsage
from ..prompt.template import AnyPrompt
from ..protocols import StateView
from ..runtime.events import Compacted
from ..serde import Json

try:
    from ag_ui import core as ag_ui
except ImportError as error:
    raise missing_extra(__name__, "ag-ui-protocol", "ag-ui") from error

__all__ = ["AgUiRun", "earlier_conversation", "new_message"]

type _AnyEvent = StreamEvent[object]
type _Events = Sequence[ag_ui.Event]
type _Written = ag_ui.AssistantMessage | ag_ui.ReasoningMessage

_INTERRUPTED = "Interrupted: the tool may have run, or a part of it."


class AgUiRun:
    """Converts one stream's events to AG-UI events, for the run that `request` asks for.

    `stream` and `stream_async` convert a complete stream. A server with its own loop calls `start`,
    then `convert` for each event, and then `end`. However the run ends, every started message and
    tool call is ended, and every call has a result unless it is pending approval. If a restart or a
    rejection discards text, a `MESSAGES_SNAPSHOT` with all other messages removes it from the front
    end. Reasoning is a message of its own. Restarts, rejections, tool changes, compactions and the
    final answer's citations are sent as activities.

    While a typed answer arrives, `STATE_DELTA` patches build it in the shared state, at the JSON
    pointer `output_path`; by default, it becomes the entire state. Their size is linear in the
    answer's: a growing string is sent again after every quarter. A rejection restores the state in
    the request, or sets the output at a path to null.

    `messages` contains the messages in the front end's thread, including activities.
    """

    def __init__(self, request: ag_ui.RunAgentInput, *, output_path: str = "") -> None:
        self.request = request
        self._output_path = output_path
        self._output: OutputDelta | None = None  # the latest partial answer
        self._sent_output: OutputDelta | None = None
        self.ended = False
        self._earlier = tuple(request.messages)
        self._messages: list[ag_ui.Message] = []
        self._message: ag_ui.AssistantMessage | None = None  # contains the model's current answer
        self._thought: ag_ui.ReasoningMessage | None = None  # the open reasoning message
        self._written: list[_Written] = []  # the messages of the model's current answer
        self._text: list[str] | None = None  # the chunks of the open text or reasoning message
        self._open_calls: dict[str, str] = {}  # AG-UI's ids for open calls, by the model's ids
        answered = {
            item.tool_call_id for item in self._earlier if isinstance(item, ag_ui.ToolMessage)
        }
        self._waiting = set(_call_ids(self._earlier)) - answered  # calls pending approval
        self._used = {message.id for message in self._earlier} | set(_call_ids(self._earlier))
        self._ids = map(f"{request.run_id}-{{}}".format, count(1))

    @property
    def messages(self) -> list[ag_ui.Message]:
        """The messages in the thread, starting with those in the request."""
        self._keep_text()
        return [*self._earlier, *self._messages]

    def stream(self, events: Generator[_AnyEvent]) -> Generator[ag_ui.Event]:
        """Yields the run's AG-UI events, starting with `RUN_STARTED`, and closes `events`.

        A `PromptEvaluationError` becomes a `RUN_ERROR` with its text. `RunSuspended` becomes an
        interrupt for each pending call, and any other error becomes a `RUN_ERROR` without its text.
        Both are raised again after their events.
        """
        yield from self.start()
        try:
            with closing(events):
                for event in events:
                    yield from self.convert(event)
        except GeneratorExit:
            raise  # the consumer has stopped reading
        except BaseException as error:
            yield from self.end(error)
            if not isinstance(error, PromptEvaluationError):
                raise
        yield from self.end()

    async def stream_async(self, events: AsyncGenerator[_AnyEvent]) -> AsyncGenerator[ag_ui.Event]:
        """Like `stream`; a cancellation is raised again after the run's last events."""
        for started in self.start():
            yield started
        try:
            async with aclosing(events):
                async for event in events:
                    for converted in self.convert(event):
                        yield converted
        except GeneratorExit:
            raise
        except BaseException as error:
            for last in self.end(error):
                yield last
            if not isinstance(error, PromptEvaluationError):
                raise
        for last in self.end():
            yield last

    def start(self) -> _Events:
        """Returns the events that start the run."""
        request = self.request
        return [
            ag_ui.RunStartedEvent(
                thread_id=request.thread_id, run_id=request.run_id, protocol_version="1.0"
            )
        ]

    def convert(self, event: _AnyEvent) -> _Events:
        """Returns the AG-UI events for one stream event."""
        match event:
            case TextDelta() | ReasoningDelta() | OutputDelta():
                return self._show(event)
            case ToolCallStarted(call):
                return [*self._end_text(), *self._start_call(call)]
            case ToolCallFinished(call, message):
                text_end = self._end_text()
                result = self._finish_call(call.call_id, message.content, success=message.success)
                return [*text_end, *result]
            case ApprovalRequested(call, preview):
                started = [*self._end_text(), *self._start_call(call)]
                report = self._report(
                    "approval_requested",
                    call_id=call.call_id,
                    tool_call_id=self._open_calls[call.call_id],
                    preview=str(preview),
                    digest=preview.digest,
                )
                return [*started, *report]
            case ToolsAdded(tools):
                return self._report("tools_added", names=[tool.name for tool in tools])
            case ToolsRemoved(names):
                return self._report("tools_removed", names=list(names))
            case AnswerRejected(reason):
                return [
                    *self._remove_text(self._written),
                    *self._report("answer_rejected", reason=reason),
                ]
            case Restarted(keys, reason):
                discarded = [
                    item
                    for item in self._messages
                    if isinstance(item, ag_ui.AssistantMessage | ag_ui.ReasoningMessage)
                ]
                sections = list(keys)
                return [
                    *self._remove_text(discarded),
                    *self._report("restarted", section_keys=sections, reason=reason),
                ]
            case Compacted(tokens_before=before, tokens_after=after):
                return self._report("compacted", tokens_before=before, tokens_after=after)
            case Completed(response):
                return self._complete(response)
            case _ as never:
                assert_never(never)

    def end(self, error: BaseException | None = None) -> _Events:
        """Returns the events that end the run early, or none if it has ended.

        If the run has no response, it is reported as cancelled unless `error` is an `Exception`.
        After `RunSuspended`, pending calls do not have a result yet.
        """
        if self.ended:
            return []
        self.ended = True
        if isinstance(error, RunSuspended):
            return [*self._end_text(), self._finished(self._interrupts(error))]
        events = [*self._end_text(), *self._answer_open_calls()]
        if isinstance(error, PromptEvaluationError):
            usage = _usage(error.usage)
            text = sendable(str(error))
            return [*events, ag_ui.RunErrorEvent(message=text, code=error.code, usage=usage)]
        if isinstance(error, Exception):
            return [*events, ag_ui.RunErrorEvent(message="The agent failed.", code="internal")]
        return [*events, self._finished(ag_ui.RunFinishedCancelledOutcome())]

    def _interrupts(self, error: RunSuspended) -> ag_ui.RunFinishedInterruptOutcome:
        interrupts = [
            ag_ui.Interrupt(
                id=preview.call_id,
                reason="approval",
                message=str(preview),
                tool_call_id=self._open_calls.get(preview.call_id),
                metadata={"digest": preview.digest},
            )
            for preview in error.suspension.pending
        ]
        return ag_ui.RunFinishedInterruptOutcome(interrupts=interrupts)

    def _complete(self, response: PromptResponse[object]) -> _Events:
        events = [*self._end_text(), *self._answer_open_calls(), *self._send_output()]
        if response.text and not (self._message and self._message.content):
            events += [*self._write(response.text), *self._end_text()]
        if response.citations:
            listed = [_citation(citation) for citation in response.citations]
            message_id = self._message.id if self._message else ""
            events += self._report("citations", message_id=message_id, citations=listed)
        self.ended = True
        finished = self._finished(ag_ui.RunFinishedSuccessOutcome())
        finished.usage = _usage(response.usage)
        if not isinstance(response.output, str):
            finished.result = serde.dump(response.output)
        return [*events, finished]

    def _finished(self, outcome: ag_ui.RunFinishedOutcome) -> ag_ui.RunFinishedEvent:
        request = self.request
        return ag_ui.RunFinishedEvent(
            thread_id=request.thread_id, run_id=request.run_id, outcome=outcome
        )

    def _write(self, text: str) -> _Events:
        text = sendable(text)
        if not text:
            return []
        started = list[ag_ui.Event](self._end_text() if self._thought else ())
        message = self._message
        if message is None or self._text is None:
            self._text, message = [], self._begin_message()
            started += [ag_ui.TextMessageStartEvent(message_id=message.id, role="assistant")]
        self._text.append(text)
        return [*started, ag_ui.TextMessageContentEvent(message_id=message.id, delta=text)]

    def _show(self, delta: TextDelta | ReasoningDelta | OutputDelta) -> _Events:
        match delta:
            case TextDelta(text):
                return self._write(text)
            case ReasoningDelta(text):
                return self._think(text)
            case OutputDelta():
                self._output = delta
                return self._send_output() if delta.is_due_after(self._sent_output) else []

    def _think(self, text: str) -> _Events:
        text = sendable(text)
        if self._thought is None:
            text = text.lstrip("\n")  # a blank line separates it from earlier reasoning
        if not text:
            return []
        thought, started = self._thought, list[ag_ui.Event]()
        if thought is None or self._text is None:
            started += self._end_text()
            thought = ag_ui.ReasoningMessage(id=self._unused_id(), content="")
            self._text, self._thought = [], thought
            self._messages.append(thought)
            self._written.append(thought)
            started += [
                ag_ui.ReasoningStartEvent(message_id=thought.id),
                ag_ui.ReasoningMessageStartEvent(message_id=thought.id, role="reasoning"),
            ]
        self._text.append(text)
        return [*started, ag_ui.ReasoningMessageContentEvent(message_id=thought.id, delta=text)]

    def _send_output(self) -> _Events:
        """Returns the event with everything of the answer that has not been sent."""
        new, old = self._output, self._sent_output
        operations = new.patch(old, self._output_path) if new and new is not old else []
        self._sent_output = new
        return [_patch(operations)] if operations else []

    def _remove_output(self) -> _Events:
        if self._sent_output is None:
            return []
        self._output = self._sent_output = None
        value = None if self._output_path else self.request.state
        operation = {"op": "replace", "path": self._output_path, "value": value}
        return [_patch([operation])]

    def _begin_message(self) -> ag_ui.AssistantMessage:
        self._message = ag_ui.AssistantMessage(id=self._unused_id())
        self._messages.append(self._message)
        self._written.append(self._message)
        return self._message

    def _end_message(self) -> None:
        """Ends the model's current answer; its next text belongs to a new message."""
        self._message, self._written = None, []

    def _keep_text(self) -> None:
        message = self._thought or self._message
        if self._text is not None and message is not None:
            message.content = "".join(self._text)

    def _end_text(self) -> _Events:
        """Returns the events that end the open message, a text or reasoning."""
        if self._text is None:
            return []
        self._keep_text()
        self._text, thought, self._thought = None, self._thought, None
        if thought is not None:
            return [
                ag_ui.ReasoningMessageEndEvent(message_id=thought.id),
                ag_ui.ReasoningEndEvent(message_id=thought.id),
            ]
        return (
            []
            if self._message is None
            else [ag_ui.TextMessageEndEvent(message_id=self._message.id)]
        )

    def _start_call(self, call: ToolCall) -> _Events:
        if call.call_id in self._open_calls:
            return []  # already started when its approval was requested
        if call.call_id in self._waiting:
            self._waiting.remove(call.call_id)
            self._open_calls[call.call_id] = call.call_id
            return []  # already started by an earlier run
        message = self._message or self._begin_message()
        # Some servers restart their call numbers with each answer, and AG-UI would append to a
        # known call.
        call_id = self._unused_id(call.call_id)
        self._open_calls[call.call_id] = call_id
        arguments = sendable(call.arguments)
        function = ag_ui.FunctionCall(name=call.name, arguments=arguments)
        message.tool_calls = [
            *(message.tool_calls or ()),
            ag_ui.ToolCall(id=call_id, function=function),
        ]
        return [
            ag_ui.ToolCallStartEvent(
                tool_call_id=call_id, tool_call_name=call.name, parent_message_id=message.id
            ),
            *(
                [ag_ui.ToolCallArgsEvent(tool_call_id=call_id, delta=arguments)]
                if arguments
                else []
            ),
            ag_ui.ToolCallEndEvent(tool_call_id=call_id),
        ]

    def _finish_call(self, call_id: str, content: str, *, success: bool) -> _Events:
        message = ag_ui.ToolMessage(
            id=self._unused_id(),
            content=sendable(content),
            tool_call_id=self._open_calls.pop(call_id),
            error=None if success else sendable(content),
        )
        self._messages.append(message)
        if not self._open_calls:
            self._end_message()
        result = ag_ui.ToolCallResultEvent(
            message_id=message.id, tool_call_id=message.tool_call_id, content=message.content
        )
        if not success:
            result.metadata = {"weakincentives": {"success": False}}
        return [result]

    def _answer_open_calls(self) -> _Events:
        return [
            event
            for call_id in list(self._open_calls)
            for event in self._finish_call(call_id, _INTERRUPTED, success=False)
        ]

    def _remove_text(self, discarded: Sequence[_Written]) -> _Events:
        """Returns the events that remove the text of discarded messages from the front end."""
        events = [*self._end_text(), *self._answer_open_calls(), *self._remove_output()]
        removed = [message for message in discarded if message.content]
        self._end_message()
        if not removed:
            return events
        for message in removed:
            if isinstance(message, ag_ui.ReasoningMessage):
                message.content = ""  # a front end keeps its reasoning if a snapshot contains none
            elif message.tool_calls:
                message.content = None
            else:
                self._messages.remove(message)
        # A front end keeps its own activities if a snapshot contains none.
        messages: list[ag_ui.Message] = [
            message for message in self.messages if message.role != "activity"
        ]
        return [*events, ag_ui.MessagesSnapshotEvent(messages=messages)]

    def _report(self, kind: str, **content: int | str | list[str] | list[Json]) -> _Events:
        """Returns the events for an activity, which is not part of the model's messages."""
        sent = {
            name: sendable(value) if isinstance(value, str) else value
            for name, value in content.items()
        }
        message = ag_ui.ActivityMessage(id=self._unused_id(), activity_type=kind, content=sent)
        self._messages.append(message)
        activity = ag_ui.ActivitySnapshotEvent(
            message_id=message.id, activity_type=kind, content=sent
        )
        return [*self._end_text(), activity]

    def _unused_id(self, wanted: str = "") -> str:
        unused = wanted or next(self._ids)
        while unused in self._used:
            unused = next(self._ids)
        self._used.add(unused)
        return unused


def _patch(operations: Sequence[Mapping[str, object]]) -> ag_ui.StateDeltaEvent:
    return ag_ui.StateDeltaEvent.model_validate({"delta": operations})


def new_message(request: ag_ui.RunAgentInput) -> str:
    """Returns the text of the user's new message, which must be the last message.

    Non-text parts are ignored. Raises `ValueError` if the last message is not the user's or has no
    text.
    """
    text = _text(request.messages[-1]) if request.messages else None
    if text is None or not text.strip():
        raise ValueError("the last message must be a text from the user")
    return text


def earlier_conversation(
    request: ag_ui.RunAgentInput, prompt: AnyPrompt, session: StateView | None = None
) -> Conversation | None:
    """Returns the messages before the new one as a conversation for `prompt`; `None` if empty.

    The front end supplies this history, including tool results. If your server must be able to
    trust the history, store conversations on the server and read only the new message. Sections
    start with the visibility that the prompt gives them. Calls without results and the front end's
    instructions are omitted.
    """
    messages: list[Message] = []
    earlier = request.messages[:-1]
    for index, message in enumerate(earlier):
        text = _text(message)
        if text is not None:
            messages.append(UserMessage(sendable(text)))
        elif isinstance(message, ag_ui.AssistantMessage) and messages:
            messages += _answer(message, _results(earlier[index + 1 :]))
    if not messages:
        return None
    history = Conversation(ns=prompt.ns, key=prompt.key, messages=(Instructions(""), *messages))
    return history.restated(prompt, session)


def _text(message: ag_ui.Message) -> str | None:
    """Returns the text of a user message, or `None` for any other message."""
    match message:
        case ag_ui.UserMessage(content=str(text)):
            return text
        case ag_ui.UserMessage(content=list(parts)):
            return "\n\n".join([part.text for part in parts if isinstance(part, ag_ui.TextPart)])
        case _:
            return None


def _results(following: Iterable[ag_ui.Message]) -> dict[str, ToolMessage]:
    """Returns the tool results that follow a message, by call id."""
    results: dict[str, ToolMessage] = {}
    for message in following:
        match message:
            case ag_ui.ToolMessage(tool_call_id=call_id, content=content, error=error):
                if not isinstance(content, str):
                    texts = [part.text for part in content if isinstance(part, ag_ui.TextPart)]
                    content = "".join(texts)
                results[call_id] = ToolMessage(call_id, sendable(content), success=error is None)
            case ag_ui.UserMessage() | ag_ui.AssistantMessage():
                break
            case _:
                pass
    return results


def _answer(message: ag_ui.AssistantMessage, results: dict[str, ToolMessage]) -> Iterator[Message]:
    """Yields the model's message and the results of its tool calls."""
    calls = [
        ToolCall(call.id, call.function.name, sendable(call.function.arguments))
        for call in message.tool_calls or ()
        if call.id in results
    ]
    text = sendable(message.content or "")
    if calls:
        yield AssistantMessage(text=text, tool_calls=tuple(calls), finish="tool_calls")
    elif text:
        yield AssistantMessage(text=text)
    yield from [results[call.call_id] for call in calls]


def _call_ids(messages: Iterable[ag_ui.Message]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, ag_ui.AssistantMessage):
            yield from [call.id for call in message.tool_calls or ()]


def _citation(citation: Citation) -> Json:
    """Returns a citation as JSON; its URL is empty if it is not an HTTP or HTTPS URL."""
    return {
        "url": sendable(citation.link),
        "title": sendable(citation.title),
        "source": sendable(citation.source),
        "quote": sendable(citation.quote),
        "start": citation.start,
        "end": citation.end,
    }


def _usage(usage: TokenUsage) -> list[ag_ui.TokenUsage]:
    """Returns a run's token usage; 0 can mean that the provider does not report the value."""
    tokens = ag_ui.TokenUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        cached_input_tokens=usage.cached_tokens or None,
        cache_write_input_tokens=usage.cache_write_tokens or None,
        reasoning_tokens=usage.reasoning_tokens or None,
    )
    return [] if usage == TokenUsage() else [tokens]
