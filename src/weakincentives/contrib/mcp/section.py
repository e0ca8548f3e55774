"""The section that gives a prompt the tools of an MCP server, built from the server's lock alone.

Nothing here starts a server or imports the SDK: the first call of a tool does.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from typing import Any, Unpack

from ...content import MediaSupport
from ...displays import cut
from ...limits import utc_now
from ...prompt.approval import Approval, ApprovalMode, check_approval
from ...prompt.context import ToolContext
from ...prompt.errors import PromptValidationError
from ...prompt.sections import AnySection, MarkdownSection, Section, SectionArguments
from ...prompt.tool import MAX_DESCRIPTION, AnyTool, Effect, JsonParams, Tool, ToolResult
from ...protocols import Resources
from ...resources import Binding, ResourceError, ResourceRegistry
from ...serde import Json
from ...visibility import SectionPath, SectionVisibility
from .connection import ServerKey
from .elicitation import Elicit
from .lock import ServerLock, ToolLock, lock_path, model_names, read_lock
from .server_errors import ServerError

__all__ = ["MCPSection"]

_MAX_SUMMARY = 300


class MCPSection(Section[None]):
    """A section with the tools of an MCP server, summarized until the model opens it.

    It is built from the lock file that `wink mcp lock` writes, `.weakincentives/mcp/SERVER.json`
    unless `lock` names another or is a `ServerLock`. The first call of a tool starts the server,
    and the end of the prompt's resources ends it. Sections of one server in a prompt share it.

    `include` and `exclude` choose tools by globs over the server's names. `groups` maps titles of
    child sections to globs; each tool goes to the first group that fits, or else stays here.
    `effects` maps globs to effects, the first that fits counts; for other tools the annotations do:
    `"pure"` if read-only, `"repeatable"` if idempotent, else `"at_most_once"`. `folder` is the
    folder of the server's data: if a call that is not pure fails, the folder is put back. `elicit`
    answers what the server asks a person; without it the server is told that nobody can be asked. A
    call takes at most `timeout` seconds, the person's answers included: 60 by default, 600 with
    `elicit`.

    `approval` holds for all tools that are not pure, those of groups too. It cannot be `"effects"`,
    since a server acts when it is called; a selector's `"effects"` means `"arguments"`.

    Raises `PromptValidationError` for a lock that cannot be read, for globs that fit no tool and
    for `approval="effects"`.
    """

    literal = True  # a server's texts may hold any `$`

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
        self.lock = lock = replace(lock, name=server)
        self.server_key = ServerKey(server, lock, elicit)
        self.folder = None if folder is None else os.fspath(folder)
        default = 60.0 if elicit is None else 600.0
        self.timeout = default if timeout is None else timeout
        title = title or server
        names = [tool.name for tool in lock.tools]
        for option, globs in {
            "include": include,
            "exclude": exclude,
            "effects": effects or {},
            **{f"groups[{group!r}]": globs for group, globs in (groups or {}).items()},
        }.items():
            _check_globs(server, option, globs, names)
        chosen = [name for name in names if _fits(name, include) and not _fits(name, exclude)]
        approval = _by_arguments(server, others.pop("approval", None))
        group_of: dict[str, str] = {}
        for group, globs in (groups or {}).items():
            fitting = {name: group for name in chosen if _fits(name, globs)}
            group_of = fitting | group_of  # the first group that fits wins
        titles = dict.fromkeys(names, title) | group_of
        tools = self._tools_by_name(effects or {}, approval, titles)
        children: list[AnySection] = []
        for group in groups or {}:
            members = [name for name in chosen if group_of.get(name) == group]
            text = self._long_descriptions(members, tools)
            children.append(_group(group, [tools[name] for name in members], text))
        chosen = [name for name in chosen if name not in group_of]
        own = [tools[name] for name in chosen]
        self._texts = (lock.instructions, self._long_descriptions(chosen, tools))
        shown = [*[child.title for child in children], *[tool.name for tool in own]]
        others.setdefault("visibility", SectionVisibility.SUMMARY)
        others["summary"] = others.get("summary") or _summary(f"Tools of {title}", shown)
        others["children"] = (*children, *(others.get("children") or ()))
        others["tools"] = (
            *own,
            *[
                tool if tool.approval is not None else replace(tool, approval=approval)
                for tool in others.get("tools") or ()
            ],
        )
        super().__init__(title=title, **others)

    def body_text(self) -> str:
        """The server's instructions, and the descriptions that are too long for a tool."""
        return "\n\n".join(filter(None, self._texts))

    def render_body(self, params: None, *, path: SectionPath) -> str:
        return self.body_text()

    def resources(self) -> ResourceRegistry:
        """Binds the connection to the server, and its state if there is one."""
        # Eager, so that the rollback of the first call does not close them.
        key = self.server_key
        connection = Binding(key, lambda _: key(), eager=True)
        if self.folder is None:
            return ResourceRegistry.of(connection)
        # A third of what this package takes to import, and only servers with a state need it.
        from .state import ServerState, StateKey

        state = StateKey(key, self.folder)

        def open_state(resources: Resources) -> ServerState:
            try:
                return state(resources.get(key))
            except (OSError, ValueError) as error:
                remedy = "; create it, or correct folder=" * isinstance(error, FileNotFoundError)
                raise ResourceError(
                    f"the folder of MCP server {key.name!r} cannot be opened: {error}{remedy}"
                ) from error

        return ResourceRegistry.of(connection, Binding(state, open_state, eager=True))

    def _long_descriptions(self, names: Sequence[str], tools: Mapping[str, AnyTool]) -> str:
        """Returns the whole descriptions of tools whose own description is only the beginning."""
        texts = {tool.name: tool.description.strip() for tool in self.lock.tools}
        long = [name for name in names if len(texts[name]) > MAX_DESCRIPTION]
        return "\n\n".join([f"`{tools[name].name}`: {texts[name]}" for name in long])

    def _tools_by_name(
        self,
        effects: Mapping[str, Effect],
        approval: Approval | None,
        titles: Mapping[str, str],
    ) -> dict[str, AnyTool]:
        """Returns the tools of the whole lock by the server's names."""
        locks = {tool.name: tool for tool in self.lock.tools}
        tools: dict[str, AnyTool] = {}
        for model_name, name in model_names(self.lock.name, list(locks)).items():
            effect = _effect(locks[name], effects)
            handler = _Handler(self.server_key, name, effect, self.timeout, self.folder)
            tools[name] = Tool.from_schema(
                name=model_name,
                description=_description(locks[name], titles[name]),
                parameters=locks[name].input_schema,
                handler=handler.call,
                result_type=object,  # which needs no look at the handler's annotations
                effect=effect,
                approval=None if effect == "pure" else approval,
                check_schema=False,  # `wink mcp lock` has checked it
            )
        return tools


@dataclass(frozen=True, slots=True)
class _Handler:
    """Calls one tool of a server."""

    server: ServerKey
    tool: str
    effect: Effect
    timeout: float
    folder: str | None

    async def call(self, params: JsonParams, /, *, context: ToolContext) -> ToolResult[Json]:
        """Returns the server's answer, or a failure that says why there is none."""
        connection = context.resources.get(self.server)
        seconds = self.timeout
        if context.deadline is not None:
            seconds = min(seconds, context.deadline.remaining(utc_now()).total_seconds())
        try:
            if self.folder is not None and self.effect != "pure":
                from .state import StateKey

                key = StateKey(self.server, self.folder)
                context.resources.get(key).record(seconds=seconds)
            result = await connection.call(
                self.tool,
                params,
                repeatable=self.effect in {"pure", "repeatable"},
                seconds=seconds,
                publish=context.event_bus.publish,
                context=context,
            )
            return _without_unsupported(result, context.adapter.media)
        except (ServerError, OSError) as error:  # OSError: the state cannot be copied
            return ToolResult(str(error), success=False)


def _without_unsupported(result: ToolResult[Json], support: MediaSupport) -> ToolResult[Json]:
    """Returns the result without media that the model cannot see, of which its message says so."""
    message = result.message
    for media in filter(support.problem, result.media):
        marker = str(media)
        note = f"{marker[:-1]}, {media.mime}, {media.size:,} bytes, which you cannot see]"
        message = message.replace(marker, note)
    shown = [media for media in result.media if not support.problem(media)]
    return replace(result, message=message, media=shown)


def _check_globs(server: str, option: str, globs: Iterable[str], names: Sequence[str]) -> None:
    if isinstance(globs, str):
        raise PromptValidationError(
            f"MCPSection({server!r}): {option} is the text {globs!r}; give a list, [{globs!r}]"
        )
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise PromptValidationError(
                f"MCPSection({server!r}): {option}: {glob!r} fits no tool of the server; "
                f"it has {', '.join(names)}"
            )


def _by_arguments(server: str, approval: Approval | None) -> Approval | None:
    """Returns the approval with which no call is made before the person has decided."""
    check_approval(f"MCPSection({server!r})", approval)
    if approval == "effects":
        raise PromptValidationError(
            f"MCPSection({server!r}): what a server does cannot be shown before it happens; "
            "use approval='arguments'"
        )
    if not callable(approval):
        return approval
    selector = approval

    @wraps(selector)  # the names of its parameters say what it is called with
    def select(*args: Any, **names: Any) -> ApprovalMode | None:  # Any: whatever it takes
        return None if selector(*args, **names) is None else "arguments"

    return select


def _group(title: str, tools: Sequence[AnyTool], text: str) -> AnySection:
    return MarkdownSection(
        title=title,
        template=text,
        literal=True,
        summary=_summary(title, [tool.name for tool in tools]),
        tools=tools,
        visibility=SectionVisibility.SUMMARY,
    )


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


def _description(tool: ToolLock, title: str) -> str:
    text = tool.description.strip() or tool.title or tool.name
    if len(text) <= MAX_DESCRIPTION:
        return text
    note = f"… (Read the whole description in the section {title!r}.)"[:MAX_DESCRIPTION]
    return f"{text[: MAX_DESCRIPTION - len(note)]}{note}"
