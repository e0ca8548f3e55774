"""The reviewer's prompt: files to read, guidelines to open, and a tool to report findings."""

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from weakincentives import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.filesystem import FileStat, Filesystem, HostFilesystem
from weakincentives.prompt import HostMount, ToolHandler, ToolValidationError, WorkspaceSection

from .checks import Check, Hint, correctness, security, style, tests

__all__ = ["SAMPLE", "Finding", "Fix", "Review", "fixing", "reviewer", "sample"]

SAMPLE = Path(__file__).with_name("sample")


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect, stored in the session."""

    path: str = field(metadata={"description": "The file, as the workspace names it."})
    line: int = field(metadata={"description": "The line of the defect, counted from 1."})
    severity: Literal["blocker", "major", "minor"] = field(
        metadata={"description": "How much harm the defect does."}
    )
    title: str = field(metadata={"description": "The defect in a few words."})
    explanation: str = field(metadata={"description": "What goes wrong, and when."})
    suggestion: str = field(metadata={"description": "What to do instead."})


@dataclass(frozen=True, slots=True)
class Review:
    """The reviewer's verdict. Its findings are in the session."""

    verdict: Literal["approve", "request changes"]
    summary: str = field(metadata={"description": "The state of the code in one or two sentences."})


@dataclass(frozen=True, slots=True)
class Fix:
    """A change to one file."""

    path: str = field(metadata={"description": "The file, as the workspace names it."})
    old: str = field(metadata={"description": "The text to replace, which is there exactly once."})
    new: str = field(metadata={"description": "The text that takes its place."})


@dataclass(frozen=True, slots=True)
class Scan:
    glob: str = field(default="**/*.py", metadata={"description": "Which files to check."})
    limit: int = field(default=20, metadata={"description": "How many places to show at most."})


def report_finding(params: Finding, *, context: ToolContext) -> ToolResult[None]:
    """Report one defect at a line of a file."""
    files = context.resources.get(Filesystem)
    try:
        lines = files.read_text(params.path).removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:  # a missing file, not text, or an invalid path
        raise ToolValidationError(f"Not reported: {error}") from error
    if not 1 <= params.line <= len(lines):
        raise ToolValidationError(
            f"Not reported: {params.path!r} has {len(lines)} lines, so line {params.line} does "
            "not exist. Read the file."
        )
    context.session.dispatch(params)
    return ToolResult(message=f"Reported at: {lines[params.line - 1].strip()}")


def propose_fix(params: Fix, *, context: ToolContext) -> ToolResult[None]:
    """Propose a change to a file; the user sees it and decides."""
    files = context.resources.get(Filesystem)
    try:
        text = files.read_text(params.path)
    except (OSError, ValueError) as error:
        raise ToolValidationError(f"Not proposed: {error}") from error
    if (count := text.count(params.old) if params.old else 0) != 1:
        raise ToolValidationError(f"Not proposed: `old` is in {params.path!r} {count} times.")
    fixed = text.replace(params.old, params.new)
    if params.path.endswith(".py"):
        try:
            ast.parse(fixed)
        except (SyntaxError, ValueError) as error:
            raise ToolValidationError(f"Not proposed: it would not be Python: {error}") from error
    files.write_text(params.path, fixed)
    return ToolResult(message=f"Changed {params.path}.")


def scan(check: Check) -> ToolHandler[Scan, list[Hint]]:
    """Returns a tool handler that runs one check over the workspace."""

    def handler(params: Scan, *, context: ToolContext) -> ToolResult[list[Hint]]:
        files = context.resources.get(Filesystem)
        project: dict[str, ast.Module] = {}
        skipped: list[str] = []
        for file in files.glob(params.glob):
            try:
                project[file.path] = ast.parse(files.read_text(file.path))
            except (SyntaxError, ValueError):
                skipped.append(file.path)
        hints = list(check(project))
        note = f" Not Python: {', '.join(skipped)}." if skipped else ""
        return ToolResult(message=f"{len(hints)} places.{note}", value=hints[: params.limit])

    return handler


def guideline(check: Check, summary: str, template: str) -> MarkdownSection:
    """Returns a topic that stays closed until the model opens it, and then adds its tool."""
    topic = check.__name__
    return MarkdownSection(
        title=topic.capitalize(),
        summary=summary,
        template=template,
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool(name=f"check_{topic}", description=check.__doc__, handler=scan(check))],
    )


GUIDELINES = [
    guideline(
        correctness,
        "Where code does not do what it says: state, errors, edges.",
        "Ask of each function what it does with nothing, with one thing and with a wrong thing. "
        "Look for state that outlives a call, errors that nobody hears of, resources that stay "
        "open, and comments that the code belies.",
    ),
    guideline(
        security,
        "What a stranger's input can do: code, queries, paths, secrets.",
        "Follow every text that comes from outside to where it is used. It must never become code, "
        "SQL, a command or a path without a check. Say who could send such a text; if nobody "
        "could, it is not a blocker.",
    ),
    guideline(
        tests,
        "Which promises no test holds.",
        "A function without a test is worth a finding when it decides something: money, access, "
        "what is kept or deleted. Look also for tests that cannot fail, that share state, or that "
        "repeat the code they test.",
    ),
    guideline(
        style,
        "What makes the code hard to read: names, length, missing words.",
        "Report what hinders understanding, never mere taste: a name that misleads, a function "
        "that does two things, a promise that is not written down. One finding may speak for all "
        "others of its kind.",
    ),
]


class VisibleFiles(HostFilesystem):
    """A host folder without its hidden files and folders."""

    def list(self, path: str = ".", /) -> tuple[FileStat, ...]:
        return tuple(entry for entry in super().list(path) if not is_hidden(entry.path))

    def read_bytes(self, path: str, /) -> bytes:
        if is_hidden(path):
            raise FileNotFoundError(f"there is no {path!r}")
        return super().read_bytes(path)


def is_hidden(path: str) -> bool:
    """Whether any part of the path begins with a dot."""
    return any(part.startswith(".") and part != "." for part in path.split("/"))


def reviewer(root: Path) -> PromptTemplate[Review]:
    """Returns a reviewer for the project in `root`, which sees a copy without hidden files."""
    mount = HostMount(root, include=("**/*.py", "**/*.md", "**/*.toml"), exclude=("**/.*/**",))
    return _reviewer(WorkspaceSection(mounts=[mount], read_only=True))


def fixing(root: Path) -> PromptTemplate[Review]:
    """Returns a reviewer that also changes the files in `root`, after the user's approval."""
    fixes = MarkdownSection(
        title="Fixes",
        template=(
            "Propose a fix of each defect that you have reported, unless the remedy is the "
            "author's choice. If a fix is denied, continue with the next defect."
        ),
        tools=[
            Tool(name="propose_fix", handler=propose_fix, approval="effects", effect="repeatable")
        ],
    )
    files = WorkspaceSection(filesystem=lambda: VisibleFiles(root), read_only=True)
    return _reviewer(fixes, files)


def _reviewer(*sections: MarkdownSection[None] | WorkspaceSection) -> PromptTemplate[Review]:
    return PromptTemplate[Review](
        ns="examples/code",
        key="reviewer",
        sections=[
            MarkdownSection(
                title="Task",
                template=(
                    "Review the Python project in your workspace, topic by topic. "
                    "Then give your verdict."
                ),
            ),
            MarkdownSection(
                title="Findings",
                template=(
                    "Report each defect that you have seen in the code, at its line. A place that "
                    "a check finds need not be one. A blocker harms users or data, a major one "
                    "breaks a promise, a minor one costs time."
                ),
                tools=[Tool(name="report_finding", handler=report_finding)],
                state=[Finding],
            ),
            MarkdownSection(
                title="Guidelines",
                template="Open a topic before you review by it.",
                children=GUIDELINES,
            ),
            *sections,
        ],
    )


def sample() -> PromptTemplate[Review]:
    """Returns the reviewer for the sample: `wink check examples.code_reviewer.prompt:sample`."""
    return reviewer(SAMPLE)
