"""Adapters with heavy SDKs: importing them does not import the SDK, and without it they say what to
install.
"""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.adapters.litellm import LiteLLMAdapter


@pytest.mark.skipif(find_spec("litellm") is not None, reason="LiteLLM is installed")
def test_litellm_adapter_without_litellm_raises_import_error() -> None:
    with pytest.raises(ImportError, match=r"pip install '\.\[litellm\]'"):
        LiteLLMAdapter("openai/gpt-4o")


@pytest.mark.skipif(
    find_spec("claude_agent_sdk") is not None, reason="the Claude Agent SDK is installed"
)
def test_claude_adapter_without_the_claude_agent_sdk_raises_import_error() -> None:
    with pytest.raises(ImportError, match=r"pip install '\.\[claude-agent-sdk\]'"):
        ClaudeAgentSDKAdapter("claude-sonnet-4-5")


@pytest.mark.parametrize("module", ["litellm", "claude_agent_sdk"])
def test_importing_an_adapter_does_not_import_its_sdk(module: str) -> None:
    heavy = {"litellm", "claude_agent_sdk", "mcp", "anyio", "openai", "pydantic"}
    report = f"print(*sorted({heavy} & sys.modules.keys()))"
    code = f"import sys, weakincentives.adapters.{module}; {report}"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
