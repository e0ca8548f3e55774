"""`python -m examples.web_chat`: serves the chat on 127.0.0.1 until Ctrl-C."""

import argparse
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from examples.common.models import Choice, chosen_model
from examples.offline_model import start_offline_model
from weakincentives import MainLoop
from weakincentives.adapters.openai import OpenAIAdapter

from .offline import answer_customer
from .server import make_app
from .store import ChatStore


def main(arguments: list[str] | None = None) -> int:
    """Serves the chat until the process is stopped."""
    parser = argparse.ArgumentParser(prog="web_chat", description=__doc__)
    add = parser.add_argument
    add("--port", type=int, default=8000)
    add("--database", type=Path, default=Path("web_chat.db"), help="the SQLite file for all chats")
    add("--model", help="an OpenAI model; by default an offline rule answers (no LLM)")
    add("--pace", type=float, default=0.03, help="seconds between two words of the offline rule")
    options = parser.parse_args(arguments)
    with _model(options.model, options.pace) as adapter:
        store = ChatStore(options.database)
        sys.stderr.write(f"Open http://127.0.0.1:{options.port} in your browser; Ctrl-C ends.\n")
        uvicorn.run(
            make_app(store, MainLoop(adapter)),
            host="127.0.0.1",
            port=options.port,
            log_level="warning",
            timeout_graceful_shutdown=1,  # open pages follow their chats forever
        )
        store.close()
    return 0


@contextmanager
def _model(name: str | None, pace: float) -> Generator[OpenAIAdapter]:
    if name is not None:
        with chosen_model(Choice(model=name)) as (_, adapter):
            yield adapter
    else:
        with start_offline_model(answer_customer, pace) as url:
            yield OpenAIAdapter("offline", base_url=url, api_key="none")


if __name__ == "__main__":
    sys.exit(main())
