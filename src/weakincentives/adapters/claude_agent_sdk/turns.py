"""Reads the CLI's messages: parts of the model's messages, and an evaluation's result."""

import json
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

from ...citations import Citation
from ...evaluation.errors import PromptEvaluationError
from ...evaluation.messages import AssistantMessage, Finish, ToolCall
from ...limits import TokenUsage
from ..cited_text import read_citation
from ..codec import AnyJson, JsonObject, read_count, read_hour_writes
from ..deltas import HIDDEN
from ..provider_errors import error_from_reply, error_from_request, error_from_status
from .bridge import Bridge

__all__ = ["OUTPUT_TOOL", "PROVIDER", "AnySDK", "TurnReader"]

# Any: the SDK's module and its objects; the SDK is often not installed where types are checked.
type AnySDK = Any

PROVIDER = "claude_agent_sdk"

OUTPUT_TOOL = "StructuredOutput"  # the tool through which the CLI receives typed output
_FIRST_BACKOFF_MS = 500
_MOST_BACKOFF_MS = 32_000
_JITTER = 1.25
_TURN_COUNTS = "input_tokens cache_creation_input_tokens cache_read_input_tokens output_tokens"
_TOTAL_COUNTS = "inputTokens cacheCreationInputTokens cacheReadInputTokens outputTokens"


class TurnReader:
    """Builds the model's messages for the inner loop from the CLI's messages.

    The inner loop gets the messages with tool calls and the final message. Other messages, such as
    an answer that the CLI asks the model to continue, only contribute to the usage.
    """

    def __init__(self, sdk: AnySDK, bridge: Bridge) -> None:
        self._sdk = sdk
        self._bridge = bridge
        self._reported = TokenUsage()
        self._api_error: str | None = None
        self._retry_after: str | None = None
        self.begin()

    def begin(self) -> None:
        """Discards the previous message's parts; the next part starts a new message."""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._citations: list[Citation] = []
        self._calls: list[ToolCall] = []
        self._usage: JsonObject = {}
        self._model = ""
        self._streaming = self._complete = False

    def read(self, message: AnySDK) -> AssistantMessage | None:
        """Returns the model's message if the CLI's `message` completes it, otherwise `None`.

        A `message` of `None` means that the CLI has made a call. Raises `PromptEvaluationError` for
        a result without an answer.
        """
        sdk = self._sdk
        match message:
            case (
                sdk.StreamEvent(parent_tool_use_id=str())
                | sdk.AssistantMessage(parent_tool_use_id=str())
            ):
                return None  # a subagent's message
            case sdk.StreamEvent(event=event):
                self._read_event(event)
            case sdk.AssistantMessage(error=None):
                self._read_blocks(message)
            case sdk.AssistantMessage(error=api_error):
                self._api_error = api_error
            case sdk.SystemMessage(subtype="api_retry", data=data):
                self._retry_after = _retry_after(data)
            case sdk.ResultMessage():
                return self._read_result(message)
            case None | sdk.UserMessage():
                # A reply that was not streamed has no stop event, but its calls arrive once it is
                # complete.
                self._complete = True
            case _:
                pass
        if self._streaming or not self._complete or not self._calls:
            return None
        usage = _usage(self._usage, _TURN_COUNTS)
        self._reported += usage
        calls = tuple(self._calls)
        return self._message("".join(self._texts), "tool_calls", usage, calls)

    def _read_event(self, event: AnyJson) -> None:
        match event:
            case {"type": "message_start", "message": {"usage": dict() as usage}}:
                self.begin()
                self._usage, self._streaming = usage, True
            case {"type": "message_delta", "usage": dict() as usage}:
                self._usage |= {name: count for name, count in usage.items() if count is not None}
            case {"type": "content_block_start", "content_block": {"type": "redacted_thinking"}}:
                self._thoughts.append(HIDDEN)
            case {"type": "content_block_delta", "delta": {"citation": dict() as cited}}:
                if citation := read_citation(cited):
                    self._citations.append(citation)
            case {"type": "message_stop"}:  # also sent for a stream that ended early
                self._streaming, self._complete = False, True
            case _:
                pass

    def _read_blocks(self, message: AnySDK) -> None:
        sdk = self._sdk
        self._usage = self._usage or message.usage or {}
        self._model = message.model
        for block in message.content:
            match block:
                case sdk.TextBlock(text=str() as text):
                    self._texts.append(text)
                case sdk.ThinkingBlock(thinking=str() as thought, signature=signature):
                    if thought or signature:
                        self._thoughts.append(thought or HIDDEN)
                case sdk.ToolUseBlock(name=name) if name == OUTPUT_TOOL:
                    pass
                case sdk.ToolUseBlock(id=str() as call_id, name=str() as name):
                    self._calls.append(self._bridge.read_call(call_id, name, block.input))
                case sdk.TextBlock() | sdk.ToolUseBlock():
                    reason = "a text, or the id or name of a call, is not a string"
                    raise error_from_reply(PROVIDER, reason)
                case _:
                    pass
        self._complete = any(
            self._bridge.find_call(call.call_id).is_waiting for call in self._calls
        )

    def _read_result(self, result: AnySDK) -> AssistantMessage:
        finish: Finish = "stop"
        if self._api_error == "max_output_tokens":
            finish = "length"
        elif result.stop_reason == "refusal":
            finish = "refusal"
        elif result.is_error:
            raise self._failure(result)
        counts = [_usage(usage, _TOTAL_COUNTS) for usage in (result.model_usage or {}).values()]
        total = sum(counts, TokenUsage())
        pairs = zip(astuple(total), astuple(self._reported), strict=True)
        self._reported = total
        output = result.structured_output
        text = (result.result or "") if output is None else json.dumps(output, ensure_ascii=False)
        usage = TokenUsage(*(max(0, count - reported) for count, reported in pairs))
        last = _usage(self._usage, _TURN_COUNTS)
        usage = replace(  # the total excludes these
            usage,
            reasoning_tokens=last.reasoning_tokens,
            cache_write_1h_tokens=last.cache_write_1h_tokens,
        )
        return self._message(text, finish, usage)

    def _message(
        self, text: str, finish: Finish, usage: TokenUsage, calls: tuple[ToolCall, ...] = ()
    ) -> AssistantMessage:
        return AssistantMessage(
            text=text,
            tool_calls=calls,
            finish=finish,
            usage=usage,
            model=self._model,
            reasoning="\n\n".join(self._thoughts),
            citations=tuple(dict.fromkeys(self._citations)),
        )

    def _failure(self, result: AnySDK) -> PromptEvaluationError:
        """Returns the error for a failed result, even though its `subtype` is usually "success"."""
        message = str(result.result or "; ".join(result.errors or ()) or result.subtype)
        status: int | None = result.api_error_status
        if result.subtype == "error_max_structured_output_retries":
            return PromptEvaluationError(
                message, phase="response", code="output", provider=PROVIDER
            )
        if result.terminal_reason == "prompt_too_long":
            code = "context_length_exceeded"
            return error_from_status(PROVIDER, status or 400, message=message, code=code)
        if status is not None:
            wait = self._retry_after
            return error_from_status(PROVIDER, status, message=message, retry_after=wait)
        match self._api_error:
            case "authentication_failed":
                remedy = "pass api_key or set ANTHROPIC_API_KEY"
                return error_from_request(PROVIDER, "authentication", message, remedy)
            case "server_error":
                return error_from_request(PROVIDER, "connection", message)
            case "unknown":
                return error_from_reply(PROVIDER, message)
            case _:
                return error_from_request(PROVIDER, "provider_failed", message)


def _usage(counts: Mapping[str, AnyJson], names: str) -> TokenUsage:
    fresh, written, cached, output = [read_count(counts.get(name)) for name in names.split()]
    details = counts.get("output_tokens_details")
    reasoning = read_count(details.get("thinking_tokens")) if isinstance(details, dict) else 0
    hour_writes = read_hour_writes(counts.get("cache_creation"))
    return TokenUsage(fresh + written + cached, output, cached, written, reasoning, hour_writes)


def _retry_after(retry: Mapping[str, AnyJson]) -> str | None:
    """Returns the provider's requested delay in seconds if it is longer than the CLI's own."""
    match retry:
        case {
            "error_status": 429,
            "attempt": int() as attempt,
            "retry_delay_ms": int() | float() as delay,
        }:
            own_delay = min(_FIRST_BACKOFF_MS * 2 ** (attempt - 1), _MOST_BACKOFF_MS) * _JITTER
            return str(delay / 1000) if delay > own_delay else None
        case _:
            return None
