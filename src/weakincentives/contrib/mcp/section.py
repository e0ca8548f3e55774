"""A section that adds an MCP server's tools to a prompt, built only from the server's lock.

This module does not start a server or import the SDK until a tool is first called.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ...content import MediaSupport
from ...displays import cut
from ...limits import utc_now
from ...prompt.approval_rules import Approval, ApprovalMode, check_approval
from ...prompt.context import ToolContext
from ...prompt.errors import PromptValidationError
from ...prompt.function_tools import as_tool
from ...prompt.sections import AnySection, MarkdownSection, SectionArguments
from ...prompt.tool import MAX_DESCRIPTION, AnyTool, Effect, JsonParams, Tool, ToolResult
from ...protocols import Resources
from ...resources import Binding, ResourceError, ResourceRegistry
from ...serde import Json
from ...visibility import SectionVisibility
from .connection import Connection
from .elicitation import Elicit
from .lock import ServerLock, ToolLock, lock_path, model_names, read_lock
from .server_errors import ServerError

if TYPE_CHECKING:
    from .state import ServerState

__all__ = ["MCPSection", "ServerKey", "StateKey"]

_MAX_SUMMARY = 300


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The resource key for the connection to a server.

    Sections with equal locks and the same `elicit` share the connection.
    """

    name: str
    lock: ServerLock = field(repr=False, hash=False)
    elicit: Elicit | None = field(repr=False, hash=False)

    def __call__(self, resources: Resources) -> Connection:
        return Connection(self.lock, self.elicit)


@dataclass(frozen=True, slots=True)
class StateKey:
    """The resource key for a server's folder."""

    server: ServerKey
    folder: str

    def __call__(self, resources: Resources) -> "ServerState":
        # Import it here: it takes a third of the package's import time, and only servers with a
        # folder need it.
        from .state import ServerState

        try:
            return ServerState(self.folder, resources.get(self.server))
        except (OSError, ValueError) as error:
            remedy = "; create it, or correct folder=" * isinstance(error, FileNotFoundError)
            raise ResourceError(
                f"cannot open the folder of MCP server {self.server.name!r}: {error}{remedy}"
            ) from error


class MCPSection(MarkdownSection[None]):
    """A section with an MCP server's tools, summarized until the model opens it.

    The section is built from the lock file that `wink mcp lock` writes, which is
    `.weakincentives/mcp/SERVER.json` unless `lock` is another path or a `ServerLock`. The server
    starts with the first tool call and stops when the prompt's resources are closed. All of a
    server's sections in a prompt share it.

    `include` and `exclude` select tools with globs over the server's tool names. `groups` maps
    titles of child sections to globs; each tool belongs to the first matching group, or to this
    section if none matches. `effects` maps globs to effects; the first match applies. For other
    tools, the annotations determine the effect: `"pure"` if read-only, `"repeatable"` if
    idempotent, otherwise `"at_most_once"`. `folder` is the server's data folder, which is restored
    if a call that is not pure fails. `elicit` answers the questions that the server asks the user;
    without it, the server is told that it cannot ask any. A call takes at most `timeout` seconds,
    including the user's answers: 60 by default, or 600 with `elicit`.

    `approval` applies to all tools that are not pure, including tools in groups. It cannot be
    `"effects"`, because a server acts as soon as it is called; `"effects"` from a selector is
    treated as `"arguments"`.

    Raises `PromptValidationError` if the lock cannot be read, if a glob does not match any tool, or
    for `approval="effects"`.
    """

    def __init__(
        self,
        server: str,
        *,
        title: str | None = None,
        include: Sequence[str] = ("*",),
        exclude: Sequence[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None,
        effects: Mapping[str, Effect] | None = None,
        lock: str | os.PathLike[str] | ServerLock | None = None,
        folder: str | os.PathLike[str] | None = None,
        elicit: Elicit | None = None,
        timeout: float | None = None,
        **others: Unpack[SectionArguments[None]],
    ) -> None:
        if not isinstance(lock, ServerLock):
            lock = read_lock(lock_path(server) if lock is None else Path(lock))
        groups, effects, title = groups or {}, effects or {}, title or server
        self.lock = lock = replace(lock, name=server)
        default = 60.0 if elicit is None else 600.0
        self.timeout = default if timeout is None else timeout
        self._server = ServerKey(server, lock, elicit)
        self._state = None if folder is None else StateKey(self._server, os.fspath(folder))
        names = [tool.name for tool in lock.tools]
        named = {f"groups[{group!r}]": globs for group, globs in groups.items()}
        options = {"include": include, "exclude": exclude, "effects": effects, **named}
        _check_globs(server, names, options)
        approval = _by_arguments(server, others.pop("approval", None))
        own = [name for name in names if _fits(name, include) and not _fits(name, exclude)]
        children: list[AnySection] = []
        for group, globs in groups.items():
            members = [name for name in own if _fits(name, globs)]
            own = [name for name in own if name not in members]
            text, tools = self._contents(group, members, effects, approval)
            section = MarkdownSection(
                title=group,
                template=text,
                literal=True,
                summary=_summary(group, [tool.name for tool in tools]),
                tools=tools,
                visibility=SectionVisibility.SUMMARY,
            )
            children.append(section)
        text, tools = self._contents(title, own, effects, approval)
        shown = [*groups, *[tool.name for tool in tools]]
        others.setdefault("visibility", SectionVisibility.SUMMARY)
        others["summary"] = others.get("summary") or _summary(f"Tools of {title}", shown)
        others["children"] = (*children, *(others.get("children") or ()))
        others["tools"] = (
            *tools,
            *[
                tool if tool.approval is not None else replace(tool, approval=approval)
                for tool in map(as_tool, others.get("tools") or ())
            ],
        )
        text = "\n\n".join(filter(None, [lock.instructions, text]))
        super().__init__(title=title, template=text, literal=True, **others)

    def resources(self) -> ResourceRegistry:
        """Binds the server's connection, and its folder if there is one."""
        # Eager, so that rolling back the first call does not close them.
        connection = Binding(self._server, self._server, eager=True)
        if self._state is None:
            return ResourceRegistry.of(connection)
        return ResourceRegistry.of(connection, Binding(self._state, self._state, eager=True))

    def _contents(
        self,
        title: str,
        names: Sequence[str],
        effects: Mapping[str, Effect],
        approval: Approval | None,
    ) -> tuple[str, list[AnyTool]]:
        """Returns a section's tools, and a text with the tool descriptions that are too long."""
        locks = {tool.name: tool for tool in self.lock.tools}
        shown = {name: shown for shown, name in model_names(self.lock.name, [*locks]).items()}
        long, tools = list[str](), list[AnyTool]()
        for name in names:
            lock, effect = locks[name], _effect(locks[name], effects)
            description = lock.description.strip() or lock.title or name
            if len(description) > MAX_DESCRIPTION:
                long.append(f"`{shown[name]}`: {description}")
                note = f"… (Read the whole description in the section {title!r}.)"[:MAX_DESCRIPTION]
                description = f"{description[: MAX_DESCRIPTION - len(note)]}{note}"
            state = None if effect == "pure" else self._state
            handler = _Handler(self._server, name, effect, self.timeout, state)
            tool = Tool.from_schema(
                name=shown[name],
                description=description,
                parameters=lock.input_schema,
                handler=handler.call,
                result_type=object,  # avoids inspecting the handler's annotations
                effect=effect,
                approval=None if effect == "pure" else approval,
                check_schema=False,  # already checked by `wink mcp lock`
            )
            tools.append(tool)
        return "\n\n".join(long), tools


@dataclass(frozen=True, slots=True)
class _Handler:
    """Calls one of a server's tools."""

    server: ServerKey
    tool: str
    effect: Effect
    timeout: float
    state: StateKey | None

    async def call(self, params: JsonParams, /, *, context: ToolContext) -> ToolResult[Json]:
        """Returns the server's result, or a failure that explains why there is none."""
        connection = context.resources.get(self.server)
        seconds = self.timeout
        if context.deadline is not None:
            seconds = min(seconds, context.deadline.remaining(utc_now()).total_seconds())
        try:
            if self.state is not None:
                context.resources.get(self.state).record(seconds=seconds)
            result = await connection.call(
                self.tool,
                params,
                repeatable=self.effect in {"pure", "repeatable"},
                seconds=seconds,
                publish=context.event_bus.publish,
                context=context,
            )
            return _without_unsupported(result, context.adapter.media)
        except (ServerError, OSError) as error:  # OSError: the folder cannot be copied
            return ToolResult(str(error), success=False)


def _without_unsupported(result: ToolResult[Json], support: MediaSupport) -> ToolResult[Json]:
    """Removes unsupported media from the result, and mentions them in its message."""
    message = result.message
    for media in filter(support.problem, result.media):
        marker = str(media)
        note = f"{marker[:-1]}, {media.mime}, {media.size:,} bytes, which you cannot see]"
        message = message.replace(marker, note)
    shown = [media for media in result.media if not support.problem(media)]
    return replace(result, message=message, media=shown)


def _check_globs(server: str, names: Sequence[str], options: Mapping[str, Iterable[str]]) -> None:
    for option, globs in options.items():
        if isinstance(globs, str):
            raise PromptValidationError(
                f"MCPSection({server!r}): {option} must be a list, such as [{globs!r}], got a "
                "string"
            )
        for glob in globs:
            if not any(fnmatchcase(name, glob) for name in names):
                raise PromptValidationError(
                    f"MCPSection({server!r}): {option}: {glob!r} matches no tool of the server; "
                    f"it has {', '.join(names)}"
                )


def _by_arguments(server: str, approval: Approval | None) -> Approval | None:
    """Returns an approval that makes every call wait for a decision."""
    check_approval(f"MCPSection({server!r})", approval)
    if approval == "effects":
        raise PromptValidationError(
            f"MCPSection({server!r}): the effects of a server cannot be previewed; use "
            "approval='arguments'"
        )
    if not callable(approval):
        return approval
    selector = approval

    @wraps(selector)  # keeps the parameter names, which determine the call's arguments
    def select(*args: object, **names: object) -> ApprovalMode | None:
        return None if selector(*args, **names) is None else "arguments"

    return select


def _summary(title: str, names: Sequence[str]) -> str:
    text = f"{title}: {', '.join(names)}"
    return cut(text, _MAX_SUMMARY, counted=False)


def _fits(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _effect(tool: ToolLock, effects: Mapping[str, Effect]) -> Effect:
    for glob, effect in effects.items():
        if fnmatchcase(tool.name, glob):
            return effect
    if tool.annotations.get("readOnlyHint") is True:
        return "pure"
    return "repeatable" if tool.annotations.get("idempotentHint") is True else "at_most_once"
