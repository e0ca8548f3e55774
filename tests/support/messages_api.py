"""Anthropic's documented rules for requests, and its prompt cache, in front of a script.

    api = MessagesAPI()
    with ScriptedServer(*map(api.play, [Say(calls=(Call("add"),)), Say("1")])) as server:
        ...
    assert api.uses[1].read == api.uses[0].stored

A request that breaks a rule gets status 400, and leaving the server's block raises `RuleError`.
Like newer models, the API rejects a request that does not begin with an earlier request, and puts a
thinking block before every answer, which must come back in the same place. The rules are those of
FACTS-ANTHROPIC; no live API was asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .script import Fail, Json, Request, Say, Scripted, Step, Usage

__all__ = ["CacheUse", "MessagesAPI", "RuleError", "positions", "prompt_text"]

INLINE_BETA = "inline-tools-2026-09-15"
_LOOK_BACK = 20
_MARKS = 4
_BODY = {
    *("model", "max_tokens", "messages", "tools", "system", "stream", "output_config", "thinking"),
    *("metadata", "service_tier", "context_management", "tool_choice", "temperature"),
}
_SCHEMA_KEYWORDS = {
    *("$defs", "$ref", "additionalProperties", "anyOf", "allOf", "const", "default", "description"),
    *("enum", "format", "items", "minItems", "pattern", "properties", "required", "title", "type"),
}
_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
}


class RuleError(AssertionError):
    """A request that the API would reject."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """A request's characters: all, those read from the cache, and those stored as a prefix then."""

    total: int
    read: int
    stored: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request without its marks; its first `external` messages went to another provider."""

    fixed: Json
    tools: list[Json]
    messages: list[Json]
    external: int


class MessagesAPI:
    """Checks each request before its step is played; with `counts`, the usage includes the cache.

    `growing_tools` allows the list of tools to change, as models without bound thinking do.
    """

    def __init__(self, *, growing_tools: bool = False, counts: bool = False) -> None:
        self._growing_tools = growing_tools
        self._counts = counts
        self._sent: list[_Sent] = []
        self._stored: set[int] = set()
        self.uses: list[CacheUse] = []

    def play(self, step: Scripted) -> Scripted:
        """Returns the step, played only if the request follows the rules."""

        def respond(request: Request) -> Step:
            self._check(request)
            use = self._use_cache(request.json)
            self.uses.append(use)
            said = step(request) if callable(step) else step
            if not isinstance(said, Say):
                return said
            usage = said.usage
            if self._counts:
                usage = Usage(
                    use.total, usage.output, use.read, usage.reasoning, use.stored - use.read
                )
            return replace(said, usage=usage, reasoning=said.reasoning or "hm")

        return respond

    def _check(self, request: Request) -> None:
        body: Json = request.json
        rule(body.keys() <= _BODY, f"unknown arguments {body.keys() - _BODY}")
        rule(isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 0, "max_tokens")
        betas = (request.header("anthropic-beta") or "").split(",")
        tools = body.get("tools", [])
        check_tools(tools)
        check_messages(body["messages"], tools, inline=INLINE_BETA in betas)
        check_marks(body)
        check_strict(body)
        self._check_prefix(body)

    def _check_prefix(self, body: Json) -> None:
        plain = without_marks(body)
        messages: list[Json] = plain.pop("messages")
        tools: list[Json] = plain.pop("tools", [])
        plain.pop("stream", None)
        said = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        begun = any(old.messages[:1] == messages[:1] for old in self._sent)
        external = 0 if begun or not said else said[-1] + 1  # said to another provider
        if said and not external:
            before = messages[: said[-1]]
            earlier = [
                old
                for old in self._sent
                if old.fixed == plain
                and (
                    (before == old.messages and (self._growing_tools or old.tools == tools))
                    # a new start repeats messages for another provider, without bound thinking
                    or (old.external and before == old.messages[: old.external - 1])
                )
            ]
            rule(bool(earlier), "the request does not begin with an earlier request")
            external = earlier[0].external
        for at in said:
            first = messages[at]["content"][0]
            is_thinking = first.get("type") == "thinking" and "signature" in first
            # a message cannot end with thinking, so a message of only thinking is sent without it
            is_empty = first.get("text") == "(no text)"
            is_right = is_thinking is (at >= external) or is_empty
            rule(is_right, "thinking is missing, or another provider's")
        self._sent.append(_Sent(plain, tools, messages, external))

    def _use_cache(self, body: Json) -> CacheUse:
        """Reads the longest stored prefix in reach of a mark, and stores the prefixes at marks."""
        prefixes: list[tuple[int, int]] = []  # hashes and lengths
        marks: list[int] = []
        whole, length = 0, 0
        for at, (text, marked) in enumerate(positions(body)):
            whole, length = hash((whole, text)), length + len(text)
            prefixes.append((whole, length))
            if marked:
                marks.append(at)
        read = 0
        for mark in marks:
            for key, size in prefixes[max(0, mark - _LOOK_BACK + 1) : mark + 1]:
                if key in self._stored:
                    read = max(read, size)
        self._stored.update([prefixes[mark][0] for mark in marks])
        stored = prefixes[marks[-1]][1] if marks else 0
        return CacheUse(length, read, stored)


def rule(kept: bool, text: str) -> None:
    if not kept:
        raise RuleError(text)


def without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_marks(inner) for key, inner in value.items() if key != "cache_control"}
    return [without_marks(item) for item in value] if isinstance(value, list) else value


def positions(body: Json) -> Iterator[tuple[str, bool]]:
    """Yields the model's input block by block, each with whether it is marked.

    Deferred tools are not part of it; a reference to one counts as its definition.
    """
    tools = body.get("tools", [])
    definitions = {tool["name"]: tool for tool in tools}
    for tool in tools:
        if not tool.get("defer_loading"):
            yield json.dumps(without_marks(tool)), "cache_control" in tool
    if form := (body.get("output_config") or {}).get("format"):
        yield json.dumps(form), False
    system = body.get("system", [])
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    for block in blocks:
        yield json.dumps(without_marks(block)), "cache_control" in block
    for message in body["messages"]:
        for block in message["content"]:
            text = message["role"] + json.dumps(without_marks(block))
            if isinstance(block.get("content"), list):
                text += json.dumps(
                    [
                        definitions[part["tool_name"]]
                        for part in block["content"]
                        if part["type"] == "tool_reference"
                    ]
                )
            yield text, "cache_control" in block


def prompt_text(body: Json) -> str:
    """Returns the model's input as one text."""
    return "".join([text for text, _ in positions(body)])


def check_tools(tools: list[Json]) -> None:
    names = [tool["name"] for tool in tools]
    rule(len(set(names)) == len(names), "two tools of one name")
    rule(not tools or not all(tool.get("defer_loading") for tool in tools), "all tools deferred")
    for tool in tools:
        check_tool(tool)
        rule(not ("cache_control" in tool and tool.get("defer_loading")), "a deferred tool marked")


def check_tool(tool: Json) -> None:
    if "type" in tool:
        return  # the provider runs it
    known = {"name", "description", "input_schema", "strict", "defer_loading", "cache_control"}
    rule(tool.keys() <= known, f"a tool has {tool.keys() - known}")
    rule(bool(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool["name"])), "a tool's name")
    rule(tool["input_schema"].get("type") == "object", "a tool's root is not an object")
    rule(not {"anyOf", "oneOf", "allOf"} & tool["input_schema"].keys(), "a union at a tool's root")


def check_messages(messages: list[Json], tools: list[Json], *, inline: bool) -> None:
    rule(bool(messages), "no messages")
    rule(messages[0]["role"] == "user", "the first message is not the user's")
    last = messages[-1]
    rule(last["role"] != "assistant" or is_paused(last), "the last message is the model's")
    available = {tool["name"] for tool in tools if not tool.get("defer_loading")}
    deferred = {tool["name"] for tool in tools if tool.get("defer_loading")}
    awaited: list[str] = []
    before = ""
    paused = False
    for message in messages:
        role, blocks = message["role"], message["content"]
        rule(isinstance(blocks, list) and bool(blocks), "a message without content")
        for block in blocks:
            rule(block.get("type") != "text" or bool(block["text"]), "an empty text")
        if role == "assistant":
            rule(before in ("user", "system") or paused, "two messages of the model in a row")
            paused = is_paused(message)
            awaited = [block["id"] for block in blocks if block["type"] == "tool_use"]
            for block in blocks:
                rule(block["type"] != "tool_use" or isinstance(block["input"], dict), "an input")
        elif role == "user":
            rule(before in ("", "assistant"), "two messages of the user in a row")
            rule(not paused, "a call of the provider's own tool without a result")
            check_results(blocks, awaited, deferred)
            awaited = []
        else:
            changes = {block["type"] for block in blocks} - {"text"}
            rule(role == "system" and (inline or not changes), "tools change without the beta")
            rule(before == "user", "a system message that follows no user message")
            rule(not awaited, "a system message between a call and its result")
            check_changes(blocks, available)
        before = role


def is_paused(message: Json) -> bool:
    """Returns whether a model's message ends with a call that the provider runs itself."""
    return bool(message["content"][-1]["type"] == "server_tool_use")


def check_results(blocks: list[Json], awaited: list[str], deferred: set[str]) -> None:
    results = [block for block in blocks if block["type"] == "tool_result"]
    rule(blocks[: len(results)] == results, "a result behind a text")
    rule([block["tool_use_id"] for block in results] == awaited, "results that answer no calls")
    own = {"tool_result", "text", "image", "document"}
    rule({block["type"] for block in blocks} <= own, "a block of the user's")
    for result in results:
        content = result.get("content", "x")
        rule(content != [], "an empty list in a result")
        parts = [{"type": "text"}] if isinstance(content, str) else content
        types = {part["type"] for part in parts}
        shown = {"text", "image", "document"}
        rule(types == {"tool_reference"} or types <= shown, "a result of several types")
        rule(types == {"text"} or not result.get("is_error"), "an error that is not text")
        for part in parts:
            rule(part.get("tool_name", "") in {"", *deferred}, "a reference to an unknown tool")


def check_changes(blocks: list[Json], available: set[str]) -> None:
    for block in blocks:
        match block:
            case {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}}:
                check_tool(tool)
                rule("defer_loading" not in tool, "an inline tool that is deferred")
                available.add(tool["name"])
            case {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}:
                rule(name in available, "a tool removed that is not there")
                available.discard(name)
            case {"type": "text"}:
                pass
            case _:
                raise RuleError(f"a system block {block}")


def check_marks(body: Json) -> None:
    marks = [block["cache_control"] for block in _marked(body)]
    rule(len(marks) <= _MARKS, f"{len(marks)} cache marks")
    for mark in marks:
        rule(mark["type"] == "ephemeral" and mark.get("ttl", "5m") in ("5m", "1h"), "a mark")


def _marked(value: Any) -> Iterator[Json]:
    match value:
        case dict():
            if "cache_control" in value:
                rule(value.get("type") not in ("thinking", "redacted_thinking"), "thinking marked")
                yield value
            for inner in value.values():
                yield from _marked(inner)
        case list():
            for inner in value:
                yield from _marked(inner)
        case _:
            pass


def check_strict(body: Json) -> None:
    """Checks the profile of strict schemas, and the limits across a request."""
    tools = [*body.get("tools", [])]
    for message in body["messages"]:
        tools += [
            block["tool"]["definition"]
            for block in message["content"]
            if block["type"] == "tool_addition"
        ]
    distinct = {tool["name"]: tool["input_schema"] for tool in tools if tool.get("strict")}
    rule(len(distinct) <= 20, "more than 20 strict tools")
    schemas = list(distinct.values())
    if form := (body.get("output_config") or {}).get("format"):
        schemas.append(form["schema"])
    optional = unions = 0
    for schema in schemas:
        for inner in _subschemas(schema, ()):
            optional += len(inner.get("properties", {}).keys() - set(inner.get("required", ())))
            unions += "anyOf" in inner or isinstance(inner.get("type"), list)
        _check_references(schema, schema.get("$defs", {}), ())
    rule(optional <= 24, f"{optional} optional parameters")
    rule(unions <= 16, f"{unions} unions")


def _subschemas(schema: Json, above: tuple[str, ...]) -> Iterator[Json]:
    rule(schema.keys() <= _SCHEMA_KEYWORDS, f"keywords {schema.keys() - _SCHEMA_KEYWORDS}")
    rule(schema.get("type") != "object" or schema["additionalProperties"] is False, "open object")
    rule(schema.get("minItems", 0) in (0, 1), "minItems")
    rule(schema.get("format", "date") in _FORMATS, "format")
    rule(not re.search(r"\(\?|\\[1-9bB]", schema.get("pattern", "")), "pattern")
    rule("$ref" not in schema or schema.keys() <= {"$ref"}, "keywords next to a reference")
    rule(not any(isinstance(value, dict) for value in schema.get("enum", ())), "object in enum")
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    for each in [*inner, *schema.get("anyOf", ()), *filter(None, [schema.get("items")])]:
        yield from _subschemas(each, above)


def _check_references(value: Any, definitions: Json, above: tuple[str, ...]) -> None:
    match value:
        case {"$ref": str() as reference}:
            name = reference.removeprefix("#/$defs/")
            rule(name not in above, "a recursive schema")
            _check_references(definitions[name], definitions, (*above, name))
        case dict():
            for key, inner in value.items():
                if key != "$defs":
                    _check_references(inner, definitions, above)
        case list():
            for inner in value:
                _check_references(inner, definitions, above)
        case _:
            pass


def too_long() -> Fail:
    """Returns the API's error for a prompt that is longer than the model's window."""
    return Fail(400, "prompt is too long: 210000 tokens > 200000 maximum")
