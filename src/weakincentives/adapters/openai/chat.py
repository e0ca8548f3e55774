"""The Chat Completions codec: what OpenAI and most compatible servers (llama.cpp, vLLM, Ollama, …) speak."""

from typing import Any, assert_never

from ..codec import CodecOptions, Wire, call_of, malformed, output_instructions, provider_failed, usage_of
from ..inner_loop import ProviderRequest
from ..tool_spec import OutputSpec, ToolSpec
from ..transcript import AssistantMessage, Finish, Message, ToolCall, ToolMessage, ToolsAdded, ToolsRemoved, UserMessage

__all__ = ["ChatCodec"]

_USAGE = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
_FINISH: dict[str, Finish] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


class ChatCodec:
    """One conversation as Chat Completions messages."""

    def __init__(self, options: CodecOptions, provider: str) -> None:
        self._options = options
        self._provider = provider
        self._messages: list[Wire] = []
        self._tools: list[Wire] | None = None
        self._encoded = 0

    def encode(self, request: ProviderRequest) -> Wire:
        """The request's keyword arguments; `messages` and `tools` are this codec's own growing lists."""
        if self._tools is None:
            self._tools = [_tool(spec) for spec in request.tools]
        for message in request.transcript[self._encoded :]:
            self._append(message, self._tools, request)
        self._encoded = len(request.transcript)
        native = request.output is not None and self._options.structured_output == "native"
        return {
            "model": self._options.model,
            "messages": self._messages,
            **({"tools": self._tools} if self._tools else {}),
            **({"response_format": _response_format(request.output)} if native and request.output else {}),
            **self._options.extra,
        }

    def decode(self, reply: Any) -> AssistantMessage:  # Any: read key by key, each checked where it matters
        """The first choice of a reply."""
        match reply:
            case {"choices": [{"message": dict() as message, **choice}, *_]}:
                pass
            case {"error": {"message": said}}:  # some gateways report a failure with status 200
                raise provider_failed(self._provider, said)
            case _:
                raise malformed(self._provider, "no choices with a message")
        wire: Wire = {key: value for key, value in message.items() if value not in (None, [])}
        wire.setdefault("role", "assistant")
        calls: list[ToolCall] = []
        for index, item in enumerate(wire.get("tool_calls", ())):
            match item:
                case {"function": {"name": name, **function}}:
                    fallback = f"call_{len(self._messages)}_{index}"
                    call = call_of(item.get("id"), name, function.get("arguments"), fallback_id=fallback)
                    item["id"] = call.call_id
                    calls.append(call)
                case _:
                    raise malformed(self._provider, "a tool call without a function")
        refusal = _text(message.get("refusal"))
        finish = _FINISH.get(str(choice.get("finish_reason")), "tool_calls" if calls else "stop")
        return AssistantMessage(
            text=refusal or _text(message.get("content")),
            tool_calls=tuple(calls),
            finish="refusal" if refusal else finish,
            usage=usage_of(reply.get("usage"), _USAGE),
            wire=(wire,),
        )

    def _append(self, message: Message, tools: list[Wire], request: ProviderRequest) -> None:
        match message:
            case UserMessage(content):
                role = "user" if self._messages else self._options.prompt_role
                if not self._messages and request.output and self._options.structured_output == "prompted":
                    content = f"{content}\n\n{output_instructions(request.output)}"
                self._messages.append({"role": role, "content": content})
            case AssistantMessage():
                self._messages.append(_assistant(message))
            case ToolMessage():
                self._messages.append(dict(message.as_dict()))
            case ToolsAdded(added):
                tools.extend(_tool(spec) for spec in added)
            case ToolsRemoved(names):
                tools[:] = [tool for tool in tools if tool["function"]["name"] not in names]
            case never:
                assert_never(never)


def _tool(spec: ToolSpec) -> Wire:
    return {
        "type": "function",
        "function": {
            "name": spec.name,
            "description": spec.description,
            "parameters": spec.parameters,
            "strict": spec.strict,
        },
    }


def _response_format(output: OutputSpec) -> Wire:
    return {
        "type": "json_schema",
        "json_schema": {"name": output.name, "schema": output.schema, "strict": output.strict},
    }


def _assistant(message: AssistantMessage) -> Wire:
    """The provider's own message where we have it: it may hold fields that must come back."""
    for wire in message.wire:
        if isinstance(wire, dict) and wire.get("role") == "assistant":
            return wire if "content" in wire or "tool_calls" in wire else {**wire, "content": ""}
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.text, **({"tool_calls": calls} if calls else {})}


def _text(content: Any) -> str:  # Any: a text, null, or from some servers a list of parts
    """The text that `content` holds."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
