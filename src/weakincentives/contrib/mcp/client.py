"""The client for one running MCP server, based on the SDK: starts it, lists and calls its tools.

Importing the SDK takes 0.7 s, so this module is imported only at the first tool call.
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
# The prefixes of the SDK's messages for a lost connection.
_LOST = ("Connection closed", "SSE stream ")


@asynccontextmanager
async def open_server(
    lock: ServerLock, notify: Notify, ask: Ask | None = None
) -> AsyncGenerator["OpenServer"]:
    """Starts or connects to the server in `lock`; the server is stopped at the end of the block.

    Enter and leave the block in the same task. `notify` receives the server's log messages, and the
    differences between its tools and `lock`. If `ask` is given, the server is told that it can ask
    the user. Raises `ServerError` if the server cannot be reached or the connection is lost.
    """
    server = OpenServer(lock, notify, ask)
    try:
        with _masked_logs(server.redact):
            async with server.client:
                # The SDK would match a server's patterns with Python's engine, which can take
                # exponential time and block the whole process.
                vars(server.client.session)["validate_tool_result"] = server.check_content
                await server.refresh()
                yield server
    except Exception as error:
        cause = _first_cause(error)
        if isinstance(cause, ServerError):
            raise cause from None
        raise server.failure(message_of(cause)) from None  # the causes may contain credentials


class OpenServer:
    """A running server: lists its current tools and calls them."""

    def __init__(self, lock: ServerLock, notify: Notify, ask: Ask | None) -> None:
        self._reviewed = lock
        self._notify = notify
        self._name = lock.name
        self._state = TransportState()
        self._changes = self._listed_changes = 0  # how many notices of changed tools have arrived
        self._differences: dict[str | None, ToolDifference] = {}
        filled, environment, self.redact = _filled(lock)
        self.lock = lock
        """The server's current tools and instructions in the form of a lock."""
        self.client = Client(
            _transport(filled, environment, self._state),
            client_info=Implementation(name="weakincentives", version=__version__),
            logging_callback=self._log,
            message_handler=self._listen,
            log_level="info",
            # Without a callback, the client does not declare support for elicitation, and rejects
            # it.
            elicitation_callback=None if ask is None else partial(self._elicit, ask),
        )

    @property
    def has_ended(self) -> bool:
        """Whether the connection is known to be lost."""
        return self._state.is_closed or bool(self._state.problem)

    async def call(
        self, tool: str, arguments: Mapping[str, Json], notify: Notify
    ) -> ToolResult[Json]:
        """Calls a tool and returns its result, or a failure if the tool differs from its lock.

        Raises `ServerError` if there is no result.
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
        """Lists the tools and publishes their differences from the lock."""
        changes = self._changes
        self.lock = await self._list()
        self._listed_changes = changes  # set last, so that concurrent calls list the tools too
        found = differences(self._reviewed, self.lock)
        self._differences = {difference.tool: difference for difference in found}
        if found:
            self._notify(MCPServerChanged(server=self._name, differences=found))

    async def check_content(self, tool: str, result: CallToolResult) -> None:
        """Raises `ValueError` for structured content that does not match the tool's schema."""
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
        """Returns an error for a server that does not work, without credentials."""
        name, state = self._name, self._state
        if state.problem:
            problem = f"MCP server {name!r} {state.problem} and was ended. {UNKNOWN_EFFECT}"
            return ServerError(problem)
        lines = "".join(f"\n{line}" for line in state.last_lines)
        return ServerError(self.redact(f"MCP server {name!r} failed: {reason}{lines}"))

    @contextmanager
    def _errors(self, *, sent: bool) -> Generator[None]:
        """Raises `ServerError` for the SDK's errors, without credentials."""
        name = self._name
        try:
            yield
        except MCPError as error:
            if self._state.problem:
                raise self.failure(error.message) from None
            # Servers also use this code for their own errors.
            if error.code == CONNECTION_CLOSED and error.message.startswith(_LOST):
                raise ServerEndedError(name, sent=sent) from None
            if (error.code, error.message) == (INVALID_REQUEST, "Session terminated"):
                raise ServerEndedError(name, sent=False) from None  # the server restarted
            problem = f"MCP server {name!r} refused the call: {error.message}."
            raise ServerError(self.redact(problem)) from None
        # The content does not match its schema, or the server requested user input.
        except (RuntimeError, ValueError) as error:
            reason = message_of(error).partition("\n")[0]
            problem = f"MCP server {name!r} gave an answer that is not accepted: {reason}."
            raise ServerError(self.redact(problem)) from None

    async def _list(self) -> ServerLock:
        """Returns the current tools as a lock; raises `ServerError` if the list never ends."""
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
        """Returns a server's text without credentials, truncated to the allowed length."""
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
        """Answers a question that the server asks the user; passes only valid forms to `ask`."""
        server, message = self._name, self._shown(params.message)
        event = MCPElicitationAnswered(server=server, message=message, action="decline")
        match params:
            case ElicitRequestFormParams(requested_schema=form):
                problem = form_problem(form)
            case _:
                form, problem = {}, "it asks the user to visit a URL"
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
    # Report where the tool differs, but not how: the new text was not reviewed, so the model must
    # not see it.
    places = [line.partition(":")[0] for line in difference.details if not line.startswith(" ")]
    where = f" ({', '.join(places)[:300]})" if places else ""
    change = "removed" if difference.kind == "vanished" else "changed"
    return (
        f"Tool {difference.tool!r} is refused: MCP server {server!r} has {change} it "
        f"since a person reviewed it{where}. Do without it."
    )


def _filled(lock: ServerLock) -> tuple[ServerLock, dict[str, str], Redactor]:
    """Returns the lock with variables filled in, the variables named in `env`, and a redactor.

    The redactor masks credentials; every variable that `${NAME}` refers to is treated as one.
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
    assert lock.command  # a lock has either a command or a URL
    program, *arguments = lock.command
    parameters = StdioServerParameters(
        command=program, args=arguments, env=environment, cwd=lock.cwd
    )
    return start_process(parameters, state)


@contextmanager
def _masked_logs(redact: Redactor) -> Generator[None]:
    """Masks credentials in the logs of the SDK and its HTTP client, for example in a URL."""

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
    """Returns the first error inside nested exception groups, which task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
