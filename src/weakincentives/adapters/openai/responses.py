"""The Responses codec: OpenAI's own API, with typed items and tools that can be added in the conversation."""

from typing import Any, assert_never

from ..codec import CodecOptions, Wire, call_of, malformed, output_instructions, provider_failed, usage_of
from ..inner_loop import ProviderRequest
from ..tool_spec import OutputSpec, ToolSpec
from ..transcript import AssistantMessage, Finish, Message, ToolCall, ToolMessage, ToolsAdded, ToolsRemoved, UserMessage

__all__ = ["ResponsesCodec"]

_USAGE = ("input_tokens", "output_tokens", "input_tokens_details")


class ResponsesCodec:
    """One conversation as Responses input items; all output items go back unchanged, reasoning included."""

    def __init__(self, options: CodecOptions, provider: str) -> None:
        self._options = options
        self._provider = provider
        self._input: list[Wire] = []
        self._tools: list[Wire] | None = None
        self._encoded = 0

    def encode(self, request: ProviderRequest) -> Wire:
        """The request's keyword arguments; `input` and `tools` are this codec's own growing lists."""
        if self._tools is None:
            self._tools = [_tool(spec) for spec in request.tools]
        for message in request.transcript[self._encoded :]:
            self._append(message, self._tools, request)
        self._encoded = len(request.transcript)
        native = request.output is not None and self._options.structured_output == "native"
        return {
            "model": self._options.model,
            "input": self._input,
            **({"tools": self._tools} if self._tools else {}),
            **({"text": {"format": _format(request.output)}} if native and request.output else {}),
            **self._options.extra,
        }

    def decode(self, reply: Any) -> AssistantMessage:  # Any: read key by key, each checked where it matters
        """All output items of a reply."""
        match reply:
            case {"error": {"message": message}}:
                raise provider_failed(self._provider, message)
            case {"status": "failed" | "cancelled" | "queued" | "in_progress" as status}:
                raise provider_failed(self._provider, f"the response is {status}")
            case {"output": list() as items}:
                pass
            case _:
                raise malformed(self._provider, "no output items")
        texts: list[str] = []
        refusals: list[str] = []
        calls: list[ToolCall] = []
        for index, item in enumerate(items):
            match item:
                case {"type": "message", "content": list() as parts}:
                    texts += [text for part in parts if (text := _part(part, "output_text", "text"))]
                    refusals += [text for part in parts if (text := _part(part, "refusal", "refusal"))]
                case {"type": "function_call"}:
                    fallback = f"call_{len(self._input)}_{index}"
                    call = call_of(item.get("call_id"), item.get("name"), item.get("arguments"), fallback_id=fallback)
                    item["call_id"] = call.call_id
                    calls.append(call)
                case _:
                    pass  # reasoning and items of built-in tools go back as they are
        return AssistantMessage(
            text="".join(refusals or texts),
            tool_calls=tuple(calls),
            finish="refusal" if refusals else _finish(reply, calls),
            usage=usage_of(reply.get("usage"), _USAGE),
            wire=tuple(items),
        )

    def _append(self, message: Message, tools: list[Wire], request: ProviderRequest) -> None:
        match message:
            case UserMessage(content):
                role = "user" if self._input else self._options.prompt_role
                if not self._input and request.output and self._options.structured_output == "prompted":
                    content = f"{content}\n\n{output_instructions(request.output)}"
                self._input.append({"role": role, "content": content})
            case AssistantMessage():
                self._input.extend(_assistant(message))
            case ToolMessage(call_id, content):
                self._input.append({"type": "function_call_output", "call_id": call_id, "output": content})
            case ToolsAdded(added):
                specs = [_tool(spec) for spec in added]
                if self._options.tools_in_conversation:
                    self._input.append({"type": "additional_tools", "role": "developer", "tools": specs})
                else:
                    tools.extend(specs)
            case ToolsRemoved(names):
                tools[:] = _without(tools, names)
                for item in self._input:  # the items that brought them: the cached prefix ends there
                    if item.get("type") == "additional_tools":
                        item["tools"] = _without(item["tools"], names)
                self._input[:] = [item for item in self._input if item.get("tools") != []]
            case never:
                assert_never(never)


def _without(tools: list[Wire], names: tuple[str, ...]) -> list[Wire]:
    return [tool for tool in tools if tool["name"] not in names]


def _tool(spec: ToolSpec) -> Wire:
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "strict": spec.strict,
    }


def _format(output: OutputSpec) -> Wire:
    return {"type": "json_schema", "name": output.name, "schema": output.schema, "strict": output.strict}


def _assistant(message: AssistantMessage) -> list[Any]:  # Any: the provider's items, returned as they came
    if message.wire:
        return list(message.wire)
    said: list[Wire] = [{"role": "assistant", "content": message.text}] if message.text else []
    return said + [
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]


def _part(part: object, kind: str, key: str) -> str:
    """The text of a content part of this kind; `""` for any other."""
    match part:
        case {"type": found, **rest} if found == kind:
            text = rest.get(key)
            return text if isinstance(text, str) else ""
        case _:
            return ""


def _finish(reply: Wire, calls: list[ToolCall]) -> Finish:
    match reply:
        case {"incomplete_details": {"reason": "content_filter"}}:
            return "content_filter"
        case {"status": "incomplete"} | {"incomplete_details": {"reason": "max_output_tokens"}}:
            return "length"
        case _:
            return "tool_calls" if calls else "stop"
