"""Chats that run in this process: each has one run at a time and any number of tabs."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from uuid import uuid4

from ag_ui import core as ag_ui
from ag_ui.encoder import EventEncoder
from pydantic import TypeAdapter

from weakincentives import Chat, MainLoop, RunSuspended, Session
from weakincentives.contrib.ag_ui import AgUiRun
from weakincentives.evaluation import Decision, StreamEvent, Suspension, TurnOptions
from weakincentives.prompt.template import AnyPrompt

from .prompt import Order
from .store import ChatStore, StaleChatError, Status

__all__ = ["BusyError", "LiveChat"]

_MESSAGES: TypeAdapter[list[ag_ui.Message]] = TypeAdapter(list[ag_ui.Message])
_ENCODER = EventEncoder()
_COMMENT = ": \n\n"
_HEARTBEAT = 15  # seconds; a proxy may close a silent connection
_LONGEST_QUEUE = 10_000  # events; a tab that reads slower must connect again
_THREAD = "chat"  # the browser's cookie identifies the chat

log = logging.getLogger(__name__)


class BusyError(Exception):
    """The chat cannot do that now."""


class LiveChat:
    """One chat in this process."""

    def __init__(
        self, secret: str, store: ChatStore, loop: MainLoop, prompt: Callable[[], AnyPrompt]
    ) -> None:
        self._secret, self._store, self._loop, self._prompt = secret, store, loop, prompt
        self._task: asyncio.Task[None] | None = None
        self._frames: list[str] = []  # of the current run
        self._tabs: set[asyncio.Queue[str]] = set()
        self._suspension = ""  # of the last run, if it is suspended
        self._load()

    def _load(self) -> None:
        self._stored = self._store.load(self._secret)
        if self._stored.status == "running":  # by a process that has ended
            status: Status = "waiting" if self._stored.suspension else "stopped"
            self._stored = replace(self._stored, status=status)
        self._session = Session()
        if snapshot := self._stored.snapshot:
            self._session.restore(self._session.parse_snapshot(snapshot, types=[Order]))
        self._chat = Chat(self._loop, self._prompt(), session=self._session)

    @property
    def idle(self) -> bool:
        """Whether no tab follows the chat and no run is active."""
        return not self._tabs and self._task is None

    def send(self, message: ag_ui.UserMessage, text: str) -> None:
        """Starts a run that answers the user's message. Raises `BusyError` and `StaleChatError`."""
        known = {earlier.id for earlier in self._messages()}
        if message.id in known:  # sent again after a failure of the network
            message = message.model_copy(update={"id": uuid4().hex})
        pending = "\n\n".join(filter(None, [self._stored.pending, text]))
        self._start([*self._messages(), message], pending)

    def go_on(self) -> None:
        """Continues a stopped turn. Raises `BusyError` and `StaleChatError`."""
        if self._stored.status in ("stopped", "failed"):
            self._start(self._messages(), self._stored.pending)

    def decide(self, call_id: str, digest: str, decision: Decision) -> None:
        """Resumes a suspended turn with the user's decision on the preview with this digest.

        Raises `BusyError` and `StaleChatError`.
        """
        stored = self._stored.suspension
        suspension = Suspension.from_json(stored) if stored else None
        pending = suspension.pending if suspension else ()
        # a second click may arrive when the call is pending again, with different effects
        if suspension is None or (call_id, digest) not in [
            (preview.call_id, preview.digest) for preview in pending
        ]:
            raise BusyError("That has been decided already.")
        self._start(
            self._messages(), "", TurnOptions(suspension=suspension, decisions={call_id: decision})
        )

    async def stop(self) -> None:
        """Stops the run. The chat keeps everything up to that point."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def follow(self, *, replay: bool = True) -> AsyncGenerator[str]:
        """Yields the chat as server-sent events: the chat so far, then each event as it happens.

        Without `replay`, yields only the current run's events, until the run ends.
        """
        queue: asyncio.Queue[str] = asyncio.Queue(_LONGEST_QUEUE)
        # Nothing is awaited from here to `add`, so the tab gets each event exactly once.
        frames = [*(self._replay() if replay else ()), *self._frames]
        self._tabs.add(queue)
        try:
            for frame in frames:
                yield frame
            while not queue.empty() or (queue in self._tabs and (replay or self._task)):
                try:
                    yield await asyncio.wait_for(queue.get(), _HEARTBEAT)
                except TimeoutError:
                    yield _COMMENT
        finally:
            self._tabs.discard(queue)

    def _messages(self) -> list[ag_ui.Message]:
        return _MESSAGES.validate_json(self._stored.messages)

    def _replay(self) -> list[str]:
        """Returns the chat up to the current run, as a separate run."""
        run_id, status = uuid4().hex, self._stored.status
        events: list[ag_ui.Event] = [
            ag_ui.RunStartedEvent(thread_id=_THREAD, run_id=run_id, protocol_version="1.0"),
            ag_ui.MessagesSnapshotEvent(messages=self._messages()),
            ag_ui.StateSnapshotEvent(snapshot={"status": status}),
            ag_ui.RunFinishedEvent(thread_id=_THREAD, run_id=run_id),
        ]
        return [_ENCODER.encode(event) for event in events]

    def _start(
        self, messages: list[ag_ui.Message], pending: str, options: TurnOptions | None = None
    ) -> None:
        if self._task is not None:
            raise BusyError("The last answer is still being written. Stop it, or wait.")
        if self._stored.suspension and options is None:
            raise BusyError("A call waits for you: approve or deny it first.")
        try:
            self._save("running", messages, pending)
        except StaleChatError:
            self._load()
            raise
        request = ag_ui.RunAgentInput(thread_id=_THREAD, run_id=uuid4().hex, messages=messages)
        self._task = asyncio.create_task(self._run(AgUiRun(request), pending, options or {}))
        self._task.add_done_callback(self._finish)

    async def _turn(
        self, message: str | None, options: TurnOptions
    ) -> AsyncGenerator[StreamEvent[object]]:
        self._suspension = ""
        try:
            async with self._chat.stream_async(message, **options) as events:
                async for event in events:
                    yield event
        except RunSuspended as error:
            self._suspension = error.suspension.to_json()
            raise

    async def _run(self, run: AgUiRun, pending: str, options: TurnOptions) -> None:
        before = self._chat.conversation
        async for event in run.stream_async(self._turn(pending or None, options)):
            if run.ended:  # stored before any tab is told
                said = self._chat.conversation is not before
                self._save(_status(event), run.messages, "" if said else pending)
            self._publish(_ENCODER.encode(event))
            if isinstance(event, ag_ui.RunStartedEvent):  # the other tabs lack the new message
                messages = ag_ui.MessagesSnapshotEvent(messages=run.messages)
                self._publish(_ENCODER.encode(messages))

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RunSuspended):
            log.error("a run failed", exc_info=error)
        if self._stored.status == "running":  # the run's result could not be stored
            self._load()
            self._publish(_ENCODER.encode(ag_ui.RunErrorEvent(message="Please reload the page.")))
        self._publish(_COMMENT)  # wakes clients that follow only this run
        self._frames = []

    def _publish(self, frame: str) -> None:
        self._frames.append(frame)
        for tab in list(self._tabs):
            if tab.full():
                self._tabs.discard(tab)
            else:
                tab.put_nowait(frame)

    def _save(self, status: Status, messages: list[ag_ui.Message], pending: str) -> None:
        chat = replace(
            self._stored,
            status=status,
            snapshot=self._session.snapshot().to_json(),
            messages=_MESSAGES.dump_json(messages, by_alias=True).decode(),
            pending=pending,
            suspension=self._stored.suspension if status == "running" else self._suspension,
        )
        self._stored = self._store.save(self._secret, chat)


def _status(event: ag_ui.Event) -> Status:
    """Returns how a run ended, judging by its last event."""
    match event:
        case ag_ui.RunFinishedEvent(outcome=ag_ui.RunFinishedSuccessOutcome()):
            return "ready"
        case ag_ui.RunFinishedEvent(outcome=ag_ui.RunFinishedInterruptOutcome()):
            return "waiting"
        case ag_ui.RunFinishedEvent():
            return "stopped"
        case _:
            return "failed"
