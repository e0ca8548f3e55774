"""An offline extractive model behind an OpenAI-compatible server: honestly no LLM.

It scores texts with BM25, calls tools by their schemas and quotes what it read. It knows nothing of any
particular prompt, tool, repository or question. `start_offline_model` serves it; `next_call` and `compose` are
its decisions without HTTP.
"""

from .answering import compose
from .choosing import next_call
from .conversation import Call, Conversation, Message, Result, Tool
from .server import start_offline_model
from .wire import MODEL, BadRequest, respond

__all__ = [
    "MODEL",
    "BadRequest",
    "Call",
    "Conversation",
    "Message",
    "Result",
    "Tool",
    "compose",
    "next_call",
    "respond",
    "start_offline_model",
]
