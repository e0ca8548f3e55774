"""Prompts as solvers: the logs of Inspect's evaluations."""
# pyright: reportMissingImports=false

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspect_ai import Task, score
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageUser,
    ContentAudio,
    ContentImage,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score, accuracy, scorer

from support.media import PNG
from weakincentives import MainLoop, MarkdownSection, PromptTemplate, Session, TokenUsage
from weakincentives.contrib.inspect import InspectAdapter, as_solver, session_of
from weakincentives.evaluation import Execution


@dataclass(frozen=True)
class Found:
    order: str


@dataclass(frozen=True)
class Customer:
    name: str


def find_order(order: str, session: Session) -> str:
    """Look up an order."""
    session.dispatch(Found(order))
    return f"Order {order} has shipped."


template = PromptTemplate(
    ns="inspect",
    key="shop",
    sections=[MarkdownSection(title="Task", template="Help.", tools=[find_order])],
)
greeting = PromptTemplate(
    ns="inspect",
    key="greeting",
    sections=[MarkdownSection[Customer](title="Task", template="Greet $name.")],
)


def check_session() -> Any:
    """Scores the session: the run found exactly the target."""

    async def check(state: Any, target: Any) -> Score:
        orders = [it.order for it in session_of(state, Found)[Found].all()]
        return Score(value=orders == [target.text], explanation=state.messages[-1].text)

    return check


found: Any = scorer(name="found", metrics=[accuracy()])(check_session)


def looked_up(usage: ModelUsage | None = None) -> ModelOutput:
    output = ModelOutput.for_tool_call("mock", "find_order", {"order": "A-7"})
    output.usage = usage or ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    return output


def said(text: str = "It has shipped.", reason: Any = "stop") -> ModelOutput:
    output = ModelOutput.from_content("mock", text, stop_reason=reason)
    output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    return output


SAMPLE = Sample(id="a", input="Where is A-7?", target="A-7")


def run(
    folder: Path,
    outputs: Sequence[ModelOutput | Exception] = (),
    *,
    solver: Any = None,
    samples: Sequence[Sample] = (SAMPLE,),
    seen: list[Any] | None = None,
    **options: Any,
) -> EvalLog:
    """Evaluates the samples one by one, with a model that repeats the outputs."""
    script = cycle(outputs or [looked_up(), said()])

    def play(messages: Any, *_: object) -> ModelOutput:
        if seen is not None:
            seen.append(messages)
        output = next(script)
        if isinstance(output, Exception):
            raise output
        return output.model_copy(deep=True)

    model = get_model("mockllm/model", custom_outputs=play, memoize=False)
    [log] = evaluate(
        Task(dataset=[*samples], solver=solver or as_solver(template), scorer=found()),
        model=model,
        log_dir=str(folder),
        display="none",
        max_samples=1,
        **options,
    )
    return log


class CountingLoop(MainLoop):
    """Collects the usage of its runs."""

    def __init__(self) -> None:
        super().__init__(InspectAdapter())
        self.usages: list[TokenUsage] = []

    async def execute_async(self, *prompt: Any, **options: Any) -> Execution[Any]:
        execution = await super().execute_async(*prompt, **options)
        self.usages.append(execution.usage)
        return execution


usages = st.builds(
    lambda numbers: ModelUsage(
        input_tokens=numbers[0],
        input_tokens_cache_read=numbers[1],
        input_tokens_cache_write=numbers[2],
        output_tokens=numbers[3] + numbers[4],
        reasoning_tokens=numbers[4],
        total_tokens=sum(numbers),
    ),
    st.lists(st.integers(0, 9_999), min_size=5, max_size=5),
)


@settings(max_examples=5)
@given(usages, usages)
def test_log_has_the_usage_of_our_runs_in_all_epochs(
    tmp_path_factory: pytest.TempPathFactory, first: ModelUsage, second: ModelUsage
) -> None:
    loop, answer = CountingLoop(), said()
    answer.usage = second
    solver = as_solver(template, loop)
    log = run(tmp_path_factory.mktemp("logs"), [looked_up(first), answer], solver=solver, epochs=3)
    [logged] = log.stats.model_usage.values()
    ours = sum(loop.usages, TokenUsage())
    assert len(loop.usages) == 3
    assert ours == TokenUsage(
        logged.input_tokens
        + (logged.input_tokens_cache_read or 0)
        + (logged.input_tokens_cache_write or 0),
        logged.output_tokens,
        logged.input_tokens_cache_read or 0,
        logged.input_tokens_cache_write or 0,
        logged.reasoning_tokens or 0,
    )
    assert ours.total_tokens == logged.total_tokens


def samples_of(log: EvalLog) -> list[Any]:
    return list(log.samples or ())


def scores(log: EvalLog) -> list[Any]:
    return [sample.scores and sample.scores["found"].value for sample in samples_of(log)]


def test_each_epoch_has_a_session_of_its_own(tmp_path: Path) -> None:
    log = run(tmp_path, epochs=3)
    assert scores(log) == [True, True, True]


def test_messages_are_those_of_the_last_request_and_its_answer(tmp_path: Path) -> None:
    seen = list[Any]()
    thought = ContentReasoning(reasoning="hm", signature="signed")
    first, last = looked_up(), said()
    first.message.content = [thought, ContentText(text="Let me see.")]
    outputs = [first, last]
    script = iter(outputs)

    def play(messages: Any, *_: object) -> ModelOutput:
        seen.append(messages)
        return next(script)

    model = get_model("mockllm/model", custom_outputs=play, memoize=False)
    log = run(tmp_path, solver=as_solver(template, MainLoop(InspectAdapter(model))))
    [sample] = samples_of(log)
    assert sample.messages[:-1] == seen[-1]
    assert thought in sample.messages[2].content


def test_scorer_finds_messages_answer_and_session_also_in_a_stored_log(tmp_path: Path) -> None:
    log = run(tmp_path)
    [sample] = samples_of(log)
    assert [message.role for message in sample.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert sample.output.completion == "It has shipped."
    again = score(log, found(), display="none", action="overwrite")
    assert scores(again) == [True]


@pytest.mark.parametrize("failure", [said("It", "max_tokens"), ConnectionResetError()])
def test_failed_run_is_an_error_of_its_sample_and_not_a_wrong_answer(
    tmp_path: Path, failure: ModelOutput | Exception
) -> None:
    outputs = [looked_up(), failure, looked_up(), said()]
    log = run(tmp_path, outputs, epochs=2, fail_on_error=False)
    failed, passed = samples_of(log)
    assert failed.error is not None
    assert "PromptEvaluationError: " in failed.error.traceback
    assert not failed.scores
    assert [message.role for message in failed.messages][:4] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert passed.error is None
    assert scores(log)[1] is True
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


def test_sample_that_reaches_a_limit_of_inspect_is_scored_as_far_as_it_came(tmp_path: Path) -> None:
    log = run(tmp_path, token_limit=25)
    [sample] = samples_of(log)
    assert scores(log) == [True]  # the call took effect
    assert sample.limit is not None
    assert sample.limit.type == "token"


@pytest.mark.parametrize(
    ("limits", "roles"),
    [
        ({"message_limit": 3}, ["system", "user", "assistant"]),
        ({"time_limit": 1}, ["system", "user", "assistant", "tool", "assistant", "tool"]),
    ],
)
def test_sample_has_the_messages_and_the_session_up_to_its_limit(
    tmp_path: Path, limits: dict[str, Any], roles: list[str]
) -> None:
    async def wait() -> str:
        """Wait for the order."""
        await asyncio.sleep(60)
        return "It has arrived."

    waiting = PromptTemplate(
        ns="inspect",
        key="waiting",
        sections=[MarkdownSection(title="Task", template="Help.", tools=[find_order, wait])],
    )
    waits = ModelOutput.for_tool_call("mock", "wait", {})
    waits.usage = said().usage
    log = run(tmp_path, [looked_up(), waits], solver=as_solver(waiting), **limits)
    [sample] = samples_of(log)
    assert (sample.error, scores(log)) == (None, [True])
    assert f"{sample.limit.type}_limit" in limits
    assert [message.role for message in sample.messages] == roles


def test_function_makes_the_prompt_of_each_sample(tmp_path: Path) -> None:
    def greet(state: Any) -> Any:
        return greeting.bind(Customer(state.metadata["name"]))

    seen = list[Any]()
    samples = [Sample(id=name, input="unused", target="", metadata={"name": name}) for name in "AB"]
    solver = as_solver(greet, send_input=False)
    run(tmp_path, [said()], solver=solver, samples=samples, seen=seen)
    assert [[message.text for message in request] for request in seen] == [
        ["## 1. Task\n\nGreet A."],
        ["## 1. Task\n\nGreet B."],
    ]


def test_image_in_the_input_is_sent_to_the_model(tmp_path: Path) -> None:
    url = f"data:image/png;base64,{b64encode(PNG).decode()}"
    for each in (url, url.replace(";base64", ";name=a.png;base64")):
        parts = [ContentText(text="See:"), ContentImage(image=each)]
        seen, message = list[Any](), ChatMessageUser(content=parts)
        run(tmp_path, [said()], samples=[Sample(input=[message])], seen=seen)
        assert seen[0][1].content_list[1].image == url


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([ChatMessageSystem(content="Be brief."), ChatMessageUser(content="Hi")], "one user"),
        (
            [
                ChatMessageUser(
                    content=[ContentAudio(audio="data:audio/wav;base64,AA==", format="wav")]
                )
            ],
            "audio",
        ),
    ],
)
def test_input_that_a_run_cannot_take_is_an_error_of_its_sample(
    tmp_path: Path, messages: list[Any], named: str
) -> None:
    log = run(tmp_path, samples=[Sample(input=messages)], fail_on_error=False)
    [sample] = samples_of(log)
    assert sample.error is not None
    assert named in sample.error.message
