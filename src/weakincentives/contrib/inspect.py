"""Runs prompts inside Inspect, the evaluation framework of the UK AI Security Institute.

Needs the `inspect` extra. `as_solver` makes a solver from a prompt, and `InspectAdapter` sends a
prompt's requests to Inspect's models, so that Inspect logs them, counts their tokens and applies
its limits.
"""
# Inspect is not installed where the type checkers run; its users see these types.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar, Literal

from ..adapters.cited_text import CitedText
from ..adapters.codec import AnyJson, Codec, CodecOptions, JsonObject, read_count, read_finish
from ..adapters.codec_adapter import CodecAdapter
from ..adapters.deltas import HIDDEN
from ..adapters.http_clients import error_from_http
from ..adapters.provider_errors import error_from_failure, error_from_reply, error_from_request
from ..content import IMAGE_TYPES, MAX_CONTENT_BYTES, Image, Media, MediaSupport, Part
from ..errors import missing_extra
from ..evaluation.adapter import Runnable
from ..evaluation.chat_turn import ChatTurn
from ..evaluation.config import RunConfig
from ..evaluation.conversation import Conversation
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.inner_loop import ProviderRequest
from ..evaluation.main_loop import MainLoop
from ..evaluation.messages import AssistantMessage, Message, ToolCall, ToolMessage
from ..evaluation.schemas import OutputSpec, ToolSpec
from ..limits import Clock, TokenUsage, utc_now
from ..model_settings import ModelSettings, unsupported
from ..redaction import Redactor, causes
from ..runtime.session import Session
from ..serde import Json, JsonSchema, map_parts
from ..serde.json_schemas import resolved, target_name

try:
    from inspect_ai import model as models
    from inspect_ai import solver as solvers
    from inspect_ai.tool import ToolFunction, ToolInfo
    from inspect_ai.util import LimitExceededError
except ImportError as error:
    raise missing_extra(__name__, "inspect-ai", "inspect") from error

__all__ = ["InspectAdapter", "as_solver", "session_of"]

_STORED = "weakincentives_session"
_PROVIDER = "inspect"
_COUNTS = "input_tokens output_tokens input_tokens_cache_read input_tokens_cache_write"
_SAME_SETTINGS = ("temperature", "top_p", "seed", "tool_choice", "parallel_tool_calls")
_ROLES: Mapping[str, Any] = {  # Any: classes with a constructor of their own each
    "system": models.ChatMessageSystem,
    "user": models.ChatMessageUser,
    "assistant": models.ChatMessageAssistant,
    "tool": models.ChatMessageTool,
}


class _InspectCodec(Codec):
    """One conversation as Inspect's messages."""

    wire_format = "inspect"
    instructions_role = "system"
    stream_options: ClassVar[JsonObject] = {}
    media = MediaSupport(
        types=dict.fromkeys((*IMAGE_TYPES, "application/pdf", "text/*"), MAX_CONTENT_BYTES),
        documents_in_results=False,
    )
    output_field = "response_schema"
    api_name = "Inspect's"
    setting_fields: ClassVar[Mapping[str, str]] = {
        **{name: name for name in _SAME_SETTINGS},
        "max_output_tokens": "max_tokens",
        "reasoning": "reasoning_effort",
        "stop": "stop_seqs",
    }

    def __init__(self, options: CodecOptions, provider: str) -> None:
        super().__init__(options, provider)
        self._names: dict[str, str] = {}  # tool names by call id
        self._messages: list[AnyJson] = []

    def encode(self, request: ProviderRequest) -> JsonObject:
        return super().encode(request) | {"messages": self._converted()}

    def messages(self, transcript: Sequence[Message], session: Session) -> list[AnyJson]:
        """Returns a conversation that has ended as Inspect's messages."""
        self._content = session.content
        for message in self._valid.read(transcript, to_be_sent=False):
            self._encode_message(message, None, is_first=message is transcript[0])
        return self._converted()

    def _converted(self) -> list[AnyJson]:
        for index, item in enumerate(self.items[len(self._messages) :], len(self._messages)):
            # Inspect stores a message once as long as it keeps its id.
            digest = sha256(json.dumps([index, item]).encode()).hexdigest()[:22]
            self._messages.append(_ROLES[item["role"]].model_validate({"id": digest, **item}))
        return [*self._messages]

    def encode_items(self, output: OutputSpec | None) -> JsonObject:
        if output is None:
            return {}
        schema = _inlined(output.schema, output.schema)
        return {"response_schema": {"name": output.name, "json_schema": schema}}

    def encode_tool(self, spec: ToolSpec) -> JsonObject:
        return spec.as_dict() | {"parameters": _inlined(spec.parameters, spec.parameters)}

    def encode_choice(self, choice: str) -> object:
        return "any" if choice == "required" else choice

    def encode_named_choice(self, name: str) -> JsonObject:
        return {"name": name}

    def encode_assistant(self, message: AssistantMessage) -> list[JsonObject]:
        stored: AnyJson = message.wire[0] if message.wire else {}
        content = stored.get("content")
        self._names |= {call.call_id: call.name for call in message.tool_calls}
        calls = [
            {"id": call.call_id, "function": call.name, "arguments": json.loads(call.arguments)}
            for call in message.tool_calls
        ]
        content = content if isinstance(content, list) else message.text
        return [{**stored, "role": "assistant", "content": content, "tool_calls": calls or None}]

    def encode_answer(self, message: ToolMessage) -> JsonObject:
        item: JsonObject = {**message.as_dict(), "function": self._names[message.call_id]}
        if not message.success:
            return item | {"error": {"type": "unknown", "message": message.content}}
        parts = [self.encode_part(part) for part in (message.content, *message.media)]
        return item | {"content": parts} if message.media else item

    def encode_media(self, media: Media) -> JsonObject:
        kind = "image" if isinstance(media, Image) else "document"
        named = {"filename": media.name} if media.name and kind == "document" else {}
        return {"type": kind, kind: self.data_url(media), **named}

    def without_reasoning(self, items: tuple[Json, ...]) -> tuple[Json, ...]:
        return ()  # another model receives only the text and the calls

    def read_text(self, event: AnyJson) -> str:
        return ""  # a stream has one event, the complete reply

    def join_events(self, events: list[AnyJson]) -> object:
        return events[-1] if events else None

    def usage_of(self, events: list[AnyJson]) -> TokenUsage:
        usage: JsonObject = (events[-1].get("usage") if events else None) or {}
        fresh, output, cached, written = [read_count(usage.get(name)) for name in _COUNTS.split()]
        reasoning = read_count(usage.get("reasoning_tokens"))
        return TokenUsage(fresh + cached + written, output, cached, written, reasoning)

    def decode(self, reply: AnyJson) -> AssistantMessage:
        if not reply.get("choices"):
            if words := reply.get("error"):
                raise error_from_failure(self.provider, words)
            raise error_from_reply(self.provider, "it has no choices")
        choice: JsonObject = reply["choices"][0]
        message, cited, shown = choice["message"], CitedText(), list[str]()
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            match block:
                case {"type": "text", "text": text}:
                    cited.add(text, block.get("citations"), whole_part=True)
                case {"type": "reasoning", "reasoning": text}:
                    hidden = HIDDEN if block.get("redacted") else text
                    shown.append(block.get("summary") or hidden)
                case _:
                    pass
        calls = tuple(map(_call, message.get("tool_calls") or ()))
        finish = read_finish(self.provider, choice["stop_reason"], calls)
        return AssistantMessage(
            text=cited.text,
            tool_calls=calls,
            finish="refusal" if any(block.get("refusal") for block in blocks) else finish,
            usage=self.usage_of([reply]),
            wire=(message,),
            model=reply["model"],
            reasoning="\n\n".join(filter(None, shown)),
            citations=cited.citations(cited.text),
        )


class InspectAdapter(CodecAdapter):
    """Evaluates prompts with a model of Inspect, by default the one that Inspect is evaluating.

    `model` is a name such as `"openai/gpt-5.2"`, or a model that `get_model` returned. Inspect
    retries requests, and applies its limits and its `GenerateConfig`; `settings` take precedence
    over the latter, and `ModelSettings(extra=…)` sets its other fields. Typed output is requested
    with `response_schema`, or in the prompt with `structured_output="prompted"`, for providers to
    which Inspect sends no schema. Recursive parts of schemas are sent as parts that accept any
    value. All runs must be asynchronous, even nested ones. A stream yields an answer in one chunk.
    """

    name = _PROVIDER

    def __init__(
        self,
        model: "str | models.Model | None" = None,
        *,
        structured_output: Literal["native", "prompted"] = "native",
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        options = CodecOptions(model=str(model or ""), structured_output=structured_output)
        super().__init__(_InspectCodec, options, config=config, settings=settings, clock=clock)
        self._model = model

    @property
    def cancellable(self) -> bool:
        return False

    def check_settings(self, settings: ModelSettings) -> None:
        super().check_settings(settings)
        if unknown := settings.extra.keys() - {*models.GenerateConfig.model_fields, "tools"}:
            raise unsupported([f"extra[{name!r}]" for name in unknown], type(self).__name__)

    def send(self, body: JsonObject, left: float | None, *, stream: bool) -> AnyJson:
        message = "Inspect's models are asynchronous, and this run is not"
        raise error_from_request(_PROVIDER, "client_error", message, "use execute_async")

    async def send_async(self, body: JsonObject, left: float | None, *, stream: bool) -> AnyJson:
        choice = body.get("tool_choice")
        config = {key: body[key] for key in body.keys() & models.GenerateConfig.model_fields}
        output = await models.get_model(self._model).generate(
            body["messages"],
            [ToolInfo.model_validate(tool) for tool in body.get("tools", ())],
            ToolFunction(**choice) if isinstance(choice, dict) else choice,
            models.GenerateConfig.model_validate(config),
        )
        # If there is a choice, `error` repeats its stop reason.
        left_out = {"error"} if output.choices else None
        reply = output.model_dump(mode="json", exclude_none=True, exclude=left_out)
        return _events(reply) if stream else reply

    async def end_async(self, events: AnyJson) -> None:
        await events.aclose()

    def translate(self, error: Exception) -> PromptEvaluationError:
        for cause in causes(error):
            if isinstance(status := getattr(cause, "status_code", None), int):
                message = getattr(cause, "provider_message", None) or str(cause)
                failure = getattr(cause, "body", None) or message
                return error_from_failure(_PROVIDER, failure, status=status)
            if (translated := error_from_http(_PROVIDER, cause)) is not None:
                return translated
        text = f"{type(error).__name__}: {error}"
        return error_from_request(_PROVIDER, "client_error", text, "see the sample's log")

    def redactor(self, error: Exception | None = None) -> Redactor:
        key = None
        with suppress(Exception):  # a model that cannot be found has no key
            key = models.get_model(self._model).api.api_key
        return Redactor().extend([key])


async def _events(reply: JsonObject) -> AsyncGenerator[JsonObject]:
    yield reply


def _call(call: JsonObject) -> ToolCall:
    # `parse_error` quotes arguments that Inspect could not read; the model is asked to correct them
    arguments = call.get("parse_error") or json.dumps(call["arguments"])
    return ToolCall(call["id"], call["function"], arguments)


def _inlined(schema: JsonSchema, root: JsonSchema, outer: tuple[str, ...] = ()) -> JsonSchema:
    """Returns a schema with `enum` for `const`, and without references, which Inspect ignores."""
    if reference := schema.get("$ref"):
        name = target_name(reference)
        return {} if name in outer else _inlined(resolved(schema, root), root, (*outer, name))
    own = {key: value for key, value in schema.items() if key not in ("$defs", "const")}
    if "const" in schema:
        own["enum"] = [schema["const"]]
    return map_parts(own, partial(_inlined, root=root, outer=outer))


def as_solver[Out](
    prompt: "Runnable[Out] | Callable[[solvers.TaskState], Runnable[Out]]",
    loop: MainLoop | None = None,
    *,
    send_input: bool = True,
) -> "solvers.Solver":
    """Returns a solver that runs `prompt` on each sample, with a new session.

    `prompt` can be a function that returns a sample's prompt. The sample's input, a single user
    message, becomes the message of the run unless `send_input` is false. `loop` is by default
    `MainLoop(InspectAdapter())`.

    Scorers find the run's messages in `state.messages`, its answer in `state.output`, and its
    session with `session_of`. If the run fails, its `PromptEvaluationError` is the sample's error,
    and the sample is not scored. If it reaches a limit of Inspect, the sample ends as it does with
    other solvers. Raises `ValueError` for a sample with other messages, or media other than images.
    """
    runs = loop or MainLoop(InspectAdapter())

    async def solve(
        state: "solvers.TaskState",
        generate: "solvers.Generate",  # noqa: ARG001 - Inspect's protocol
    ) -> "solvers.TaskState":
        session, turn = Session(), ChatTurn(("", ""))
        transcript: Sequence[Message] = ()
        sent = prompt(state) if callable(prompt) else prompt
        message = _input(state.messages) if send_input else None
        try:
            execution = await runs.execute_async(sent, message, session=session, turn=turn)
            transcript = execution.response.transcript
        except PromptEvaluationError as error:
            transcript = error.transcript
            for cause in causes(error):
                if isinstance(cause, LimitExceededError):
                    raise cause from error
            raise
        except BaseException:  # such as the end of the sample's time
            transcript = turn.conversation.messages if turn.conversation else ()
            raise
        finally:
            session[ChatTurn].clear()
            session[Conversation].clear()
            state.store.set(_STORED, json.loads(session.snapshot().to_json()))
            if transcript:  # a list that is longer than the limit would be an error
                state.messages = _messages(transcript, session)[: state.message_limit]
        state.output = models.ModelOutput.from_message(state.messages[-1])
        return state

    return solvers.solver(getattr(prompt, "key", "prompt"))(lambda: solve)()


def session_of(state: "solvers.TaskState", *types: type) -> Session:
    """Returns a session with the state that a sample's run left, for a scorer.

    Pass the `types` of the state. The state comes from the sample's store, so it is also available
    when a log is scored again. Raises `KeyError` for a sample without a run, and `SerdeError` for
    state of other types.
    """
    session = Session()
    stored = json.dumps(dict(state.store.items())[_STORED])
    session.restore(session.parse_snapshot(stored, types=types))
    return session


def _input(messages: Sequence[AnyJson]) -> list[Part]:
    """Returns a sample's input as the content of a message."""
    if (roles := [message.role for message in messages]) != ["user"]:
        raise ValueError(
            f"the sample must have one user message, got {roles}; put instructions in the prompt"
        )
    parts: list[Part] = []
    for content in messages[0].content_list:
        match content.model_dump():
            case {"type": "text", "text": str(text)}:
                parts.append(text)
            case {"type": "image", "image": str(url)} if url.startswith("data:"):
                mime, _, data = url.removeprefix("data:").partition(";base64,")
                parts.append(Image.from_base64(data, mime.partition(";")[0]))
            case other:
                kind = other["type"]
                raise ValueError(f"a sample's input must be text or images with data, got {kind!r}")
    return parts


def _messages(transcript: Sequence[Message], session: Session) -> list[AnyJson]:
    names = [item.requested_model for item in transcript if isinstance(item, AssistantMessage)]
    codec = _InspectCodec(CodecOptions(model=["", *names][-1]), _PROVIDER)
    return codec.messages(transcript, session)
