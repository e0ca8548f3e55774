"""Traces and metrics for OpenTelemetry, made from what a bus tells; every name that is sent stands
in this module.

The names follow the semantic conventions for generative AI, which are in development: version
1.41.0, and for the durations of agents, tools and workflows the unreleased text of the repository
that the conventions have moved to since.
"""

import json
from collections.abc import Callable
from contextvars import Token
from functools import partial
from time import perf_counter

from ..adapters.core import PromptResponse
from ..errors import ControlFlow
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.main_loop import Execution
from ..evaluation.messages import AssistantMessage, ToolExecutionOutcome, sendable
from ..limits import TokenUsage
from ..prompt.tool import ToolResult
from ..protocols import EventBus
from ..resources import NotIsolatedError
from ..runtime.events import Operation, ToolsInjected, VisibilityExpanded

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError(
        f"{__name__} needs OpenTelemetry: pip install 'weakincentives[otel]'"
    ) from error

__all__ = ["instrument"]

type _Attributes = dict[str, str | int | bool | list[str]]

_LIBRARY = "weakincentives"
_SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
# By kind of work: the operation, the attribute that holds its name, the kind of its span, the
# metric of its duration.
_KINDS = {
    "execution": (
        "invoke_workflow",
        "gen_ai.workflow.name",
        SpanKind.INTERNAL,
        "gen_ai.workflow.duration",
    ),
    "evaluation": (
        "invoke_agent",
        "gen_ai.agent.name",
        SpanKind.INTERNAL,
        "gen_ai.invoke_agent.duration",
    ),
    "request": (
        "chat",
        "gen_ai.request.model",
        SpanKind.CLIENT,
        "gen_ai.client.operation.duration",
    ),
    "tool": ("execute_tool", "gen_ai.tool.name", SpanKind.INTERNAL, "gen_ai.execute_tool.duration"),
}
_PROVIDERS = {"claude_agent_sdk": "anthropic"}  # adapters that the conventions know by another name
_SECONDS = [0.01 * 2**step for step in range(14)]
_TOKENS = [4**step for step in range(14)]
_WORK = context.create_key("weakincentives-work")


def instrument(
    bus: EventBus,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
    capture_content: bool = False,
) -> Callable[[], None]:
    """Sends a span for each evaluation, request and tool call on `bus` from now on, and metrics;
    the result ends that.

    The providers are by default OpenTelemetry's global ones. Prompts, answers, arguments, results
    and the texts of exceptions are sent only with `capture_content`.
    """
    meter = metrics.get_meter(_LIBRARY, "", meter_provider, _SCHEMA)
    spans = _Spans(
        trace.get_tracer(_LIBRARY, None, tracer_provider, _SCHEMA), meter, capture_content
    )
    injected = meter.create_counter(
        "wink.tools.injected", "{tool}", "Tools added to running conversations."
    )
    dynamic = meter.create_counter(
        "wink.disclosure.dynamic", "{read}", "Sections opened by adding their tools."
    )
    restarts = meter.create_counter(
        "wink.disclosure.restarts", "{restart}", "Sections opened by starting again."
    )

    def count_injected(event: ToolsInjected) -> None:
        injected.add(len(event.tool_names))
        dynamic.add(1)

    subscriptions = [
        bus.subscribe(Operation, spans.begin),
        bus.subscribe(ToolsInjected, count_injected),
        bus.subscribe(VisibilityExpanded, lambda _: restarts.add(1)),
    ]

    def end() -> None:
        for unsubscribe in subscriptions:
            unsubscribe()

    return end


class _Spans:
    """A span and a duration for each piece of work, and the tokens of each request."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter, capture_content: bool) -> None:  # noqa: FBT001
        self._tracer = tracer
        self._capture_content = capture_content
        self._open: dict[Operation, Span] = {}
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._seconds = {
            kind: meter.create_histogram(
                metric,
                "s",
                f"Duration of {operation}.",
                explicit_bucket_boundaries_advisory=_SECONDS,
            )
            for kind, (operation, _, _, metric) in _KINDS.items()
        }

    def begin(self, work: Operation) -> None:
        """Opens a span and makes it the current one, unless a consumer's code runs in between."""
        operation, name_key, kind, _ = _KINDS[work.kind]
        name = sendable(work.name)
        around = context.get_current()
        # streamed, or in a bare thread
        if work.parent in self._open and context.get_value(_WORK) is not work.parent:
            around = trace.set_span_in_context(self._open[work.parent], around)
        common: _Attributes = {"gen_ai.operation.name": operation, name_key: name}
        if work.kind in ("evaluation", "request"):
            common["gen_ai.provider.name"] = _PROVIDERS.get(work.provider, work.provider)
            common["gen_ai.request.model"] = work.model
        common = {key: value for key, value in common.items() if value}
        own: _Attributes = {"gen_ai.conversation.id": work.session_id} if work.session_id else {}
        if work.kind == "tool":
            own |= {"gen_ai.tool.call.id": sendable(work.call_id), "gen_ai.tool.type": "function"}
        elif work.kind == "request" and work.streamed:
            own["gen_ai.request.stream"] = True
        if self._capture_content and work.kind == "evaluation":
            own["gen_ai.input.messages"] = _message("user", work.text)
        elif self._capture_content and work.kind == "tool":
            own["gen_ai.tool.call.arguments"] = sendable(work.text)
        span = self._tracer.start_span(
            f"{operation} {name}".rstrip(), around, kind, {**common, **own}
        )
        self._open[work] = span
        token = None
        if not work.streamed:
            token = context.attach(
                context.set_value(_WORK, work, trace.set_span_in_context(span, around))
            )
        work.on_end(partial(self._end, work, common, token, perf_counter()))

    def _end(
        self,
        work: Operation,
        common: _Attributes,
        token: Token[context.Context] | None,
        started: float,
        error: BaseException | None,
    ) -> None:
        """Closes the span; it is the current one while metrics are taken, so that an exemplar leads
        from them to it.
        """
        seconds = perf_counter() - started
        if token is not None:
            context.detach(token)
        outcome = work.result if error is None else error
        usage, failure = _usage(outcome), _failure(outcome)
        with trace.use_span(
            self._open.pop(work),
            end_on_exit=True,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if failure:
                description = (
                    f"{error.phase}/{error.code}"
                    if isinstance(error, PromptEvaluationError)
                    else None
                )
                span.set_status(Status(StatusCode.ERROR, description))
                span.set_attribute("error.type", failure)
            self._seconds[work.kind].record(
                seconds, {**common, "error.type": failure} if failure else common
            )
            if usage is not None:
                span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
                span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
            if isinstance(outcome, AssistantMessage):
                span.set_attribute("gen_ai.response.finish_reasons", [outcome.finish])
                self._tokens.record(
                    outcome.usage.input_tokens, {**common, "gen_ai.token.type": "input"}
                )
                self._tokens.record(
                    outcome.usage.output_tokens, {**common, "gen_ai.token.type": "output"}
                )
            if self._capture_content:
                span.set_attributes(_content(outcome))
                if failure and error is not None:
                    span.record_exception(error)


def _usage(outcome: object) -> TokenUsage | None:
    """The tokens of a work, also of one that failed on the way."""
    match outcome:
        case AssistantMessage() | PromptResponse() | Execution():
            return outcome.usage
        case PromptEvaluationError(turns=turns) if turns:
            return outcome.usage
        case _:
            return None


def _failure(outcome: object) -> str:
    """The type of error that a work ended with, empty for none."""
    match outcome:
        # A stream that was not read to its end; a request for sections; a call that will be made by
        # itself.
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


def _content(outcome: object) -> _Attributes:
    """What the model or a tool said."""
    match outcome:
        case AssistantMessage():
            calls = [
                {
                    "type": "tool_call",
                    "id": one.call_id,
                    "name": one.name,
                    "arguments": one.arguments,
                }
                for one in outcome.tool_calls
            ]
            return {
                "gen_ai.output.messages": _message(
                    "assistant", outcome.text, calls, finish_reason=outcome.finish
                )
            }
        case PromptResponse():
            return {
                "gen_ai.output.messages": _message("assistant", outcome.text, finish_reason="stop")
            }
        case ToolExecutionOutcome():
            return {"gen_ai.tool.call.result": outcome.message.content}
        case ToolResult():
            return {"gen_ai.tool.call.result": sendable(outcome.content())}
        case _:
            return {}


def _message(role: str, text: str, parts: list[dict[str, str]] | None = None, **more: str) -> str:
    said = [{"type": "text", "content": text}] if text else []
    return sendable(
        json.dumps([{"role": role, "parts": [*said, *(parts or [])], **more}], ensure_ascii=False)
    )
