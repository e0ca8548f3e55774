"""`Conversation` records everything that a model saw and wrote, so that it can be continued.

`begin` creates a conversation from a rendered prompt. `Conversation.continued` adds changed
sections, changed tools and the user's message. It leaves all earlier messages unchanged, so that a
provider's cache stays valid. `Conversation.restated` rebuilds the conversation from the prompt's
tree, with opened sections in their places. The inner loop takes a conversation and adds the
answers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, Self

from .. import serde
from ..content import Content, ContentStore
from ..displays import code_span, one_line
from ..errors import SerdeError, ValidationIssue
from ..limits import TokenUsage
from ..prompt.registry import READ_SECTION, RESERVED_TOOL_NAMES
from ..prompt.renderer import AnyRenderedPrompt
from ..prompt.template import AnyPrompt, Prompt
from ..protocols import StateView
from ..runtime.session.snapshots import library_state
from ..visibility import SectionDecisions, SectionPath, SectionVisibility
from .markdown import messages_markdown
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
    answered_calls,
    apply_tool_changes,
    keep_media,
    refused,
    sendable,
    sendable_content,
    unwrap_arguments,
)
from .schemas import StoredToolSpec, ToolSpec, tool_to_spec
from .section_records import (
    SectionRecord,
    SectionRecords,
    apply_outcomes,
    keep_read,
    section_changes,
    shown_records,
)

__all__ = ["Conversation", "OnChange", "begin", "rendered_tools"]

type OnChange = Literal["append", "restate"]
"""How changes to the prompt's sections reach the conversation."""


@library_state
@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation with a model: a value that any adapter can continue, in any process.

    `ns` and `key` identify its prompt, and `messages` start with the prompt's text. `tools` are the
    tools at the start; later changes are messages, at the positions in `tool_changes`. `sections`
    records the section texts that were sent to the model. `usage` counts the tokens of the whole
    conversation. Every tool call has an answer.
    """

    ns: str
    key: str
    messages: tuple[Message, ...] = field(repr=False)
    tools: tuple[StoredToolSpec, ...] = field(default=(), repr=False)
    sections: tuple[SectionRecord, ...] = field(default=(), repr=False)
    usage: TokenUsage = field(default_factory=TokenUsage)
    tool_changes: tuple[int, ...] = field(default=(), repr=False)
    version: Literal[1, 2] = 2

    def __post_init__(self) -> None:
        # read from format 1 (0.2.0), which differs only in the JSON of `ToolSpec`
        if self.version == 1:
            object.__setattr__(self, "version", 2)

    def __repr__(self) -> str:
        label = one_line(f"{self.ns}/{self.key}")
        tokens = self.usage.total_tokens
        return f"<Conversation {label} messages={len(self.messages)} tokens={tokens}>"

    def _repr_markdown_(self) -> str:
        """Renders the messages as Markdown for notebooks."""
        label = code_span(f"{self.ns}/{self.key}")
        return f"**Conversation** with {label}\n\n{messages_markdown(self.messages)}"

    def to_json(self) -> str:
        """Returns JSON text from which `from_json` restores an equal conversation."""
        return serde.dump_json_lossless(Conversation, self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parses JSON text written by `to_json`, including text written by 0.2.0.

        Raises `SerdeError` for any other text, another version, a call without an answer, an answer
        without a call, or a conversation without messages.
        """
        conversation = serde.parse_json(cls, text)
        problem = _find_problem(conversation.messages)
        if conversation.tool_changes != _positions_of_tool_changes(conversation.messages):
            problem = problem or "tool_changes has other positions than the messages"
        if problem:
            raise SerdeError("conversation", (ValidationIssue(("messages",), problem),))
        return conversation

    def decisions_for(self, prompt: AnyPrompt) -> SectionDecisions | None:
        """Returns the section decisions for continuing `prompt`; `None` for another prompt."""
        if (self.ns, self.key) != (prompt.ns, prompt.key):
            return None
        return SectionDecisions(
            {record.path: record.visibility for record in self.sections},
            {record.path: record.opened for record in self.sections if record.opened is not None},
        )

    @property
    def available_tools(self) -> Mapping[str, ToolSpec]:
        """The tools that the model may call now, by name."""
        # in a long chat, scanning all messages would take longer than the rest of the turn
        changes = [self.messages[position] for position in self.tool_changes]
        return apply_tool_changes(self.tools, changes)

    @property
    def unknown_calls(self) -> Sequence[ToolCall]:
        """The interrupted calls of the last turn, whose outcome is unknown."""
        start = len(self.messages)
        while start and not _is_users(self.messages[start - 1]):
            start -= 1
        answered = answered_calls(self.messages[start:])
        return [call for call, answer in answered if answer.unknown]

    @property
    def unanswered(self) -> Sequence[Message]:
        """The messages after the model's last one."""
        start = len(self.messages)
        while start and not isinstance(self.messages[start - 1], AssistantMessage):
            start -= 1
        return self.messages[start:]

    def retried(self) -> Self:
        """Returns the conversation with its last messages no longer marked as rejected."""
        again = tuple([refused(message, by_provider=False) for message in self.unanswered])
        if again == self.unanswered:
            return self
        return replace(self, messages=self.messages[: len(self.messages) - len(again)] + again)

    def continued(
        self,
        rendered: AnyRenderedPrompt,
        tools: tuple[ToolSpec, ...],
        message: Content | None = None,
        on_change: OnChange = "append",
    ) -> Self:
        """Returns the conversation with new messages: the changes, then the user's message.

        `rendered` is the prompt, rendered with `decisions_for(prompt)`, and `tools` are its current
        tools. The conversation is restated if the prompt is a different one, or if it has changed
        and `on_change` is `"restate"`. Raises `ValueError` if there is no message and the model has
        already answered.
        """
        if message is None and isinstance(last := self.messages[-1], AssistantMessage):
            if last.finish in ("stop", "tool_calls"):
                raise ValueError(
                    "the conversation ends with the model's answer; pass the user's next message "
                    "as message="
                )
            # the provider stopped this answer, so the model answers again
            return replace(self, messages=self.messages[:-1]).continued(
                rendered, tools, on_change=on_change
            )
        conversation = self.retried() if message is None else self
        if (self.ns, self.key) != _name_of(rendered):
            conversation = self._restated(rendered, tools, self.messages)
        changes, records = section_changes(conversation.sections, rendered)
        if changes and on_change == "restate" and conversation is self:
            conversation = self._restated(rendered, tools, self.messages)
            changes, records = section_changes(conversation.sections, rendered)
        added: list[Message] = [*changes]
        added += _tool_changes(conversation.available_tools, tools)
        if message is not None:
            added.append(UserMessage(sendable_content(message)))
        return conversation.extended(added, sections=tuple(records.values()))

    def restated(
        self,
        prompt: AnyPrompt | AnyRenderedPrompt,
        session: StateView | None = None,
        *,
        keep_turns: int | None = None,
        summary: str = "",
    ) -> Self:
        """Rebuilds the conversation from the prompt's current text.

        Opened sections appear in their places, and the calls that opened and closed sections are
        removed. If `keep_turns` is given, only that many of the last turns are kept; `summary`
        replaces the turns before them. Provider items are removed, because a provider checks them
        against earlier messages, but items that compact a conversation are kept. Messages that a
        provider rejected are also removed. If a section has changed since a kept answer showed it,
        a message at the end reports the change.
        """
        if isinstance(prompt, Prompt):
            prompt = prompt.render(session=session, decisions=self.decisions_for(prompt))
        turns = self.turns
        count = 0 if keep_turns is None else max(len(turns) - keep_turns, 0)
        messages = [message for turn in turns[count:] for message in turn]
        messages[:0] = _last_compaction([message for turn in turns[:count] for message in turn])
        if summary:
            messages.insert(0, UserMessage(sendable(summary)))
        conversation = self._restated(prompt, rendered_tools(prompt), messages)
        changes, records = section_changes(conversation.sections, prompt)
        return conversation.extended(changes, sections=tuple(records.values()))

    @property
    def turns(self) -> list[Sequence[Message]]:
        """The messages of each turn: a user message and everything up to the next one.

        Without user messages, everything after the prompt is a single turn. The prompt itself
        belongs to no turn.
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
        self, rendered: AnyRenderedPrompt, tools: tuple[ToolSpec, ...], messages: Iterable[Message]
    ) -> Self:
        ns, key = _name_of(rendered)
        first = self.messages[0]
        prompt = _prompt_message(rendered, as_instructions=isinstance(first, Instructions))
        same = (ns, key) == (self.ns, self.key)
        before = {record.path: record for record in self.sections} if same else {}
        kept, read = _without_disclosure(
            [message for message in messages if message is not first], rendered, before
        )
        records = shown_records(rendered)
        keep_read(records, before, read)
        return replace(
            self,
            ns=ns,
            key=key,
            messages=(prompt, *kept),
            tool_changes=(),
            tools=tools,
            sections=tuple(records.values()),
        )

    def with_messages(
        self,
        messages: Sequence[Message],
        usage: TokenUsage,
        outcomes: Iterable[ToolExecutionOutcome],
    ) -> Self:
        """Returns the conversation with `messages`, and with section changes made by tool calls.

        `usage` counts the tokens of the new messages.
        """
        records = {record.path: record for record in self.sections}
        apply_outcomes(records, outcomes)
        return self.extended(
            messages[len(self.messages) :],
            usage=self.usage + usage,
            sections=tuple(records.values()),
        )

    def keeping_media(self, store: ContentStore, start: int = 0) -> Self:
        """Moves media bytes to the store, and returns the conversation with references to them.

        The first `start` messages already contain only references.
        """
        new = self.messages[start:]
        stored = tuple([keep_media(message, store) for message in new])
        same = all(old is message for old, message in zip(new, stored, strict=True))
        return self if same else replace(self, messages=self.messages[:start] + stored)

    def extended(
        self,
        added: Iterable[Message],
        *,
        sections: tuple[SectionRecord, ...] | None = None,
        usage: TokenUsage | None = None,
    ) -> Self:
        """Returns the conversation with `added` messages, and with new `sections` and `usage`."""
        added = tuple(added)
        positions = _positions_of_tool_changes(added, len(self.messages))
        return type(self)(  # `replace` takes twice as long
            ns=self.ns,
            key=self.key,
            messages=self.messages + added,
            tools=self.tools,
            sections=self.sections if sections is None else sections,
            usage=self.usage if usage is None else usage,
            tool_changes=self.tool_changes + positions,
        )


def begin(
    rendered: AnyRenderedPrompt, tools: tuple[ToolSpec, ...], message: Content | None = None
) -> Conversation:
    """Returns the initial conversation of an evaluation of `rendered`.

    If the user sends a message, the prompt becomes the model's instructions; otherwise, the prompt
    is the user's message.
    """
    ns, key = _name_of(rendered)
    prompt = _prompt_message(rendered, as_instructions=message is not None)
    first: tuple[Message, ...] = (prompt,)
    if message is not None:
        first = prompt, UserMessage(sendable_content(message))
    return Conversation(
        ns=ns,
        key=key,
        messages=first,
        tools=tools,
        sections=tuple(shown_records(rendered).values()),
    )


def _prompt_message(
    rendered: AnyRenderedPrompt, *, as_instructions: bool
) -> Instructions | UserMessage:
    text, media = sendable(rendered.text), tuple([item.reference for item in rendered.media])
    if as_instructions:
        return Instructions(text, media)
    return UserMessage((text, *media) if media else text)


def rendered_tools(rendered: AnyRenderedPrompt) -> tuple[ToolSpec, ...]:
    """Returns the tools of a rendered prompt as providers receive them."""
    texts = rendered.tool_param_descriptions
    return tuple([tool_to_spec(tool, texts.get(tool.name)) for tool in rendered.tools])


def _name_of(rendered: AnyRenderedPrompt) -> tuple[str, str]:
    prompt = rendered.prompt
    return ("", "") if prompt is None else (prompt.ns, prompt.key)


def _tool_changes(
    available: Mapping[str, ToolSpec], tools: tuple[ToolSpec, ...]
) -> tuple[Message, ...]:
    """Returns the messages that turn the `available` tools into `tools`.

    Disclosure tools are kept: they come and go with the open sections, and removing one would
    invalidate the provider's cache.
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
    messages: Sequence[Message], rendered: AnyRenderedPrompt, records: SectionRecords
) -> tuple[list[Message], Mapping[SectionPath, str]]:
    """Returns messages without tool changes, section changes and provider items.

    An answer of `read_section` is kept if nothing else shows the section; the mapping contains
    these answers by section. Usage is removed, because it was measured for another conversation.
    """
    kept: list[Message] = []
    read: dict[SectionPath, str] = {}
    for index, message in enumerate(messages):
        match message:
            case AssistantMessage(wire=wire, tool_calls=calls) if any(map(_is_compaction, wire)):
                kept += [replace(message, usage=TokenUsage()), *_answers(messages, index)]
            case AssistantMessage(tool_calls=calls):
                stay: list[ToolCall] = []
                answers: list[ToolMessage] = []
                for call, answer in answered_calls([message, *_answers(messages, index)]):
                    path = _read_path(call, answer, rendered, records)
                    if path:
                        read[path] = answer.content
                    if path or call.name not in RESERVED_TOOL_NAMES:
                        stay.append(call)
                        answers.append(answer)
                if message.text or stay or not calls:
                    neutral = replace(
                        message, tool_calls=tuple(stay), usage=TokenUsage(), wire=(), wire_format=""
                    )
                    kept += [neutral, *answers]
            case UserMessage(refused=False):
                kept.append(message)
            case _:
                pass
    return kept, read


def _is_users(message: Message) -> bool:
    return isinstance(message, UserMessage) and not message.repair


def _answers(messages: Sequence[Message], index: int) -> list[ToolMessage]:
    """Returns the answers to the calls of the message at `index`."""
    answers: list[ToolMessage] = []
    for message in islice(messages, index + 1, None):
        if not isinstance(message, ToolMessage):
            break
        answers.append(message)
    return answers


def _read_path(
    call: ToolCall, answer: ToolMessage, rendered: AnyRenderedPrompt, records: SectionRecords
) -> SectionPath:
    """Returns the section whose current text appears only in this call's answer, otherwise `()`."""
    if call.name != READ_SECTION or not answer.success:
        return ()
    try:
        node = rendered.registry.get_section_by_key(
            json.loads(unwrap_arguments(call.arguments))["section_key"]
        )
    except (ValueError, LookupError, TypeError):
        return ()
    if (
        node is None
        or rendered.sections.get(node) is SectionVisibility.FULL
        or node.path not in records
    ):
        return ()
    text = records[node.path].full
    return node.path if text is not None and text in answer.content else ()


def _last_compaction(messages: Sequence[Message]) -> list[Message]:
    """Returns the last message with a compaction by the provider, and the answers to its calls."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage) and any(map(_is_compaction, message.wire)):
            return [message, *_answers(messages, index)]
    return []


def _is_compaction(item: serde.Json) -> bool:
    return isinstance(item, dict) and str(item.get("type", "")).startswith("compaction")


def _positions_of_tool_changes(messages: Iterable[Message], start: int = 0) -> tuple[int, ...]:
    kinds = ToolsAdded, ToolsRemoved
    return tuple([n for n, message in enumerate(messages, start) if isinstance(message, kinds)])


def _find_problem(messages: Sequence[Message]) -> str:
    """Describes the problem with a conversation's messages; returns `""` if they are valid."""
    if not messages:
        return "there is no message"
    calls: list[str] = []
    for message in messages:
        match message:
            case ToolMessage(call_id) if call_id in calls:
                calls.remove(call_id)
            case ToolMessage(call_id):
                return f"{call_id!r} answers no call"
            case AssistantMessage(tool_calls=called) if not calls:
                calls = [call.call_id for call in called]
            case AssistantMessage() | UserMessage() if calls:
                break
            case _:
                pass
    return f"the calls {sorted(calls)} have no answer" if calls else ""
