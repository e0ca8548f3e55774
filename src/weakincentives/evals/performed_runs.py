"""`Performer` performs one run with its log in a file, or reads how the file says that it ended."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from traceback import format_exception
from typing import Any
from weakref import WeakValueDictionary

from .. import serde
from ..cancellation import as_exception
from ..errors import WeakIncentivesError
from ..evaluation import errors
from ..evaluation.approval import Approver
from ..evaluation.config import RunConfig
from ..evaluation.errors import BudgetExceededError, PromptEvaluationError
from ..evaluation.logged_run import ACCEPT, LoggedCall, LoggedRun, Rendered, usage_of
from ..evaluation.main_loop import ExecutionOptions, MainLoop
from ..evaluation.stored_log import apply_changes
from ..filesystem import Filesystem
from ..filesystem.undo import VersionedFilesystem
from ..inspection.secrets import mask_secrets
from ..limits import RunUsage
from ..model_settings import ModelSettings
from ..prompt.output import parse_output
from ..prompt.template import AnyPrompt
from ..record_types import AnyType
from ..runtime.session import Session
from ..serde.json_types import AnyValue
from .cases import Case
from .durable_target import DurableTarget, EndedRun
from .keys import names_of_fields
from .pacing import OVER_BUDGET, REFUSALS, PacedAdapter
from .results import Outcome
from .run_logs import (
    RUN_FAILURES,
    BusyRun,
    Line,
    RunFile,
    RunSink,
    StoredEnd,
    is_final,
    stored_end,
)
from .scores import EvalCall, EvalRun

__all__ = ["Performed", "Performer", "Task", "apart"]

_POLL = 0.2  # seconds between two looks at a run that another process performs
_GRACE = 0.5  # seconds for a run to end after it was cancelled
_MAX_ERROR = 4_000  # characters
_CHANGEABLE = ("message", "params", "expected", "state", "files", "metadata")  # of a case
_FIXED = frozenset([str, int, float, bool, bytes, type(None)])
_STORED = ("phase", "code", "provider", "status", "remedy")  # of an error, with its message


@dataclass(slots=True, kw_only=True)
class Task:
    """One run that is to be performed, by `workers` if there are any.

    `description` is the first line of its file.
    """

    key: str
    description: Line
    prompt: AnyPrompt
    adapter: PacedAdapter
    case: Case
    settings: ModelSettings | None = None
    config: RunConfig | None = None
    timeout: float | None = None
    approver: Approver | None = None
    workers: DurableTarget | None = None


@dataclass(slots=True, kw_only=True)
class Performed:
    """A run that has been performed, or that was found in its file.

    `stored` are the scores in the file, by the key of their evaluator.
    """

    outcome: Outcome
    error: str = ""
    usage: RunUsage = field(default_factory=RunUsage)
    seconds: float = 0.0
    is_reused: bool = False
    stored: Mapping[str, Line] = field(default_factory=dict[str, Line])
    file: RunFile | None = None
    run: EvalRun[Any] | None = None
    resources: AsyncExitStack | None = None  # of a run that was found, once it is restored


class Performer:
    """Performs runs, whose files are in one folder; `known` are the names of those that it had."""

    def __init__(self, folder: Path, types: Sequence[type[object]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # a `str`, because a `Path` keeps each of its names in memory
        self._folder = f"{folder}{os.sep}"
        self._types = types
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        self.known = {entry.name for entry in os.scandir(folder)}

    @staticmethod
    def has_files(prompt: AnyPrompt) -> bool:
        """Whether the prompt has a filesystem for a case's files."""
        return Filesystem in prompt.resources.by_kind

    def forget(self, key: str) -> None:
        """Removes a run, so that it is performed again."""
        with suppress(OSError):
            os.unlink(f"{self._folder}{key}.jsonl")  # noqa: PTH108 - of a `str`

    @asynccontextmanager
    async def performing(self, task: Task) -> AsyncGenerator[Performed]:
        """Yields a run after it has ended, with its resources still open.

        A run that has ended before is not restored; see `restored`.
        """
        # another variant can have the same key
        lock = self._locks.setdefault(task.key, asyncio.Lock())
        async with lock:
            name = f"{task.key}.jsonl"
            path = self._folder + name
            with RunFile(path, task.description) as file:
                end = stored_end(path) if name in self.known else None
                while end is None:
                    try:
                        file.open()
                        break
                    except BusyRun:
                        await asyncio.sleep(_POLL)
                if file.ended is not None:  # another process has performed and scored it
                    end = stored_end(path)
                if end is not None:
                    async with AsyncExitStack() as resources:
                        yield _reused(file, end, resources)
                    return
                async with task.prompt.resources:
                    yield await self._perform(task, file)

    async def _perform(self, task: Task, file: RunFile) -> Performed:
        session, sink = self._begin(task, file)
        refused: list[BudgetExceededError] = []
        REFUSALS.set(refused)
        if task.workers is None:
            ended = await self._execute(task, session, sink)
        else:
            ended = await task.workers.perform(
                task.key, task.case, session, task.adapter, task.timeout
            )
            file.copy(ended.rows)
            sink.load(LoggedRun())
            if ended.session is not None:
                session.restore(ended.session.snapshot())
        log, error = sink.log, ended.error
        if refused and (len(refused) > 1 or not isinstance(error, BudgetExceededError)):
            error = refused[0]  # a tool's nested run was not allowed, and its answer is in the log
            file.clear()
        usage = usage_of(log, task.adapter.model)
        if task.workers is not None:
            usage = task.adapter.priced(usage)
        outcome = _outcome(error)
        described = "" if error is None else _describe(error, task.timeout)
        if outcome == "answered" or is_final(error):
            if ended.rows:
                file.append(task.key, 1, ended.rows, first=True)
            file.end(
                {"text": ended.text, "state": sink.unstored_state()},
                {
                    "outcome": outcome,
                    "error": described,
                    "usage": serde.dump(usage),
                    "seconds": round(ended.seconds, 6),
                    **_stored(error),
                },
            )
        return Performed(
            outcome=outcome,
            error=described,
            usage=usage,
            seconds=ended.seconds,
            is_reused=ended.is_reused,
            file=file,
            run=_to_run(
                log,
                session,
                file.files,
                text=ended.text,
                output=ended.output,
                usage=usage,
                seconds=ended.seconds,
                error=error,
            ),
        )

    @staticmethod
    async def _execute(task: Task, session: Session, sink: RunSink) -> EndedRun:
        """Performs a run in this process."""
        loop = MainLoop(task.adapter)
        options = ExecutionOptions(
            session=session,
            message=task.case.message,
            settings=task.settings,
            config=task.config,
            approver=task.approver,
            sink=sink,
        )
        text, output, error = "", None, None
        started = perf_counter()
        try:
            running = loop.execute_async(task.prompt, **options)
            if task.timeout is None:
                execution = await running
            else:
                execution = await _within(asyncio.ensure_future(running), task.timeout)
            text, output = execution.text, execution.output
        except BaseException as raised:
            error = as_exception(raised)
        return EndedRun(text=text, output=output, error=error, seconds=perf_counter() - started)

    async def restored(self, task: Task, performed: Performed) -> EvalRun[Any]:
        """Returns a run for evaluators, read from its file if it was not performed now."""
        if performed.run is not None:
            return performed.run
        file, resources = performed.file, performed.resources
        assert file is not None  # a reused run has a file
        assert resources is not None
        await resources.enter_async_context(task.prompt.resources)
        while not file.is_open:
            try:
                file.open()
            except BusyRun:  # another process scores it
                await asyncio.sleep(_POLL)
        if file.ended is None:  # its file was damaged, so it has been performed again
            again = await self._perform(task, file)
            assert again.run is not None
            performed.outcome, performed.error = again.outcome, again.error
            performed.usage, performed.seconds = again.usage, again.seconds
            performed.is_reused, performed.run = False, again.run
            return again.run
        session, sink = self._begin(task, file)
        log = sink.load(LoggedRun())
        apply_changes(session, file.left.get("state", {}), sink.types)
        text: str = file.left.get("text", "")
        declared = task.prompt.structured_output
        is_answered = performed.outcome == "answered"
        performed.run = _to_run(
            log,
            session,
            file.files,
            text=text,
            output=parse_output(text, declared)[0] if declared and is_answered else None,
            usage=performed.usage,
            seconds=performed.seconds,
            error=None if is_answered else _raised(performed.error, file.ended),
        )
        return performed.run

    def _begin(self, task: Task, file: RunFile) -> tuple[Session, RunSink]:
        """Returns the session and the sink of a run, with the case's state and files."""
        agent = None if task.workers is None else task.workers.installed
        session = Session(session_id=task.key) if agent is None else agent.session(task.key)
        types = self._types if agent is None else (*self._types, *agent.types)
        task.prompt.declare_state(session)
        state: dict[type[object], list[object]] = {}
        for value in task.case.state:
            state.setdefault(type(value), []).append(value)
        for kind, values in state.items():
            session[kind].seed(*values)
        if self.has_files(task.prompt):
            files = task.prompt.resources.get(Filesystem)
            if isinstance(files, VersionedFilesystem):
                file.files = files
                for path, content in task.case.files.items():
                    files.write_bytes(path, content)
                file.restore_files()
        return session, RunSink(file, task.key, "", session, types)


def _reused(file: RunFile, end: StoredEnd, resources: AsyncExitStack) -> Performed:
    ended = end.ended
    return Performed(
        outcome=ended["outcome"],
        error=ended["error"],
        usage=ended["usage"],
        seconds=ended["seconds"],
        is_reused=True,
        stored=end.scores,
        file=file,
        resources=resources,
    )


def _stored(error: Exception | None) -> Line:
    """Returns what the end of a run has of its error, besides the description."""
    if not isinstance(error, PromptEvaluationError):
        return {}
    values = {name: getattr(error, name) for name in _STORED}
    return {"failure": {**values, "message": mask_secrets(error.message)[-_MAX_ERROR:]}}


def _raised(described: str, ended: Line) -> Exception:
    """Returns the error of a stored run, with the type and the code that it had."""
    kind = vars(errors).get(described.partition(":")[0])
    if "failure" in ended and isinstance(kind, type) and issubclass(kind, PromptEvaluationError):
        return kind(**ended["failure"])
    return WeakIncentivesError(described)


async def _within[T](running: asyncio.Task[T], seconds: float | None) -> T:
    """Returns the result of a task, which is abandoned if it cannot be cancelled.

    Raises `TimeoutError`. A plain function that blocks in a thread cannot be cancelled.
    """
    try:
        done, _ = await asyncio.wait({running}, timeout=seconds)
        if done:
            return running.result()
        running.cancel()
        await asyncio.wait({running}, timeout=_GRACE)
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.wait({running}, timeout=_GRACE)
        raise
    raise TimeoutError


def _outcome(error: Exception | None) -> Outcome:
    match error:
        case None:
            return "answered"
        case PromptEvaluationError(code=code) if code == OVER_BUDGET:
            return "unrun"
        case PromptEvaluationError(phase="request" | "response", code=code):
            return "failed" if code in RUN_FAILURES else "provider"
        case _:
            return "failed"


def _describe(error: Exception, timeout: float | None) -> str:
    if isinstance(error, TimeoutError):
        return f"the run did not end within the timeout of {timeout} seconds"
    if isinstance(error, WeakIncentivesError):
        text = f"{type(error).__name__}: {error}"
    else:
        text = "".join(format_exception(error))
    return mask_secrets(text)[-_MAX_ERROR:]


def _to_run(
    log: LoggedRun,
    session: Session,
    files: Filesystem | None,
    *,
    text: str,
    output: object,
    usage: RunUsage,
    seconds: float,
    error: Exception | None,
) -> EvalRun[Any]:
    calls: list[EvalCall] = []
    opened: dict[str, None] = {}
    for entry in log.entries:
        if isinstance(entry, Rendered):
            opened.update(dict.fromkeys(entry.section_keys))
        elif isinstance(entry, LoggedCall) and entry.call.name != ACCEPT:
            answer = entry.answer
            calls.append(
                EvalCall(
                    name=entry.call.name,
                    arguments=_arguments(entry.call.arguments),
                    text=answer.content,
                    success=answer.success,
                )
            )
            if entry.sections is not None:
                shown = [section.path for section in entry.sections.shown]
                opened.update({".".join(path): None for path in (*shown, *entry.sections.opened)})
    return EvalRun(
        output=output,
        text=text,
        session=session,
        files=files,
        calls=tuple(calls),
        opened=tuple(opened),
        log=log,
        usage=usage,
        seconds=seconds,
        error=error,
    )


def apart(case: Case, run: EvalRun[Any]) -> tuple[Case, EvalRun[Any]]:
    """Returns a case and a run for one evaluator, which cannot change others' cases and outputs."""
    given: AnyValue = {name: _apart(getattr(case, name)) for name in _CHANGEABLE}
    output = _apart(run.output)
    return replace(case, **given), run if output is run.output else replace(run, output=output)


def _apart(value: AnyValue) -> AnyValue:
    """Returns a value without anything that could be changed in the given one."""
    kind = type(value)
    if kind in _FIXED or _is_fixed(value):
        return value
    return {key: _apart(item) for key, item in value.items()} if kind is dict else deepcopy(value)


def _is_fixed(value: AnyValue) -> bool:
    if isinstance(value, tuple):
        return all(type(item) in _FIXED or _is_fixed(item) for item in value)
    kind: AnyType = type(value)
    params: AnyValue = getattr(kind, "__dataclass_params__", None)
    if params is None or not params.frozen:
        return kind in _FIXED
    return _is_fixed(tuple([getattr(value, name) for name in names_of_fields(kind)]))


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
