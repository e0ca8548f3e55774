"""The parts that `wink run` and `wink chat` share: the adapter, the log, and error reports."""

import json
import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import is_dataclass
from logging import WARNING, Handler, LogRecord, getLogger
from pathlib import Path
from traceback import format_exception_only, walk_tb
from typing import Annotated

from typer import Option

from ..adapters.core import ProviderAdapter
from ..errors import WeakIncentivesError
from ..inspection.event_log import write_lines
from ..protocols import EventBus
from .printing import single_line
from .target import UsageError, load

__all__ = [
    "Adapter",
    "Api",
    "BaseUrl",
    "Log",
    "Model",
    "adapter_errors",
    "load_adapter",
    "log_events",
    "state_types",
    "warnings_as_lines",
]

_PROVIDERS = {
    "openai": "weakincentives.adapters.openai:OpenAIAdapter",
    "anthropic": "weakincentives.adapters.anthropic:AnthropicAdapter",
    "litellm": "weakincentives.adapters.litellm:LiteLLMAdapter",
    "claude-agent-sdk": "weakincentives.adapters.claude_agent_sdk:ClaudeAgentSDKAdapter",
}
Adapter = Annotated[str, Option(help=f"{', '.join(_PROVIDERS)}, or package.module:name.")]
Model = Annotated[str | None, Option(help="The model's name.")]
BaseUrl = Annotated[str | None, Option(help="The base URL of the provider's API.")]
Api = Annotated[str | None, Option(help="responses or chat (openai only).")]
Log = Annotated[
    Path | None, Option(help="Write the events to this file, one JSON object per line.")
]


def load_adapter(name: str, stack: ExitStack, **options: str | None) -> ProviderAdapter:
    """Creates the adapter named on the command line; enters it if it is a context manager."""
    arguments = {key: value for key, value in options.items() if value is not None}
    if name in _PROVIDERS and "model" not in arguments:
        default = ", the default," if name == "openai" else ""
        raise UsageError(f"--adapter {name}{default} requires --model")
    if name not in _PROVIDERS and ":" not in name:
        known = ", ".join(_PROVIDERS)
        raise UsageError(f"unknown adapter {name!r}; use {known} or package.module:name")
    provider, colon, model_name = name.partition(":")
    if colon and provider in _PROVIDERS:
        raise UsageError(
            f"--adapter must not be a module of the provider's SDK, got {name}; pass --adapter "
            f"{provider} --model {model_name}"
        )
    if name == "openai" and "base_url" in arguments and "OPENAI_API_KEY" not in os.environ:
        # Most self-hosted servers do not need a key, but the SDK requires one.
        arguments["api_key"] = "none"
    adapter = load(_PROVIDERS.get(name, name), "adapter")
    if callable(adapter):
        try:
            adapter = adapter(**arguments)
            if isinstance(adapter, AbstractContextManager):
                adapter = stack.enter_context(adapter)
        except Exception as error:  # from the user's own code, or an SDK that is not installed
            raise UsageError(f"--adapter {name}: {type(error).__name__}: {error}") from error
    if not isinstance(adapter, ProviderAdapter):
        raise UsageError(
            f"--adapter {name} must be an adapter or a function that returns one, got "
            f"{type(adapter).__name__}"
        )
    return adapter


@contextmanager
def log_events(bus: EventBus, log: Path) -> Generator[None]:
    """Writes events to `log`; raises a disk error only at the end, so as not to lose the answer."""
    failures: list[OSError] = []
    file = log.open("w", encoding="utf-8")

    def write(line: str) -> None:
        if not failures:
            try:
                file.write(line)
                file.flush()
            except OSError as error:
                failures.append(error)

    write_lines(bus, write)
    try:
        yield
    finally:
        with suppress(OSError):  # already reported by `write`
            file.close()
    if failures:
        raise UsageError(f"{log} is incomplete: {failures[0]}") from failures[0]


class _LogLines(Handler):
    """Writes each of the library's warnings as one line, with its exception's location."""

    def __init__(self, write: Callable[[Iterable[str]], None]) -> None:
        super().__init__(WARNING)
        self._write = write

    def emit(self, record: LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and (error := record.exc_info[1]) is not None:
            text = f"{text}: {format_exception_only(error)[-1]}"
            for frame, line in [*walk_tb(error.__traceback__)][-1:]:
                text = f"{text} ({Path(frame.f_code.co_filename).name}:{line})"
        self._write([single_line(text)])


@contextmanager
def warnings_as_lines(write: Callable[[Iterable[str]], None]) -> Generator[None]:
    """During the block, passes each of the library's warnings to `write` as a line."""
    logger, handler = getLogger("weakincentives"), _LogLines(write)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def adapter_errors(name: str) -> Generator[None]:
    """Raises `UsageError` for an exception from a user's own adapter."""
    try:
        yield
    except (WeakIncentivesError, UsageError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise UsageError(f"--adapter {name} failed: {cause}") from error


def state_types(text: str, target: str) -> list[type]:
    """Returns the types that a snapshot names, if they are in the target's own package.

    That package has already been imported. A file must not be able to select an arbitrary class in
    the process.
    """
    try:
        names = [str(name) for name in json.loads(text)["slices"]]
    except (ValueError, LookupError, TypeError):
        return []  # `parse_snapshot` will report the error
    package = target.partition(":")[0].partition(".")[0]
    types: list[type] = []
    for name in names:
        module, _, qualified_name = name.partition(":")
        value: object = sys.modules.get(module) if module.partition(".")[0] == package else None
        for attribute in qualified_name.split("."):
            value = getattr(value, attribute, None)
        if isinstance(value, type) and is_dataclass(value):
            types.append(value)
    return types
