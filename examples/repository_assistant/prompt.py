"""The assistant's prompt: the repository's files, and the tools of Git's MCP server."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from weakincentives import MarkdownSection, PromptTemplate
from weakincentives.contrib.mcp import MCPSection
from weakincentives.contrib.mcp.lock import read_lock
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt import WorkspaceSection

__all__ = ["Release", "Repository", "assistant"]

LOCK = Path(__file__).with_name("git.json")


@dataclass(frozen=True, slots=True)
class Repository:
    """The repository to work on."""

    path: str


@dataclass(frozen=True, slots=True)
class Release:
    """The lines added to the changelog, and their commit."""

    entries: list[str] = field(metadata={"description": "The lines that are new."})
    commit: str = field(metadata={"description": "Git's answer to the commit."})


def assistant(repository: Path) -> PromptTemplate[Release]:
    """Returns the prompt for one repository."""
    lock = read_lock(LOCK)
    command = sys.executable, "-m", "mcp_server_git", "--repository", str(repository)
    task = MarkdownSection[Repository](
        title="Task",
        template="""
            Bring CHANGELOG.md of the repository at `$path` up to date. Each commit since the one
            that last changed it becomes a line, `- subject`. Then commit the file.""",
    )
    git = MCPSection(
        "git",
        title="Git",
        lock=replace(lock, command=command),  # the server in this program's environment
        groups={
            "History": ["git_log", "git_show", "git_status"],
            "Commits": ["git_add", "git_commit"],
        },
        exclude=["git_reset"],
        folder=repository,
    )
    files = WorkspaceSection(title="Files", filesystem=lambda: HostFilesystem(repository))
    return PromptTemplate[Release](
        ns="examples", key="repository", sections=[task, files, git], name="repository_assistant"
    )
