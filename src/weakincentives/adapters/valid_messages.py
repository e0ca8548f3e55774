"""Makes a conversation's messages valid for a provider before a codec encodes them.

The stored conversation contains the original messages, including mistakes by models and servers. A
request must be valid, or the provider rejects it and every later one. `ValidMessages` converts the
stored messages to valid ones. It handles each message once and looks only at earlier messages, so
that later requests send the same bytes again. This module contains the rules that apply to all
providers; a codec adds the rules for its own API.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite

from ..content import Part
from ..evaluation.messages import (
    AssistantMessage,
    Finish,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    sendable,
    unwrap_arguments,
)
from ..serde import Json

__all__ = ["GO_ON", "NO_TEXT", "ValidMessages", "valid_arguments"]

NO_TEXT = "(no text)"
GO_ON = "Go on."
_NO_OUTPUT = "(no output)"
_FAILED = "The tool failed without a message."
_NOT_RUN = "Not run: the run ended."
_REFUSED = "(The provider rejected this result.)"
# The calls in these answers did not run; like the reasoning, they may be incomplete.
_TRUNCATED: Mapping[Finish, str] = {
    "length": "(cut off at the length limit)",
    "content_filter": "(cut off by the provider's content filter)",
    "refusal": "",
}
# Mistral requires exactly nine letters and digits, which every other provider accepts too.
_ID_FOR_ALL = re.compile(r"[a-zA-Z0-9]{9}")
_MAX_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


class ValidMessages:
    """Converts one conversation's messages to valid ones.

    Only messages in the codec's `wire_format` keep the provider's items, and only messages of the
    same `model` keep the reasoning in them, which `without_reasoning` removes. Their call ids are
    kept if they match `call_ids`.
    """

    def __init__(
        self,
        wire_format: str = "",
        call_ids: str = r"(?s:.+)",
        model: str = "",
        without_reasoning: Callable[[tuple[Json, ...]], tuple[Json, ...]] = lambda items: items,
    ) -> None:
        self._wire_format = wire_format
        self._model = model
        self._without_reasoning = without_reasoning
        self._own_ids = re.compile(call_ids)
        self._sent_ids: set[str] = set()
        self._made_ids = 0
        # The calls that have no result yet: the id in the conversation and the id that was sent. A
        # call that is not sent has no sent id, and its result is not sent either.
        self._open: list[tuple[str, str]] = []
        # The last message's role, and whether it is an answer that the model will continue.
        self._role = ""
        self._paused = False

    def read(self, messages: Iterable[Message], *, to_be_sent: bool = True) -> Iterator[Message]:
        """Yields valid messages for the next request, which adds `messages` to the earlier ones.

        Each call gets exactly one result. The conversation begins with a user message, and there is
        another one between any two of the model's answers. If the request is `to_be_sent` without
        further messages, it ends with a user message or a result.
        """
        for message in messages:
            match message:
                case ToolMessage():
                    if answer := self._answer(message):
                        yield answer
                case AssistantMessage():
                    yield from self._close_calls()
                    if self._role != "user" and not self._paused:
                        yield UserMessage(GO_ON)
                    valid = self._assistant(message)
                    self._role, self._paused = "assistant", valid.finish == "pause"
                    yield valid
                case UserMessage(refused=True):
                    pass
                case UserMessage():
                    yield from self._close_calls()
                    self._role, self._paused = "user", False
                    yield _with_text(message)
                case Instructions(refused=True):
                    yield replace(message, media=())
                case Instructions() | ToolsAdded() | ToolsRemoved():
                    yield message
        yield from self._close_calls()
        if to_be_sent and self._role == "assistant" and not self._paused:
            self._role = "user"
            yield UserMessage(GO_ON)

    def _close_calls(self) -> Iterator[ToolMessage]:
        """Yields results for calls that do not have one."""
        for call_id, _ in [*self._open]:
            if answer := self._answer(ToolMessage(call_id, _NOT_RUN, success=False)):
                yield answer

    def _answer(self, message: ToolMessage) -> ToolMessage | None:
        """Returns the result with the sent id, or `None` if its call was not sent."""
        for sent in self._open:
            if sent[0] == message.call_id:
                break
        else:
            return None
        self._open.remove(sent)
        sent_id = sent[1]
        if not sent_id:
            return None
        self._role = "user"
        content, media = message.content, message.media
        if message.refused:
            content, media = _REFUSED, ()
        elif not content.strip():
            shown = " ".join(map(str, media)) or _NO_OUTPUT
            content = shown if message.success else _FAILED
        elif sent_id == message.call_id:
            return message
        return replace(message, call_id=sent_id, content=content, media=media)

    def _assistant(self, message: AssistantMessage) -> AssistantMessage:
        """Returns a valid answer; its `wire` is empty if it came from another provider."""
        own = message.wire_format == self._wire_format
        if own and message.wire and not self._is_same_model(message):
            message = replace(message, wire=self._without_reasoning(message.wire))
        if message.finish in _TRUNCATED:
            self._open = [(call.call_id, "") for call in message.tool_calls]
            text = "\n\n".join(filter(str.strip, [message.text, _TRUNCATED[message.finish]]))
            finish: Finish = "stop"
            return replace(message, text=text or NO_TEXT, tool_calls=(), wire=(), finish=finish)
        calls = tuple([self._call(call, own=own) for call in message.tool_calls])
        text = message.text if message.text.strip() else "" if calls else NO_TEXT
        if own and text == message.text and calls == message.tool_calls:
            return message
        items = message.wire if own else ()
        finish = message.finish if items or message.finish != "pause" else "stop"
        return replace(message, text=text, tool_calls=calls, wire=items, finish=finish)

    def _is_same_model(self, message: AssistantMessage) -> bool:
        """Returns whether the message is from the model that the request is for.

        Messages from before 0.3 have only the name that the provider reported, such as a dated one.
        """
        if message.requested_model:
            return message.requested_model == self._model
        return message.model in self._model or self._model in message.model

    def _call(self, call: ToolCall, *, own: bool) -> ToolCall:
        sent_id, accepted = call.call_id, self._own_ids if own else _ID_FOR_ALL
        if not accepted.fullmatch(sent_id):
            sent_id = ""
        while not sent_id or sent_id in self._sent_ids:
            self._made_ids += 1
            sent_id = f"c{self._made_ids:08}"
        self._sent_ids.add(sent_id)
        self._open.append((call.call_id, sent_id))
        name = _NOT_IN_NAMES.sub("_", call.name[:_MAX_NAME]) or "unnamed"
        arguments = valid_arguments(call.arguments)
        if (sent_id, name, arguments) == (call.call_id, call.name, call.arguments):
            return call
        return ToolCall(sent_id, name, arguments)


def valid_arguments(text: str) -> str:
    """Returns a call's arguments as a JSON object, in text that every provider can read.

    Text that is not a JSON object is wrapped in one, in the form that Anthropic's documentation
    recommends.
    """
    plain = unwrap_arguments(text)
    try:
        value = _decode(plain)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return json.dumps({"INVALID_JSON": text})
    if "\\ud" in plain or "\\uD" in plain:  # an escaped surrogate may lack its pair
        return sendable(json.dumps(value, ensure_ascii=False))
    return plain


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _read_float(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


_decode = json.JSONDecoder(parse_constant=_refuse, parse_float=_read_float).decode


def _with_text(message: UserMessage) -> UserMessage:
    """Returns the message without blank texts, or with a placeholder if nothing is left."""
    if isinstance(message.content, str):
        return message if message.content.strip() else replace(message, content=NO_TEXT)
    parts: list[Part] = [
        part for part in message.content if not isinstance(part, str) or part.strip()
    ]
    if len(parts) == len(message.content):
        return message
    return replace(message, content=tuple(parts) or NO_TEXT)
