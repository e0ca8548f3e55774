"""An adapter for the small local model."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from examples.local_model import find_weights, serve_model
from weakincentives import RunConfig
from weakincentives.adapters.openai import OpenAIAdapter

__all__ = ["local_model"]


@contextmanager
def local_model() -> Generator[tuple[str, OpenAIAdapter]]:
    """Yields the model's name, and an adapter for it that works until the block ends.

    The server cannot enforce an output format when there are tools, so the prompt describes the
    format instead.
    """
    weights = find_weights(lambda text: sys.stderr.write(f"{text}\n"))
    with serve_model(weights) as url:
        adapter = OpenAIAdapter(
            "local",
            api="chat",
            base_url=url,
            api_key="none",
            max_retries=0,
            structured_output="prompted",
            options={"max_tokens": 400, "temperature": 0, "parallel_tool_calls": False},
            config=RunConfig(max_turns=12),
        )
        yield f"{weights.stem} in this process (a small LLM)", adapter
