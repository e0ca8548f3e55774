"""One run of an MCP server, seen through the SDK's client: its start, listing, calls and errors.

The SDK takes 0.7 s to import, so nothing imports this module before the first call of a tool.
"""

import json
import os
import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from logging import Formatter, LogRecord, getLogger

from mcp import Client, MCPError, StdioServerParameters
from mcp.client import ClientRequestContext, IncomingMessage
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    LoggingMessageNotificationParams,
    ToolListChangedNotification,
)

from ...displays import cut
from ...errors import message_of
from ...prompt.tool import ToolResult
from ...redaction import Redactor, credentials_in
from ...serde import Json
from ...serde.validation import validation_issues
from ...version import __version__
from .elicitation import MAX_MESSAGE, Accept, Ask, Elicitation, form_problem
from .lock import ServerLock, ToolDifference, ToolLock, differences
from .results import to_tool_result
from .server_errors import UNKNOWN_EFFECT, Notify, ServerEndedError, ServerError
from .server_events import MCPElicitationAnswered, MCPLogMessage, MCPProgress, MCPServerChanged
from .transports import Streams, TransportState, connect_http, start_process

__all__ = ["OpenServer", "open_server"]

_MAX_PAGES = 100
_LOGGERS = ("httpx2", "httpcore2.connection", "mcp.client.streamable_http", "mcp.client.stdio")
_LOST = ("Connection closed", "SSE stream ")  # how the SDK's own errors of this kind begin


@asynccontextmanager
async def open_server(
    lock: ServerLock, notify: Notify, ask: Ask | None = None
) -> AsyncGenerator["OpenServer"]:
    """Starts or reaches the server that `lock` names; the end of the block ends it.

    Enter and leave the block in the same task. `notify` receives the server's log messages, and how
    its tools differ from `lock`. The server learns that it may ask a person if there is `ask`.
    Raises `ServerError` if the server cannot be reached or is lost meanwhile.
    """
    server = OpenServer(lock, notify, ask)
    try:
        with _masked_logs(server.redact):
            async with server.client:
                # The SDK would match a server's patterns by Python's engine, which takes
                # exponential time and holds the whole process.
                vars(server.client.session)["validate_tool_result"] = server.check_content
                await server.refresh()
                yield server
    except Exception as error:
        cause = _first_cause(error)
        if isinstance(cause, ServerError):
            raise cause from None
        raise server.failure(message_of(cause)) from None  # the causes may hold credentials


class OpenServer:
    """A server that runs: what it offers now, and its answers to calls."""

    def __init__(self, lock: ServerLock, notify: Notify, ask: Ask | None) -> None:
        self._reviewed = lock
        self._notify = notify
        self._name = lock.name
        self._state = TransportState()
        self._changes = self._listed_changes = 0  # how often the server said that its tools changed
        self._differences: dict[str | None, ToolDifference] = {}
        filled, environment, self.redact = _filled(lock)
        self.lock = lock
        """What the server offers, in the form of a lock."""
        self.client = Client(
            _transport(filled, environment, self._state),
            client_info=Implementation(name="weakincentives", version=__version__),
            logging_callback=self._log,
            message_handler=self._listen,
            log_level="info",
            # Without a callback, the client says that it cannot do it, and refuses requests for it.
            elicitation_callback=None if ask is None else partial(self._elicit, ask),
        )

    @property
    def has_ended(self) -> bool:
        """Whether the connection is known to be lost."""
        return self._state.is_closed or bool(self._state.problem)

    async def call(
        self, tool: str, arguments: Mapping[str, Json], notify: Notify
    ) -> ToolResult[Json]:
        """Returns the server's answer, or a failure if the tool differs from its lock.

        Raises `ServerError` without an answer.
        """

        async def report(progress: float, total: float | None, message: str | None) -> None:
            event = MCPProgress(server=self._name, tool=tool, progress=progress, total=total)
            notify(replace(event, message=self._shown(message or "")))

        if self._changes != self._listed_changes:
            with self._errors(sent=False):
                await self.refresh()
        if difference := self._differences.get(tool):
            return ToolResult(_refusal(self._name, difference), success=False)
        with self._errors(sent=True):
            result = await self.client.call_tool(tool, dict(arguments), progress_callback=report)
            return to_tool_result(result)

    async def refresh(self) -> None:
        """Lists the tools, and publishes how they differ from the lock."""
        changes = self._changes
        self.lock = await self._list()
        self._listed_changes = changes  # only now: until then other calls must list them too
        found = differences(self._reviewed, self.lock)
        self._differences = {difference.tool: difference for difference in found}
        if found:
            self._notify(MCPServerChanged(server=self._name, differences=found))

    async def check_content(self, tool: str, result: CallToolResult) -> None:
        """Raises `ValueError` for structured content that does not fit the tool's schema."""
        schemas = [item.output_schema for item in self.lock.tools if item.name == tool]
        if schemas in ([], [None]):
            return
        if "structured_content" not in result.model_fields_set:
            raise ValueError(
                "it lacks the structured content that the tool's output schema requires"
            )
        issues = validation_issues(json.dumps(schemas[0]), result.structured_content)
        if issues:
            raise ValueError(f"Invalid structured content: {'; '.join(map(str, issues))}"[:500])

    def failure(self, reason: str) -> ServerError:
        """Returns the error of a server that does not work, without credentials."""
        name, state = self._name, self._state
        if state.problem:
            problem = f"MCP server {name!r} {state.problem} and was ended. {UNKNOWN_EFFECT}"
            return ServerError(problem)
        lines = "".join(f"\n{line}" for line in state.last_lines)
        return ServerError(self.redact(f"MCP server {name!r} failed: {reason}{lines}"))

    @contextmanager
    def _errors(self, *, sent: bool) -> Generator[None]:
        """Raises the SDK's errors as `ServerError`, without credentials."""
        name = self._name
        try:
            yield
        except MCPError as error:
            if self._state.problem:
                raise self.failure(error.message) from None
            # Servers use this code for errors of their own, too.
            if error.code == CONNECTION_CLOSED and error.message.startswith(_LOST):
                raise ServerEndedError(name, sent=sent) from None
            if (error.code, error.message) == (INVALID_REQUEST, "Session terminated"):
                raise ServerEndedError(name, sent=False) from None  # it was restarted
            problem = f"MCP server {name!r} refused the call: {error.message}."
            raise ServerError(self.redact(problem)) from None
        # content that its schema refuses, or a request for a person's input
        except (RuntimeError, ValueError) as error:
            reason = message_of(error).partition("\n")[0]
            problem = f"MCP server {name!r} gave an answer that is not accepted: {reason}."
            raise ServerError(self.redact(problem)) from None

    async def _list(self) -> ServerLock:
        """Returns what the server offers; raises `ServerError` for a listing without end."""
        tools: list[ToolLock] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            for tool in page.tools:
                listing = tool.model_dump(by_alias=True, exclude_unset=True)
                tools.append(ToolLock.from_listing(listing))
            cursor = page.next_cursor
            if cursor is None:
                info = self.client.server_info or Implementation(name="", version="")
                return replace(
                    self.lock,
                    server_name=info.name,
                    server_version=info.version,
                    protocol=self.client.protocol_version,
                    instructions=self.client.instructions or "",
                    tools=tuple(sorted(tools, key=lambda tool: tool.name)),
                )
        raise ServerError(f"MCP server {self._name!r} lists more than {_MAX_PAGES} pages of tools.")

    def _shown(self, text: str) -> str:
        """Returns a text of the server without credentials, and only as much as is shown."""
        return cut(self.redact(text), MAX_MESSAGE)

    async def _log(self, params: LoggingMessageNotificationParams) -> None:
        data = params.data if isinstance(params.data, str) else json.dumps(params.data)
        text, logger = self._shown(data), params.logger or ""
        event = MCPLogMessage(server=self._name, level=params.level, text=text, logger=logger)
        self._notify(event)

    async def _listen(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._changes += 1

    async def _elicit(
        self, ask: Ask, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        """Answers a question to a person; none but right forms reach `ask`."""
        server, message = self._name, self._shown(params.message)
        event = MCPElicitationAnswered(server=server, message=message, action="decline")
        match params:
            case ElicitRequestFormParams(requested_schema=form):
                problem = form_problem(form)
            case _:
                form, problem = {}, "it wants a person to visit a URL"
        if problem:
            self._notify(replace(event, reason=problem))
            return ElicitResult(action="decline")
        schema = json.loads(self.redact(json.dumps(form)))
        with self._state.answering():
            answer = await ask(Elicitation(server=server, message=message, schema=schema))
        self._notify(replace(event, action=answer.action))
        content = dict(answer.content) if isinstance(answer, Accept) else None
        return ElicitResult.model_validate({"action": answer.action, "content": content})


def _refusal(server: str, difference: ToolDifference) -> str:
    # Where the tool differs, not how: nobody has reviewed the new text, so no model reads it.
    places = [line.partition(":")[0] for line in difference.details if not line.startswith(" ")]
    where = f" ({', '.join(places)[:300]})" if places else ""
    change = "removed" if difference.kind == "vanished" else "changed"
    return (
        f"Tool {difference.tool!r} is refused: MCP server {server!r} has {change} it "
        f"since a person reviewed it{where}. Do without it."
    )


def _filled(lock: ServerLock) -> tuple[ServerLock, dict[str, str], Redactor]:
    """Returns a lock with the variables of our environment in it, those of `env`, and a redactor.

    The redactor masks credentials, as which each variable that `${NAME}` refers to counts.
    """

    def value_of(name: str) -> str:
        if (value := os.environ.get(name)) is not None:
            return value
        raise ServerError(
            f"MCP server {lock.name!r} requires the environment variable {name}, which is not set "
            "in the agent's environment."
        )

    environment, secrets = {name: value_of(name) for name in lock.env}, list[str]()

    def secret(match: re.Match[str]) -> str:
        secrets.append(value_of(match[1]))
        return secrets[-1]

    fill = partial(re.compile(r"\$\{(\w+)\}").sub, secret)
    filled = replace(
        lock,
        command=tuple(map(fill, lock.command)) if lock.command else None,
        url=None if lock.url is None else fill(lock.url),
        headers={name: fill(value) for name, value in lock.headers.items()},
    )
    return filled, environment, Redactor((*credentials_in(environment), *secrets))


def _transport(
    lock: ServerLock, environment: dict[str, str], state: TransportState
) -> AbstractAsyncContextManager[Streams]:
    if lock.url is not None:
        return connect_http(lock.url, lock.headers, state)
    assert lock.command  # a lock has either
    program, *arguments = lock.command
    parameters = StdioServerParameters(
        command=program, args=arguments, env=environment, cwd=lock.cwd
    )
    return start_process(parameters, state)


@contextmanager
def _masked_logs(redact: Redactor) -> Generator[None]:
    """Masks credentials in what the SDK and its HTTP client log, such as a server's address."""

    def mask(record: LogRecord) -> bool:
        text = record.getMessage()
        if (masked := redact(text)) != text:
            record.msg, record.args = masked, ()
        if record.exc_info:
            record.exc_text = redact(Formatter().formatException(record.exc_info))
            record.exc_info = None
        return True

    loggers = [getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(mask)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(mask)


def _first_cause(error: BaseException) -> BaseException:
    """Returns the first error in groups of errors, which tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
