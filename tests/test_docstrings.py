"""Names quoted in docstrings exist, so that renaming a parameter also updates its docstring."""

import ast
import keyword
import re
from collections.abc import Iterator
from pathlib import Path

import weakincentives

PACKAGE = Path(weakincentives.__file__).parent
OTHERS = {"true", "server_tool", "mcp__server__name", "n"}  # from JSON, MCP, and an API


def docstrings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, ast.get_docstring(node) or ""


def names_in(tree: ast.AST) -> set[str]:
    """Returns all names in a module's code, and the words in its strings except docstrings."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.keyword(arg=str(name)) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.alias(name=name):
                names.update(name.split("."))
            case ast.Constant(value=str(text)) if "`" not in text:
                names.update(re.findall(r"\w+", text))
            case _:
                pass
    return names


def shared_names_in(tree: ast.AST) -> set[str]:
    """Returns the names in a module that other modules may mention: no local variables."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.Constant(value=str(text)) if text.isidentifier():
                names.add(text)
            case _:
                pass
    return names


def unknown_names(trees: dict[str, ast.AST]) -> list[tuple[str, str, str]]:
    shared = set[str]().union(*map(shared_names_in, trees.values())) | {*keyword.kwlist} | OTHERS
    return [
        (module, function, name)
        for module, tree in trees.items()
        for known in [shared | names_in(tree)]
        for function, text in docstrings(tree)
        for name in re.findall(r"(?<!`)`([a-z_]+)`(?!`)", text)
        if name not in known
    ]


def test_docstrings_quote_names_that_exist() -> None:
    trees: dict[str, ast.AST] = {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }
    assert unknown_names(trees) == []
    renamed = ast.parse('def remove(removed, remaining):\n    """All but `kept`."""')
    assert unknown_names({**trees, "x.py": renamed}) == [("x.py", "remove", "kept")]
