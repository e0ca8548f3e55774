"""Creates the log of a run, or continues the log of a suspended or stopped run."""

from ..content import references_in, to_content
from ..prompt.template import AnyPrompt
from ..runtime.events import new_id
from .adapter import ExecutionOptions, ParentRun, session_in
from .logged_run import LoggedRun
from .messages import UserMessage, keep_media, sendable_content
from .run_log import LogSink, RunLog
from .suspension import Suspension, check_resumable

__all__ = ["new_log", "with_record"]


def with_record(options: ExecutionOptions) -> ExecutionOptions:
    """Returns the options, or the original ones if a suspended or stopped run continues.

    Raises `TypeError` for a value that is not a suspension, and `ValueError` for options that are
    allowed only for a new run.
    """
    suspension, turn = options.get("suspension"), options.get("turn")
    if suspension is not None:
        if not isinstance(suspension, Suspension):
            raise TypeError(
                "suspension must be the suspension of a RunSuspended error, got "
                f"{suspension!r:.200}"
            )
        for name in ("message", "conversation"):
            if options.get(name) is not None:
                raise ValueError(
                    f"{name}= cannot be passed when resuming: the suspended run already has its own"
                )
        log = suspension.log
    elif turn is not None and turn.stopped is not None:
        log = turn.stopped.log
    else:
        return options
    return {
        **options,
        "message": log.message,
        "conversation": log.conversation,
        "on_change": log.on_change,
    }


def new_log(prompt: AnyPrompt, options: ExecutionOptions, parent: ParentRun) -> RunLog:
    """Returns the log of a run, with the record of the run that it continues, if any."""
    if parent.call is not None:
        return parent.call.begin(prompt)
    name, sink = (prompt.ns, prompt.key), options.get("sink")
    if (suspension := options.get("suspension")) is not None:
        decisions = options.get("decisions") or {}
        record = check_resumable(prompt, suspension, decisions, session_in(options))
        if sink is not None:
            record = sink.load(record)
        return RunLog(suspension.run_id, name, record, sink=sink)
    if (turn := options.get("turn")) and (stopped := turn.stopped):
        return RunLog(stopped.run_id, name, stopped.log)
    log = RunLog(new_id(), name) if sink is None else _stored_log(name, sink)
    if (message := options.get("message")) is not None:
        content = sendable_content(to_content(message))
        if options.get("turn"):  # it may be stopped before the message is in the conversation
            keep_media(UserMessage(content), session_in(options).content)
        log.message = references_in(content)
    log.conversation = options.get("conversation")
    log.on_change = options.get("on_change", "append")
    return log


def _stored_log(name: tuple[str, str], sink: LogSink) -> RunLog:
    return RunLog(sink.run_id, name, sink.load(LoggedRun()), sink=sink)
