"""Errors about the server: its address, its key, and the way to reach its API."""

import socket
from typing import Any

import openai
import pytest

from support.agents import Args, prompt, tool
from support.scripted_server import Fail, Say, ScriptedServer
from weakincentives.adapters import profiles
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.limits import Deadline
from weakincentives.runtime.session import Session

UNAUTHORIZED = Fail(401, "Invalid API Key")
NOT_FOUND = Fail(404, "File Not Found")


def failure(adapter: OpenAIAdapter | AnthropicAdapter) -> PromptEvaluationError:
    with pytest.raises(PromptEvaluationError) as caught:
        adapter.evaluate(prompt(), session=Session())
    return caught.value


# Any: the arguments of the adapter
def connect(url: str, **options: Any) -> OpenAIAdapter:
    return OpenAIAdapter("m", base_url=url, max_retries=0, **options)


def test_rejected_placeholder_key_error_names_the_unused_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret-of-another-server")
    with ScriptedServer(UNAUTHORIZED) as server:
        error = failure(connect(server.openai_url, profile=profiles.LLAMA_CPP))
        assert dict(server.requests[0].headers)["authorization"] == "Bearer unused"
    assert error.remedy == (
        "pass api_key=, since none was sent; LLAMA_API_KEY is read only for "
        "http://127.0.0.1:8080/v1"
    )


def test_rejected_key_error_names_the_host() -> None:
    with ScriptedServer(UNAUTHORIZED) as server:
        error = failure(connect(server.openai_url, profile=profiles.GROQ, api_key="wrong"))
    assert (error.code, error.remedy) == ("authentication", "check the API key for 127.0.0.1")


def test_not_found_error_names_the_request_url() -> None:
    with ScriptedServer(NOT_FOUND, NOT_FOUND) as server:
        url = f"{server.openai_url}/v2"
        chat = failure(connect(url, api="chat", api_key="x"))
        responses = failure(connect(url, api_key="x"))
    assert chat.remedy.endswith(f"; the request went to {url}/chat/completions")
    assert responses.remedy.endswith("; most compatible servers need api='chat'")


def test_not_found_error_of_a_doubled_version_in_the_path_names_base_url() -> None:
    with ScriptedServer(NOT_FOUND) as server:
        url = f"{server.openai_url.removesuffix('/v1')}/v1/"
        adapter = AnthropicAdapter("m", base_url=url, api_key="x", max_retries=0)
        error = failure(adapter)
    assert error.remedy == (
        f"remove /v1 from the end of base_url; the request went to {url}v1/messages"
    )


def test_connection_error_names_the_server_address() -> None:
    with ScriptedServer() as server:
        url = server.openai_url
    error = failure(connect(url, api="chat", api_key="x"))
    assert error.message == f"no connection to {url.removesuffix('/v1')} (ConnectError)"


def test_base_url_without_a_scheme_raises_with_a_remedy() -> None:
    error = failure(connect("localhost:8080/v1", api="chat", api_key="x"))
    assert error.remedy == "begin base_url with http:// or https://"


def test_profile_must_be_a_server_profile() -> None:
    wrong: Any = "llama_cpp"
    with pytest.raises(TypeError, match="must be a ServerProfile, such as"):
        OpenAIAdapter("m", profile=wrong)


@pytest.mark.parametrize("profile", [profiles.LLAMA_CPP, profiles.OLLAMA, profiles.VLLM])
def test_local_server_sends_no_response_format_with_tools(
    profile: Any,
) -> None:
    with ScriptedServer(Say('{"a": 1}')) as server:
        adapter = connect(server.openai_url, profile=profile, api_key="x")
        adapter.evaluate(prompt(tool(), output=Args), session=Session())
        [request] = server.requests
    assert b"tools" in request.body
    assert b"response_format" not in request.body  # a grammar would not allow calls


def test_timeout_can_be_an_sdk_timeout_object() -> None:
    with ScriptedServer(Say("Hi")) as server:
        own: Any = openai.Timeout(60, connect=1)
        adapter = connect(server.openai_url, api="chat", api_key="x", timeout=own)
        far = Deadline.after(60)
        assert adapter.evaluate(prompt(), session=Session(), deadline=far).text == "Hi"


@pytest.mark.parametrize("seconds", [None, 60])
def test_https_to_a_plain_http_server_is_a_connection_error(
    seconds: int | None,
) -> None:
    deadline = None if seconds is None else Deadline.after(seconds)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        adapter = connect(f"{url}/v1", api="chat", api_key="x", timeout=1)
        with pytest.raises(PromptEvaluationError) as caught:
            adapter.evaluate(prompt(), session=Session(), deadline=deadline)
    assert caught.value.message == f"no connection to {url} (ConnectTimeout)"
