"""The assistant as the `wink` command takes it: `wink check examples.docs_assistant.target:prompt`."""

from collections.abc import Generator
from contextlib import contextmanager

from examples.common.models import Choice, chosen_model
from weakincentives import Prompt
from weakincentives.adapters.openai import OpenAIAdapter

from .library import Library
from .prompt import Answer, assistant

__all__ = ["offline", "prompt"]


def prompt() -> Prompt[Answer]:
    """The assistant over this repository's documents, its question still to be set."""
    return assistant(Library.load(), "What is a section?")


@contextmanager
def offline() -> Generator[OpenAIAdapter]:
    """The default model of the demo, served while the context lasts."""
    with chosen_model(Choice()) as (_, adapter):
        yield adapter
