"""The requests that servers with a ready profile reject, according to reports and documentation.

`RULES` has an entry for each name in `weakincentives.adapters.profiles`, but does not read the
profile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from .request_rules import check_chat, check_responses

__all__ = ["RULES", "Rules"]

# Any: requests are read key by key.
type Body = dict[str, Any]

_NO_REASONING = partial(check_chat, reasoning=False)
_REQUIRES_REASONING = partial(check_chat, reasoning_field="reasoning_content")


_ACCEPTS_BLANK_REASONING = partial(
    check_chat, reasoning_field="reasoning_content", blank_reasoning=True
)


@dataclass(frozen=True)
class Rules:
    """The rules of one server.

    `strict` is the value it accepts for the tools' `strict`. `schema` says where it accepts an
    output schema. `limit` is the name of the output limit, if it knows only one name. `field` is
    the field in which it sends reasoning; `tags` means that the text contains the reasoning.
    """

    messages: Callable[[Body], None] = check_chat
    strict: Literal["any", "uniform", "absent"] = "any"
    schema: Literal["anywhere", "without tools", "never"] = "anywhere"
    rejected: frozenset[str] = frozenset()
    limit: str = ""
    developer: bool = False
    field: str = "reasoning_content"
    tags: bool = False

    def check(self, body: Body) -> None:
        """Fails for a request that the server rejects."""
        self.messages(body)
        assert not self.rejected & body.keys(), "extra inputs are not permitted"
        limits = {"max_tokens", "max_completion_tokens"} & body.keys()
        assert not self.limit or limits <= {self.limit}, f"unknown field {limits}"
        roles = {item.get("role") for item in body.get("messages", ())}
        assert self.developer or "developer" not in roles, "unknown variant `developer`"
        tools = [tool.get("function", tool) for tool in body.get("tools", ())]
        values = {tool.get("strict", False) for tool in tools}
        assert self.strict == "any" or len(values) <= 1, "mixed values for 'strict'"
        assert self.strict != "absent" or values <= {False}, "strict=True is not supported"
        if "response_format" in body:
            assert self.schema != "never", "this response_format type is unavailable"
            is_plain = not tools and not body.get("stream")
            assert self.schema == "anywhere" or is_plain, "response_format with tools or streaming"


RULES = {
    "AZURE": Rules(check_responses, developer=True),
    "CEREBRAS": Rules(
        strict="absent", rejected=frozenset({"parallel_tool_calls"}), field="reasoning"
    ),
    "DATABRICKS": Rules(rejected=frozenset({"stream_options"})),
    "DEEPSEEK": Rules(_ACCEPTS_BLANK_REASONING, schema="never", limit="max_tokens"),
    "GEMINI": Rules(partial(check_chat, named_results=True), schema="without tools"),
    "GLM": Rules(schema="never", limit="max_tokens"),
    "GROQ": Rules(_NO_REASONING, schema="without tools", field="reasoning"),
    "KIMI": Rules(_REQUIRES_REASONING),
    "LLAMA_CPP": Rules(tags=True),
    "LM_STUDIO": Rules(limit="max_tokens", field="reasoning", tags=True),
    "MISTRAL": Rules(
        partial(check_chat, call_ids="[a-zA-Z0-9]{9}", reasoning=False),
        rejected=frozenset({"stream_options"}),
        limit="max_tokens",
    ),
    "OLLAMA": Rules(limit="max_tokens", field="reasoning", tags=True),
    "OPENROUTER": Rules(field="reasoning"),
    "QWEN": Rules(),
    "VLLM": Rules(field="reasoning", tags=True),
    "XAI": Rules(partial(check_chat, user_after_tool=True, alternating_roles=False)),
}
