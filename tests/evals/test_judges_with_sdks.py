"""Judges ask real SDKs, whose servers are scripted."""

import asyncio

import pytest

from support.scripted_server import Fail, Say, ScriptedServer
from support.sdk_clients import APIS, sdk_adapter
from weakincentives.evals.cases import Case
from weakincentives.evals.judges import judge
from weakincentives.evals.scores import EvalRun
from weakincentives.evals.scoring import score
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.prompt import Prompt
from weakincentives.runtime.session import Session

TOO_LONG = Fail(400, "prompt is too long: 5000 tokens > 4096 maximum", "context_length_exceeded")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([Say('{"reason": "It is right.", "value": true}')], True),
        ([TOO_LONG], "too long for the model: prompt is too long: 5000 tokens > 4096 maximum"),
        ([Say('{"reason": "It', finish="length")], "the verdict was cut off"),
        ([Say("5 reasons for a 9")] * 3, "the judge gave no valid verdict"),
        ([Fail(401, "the key sk-proj-abcdefghijklmnopqrstuvwx is wrong")], "PromptEvaluationError"),
    ],
)
@pytest.mark.parametrize("api", APIS)
def test_verdicts_and_score_errors_are_the_same_with_real_sdks(
    api: str, steps: list[Say | Fail], *, expected: bool | str
) -> None:
    async def ask[Out](prompt: Prompt[Out], model: object, /) -> EvalRun[Out]:
        done = await MainLoop(adapter).execute_async(prompt)
        return EvalRun(output=done.output, text=done.text, session=done.session)

    case = Case(id="a", message="What is 6 times 7?", expected="42")
    with ScriptedServer(*steps) as server:
        adapter = sdk_adapter(api, server.url, api_key="test-key")
        run: EvalRun = EvalRun(output=None, text="42", session=Session())
        scores = asyncio.run(score(case, run, judge("It is right."), ask))
    if isinstance(expected, bool):
        assert scores.values == {"judge": expected}
    else:
        assert expected in scores.errors["judge"]
        assert "abcdefgh" not in scores.errors["judge"]
