"""An offline extractive model behind an OpenAI-compatible server: honestly no LLM.

It scores texts with BM25, calls tools by their schemas and quotes what it read. It knows nothing of
any particular prompt, tool, repository or question. `extract` returns its next step, a call by
`next_call` or an answer by `compose`. `start_offline_model` serves `extract` or another policy;
`follow` makes one of a plan.
"""

from .answering import compose, extract
from .choosing import next_call
from .conversation import Call, Conversation, Message, Policy, Result, Tool
from .planning import Plan, follow
from .reading import embedded_json
from .server import start_offline_model
from .wire import MODEL, BadRequest, respond

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
