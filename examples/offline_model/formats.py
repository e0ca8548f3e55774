"""The formats of Chat Completions and Responses: body to `Conversation`, step to response.

Identical requests get identical responses: ids are content hashes, and times are 0. Malformed
requests raise `BadRequest`.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping

from .answering import extract
from .conversation import Call, Conversation, Message, Policy, Result, Tool

MODEL = "offline"
NOTE = "offline model, no LLM; token counts are estimates at 4 characters a token"

type Body = Mapping[str, object]


class BadRequest(Exception):
    """The request cannot be served; `param` names the invalid part."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


def respond(path: str, body: object, decide: Policy = extract) -> Body:
    """Returns the response to a POST, with the step from `decide`. Raises `BadRequest`."""
    if path not in _FORMATS:
        raise BadRequest(f"Unknown route {path!r}; post to {' or '.join(_FORMATS)}.", status=404)
    body = _object(body, "body")
    for name in ("stream", "previous_response_id", "conversation", "background"):
        if body.get(name) and (name, path) != ("stream", "/v1/responses"):
            message = f"The offline model does not support {name!r}; send whole requests."
            raise BadRequest(message, name)
    read, write = _FORMATS[path]
    conversation = read(body)
    step = decide(conversation)
    request = json.dumps(body, sort_keys=True)
    reply = step if isinstance(step, str) else step.name + _arguments_text(step)
    digest = hashlib.sha256(request.encode()).hexdigest()[:24]
    return write(step, digest, (_tokens(request), _tokens(reply)))


def events(response: Body) -> Iterator[Body]:
    """Yields the stream's events for a Responses reply, with its text word by word."""
    for item in _objects(response, "output"):
        for part in _objects(item, "content"):
            for word in re.findall(r"\S*\s*", str(part.get("text", "")))[:-1]:
                yield {"type": "response.output_text.delta", "item_id": item["id"], "delta": word}
    yield {"type": "response.completed", "response": response}


def _tokens(text: str) -> int:
    return -(-len(text) // 4)


def _arguments_text(call: Call) -> str:
    return json.dumps(call.arguments, ensure_ascii=False)


class _Turns:
    """Collects turns and pairs every call with its output, as the real services require."""

    def __init__(self) -> None:
        self.turns: list[Message | Result] = []
        self._open: dict[object, Call] = {}

    def say(self, role: object, content: object, where: str) -> None:
        if role not in {"system", "developer", "user", "assistant"}:
            raise BadRequest(f"Unknown role {role!r}.", f"{where}.role")
        if text := _text(content, where):
            self.turns.append(Message(role=str(role), text=text))

    def call(self, call_id: object, function: Body) -> None:
        try:
            arguments = json.loads(str(function.get("arguments")))
        except ValueError:
            arguments = {}
        arguments = _object(arguments, "arguments")
        self._open[call_id] = Call(name=str(function.get("name")), arguments=arguments)

    def output(self, call_id: object, content: object, where: str) -> None:
        if call_id not in self._open:
            raise BadRequest(f"{where} answers no open call: {call_id!r}.", where)
        self.turns.append(Result(call=self._open.pop(call_id), text=_text(content, where)))

    def closed(self, param: str) -> tuple[Message | Result, ...]:
        if self._open:
            raise BadRequest(f"No output for the calls {', '.join(map(repr, self._open))}.", param)
        return tuple(self.turns)


def _read_chat(body: Body) -> Conversation:
    turns = _Turns()
    for i, message in enumerate(_objects(body, "messages", least=1)):
        where = f"messages[{i}]"
        if message.get("role") == "tool":
            turns.output(message.get("tool_call_id"), message.get("content"), where)
            continue
        turns.say(message.get("role"), message.get("content"), where)
        for call in _objects(message, "tool_calls"):
            function = _object(call.get("function"), f"{where}.tool_calls.function")
            turns.call(call.get("id"), function)
    form = _object(body.get("response_format") or {}, "response_format")
    choice = body.get("tool_choice")
    functions = [
        _object(tool.get("function"), "tools.function") for tool in _objects(body, "tools")
    ]
    return Conversation(
        turns=turns.closed("messages"),
        tools=_tools(functions),
        answer_schema=_schema(form.get("type"), form.get("json_schema")),
        tool_choice=_choice(choice.get("function") if isinstance(choice, Mapping) else choice),
    )


def _read_responses(body: Body) -> Conversation:
    turns, tools = _Turns(), _objects(body, "tools")
    turns.say("developer", body.get("instructions"), "instructions")
    items: list[Body] = [{"role": "user", "content": body.get("input")}]
    if not isinstance(body.get("input"), str):
        items = _objects(body, "input", least=1)
    for i, item in enumerate(items):
        where = f"input[{i}]"
        match item.get("type", "message"):
            case "message":
                turns.say(item.get("role"), item.get("content"), where)
            case "function_call":
                turns.call(item.get("call_id"), item)
            case "function_call_output":
                turns.output(item.get("call_id"), item.get("output"), where)
            case "additional_tools":
                tools += _objects(item, "tools")
            case "reasoning":
                pass
            case other:
                raise BadRequest(f"Unknown item type {other!r}.", f"{where}.type")
    form = _object(_object(body.get("text") or {}, "text").get("format") or {}, "text.format")
    return Conversation(
        turns=turns.closed("input"),
        tools=_tools([tool for tool in tools if tool.get("type") == "function"]),
        answer_schema=_schema(form.get("type"), form),
        tool_choice=_choice(body.get("tool_choice")),
    )


def _object(value: object, where: str) -> Body:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{where} must be an object.", where)
    return value


def _objects(body: Body, name: str, least: int = 0) -> list[Body]:
    value = body.get(name) or []
    if not isinstance(value, list) or len(value) < least:
        raise BadRequest(f"{name!r} must be a list of at least {least}.", name)
    return [_object(item, f"{name}[{i}]") for i, item in enumerate(value)]


def _text(content: object, where: str) -> str:
    """Returns a content string, or the texts of its parts."""
    if isinstance(content, list):
        return "\n\n".join(str(_object(part, where).get("text", "")) for part in content)
    if not isinstance(content, str | None):
        raise BadRequest(f"The content of {where} must be a string or a list of parts.", where)
    return content or ""


def _tools(functions: list[Body]) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            name=str(function.get("name")),
            description=str(function.get("description") or ""),
            parameters=_object(function.get("parameters") or {}, "parameters"),
        )
        for function in functions
    )


def _schema(kind: object, form: object) -> Body | None:
    match kind:
        case "json_schema":
            return _object(_object(form, "json_schema").get("schema"), "schema")
        case "json_object":
            return {
                "type": "object",
                "properties": {"answer": {"type": "string"}},
                "required": ["answer"],
            }
        case _:
            return None


def _choice(choice: object) -> str:
    return str(choice.get("name") if isinstance(choice, Mapping) else choice or "auto")


def _write_chat(step: Call | str, digest: str, tokens: tuple[int, int]) -> Body:
    message: dict[str, object] = {"role": "assistant", "content": None, "refusal": None}
    if isinstance(step, Call):
        function = {"name": step.name, "arguments": _arguments_text(step)}
        message["tool_calls"] = [{"id": f"call_{digest}", "type": "function", "function": function}]
    else:
        message["content"] = step
    finish = "tool_calls" if isinstance(step, Call) else "stop"
    return {
        "id": f"chatcmpl-{digest}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "system_fingerprint": NOTE,
        "choices": [{"index": 0, "finish_reason": finish, "logprobs": None, "message": message}],
        "usage": {
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "total_tokens": sum(tokens),
        },
    }


def _write_responses(step: Call | str, digest: str, tokens: tuple[int, int]) -> Body:
    item: dict[str, object]
    if isinstance(step, Call):
        item = {"type": "function_call", "id": f"fc_{digest}", "call_id": f"call_{digest}"}
        item |= {"name": step.name, "arguments": _arguments_text(step)}
    else:
        content = [{"type": "output_text", "text": step, "annotations": []}]
        item = {"type": "message", "id": f"msg_{digest}", "role": "assistant", "content": content}
    return {
        "id": f"resp_{digest}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": MODEL,
        "metadata": {"note": NOTE},
        "output": [item | {"status": "completed"}],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "usage": {
            "input_tokens": tokens[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(tokens),
        },
    }


type _Format = tuple[
    Callable[[Body], Conversation], Callable[[Call | str, str, tuple[int, int]], Body]
]
_FORMATS: Mapping[str, _Format] = {
    "/v1/chat/completions": (_read_chat, _write_chat),
    "/v1/responses": (_read_responses, _write_responses),
}
