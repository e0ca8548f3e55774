"""Failures mask the credentials that were passed or sent, and nothing else."""

from traceback import format_exception
from typing import Any

import pytest

from support.agents import prompt
from support.litellm_routes import ANTHROPIC, OPENAI, connect
from support.scripted_server import Fail, ScriptedServer
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session

GIVEN = "given.to.the.provider.0123456789"


# Any: options of all types.
def failure(message: str, model: str = OPENAI, **arguments: Any) -> str:
    """Returns all texts of a request that fails with `message`, including its traceback."""
    session = Session()
    with ScriptedServer(Fail(400, message)) as server:
        adapter = connect(server, model, **{"api_key": None, **arguments})
        with pytest.raises(PromptEvaluationError) as caught:
            adapter.evaluate(prompt(), session=session)
    return "".join(format_exception(caught.value)) + repr(session[ProviderCalled].all())


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-unused-0123456789")


@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize(
    "options",
    [
        {"api_key": GIVEN},
        {"extra_headers": {"Authorization": f"Bearer {GIVEN}"}},
        {"extra_headers": {"X-Api-Key": GIVEN}},
        {"aws_secret_access_key": GIVEN},
        {"azure_ad_token": GIVEN},
    ],
    ids=str,
)
def test_credentials_in_options_are_masked(model: str, options: dict[str, Any]) -> None:
    report = failure(f"Not with {GIVEN}.", model, api_key="sk-other-0123456789", options=options)
    assert GIVEN not in report
    assert "Not with ***" in report


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("watsonx/ibm/granite", "WATSONX_APIKEY"),
        ("watsonx/ibm/granite", "WX_API_KEY"),
        ("azure/gpt-4o", "AZURE_CLIENT_SECRET"),
        ("azure_ai/mistral", "AZURE_AI_API_KEY"),
        ("bedrock/anthropic.claude-v2", "AWS_SECRET_ACCESS_KEY"),
        ("bedrock/anthropic.claude-v2", "AWS_BEARER_TOKEN_BEDROCK"),
        ("vertex_ai/gemini-pro", "GOOGLE_API_KEY"),
        ("fireworks_ai/llama", "FIREWORKS_API_KEY"),
        ("together_ai/llama", "TOGETHERAI_API_KEY"),
        ("text-completion-openai/davinci-002", "OPENAI_API_KEY"),
        (OPENAI, "OPENAI_API_KEY"),
    ],
)
def test_environment_credentials_of_the_provider_are_masked(
    model: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, GIVEN)
    adapter = LiteLLMAdapter(model)
    assert adapter.redactor()(f"Not with {GIVEN}.") == "Not with ***."


def test_key_set_on_the_litellm_module_is_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    adapter = LiteLLMAdapter(OPENAI)
    monkeypatch.setattr(adapter.litellm, "openai_key", GIVEN)
    assert "Not with ***" in failure(f"Not with {GIVEN}.")


@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize(
    "name", ["CACHE_KEY", "SESSION_TOKEN", "OTHER_API_KEY", "OPENAI_CACHE_KEY"]
)
def test_variables_of_other_services_are_not_masked(
    model: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "the model")
    assert "the model is overloaded" in failure("the model is overloaded", model)


def test_value_of_another_services_variable_is_not_masked_with_cache_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CACHE_KEY", "overloaded")
    assert "the model is overloaded" in failure(
        "the model is overloaded", options={"prompt_cache_retention": "24h"}
    )


def test_custom_logger_fn_is_still_called() -> None:
    calls: list[Any] = []
    failure("No.", options={"logger_fn": calls.append})
    assert calls
