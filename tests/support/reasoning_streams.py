"""Replies of the three APIs with reasoning and citations, whole and as streams in any chunks."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from support.script import Raw, Request, Step

type Json = dict[str, Any]  # Any: JSON that tests index into
type Cut = Callable[[str], Sequence[str]]

MODEL = "claude-a"


def halves(text: str) -> Sequence[str]:
    """Cuts a text into two chunks."""
    middle = len(text) // 2
    return [part for part in (text[:middle], text[middle:]) if part]


def responses_reply(*items: Json, **more: Any) -> Json:
    head = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    return {**head, "error": None, "incomplete_details": None, "output": [*items], **more}


def summary(*texts: str, number: int = 1, **more: Any) -> Json:
    """Returns a reasoning item whose summary has these parts."""
    parts = [{"type": "summary_text", "text": text} for text in texts]
    return {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": parts,
        "encrypted_content": f"sealed-{number}",
        **more,
    }


def message_item(text: str, *annotations: Json, number: int = 1) -> Json:
    part = {"type": "output_text", "text": text, "annotations": [*annotations]}
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": [part]}


def responses_events(reply: Json, cut: Cut = halves) -> Iterator[Json]:
    """Yields the events of a reply, with the annotations of its texts as events, too."""
    yield {"type": "response.created", "response": {**reply, "output": []}}
    for index, item in enumerate(reply["output"]):
        at = {"output_index": index, "item_id": item.get("id")}
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        for number, part in enumerate(item.get("summary", ())):
            here = {**at, "summary_index": number}
            kind = "response.reasoning_summary_text"
            for text in cut(part["text"]):
                yield {"type": f"{kind}.delta", **here, "delta": text}
            yield {"type": f"{kind}.done", **here, "text": part["text"]}
            yield {"type": "response.reasoning_summary_part.done", **here, "part": part}
        for number, part in enumerate(item.get("content", ())):
            here = {**at, "content_index": number}
            if part["type"] == "refusal":
                yield {"type": "response.refusal.delta", **here, "delta": part["refusal"]}
                continue
            kind = "reasoning_text" if part["type"] == "reasoning_text" else "output_text"
            for text in cut(part["text"]):
                yield {"type": f"response.{kind}.delta", **here, "delta": text}
            for annotation in part.get("annotations", ()):
                added = {**here, "annotation": annotation}
                yield {"type": "response.output_text.annotation.added", **added}
            yield {"type": f"response.{kind}.done", **here, "text": part["text"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": reply}


def messages_reply(*blocks: Json, stop: str = "end_turn", model: str = MODEL) -> Json:
    head = {"id": "m", "type": "message", "role": "assistant", "model": model}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {
        **head,
        "stop_sequence": None,
        "content": [*blocks],
        "stop_reason": stop,
        "usage": usage,
    }


def messages_events(reply: Json, cut: Cut = halves) -> Iterator[Json]:
    """Yields the events of a reply; its signatures and citations are deltas."""
    yield {"type": "message_start", "message": {**reply, "content": [], "stop_reason": None}}
    for index, block in enumerate(reply["content"]):
        start, deltas = dict(block), list[Json]()
        for name in ("text", "thinking"):
            if name in block:
                start[name] = ""
                deltas += [{"type": f"{name}_delta", name: part} for part in cut(block[name])]
        if "signature" in block:
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        for citation in start.pop("citations", ()):
            deltas.append({"type": "citations_delta", "citation": citation})
        if "input" in block:
            start["input"] = {}
            text = json.dumps(block["input"])
            deltas.append({"type": "input_json_delta", "partial_json": text})
        at = {"index": index}
        yield {"type": "content_block_start", **at, "content_block": start}
        yield from [{"type": "content_block_delta", **at, "delta": delta} for delta in deltas]
        yield {"type": "content_block_stop", **at}
    stop = {"stop_reason": reply.get("stop_reason"), "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": reply["usage"]}
    yield {"type": "message_stop"}


def chat_reply(finish: str = "stop", /, more: Json | None = None, **message: Any) -> Json:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], **(more or {})}


def chat_events(reply: Json, cut: Cut = halves) -> Iterator[Json]:
    """Yields the chunks of a reply: its reasoning, its text, and then its lists."""
    [choice] = reply["choices"]
    message = dict(choice["message"])
    deltas: list[Json] = [{"role": message.pop("role"), "content": ""}]
    names = [name for name in ("reasoning_content", "reasoning") if message.get(name)]
    if names:
        chunks = [cut(message.pop(name)) for name in names]
        deltas += [dict(zip(names, texts, strict=False)) for texts in zip(*chunks, strict=False)]
    for block in message.pop("thinking_blocks", ()):
        pieces: list[Json] = [block]
        if "signature" in block:
            pieces = [{"type": "thinking", "thinking": text} for text in cut(block["thinking"])]
            pieces.append({**block, "thinking": ""})
        deltas += [{"thinking_blocks": [piece]} for piece in pieces]
    for detail in message.pop("reasoning_details", ()):
        deltas += [{"reasoning_details": [it]} for it in detail_chunks(detail, cut)]
    deltas += [{"content": text} for text in cut(message.pop("content", None) or "")]
    for index, call in enumerate(message.pop("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    deltas += [{name: value} for name, value in message.items()]
    head = {**reply, "object": "chat.completion.chunk"}
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield {**head, "choices": [last]}


def detail_chunks(detail: Json, cut: Cut = halves) -> list[Json]:
    """Returns OpenRouter's chunks of one entry: the text in pieces, then the signature."""
    [name] = [name for name in ("text", "summary", "data") if name in detail]
    head = {key: value for key, value in detail.items() if key not in (name, "signature")}
    chunks = [{**head, name: text} for text in cut(detail[name])]
    if "signature" in detail:
        chunks.append({**head, "signature": detail["signature"]})
    return chunks


def events_of(reply: Json, cut: Cut = halves) -> list[Json]:
    """Returns the events of a reply in any of the three formats."""
    if "choices" in reply:
        return list(chat_events(reply, cut))
    return list((responses_events if "output" in reply else messages_events)(reply, cut))


def sse(events: Sequence[Json]) -> Raw:
    """Returns events as a stream."""
    lines = [
        (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"
        for event in events
    ]
    end = "" if events and "type" in events[0] else "data: [DONE]\n\n"
    return Raw(("".join(lines) + end).encode(), content_type="text/event-stream")


def answer(reply: Json, events: Sequence[Json] | None = None) -> Callable[[Request], Step]:
    """Returns a step that answers with a reply, as a stream (of `events`) if one is requested."""

    def step(request: Request) -> Step:
        if not request.json.get("stream"):
            return Raw.json(reply)
        return sse(events_of(reply) if events is None else events)

    return step
