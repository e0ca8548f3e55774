"""`ChatTurn` represents a chat's turn in the session until the turn's conversation is saved.

It is added to the session at the turn's first step, and refers to the run's log. An interrupt can
therefore stop the turn at any moment without having to save anything.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..protocols import SessionProtocol
from ..runtime.session.snapshots import SessionSnapshot, library_state, live_types, stored_as
from .conversation import Conversation
from .logged_run import LoggedRun
from .run_log import RunLog

__all__ = ["ChatTurn", "StoppedTurn", "saved_conversation", "unfinished_turn"]

type SoFar = Callable[[int | None], Conversation | None]
"""Returns the conversation after the given number of log entries, or after all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedTurn:
    """An unfinished turn as a value: the conversation so far, and the log to continue from.

    `follows` contains the number of messages and tokens in the saved conversation before the turn.
    """

    run_id: str
    ns: str
    key: str
    follows: tuple[int, int]
    conversation: Conversation | None
    log: LoggedRun


@library_state
class ChatTurn:
    """A turn of the chat with the prompt called `name` (its ns and key).

    It continues the `stopped` turn, if given. `begin` adds the turn to the session, after the
    `latest` conversation.
    """

    def __init__(self, name: tuple[str, str], stopped: StoppedTurn | None = None) -> None:
        self.name, self.stopped = name, stopped
        self.latest: Conversation | None = None
        self._follows = _size(None)
        self._run: tuple[RunLog, SoFar] | None = None
        self._size: int | None = None  # the length of the log in a snapshot
        self.before_call: SessionSnapshot | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Copies the turn's current value, without the run."""
        return ChatTurn, (self.name, self.to_value())

    @property
    def is_running(self) -> bool:
        """Whether the log can still grow."""
        return self._run is not None and self._size is None

    def fixed(self) -> "ChatTurn":
        """Returns the turn as it is now, without a call that is still running."""
        if (run := self._run) is None or self._size is not None:
            return self
        turn = ChatTurn(self.name)
        turn.stopped, turn.latest, turn._follows, turn._run = (
            self.stopped,
            self.latest,
            self._follows,
            run,
        )
        size = turn._size = len(run[0].entries)
        before = run[0].before_call
        turn.before_call = before[1] if before and before[0] == size else None
        return turn

    def begin(self, session: SessionProtocol, log: RunLog, so_far: SoFar) -> None:
        """Replaces the session's earlier turn; `so_far` returns the conversation so far."""
        saved = saved_conversation(session, self.name)
        self._follows = _size(saved)
        self.latest = self.stopped.conversation if self.stopped else saved
        self._run = log, so_far
        log.keeps_changes = log.is_turn = True
        turns = session[ChatTurn]
        turns.seed(*turns.where(lambda other: other.name != self.name), self)

    def end(self, session: SessionProtocol, conversation: Conversation | None) -> None:
        """Saves the turn's conversation, replacing the earlier one."""
        conversations = session[Conversation]
        if conversation is not None:
            others = conversations.where(lambda other: (other.ns, other.key) != self.name)
            conversations.seed(*others, conversation)
        self._run = self.stopped = None
        session[ChatTurn].clear(lambda other: other is self)

    def settle(self, session: SessionProtocol) -> None:
        """Replaces the reference to the run with the turn's value."""
        self._follows = _size(saved_conversation(session, self.name))
        self.stopped = self.to_value()
        self._run = None

    def to_value(self) -> StoppedTurn | None:
        """Returns the turn as it is now; `None` once its conversation is saved."""
        if (run := self._run) is None:
            return self.stopped
        (ns, key), (log, so_far) = self.name, run
        return StoppedTurn(
            run_id=log.run_id,
            ns=ns,
            key=key,
            follows=self._follows,
            conversation=so_far(self._size),
            log=log.to_value(self._size),
        )

    def continues(self, saved: Conversation | None) -> bool:
        """Whether the turn follows the `saved` conversation and has not ended."""
        if self.is_running:  # a call may have restored an older snapshot
            return True
        follows = self.stopped.follows if self._run is None and self.stopped else self._follows
        return (self._run or self.stopped) is not None and follows == _size(saved)

    @property
    def conversation(self) -> Conversation | None:
        """The conversation so far, if the turn has one."""
        if (run := self._run) is not None:
            return run[1](self._size)
        return None if self.stopped is None else self.stopped.conversation


def saved_conversation(session: SessionProtocol, name: tuple[str, str]) -> Conversation | None:
    """Returns the saved conversation with the prompt that has this ns and key, if any."""
    for conversation in reversed(session[Conversation].all()):
        if (conversation.ns, conversation.key) == name:
            return conversation
    return None


def unfinished_turn(
    session: SessionProtocol, name: tuple[str, str], saved: Conversation | None
) -> ChatTurn | None:
    """Returns the unfinished turn that follows a chat's `saved` conversation, if there is one."""
    for turn in session[ChatTurn]:
        if turn.name == name and turn.continues(saved):
            return turn
    return None


def _size(saved: Conversation | None) -> tuple[int, int]:
    return (len(saved.messages), saved.usage.total_tokens) if saved else (0, 0)


def _read(stopped: StoppedTurn) -> ChatTurn:
    return ChatTurn((stopped.ns, stopped.key), stopped)


stored_as(ChatTurn, StoppedTurn, ChatTurn.to_value, _read)
live_types.add(ChatTurn)
