"""Commands that a test types at a terminal."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from support.commands import environment

__all__ = ["Terminal"]


class Terminal:
    """A process in a terminal: `keys` are typed, and `read_until` returns the screen."""

    # The child takes control of the terminal, so that Ctrl-C sends it a signal, even if the
    # tests run in the background of a shell that makes them ignore it.
    START = (
        "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.executable, [sys.executable, '-m', *sys.argv[1:]])"
    )

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        module: str = "weakincentives.cli",
        kind: str = "dumb",
    ) -> None:
        self._keyboard, screen = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.START, module, *arguments],
            cwd=folder,
            env=environment(TERM=kind, COLUMNS="200"),
            stdin=screen,
            stdout=screen,
            stderr=screen,
        )
        os.close(screen)
        self._unread = ""

    def keys(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def read_until(self, text: str, seconds: float = 60) -> str:
        """Returns the screen's text up to `text`, since the last call."""
        end = time.monotonic() + seconds
        while text not in self._unread:
            left = max(0, end - time.monotonic())
            if not select.select([self._keyboard], [], [], left)[0]:
                raise TimeoutError(f"{text!r} does not come after {self._unread!r}")
            chunk = self._read()
            assert chunk, f"the process ended before {text!r}: {self._unread!r}"
            self._unread += re.sub(r"\x1b\[\?2004[hl]|\r", "", chunk)
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def press_until(self, key: str, text: str) -> None:
        """Presses the key until it has an effect.

        Readline misses a signal between two keys, and Python one just before it waits.
        """
        for _ in range(6):
            self.keys(key)
            with suppress(TimeoutError):
                self.read_until(text, 10)
                return
        raise TimeoutError(f"{key!r} does not bring {text!r} after {self._unread!r}")

    def _read(self) -> str:
        try:
            return os.read(self._keyboard, 65536).decode()
        except OSError:  # raised on Linux when the other end is closed
            return ""

    def say(self, message: str) -> str:
        """Types a message; returns the screen's text up to the next prompt."""
        self.keys(f"{message}\n")
        return self.read_until("\n> ")

    def end(self) -> int:
        """Types Ctrl-D and returns the exit code."""
        self.keys("\x04")
        while self._read():
            pass
        return self._process.wait(60)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        os.close(self._keyboard)
