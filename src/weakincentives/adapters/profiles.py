"""Predefined `ServerProfile` values, each for one server.

    OpenAIAdapter("llama-3.3-70b-versatile", profile=profiles.GROQ)

The comments cite the sources as of 2026-11-26: documentation, or public issues in other libraries.
Nothing was tested against the live services. UNVERIFIED marks a cautious, undocumented value.
"""

from dataclasses import replace

from .server_profile import ServerProfile

__all__ = [
    "AZURE",
    "CEREBRAS",
    "DATABRICKS",
    "DEEPSEEK",
    "GEMINI",
    "GLM",
    "GROQ",
    "KIMI",
    "LLAMA_CPP",
    "LM_STUDIO",
    "MISTRAL",
    "OLLAMA",
    "OPENROUTER",
    "QWEN",
    "VLLM",
    "XAI",
]

# Only OpenAI supports the role `developer`: DeepSeek (pi#1048), DashScope (cherry-studio#19316) and
# DeepInfra (pi#1578) reject it. Every server accepts `system`.
_CHAT = ServerProfile(api="chat", developer_role=False)
# The output is requested in the prompt's text, and no tool is strict.
_WITHOUT_SCHEMAS = replace(_CHAT, structured_output="prompted", strict="never")
# Given both an output schema and tools, the model starts with JSON and never calls a tool: observed
# with llama.cpp's server; ollama#8095, vllm#39929. LM Studio: UNVERIFIED.
_LOCAL = replace(_CHAT, structured_output="prompted", think_tags=True, needs_key=False)
_STREAM_OPTIONS = frozenset({"stream_options"})


def _unsupported(*names: str) -> frozenset[str]:
    return _CHAT.unsupported_settings | {*names}


# learn.microsoft.com, Azure OpenAI v1 API: OpenAI's rules, with the path /openai/v1
AZURE = ServerProfile(
    strict="each",
    user_after_tool=True,
    output_limit="max_completion_tokens",
    unsupported_settings=frozenset(),
    base_url_variable="AZURE_OPENAI_ENDPOINT",
    path="/openai/v1",
    key_variable="AZURE_OPENAI_API_KEY",
)

# Some models reject `strict: true` (livekit/agents#3134), and all reject mixed values
# (kilocode#5189). `parallel_tool_calls` causes a 400 error (req_llm's guide). Reasoning:
# UNVERIFIED.
CEREBRAS = replace(
    _CHAT,
    strict="never",
    reasoning="drop",
    rejected_fields=frozenset({"parallel_tool_calls"}),
    base_url="https://api.cerebras.ai/v1",
    key_variable="CEREBRAS_API_KEY",
)

# `stream_options` is rejected (opencode#4698). The path is documented in docs.databricks.com, Query
# with the OpenAI client. `strict` and reasoning: UNVERIFIED.
DATABRICKS = replace(
    _CHAT,
    strict="never",
    reasoning="drop",
    rejected_fields=_STREAM_OPTIONS,
    base_url_variable="DATABRICKS_HOST",
    path="/serving-endpoints",
    key_variable="DATABRICKS_TOKEN",
)

# api-docs.deepseek.com, Thinking Mode: reasoning must be sent back with calls (DeepSeek-V3#1053)
# and is ignored without them; an empty text is accepted (2026-04, llmgateway#2093). Strict Mode:
# only at another base URL. No `json_schema` (presenton#676), and `max_tokens`. The settings are
# those of Create Chat Completion; reasoning is set by `thinking`.
DEEPSEEK = replace(
    _WITHOUT_SCHEMAS,
    output_limit="max_tokens",
    unsupported_settings=_unsupported("parallel_tool_calls", "reasoning", "seed"),
    reasoning="require",
    reasoning_field="reasoning_content",
    base_url="https://api.deepseek.com",
    key_variable="DEEPSEEK_API_KEY",
)

# ai.google.dev, OpenAI compatibility. A result must contain the tool's name (hermes-agent#19728).
# Older models do not accept both an output schema and tools; `strict`: UNVERIFIED. Calls are always
# parallel.
GEMINI = replace(
    _WITHOUT_SCHEMAS,
    unsupported_settings=_unsupported("parallel_tool_calls"),
    named_results=True,
    base_url="https://generativelanguage.googleapis.com/v1beta/openai",
    key_variable="GEMINI_API_KEY",
)

# docs.z.ai, Chat Completion: `max_tokens`, `reasoning_content`, and `json_object` as the only
# format. `strict`: UNVERIFIED. Its parameters contain no `seed`, `thinking` sets reasoning, and
# `tool_choice` can only be "auto".
GLM = replace(
    _WITHOUT_SCHEMAS,
    output_limit="max_tokens",
    unsupported_settings=_unsupported("parallel_tool_calls", "reasoning", "seed", "tool_choice"),
    reasoning_field="reasoning_content",
    base_url="https://api.z.ai/api/paas/v4",
    key_variable="ZAI_API_KEY",
)

# Reasoning is rejected (gptel#774). console.groq.com, Structured Outputs: not with tools and not in
# streams (vercel/ai#10023); Reasoning: `reasoning_format: "raw"` puts it into tags.
GROQ = replace(
    _CHAT,
    structured_output="prompted",
    reasoning="drop",
    think_tags=True,
    unsupported_settings=frozenset({"cache_ttl"}),
    base_url="https://api.groq.com/openai/v1",
    key_variable="GROQ_API_KEY",
)

# A message with calls must contain `reasoning_content` (librechat.ai, Moonshot; pi#3636), and an
# empty one counts as missing (2026-04, llmgateway#2093; 2026-05, pi#4178). An output schema and
# `strict`: UNVERIFIED. `thinking` sets reasoning (platform.kimi.ai, Model parameters); `seed` and
# `parallel_tool_calls` are not documented.
KIMI = replace(
    _WITHOUT_SCHEMAS,
    unsupported_settings=_unsupported("parallel_tool_calls", "reasoning", "seed"),
    reasoning="require",
    reasoning_field="reasoning_content",
    missing_reasoning="(no reasoning)",
    base_url="https://api.moonshot.ai/v1",
    key_variable="MOONSHOT_API_KEY",
)

# README of llama.cpp's server: LLAMA_API_KEY sets `--api-key`, and `--reasoning-format none` leaves
# reasoning in the text.
LLAMA_CPP = replace(
    _LOCAL,
    reasoning_field="reasoning_content",
    base_url="http://127.0.0.1:8080/v1",
    key_variable="LLAMA_API_KEY",
)

# lmstudio.ai, API Changelog: `reasoning` for gpt-oss, tags for other models; its list of parameters
# includes `max_tokens`.
LM_STUDIO = replace(
    _LOCAL,
    output_limit="max_tokens",
    reasoning_field="reasoning",
    unsupported_settings=_unsupported("parallel_tool_calls", "reasoning"),
    base_url="http://127.0.0.1:1234/v1",
)

# Ids (langchain#24668), reasoning (crush#1590, OpenMinis#87), `stream_options` (anon-kode#53) and
# `max_completion_tokens` (eca#231) are rejected. The seed is `random_seed` (docs.mistral.ai).
MISTRAL = replace(
    _CHAT,
    unsupported_settings=_unsupported("seed"),
    rejected_fields=_STREAM_OPTIONS,
    output_limit="max_tokens",
    call_ids="[a-zA-Z0-9]{9}",
    reasoning="drop",
    base_url="https://api.mistral.ai/v1",
    key_variable="MISTRAL_API_KEY",
)

# docs.ollama.com, OpenAI compatibility: the supported request fields, which include `max_tokens`
# but not `strict`, `parallel_tool_calls` or `tool_choice`; the key is ignored. Some
# models' templates leave reasoning in the text.
OLLAMA = replace(
    _LOCAL,
    strict="never",
    output_limit="max_tokens",
    reasoning_field="reasoning",
    unsupported_settings=_unsupported("parallel_tool_calls", "tool_choice"),
    base_url="http://127.0.0.1:11434/v1",
    base_url_variable="OLLAMA_HOST",
)

# openrouter.ai, Reasoning Tokens: `reasoning` and `reasoning_details` are sent back unchanged,
# because some models require them; `reasoning.effort` sets the effort.
OPENROUTER = replace(
    _CHAT,
    unsupported_settings=frozenset({"cache_ttl"}),
    effort_field="reasoning.effort",
    base_url="https://openrouter.ai/api/v1",
    key_variable="OPENROUTER_API_KEY",
)

# alibabacloud.com, Model Studio, OpenAI compatible - Chat: the server in Singapore. `strict`, an
# output schema and reasoning: UNVERIFIED. `enable_thinking` turns reasoning on.
QWEN = replace(
    _WITHOUT_SCHEMAS,
    unsupported_settings=_unsupported("reasoning"),
    reasoning="drop",
    base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    key_variable="DASHSCOPE_API_KEY",
)

# `reasoning` (vllm#27752), or tags without `--reasoning-parser` (vllm#17346). docs.vllm.ai,
# environment variables: VLLM_API_KEY contains the key if the server requires one.
VLLM = replace(
    _LOCAL,
    reasoning_field="reasoning",
    base_url="http://127.0.0.1:8000/v1",
    key_variable="VLLM_API_KEY",
)

# docs.x.ai, Chat: roles can be in any order; `max_completion_tokens` is preferred (req_llm's
# guide). Reasoning: UNVERIFIED.
XAI = replace(
    _CHAT,
    output_limit="max_completion_tokens",
    alternating_roles=False,
    user_after_tool=True,
    reasoning="drop",
    base_url="https://api.x.ai/v1",
    key_variable="XAI_API_KEY",
)
