"""Runs pytest on the CPython of Pyodide, compiled to WebAssembly; `start.mjs` calls `main` there.

WebAssembly has no threads, processes or sockets. A test that fails after it requested one of them,
or a package that is not installed there, is reported as skipped. Tests that need something else are
listed in `tests/not-in-wasm.txt`, each below the reason. Any other failure fails the run, as does
an entry in the list that names nothing.
"""

import asyncio
import gc
import platform
import subprocess
import sys
import time
import warnings
from asyncio.base_events import BaseEventLoop
from collections import Counter
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_LIST = Path("tests/not-in-wasm.txt")
_NOT_INSTALLED = {
    *("ag_ui", "aiohttp", "anthropic", "anyio", "bm25s", "boto3", "dbos", "genai_prices"),
    *("git", "httpx", "httpx2", "jsonschema", "jsonschema_rs", "litellm", "markdown_it", "mcp"),
    *("mcp_types", "nbclient", "nbformat", "openai", "opentelemetry", "playwright", "resource"),
    *("rich", "skills_ref", "typer", "uvloop", "yaml"),
}
"""Modules that tests import, but that have no wheel for WebAssembly or need sockets."""


class _Sleep:
    """Replaces the selector of an event loop that neither a thread nor a socket can wake."""

    def select(self, timeout: float | None) -> list[Any]:  # Any: the list is always empty
        if timeout is None:
            raise RuntimeError("the event loop would wait forever")
        time.sleep(timeout)
        return []


class _Loop(BaseEventLoop):
    """Asyncio's own event loop, which the tests use instead of Pyodide's."""

    _selector = _Sleep()

    def _process_events(self, event_list: list[Any]) -> None: ...  # Any: as above

    def _write_to_self(self) -> None: ...


def _read_list() -> dict[str, str]:
    """Returns the listed files and tests, each with the comment above it."""
    listed, reason = dict[str, str](), ""
    for line in _LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            reason = line[2:]
        else:
            listed[line] = reason
    return listed


def _ignore(_: object) -> None: ...


class _LeaveOut:
    """A plugin that decides which tests are skipped, and prints their number."""

    def __init__(self) -> None:
        self._wanted = set[str]()
        """The missing features that the running test has requested."""
        self._listed = _read_list()
        self._stale = set(self._listed)
        self._passed, self._left_out = 0, Counter[str]()
        self._incomplete = dict[Path, str]()
        """The pages with a skipped block, and the reason, because later blocks need its names."""
        sys.addaudithook(self._hear)
        sys.meta_path.append(self)
        start = subprocess.Popen[Any].__init__  # Any: of text or bytes

        def start_process(*args: Any, **options: Any) -> None:  # Any: those of Popen
            self._wanted.add("processes")
            start(*args, **options)

        vars(subprocess)["Popen"].__init__ = start_process  # it fails before its audit event

    def _hear(self, event: str, _: tuple[object, ...]) -> None:
        if event.startswith("_thread.start"):
            self._wanted.add("threads")
        elif event.startswith("socket."):
            self._wanted.add("sockets")

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Records modules that no other finder has found."""
        if name in _NOT_INSTALLED:
            self._wanted.add("packages")
        return None

    def _reason(self) -> str:
        return f"need {' and '.join(sorted(self._wanted))}"

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        """Adds an option for whole runs."""
        parser.addoption("--at-least", type=int, default=0, help="how many tests have to pass")

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Skips listed files."""
        name = collection_path.relative_to(Path.cwd()).as_posix()
        if name not in self._listed:
            return None
        self._stale.discard(name)
        self._left_out[f"files are listed in {_LIST}"] += 1
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Skips files that cannot be imported."""
        self._wanted.clear()
        report = yield
        if report.failed and self._wanted:
            report.outcome, report.longrepr = "skipped", (str(collector.path), 0, self._reason())
            self._left_out[f"files {self._reason()}"] += 1
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skips listed tests."""
        for item in items:
            for name in (item.nodeid, item.nodeid.split("[")[0]):
                if reason := self._listed.get(name):
                    self._stale.discard(name)
                    item.add_marker(pytest.mark.skip(reason=reason))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Releases objects that a test could not close, so that the next test gets no warning."""
        self._wanted.clear()
        result = yield
        if self._wanted:
            hook, sys.unraisablehook = sys.unraisablehook, _ignore
            with warnings.catch_warnings(action="ignore"):
                gc.collect()
            gc.freeze()  # otherwise each of hundreds of collections would take longer than the last
            sys.unraisablehook = hook
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Skips tests that failed after they had requested a missing feature."""
        failure = call.excinfo
        reason = self._reason() if self._wanted else self._incomplete.get(item.path)
        if failure and reason and not isinstance(failure.value, pytest.skip.Exception):
            try:  # formatting each failure would take a third of the time
                pytest.skip(reason)
            except pytest.skip.Exception:
                call.excinfo = pytest.ExceptionInfo.from_current()
            self._left_out[f"tests {reason}"] += 1
            if item.path.suffix == ".md":
                self._incomplete[item.path] = reason
        report = yield
        if report.skipped and {item.nodeid, item.nodeid.split("[")[0]} & self._listed.keys():
            self._left_out[f"tests are listed in {_LIST}"] += 1
        self._passed += report.passed and report.when == "call"
        return report

    def _faults(self, config: pytest.Config) -> list[str]:
        if not (least := config.getoption("--at-least")):
            return []
        faults = [f"{_LIST} names {name}, which does not exist" for name in sorted(self._stale)]
        if self._passed < least:
            faults.append(f"{self._passed} tests passed, but at least {least} have to")
        return faults

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails a full run in which too little was tested."""
        if self._faults(session.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Prints the last line."""
        for fault in self._faults(config):
            print(fault)
        left_out = ", ".join(f"{count} {reason}" for reason, count in self._left_out.most_common())
        print(
            f"Python {platform.python_version()} on WebAssembly: {self._passed} tests passed; "
            f"left out: {left_out or 'none'}"
        )


def main(arguments: list[str]) -> int:
    """Returns the exit status of pytest."""
    # Pyodide replaces these with its own, which need its loop.
    for module, name in ((asyncio, "run"), (time, "sleep")):
        vars(module)[name] = vars(module)[name].__wrapped__
    asyncio.events._set_running_loop(None)  # noqa: SLF001 - Pyodide's loop is always running
    for module in (asyncio, asyncio.events):
        vars(module)["new_event_loop"] = _Loop
    return int(pytest.main(arguments, plugins=[_LeaveOut()]))
