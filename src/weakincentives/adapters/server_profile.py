"""`ServerProfile`: how one server differs from the others that speak the same API."""

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["ServerProfile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProfile:
    """What a server accepts in a conversation.

    The defaults suit the strictest servers, so most servers need no profile of their own.

    `user_after_tool` says that a user's message may directly follow the result of a tool. Without
    it, a short message of the model stands between the two (mistral-vibe#578). With
    `reasoning="drop"`, only the documented fields of the model's messages are sent back: Groq
    (gptel#774) and Mistral (crush#1590) reject reasoning, while DeepSeek requires it
    (DeepSeek-V3#1053). `call_ids` is a regular expression for the ids of tool calls, such as
    `"[a-zA-Z0-9]{9}"` for Mistral (langchain#24668); the other ids are replaced. By default the
    server gets the ids back that it has sent.

    Raises `ValueError` for an unknown `reasoning` and for an invalid regular expression.
    """

    user_after_tool: bool = False
    reasoning: Literal["send", "drop"] = "send"
    call_ids: str | None = None

    def __post_init__(self) -> None:
        if self.reasoning not in ("send", "drop"):
            raise ValueError(f"reasoning must be 'send' or 'drop', got {self.reasoning!r}")
        try:
            re.compile(self.call_ids or "")
        except re.error as error:
            raise ValueError(
                f"call_ids must be a regular expression, got {self.call_ids!r}: {error}"
            ) from error
