"""The assistant as the `wink` command takes it: `wink check examples.docs_assistant.target:prompt`."""

from collections.abc import Generator
from contextlib import contextmanager

from weakincentives import Prompt
from weakincentives.adapters.openai import OpenAIAdapter

from .library import Library
from .models import Choice, chosen_model
from .prompt import Answer, assistant, bound_params

__all__ = ["offline", "prompt"]


def prompt() -> Prompt[Answer]:
    """The assistant over this repository's documents, its question still to be set."""
    library = Library.load()
    project, question = bound_params(library, "What is a section?")
    return assistant(library).bind(project, question)


@contextmanager
def offline() -> Generator[OpenAIAdapter]:
    """The default model of the demo, served while the context lasts."""
    with chosen_model(Choice()) as (_, adapter):
        yield adapter
