"""Executes a durable run, which can be suspended, from its JSON input to its JSON result."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ... import serde
from ...content import Content, ContentError, Part, media_in, to_content
from ...evaluation.approval import Decision
from ...evaluation.conversation import Conversation, OnChange
from ...evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    DepthLimitError,
    PromptEvaluationError,
    ThrottleError,
    TurnLimitError,
)
from ...evaluation.main_loop import Execution, ExecutionOptions, Expansion, ExpansionLimitError
from ...evaluation.messages import sendable_content
from ...evaluation.response import PromptResponse, StreamEvent
from ...evaluation.run import Run
from ...evaluation.stored_log import LogTable, StoredLog
from ...evaluation.suspension import RunSuspended, Suspension, check_decisions, replacement_issue
from ...limits import Budget, Deadline, TokenUsage, utc_now
from ...prompt.output import parse_output
from ...prompt.template import Prompt
from ...runtime.session import Session
from ...runtime.session.snapshots import type_name, types_by_name
from ...serde.json_types import AnyJson
from .agent import AnyAgent, DurableAgent

__all__ = ["Record", "execute_run", "execute_run_async", "to_execution", "to_input", "to_resumed"]

type Record = dict[str, AnyJson]

# Subclasses come first, because an error is stored as the first matching class.
_ERRORS: dict[str, type[PromptEvaluationError]] = {
    kind.__name__: kind
    for kind in (
        ThrottleError,
        DeadlineExceededError,
        BudgetExceededError,
        TurnLimitError,
        DepthLimitError,
        ExpansionLimitError,
        PromptEvaluationError,
    )
}
_ARGUMENTS = ("message", "phase", "code", "provider", "status", "remedy")


class _Part[Out](NamedTuple):
    """A run, or the rest of a suspended run; `resumed` describes the earlier suspensions."""

    run: Run[Out]
    session: Session
    deadline: Deadline | None
    resumed: Record | None
    first_id: str  # the id of the run's first part

    def end(self, error: RunSuspended | PromptEvaluationError | None = None) -> Record:
        """Returns the part's result, even if the run is suspended or has failed."""
        if isinstance(error, RunSuspended):
            deadline, resumed = self.deadline, self.resumed
            return {
                "suspension": error.suspension.to_json(),
                "run_id": self.first_id,
                "seconds_left": deadline and deadline.remaining(utc_now()).total_seconds(),
                "waits": 1 if resumed is None else resumed["waits"] + 1,
            }
        session = self.session.snapshot().to_json()
        if error is not None:
            return {
                "error": _error_to_json(error),
                "usage": serde.dump(error.usage),
                "turns": error.turns,
                "conversation": error.conversation and error.conversation.to_json(),
                "session": session,
            }
        execution, response = self.run.execution, self.run.execution.response
        return {
            "text": response.text,
            "output": serde.dump(response.output),
            "turns": response.turns,
            "expansions": serde.dump(execution.expansions),
            "usage": serde.dump(execution.usage),
            "last_usage": serde.dump(response.usage),
            "conversation": response.conversation and response.conversation.to_json(),
            "session": session,
        }


def execute_run[Out](
    agent: DurableAgent[Out],
    run_input: Record,
    table: LogTable,
    run_id: str,
    *,
    progress: Callable[[StreamEvent[Out]], object] | None = None,
) -> Record:
    """Executes a run, or the rest of a suspended run, and returns its result as JSON.

    `run_input` comes from `to_input`, or from `to_resumed` for a suspended run. The run continues
    after the entries that `table` contains. If `progress` is given, it is called with each event,
    and answers are streamed. If the run is suspended, the result contains its `suspension`.
    """
    part = _begin(agent, run_input, table, run_id, streamed=progress is not None)
    try:
        with closing(part.run.stream()) as events:
            for event in events:
                if progress is not None:
                    progress(event)
    except (RunSuspended, PromptEvaluationError) as error:
        return part.end(error)
    return part.end()


async def execute_run_async[Out](
    agent: DurableAgent[Out],
    run_input: Record,
    table: LogTable,
    run_id: str,
    *,
    progress: Callable[[StreamEvent[Out]], object] | None = None,
) -> Record:
    """Like `execute_run`, but does not block the event loop."""
    streamed = progress is not None
    part = await asyncio.to_thread(_begin, agent, run_input, table, run_id, streamed=streamed)
    try:
        async with aclosing(part.run.stream_async()) as events:
            async for event in events:
                if progress is not None:
                    progress(event)
    except (RunSuspended, PromptEvaluationError) as error:
        return part.end(error)
    return part.end()


def _begin[Out](
    agent: DurableAgent[Out], run_input: Record, table: LogTable, run_id: str, *, streamed: bool
) -> _Part[Out]:
    resumed, suspension = run_input.get("resumed"), None
    first_id, before = run_id, run_input["session"]
    if resumed is not None:
        suspension = Suspension.from_json(resumed["suspension"])
        first_id, before = resumed["run_id"], suspension.session
    session = agent.session(first_id)
    if before is not None:
        session.restore(session.parse_snapshot(before, types=agent.types))
    session.snapshot().to_json()  # fails early for state that could not be stored at the end
    sink = StoredLog(table, run_id, agent.version, session, agent.types)
    deadline, budget = _limits(agent, run_input, sink.started)
    conversation = run_input["conversation"]
    # Any: pyright does not accept an alias as a type form
    message: Any = serde.parse(Content | None, run_input["message"])
    prompt, decisions = _bound_prompt(agent, run_input), dict[str, Decision]()
    if resumed is not None and suspension is not None:
        decisions = serde.parse(dict[str, Decision], resumed["decisions"])
        for preview in suspension.pending:  # decided without the prompt: wait for another decision
            decision = decisions.get(preview.call_id)
            if decision and replacement_issue(prompt.template, preview, decision):
                del decisions[preview.call_id]
    options = ExecutionOptions(
        session=session,
        deadline=deadline,
        budget=budget,
        message=message,
        conversation=conversation and Conversation.from_json(conversation),
        on_change=run_input["on_change"],
        suspension=suspension,
        decisions=decisions,
        sink=sink,
        config=agent.main_loop.config,
    )
    loop = agent.main_loop
    run = Run(
        loop.adapter,
        prompt,
        options,
        restarts=loop.max_expansions,
        compaction=loop.compaction,
        clock=loop.clock,
        streamed=streamed,
    )
    return _Part(run, session, deadline, resumed, first_id)


def _bound_prompt[Out](agent: DurableAgent[Out], run_input: Record) -> Prompt[Out]:
    # Copy the prompt, because the function may return the same one for several runs.
    prompt, params = agent.prompt().for_run(), run_input["params"]
    types = types_by_name(params, prompt.template.registry.params_types)
    prompt.bind(*(serde.parse(types[name], value) for name, value in params.items()))
    return prompt


def _limits(
    agent: AnyAgent, run_input: Record, now: datetime
) -> tuple[Deadline | None, Budget | None]:
    """Returns the deadline and budget of a run that starts or resumes `now`.

    Time during which the run was suspended is not counted.
    """
    config = agent.main_loop.config
    source = config if config is not None and "budget" in config.given else agent.adapter
    budget = serde.parse(Budget | None, run_input["budget"]) or source.budget
    deadline = serde.parse(Deadline | None, run_input["deadline"])
    if resumed := run_input.get("resumed"):
        left = resumed["seconds_left"]
        deadline = None if left is None else Budget(max_seconds=max(left, 0.0)).deadline(now)
    elif budget is not None and (bound := budget.deadline(now)):
        deadline = min(deadline or bound, bound)
    return deadline, budget and replace(budget, max_seconds=None)


def to_resumed(run_input: Record, waiting: Record, decisions: Mapping[str, Decision]) -> Record:
    """Returns the input for the rest of a suspended run, with decisions by call id.

    `waiting` is the result of `execute_run` for `run_input`. The rest of the run makes all calls
    before the first call without a decision, which stays pending. Raises `ValueError` for a
    decision on a call that is not pending, and `TypeError` for a value that is not a decision.
    """
    check_decisions(Suspension.from_json(waiting["suspension"]), decisions)
    return rest_of(run_input, waiting, decisions)


def rest_of(run_input: Record, waiting: Record, decisions: Mapping[str, Decision]) -> Record:
    """Returns the same input as `to_resumed`, for decisions that are known to match the run."""
    decided = serde.dump_lossless(dict[str, Decision], dict(decisions))
    return {
        **run_input,
        **dict.fromkeys(("session", "deadline", "message", "conversation")),
        "resumed": {**waiting, "decisions": decided},
    }


def to_input(
    *params: object,
    session: Session | None = None,
    deadline: Deadline | None = None,
    budget: Budget | None = None,
    message: str | Sequence[Part] | None = None,
    conversation: Conversation | None = None,
    on_change: OnChange = "append",
) -> Record:
    """Returns a run's input as JSON.

    Raises `ContentError` for a message whose media contain their own bytes; put the bytes into the
    content store of the agent's sessions instead. Raises `ValueError` for a budget with a meter,
    which counts in one process.
    """
    if budget is not None and budget.meter is not None:
        raise ValueError(
            "the budget of a durable run cannot have a meter because other processes run it too; "
            "pass a budget without a meter"
        )
    return {
        "params": {
            type_name(type(value)): serde.dump_lossless(type(value), value) for value in params
        },
        "session": None if session is None else session.snapshot().to_json(),
        "deadline": serde.dump(deadline),
        "budget": serde.dump(budget),
        "message": None if message is None else _message_to_json(message),
        "conversation": conversation and conversation.to_json(),
        "on_change": on_change,
    }


def to_execution[Out](agent: DurableAgent[Out], result: Record) -> Execution[Out]:
    """Returns the execution for a result of `execute_run`.

    Raises the `PromptEvaluationError` that ended the run, and `RunSuspended` for a suspended run.
    """
    if "suspension" in result:
        raise RunSuspended(Suspension.from_json(result["suspension"]))
    usage = serde.parse(TokenUsage, result["usage"])
    text = result["conversation"]
    conversation = None if text is None else Conversation.from_json(text)
    if "error" in result:
        error = _error_from_json(result["error"])
        raise error.with_progress(usage=usage, turns=result["turns"], conversation=conversation)
    prompt = agent.prompt()
    declared = prompt.template.structured_output
    # Any: `Out` is the type that the prompt declares, and the run parsed it in the same way
    output: Any = None if declared is None else parse_output(result["text"], declared)[0]
    response = PromptResponse[Out](
        prompt_name=prompt.name,
        text=result["text"],
        output=output,
        usage=serde.parse(TokenUsage, result["last_usage"]),
        turns=result["turns"],
        conversation=conversation,
    )
    expansions = serde.parse(tuple[Expansion, ...], result["expansions"])
    return Execution(response=response, expansions=expansions, usage=usage)


def _message_to_json(message: str | Sequence[Part]) -> serde.Json:
    content = sendable_content(to_content(message))
    for media in media_in(content):
        if media.data is not None:
            raise ContentError(
                f"{media} contains its bytes, but another process may continue the run; put it "
                "into the store of the session that session= creates, and pass the reference: "
                "store.put(image)"
            )
    return serde.dump_lossless(Content, content)


def _error_to_json(error: PromptEvaluationError) -> Record:
    """Returns an error as JSON, with its most specific type from `_ERRORS`."""
    return {
        "is": next(name for name, kind in _ERRORS.items() if isinstance(error, kind)),
        **{name: getattr(error, name) for name in _ARGUMENTS},
        "retry_after": serde.dump(getattr(error, "retry_after", None)),
    }


def _error_from_json(fields: Record) -> PromptEvaluationError:
    error = _ERRORS[fields["is"]](**{name: fields[name] for name in _ARGUMENTS})
    if isinstance(error, ThrottleError):
        error.retry_after = serde.parse(timedelta | None, fields["retry_after"])
    return error
