"""OpenTelemetry traces and metrics from the events of a bus; this module defines all names.

The names follow version 1.41.0 of the semantic conventions for generative AI, which are still in
development. The durations of agents, tools and workflows follow an unreleased version in the
repository that the conventions have moved to.
"""

import json
from collections.abc import Callable, Sequence
from contextvars import Token
from functools import partial
from time import perf_counter
from typing import NamedTuple

from ..adapters.core import PromptResponse
from ..errors import ControlFlow, missing_extra
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.main_loop import Execution
from ..evaluation.messages import AssistantMessage, ToolExecutionOutcome, sendable
from ..limits import Prices
from ..prompt.tool import ToolResult
from ..protocols import EventBus
from ..resources import NotIsolatedError
from ..runtime.events import Operation, ToolsInjected, VisibilityExpanded

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise missing_extra(__name__, "OpenTelemetry", "otel") from error

__all__ = ["instrument"]

type _Attributes = dict[str, str | int | bool | list[str]]

_LIBRARY = "weakincentives"
_SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
_PROVIDERS = {"claude_agent_sdk": "anthropic"}  # adapters that the conventions name differently
_SECONDS = [0.01 * 2**step for step in range(14)]
_TOKENS = [4**step for step in range(14)]
_OPERATION = context.create_key("weakincentives-operation")


class _Kind(NamedTuple):
    name: str
    attribute: str  # the key for the name of the prompt, model or tool
    duration: str
    span_kind: SpanKind = SpanKind.INTERNAL


_KINDS = {
    "execution": _Kind("invoke_workflow", "gen_ai.workflow.name", "gen_ai.workflow.duration"),
    "evaluation": _Kind("invoke_agent", "gen_ai.agent.name", "gen_ai.invoke_agent.duration"),
    "request": _Kind(
        "chat", "gen_ai.request.model", "gen_ai.client.operation.duration", SpanKind.CLIENT
    ),
    "tool": _Kind("execute_tool", "gen_ai.tool.name", "gen_ai.execute_tool.duration"),
}


def instrument(
    bus: EventBus,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
    capture_content: bool = False,
    prices: Prices | None = None,
) -> Callable[[], None]:
    """Records a span and metrics for each evaluation, request and tool call on `bus`.

    The providers default to OpenTelemetry's global ones. Prompts, answers, arguments, results and
    exception texts are recorded only with `capture_content`. With `prices`, for example
    `weakincentives.contrib.prices.cost`, requests include their cost in dollars. Call the returned
    function to stop.
    """
    tracer = trace.get_tracer(_LIBRARY, None, tracer_provider, _SCHEMA)
    meter = metrics.get_meter(_LIBRARY, "", meter_provider, _SCHEMA)
    spans = _Spans(tracer, meter, capture_content=capture_content, prices=prices)

    counter = meter.create_counter
    injected = counter("wink.tools.injected", "{tool}", "Tools added to running conversations.")
    dynamic = counter("wink.disclosure.dynamic", "{read}", "Sections opened by adding their tools.")
    restarts = counter("wink.disclosure.restarts", "{restart}", "Sections opened by a restart.")

    def count_injected(event: ToolsInjected) -> None:
        injected.add(len(event.tool_names))
        dynamic.add(1)

    subscriptions = [
        bus.subscribe(Operation, spans.begin),
        bus.subscribe(ToolsInjected, count_injected),
        bus.subscribe(VisibilityExpanded, lambda _: restarts.add(1)),
    ]

    def stop() -> None:
        for unsubscribe in subscriptions:
            unsubscribe()

    return stop


class _Spans:
    """Records a span and a duration for each operation, and token usage for each request."""

    def __init__(
        self,
        tracer: trace.Tracer,
        meter: metrics.Meter,
        *,
        capture_content: bool,
        prices: Prices | None,
    ) -> None:
        def histogram(name: str, unit: str, text: str, bounds: list[float]) -> metrics.Histogram:
            return meter.create_histogram(
                name, unit, text, explicit_bucket_boundaries_advisory=bounds
            )

        self._tracer = tracer
        self._capture_content = capture_content
        self._prices = prices
        self._cost = meter.create_counter("wink.cost", "USD", "Cost of requests of known price.")
        self._open: dict[Operation, Span] = {}
        self._tokens = histogram("gen_ai.client.token.usage", "{token}", "Tokens used.", _TOKENS)
        self._seconds = {
            key: histogram(kind.duration, "s", f"Duration of {kind.name}.", _SECONDS)
            for key, kind in _KINDS.items()
        }

    def begin(self, operation: Operation) -> None:
        """Opens a span and makes it current, unless a stream's consumer can run during it."""
        parent = context.get_current()
        outer = operation.parent
        # The outer operation is streamed, or runs in a thread without its context.
        if outer in self._open and context.get_value(_OPERATION) is not outer:
            parent = trace.set_span_in_context(self._open[outer], parent)
        kind, common = _KINDS[operation.kind], _common_attributes(operation)
        name = f"{kind.name} {sendable(operation.name)}".rstrip()
        attributes = common | _span_attributes(operation)
        if self._capture_content:
            attributes |= _input(operation)
        span = self._tracer.start_span(name, parent, kind.span_kind, attributes)
        self._open[operation] = span
        token = None
        if not operation.streamed:
            inside = trace.set_span_in_context(span, parent)
            token = context.attach(context.set_value(_OPERATION, operation, inside))
        operation.on_end(partial(self._end, operation, common, token, perf_counter()))

    def _end(
        self,
        operation: Operation,
        common: _Attributes,
        token: Token[context.Context] | None,
        started: float,
        error: BaseException | None,
    ) -> None:
        seconds = perf_counter() - started
        if token is not None:
            context.detach(token)
        outcome = operation.result if error is None else error
        # Record metrics while the span is current, so that their exemplars refer to it.
        with trace.use_span(
            self._open.pop(operation),
            end_on_exit=True,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if failure := _failure(outcome):
                description = None
                if isinstance(error, PromptEvaluationError):
                    description = f"{error.phase}/{error.code}"
                span.set_status(Status(StatusCode.ERROR, description))
                span.set_attribute("error.type", failure)
            labels: _Attributes = {**common, "error.type": failure} if failure else common
            self._seconds[operation.kind].record(seconds, labels)
            span.set_attributes(_usage_attributes(outcome))
            if isinstance(outcome, AssistantMessage):
                span.set_attribute("gen_ai.response.finish_reasons", [outcome.finish])
                if outcome.model:
                    span.set_attribute("gen_ai.response.model", sendable(outcome.model))
                usage, key = outcome.usage, "gen_ai.token.type"
                self._tokens.record(usage.input_tokens, {**common, key: "input"})
                self._tokens.record(usage.output_tokens, {**common, key: "output"})
                if self._prices is not None:
                    dollars = self._prices(usage, outcome.model or operation.model)
                    if dollars is None:
                        span.set_attribute("wink.cost.unknown", value=True)
                    else:
                        span.set_attribute("wink.cost.usd", dollars)
                        self._cost.add(dollars, common)
            if self._capture_content:
                span.set_attributes(_output(outcome))
                if failure and error is not None:
                    span.record_exception(error)


def _common_attributes(operation: Operation) -> _Attributes:
    """Returns the attributes common to spans and metrics."""
    kind = _KINDS[operation.kind]
    common: _Attributes = {
        "gen_ai.operation.name": kind.name,
        kind.attribute: sendable(operation.name),
    }
    if operation.kind in ("evaluation", "request"):
        common["gen_ai.provider.name"] = _PROVIDERS.get(operation.provider, operation.provider)
        common["gen_ai.request.model"] = operation.model
    return {key: value for key, value in common.items() if value}


def _span_attributes(operation: Operation) -> _Attributes:
    attributes: _Attributes = {}
    if operation.session_id:
        attributes["gen_ai.conversation.id"] = operation.session_id
    if operation.run_id:
        attributes["wink.run.id"] = operation.run_id
        attributes["wink.run.path"] = operation.run_path
    if operation.kind == "tool":
        attributes["gen_ai.tool.call.id"] = sendable(operation.call_id)
        attributes["gen_ai.tool.type"] = "function"
    elif operation.kind == "request" and operation.streamed:
        attributes["gen_ai.request.stream"] = True
    return attributes


def _usage_attributes(outcome: object) -> _Attributes:
    """Returns an operation's token usage, even if it failed."""
    match outcome:
        case AssistantMessage() | PromptResponse() | Execution():
            usage = outcome.usage
        case PromptEvaluationError(turns=turns) if turns:
            usage = outcome.usage
        case _:
            return {}
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }


def _failure(outcome: object) -> str:
    """Returns the type of the error that ended an operation, or `""` if it succeeded."""
    match outcome:
        # Not failures: a stream that was not read to its end, a request for sections, and a call
        # that will be made separately.
        case GeneratorExit() | ControlFlow() | NotIsolatedError():
            return ""
        case BaseException():
            return type(outcome).__qualname__
        case ToolExecutionOutcome(success=False, error=name):
            return name or "tool_failed"
        case ToolResult(success=False):
            return "tool_failed"
        case _:
            return ""


def _input(operation: Operation) -> _Attributes:
    """Returns a prompt's text or a call's arguments."""
    match operation.kind:
        case "evaluation":
            return {"gen_ai.input.messages": _message("user", operation.text)}
        case "tool":
            return {"gen_ai.tool.call.arguments": sendable(operation.text)}
        case _:
            return {}


def _output(outcome: object) -> _Attributes:
    """Returns the text of an answer or of a tool result."""
    match outcome:
        case AssistantMessage(text=text, tool_calls=tool_calls, finish=finish):
            calls = [
                {
                    "type": "tool_call",
                    "id": call.call_id,
                    "name": call.name,
                    "arguments": call.arguments,
                }
                for call in tool_calls
            ]
            message = _message("assistant", text, calls, finish_reason=finish)
            return {"gen_ai.output.messages": message}
        case PromptResponse(text=text):
            return {"gen_ai.output.messages": _message("assistant", text, finish_reason="stop")}
        case ToolExecutionOutcome(message=message):
            return {"gen_ai.tool.call.result": message.content}
        case ToolResult():
            return {"gen_ai.tool.call.result": sendable(outcome.content())}
        case _:
            return {}


def _message(role: str, text: str, calls: Sequence[dict[str, str]] = (), **attributes: str) -> str:
    texts = [{"type": "text", "content": text}] if text else []
    message = {"role": role, "parts": [*texts, *calls], **attributes}
    return sendable(json.dumps([message], ensure_ascii=False))
