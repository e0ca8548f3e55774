"""The CLI's process: its variables, its start, and its end, with all its child processes.

The SDK passes all of this process's variables to the CLI, and stops only the CLI itself. Because
the SDK starts processes through the event loop, `CLIProcess.loop` creates an event loop that starts
the CLI according to this module's rules.
"""

import asyncio
import logging
import os
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import uuid4

from ...evaluation.errors import PromptEvaluationError
from ...redaction import Redactor
from ..provider_errors import error_from_request
from .turns import PROVIDER

__all__ = ["CLIProcess", "StderrTail", "error_from_cli"]

_log = logging.getLogger(__name__)

_MARK = "WINK_RUN"
_KEY_DESCRIPTOR = "CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR"  # the CLI reads its key from this, once
_INHERITED = (
    "LANG LANGUAGE LOGNAME PATH SHELL TERM TZ USER"
    " ALL_PROXY HTTP_PROXY HTTPS_PROXY NO_PROXY all_proxy http_proxy https_proxy no_proxy"
    " AWS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE"
    " SSL_CERT_DIR SSL_CERT_FILE"
)
_LAST_LINES = 10
_NO_STDERR = "\nError output: Check stderr output for details"  # an SDK hint that does not help
_MAX_LAST_WORDS = 300


# Any: the arguments and results of asyncio's `subprocess_exec`, which are passed through.
type AnyAsyncio = Any


class CLIProcess:
    """One process of the CLI, from its start to its end.

    `env` contains the CLI's own variables. From this process's other variables, an isolated CLI
    gets only those for the language, paths, proxies and certificates. The CLI reads `key` from a
    pipe, because its tools could read a variable.
    """

    def __init__(self, env: Mapping[str, str], *, key: str | None, isolated: bool) -> None:
        self._env = env
        self._key = key
        self._isolated = isolated
        self._mark = uuid4().hex
        self._transport: asyncio.SubprocessTransport | None = None
        self._seen: set[int] = set()

    def loop(self) -> asyncio.AbstractEventLoop:
        """Returns an event loop that starts the CLI as its first process."""
        return _Loop(self)

    @property
    def started(self) -> bool:
        """Whether the CLI has been started in the event loop."""
        return self._transport is not None

    async def start(self, start: Callable[..., AnyAsyncio], options: AnyAsyncio) -> AnyAsyncio:
        """Calls `start` for the CLI, adding our variables and the key to the SDK's `options`."""
        options |= {"env": self._variables(options["env"]), "start_new_session": True}
        if self._key is None:
            self._transport, protocol = await start(**options)
            return self._transport, protocol
        reading, writing = os.pipe()
        try:
            os.write(writing, self._key.encode())
            os.close(writing)
            options["env"][_KEY_DESCRIPTOR] = str(reading)
            options["pass_fds"] = [*options.get("pass_fds", ()), reading]
            self._transport, protocol = await start(**options)
        finally:
            os.close(reading)
        return self._transport, protocol

    def _variables(self, merged: Mapping[str, str]) -> dict[str, str]:
        """Returns the CLI's variables; `merged` contains the SDK's and all of this process's."""

        def passes(name: str, value: str) -> bool:
            inherited = name in _INHERITED.split() or name.startswith("LC_")
            return inherited or name in self._env or os.environ.get(name) != value

        variables = {
            name: value
            for name, value in merged.items()
            if not self._isolated or passes(name, value)
        }
        return variables | {_MARK: self._mark}

    def find(self) -> set[int]:
        """Returns the process ids of the CLI and its descendants.

        All of them inherit a mark in their environment. If `/proc` does not reveal environments, as
        on macOS, the search follows parent ids. It then finds a process whose parent has ended only
        if an earlier call found that process.
        """
        parents = dict(_parents())
        mark = f"{_MARK}={self._mark}".encode()
        pids = {pid for pid in parents if pid in self._seen or mark in _environment(pid)}
        if self._transport is not None and self._transport.get_returncode() is None:
            pids |= {self._transport.get_pid()} & parents.keys()
        while children := {pid for pid, parent in parents.items() if parent in pids} - pids:
            pids |= children
        self._seen = pids
        return pids

    def kill(self) -> bool:
        """Kills the processes that `find` returns; returns whether there were any.

        A process can start others in the meantime, so call this method until it returns `False`.
        """
        pids = self.find()
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, SIGKILL)
        return bool(pids)

    def close(self) -> None:
        """Closes the pipes to the CLI; the SDK leaves unread pipes open."""
        if self._transport is not None:
            self._transport.close()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that uses `CLIProcess.start` to start its first process."""

    def __init__(self, process: CLIProcess) -> None:
        super().__init__()
        self._process = process

    async def subprocess_exec(
        self, protocol_factory: AnyAsyncio, *command: AnyAsyncio, **options: AnyAsyncio
    ) -> AnyAsyncio:
        start = partial(super().subprocess_exec, protocol_factory, *command)
        if self._process.started:
            return await start(**options)
        return await self._process.start(start, options)


class StderrTail:
    """Keeps the last lines of the CLI's stderr, redacted; `listener` is called with every line."""

    def __init__(self, redact: Redactor, listener: Callable[[str], None] | None = None) -> None:
        self._redact = redact
        self._listener = listener
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)

    def __call__(self, line: str) -> None:
        line = self._redact(line)
        self._lines.append(line)
        _log.debug(line)
        if self._listener is not None:
            self._listener(line)

    def __str__(self) -> str:
        return "\n".join(self._lines)[-_MAX_LAST_WORDS:]


def _parents() -> Iterator[tuple[int, int]]:
    """Yields the id of each running process and its parent's id."""
    if not Path("/proc/self/stat").exists():
        command = ["ps", "-A", "-o", "pid=,ppid=,stat="]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - constant
        for line in listed.stdout.splitlines():
            pid, parent, state = line.split(maxsplit=2)
            if not state.startswith("Z"):
                yield int(pid), int(parent)
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            stat = (folder / "stat").read_text(errors="replace")
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state not in "ZX":
                yield int(folder.name), int(parent)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # the process has ended, belongs to another user, or is hidden by this system
        return []


def error_from_cli(error: Exception, last_lines: str) -> PromptEvaluationError:
    """Returns an error with the SDK's text and the last lines of the CLI's stderr."""
    reason = f"{type(error).__name__}: {error}".replace(_NO_STDERR, "")
    if isinstance(error, TimeoutError):
        return error_from_request(PROVIDER, "timeout", "the model did not answer in time")
    if "maximum buffer size" in reason:
        return error_from_request(PROVIDER, "reply_too_large", "a message of the CLI is too large")
    if last_lines:
        reason = f"{reason}; the CLI wrote: {last_lines}"
    remedy = "check the adapter's options and the CLI"
    return error_from_request(PROVIDER, "client_error", reason, remedy)
