"""A target for the `wink` command: `wink check examples.docs_assistant.target:prompt`."""

from collections.abc import Generator
from contextlib import contextmanager

from examples.common.models import Choice, chosen_model
from weakincentives import Prompt
from weakincentives.adapters.openai import OpenAIAdapter

from .library import Library
from .prompt import Answer, assistant

__all__ = ["offline", "prompt"]


def prompt() -> Prompt[Answer]:
    """Returns the assistant over this repository's documents."""
    return assistant(Library.load())


@contextmanager
def offline() -> Generator[OpenAIAdapter]:
    """Yields an adapter for the default model of the demo; it works until the block ends."""
    with chosen_model(Choice()) as (_, adapter):
        yield adapter
