"""Conformance suite harnesses for adapters that speak HTTP: a scripted server plays the script."""

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from support.media import shown_by_chat, shown_by_messages, shown_by_responses
from support.script import Scripted
from support.scripted_server import Call, Drop, Fail, Raw, Request, Say, ScriptedServer, Step, Usage
from weakincentives.adapters.core import ProviderAdapter
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.limits import Clock
from weakincentives.testing.conformance import SentRequest, Stage
from weakincentives.testing.scenarios import Capability, ProviderFault
from weakincentives.testing.scenarios import Step as Played

__all__ = ["HttpHarness", "played", "sent_by_chat", "sent_by_messages", "sent_by_responses"]


class HttpHarness:
    """Creates an adapter with `make(server, config=…, clock=…)` and reads requests with `sent`."""

    def __init__(
        self,
        make: Callable[..., ProviderAdapter],
        sent: Callable[[Request], SentRequest],
        capabilities: Capability = ~Capability(0),  # noqa: B008 - immutable
        *,
        play: Callable[[Played], Scripted] | None = None,
    ) -> None:
        self._make = make
        self._sent = sent
        self._play = play or played
        self.capabilities = capabilities

    @contextmanager
    def open(
        self, steps: Sequence[Played], /, *, config: RunConfig, clock: Clock
    ) -> Generator[Stage]:
        script = [self._play(step) for step in steps]
        ends_well = not steps or (
            isinstance(steps[-1], AssistantMessage) and steps[-1].finish in ("stop", "tool_calls")
        )
        # a vendor's loop may ask again after a failure
        insists = Capability.OWN_LOOP not in self.capabilities and not ends_well
        with ScriptedServer(*script, *script[-1:] * (8 * insists), strict=not insists) as server:
            yield Stage(
                self._make(server, config=config, clock=clock),
                lambda: [self._sent(request) for request in server.requests],
            )


def played(step: Played) -> Step:
    """Returns the step as a step of the server."""
    match step:
        case ProviderFault(code=_, status=int() as status, kind=kind, retry_after=wait):
            return Fail(status, code=kind, retry_after=wait)
        case ProviderFault(code="malformed"):
            return Raw(b"<html>Hello</html>", content_type="text/html")
        case ProviderFault():
            return Drop()
        case AssistantMessage(text=text, tool_calls=calls, finish=finish, usage=usage):
            return Say(
                "" if finish == "refusal" else text,
                tuple([Call(call.name, call.arguments, call.call_id) for call in calls]),
                finish=None if finish in ("refusal", "error") else finish,  # type: ignore[arg-type]  # neither is left
                usage=Usage(
                    usage.input_tokens,
                    usage.output_tokens,
                    usage.cached_tokens,
                    usage.reasoning_tokens,
                    usage.cache_write_tokens,
                ),
                refusal=text if finish == "refusal" else None,
                reasoning=step.reasoning or None,
                sources=tuple([(citation.title, citation.url) for citation in step.citations]),
            )


def sent_by_chat(request: Request) -> SentRequest:
    """Reads a Chat Completions request."""
    messages = request.json["messages"]
    asked = ("system", "developer", "user")
    contents = [message["content"] for message in messages if message["role"] in asked]
    own = [message for message in messages if message["role"] == "assistant"]
    return SentRequest(
        _user_texts(contents),
        tuple([tool["function"]["name"] for tool in request.json.get("tools", ())]),
        tuple(
            [
                (message["tool_call_id"], message["content"])
                for message in messages
                if message["role"] == "tool"
            ]
        ),
        _media(shown_by_chat(request.json)),
        _user_texts([message.get("content") or "" for message in own]),
        tuple([call["id"] for message in own for call in message.get("tool_calls") or ()]),
    )


def sent_by_responses(request: Request) -> SentRequest:
    """Reads a Responses request."""
    items = request.json["input"]
    asked = ("system", "developer", "user")
    return SentRequest(
        _user_texts([item["content"] for item in items if item.get("role") in asked]),
        tuple([tool["name"] for tool in request.json.get("tools", ())]),
        tuple(
            [
                (item["call_id"], "".join(_user_texts([item["output"]])))
                for item in items
                if item.get("type") == "function_call_output"
            ]
        ),
        _media(shown_by_responses(request.json)),
        _user_texts([item["content"] for item in items if item.get("role") == "assistant"]),
        tuple([item["call_id"] for item in items if item.get("type") == "function_call"]),
    )


def sent_by_messages(request: Request) -> SentRequest:
    """Reads an Anthropic Messages request; `mcp__server__name` is read as the tool `name`.

    Tools that are added, loaded or removed in the conversation are included as the model sees them.
    The answer to a call that loaded tools is the text after its results.
    """
    system = request.json.get("system", "")
    texts = [system] if isinstance(system, str) else _texts(system)
    replies: list[str] = []
    calls: list[str] = []
    answers: list[tuple[str, str]] = []
    tools = request.json.get("tools", ())
    names = [tool["name"].rpartition("__")[2] for tool in tools if not tool.get("defer_loading")]
    for message in request.json["messages"]:
        content = message["content"]
        loading: str | None = None
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            match block:
                case {"type": "text", "text": text} if message["role"] == "assistant":
                    replies.append(text)
                case {"type": "tool_use", "id": call_id}:
                    calls.append(call_id)
                case {"type": "text", "text": text}:
                    texts.append(text)
                    if loading is not None:
                        answers[[call_id for call_id, _ in answers].index(loading)] = loading, text
                        loading = None
                case {"type": "tool_result", "tool_use_id": call_id}:
                    answer = block.get("content", "")
                    parts = [answer] if isinstance(answer, str) else _texts(answer)
                    answers.append((call_id, "".join(parts)))
                    if loaded := _references(answer):
                        loading = call_id
                        names += loaded
                case {"type": "tool_addition", "tool": {"definition": {"name": name}}}:
                    names.append(name)
                case {"type": "tool_removal", "tool": {"name": name}}:
                    names.remove(name)
                case _:
                    pass
    media = _media(shown_by_messages(request.json))
    return SentRequest(
        tuple(texts), tuple(names), tuple(answers), media, tuple(replies), tuple(calls)
    )


# Any: texts, and lists of parts from both OpenAI APIs
def _user_texts(contents: list[Any]) -> tuple[str, ...]:
    parts = [
        part
        for content in contents
        for part in ([{"text": content}] if isinstance(content, str) else content)
    ]
    return tuple([part["text"] for part in parts if "text" in part])


def _media(shown: list[str]) -> tuple[str, ...]:
    return tuple([part for part in shown if re.fullmatch("[0-9a-f]{64}", part)])


def _references(content: Any) -> list[str]:
    return [part["tool_name"] for part in content if "tool_name" in part]


def _texts(blocks: Any) -> list[str]:
    return [block.get("text", "") for block in blocks]
