"""Finds suspicious places in Python source for a reviewer to judge. The source is never run."""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Check", "Hint", "Project", "correctness", "security", "style", "tests"]

type Project = Mapping[str, ast.Module]
"""Parsed modules by path."""


@dataclass(frozen=True, slots=True)
class Hint:
    """A place to look at, with a possible problem and its usual remedy."""

    path: str
    line: int
    problem: str
    remedy: str


type Check = Callable[[Project], Iterator[Hint]]


def correctness(project: Project) -> Iterator[Hint]:
    """Find mutable default arguments and exceptions that are swallowed."""
    for path, node in _nodes(project):
        match node:
            case ast.arguments():
                for default in [*node.defaults, *node.kw_defaults]:
                    if isinstance(default, ast.List | ast.Dict | ast.Set):
                        problem = "all calls share one default"
                        yield Hint(
                            path, default.lineno, problem, "Default to None, make it inside."
                        )
            case ast.ExceptHandler(type=None | ast.Name(id="Exception"), body=[ast.Pass()]):
                remedy = "Catch what is expected, and tell of it."
                yield Hint(path, node.lineno, "every error is swallowed", remedy)
            case _:
                pass


def security(project: Project) -> Iterator[Hint]:
    """Find text that is run as code or put into SQL."""
    for path, node in _nodes(project):
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec")):
                remedy = "Parse what is allowed and refuse the rest."
                yield Hint(path, node.lineno, "text is run as code", remedy)
            case ast.Call(
                func=ast.Attribute(attr="execute"), args=[ast.JoinedStr() | ast.BinOp(), *_]
            ):
                problem = "SQL is put together from text"
                yield Hint(path, node.lineno, problem, "Pass the values as parameters.")
            case _:
                pass


def tests(project: Project) -> Iterator[Hint]:
    """Find public functions that no test names."""
    names = {
        getattr(node, "id", getattr(node, "attr", ""))
        for path, node in _nodes(project)
        if _is_test(path)
    }
    for path, function in _public_functions(project):
        if function.name not in names:
            problem = f"no test names {function.name!r}"
            yield Hint(path, function.lineno, problem, "Add a test of what it promises.")


def style(project: Project) -> Iterator[Hint]:
    """Find public functions without a docstring."""
    for path, function in _public_functions(project):
        if not ast.get_docstring(function):
            problem = f"{function.name!r} has no docstring"
            yield Hint(path, function.lineno, problem, "Say in a sentence what it does.")


def _nodes(project: Project) -> Iterator[tuple[str, ast.AST]]:
    return ((path, node) for path, module in project.items() for node in ast.walk(module))


def _public_functions(project: Project) -> Iterator[tuple[str, ast.FunctionDef]]:
    for path, node in _nodes(project):
        if isinstance(node, ast.FunctionDef) and not (node.name.startswith("_") or _is_test(path)):
            yield path, node


def _is_test(path: str) -> bool:
    return any(part.startswith("test") for part in path.split("/"))
