"""`Chat` keeps a user's conversation with a prompt in a session."""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from copy import copy
from typing import TypedDict, Unpack

from ..content import Part
from ..displays import markdown
from ..limits import Budget, Deadline
from ..locks import Reservation, RunToken
from ..model_settings import ModelSettings
from ..prompt.template import Prompt, PromptTemplate
from ..protocols import EventBus, SessionProtocol
from ..runtime.session import Session
from ..signatures import with_remedies
from ..visibility import SectionPath, SectionVisibility
from .adapter import ProviderAdapter, adapter_in
from .approval import Approver, Decision
from .chat_turn import ChatTurn, StoppedTurn, saved_conversation, unfinished_turn
from .config import RunConfig, layered, with_settings
from .conversation import Conversation, OnChange
from .main_loop import Execution, ExecutionOptions, MainLoop
from .messages import AssistantMessage, Message, UserMessage
from .response import Completed, StreamEvent
from .run import NestedAdapter, has_own_loop
from .run_stream import async_run_stream, run_stream
from .suspension import Suspension

__all__ = ["Chat", "TurnOptions"]


class TurnOptions(TypedDict, total=False):
    """Options for a single turn; see `ExecutionOptions`."""

    bus: EventBus | None
    deadline: Deadline | None
    budget: Budget | None
    on_change: OnChange
    approver: Approver | None
    suspension: Suspension | None
    decisions: Mapping[str, Decision] | None
    adapter: ProviderAdapter | str | None
    visibility_overrides: Mapping[SectionPath, SectionVisibility] | None
    config: RunConfig | None
    settings: ModelSettings | None


class Chat[Out]:
    """A user's conversation with a prompt, one message at a time.

    `loop` is a `MainLoop`, or an adapter or the name of a model for one. A template is bound
    without params. Without a session, the chat creates one. The fields of `config` replace those of
    the loop's and the adapter's configs, and `settings` those of the loop, template and adapter.

    The chat stores its conversation in the session, replacing the previous version, so
    `session.snapshot().to_json()` saves the whole chat. To continue in another process, restore the
    session and create a chat with the same prompt. A session can keep one chat for each prompt.
    When the chat is created, it copies the prompt with its params and resources; to change them for
    later turns, bind `chat.prompt`.

    If an error, a cancellation or Ctrl-C stops a turn, or the turn is suspended, the chat keeps
    everything up to that point, and the next message continues from there. A snapshot taken during
    a turn also includes the turn. A session runs one turn at a time: sending a message while this
    chat, or another one in the session, is running a turn raises `ConcurrentRunError`.
    """

    @with_remedies
    def __init__(
        self,
        loop: MainLoop | ProviderAdapter | str,
        prompt: Prompt[Out] | PromptTemplate[Out],
        *,
        session: SessionProtocol | None = None,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        self.loop = loop if isinstance(loop, MainLoop) else MainLoop(loop)
        if isinstance(prompt, PromptTemplate):
            prompt = prompt.bind()
        if not isinstance(prompt, Prompt):
            raise TypeError(
                f"Chat takes a Prompt, such as template.bind(…) returns, got {prompt!r}"
            )
        self.prompt = copy(prompt)
        self.config = with_settings(config, settings)
        self.session: SessionProtocol = Session() if session is None else session
        prompt.declare_state(self.session)

    def __repr__(self) -> str:
        return f"<Chat with {self.prompt!r} in {self.session!r}>"

    def _repr_markdown_(self) -> str:
        """Renders the conversation as Markdown for notebooks."""
        conversation = self.conversation
        return "No messages yet." if conversation is None else markdown(conversation)

    @property
    def conversation(self) -> Conversation | None:
        """The conversation so far, including a stopped turn; `None` before the first turn."""
        saved = self._saved
        turn = unfinished_turn(self.session, self._name, saved)
        return (turn and turn.conversation) or saved

    @property
    def _name(self) -> tuple[str, str]:
        return self.prompt.ns, self.prompt.key

    @property
    def _saved(self) -> Conversation | None:
        """The conversation up to the last finished turn."""
        return saved_conversation(self.session, self._name)

    def send(
        self, message: str | Sequence[Part] | None = None, /, **options: Unpack[TurnOptions]
    ) -> Execution[Out]:
        """Sends the user's message and returns the model's answer.

        Without a message, a turn that was stopped by Ctrl-C or a cancellation continues from its
        log. After an error or a closed stream, the model answers again. Raises the same errors as
        `MainLoop.execute`.
        """
        with self._begin_turn(message, options) as arguments:
            return self.loop.execute(self.prompt, **arguments)

    async def send_async(
        self, message: str | Sequence[Part] | None = None, /, **options: Unpack[TurnOptions]
    ) -> Execution[Out]:
        """Like `send`, without blocking the event loop."""
        with self._begin_turn(message, options) as arguments:
            return await self.loop.execute_async(self.prompt, **arguments)

    def resume(
        self,
        suspension: Suspension,
        decisions: Mapping[str, Decision],
        /,
        **options: Unpack[TurnOptions],
    ) -> Execution[Out]:
        """Resumes a suspended turn, like `MainLoop.resume`.

        Raises `ValueError` if the chat has continued since the turn was suspended.
        """
        options |= {"suspension": suspension, "decisions": decisions}
        return self.send(**options)

    async def resume_async(
        self,
        suspension: Suspension,
        decisions: Mapping[str, Decision],
        /,
        **options: Unpack[TurnOptions],
    ) -> Execution[Out]:
        """Like `resume`, without blocking the event loop."""
        options |= {"suspension": suspension, "decisions": decisions}
        return await self.send_async(**options)

    @run_stream
    def stream(
        self, message: str | Sequence[Part] | None = None, /, **options: Unpack[TurnOptions]
    ) -> Generator[StreamEvent[Out]]:
        """Like `send`, but yields events as they happen; the last one contains the response.

        Leave its `with` block, or close it from any thread, to stop the turn early.
        """
        last: Completed[Out] | None = None
        with (
            self._begin_turn(message, options, streamed=True) as arguments,
            closing(self.loop.stream(self.prompt, **arguments)) as events,
        ):
            for event in events:
                if isinstance(event, Completed):
                    last = event
                else:
                    yield event
        if last is not None:
            yield last  # after the turn's end, because the reader may now send a message

    @async_run_stream
    async def stream_async(
        self, message: str | Sequence[Part] | None = None, /, **options: Unpack[TurnOptions]
    ) -> AsyncGenerator[StreamEvent[Out]]:
        """Like `stream`, without blocking the event loop."""
        last: Completed[Out] | None = None
        with self._begin_turn(message, options, streamed=True) as arguments:
            async with aclosing(self.loop.stream_async(self.prompt, **arguments)) as events:
                async for event in events:
                    if isinstance(event, Completed):
                        last = event
                    else:
                        yield event
        if last is not None:
            yield last

    @contextmanager
    def _begin_turn(
        self, message: str | Sequence[Part] | None, options: TurnOptions, *, streamed: bool = False
    ) -> Generator[ExecutionOptions]:
        """Reserves the session for one turn and yields the arguments for `MainLoop.execute`."""
        options["config"] = layered(options.get("config"), self.config)
        suspension, run = options.get("suspension"), RunToken(self.prompt.name, None, streamed)
        options["adapter"] = adapter = adapter_in(options, self.loop.adapter)
        stacks = [] if has_own_loop(adapter) else self.prompt.runs_with(self.session)
        with Reservation(run, stacks):
            saved = self._saved
            turn = unfinished_turn(self.session, self._name, saved)
            # restore the state before a call that was running when the snapshot was taken
            if turn is not None and turn.before_call is not None:
                self.session.restore(turn.before_call)
            stopped = turn.to_value() if turn else None
            conversation = (stopped and stopped.conversation) or saved
            if suspension is not None and _has_continued(conversation, suspension):
                raise ValueError(
                    "cannot resume the suspended turn because the chat has continued since; drop "
                    "the suspension, and send the request again if its calls should still run"
                )
            if message is not None or suspension is not None or not _can_continue(stopped, adapter):
                stopped = None
            yield ExecutionOptions(
                session=self.session,
                message=message,
                conversation=None if suspension or stopped else conversation,
                turn=ChatTurn(self._name, stopped),
                caller=run,
                save=None,
                sink=None,
                **options,
            )


def _can_continue(stopped: StoppedTurn | None, adapter: ProviderAdapter) -> bool:
    """Whether a run on this adapter can continue the log of a stopped turn."""
    if stopped is None or has_own_loop(adapter) or type(adapter) is NestedAdapter:
        return False
    return bool(stopped.log.entries) or stopped.log.message is not None


def _has_continued(conversation: Conversation | None, suspension: Suspension) -> bool:
    """Whether the user or the model has written anything since a turn was suspended."""
    suspended = suspension.conversation
    # the session is new, or its state is older than the turn
    if conversation is None or conversation == suspension.start:
        return False
    if suspended is None:
        return True
    return _written_messages(conversation) != _written_messages(suspended)


def _written_messages(conversation: Conversation) -> list[Message]:
    """Returns the messages that the engine did not add."""
    return [
        message
        for message in conversation.messages
        if (isinstance(message, UserMessage) and not message.repair)
        or (isinstance(message, AssistantMessage) and (message.text or message.usage.total_tokens))
    ]
