"""`Conversation`: what was said to a model and what it was shown, as a value that can go on.

`begin` makes one of a rendered prompt. `Conversation.continued` adds what is new: changed sections,
changed tools, the user's message; it leaves all earlier messages as they are, so that a provider's
cache still fits. `Conversation.restated` derives a conversation anew from the prompt's tree, with
opened sections in place. The inner loop takes a conversation and returns it with the answers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from .. import serde
from ..errors import SerdeError, ValidationIssue
from ..limits import TokenUsage
from ..prompt.prompt import Prompt
from ..prompt.registry import READ_SECTION, RESERVED_TOOL_NAMES
from ..prompt.renderer import RenderedPrompt
from ..protocols import StateView
from ..runtime.session.snapshots import library_state
from ..visibility import SectionDecisions, SectionPath, SectionVisibility
from .messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolCall,
    ToolExecutionOutcome,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    apply_tool_changes,
    sendable,
)
from .schemas import ToolSpec, tool_to_spec

__all__ = ["Conversation", "OnChange", "SectionRecord", "begin"]

type OnChange = Literal["append", "restate"]
"""How a conversation learns that sections of its prompt have changed."""

_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
_CHANGED = (
    "These parts of your instructions have changed. What they say now replaces what they said "
    "before.\n\n"
)
_GONE = "These parts of your instructions no longer apply: {}."
_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRecord:
    """What a conversation knows of one section.

    `visibility` is the section's visibility now, `opened` what the model itself chose. `text` is
    what the model last read of the section, in the form `shown`: the full text or the summary.
    """

    path: SectionPath
    visibility: SectionVisibility
    opened: SectionVisibility | None = None
    shown: SectionVisibility | None = None
    text: str = ""


type _Records = dict[SectionPath, SectionRecord]


@library_state
@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation with a model: a value that goes on at any adapter and in any process.

    `ns` and `key` name its prompt, `messages` begin with the prompt's text. `tools` are those at
    the start; later changes are messages. `sections` records what the model has read of the prompt,
    `usage` counts the tokens of the whole conversation. Every tool call has an answer.
    """

    ns: str
    key: str
    messages: tuple[Message, ...] = field(repr=False)
    tools: tuple[ToolSpec, ...] = field(default=(), repr=False)
    sections: tuple[SectionRecord, ...] = field(default=(), repr=False)
    usage: TokenUsage = field(default_factory=TokenUsage)
    version: Literal[1] = 1

    def to_json(self) -> str:
        """Returns JSON text from which `from_json` makes an equal conversation."""
        return serde.dump_json_lossless(Conversation, self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parses what `to_json` wrote.

        Raises `SerdeError` for other text, for another version, and for a call without an answer.
        """
        conversation = serde.parse_json(cls, text)
        if calls := _unanswered(conversation.messages):
            message = f"the calls {sorted(calls)} have no answer"
            raise SerdeError("conversation", (ValidationIssue(("messages",), message),))
        return conversation

    # Any: a prompt of any output
    def decisions_for(self, prompt: Prompt[Any]) -> SectionDecisions | None:
        """Returns the visibility with which `prompt` goes on; `None` for another prompt."""
        if (self.ns, self.key) != (prompt.ns, prompt.key):
            return None
        return SectionDecisions(
            {record.path: record.visibility for record in self.sections},
            {record.path: record.opened for record in self.sections if record.opened is not None},
        )

    @property
    def available_tools(self) -> Mapping[str, ToolSpec]:
        """The tools that the model may call now, by name."""
        return apply_tool_changes(self.tools, self.messages)

    @property
    def unknown_calls(self) -> Sequence[ToolCall]:
        """The calls of the last turn that were begun and interrupted, with an unknown outcome."""
        calls: dict[str, ToolCall] = {}
        unknown: list[str] = []
        for message in reversed(self.messages):
            match message:
                case UserMessage(repair=False):
                    break
                case AssistantMessage(tool_calls=called):
                    calls |= {call.call_id: call for call in called}
                case ToolMessage(call_id, unknown=True):
                    unknown.append(call_id)
                case _:
                    pass
        return [calls[call_id] for call_id in reversed(unknown)]

    # Any: a prompt of any output
    def continued(
        self,
        rendered: RenderedPrompt[Any],
        tools: tuple[ToolSpec, ...],
        message: str | None = None,
        on_change: OnChange = "append",
    ) -> Self:
        """Returns the conversation with the messages that are new: changes and the user's message.

        `rendered` is the prompt rendered with `decisions_for` it, `tools` are its tools now.
        Another prompt, and with `on_change="restate"` a changed one, restates the conversation.
        Raises `ValueError` without a message when the model has already answered.
        """
        conversation = self
        if (self.ns, self.key) != _name_of(rendered):
            conversation = self._restated(rendered, tools, self.messages)
        else:
            text, records = _changes(self, rendered)
            if text and on_change == "restate":
                conversation = self._restated(rendered, tools, self.messages)
            else:
                changes = _tool_changes(self.available_tools, tools)
                added: tuple[Message, ...] = (Instructions(text),) if text else ()
                conversation = replace(
                    self,
                    messages=(*self.messages, *added, *changes),
                    sections=tuple(records.values()),
                )
        if message is not None:
            user = UserMessage(sendable(message))
            return replace(conversation, messages=(*conversation.messages, user))
        if isinstance(self.messages[-1], AssistantMessage):
            raise ValueError(  # noqa: TRY004 - the value is at fault, not its type
                "the conversation ends with the model's answer; pass message= with what comes next"
            )
        return conversation

    # Any: as above
    def restated(
        self,
        prompt: Prompt[Any] | RenderedPrompt[Any],
        session: StateView | None = None,
        *,
        keep_turns: int | None = None,
        summary: str = "",
    ) -> Self:
        """Derives the conversation anew from the prompt as it reads now.

        Opened sections stand in place, and the calls that opened and closed sections are gone.
        `keep_turns` keeps only that many of the user's last messages with what followed them;
        `summary` stands for the turns before them. The providers' own items go, except those that
        compact a conversation, since a provider checks them against what came before.
        """
        if isinstance(prompt, Prompt):
            prompt = prompt.render(session=session, decisions=self.decisions_for(prompt))
        turns = self.turns
        kept = turns if keep_turns is None else turns[len(turns) - keep_turns :]
        messages = [message for turn in kept for message in turn]
        if summary:
            messages.insert(0, UserMessage(sendable(summary)))
        return self._restated(prompt, rendered_tools(prompt), messages)

    @property
    def turns(self) -> list[Sequence[Message]]:
        """The messages of each turn: one message of the user and what follows it.

        Without a user's message, what follows the prompt is a turn. The prompt is in none.
        """
        turns: list[list[Message]] = []
        for message in self.messages[1:]:
            match message:
                case Instructions() | ToolsAdded() | ToolsRemoved():
                    pass
                case UserMessage(repair=False):
                    turns.append([message])
                case _ if turns:
                    turns[-1].append(message)
                case _:
                    turns.append([message])
        return list(turns)

    def _restated(
        self,
        rendered: RenderedPrompt[Any],  # Any: as above
        tools: tuple[ToolSpec, ...],
        messages: Iterable[Message],
    ) -> Self:
        ns, key = _name_of(rendered)
        text = sendable(rendered.text)
        first = self.messages[0]
        prompt = Instructions(text) if isinstance(first, Instructions) else UserMessage(text)
        records = _records(rendered)
        readable = {
            path
            for path, record in records.items()
            if record.visibility is _SUMMARY and record.opened is None
        }
        kept = _without_disclosure(
            [message for message in messages if message is not first], readable
        )
        return replace(
            self,
            ns=ns,
            key=key,
            messages=(prompt, *kept),
            tools=tools,
            sections=tuple(records.values()),
        )

    def with_messages(
        self,
        messages: Sequence[Message],
        usage: TokenUsage,
        outcomes: Iterable[ToolExecutionOutcome],
    ) -> Self:
        """Returns the conversation with all `messages`, and the sections that calls have changed.

        `usage` counts what the new messages have spent.
        """
        records = {record.path: record for record in self.sections}
        for outcome in outcomes:
            for shown in outcome.shown:
                records[shown.path] = SectionRecord(
                    path=shown.path,
                    visibility=shown.visibility,
                    shown=shown.visibility,
                    text=shown.text,
                )
            for path in outcome.opened:
                _set_visibility(records, path, _FULL)
            if outcome.closed:
                _set_visibility(records, outcome.closed, _SUMMARY)
        return replace(
            self,
            messages=tuple(messages),
            usage=self.usage + usage,
            sections=tuple(records.values()),
        )


# Any: prompts of every output
def begin(
    rendered: RenderedPrompt[Any], tools: tuple[ToolSpec, ...], message: str | None = None
) -> Conversation:
    """Returns the conversation with which an evaluation of `rendered` begins.

    With a message of the user the prompt is the model's instructions; without one, the prompt is
    the user's message.
    """
    text = sendable(rendered.text)
    ns, key = _name_of(rendered)
    first: tuple[Message, ...] = (UserMessage(text),)
    if message is not None:
        first = Instructions(text), UserMessage(sendable(message))
    return Conversation(
        ns=ns, key=key, messages=first, tools=tools, sections=tuple(_records(rendered).values())
    )


# Any: as above
def rendered_tools(rendered: RenderedPrompt[Any]) -> tuple[ToolSpec, ...]:
    """Returns the tools of a rendered prompt as a provider reads them."""
    texts = rendered.tool_param_descriptions
    return tuple([tool_to_spec(tool, texts.get(tool.name)) for tool in rendered.tools])


def _name_of(rendered: RenderedPrompt[Any]) -> tuple[str, str]:  # Any: as above
    prompt = rendered.prompt
    return ("", "") if prompt is None else (prompt.ns, prompt.key)


def _records(rendered: RenderedPrompt[Any]) -> _Records:  # Any: as above
    """Returns the records of all sections that are shown, or would be after an override."""
    decisions = rendered.view.decisions
    records = {
        path: SectionRecord(path=path, visibility=visibility, opened=decisions.opened.get(path))
        for path, visibility in decisions.overrides.items()
    }
    for (node, visibility), text in zip(
        rendered.sections.items(), rendered.section_texts, strict=True
    ):
        records[node.path] = SectionRecord(
            path=node.path,
            visibility=visibility,
            opened=decisions.opened.get(node.path),
            shown=visibility,
            text=text,
        )
    return records


def _set_visibility(records: _Records, path: SectionPath, visibility: SectionVisibility) -> None:
    record = records.get(path) or SectionRecord(path=path, visibility=visibility)
    records[path] = replace(record, visibility=visibility, opened=visibility)


def _changes(
    conversation: Conversation,
    rendered: RenderedPrompt[Any],  # Any: as above
) -> tuple[str, _Records]:
    """Returns what the model must be told of changed sections, and the records after that."""
    before = {record.path: record for record in conversation.sections}
    records = dict(before)
    forms = {
        node: (node.path in before and before[node.path].shown) or visibility
        for node, visibility in rendered.sections.items()
    }
    texts: Sequence[str] = rendered.section_texts
    if forms != rendered.sections:
        texts = rendered.view.render(forms).texts
    changed: list[str] = []
    for (node, visibility), text, full in zip(
        rendered.sections.items(), texts, rendered.section_texts, strict=True
    ):
        record = before.get(node.path)
        opened_elsewhere = record and visibility is _FULL and record.visibility is _SUMMARY
        if record is None or record.shown is None or opened_elsewhere or text != record.text:
            changed.append(full)
            opened = None if record is None else record.opened
            records[node.path] = SectionRecord(
                path=node.path, visibility=visibility, opened=opened, shown=visibility, text=full
            )
        else:
            records[node.path] = replace(record, visibility=visibility)
    visible = {node.path for node in rendered.sections}
    gone = [
        path
        for path, record in before.items()
        if record.shown is not None and path not in visible and not _applies(rendered, path)
    ]
    for path in gone:
        del records[path]
    parts = [_CHANGED + _SEPARATOR.join(changed)] if changed else []
    if gone:
        parts.append(_GONE.format(", ".join([repr(".".join(path)) for path in gone])))
    return sendable(_SEPARATOR.join(parts)), records


def _applies(rendered: RenderedPrompt[Any], path: SectionPath) -> bool:  # Any: as above
    """Whether a section that is not visible only waits inside a summarized one."""
    node = rendered.registry.get_section(path)
    return node is not None and rendered.view.is_enabled(node)


def _tool_changes(
    available: Mapping[str, ToolSpec], tools: tuple[ToolSpec, ...]
) -> tuple[Message, ...]:
    """Returns the messages that turn the `available` tools into `tools`.

    Disclosure tools stay, since they come and go with what is open and removing one would change
    what a provider has cached.
    """
    now = {tool.name: tool for tool in tools}
    removed = tuple(
        [
            name
            for name, tool in available.items()
            if now.get(name, tool if name in RESERVED_TOOL_NAMES else None) != tool
        ]
    )
    added = tuple([tool for tool in tools if available.get(tool.name) != tool])
    changes: list[Message] = [ToolsRemoved(removed)] if removed else []
    if added:
        changes.append(ToolsAdded(added))
    return tuple(changes)


def _without_disclosure(
    messages: Iterable[Message], readable: set[SectionPath]
) -> Iterable[Message]:
    """Returns messages without changes of tools and sections, and without providers' own items.

    An answer of `read_section` stays where it alone shows the section, one of `readable`.
    """
    dropped: set[str] = set()
    for message in messages:
        match message:
            case AssistantMessage(tool_calls=calls):
                kept = tuple([call for call in calls if not _is_disclosure(call, readable)])
                dropped |= {call.call_id for call in calls if call not in kept}
                compaction = any(map(_is_compaction, message.wire))
                if compaction and kept == calls:
                    yield message
                elif message.text or kept or not calls:
                    yield replace(message, tool_calls=kept, wire=(), wire_format="")
            case ToolMessage(call_id) if call_id in dropped:
                pass
            case UserMessage() | ToolMessage():
                yield message
            case _:
                pass


def _is_disclosure(call: ToolCall, readable: set[SectionPath]) -> bool:
    """Whether a restated conversation shows by itself what the call has opened or closed."""
    if call.name != READ_SECTION:
        return call.name in RESERVED_TOOL_NAMES
    try:
        key = json.loads(call.arguments)["section_key"]
    except (ValueError, LookupError, TypeError):
        return True
    return all(key not in (path[-1], ".".join(path)) for path in readable)


def _is_compaction(item: serde.Json) -> bool:
    return isinstance(item, dict) and str(item.get("type", "")).startswith("compaction")


def _unanswered(messages: Iterable[Message]) -> set[str]:
    calls: set[str] = set()
    for message in messages:
        match message:
            case AssistantMessage(tool_calls=called):
                calls |= {call.call_id for call in called}
            case ToolMessage(call_id):
                calls.discard(call_id)
            case _:
                pass
    return calls
