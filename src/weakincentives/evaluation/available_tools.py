"""The open tools and sections of one evaluation, and how calls open and close them."""

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

    Each change to a section's visibility is dispatched to the session, for later conversations.
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
        # the sections that this turn has read, which `apply` opens, and the names of their tools
        self._read: dict[SectionPath, SectionVisibility] = {}
        self._arriving: set[str] = set()

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """The tools that the model may call now."""
        return tuple(self._tools.values())

    @property
    def decisions(self) -> SectionDecisions:
        """The visibility of each section, and the results of the conditions checked so far."""
        return self._view.decisions

    def get(self, name: str) -> AnyTool | None:
        """Returns the tool with this name if the model may call it."""
        return self._tools.get(name)

    def outcome_of(self, called: LoggedCall) -> ToolExecutionOutcome:
        """Returns a recorded call's outcome, without tools that the prompt no longer contains."""
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
        """Returns the tool's handler; disclosure tools get one that uses the current sections."""
        if tool.handler is None or tool.name not in RESERVED_TOOL_NAMES:
            return tool.handler
        return disclosure_handler(tool.name, self._view, self._read)

    def visibility(self) -> Mapping[SectionPath, SectionVisibility]:
        """Returns the visibility of all sections that are currently shown."""
        return {node.path: shown for node, shown in self._view.visible_sections().items()}

    def rejection(self, name: str) -> str:
        """Returns the answer to a call to an unavailable tool."""
        if name in self._arriving:
            return f"Unknown tool {name!r}. It is available from the next turn on."
        try:
            remedy = how_to_open(self._view, name)
        except PromptError:  # a condition failed, so the section cannot be opened
            remedy = None
        if remedy is not None:
            return f"Tool {name!r} is closed; {remedy}."
        names = ", ".join(sorted(self._tools)) or "none"
        return f"Unknown tool {name!r}. Available tools: {names}."

    def admit(
        self, call: ToolCall, max_chars: int | None
    ) -> tuple[AnyTool, AnyToolHandler, object]:
        """Returns the tool, its handler and the parsed params of a call.

        Raises `ToolValidationError`, whose message is for the model, if the call is invalid or its
        arguments are longer than `max_chars` characters.
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
        """Records the sections that a disclosure tool's answer or request opens or closes.

        A section that the model has read is opened only at the end of the turn, by `apply`.
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
        """Records in the session that the model opened or closed a section."""
        self._session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))

    def restore(self, change: ToolExecutionOutcome) -> None:
        """Adds and removes tools like `apply`, for a change that is already in the session."""
        if change.closed:
            self._view = self._view.with_visibility({change.closed: SectionVisibility.SUMMARY})
        for name in change.closed_tools:
            self._tools.pop(name, None)
        opened = dict.fromkeys(change.opened, SectionVisibility.FULL)
        self._view = self._view.with_visibility(opened) if opened else self._view
        self._tools = {tool.name: tool for tool in change.expanded_tools} | self._tools

    def apply(self, change: ToolExecutionOutcome) -> None:
        """Adds and removes tools for the sections that a call in the last turn opened or closed."""
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

    Raises `ValueError` if one of them needs approval but there is no approver: the calls cannot
    outlast the connection, so such a run cannot be suspended.
    """
    asking = [tool.name for tool in tools if tool.approval is not None]
    if asking and not can_ask:
        raise ValueError(
            f"the provider itself runs {asking}, which need approval, so these calls cannot be "
            "suspended; pass approver="
        )
    return replace(rendered, tools=(*rendered.tools, *tools)) if tools else rendered
