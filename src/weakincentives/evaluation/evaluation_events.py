"""The events for an evaluation that starts, and for one that stops without a response."""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Literal

from ..content import text_of, to_content
from ..errors import ControlFlow, message_of
from ..limits import TokenUsage
from ..prompt.function_tools import FunctionHandler
from ..prompt.renderer import AnyRenderedPrompt
from ..prompt.sizes import measure
from ..prompt.template import AnyPrompt
from ..resources.bindings import kind_name
from ..runtime.events import (
    EvaluationStopped,
    Event,
    EventIds,
    Operation,
    OverridesDropped,
    ParamsMissing,
    PromptRendered,
)
from .adapter import EvaluationStart
from .conversation import Conversation
from .errors import LimitError, PromptEvaluationError
from .messages import Instructions, media_of
from .suspension import RunSuspended

__all__ = ["opening_events", "stop_event"]

_log = logging.getLogger(__name__)


def opening_events(
    rendered: AnyRenderedPrompt,
    prompt: AnyPrompt,
    operation: Operation,
    conversation: Conversation,
    options: EvaluationStart,
    *,
    ids: EventIds,
) -> Iterator[Event]:
    """Yields events for the rendered prompt, stale overrides and sections that cannot be opened.

    `conversation` is the evaluation's initial conversation. Missing params and resources are also
    logged as warnings.
    """
    ns, key, resumes = prompt.ns, prompt.key, options.get("resumes", False)
    earlier = conversation if resumes else options.get("conversation")
    new = conversation.messages[len(earlier.messages) if earlier else 0 :]
    message = None if resumes else options.get("message")
    changes = [item.content for item in new if isinstance(item, Instructions) and earlier]
    yield PromptRendered(
        ns=ns,
        key=key,
        name=operation.name,
        adapter=operation.provider,
        text=rendered.text,
        tool_names=tuple([tool.name for tool in rendered.tools]),
        message=text_of(to_content(message)) if message else "",
        changes="\n\n".join(changes),
        media=tuple([media for item in new for media in media_of(item)]),
        visibility={
            **{node.path: None for node in rendered.registry.sections},
            **rendered.visibility,
        },
        measure=partial(measure, rendered.view.for_event()),
        **ids,
    )
    overrides = rendered.overrides
    if overrides is not None and overrides.stale:
        texts = tuple([str(text.id) for text in overrides.stale])
        yield OverridesDropped(ns=ns, key=key, tag=overrides.tag, texts=texts, **ids)
    if rendered.missing_params:
        types = sorted({type_.__name__ for type_ in rendered.missing_params.values()})
        sections = tuple([".".join(path) for path in rendered.missing_params])
        remedy = f"bind them: prompt.bind({', '.join([f'{name}(…)' for name in types])})"
        _log.warning(
            "Params of hidden sections are missing; %s", remedy, extra={"sections": sections}
        )
        yield ParamsMissing(ns=ns, key=key, sections=sections, remedy=remedy, **ids)
    bound = [binding.protocol for binding in prompt.resources.registry.bindings]
    for tool in rendered.tools:
        handler = tool.handler
        for kind in handler.missing(bound) if isinstance(handler, FunctionHandler) else ():
            name = kind_name(kind)
            remedy = f"bind one: prompt.bind(resources={{{name}: …}})"
            _log.warning("Tool %r needs a resource, %s; %s", tool.name, name, remedy)


def stop_event(
    error: BaseException,
    operation: Operation,
    usage: TokenUsage,
    turns: int,
    seconds: float = 0.0,
    *,
    ids: EventIds,
) -> EvaluationStopped | None:
    """Returns the event for an evaluation that `error` ended.

    Returns `None` for control flow, because the run continues with another evaluation.
    """
    code = error.code if isinstance(error, PromptEvaluationError) else ""
    text, pending = f"{type(error).__name__}: {message_of(error)}", tuple[str, ...]()
    reason: Literal["limit", "failed", "suspended", "cancelled"] = "failed"
    match error:
        case ControlFlow():
            return None
        case RunSuspended(suspension=suspension):
            reason, pending = "suspended", tuple([str(preview) for preview in suspension.pending])
        case LimitError():
            reason = "limit"
        case Exception():
            pass
        case _:  # an interrupt, a cancelled task, a stream closed by its reader
            reason, text = "cancelled", type(error).__name__
    return EvaluationStopped(
        prompt_name=operation.name,
        adapter=operation.provider,
        reason=reason,
        code=code,
        error=text,
        usage=usage,
        turns=turns,
        seconds=seconds,
        pending=pending,
        **ids,
    )
