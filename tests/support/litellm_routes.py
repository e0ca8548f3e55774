"""The real LiteLLM against a scripted server, on its routes of two provider formats."""

from typing import Any

import pytest

from support.hostile_server import HostileServer
from support.scripted_server import ScriptedServer
from weakincentives.adapters.litellm import LiteLLMAdapter

KEY = "sk-marked-0123456789-secret"
OPENAI = "openai/gpt-4o"
ANTHROPIC = "anthropic/claude-sonnet-4-5"

routes = pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])


# Any: options of all types.
def connect(
    server: HostileServer | ScriptedServer, model: str = OPENAI, **options: Any
) -> LiteLLMAdapter:
    """Returns an adapter, which does not retry unless `options` say so."""
    url = server.url if model.startswith("anthropic/") else server.openai_url
    arguments: dict[str, Any] = {"base_url": url, "api_key": KEY, "max_retries": 0, **options}
    return LiteLLMAdapter(model, **arguments)
