"""One run of an MCP server, seen through the SDK's client: its start, listing, calls and errors.

The SDK takes 0.7 s to import, so nothing imports this module before the first call of a tool.
"""

import json
import os
import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from logging import Formatter, LogRecord, getLogger

from mcp import Client, MCPError, StdioServerParameters
from mcp.client import ClientRequestContext, IncomingMessage
from mcp.client.session import ElicitationFnT
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

from ...errors import message_of
from ...evaluation.approval import cut
from ...prompt.tool import ToolResult
from ...redaction import Redactor, credentials_in
from ...serde import Json
from ...serde.validation import validation_issues
from ...version import __version__
from .elicitation import MAX_MESSAGE, Accept, Ask, Elicitation, form_problem
from .events import MCPElicitationAnswered, MCPLogMessage, MCPProgress
from .lock import ServerLock, ToolLock
from .results import to_tool_result
from .server_errors import UNKNOWN_EFFECT, Notify, ServerEndedError, ServerError
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

    Enter and leave the block in the same task. `notify` receives the server's log messages. The
    server learns that it may ask a person if there is `ask`. Raises `ServerError` if the server
    cannot be reached or is lost meanwhile.
    """
    variables = _Variables(lock)
    state = TransportState()

    async def log(params: LoggingMessageNotificationParams) -> None:
        text = params.data if isinstance(params.data, str) else json.dumps(params.data)
        text = cut(variables.redact(text), MAX_MESSAGE)
        message = MCPLogMessage(server=lock.name, level=params.level, text=text)
        notify(replace(message, logger=params.logger or ""))

    async def listen(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            state.list_changes += 1

    client = Client(
        _transport(lock, variables, state),
        client_info=Implementation(name="weakincentives", version=__version__),
        logging_callback=log,
        message_handler=listen,
        log_level="info",
        # Without a callback, the client says that it cannot do it, and refuses requests for it.
        elicitation_callback=None
        if ask is None
        else _elicitation(lock.name, variables, ask, notify, state),
    )
    try:
        with _masked_logs(variables):
            async with client:
                # The SDK would match a server's patterns by Python's engine, which takes
                # exponential time and holds the whole process; `call` checks in bounded time.
                vars(client.session)["validate_tool_result"] = _accept_result
                yield OpenServer(client, state, await _list(client, lock), variables.redact)
    except Exception as error:
        cause = _first_cause(error)
        if isinstance(cause, ServerError):
            raise cause from None
        if state.problem:
            raise _limit_error(lock.name, state) from None
        lines = "".join(f"\n{line}" for line in state.last_lines)
        raise ServerError(
            variables.redact(f"MCP server {lock.name!r} failed: {message_of(cause)}{lines}")
        ) from None  # the causes may hold credentials


class OpenServer:
    """A server that runs: what it offers now, and its answers to calls."""

    def __init__(
        self, client: Client, state: TransportState, lock: ServerLock, redact: Redactor
    ) -> None:
        self._client = client
        self._state = state
        self._redact = redact
        self._listed_changes = 0
        self.lock = lock
        """What the server offers, in the form of a lock."""

    @property
    def has_ended(self) -> bool:
        """Whether the connection is known to be lost."""
        return self._state.is_closed or bool(self._state.problem)

    async def refresh(self) -> bool:
        """Lists the tools again if the server said that they changed; returns whether it did."""
        changes = self._state.list_changes
        if changes == self._listed_changes:
            return False
        with self._errors(sent=False):
            self.lock = await _list(self._client, self.lock)
        self._listed_changes = changes  # only now: until then other calls must list them too
        return True

    async def call(
        self, tool: str, arguments: Mapping[str, Json], notify: Notify
    ) -> ToolResult[Json]:
        """Returns the server's answer; raises `ServerError` without one."""
        name = self.lock.name

        async def report(progress: float, total: float | None, message: str | None) -> None:
            event = MCPProgress(server=name, tool=tool, progress=progress, total=total)
            notify(replace(event, message=cut(self._redact(message or ""), MAX_MESSAGE)))

        with self._errors():
            result = await self._client.call_tool(tool, dict(arguments), progress_callback=report)
            self._check_content(tool, result)
            return to_tool_result(result)

    def _check_content(self, tool: str, result: CallToolResult) -> None:
        """Raises `ValueError` for structured content that does not fit the tool's schema."""
        schemas = [item.output_schema for item in self.lock.tools if item.name == tool]
        if result.is_error or schemas in ([], [None]):
            return
        if "structured_content" not in result.model_fields_set:
            raise ValueError("it lacks the structured content of the tool's output schema")
        issues = validation_issues(json.dumps(schemas[0]), result.structured_content)
        if issues:
            raise ValueError(f"Invalid structured content: {'; '.join(map(str, issues))}"[:500])

    @contextmanager
    def _errors(self, *, sent: bool = True) -> Generator[None]:
        """Raises the SDK's errors as `ServerError`, without credentials."""
        name = self.lock.name
        try:
            yield
        except MCPError as error:
            if self._state.problem:
                raise _limit_error(name, self._state) from None
            # Servers use this code for errors of their own, too.
            if error.code == CONNECTION_CLOSED and error.message.startswith(_LOST):
                raise ServerEndedError(name, sent=sent) from None
            if (error.code, error.message) == (INVALID_REQUEST, "Session terminated"):
                raise ServerEndedError(name, sent=False) from None  # it was restarted
            problem = f"MCP server {name!r} refused the call: {error.message}."
            raise ServerError(self._redact(problem)) from None
        # content that its schema refuses, or a request for a person's input
        except (RuntimeError, ValueError) as error:
            reason = message_of(error).partition("\n")[0]
            problem = f"MCP server {name!r} gave an answer that is not accepted: {reason}."
            raise ServerError(self._redact(problem)) from None


def _limit_error(server: str, state: TransportState) -> ServerError:
    return ServerError(f"MCP server {server!r} {state.problem} and was ended. {UNKNOWN_EFFECT}")


async def _accept_result(name: str, result: CallToolResult) -> None:
    """Stands for the SDK's check of structured content."""


def _elicitation(
    server: str, variables: "_Variables", ask: Ask, notify: Notify, state: TransportState
) -> ElicitationFnT:
    """Returns the SDK's callback for questions to a person; none but right forms reach `ask`."""

    async def answer(
        context: ClientRequestContext,  # noqa: ARG001 - the SDK's name for it
        params: ElicitRequestParams,
    ) -> ElicitResult:
        message = cut(variables.redact(params.message), MAX_MESSAGE)
        event = MCPElicitationAnswered(server=server, message=message, action="decline")
        if not isinstance(params, ElicitRequestFormParams):
            notify(replace(event, reason="it wants a person to visit a URL"))
            return ElicitResult(action="decline")
        if problem := form_problem(params.requested_schema):
            notify(replace(event, reason=problem))
            return ElicitResult(action="decline")
        schema = json.loads(variables.redact(json.dumps(params.requested_schema)))
        with state.answering():
            answer = await ask(Elicitation(server=server, message=message, schema=schema))
        notify(replace(event, action=answer.action))
        content = dict(answer.content) if isinstance(answer, Accept) else None
        return ElicitResult.model_validate({"action": answer.action, "content": content})

    return answer


async def _list(client: Client, lock: ServerLock) -> ServerLock:
    """Returns what the server offers; raises `ServerError` for a listing without end."""
    tools: list[ToolLock] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            listing = tool.model_dump(by_alias=True, exclude_unset=True)
            tools.append(ToolLock.from_listing(listing))
        cursor = page.next_cursor
        if cursor is None:
            info = client.server_info or Implementation(name="", version="")
            return replace(
                lock,
                server_name=info.name,
                server_version=info.version,
                protocol=client.protocol_version,
                instructions=client.instructions or "",
                tools=tuple(sorted(tools, key=lambda tool: tool.name)),
            )
    raise ServerError(f"MCP server {lock.name!r} lists more than {_MAX_PAGES} pages of tools.")


class _Variables:
    """The variables of our environment that a lock names; `redact` masks the credentials."""

    def __init__(self, lock: ServerLock) -> None:
        self._server = lock.name
        self.environment = {name: self._value(name) for name in lock.env}
        self.redact = Redactor(tuple(credentials_in(self.environment)))

    def expand(self, text: str) -> str:
        """Replaces each `${NAME}` by the variable, which counts as a credential."""
        return re.sub(r"\$\{(\w+)\}", lambda match: self._secret(match[1]), text)

    def _secret(self, name: str) -> str:
        value = self._value(name)
        self.redact = self.redact.extend([value])
        return value

    def _value(self, name: str) -> str:
        value = os.environ.get(name)
        if value is None:
            raise ServerError(
                f"MCP server {self._server!r} needs the environment variable {name}, "
                "which is not set where the agent runs."
            )
        return value


@contextmanager
def _masked_logs(variables: _Variables) -> Generator[None]:
    """Masks credentials in what the SDK and its HTTP client log, such as a server's address."""

    def mask(record: LogRecord) -> bool:
        text = record.getMessage()
        if (masked := variables.redact(text)) != text:
            record.msg, record.args = masked, ()
        if record.exc_info:
            record.exc_text = variables.redact(Formatter().formatException(record.exc_info))
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


def _transport(
    lock: ServerLock, variables: _Variables, state: TransportState
) -> AbstractAsyncContextManager[Streams]:
    expand = variables.expand
    if lock.url is not None:
        headers = {name: expand(value) for name, value in lock.headers.items()}
        return connect_http(expand(lock.url), headers, state)
    assert lock.command  # noqa: S101 - a lock has either
    program, *arguments = map(expand, lock.command)
    parameters = StdioServerParameters(
        command=program, args=arguments, env=variables.environment, cwd=lock.cwd
    )
    return start_process(parameters, state)


def _first_cause(error: BaseException) -> BaseException:
    """Returns the first error in groups of errors, which tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
