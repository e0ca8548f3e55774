"""The Responses codec: OpenAI's own API, with typed items and tools that can be added in the
conversation.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ...evaluation.messages import AssistantMessage, Finish, ToolCall, ToolMessage
from ...evaluation.schemas import OutputSpec, ToolSpec
from ..codec import Codec, Wire, call_of, malformed, provider_failed, usage_of

__all__ = ["ResponsesCodec"]

_USAGE = ("input_tokens", "output_tokens", "input_tokens_details")


class ResponsesCodec(Codec):
    """One conversation as Responses input items; all output items go back unchanged, reasoning
    included.
    """

    streaming = {"stream": True}  # noqa: RUF012 - never changed

    def text_of(self, event: Any) -> str:  # Any: as in `decode`
        match event:
            case {"type": "response.output_text.delta", "delta": str() as text}:
                return text
            case {"type": "error", "message": message}:
                raise provider_failed(self.provider, message)
            case _:
                return ""

    def joined(self, events: list[Any]) -> object:  # Any: as in `decode`
        """The last event holds all of it."""
        for event in reversed(events):
            match event:
                case {
                    "type": "response.completed" | "response.incomplete" | "response.failed",
                    "response": reply,
                }:
                    return reply
                case _:
                    pass
        return None

    # Any: read key by key, each checked where it matters
    def decode(self, reply: Any) -> AssistantMessage:
        """All output items of a reply."""
        match reply:
            case {"error": {"message": message}}:
                raise provider_failed(self.provider, message)
            case {"status": "failed" | "cancelled" | "queued" | "in_progress" as status}:
                raise provider_failed(self.provider, f"the response is {status}")
            case {"output": list() as items}:
                pass
            case _:
                raise malformed(self.provider, "no output items")
        texts: list[str] = []
        refusals: list[str] = []
        calls: list[ToolCall] = []
        for index, item in enumerate(items):
            match item:
                case {"type": "message", "content": list() as parts}:
                    for part in parts:
                        match part:
                            case {"type": "output_text", "text": str() as text}:
                                texts.append(text)
                            case {"type": "refusal", "refusal": str() as text}:
                                refusals.append(text)
                            case _:
                                pass
                case {"type": "function_call"}:
                    fallback = f"call_{len(self.items)}_{index}"
                    call = call_of(
                        item.get("call_id"),
                        item.get("name"),
                        item.get("arguments"),
                        fallback_id=fallback,
                    )
                    item["call_id"] = call.call_id
                    calls.append(call)
                case {"type": _}:
                    pass  # reasoning and items of built-in tools go back as they are
                case _:
                    raise malformed(self.provider, "an output item without a type")
        return AssistantMessage(
            text="".join(refusals or texts),
            tool_calls=tuple(calls),
            finish="refusal" if refusals else _finish(reply, calls),
            usage=usage_of(reply.get("usage"), _USAGE),
            wire=tuple(items),
        )

    def body(self, output: OutputSpec | None) -> Wire:
        if output is None:
            return {"input": self.items}
        return {
            "input": self.items,
            "text": {"format": {"type": "json_schema", **output.as_dict()}},
        }

    def tool(self, spec: ToolSpec) -> Wire:
        return {"type": "function", **spec.as_dict()}

    def assistant(self, message: AssistantMessage) -> list[Wire]:
        if message.wire:
            # Any: the provider's items, returned as they came
            items: list[Any] = list(message.wire)
            return items
        said: list[Wire] = [{"role": "assistant", "content": message.text}] if message.text else []
        return said + [
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            }
            for call in message.tool_calls
        ]

    def answer(self, message: ToolMessage) -> Wire:
        return {
            "type": "function_call_output",
            "call_id": message.call_id,
            "output": message.content,
        }

    def add_tools(self, added: Mapping[str, Wire]) -> None:
        if self.options.tools_in_conversation:
            self.items.append(
                {"type": "additional_tools", "role": "developer", "tools": list(added.values())}
            )
        else:
            super().add_tools(added)

    def remove_tools(self, names: Collection[str]) -> None:
        super().remove_tools(names)
        for item in self.items:
            # what brought them changes, and the cached prefix ends there
            if item.get("type") == "additional_tools":
                item["tools"] = [tool for tool in item["tools"] if tool["name"] not in names]
        self.items[:] = [
            item for item in self.items if item.get("type") != "additional_tools" or item["tools"]
        ]


def _finish(reply: Wire, calls: list[ToolCall]) -> Finish:
    match reply:
        case {"incomplete_details": {"reason": "content_filter"}}:
            return "content_filter"
        case {"status": "incomplete"} | {"incomplete_details": {"reason": "max_output_tokens"}}:
            return "length"
        case _:
            return "tool_calls" if calls else "stop"
