"""Targets for the `wink` command: `wink check examples.skills_assistant.target:prompt`."""

from collections.abc import Generator
from contextlib import contextmanager

from examples.offline_model import start_offline_model
from weakincentives import Prompt
from weakincentives.adapters.openai import OpenAIAdapter

from .offline import OFFLINE
from .prompt import Answer, assistant

__all__ = ["offline", "prompt"]


def prompt() -> Prompt[Answer]:
    """Returns the assistant over the sample skills; questions are sent as messages."""
    return assistant().bind()


class Offline(OpenAIAdapter):
    """The adapter for the offline rule, whose server has another port each time."""

    def identity(self) -> dict[str, object]:
        return {"model": "offline"}  # so that evals reuse runs


@contextmanager
def offline() -> Generator[OpenAIAdapter]:
    """Yields an adapter for the offline rule, even if a key is set; works until the block ends."""
    with start_offline_model(OFFLINE.policy) as url:
        yield Offline("offline", base_url=url, api_key="none")
