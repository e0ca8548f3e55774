"""An offline extractive model behind an OpenAI-compatible server. It is not an LLM.

It scores texts with BM25, calls tools by their schemas and quotes the texts that it has read. It
contains no rule for any particular prompt, tool, repository or question. `extract` returns its next
step: a call from `next_call` or an answer from `compose`. `start_offline_model` serves `extract` or
another policy, and `follow` turns a plan into a policy.
"""

from .answering import compose, extract
from .choosing import next_call
from .conversation import Call, Conversation, Message, Policy, Result, Tool
from .formats import MODEL, BadRequest, respond
from .planning import Plan, follow
from .reading import embedded_json
from .server import start_offline_model

__all__ = [
    "MODEL",
    "BadRequest",
    "Call",
    "Conversation",
    "Message",
    "Plan",
    "Policy",
    "Result",
    "Tool",
    "compose",
    "embedded_json",
    "extract",
    "follow",
    "next_call",
    "respond",
    "start_offline_model",
]
