"""Runs `wink` in a folder with the module `shop`: as a process, or by calling the function that the
process would call.
"""

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from weakincentives.cli import main

__all__ = ["Done", "Wink", "environment", "process", "write_shop"]

SOURCE = Path(__file__).parents[2] / "src"
SHOP = '''
from dataclasses import dataclass, field

from weakincentives import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class Question:
    text: str = field(metadata={"description": "The customer's words."})


@dataclass(frozen=True)
class Answer:
    text: str


def refund(params: Question, *, context: ToolContext) -> ToolResult[Question]:
    """Pay an order back."""
    return ToolResult(message="Paid back.", value=params)


template = PromptTemplate[Answer](
    ns="shop",
    key="support",
    sections=[
        MarkdownSection(title="Task", template="Help, 100% of the time."),
        MarkdownSection(
            title="Refunds",
            summary="When to pay back.",
            template="Within 30 days. " * 20,
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="refund", handler=refund)],
        ),
        MarkdownSection[Question](title="Question", template="$text"),
        MarkdownSection(title="Old", template="Gone.", enabled=False),
    ],
)
task = MarkdownSection(title="Task", template="Help.")
clean = PromptTemplate(ns="shop", key="clean", sections=[task])


def scripted(**options):
    read = call(("read_section", {"section_key": "refunds"}))
    pay = call(("refund", {"text": "A-7"}))
    return ScriptedAdapter([read, pay, say('{"text": "Paid [bold]back[/]."}')])


def speechless():
    return ScriptedAdapter([])
'''


def write_shop(folder: Path) -> None:
    """Writes `shop.py`: prompts `template` and `clean`, and the adapter factory `scripted`."""
    (folder / "shop.py").write_text(SHOP)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: object
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Wink:
    """Runs `wink` in this process, in a tenth of the time; each call imports the folder's modules
    again.
    """

    folder: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, stdin: str = "", **more: str) -> Done:
        with self.patch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["wink", *arguments])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            patch.setattr(sys, "path", [*sys.path])
            patch.setattr(sys, "dont_write_bytecode", True)
            for name, value in more.items():
                patch.setenv(name, value)
            self.capture.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
            for name, module in [*sys.modules.items()]:
                if (getattr(module, "__file__", None) or "").startswith(f"{self.folder}/"):
                    del sys.modules[name]
        out, err = self.capture.readouterr()
        return Done(ended.value.code or 0, out, err)


def environment(**more: str) -> dict[str, str]:
    """Returns this process's environment, in which our sources can be imported."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path]), **more}


def process(folder: Path, *arguments: str, **more: str) -> Done:
    """Starts `wink` with these arguments in `folder`; `more` is added to its environment."""
    command = [sys.executable, "-m", "weakincentives.cli", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
