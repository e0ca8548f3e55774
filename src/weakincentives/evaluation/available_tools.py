"""The tools and sections that are open in one evaluation, and how calls open and close them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..errors import SerdeError
from ..prompt.errors import PromptError, ToolValidationError, VisibilityExpansionRequired
from ..prompt.model_json import read_without_nulls
from ..prompt.progressive_disclosure import (
    CloseSectionResult,
    OpenSectionsParams,
    ReadSectionResult,
    disclosure_handler,
    disclosure_tool,
    how_to_open,
)
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.renderer import AnyRenderedPrompt
from ..prompt.tool import AnyTool, AnyToolHandler
from ..protocols import SessionProtocol
from ..runtime.events import EventIds, ToolsInjected, ToolsWithdrawn
from ..visibility import SectionDecisions, SectionPath, SectionVisibility, SetVisibilityOverride
from .conversation import Conversation
from .logged_run import LoggedCall
from .messages import ToolCall, ToolExecutionOutcome, unwrap_arguments

__all__ = ["AvailableTools", "with_disclosure_tools", "with_provider_tools"]

_log = logging.getLogger(__name__)


class AvailableTools:
    """The tools that the model may call now; `apply` changes them between two turns.

    Each change of a section's visibility is dispatched to the session, for later conversations.
    """

    def __init__(
        self,
        rendered: AnyRenderedPrompt,
        session: SessionProtocol,
        publish: Callable[[object], None],
        ids: EventIds,
    ) -> None:
        self._session = session
        self._publish, self._ids = publish, ids
        self._tools: dict[str, AnyTool] = {tool.name: tool for tool in rendered.tools}
        self._view = rendered.view.copy()  # the same rendered prompt may be evaluated elsewhere
        # what this turn has read: the sections, which `apply` opens, and the names of their tools
        self._read: dict[SectionPath, SectionVisibility] = {}
        self._arriving: set[str] = set()

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """The tools that the model may call now."""
        return tuple(self._tools.values())

    @property
    def decisions(self) -> SectionDecisions:
        """The visibility of sections, and the answers that their conditions gave so far."""
        return self._view.decisions

    def get(self, name: str) -> AnyTool | None:
        """Returns the tool of that name if the model may call it."""
        return self._tools.get(name)

    def named(self, names: Sequence[str]) -> tuple[AnyTool, ...]:
        """Returns tools of the prompt, open or not; raises `LookupError` for an unknown name."""
        tools = [self._view.registry.get_tool(name) for name in names]
        if None in tools:
            raise LookupError(f"the prompt has no tool {names[tools.index(None)]!r}")
        return tuple([tool for tool in tools if tool is not None])

    def outcome_of(self, called: LoggedCall) -> ToolExecutionOutcome:
        """Returns the outcome of a call of a record, without tools that the prompt has lost."""
        sections, answer = called.sections, called.answer
        outcome = ToolExecutionOutcome(
            called.call.call_id,
            answer,
            answer.success,
            error=called.error,
            request=None if called.request is None else called.request.to_error(),
        )
        if sections is None:
            return outcome
        known = [self._view.registry.get_tool(name) for name in sections.tools]
        return replace(
            outcome,
            expanded_tools=tuple([tool for tool in known if tool is not None]),
            section_key=sections.section_key,
            opened=sections.opened,
            closed_tools=sections.closed_tools,
            shown=sections.shown,
            closed=sections.closed,
        )

    def handler(self, tool: AnyTool) -> AnyToolHandler | None:
        """Returns the tool's handler; a disclosure tool's reads the sections as they are now."""
        if tool.handler is None or tool.name not in RESERVED_TOOL_NAMES:
            return tool.handler
        return disclosure_handler(tool.name, self._view, self._read)

    def visibility(self) -> Mapping[SectionPath, SectionVisibility]:
        """Returns the visibility of all sections that are shown now."""
        return {node.path: shown for node, shown in self._view.visible_sections().items()}

    def rejection(self, name: str) -> str:
        """Returns what the model reads when it calls a tool that is not available."""
        if name in self._arriving:
            return f"Unknown tool {name!r}. It is available from the next turn on."
        try:
            remedy = how_to_open(self._view, name)
        except PromptError:  # a condition fails, so the section cannot be opened
            remedy = None
        if remedy is not None:
            return f"Tool {name!r} is closed; {remedy}."
        names = ", ".join(sorted(self._tools)) or "none"
        return f"Unknown tool {name!r}. Available tools: {names}."

    def admit(
        self, call: ToolCall, max_chars: int | None
    ) -> tuple[AnyTool, AnyToolHandler, object]:
        """Returns the tool, its handler and the parsed params of a call.

        Raises `ToolValidationError`, whose text the model reads, also for arguments of more than
        `max_chars` characters.
        """
        name = call.name
        tool = self._tools.get(name)
        if tool is None:
            raise ToolValidationError(self.rejection(name))
        handler = self.handler(tool)
        if handler is None:
            raise ToolValidationError(f"Tool {name!r} cannot be called here.")
        size = len(call.arguments)
        if max_chars is not None and size > max_chars:
            problem = f"{size:,} characters, and at most {max_chars:,} are read. Send less at once."
            raise ToolValidationError(f"Invalid arguments for {name!r}: {problem}")
        try:
            params, _ = read_without_nulls(tool.parse_params, unwrap_arguments(call.arguments))
        except SerdeError as error:
            issues = "; ".join(map(str, error.issues))
            raise ToolValidationError(f"Invalid arguments for {name!r}: {issues}") from error
        return tool, handler, params

    def note(self, answer: object, params: object) -> None:
        """Records which sections the answer or the request of a disclosure tool opens or closes.

        A section that the model read opens only at the end of the turn, in `apply`.
        """
        match answer, params:
            case ReadSectionResult(expanded_tools=tools, opened=paths), _:
                self._read |= dict.fromkeys(paths, SectionVisibility.FULL)
                self._arriving.update([tool.name for tool in tools])
            case CloseSectionResult(closed=path), _:
                self._view = self._view.with_visibility({path: SectionVisibility.SUMMARY})
            case VisibilityExpansionRequired(requested_overrides=requested), OpenSectionsParams():
                self._view = self._view.with_visibility(requested)
            case _:
                pass

    def remember(self, path: SectionPath, visibility: SectionVisibility) -> None:
        """Stores in the session what the model opened or closed."""
        self._session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))

    def restore(self, change: ToolExecutionOutcome) -> None:
        """Adds and removes tools as `apply` has done before, which the session remembers."""
        if change.closed:
            self._view = self._view.with_visibility({change.closed: SectionVisibility.SUMMARY})
        for name in change.closed_tools:
            self._tools.pop(name, None)
        opened = dict.fromkeys(change.opened, SectionVisibility.FULL)
        self._view = self._view.with_visibility(opened) if opened else self._view
        self._tools = {tool.name: tool for tool in change.expanded_tools} | self._tools

    def apply(self, change: ToolExecutionOutcome) -> None:
        """Adds and removes the tools of sections that a call of the last turn opened or closed."""
        key = change.section_key
        removed = [name for name in change.closed_tools if self._tools.pop(name, None) is not None]
        if removed:
            self._publish(ToolsWithdrawn(tuple(removed), key, **self._ids))
        self._read.clear()
        self._arriving.clear()
        if change.opened:
            self._view = self._view.with_visibility(
                dict.fromkeys(change.opened, SectionVisibility.FULL)
            )
        added: list[str] = []
        for tool in change.expanded_tools:
            if tool.name in self._tools:
                duplicate = {"tool_name": tool.name}
                _log.warning("Skipping duplicate tool during injection", extra=duplicate)
                continue
            added.append(tool.name)
            self._tools[tool.name] = tool
        for path in change.opened:
            self.remember(path, SectionVisibility.FULL)
        if added:
            fields = {"section_key": key, "tool_count": len(added), "tool_names": added}
            _log.info("Injected tools from section expansion", extra=fields)
            self._publish(ToolsInjected(tuple(added), key, **self._ids))


def with_disclosure_tools(
    rendered: AnyRenderedPrompt, conversation: Conversation
) -> AnyRenderedPrompt:
    """Returns the prompt with the disclosure tools that an earlier run of the conversation had."""
    names = RESERVED_TOOL_NAMES & conversation.available_tools.keys()
    names -= {tool.name for tool in rendered.tools}
    tools = [disclosure_tool(name, rendered.view) for name in sorted(names)]
    return replace(rendered, tools=(*rendered.tools, *tools)) if tools else rendered


def with_provider_tools(
    rendered: AnyRenderedPrompt, tools: Sequence[AnyTool], *, can_ask: bool
) -> AnyRenderedPrompt:
    """Returns the prompt with the tools that the provider runs.

    Raises `ValueError` if some need approval and nobody can be asked: their calls cannot outlast
    the connection, so such a run cannot wait.
    """
    asking = [tool.name for tool in tools if tool.approval is not None]
    if asking and not can_ask:
        raise ValueError(
            f"the provider itself runs {asking}, which need approval, so these calls cannot be "
            "suspended; pass approver="
        )
    return replace(rendered, tools=(*rendered.tools, *tools)) if tools else rendered
