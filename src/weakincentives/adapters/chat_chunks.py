"""Joins the chunks of a Chat Completions stream into a message."""

import json
from io import StringIO
from operator import itemgetter

from .codec import AnyJson, JsonObject

__all__ = ["dicts", "joined", "merge"]

# Strings that are sent in a single chunk; some servers repeat them in later events.
_WHOLE_TEXTS = frozenset({"id", "name", "role", "type"})
# Texts that a stream sends in pieces; each chunk repeats the other fields of its entry.
_DETAIL_TEXTS = frozenset({"text", "summary", "data"})
_MAX_CHECKED = 20_000  # characters of arguments


def merge(message: JsonObject, delta: JsonObject) -> None:
    """Merges `delta` into `message`: appends text, and matches list items by `index`.

    Text is collected in buffers until the last chunk, because appending to a `str` takes quadratic
    time.
    """
    for key, chunk in delta.items():
        before = message.get(key)
        if key == "reasoning_details" and isinstance(chunk, list):
            message[key] = details = before if isinstance(before, list) else []
            _add_details(details, chunk)
        elif isinstance(chunk, list) or (
            isinstance(before, list) and isinstance(chunk, str | dict)
        ):
            message[key] = items = _to_list(before)
            add = _add_calls if key == "tool_calls" else _add_parts
            add(items, _to_list(chunk))
        elif isinstance(chunk, str):
            if isinstance(before, StringIO):
                before.write(chunk)
            elif before is None and key not in _WHOLE_TEXTS:
                message[key] = text = StringIO()
                text.write(chunk)
            elif chunk or not isinstance(before, str):
                message[key] = chunk
        elif chunk is None:
            message.setdefault(key, None)
        elif isinstance(chunk, dict):
            message[key] = inner = before if isinstance(before, dict) else {}
            merge(inner, chunk)
        else:
            message[key] = chunk


def _to_list(value: AnyJson) -> list[AnyJson]:
    """Returns a value as a list of parts, whether it was sent as a string, a part or a list."""
    if isinstance(value, str | StringIO):
        is_empty = not (value if isinstance(value, str) else value.tell())
        return [] if is_empty else [{"type": "text", "text": value}]
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []


def _add_parts(items: list[AnyJson], chunks: list[AnyJson]) -> None:
    """Adds parts other than calls to a list: appends text, and matches other parts by `index`."""
    for part in chunks:
        if not isinstance(part, dict):
            items.append(part)
            continue
        last: JsonObject = items[-1] if items and isinstance(items[-1], dict) else {}
        if _is_text_chunk(part) and part.keys() == last.keys() and part["type"] == last["type"]:
            merge(last, part)
            continue
        if (index := part.get("index")) is None:
            same: list[JsonObject] = []
        else:
            same = [it for it in items if isinstance(it, dict) and it.get("index") == index]
        if not same:
            items.append({})
        merge(same[-1] if same else items[-1], part)


def _add_details(details: list[AnyJson], chunks: list[AnyJson]) -> None:
    """Adds entries to OpenRouter's list of reasoning; chunks of one type and index are joined.

    Without an index, only adjacent chunks are joined, up to a signature, which ends its entry.
    """
    for chunk in chunks:
        if not isinstance(chunk, dict):
            details.append(chunk)
            continue
        index, kind = chunk.get("index"), chunk.get("type")
        last = details[-1:] if index is None else reversed(details)
        same = (
            it
            for it in last
            if isinstance(it, dict) and (it.get("type"), it.get("index")) == (kind, index)
        )
        entry: JsonObject | None = next(same, None)
        if entry is None or _is_other_detail(entry, chunk):
            details.append(entry := {})
        for key, value in chunk.items():
            if key in _DETAIL_TEXTS and isinstance(value, str):
                before = entry.get(key)
                if not isinstance(before, StringIO):
                    entry[key] = StringIO()
                entry[key].write(value)
            elif value is not None or key not in entry:
                entry[key] = value


def _is_other_detail(entry: JsonObject, chunk: JsonObject) -> bool:
    """Returns whether a chunk starts another entry although its type and index are the same."""
    ids = entry.get("id"), chunk.get("id")
    has_text = any(chunk.get(name) for name in _DETAIL_TEXTS)
    is_signed = chunk.get("index") is None and bool(entry.get("signature"))
    return (None not in ids and ids[0] != ids[1]) or (is_signed and has_text)


def _is_text_chunk(part: JsonObject) -> bool:
    """Returns whether a part is a text or thinking chunk, which continues the preceding part."""
    return part.keys() in ({"type", "text"}, {"type", "thinking"})


def _add_calls(calls: list[JsonObject], chunks: list[AnyJson]) -> None:
    """Adds chunks of calls, which servers identify by index, id, name or order."""
    for place, chunk in enumerate(chunks):
        if not isinstance(chunk, dict):
            raise TypeError("a chunk of a tool call is not an object")
        call = _continued_call(chunk, calls, place if len(chunks) > 1 else None)
        if call is None:
            calls.append(call := {})
        merge(call, chunk)


def _continued_call(
    chunk: JsonObject, calls: list[JsonObject], place: int | None
) -> JsonObject | None:
    """Returns the call that `chunk` continues, or `None` if it starts a new one."""
    index, call_id, name = chunk.get("index"), chunk.get("id"), _name(chunk)
    last = calls[-1] if calls else None
    if index is not None:
        call = next((call for call in reversed(calls) if call.get("index") == index), None)
    elif call_id:
        call = next((call for call in reversed(calls) if call.get("id") == call_id), None)
    elif place is not None and not name:
        call = calls[place] if place < len(calls) else None
    else:
        call = last
    if call is None:
        # A chunk with neither an id nor a name cannot start a call.
        return None if call_id or name else last
    same_id = call_id and call_id == call.get("id")
    if not name or same_id:
        return call
    other_id = call_id and call.get("id")
    other_name = _name(call) not in ("", name)
    return None if other_id or other_name or _is_complete(call, chunk) else call


def _name(call: JsonObject) -> str:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _is_complete(call: JsonObject, chunk: JsonObject) -> bool:
    """Returns whether a call's arguments are complete; if so, `chunk` belongs to another call."""
    arguments, further = call.get("function"), chunk.get("function")
    text = arguments.get("arguments") if isinstance(arguments, dict) else None
    if not isinstance(text, StringIO) or not isinstance(further, dict):
        return False
    # Parsing long arguments would be slow if a server repeats the name in each chunk.
    if not further.get("arguments") or not text.tell() or text.tell() > _MAX_CHECKED:
        return False
    try:
        json.loads(text.getvalue())
    except (ValueError, RecursionError):
        return False
    return True


def joined(message: JsonObject) -> JsonObject:
    """Returns a message with all chunks merged: its texts, its lists in order, and its blocks."""
    for key, value in message.items():
        if isinstance(value, list) and key != "reasoning_details":  # its entries keep their index
            message[key] = _sort_by_index(value)
    message = _join_texts(message)
    if "thinking_blocks" in message:
        message["thinking_blocks"] = _join_thinking(dicts(message["thinking_blocks"]))
    return message


def _sort_by_index(items: list[AnyJson]) -> list[AnyJson]:
    """Removes `index` from items, and sorts them by it if each one has a different index."""
    if not all(isinstance(item, dict) for item in items):
        return items
    places = [item.pop("index", None) for item in items]
    if not all(isinstance(place, int) for place in places) or len(set(places)) < len(items):
        return items
    return [item for _, item in sorted(zip(places, items, strict=True), key=itemgetter(0))]


def _join_texts(value: AnyJson) -> AnyJson:
    """Returns a merged message with its buffers as text."""
    if isinstance(value, dict):
        return {key: _join_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_join_texts(item) for item in value]
    return value.getvalue() if isinstance(value, StringIO) else value


def _join_thinking(chunks: list[JsonObject]) -> list[JsonObject]:
    """Joins chunks into complete blocks; each block ends with the signature that it needs."""
    blocks: list[JsonObject] = []
    texts: list[str] = []
    for chunk in chunks:
        if chunk.get("type") != "thinking":  # for example redacted thinking, sent in one chunk
            texts.clear()
            blocks.append(chunk)
            continue
        texts.append(chunk.get("thinking") or "")
        if signature := chunk.get("signature"):
            blocks.append({"type": "thinking", "thinking": "".join(texts), "signature": signature})
            texts.clear()
    return blocks


def dicts(value: AnyJson) -> list[JsonObject]:
    """Returns the objects in a list, or none for a value that is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
