"""Names of models: a provider, a colon, and the provider's own name."""

import re
import subprocess
import sys
from typing import Any

import pytest

from support.script import Say
from support.scripted_server import ScriptedServer
from weakincentives import Chat, MainLoop
from weakincentives.adapters import profiles
from weakincentives.adapters.core import LoopAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.model_names import adapter_for
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, PromptTemplate

TEMPLATE = PromptTemplate[None](
    ns="tests", key="names", sections=[MarkdownSection(title="Task", template="Help.")]
)


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "AZURE_OPENAI_API_KEY"):
        monkeypatch.setenv(name, "k")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://shop.openai.azure.com")
    for name in ("OPENAI_BASE_URL", "WINK_MODEL"):
        monkeypatch.delenv(name, raising=False)


def made(name: str | None, **arguments: Any) -> LoopAdapter:
    adapter = adapter_for(name, **arguments)
    assert isinstance(adapter, LoopAdapter)
    return adapter


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("openai:gpt-5.2", "gpt-5.2"),
        ("openai:ft:gpt-4o-mini:org::id", "ft:gpt-4o-mini:org::id"),
        ("openai-chat:openai/gpt-4o", "openai/gpt-4o"),
        ("openai:no-such-model-7", "no-such-model-7"),
        ("ollama:qwen3:8b", "qwen3:8b"),
        ("openrouter:openai/gpt-4o", "openai/gpt-4o"),
        ("openrouter:openrouter/optimus-alpha", "openrouter/optimus-alpha"),
        ("openrouter:deepseek/deepseek-v3:free", "deepseek/deepseek-v3:free"),
        ("azure:gpt-5.2", "gpt-5.2"),
        ("lm-studio:qwen", "qwen"),
    ],
)
def test_only_the_first_colon_separates_provider_and_model(name: str, model: str) -> None:
    adapter = made(name)
    assert isinstance(adapter, OpenAIAdapter)
    assert adapter.model == model


def test_provider_chooses_the_api_and_the_profile() -> None:
    paths = [vars(made(name))["path"] for name in ("openai:x", "openai-chat:x", "ollama:x")]
    assert paths == ["/responses", "/chat/completions", "/chat/completions"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gpt-5.2", "names no provider; did you mean 'openai:gpt-5.2'? The providers are openai,"),
        ("o4-mini", "did you mean 'openai:o4-mini'?"),
        ("opnai:gpt-5.2", "has the unknown provider 'opnai'; did you mean 'openai:gpt-5.2'?"),
        ("OpenAI:x", "did you mean 'openai:x'?"),
        (" openai:x", "did you mean 'openai:x'?"),
        ("olama:qwen3:8b", "did you mean 'ollama:qwen3:8b'?"),
        ("zzz:x", "has the unknown provider 'zzz'; the providers are openai, "),
        ("bedrock:x", "; if LiteLLM has the model, use 'litellm:bedrock/x'"),
        ("openai-responses:gpt-5.2", "did you mean 'openai:gpt-5.2'?"),
        ("google:gemini-2.5-pro", "did you mean 'gemini:gemini-2.5-pro'?"),
        ("openai/gpt-4o:free", "did you mean 'openai:gpt-4o:free'?"),
        ("openai/gpt-5.2", "did you mean 'openai:gpt-5.2'?"),
        ("qwen3:8b", "did you mean 'ollama:qwen3:8b'?"),
        ("openai:", "the model is missing in 'openai:'"),
        ("openai: ", "the model is missing"),
        ("", "a model is missing; pass its name, such as 'openai:gpt-5.2', or set WINK_MODEL"),
        (None, "or set WINK_MODEL"),
    ],
)
def test_wrong_names_are_rejected_with_the_nearest_one(name: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        adapter_for(name)


def test_setting_among_the_adapters_arguments_raises_with_a_remedy() -> None:
    remedy = re.escape("temperature is a setting; pass settings=ModelSettings(temperature=…)")
    with pytest.raises(TypeError, match=remedy):
        adapter_for("openai:x", temperature=0)
    assert adapter_for("openai:x", timeout=3).identity()


def test_error_lists_the_adapters_and_all_profiles() -> None:
    with pytest.raises(ValueError, match="providers are") as caught:
        adapter_for("zzz:x")
    names = str(caught.value).partition("providers are ")[2].partition(";")[0].split(", ")
    assert names[:5] == ["openai", "openai-chat", "anthropic", "claude", "litellm"]
    assert names[5:] == [name.lower().replace("_", "-") for name in profiles.__all__]


def test_variable_names_the_model_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINK_MODEL", "openai:gpt-5.2")
    loop = MainLoop()
    assert isinstance(loop.adapter, OpenAIAdapter)
    assert loop.adapter.model == "gpt-5.2"
    monkeypatch.setenv("WINK_MODEL", " ")
    with pytest.raises(ValueError, match="WINK_MODEL"):
        MainLoop()


def test_loops_chats_and_fallbacks_take_names() -> None:
    assert isinstance(MainLoop("openai:x").adapter, OpenAIAdapter)
    assert isinstance(Chat("ollama:x", TEMPLATE).loop.adapter, OpenAIAdapter)
    fallback = FallbackAdapter("openai:a", made("ollama:b"), "openrouter:c")
    assert [adapter.model for adapter in fallback.adapters] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="names no provider"):
        FallbackAdapter("openai:a", "b")


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
def test_local_server_is_reached_by_any_form_of_its_url_without_a_key(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")  # never moves Ollama
    with ScriptedServer(Say("Hi.")) as server:
        url = f"{server.url}{base}"
        assert MainLoop(made("ollama:x", base_url=url)).execute(TEMPLATE, "Hello").text == "Hi."
        [request] = server.requests
        assert request.path == "/v1/chat/completions"


def test_url_from_the_variable_is_used_unless_one_is_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer(Say("Hi."), Say("Ho.")) as server:
        url = server.openai_url
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        assert MainLoop("openai-chat:openai/gpt-4o").execute(TEMPLATE).text == "Hi."
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
        assert MainLoop(made("openai-chat:x", base_url=url)).execute(TEMPLATE).text == "Ho."
        assert server.requests[0].json["model"] == "openai/gpt-4o"


@pytest.mark.parametrize("key", ["", " "], ids=["empty", "blank"])
def test_blank_key_is_an_error_before_any_request(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("OPENROUTER_API_KEY", key)
    with ScriptedServer() as server:
        loop = MainLoop(made("openai:x", base_url=server.openai_url))
        with pytest.raises(PromptEvaluationError, match="set OPENAI_API_KEY") as caught:
            loop.execute(TEMPLATE)
        assert caught.value.code == "authentication"
        assert server.requests == ()
    with pytest.raises(ValueError, match="set OPENROUTER_API_KEY"):
        adapter_for("openrouter:x")


def test_adapter_shows_model_and_host_but_no_key() -> None:
    shown = repr(
        made("openai-chat:x", base_url="https://u:pw@models.shop.example/v1", api_key="SECRET")
    )
    assert shown == "<OpenAIAdapter 'x' at models.shop.example>"
    assert repr(made("openai:x")) == "<OpenAIAdapter 'x'>"


def test_importing_the_library_and_naming_a_model_loads_no_sdk() -> None:
    program = (
        "import sys, weakincentives as wi\n"
        "import os; os.environ['WINK_MODEL'] = 'openai:gpt-5.2'\n"
        "loop = wi.MainLoop()\n"
        "assert loop.adapter.model == 'gpt-5.2'\n"
        "print([name for name in ('openai', 'anthropic', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_missing_extra_says_how_to_install_it() -> None:
    program = (
        "import sys\n"
        "sys.modules['openai'] = None\n"
        "from importlib.machinery import PathFinder\n"
        "from weakincentives import MainLoop\n"
        "class Hidden:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        return None if name == 'openai' else PathFinder.find_spec(name, path, target)\n"
        "del sys.modules['openai']\n"
        "sys.meta_path[:] = [*sys.meta_path[:2], Hidden]\n"
        "try:\n"
        "    MainLoop('openai:x')\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install '.[openai]' in a checkout" in done.stdout
