"""`ClaudeAgentSDKAdapter`: Claude models through the Claude Agent SDK, whose CLI asks the model by
itself.

The CLI owns its loop, and ours still runs the evaluation: a call that the CLI makes waits until our
loop has run it, and what the model says next answers our loop's next request. So limits, events,
disclosure and repairs are those of every adapter. How the CLI reaches our tools is in `bridge`.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...evaluation.errors import PromptEvaluationError
from ...evaluation.inner_loop import InnerLoopConfig, ProviderRequest
from ...evaluation.messages import (
    AssistantMessage,
    Finish,
    Message,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    UserMessage,
)
from ...evaluation.schemas import OutputSpec
from ...limits import Clock, Deadline, TokenUsage, utc_now
from ...prompt.context import ToolContext
from ...prompt.renderer import RenderedPrompt
from ...prompt.tool import Tool, ToolResult
from ...redaction import Redactor, credentials_in
from ...resources import ResourceError
from ..codec import Wire
from ..core import Connection, LoopAdapter
from ..provider_errors import (
    error_from_reply,
    error_from_request,
    error_from_status,
    redact_error,
)
from .bridge import MAX_RESULT_CHARS, Bridge
from .process import CLIProcess, StderrTail

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

__all__ = ["ClaudeAgentSDKAdapter"]

_log = logging.getLogger(__name__)

_PROVIDER = "claude_agent_sdk"
_NAMES = "Where the user's text names a tool `x`, call the tool that is listed as `mcp__…__x`."
_OUTPUT_TOOL = "StructuredOutput"  # by which the CLI takes typed output
_OWN_OPTIONS = {
    "model",
    "tools",
    "mcp_servers",
    "output_format",
    "include_partial_messages",
    "env",
    "cwd",
}
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",  # else the CLI keeps tools back until the model looks for them
}
_KEY = "ANTHROPIC_API_KEY"
_SECONDS_TO_STOP = 2.0
_SECONDS_TO_LOOK_AGAIN = 0.02
_FIRST_BACKOFF_MS = 500
_MOST_BACKOFF_MS = 32_000
_JITTER = 1.25
_NO_STDERR = "\nError output: Check stderr output for details"  # the SDK's words, which say nothing
_SENT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_TOTAL = ("inputTokens", "cacheCreationInputTokens", "cacheReadInputTokens", "outputTokens")


@dataclass(frozen=True, slots=True)
class BuiltinCall:
    """Params of a tool that the CLI runs by itself, as the model gave them."""

    arguments: dict[str, Any]  # Any: JSON of the CLI's own schemas


class ClaudeAgentSDKAdapter(LoopAdapter):
    """Evaluates prompts on a Claude model through the Claude Agent SDK and its bundled CLI, one
    process an evaluation.

    `api_key` is by default `ANTHROPIC_API_KEY`. `isolated` gives the CLI an empty home and
    configuration, no settings files and of this process's variables only those for language, paths,
    proxies and certificates; `env` adds others. `start_timeout` bounds the seconds until the CLI is
    ready, `max_reply_bytes` each message of the model. `builtin_tools` are the CLI's own tools to
    offer, such as `("Read", "Bash")`; they run in `cwd`, by default the root of the prompt's
    `HostFilesystem`, else the empty home. `dynamic_tools` adds the tools of an opened section to
    the running conversation instead of starting it again. `options` are further
    `ClaudeAgentOptions`; `transport` replaces the process, for tests. Raises `ImportError` without
    the extra `claude-agent-sdk`.
    """

    name = _PROVIDER

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_retries: int = 2,
        builtin_tools: Sequence[str] = (),
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        isolated: bool = True,
        start_timeout: float = 60.0,
        max_reply_bytes: int = 64 * 1024 * 1024,
        dynamic_tools: bool = False,
        options: Mapping[str, object] | None = None,
        # Any: from the SDK's options to its `Transport`
        transport: Callable[[Any], Any] | None = None,
        config: InnerLoopConfig | None = None,
        clock: Clock = utc_now,
    ) -> None:
        if find_spec("claude_agent_sdk") is None:
            raise ImportError(
                "ClaudeAgentSDKAdapter needs the Claude Agent SDK: pip install 'weakincentives[claude-agent-sdk]'"
            )
        config = config or InnerLoopConfig()
        chars = min(config.max_result_chars or MAX_RESULT_CHARS, MAX_RESULT_CHARS)
        super().__init__(config=replace(config, max_result_chars=chars), clock=clock)
        taken = sorted(_OWN_OPTIONS & (options or {}).keys())
        if taken:
            raise ValueError(
                f"options {taken!r} are set by the adapter itself; use its own arguments"
            )
        if builtin_tools and self.config.parallel_tool_calls == "isolated":
            raise ValueError(
                "built-in tools run in order: parallel_tool_calls='isolated' does not go with them"
            )
        # Any: often not installed where types are checked
        self.sdk: Any = import_module("claude_agent_sdk")
        self.sdk.ClaudeAgentOptions(**(options or {}))  # a wrong name fails here
        self.model = model
        self.builtin_tools = tuple(builtin_tools)
        self.cwd = cwd
        self.transport = transport
        given = {_KEY: api_key, "ANTHROPIC_BASE_URL": base_url}
        self._env = {
            "CLAUDE_CODE_MAX_RETRIES": str(max_retries),
            **_QUIET,
            **{name: value for name, value in given.items() if value},
            **(env or {}),
        }
        self.isolated = isolated
        self.start_timeout = start_timeout
        self._max_reply_bytes = max_reply_bytes
        self._dynamic_tools = dynamic_tools
        self._options = dict(options or {})

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._dynamic_tools

    def connect(self, rendered: RenderedPrompt[Any], /) -> "_Conversation":
        """A new process, started by the first request."""
        return _Conversation(self, rendered)

    # Any: the SDK's own.
    def options(
        self,
        servers: Wire,
        output: OutputSpec | None,
        cwd: str,
        env: dict[str, str],
        stderr: StderrTail,
    ) -> Any:
        """The SDK's options for one evaluation."""
        values: Wire = {
            "model": self.model,
            "tools": list(self.builtin_tools),
            "allowed_tools": [*self.builtin_tools, *(f"mcp__{name}" for name in servers)],
            "mcp_servers": servers,
            "permission_mode": "dontAsk",
            "system_prompt": _NAMES,
            "include_partial_messages": True,  # they say when a message of the model is complete
            "verbatim_prompts": True,
            "output_format": None
            if output is None
            else {"type": "json_schema", "schema": output.schema},
            "cwd": self.cwd or cwd,
            "max_buffer_size": self._max_reply_bytes,
            "env": env,
        }
        if self.isolated:
            values |= {
                "strict_mcp_config": True,
                "setting_sources": [],
                "extra_args": {"no-session-persistence": None},
            }
        return self.sdk.ClaudeAgentOptions(**values | self._options | {"stderr": stderr})

    @property
    def api_key(self) -> str | None:
        """The key, if it is known here."""
        return self._env.get(_KEY) or os.environ.get(_KEY)

    def redactor(self) -> Redactor:
        """Masks the key, and what `env` holds under a name of credentials."""
        return Redactor().extend([self.api_key, *credentials_in(self._env)])

    def stderr_tail(self) -> StderrTail:
        """Takes what the CLI writes to stderr in one evaluation."""
        listener: Any = self._options.get("stderr")  # Any: the user's own function
        return StderrTail(self.redactor(), listener)

    def environment(self, home: str) -> dict[str, str]:
        """The variables that are set for the CLI."""
        if not self.isolated:
            return dict(self._env)
        env = {
            "HOME": home,
            "CLAUDE_CONFIG_DIR": f"{home}/.claude",
            "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
        }
        # what it leaves there goes with the home
        env["TMPDIR"] = f"{self._env.get('HOME', home)}/.claude"
        return env | {name: value for name, value in self._env.items() if name != _KEY}


class _Conversation(Connection):
    """One evaluation's CLI process: what our loop has to say goes in, what the model says comes
    out.
    """

    # Any: any output
    def __init__(self, adapter: ClaudeAgentSDKAdapter, rendered: RenderedPrompt[Any]) -> None:
        self._adapter = adapter
        self._sdk = adapter.sdk
        self._rendered = rendered
        self._builtin = {name.lower(): name for name in adapter.builtin_tools}
        clash = sorted(self._builtin.keys() & {tool.name for tool in rendered.tools})
        if clash:
            raise ValueError(
                f"the prompt has tools {clash!r} of the same names as built-in tools; leave one out"
            )
        self._running = ExitStack()
        self._portal: BlockingPortal | None = None
        self._bridge = Bridge(
            dynamic=adapter.supports_dynamic_tools, called=lambda: self._messages.put_nowait(None)
        )
        self._client: Any = None  # Any: the SDK's
        self._home = ""
        self._env: dict[str, str] = {}
        self._process: CLIProcess | None = None
        self._stderr = adapter.stderr_tail()
        self._connecting: asyncio.Task[None] | None = None
        self._deadline: Deadline | None = None
        # Any: the SDK's messages, None when it calls a tool, and the exception that ends them.
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None
        self._transcript: Sequence[Message] = ()
        self._told = 0
        self._reported = TokenUsage()
        self._asking = False
        self._complaint: str | None = None
        self._retry_after: str | None = None
        self.provider_tools = [
            Tool(
                name=name,
                description="The CLI's own.",
                handler=self._builtin_tool,
                result_type=object,
            )
            for name in self._builtin
        ]

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        return self._open().call(self._ask, request)

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return await asyncio.wrap_future(self._open().start_task_soon(self._ask, request))

    def close(self) -> None:
        with self._running:
            if self._portal is not None:
                self._portal.call(self._end)

    async def aclose(self) -> None:
        await asyncio.shield(asyncio.to_thread(self.close))

    def _open(self) -> "BlockingPortal":
        """The event loop that the SDK needs as long as its process runs; our drivers may have none,
        or many.
        """
        from anyio.from_thread import start_blocking_portal

        if self._portal is None:
            adapter = self._adapter
            self._home = self._running.enter_context(
                TemporaryDirectory(prefix="wink-", ignore_cleanup_errors=True)
            )
            self._env = adapter.environment(self._home)
            options: Wire = {}
            if adapter.transport is None:
                key = adapter.api_key if adapter.isolated else None
                self._process = CLIProcess(self._env, key=key, isolated=adapter.isolated)
                options["loop_factory"] = self._process.loop
            self._portal = self._running.enter_context(
                start_blocking_portal(backend_options=options)
            )
            self._portal.call(_log_failing_tasks)
        return self._portal

    def _builtin_tool(self, params: BuiltinCall, *, context: ToolContext) -> ToolResult[object]:
        """Handler of the CLI's own tools, as our loop sees them: the CLI runs them, and this waits
        for it.
        """
        return self._open().call(self._builtin_result, context.call_id, context.deadline)

    async def _ask(self, request: ProviderRequest) -> AssistantMessage:
        self._deadline = request.deadline
        try:
            async with asyncio.timeout(self._adapter.seconds_left(request.deadline)):
                self._asking = True
                if self._client is None:
                    await self._connect(request)
                self._transcript = request.transcript
                await self._tell()
                return await self._hear()
        except PromptEvaluationError as error:
            redact_error(error, self._adapter.redactor())
            raise
        except Exception as error:
            cause = None if self._adapter.redactor().finds_in(error) else error
            redactor = self._adapter.redactor()
            raise redact_error(self._client_error(error), redactor) from cause

    async def _builtin_result(self, call_id: str, deadline: Deadline | None) -> ToolResult[object]:
        # the CLI runs the calls of a turn one after another, and may be waiting for one before
        self._answer()
        try:
            async with asyncio.timeout(self._adapter.seconds_left(deadline)):
                answer = await asyncio.shield(self._bridge.reply(call_id))
        except TimeoutError:
            return ToolResult(message="The deadline passed.", success=False)
        # A tool of the CLI can read what this user can, the key in this process's environment among
        # it.
        return ToolResult(message=self._adapter.redactor()(answer.content), success=answer.success)

    def _client_error(self, error: Exception) -> PromptEvaluationError:
        """The error for what the SDK raises.

        Its text says how the process ended, the process itself said why.
        """
        reason = f"{type(error).__name__}: {error}".replace(_NO_STDERR, "")
        if "maximum buffer size" in reason:
            return error_from_request(
                _PROVIDER, "reply_too_large", "a message of the CLI is too large"
            )
        if last_lines := str(self._stderr):
            reason = f"{reason}; the CLI wrote: {last_lines}"
        return error_from_request(
            _PROVIDER, "client_error", reason, "check the adapter's options and the CLI"
        )

    async def _end(self) -> None:
        """Ends the CLI, at once while a request is under way, and kills all that its tools have
        left running.
        """
        if self._client is None:
            return
        process = self._process
        if process is not None:
            # where processes are found by their parents, those of an ended one are lost
            process.find()
        ending = asyncio.create_task(self._disconnect())
        if process is None or not self._asking:
            left = self._adapter.seconds_left(self._deadline)
            await asyncio.wait([ending], timeout=min(_SECONDS_TO_STOP, left or _SECONDS_TO_STOP))
        if process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS_TO_STOP):
                    while process.kill() or not ending.done():  # noqa: ASYNC110 - other processes set no event
                        await asyncio.sleep(_SECONDS_TO_LOOK_AGAIN)
            process.close()
        ending.cancel()

    async def _disconnect(self) -> None:
        try:
            if self._connecting is not None:
                await asyncio.wait([self._connecting])
            await self._client.disconnect()
        except Exception as error:  # the evaluation has its result, or a failure that matters more
            _log.warning(
                "The CLI did not end well", extra={"error": self._adapter.redactor()(str(error))}
            )
        finally:
            if self._reader is not None:
                self._reader.cancel()

    async def _connect(self, request: ProviderRequest) -> None:
        adapter = self._adapter
        servers = self._bridge.open(
            tool for tool in request.tools if tool.name not in self._builtin
        )
        options = adapter.options(
            servers, request.output, self._workspace() or self._home, self._env, self._stderr
        )
        transport = None if adapter.transport is None else adapter.transport(options)
        self._client = self._sdk.ClaudeSDKClient(options, transport=transport)
        # The SDK shields its clean-up from a cancellation, which then would wait for a process that
        # does not react.
        self._connecting = asyncio.create_task(self._client.connect())
        await asyncio.wait([self._connecting], timeout=adapter.start_timeout)
        if not self._connecting.done():
            reason = f"the CLI was not ready after {adapter.start_timeout:g} seconds"
            raise error_from_request(
                _PROVIDER, "timeout", reason, "raise start_timeout or look at the machine's load"
            )
        await self._connecting
        if self._process is not None and not self._process.started:
            raise RuntimeError(
                "the SDK started the CLI past the adapter, with all variables of this process"
            )
        self._reader = asyncio.create_task(self._read())

    def _workspace(self) -> str | None:
        """Where the prompt's files are, if the CLI can reach them too."""
        from ...filesystem import Filesystem, HostFilesystem

        prompt = self._rendered.prompt
        if prompt is None or not self._builtin:
            return None
        try:
            files = prompt.resources.get(Filesystem)
        except ResourceError:  # it has none, or one for each tool call
            return None
        return str(files.root) if isinstance(files, HostFilesystem) else None

    async def _tell(self) -> None:
        """Hands the CLI what our loop has added: further tools first, for an answer may be what it
        goes on with.

        Removed tools are not taken from it: it keeps showing them, and calls of them are refused.
        """
        new = self._transcript[self._told :]
        for added in new:
            if isinstance(added, ToolsAdded):
                name = self._bridge.add(added.tools)
                await self._client.toggle_mcp_server(name, enabled=False)
                await self._client.toggle_mcp_server(name, enabled=True)
                status = await self._client.get_mcp_status()
                listed = [
                    one["tools"]
                    for one in status["mcpServers"]
                    if one["name"] == name and "tools" in one
                ]
                if not {tool.name for tool in added.tools} <= {
                    tool["name"] for tools in listed for tool in tools
                }:
                    # That the CLI lists them anew is observed, not promised.
                    told, remedy = (
                        "the CLI did not take the tools of a section",
                        "use dynamic_tools=False",
                    )
                    raise error_from_request(_PROVIDER, "client_error", told, remedy)
        self._answer()
        for said in new:
            if isinstance(said, UserMessage):
                await self._client.query(said.content)

    def _answer(self) -> None:
        """Answers the calls that our loop has run."""
        for message in self._transcript[self._told :]:
            if isinstance(message, ToolMessage):
                self._bridge.answer(message)
        self._told = len(self._transcript)

    async def _read(self) -> None:
        """Takes the CLI's messages as they come: our loop may be busy with a tool that one of them
        answers.
        """
        end: Exception | None = None
        try:
            async for message in self._client.receive_messages():
                self._settle(message)
                self._messages.put_nowait(message)
        except Exception as error:
            end = error
        finally:
            self._bridge.end()
            self._messages.put_nowait(
                end or self._sdk.CLIConnectionError("the CLI ended without a result")
            )

    def _settle(self, message: Any) -> None:  # Any: the SDK's
        """The answers to calls that `message` brings or settles."""
        sdk = self._sdk
        match message:
            case sdk.UserMessage(content=list() as blocks):
                for block in blocks:
                    if isinstance(block, sdk.ToolResultBlock):
                        self._bridge.answer(
                            ToolMessage(block.tool_use_id, _text(block.content), not block.is_error)
                        )
            case sdk.AssistantMessage(parent_tool_use_id=str(), content=blocks):
                for block in blocks:  # a subagent's call, of which our loop does not know
                    if (
                        isinstance(block, sdk.ToolUseBlock)
                        and self._bridge.own_name(block.name) != block.name
                    ):
                        self._bridge.answer(
                            ToolMessage(block.id, "Not available to subagents.", success=False)
                        )
            case sdk.SystemMessage(subtype="api_retry", data=data):
                self._retry_after = _asked_to_wait(data)
            case _:
                pass

    async def _hear(self) -> AssistantMessage:
        """The model's next message that calls tools, or its last one.

        Others, such as the half of an answer that the CLI asks it to go on with, count in the usage
        alone.
        """
        sdk = self._sdk
        texts: list[str] = []
        calls: list[ToolCall] = []
        usage: Wire = {}
        streaming = complete = False
        while True:
            message = await self._messages.get()
            match message:
                case (
                    sdk.StreamEvent(parent_tool_use_id=str())
                    | sdk.AssistantMessage(parent_tool_use_id=str())
                ):
                    continue
                case sdk.StreamEvent(
                    event={"type": "message_start", "message": {"usage": dict() as first}}
                ):
                    texts, calls, usage, streaming = [], [], first, True
                case sdk.StreamEvent(event={"type": "message_delta", "usage": dict() as last}):
                    usage = usage | {
                        name: count for name, count in last.items() if count is not None
                    }
                # comes for a stream that broke off, too
                case sdk.StreamEvent(event={"type": "message_stop"}):
                    streaming, complete = False, True
                case sdk.AssistantMessage(error=None, content=blocks):
                    usage = usage or message.usage or {}
                    texts += [block.text for block in blocks if isinstance(block, sdk.TextBlock)]
                    calls += [
                        ToolCall(block.id, *self._named(block))
                        for block in blocks
                        if isinstance(block, sdk.ToolUseBlock) and block.name != _OUTPUT_TOOL
                    ]
                    complete = any(self._bridge.awaits(call.call_id) for call in calls)
                case sdk.AssistantMessage(error=complaint):
                    self._complaint = complaint
                case sdk.ResultMessage():
                    return self._last(message)
                case None | sdk.UserMessage():
                    # a reply that was not streamed has no stop, but only a complete one has calls
                    # made
                    complete = True
                case Exception():
                    raise message
                case _:
                    continue
            if calls and complete and not streaming:
                said = _usage(usage, _SENT)
                self._reported += said
                return AssistantMessage(
                    text="".join(texts), tool_calls=tuple(calls), finish="tool_calls", usage=said
                )

    def _named(self, block: Any) -> tuple[str, str]:  # Any: the SDK's
        """A call's name and arguments as our loop knows them."""
        match block.input:
            case {"__unparsedToolInput": {"raw": str() as text}}:  # the CLI's word for broken JSON
                arguments = text
            case _:
                arguments = json.dumps(block.input, ensure_ascii=False)
        name: str = block.name
        if name in self._builtin.values():
            return name.lower(), f'{{"arguments": {arguments}}}'
        return self._bridge.own_name(name), arguments

    def _last(self, result: Any) -> AssistantMessage:  # Any: the SDK's
        """The answer with which the CLI ends.

        Raises `PromptEvaluationError` if it ends without one.
        """
        self._asking = False
        finish: Finish = "stop"
        if self._complaint == "max_output_tokens":
            finish = "length"
        elif result.stop_reason == "refusal":
            finish = "refusal"
        elif result.is_error:
            raise self._failure(result)
        total = sum(
            (_usage(one, _TOTAL) for one in (result.model_usage or {}).values()), TokenUsage()
        )
        counts = zip(astuple(total), astuple(self._reported), strict=True)
        self._reported = total
        output = result.structured_output
        text = (result.result or "") if output is None else json.dumps(output, ensure_ascii=False)
        new = TokenUsage(*(max(0, now - before) for now, before in counts))
        return AssistantMessage(text=text, finish=finish, usage=new)

    def _failure(self, result: Any) -> PromptEvaluationError:  # Any: the SDK's
        """Why the CLI gives up; its `subtype` says "success" of most failures."""
        said = str(result.result or "; ".join(result.errors or ()) or result.subtype)
        status: int | None = result.api_error_status
        if result.subtype == "error_max_structured_output_retries":
            return PromptEvaluationError(said, phase="response", code="output", provider=_PROVIDER)
        if result.terminal_reason == "prompt_too_long":
            return error_from_status(
                _PROVIDER, status or 400, message=said, code="context_length_exceeded"
            )
        if status is not None:
            return error_from_status(_PROVIDER, status, message=said, retry_after=self._retry_after)
        match self._complaint:
            case "authentication_failed":
                return error_from_request(
                    _PROVIDER, "authentication", said, "pass api_key or set ANTHROPIC_API_KEY"
                )
            case "server_error":
                return error_from_request(_PROVIDER, "connection", said)
            case "unknown":
                return error_from_reply(_PROVIDER, said)
            case _:
                return error_from_request(_PROVIDER, "provider_failed", said)


def _usage(counts: Mapping[str, Any], names: tuple[str, str, str, str]) -> TokenUsage:  # Any: JSON
    fresh, written, cached, output = (counts.get(name) or 0 for name in names)
    return TokenUsage(fresh + written + cached, output, cached)


def _asked_to_wait(retry: Mapping[str, Any]) -> str | None:  # Any: JSON
    """The seconds that the provider asked for: a wait that is longer than the CLI's own before this
    retry.
    """
    match retry:
        case {
            "error_status": 429,
            "attempt": int() as attempt,
            "retry_delay_ms": int() | float() as delay,
        }:
            own = min(_FIRST_BACKOFF_MS * 2 ** (attempt - 1), _MOST_BACKOFF_MS) * _JITTER
            return str(delay / 1000) if delay > own else None
        case _:
            return None


def _log_failing_tasks() -> None:
    """Logs what the SDK's own tasks raise, such as those that write to a CLI that has ended: nobody
    awaits them.
    """

    def log(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # Any: asyncio's own
        _log.debug("A task of the SDK failed: %s", context.get("exception") or context["message"])

    asyncio.get_running_loop().set_exception_handler(log)


def _text(content: Any) -> str:  # Any: a text, or a list of blocks
    """The text in a tool's result."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or ())
