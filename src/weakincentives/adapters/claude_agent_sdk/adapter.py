"""`ClaudeAgentSDKAdapter` runs Claude models through the Claude Agent SDK and its CLI.

The CLI runs its own agent loop, but the inner loop still controls the evaluation: each tool call
from the CLI waits until the inner loop has run it, and the model's next message answers each
request from the inner loop. Limits, events, disclosure and repairs therefore work as with any other
adapter. `bridge` offers the prompt's tools to the CLI, `turns` reads the CLI's messages,
`session_file` writes an earlier conversation for it, and `process` starts and stops it.
"""

import asyncio
import logging
import os
from binascii import a2b_base64, b2a_base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from ...content import ContentError, ContentStore, Image, Media, MediaSupport
from ...errors import missing_extra
from ...evaluation.errors import PromptEvaluationError
from ...evaluation.inner_loop import ProviderRequest, RunConfig
from ...evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolMessage,
    ToolsAdded,
    UserMessage,
    apply_tool_changes,
)
from ...event_loops import Portal, await_on, run_on
from ...filesystem import Filesystem, HostFilesystem
from ...limits import Clock, Deadline, utc_now
from ...model_settings import ModelSettings
from ...prompt.approval_rules import Approval
from ...prompt.context import ToolContext
from ...prompt.renderer import AnyRenderedPrompt
from ...prompt.tool import JsonParams, Tool, ToolResult
from ...redaction import Redactor, credentials_in
from ...resources import ResourceError
from ..claude_media import CLAUDE_MEDIA, encode_claude_media
from ..codec import AnyJson, JsonObject
from ..core import Connection, LoopAdapter
from ..provider_errors import error_from_request, redact_error
from ..schema_dialects import OPENAI, encode_output
from ..settings_encoder import name_setting
from .bridge import MAX_RESULT_CHARS, Bridge
from .permissions import approval_options, check_builtin_approval, selector
from .process import CLIProcess, StderrTail, error_from_cli
from .session_file import count_earlier, encode_new, media_message, write_session
from .settings import CLI_FIELDS, check_cli_settings, cli_options, cli_variables
from .turns import PROVIDER, AnySDK, TurnReader

__all__ = ["ClaudeAgentSDKAdapter"]

_log = logging.getLogger(__name__)

_SYSTEM_PROMPT = "Where a text names a tool `x`, call the tool that is listed as `mcp__…__x`."
# The SDK options that the adapter sets itself.
_OWN_OPTIONS = "model tools mcp_servers output_format include_partial_messages env cwd resume"
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "ENABLE_TOOL_SEARCH": "false",  # otherwise the CLI hides tools until they are searched for
}
_KEY = "ANTHROPIC_API_KEY"
_SECONDS_TO_STOP = 2.0
_SECONDS_TO_LOOK_AGAIN = 0.02


class ClaudeAgentSDKAdapter(LoopAdapter):
    """Evaluates prompts with a Claude model; each evaluation runs one process of the SDK's CLI.

    `api_key` defaults to `ANTHROPIC_API_KEY`. If `isolated` is set, the CLI gets an empty home
    directory and configuration, no settings files, and only those of this process's variables that
    set the language, paths, proxies and certificates; `env` adds variables. `start_timeout` limits
    the seconds until the CLI is ready, and `max_reply_bytes` limits the size of each message from
    the model. `builtin_tools` names the CLI's own tools to offer, such as `("Read", "Bash")`. They
    run in `cwd`, by default the root of the prompt's `HostFilesystem`, or otherwise the empty home.
    `approval` determines, by tool name, which calls to built-in tools need approval: `"arguments"`,
    or a function that receives the arguments, as in `Tool(approval=)`. Such runs require
    `approver=`, because the CLI cannot keep a call waiting for days. With `dynamic_tools`, the
    tools in an opened section are added to the running conversation; otherwise the evaluation
    restarts. `options` are further `ClaudeAgentOptions`. For tests, `transport` replaces the
    process: it gets these options and returns the SDK's `Transport`.

    If the user sends a message, the prompt becomes the system prompt, unless `options` contains
    one. To continue a conversation, the adapter writes it as a session that the CLI resumes, with
    all texts, calls and results, but without reasoning.

    Raises `ImportError` if the `claude-agent-sdk` extra is not installed.
    """

    name = PROVIDER

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_retries: int = 2,
        builtin_tools: Sequence[str] = (),
        approval: Mapping[str, Approval] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        isolated: bool = True,
        start_timeout: float = 60.0,
        max_reply_bytes: int = 64 * 1024 * 1024,
        dynamic_tools: bool = False,
        options: Mapping[str, object] | None = None,
        transport: Callable[[AnySDK], AnySDK] | None = None,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        if find_spec("claude_agent_sdk") is None:
            raise missing_extra("ClaudeAgentSDKAdapter", "the Claude Agent SDK", "claude-agent-sdk")
        super().__init__(config=config, settings=settings, clock=clock)
        if names := sorted((options or {}).keys() & _OWN_OPTIONS.split()):
            raise ValueError(
                f"options {names!r} cannot be passed because the adapter sets them; use the "
                "adapter's own arguments"
            )
        check_builtin_approval(approval or {}, builtin_tools, options or {})
        self.sdk: AnySDK = import_module("claude_agent_sdk")
        self.sdk.ClaudeAgentOptions(**(options or {}))  # raises early for an unknown name
        self.model, self.builtin_tools = model, tuple(builtin_tools)
        self.approval: dict[str, Approval] = dict(approval or {})
        self.cwd, self.transport = cwd, transport
        variables = {_KEY: api_key, "ANTHROPIC_BASE_URL": base_url}
        self._env = {
            "CLAUDE_CODE_MAX_RETRIES": str(max_retries),
            **_QUIET,
            **{name: value for name, value in variables.items() if value},
            **(env or {}),
        }
        self.isolated, self.start_timeout = isolated, start_timeout
        self._max_reply_bytes = max_reply_bytes
        self._dynamic_tools = dynamic_tools
        self.config = self.limited(self.config)
        self._options = dict(options or {})

    def check_settings(self, settings: ModelSettings) -> None:
        check_cli_settings(settings, type(self).__name__)

    def limited(self, config: RunConfig) -> RunConfig:
        if self.builtin_tools and config.parallel_tool_calls == "isolated":
            raise ValueError(
                "parallel_tool_calls='isolated' cannot be combined with built-in tools, which run "
                "in order"
            )
        chars = min(config.max_result_chars or MAX_RESULT_CHARS, MAX_RESULT_CHARS)
        return super().limited(replace(config, max_result_chars=chars))

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._dynamic_tools

    @property
    def media(self) -> MediaSupport:
        return replace(CLAUDE_MEDIA, documents_in_results=False)

    def connect(self, rendered: AnyRenderedPrompt, /) -> "_CLIConnection":
        """Returns a connection that starts the CLI with its first request."""
        return _CLIConnection(self, rendered)

    def options(
        self, further: JsonObject, stderr: StderrTail, settings: ModelSettings | None
    ) -> AnySDK:
        """Returns the SDK's options for one evaluation; `further` adds the prompt's own options."""
        values: JsonObject = {
            "model": self.model,
            "tools": list(self.builtin_tools),
            "allowed_tools": [
                *self.builtin_tools,
                *(f"mcp__{name}" for name in further["mcp_servers"]),
            ],
            "permission_mode": "dontAsk",
            "system_prompt": _SYSTEM_PROMPT,
            "include_partial_messages": True,  # these reveal when a model message is complete
            "verbatim_prompts": True,
            "max_buffer_size": self._max_reply_bytes,
            **further,
        }
        if self.isolated:
            values |= {
                "strict_mcp_config": True,
                "setting_sources": [],
                "extra_args": {"no-session-persistence": None},
            }
        return self.sdk.ClaudeAgentOptions(
            **values | self._options | cli_options(settings) | {"stderr": stderr}
        )

    @property
    def has_system_prompt(self) -> bool:
        """Whether the adapter's options contain a system prompt, which replaces our prompt."""
        return "system_prompt" in self._options

    @property
    def api_key(self) -> str | None:
        """The API key, from the adapter's `env` or this process's environment."""
        return self._env.get(_KEY) or os.environ.get(_KEY)

    def redactor(self) -> Redactor:
        """Returns a redactor for the key and for `env` values whose names suggest credentials."""
        return Redactor().extend([self.api_key, *credentials_in(self._env)])

    def stderr_tail(self) -> StderrTail:
        """Returns a collector of the CLI's stderr for one evaluation."""
        listener: AnySDK = self._options.get("stderr")
        return StderrTail(self.redactor(), listener)

    def environment(self, home: str) -> dict[str, str]:
        """Returns the environment variables that the adapter sets for the CLI."""
        if not self.isolated:
            return dict(self._env)
        env = {
            "HOME": home,
            "CLAUDE_CONFIG_DIR": f"{home}/.claude",
            "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
        }
        # The CLI's temporary files are deleted with the home directory.
        env["TMPDIR"] = f"{self._env.get('HOME', home)}/.claude"
        return env | {name: value for name, value in self._env.items() if name != _KEY}


class _CLIConnection(Connection):
    """One evaluation's CLI process, in its own event loop.

    The process does not use the caller's event loop, because a caller can have no loop or several.
    """

    def __init__(self, adapter: ClaudeAgentSDKAdapter, rendered: AnyRenderedPrompt) -> None:
        self._adapter = adapter
        self._rendered = rendered
        self._bridge = Bridge(
            adapter.builtin_tools,
            dynamic=adapter.supports_dynamic_tools,
            on_call=lambda: self._messages.put_nowait(None),
        )
        builtin_names = self._bridge.builtin_names
        if names := sorted(builtin_names.keys() & {tool.name for tool in rendered.tools}):
            raise ValueError(
                f"tools {names!r} of the prompt have the names of built-in tools; rename or "
                "remove them"
            )
        self.provider_tools = [
            Tool.from_schema(
                name=name,
                description="The CLI's own.",
                parameters=None,
                handler=self._run_builtin,
                result_type=object,
                approval=selector(adapter.approval.get(builtin_name)),
                check_schema=False,
            )
            for name, builtin_name in builtin_names.items()
        ]
        self._turns = TurnReader(adapter.sdk, self._bridge)
        self._stderr = adapter.stderr_tail()
        self._cleanup = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process: CLIProcess | None = None
        self._home = ""
        self._env: dict[str, str] = {}
        self._client: AnySDK = None
        self._connecting: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        # The CLI's messages, a `None` for each call that it makes, and finally an exception.
        self._messages: asyncio.Queue[AnySDK] = asyncio.Queue()
        self._transcript: Sequence[Message] = ()
        self._content: ContentStore | None = None
        self._first: list[Message] = []
        self._sent = 0
        self._asking = False
        self._deadline: Deadline | None = None

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        return run_on(self._open(), self._ask(request))

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return await await_on(self._open(), self._ask(request))

    def close(self) -> None:
        with self._cleanup:
            if self._loop is not None:
                run_on(self._loop, self._end())

    async def aclose(self) -> None:
        await asyncio.shield(asyncio.to_thread(self.close))

    def _open(self) -> asyncio.AbstractEventLoop:
        """Returns the event loop in which the CLI runs."""
        if self._loop is None:
            adapter = self._adapter
            self._home = self._cleanup.enter_context(
                TemporaryDirectory(prefix="wink-", ignore_cleanup_errors=True)
            )
            self._env = adapter.environment(self._home)
            portal = Portal()
            if adapter.transport is None:
                key = adapter.api_key if adapter.isolated else None
                self._process = CLIProcess(self._env, key=key, isolated=adapter.isolated)
                portal = Portal(self._process.loop)
            self._cleanup.callback(portal.close)
            self._loop = portal.loop()
            self._loop.set_exception_handler(_log_failing_task)
        return self._loop

    async def _ask(self, request: ProviderRequest) -> AssistantMessage:
        self._deadline = request.deadline
        try:
            deadline = self._adapter.deadline_of(request)
            async with asyncio.timeout(self._adapter.seconds_left(deadline)):
                self._asking = True
                self._transcript, self._content = request.transcript, request.content
                if self._client is None:
                    await self._connect(request)
                    await self._query([*self._first, *self._transcript[self._sent :]])
                else:
                    await self._send()
                return await self._receive()
        except PromptEvaluationError as error:
            redact_error(error, self._adapter.redactor())
            name_setting(error, request.settings, CLI_FIELDS)
            raise
        except Exception as error:
            redactor = self._adapter.redactor()
            cause = None if redactor.finds_in(error) else error
            raise redact_error(error_from_cli(error, str(self._stderr)), redactor) from cause

    def _run_builtin(self, params: JsonParams, *, context: ToolContext) -> ToolResult[object]:
        """Handles the CLI's own tools for the inner loop; waits while the CLI runs a call."""
        result = self._builtin_result(context.call_id, params, context.deadline)
        return run_on(self._open(), result)

    async def _builtin_result(
        self, call_id: str, arguments: JsonParams, deadline: Deadline | None
    ) -> ToolResult[object]:
        if self._client is None:  # the run was suspended for approval after this call
            return ToolResult(message="Not run: its CLI has ended. Call it again.", success=False)
        # The CLI runs a turn's calls one after another, and may still need the result of an earlier
        # one.
        self._send_answers()
        try:
            async with asyncio.timeout(self._adapter.seconds_left(deadline)):
                self._adapter.check_deadline(deadline)  # approval may take longer
                self._bridge.allow(call_id, arguments)
                answer = await asyncio.shield(self._bridge.find_call(call_id).answer)
        except TimeoutError:
            return ToolResult(message="The deadline passed.", success=False)
        # The CLI's tools can read everything that this user can, including the key in this
        # process's environment.
        return ToolResult(message=self._adapter.redactor()(answer.content), success=answer.success)

    async def _connect(self, request: ProviderRequest) -> None:
        adapter = self._adapter
        available = apply_tool_changes(request.tools, request.transcript)
        output = request.output
        further = {
            "mcp_servers": self._bridge.open(available.values()),
            "output_format": output
            and {"type": "json_schema", "schema": encode_output(output, OPENAI)["schema"]},
            "cwd": adapter.cwd or self._workspace() or self._home,
            "env": {**self._env, **cli_variables(request.settings)},
            **self._write_files(request.transcript),
        }
        if adapter.approval:
            further |= approval_options(adapter.sdk, self._bridge, tuple(adapter.approval))
        options = adapter.options(further, self._stderr, request.settings)
        transport = None if adapter.transport is None else adapter.transport(options)
        self._client = adapter.sdk.ClaudeSDKClient(options, transport=transport)
        # The SDK shields its clean-up, so cancelling would wait for a hanging process.
        self._connecting = asyncio.create_task(self._client.connect())
        await asyncio.wait([self._connecting], timeout=adapter.start_timeout)
        if not self._connecting.done():
            reason = f"the CLI was not ready after {adapter.start_timeout:g} seconds"
            remedy = "raise start_timeout or look at the machine's load"
            raise error_from_request(PROVIDER, "timeout", reason, remedy)
        await self._connecting
        if self._process is not None and not self._process.started:
            raise RuntimeError(
                "the SDK bypassed the adapter when it started the CLI, so the CLI inherited every "
                "environment variable of this process"
            )
        self._reader = asyncio.create_task(self._read())

    def _write_files(self, transcript: Sequence[Message]) -> JsonObject:
        """Writes instructions and earlier messages to files; returns options with the paths.

        Instructions are passed in a file because the size of a process argument is limited.
        """
        folder = Path(self._home, ".wink")
        folder.mkdir()
        options: JsonObject = {}
        begin, earlier = 0, count_earlier(transcript)
        first: list[Message] = []
        if isinstance(transcript[0], Instructions) and not self._adapter.has_system_prompt:
            begin, path = 1, folder / "system.md"
            first = media_message(transcript[0])
            path.write_text(f"{_SYSTEM_PROMPT}\n\n{transcript[0].content}")
            options["system_prompt"] = {"type": "file", "path": str(path)}
        if earlier:
            path = folder / f"{uuid4()}.jsonl"
            messages = [*first, *transcript[begin:earlier]]
            write_session(path, messages, self._bridge.encode_call, self._encode_media)
            options["resume"] = str(path)
            first = []
        self._first = first
        self._sent = max(begin, earlier)
        return options

    def _workspace(self) -> str | None:
        """Returns the directory that contains the prompt's files, if the CLI can access it too."""
        prompt = self._rendered.prompt
        if prompt is None or not self._adapter.builtin_tools:
            return None
        try:
            files = prompt.resources.get(Filesystem)
        except ResourceError:  # the prompt has no filesystem, or one per tool call
            return None
        return str(files.root) if isinstance(files, HostFilesystem) else None

    async def _send(self) -> None:
        """Sends the CLI any messages that the inner loop has added to the transcript.

        New tools are sent first, because the CLI can continue as soon as it has a result. The CLI
        keeps removed tools, so the inner loop rejects calls to them.
        """
        messages = self._transcript[self._sent :]
        for message in messages:
            if isinstance(message, ToolsAdded):
                await self._add_tools(message)
        self._send_answers()
        if any(isinstance(message, UserMessage) for message in messages):
            await self._query(messages)

    async def _query(self, messages: Sequence[Message]) -> None:
        self._sent = len(self._transcript)
        content = encode_new(messages, self._encode_media)
        await self._client.query(content if isinstance(content, str) else _user(content))

    async def _add_tools(self, added: ToolsAdded) -> None:
        server = self._bridge.add(added.tools)
        await self._client.toggle_mcp_server(server, enabled=False)
        await self._client.toggle_mcp_server(server, enabled=True)
        status = await self._client.get_mcp_status()
        listed = {
            tool["name"]
            for entry in status["mcpServers"]
            if entry["name"] == server
            for tool in entry.get("tools", ())
        }
        # The documentation does not guarantee that the CLI reads the list again.
        if not {tool.name for tool in added.tools} <= listed:
            reason = "the CLI did not take the tools of a section"
            raise error_from_request(PROVIDER, "client_error", reason, "use dynamic_tools=False")

    def _send_answers(self) -> None:
        for message in self._transcript[self._sent :]:
            if isinstance(message, ToolMessage):
                media = message.media if message.success else ()
                self._bridge.answer(message, [self._encode_result(item) for item in media])
        self._sent = len(self._transcript)

    def _encode_media(self, media: Media) -> JsonObject:
        """Encodes an image or a document as a content block in a message."""
        return encode_claude_media(media, self._base64(media))

    def _encode_result(self, media: Media) -> JsonObject:
        """Encodes an image or a text from a tool as MCP content."""
        # The CLI tells the model only that a PDF was saved.
        self._check(self._adapter.media.problem_in_result(media), media)
        data = self._base64(media)
        if isinstance(media, Image):
            return {"type": "image", "data": data, "mimeType": media.mime}
        return {"type": "text", "text": a2b_base64(data).decode()}

    def _base64(self, media: Media) -> str:
        """Returns `media` as base64, or `""` for a URL; can raise `PromptEvaluationError`."""
        self._check(self._adapter.media.problem(media), media)
        if media.url or self._content is None:
            return ""
        try:
            return b2a_base64(self._content.load(media), newline=False).decode()
        except ContentError as error:
            raise self._content_error(f"{error}") from error

    def _check(self, problem: str, media: Media) -> None:
        if problem:
            raise self._content_error(f"cannot send {media}: {problem}")

    def _content_error(self, message: str) -> PromptEvaluationError:
        return error_from_request(PROVIDER, "content", f"{self._adapter.model}: {message}")

    async def _receive(self) -> AssistantMessage:
        """Returns the model's next message with tool calls, or its final one."""
        self._turns.begin()
        while True:
            message = await self._messages.get()
            if isinstance(message, Exception):
                raise message
            if isinstance(message, self._adapter.sdk.ResultMessage):
                self._asking = False
            if answer := self._turns.read(message):
                return answer

    async def _read(self) -> None:
        """Reads the CLI's messages as they arrive; the inner loop may be waiting for a result."""
        end: Exception = self._adapter.sdk.CLIConnectionError("the CLI ended without a result")
        try:
            async for message in self._client.receive_messages():
                self._resolve_calls(message)
                self._messages.put_nowait(message)
        except Exception as error:
            end = error
        finally:
            self._bridge.end()
            self._messages.put_nowait(end)

    def _resolve_calls(self, message: AnySDK) -> None:
        """Sets the results of built-in tool calls, and rejects calls from subagents."""
        sdk = self._adapter.sdk
        match message:
            case sdk.UserMessage(content=list() as blocks):
                for block in blocks:
                    if isinstance(block, sdk.ToolResultBlock):
                        text, success = _text(block.content), not block.is_error
                        self._bridge.answer(ToolMessage(block.tool_use_id, text, success))
            case sdk.AssistantMessage(parent_tool_use_id=str(), content=blocks):
                for block in blocks:
                    if isinstance(block, sdk.ToolUseBlock) and self._bridge.find_tool(block.name):
                        refusal = "Not available to subagents."  # the inner loop cannot run it
                        self._bridge.answer(ToolMessage(block.id, refusal, success=False))
            case _:
                pass

    async def _end(self) -> None:
        """Stops the CLI and kills any processes that its tools left running.

        An idle CLI has up to two seconds to stop on its own. If a request is in progress, the CLI
        is killed immediately.
        """
        if self._client is None:
            return
        process = self._process
        if process is not None:
            # Without `/proc`, descendants are found only while their parents are running.
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
        except Exception as error:  # the evaluation already has a result or a worse failure
            text = self._adapter.redactor()(str(error))
            _log.warning("Stopping the CLI failed", extra={"error": text})
        finally:
            if self._reader is not None:
                self._reader.cancel()


def _log_failing_task(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Logs exceptions in SDK tasks that nobody awaits, such as writers to a stopped CLI."""
    _log.debug("A task of the SDK failed: %s", context.get("exception") or context["message"])


async def _user(blocks: list[JsonObject]) -> AsyncIterator[JsonObject]:
    """Yields one user message in the form that the SDK accepts for several blocks."""
    yield {
        "type": "user",
        "message": {"role": "user", "content": blocks},
        "parent_tool_use_id": None,
    }


def _text(content: AnyJson) -> str:
    """Returns the text of a tool result, which can be a string or a list of blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or ())
