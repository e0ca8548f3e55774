"""The parts that `wink run` and `wink chat` share: the adapter, the log, and error reports."""

import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import fields, is_dataclass
from logging import WARNING, Handler, LogRecord, getLogger
from pathlib import Path
from traceback import format_exception_only, walk_tb
from typing import Annotated, Any

from typer import Argument, Option

from ..adapters.core import ProviderAdapter
from ..adapters.model_names import adapter_for
from ..errors import WeakIncentivesError
from ..evaluation.adapter import ConnectingAdapter
from ..evaluation.main_loop import MainLoop
from ..inspection.event_log import write_lines
from ..model_settings import ModelSettings
from ..protocols import EventBus
from ..signatures import did_you_mean
from .printing import single_line
from .target import UsageError, load

__all__ = [
    "Adapter",
    "Api",
    "BaseUrl",
    "Log",
    "Message",
    "Model",
    "Setting",
    "adapter_errors",
    "load_loop",
    "log_events",
    "state_types",
    "warnings_as_lines",
]

_OLD_NAMES = {"claude-agent-sdk": "claude"}
_PROVIDERS = ("openai", "anthropic", "litellm", "claude-agent-sdk")
Adapter = Annotated[str | None, Option(help=f"{', '.join(_PROVIDERS)}, or package.module:name.")]
Model = Annotated[
    str | None,
    Option(help="The model, such as openai:gpt-5.2 or ollama:qwen3:8b; by default, $WINK_MODEL."),
]
BaseUrl = Annotated[str | None, Option(help="The base URL of the provider's API.")]
Api = Annotated[str | None, Option(help="responses or chat (openai only).")]
Setting = Annotated[
    list[str] | None,
    Option(help="Set how the model answers: name=value, such as temperature=0. Repeatable."),
]
Log = Annotated[
    Path | None, Option(help="Write the events to this file, one JSON object per line.")
]


def _check_message(message: str | None) -> str | None:
    if message is not None and not message.strip():
        raise UsageError("the message is empty; write one, or leave it out")
    return message


Message = Annotated[str | None, Argument(help="The user's message.", callback=_check_message)]


def load_loop(
    adapter: str | None,
    stack: ExitStack,
    settings: Iterable[str] | None,
    *,
    model: str | None,
    **options: str | None,
) -> MainLoop:
    """Creates a loop over the adapter named on the command line, with these settings."""
    given = _read_settings(settings or ())
    connected = load_adapter(adapter, stack, model=model, **options)
    if given.given and isinstance(connected, ConnectingAdapter):
        try:
            connected.check_settings(given)
        except ValueError as error:
            raise UsageError(f"--setting: {error}") from error
    return MainLoop(connected, settings=given)


def _read_settings(settings: Iterable[str]) -> ModelSettings:
    """Parses each `name=value`, whose value is JSON or a text."""
    known = [field.name for field in fields(ModelSettings) if field.init]
    values: dict[str, Any] = {}  # Any: `ModelSettings` checks them
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"--setting must be name=value, got {setting!r}")
        if name not in known:
            raise UsageError(f"--setting {setting!r} is unknown; {did_you_mean(name, known)}")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
        try:
            ModelSettings(**{name: values[name]})
        except (TypeError, ValueError) as error:
            raise UsageError(f"--setting {setting!r}: {error}") from error
    return ModelSettings(**values)


def load_adapter(
    name: str | None, stack: ExitStack, *, model: str | None, **options: str | None
) -> ProviderAdapter:
    """Creates the adapter named on the command line; enters it if it is a context manager.

    Without `--adapter`, the model's name begins with its provider.
    """
    arguments = {key: value for key, value in options.items() if value is not None}
    if name is not None and name not in _PROVIDERS:
        return _load_own(name, stack, arguments if model is None else {**arguments, "model": model})
    if name is not None and model is None:
        raise UsageError(f"--adapter {name} requires --model")
    if name is not None:
        model = f"{_OLD_NAMES.get(name, name)}:{model}"
    is_openai = (model or "").startswith("openai")
    if is_openai and "base_url" in arguments and "OPENAI_API_KEY" not in os.environ:
        # Most self-hosted servers do not need a key, but the SDK requires one.
        arguments["api_key"] = "none"
    try:
        adapter = adapter_for(model, **arguments)
    except ValueError as error:
        raise UsageError(f"--model: {error}") from error
    except Exception as error:  # an SDK that is not installed, for example
        raise UsageError(f"--model {model}: {type(error).__name__}: {error}") from error
    return _entered(adapter, stack)


def _load_own(name: str, stack: ExitStack, arguments: Mapping[str, str]) -> ProviderAdapter:
    """Loads the user's own adapter, or calls the function that returns it."""
    provider, colon, model = name.partition(":")
    if not colon:
        known = ", ".join(_PROVIDERS)
        raise UsageError(f"unknown adapter {name!r}; use {known} or package.module:name")
    if provider in _PROVIDERS:
        raise UsageError(
            f"--adapter must not be a module of the provider's SDK, got {name}; pass --adapter "
            f"{provider} --model {model}"
        )
    adapter = load(name, "adapter")
    if callable(adapter):
        try:
            adapter = _entered(adapter(**arguments), stack)
        except Exception as error:  # from the user's own code
            raise UsageError(f"--adapter {name}: {type(error).__name__}: {error}") from error
    if not isinstance(adapter, ProviderAdapter):
        raise UsageError(
            f"--adapter {name} must be an adapter or a function that returns one, got "
            f"{type(adapter).__name__}"
        )
    return adapter


def _entered[T](adapter: T, stack: ExitStack) -> T:
    if isinstance(adapter, AbstractContextManager):
        entered: T = stack.enter_context(adapter)
        return entered
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
def adapter_errors(adapter: str | None) -> Generator[None]:
    """Raises `UsageError` for an exception from a user's own adapter."""
    try:
        yield
    except (WeakIncentivesError, UsageError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        name = "the adapter" if adapter is None else f"--adapter {adapter}"
        raise UsageError(f"{name} failed: {cause}") from error


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
