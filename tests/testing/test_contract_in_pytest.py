"""The tool contract in a user's own test run: hypothesis' seed and database work as usual."""

import os
import subprocess
import sys
from pathlib import Path

from support.authors import PLUGIN
from weakincentives.errors import missing_extra

WRONG = """
from dataclasses import dataclass

from weakincentives import Tool, ToolContext, ToolResult
from weakincentives.testing import assert_tool_contract


@dataclass(frozen=True)
class Number:
    number: int


def small(params: Number, *, context: ToolContext) -> ToolResult[None]:
    print("number", params.number)
    if params.number > 1000:
        raise ValueError("too large")
    return ToolResult("Small.")


def test_small() -> None:
    assert_tool_contract(Tool(name="small", handler=small))
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


def test_hypothesis_seed_and_database_work_with_the_tool_contract(tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(WRONG)

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        process = subprocess.run(
            [*command, *PLUGIN, *options],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 1, process.stdout + process.stderr
        return process.stdout

    def numbers(output: str) -> list[str]:
        return [line for line in output.splitlines() if line.startswith("number ")]

    (tmp_path / "conftest.py").write_text(
        "from hypothesis import settings\n"
        "from hypothesis.database import DirectoryBasedExampleDatabase\n"
        "database = DirectoryBasedExampleDatabase('examples')\n"
        "settings.register_profile('own', database=database, derandomize=False, deadline=None)\n"
        "settings.load_profile('own')\n"
    )
    first = run()
    assert "ToolContractError: tool 'small': its handler raised ValueError('too large'); " in first
    assert 'arguments: {"number": 1001}' in first
    # the database stores the example under this name, so no other tool receives it
    assert "small_matches(" in first
    assert "Tool handler failed" not in first
    assert numbers(run())[0] == "number 1001"  # earlier failures come first
    seeded = numbers(run("--hypothesis-seed=1"))
    assert seeded == numbers(run("--hypothesis-seed=1"))
    assert seeded != numbers(run("--hypothesis-seed=2"))


def test_only_assert_tool_contract_requires_hypothesis() -> None:
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from weakincentives import Tool\n"
        "from weakincentives.testing import assert_tool_contract\n"
        "from weakincentives.prompt.workspace_tools import READING_TOOLS\n"
        "try: assert_tool_contract(READING_TOOLS[0])\n"
        "except ImportError as error: print(error)\n"
    )
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    remedy = str(missing_extra("assert_tool_contract", "hypothesis", "testing"))
    assert process.stdout == f"{remedy}\n"
