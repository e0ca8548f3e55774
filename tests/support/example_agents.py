"""Runs the example agents as a reader would: as processes, and against a scripted provider."""

import os
import subprocess
import sys
from pathlib import Path

from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session

from .scripted_server import ScriptedServer

__all__ = ["ROOT", "answers", "run_example", "scripted"]

ROOT = Path(__file__).parents[2]


def run_example(
    name: str, *arguments: object, folder: Path = ROOT
) -> "subprocess.CompletedProcess[str]":
    """Runs `python -m examples.NAME` in a folder."""
    return subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *map(str, arguments)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def scripted(server: ScriptedServer) -> OpenAIAdapter:
    """Returns an adapter for the scripted provider."""
    return OpenAIAdapter(
        "m", api="responses", base_url=server.openai_url, api_key="none", max_retries=0
    )


def answers(session: Session) -> list[str]:
    """Returns the answers that the model was sent for its calls."""
    return [event.content for event in session[ToolInvoked]]
