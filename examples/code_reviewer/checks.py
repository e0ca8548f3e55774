"""Suspicious places in Python source, found without judgement: a reviewer reads them and decides.
Nothing is run.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Check", "Hint", "Project", "correctness", "security", "style", "tests"]

type Project = Mapping[str, ast.Module]
"""Modules by their paths."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A place to look at: what is odd there, and what is usually done instead."""

    path: str
    line: int
    odd: str
    instead: str


type Check = Callable[[Project], Iterator[Hint]]


def correctness(project: Project) -> Iterator[Hint]:
    """Find mutable default arguments and exceptions that are swallowed."""
    for path, node in _nodes(project):
        match node:
            case ast.arguments():
                for one in [*node.defaults, *node.kw_defaults]:
                    if isinstance(one, ast.List | ast.Dict | ast.Set):
                        yield Hint(
                            path,
                            one.lineno,
                            "all calls share one default",
                            "Default to None, make it inside.",
                        )
            case ast.ExceptHandler(type=None | ast.Name(id="Exception"), body=[ast.Pass()]):
                yield Hint(
                    path,
                    node.lineno,
                    "every error is swallowed",
                    "Catch what is expected, and tell of it.",
                )
            case _:
                pass


def security(project: Project) -> Iterator[Hint]:
    """Find text that is run as code or put into SQL."""
    for path, node in _nodes(project):
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec")):
                yield Hint(
                    path,
                    node.lineno,
                    "text is run as code",
                    "Parse what is allowed and refuse the rest.",
                )
            case ast.Call(
                func=ast.Attribute(attr="execute"), args=[ast.JoinedStr() | ast.BinOp(), *_]
            ):
                yield Hint(
                    path,
                    node.lineno,
                    "SQL is put together from text",
                    "Pass the values as parameters.",
                )
            case _:
                pass


def tests(project: Project) -> Iterator[Hint]:
    """Find public functions that no test names."""
    named = {
        getattr(node, "id", getattr(node, "attr", ""))
        for path, node in _nodes(project)
        if _of_tests(path)
    }
    for path, function in _public(project):
        if function.name not in named:
            yield Hint(
                path,
                function.lineno,
                f"no test names {function.name!r}",
                "Add a test of what it promises.",
            )


def style(project: Project) -> Iterator[Hint]:
    """Find public functions without a docstring."""
    for path, function in _public(project):
        if not ast.get_docstring(function):
            yield Hint(
                path,
                function.lineno,
                f"{function.name!r} has no docstring",
                "Say in a sentence what it does.",
            )


def _nodes(project: Project) -> Iterator[tuple[str, ast.AST]]:
    return ((path, node) for path, module in project.items() for node in ast.walk(module))


def _public(project: Project) -> Iterator[tuple[str, ast.FunctionDef]]:
    for path, node in _nodes(project):
        if (
            isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and not _of_tests(path)
        ):
            yield path, node


def _of_tests(path: str) -> bool:
    return any(part.startswith("test") for part in path.split("/"))
