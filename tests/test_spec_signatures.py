"""The signatures in backticks in specs match the code.

A signature names existing parameters. If it has two or more parameters, it also gives their actual
defaults, and is complete unless one of its parts is `…`.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import weakincentives
from weakincentives.prompt import RenderedPrompt

ROOT = Path(__file__).parent.parent
PACKAGE = Path(weakincentives.__file__).parent
SPECS = sorted((ROOT / "specs").glob("*.md"))
SIGNATURE = re.compile(r"`(?:[\w.]+\.)?(\w+)(?:\[[^`]*?\])?\(([^`]*)\)(?: -> [^`]+)?`")
# Functions that users write.
USERS = {"accept", "handler", "elicit", "elicit_request", "f"}


@cache
def callables() -> dict[str, list[inspect.Signature]]:
    """Returns the signatures of public functions, classes and their methods by name."""
    found: dict[str, list[inspect.Signature]] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if "__main__" in parts or parts[1:] == ("inspection", "runs"):  # a former name
            continue
        try:
            module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        except ImportError:
            continue  # its extra is not installed in this environment
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            members = vars(value).items() if inspect.isclass(value) else ()
            for key, member in [(name, value), *members]:
                target = getattr(member, "__func__", member)
                if callable(target):
                    found.setdefault(key, []).extend(signatures(target))
    return found


def signatures(target: Callable[..., object]) -> Iterator[inspect.Signature]:
    try:
        yield inspect.signature(target)
    except (ValueError, TypeError):
        return


def problems(arguments: ast.arguments, *, partial: bool, real: inspect.Signature) -> list[str]:
    """Returns what the written parameters say that the real signature does not."""
    parameters = {name: it for name, it in real.parameters.items() if name not in ("self", "cls")}
    is_open = any(it.kind is it.VAR_KEYWORD for it in parameters.values())
    positional = [*arguments.posonlyargs, *arguments.args]
    given = [*positional, *arguments.kwonlyargs]
    defaults = dict(
        zip((it.arg for it in reversed(positional)), reversed(arguments.defaults), strict=False)
    ) | dict(zip((it.arg for it in arguments.kwonlyargs), arguments.kw_defaults, strict=True))
    names = [it.arg for it in given]
    found = [f"{name} does not exist" for name in names if name not in parameters and not is_open]
    if len(names) < 2 or found:
        return found
    for name, node in defaults.items():
        if isinstance(node, ast.Constant | ast.Tuple) and name in parameters:
            default = parameters[name].default
            if ast.literal_eval(node) not in (..., default):
                found.append(f"{name} is {default!r} by default")
    stated = [node for node in defaults.values() if node is not None]
    whole = bool(arguments.kwonlyargs) or any(ast.unparse(node) != "..." for node in stated)
    if whole and not partial:
        found += [f"{name} is missing" for name in parameters if name not in names]
    return found


def test_spec_lists_the_fields_of_rendered_prompt() -> None:
    text = (ROOT / "specs/RENDERING.md").read_text()
    listed = text.partition("`RenderedPrompt` is frozen. Its fields are")[2].partition(";")[0]
    names = [field.name for field in fields(RenderedPrompt) if not field.name.startswith("_")]
    assert re.findall(r"`(\w+)`", listed) == names


@pytest.mark.claim("N-32")
@pytest.mark.parametrize("page", SPECS, ids=lambda page: page.stem)
def test_signatures_in_specs_match_the_code(page: Path) -> None:
    faults: list[str] = []
    for name, text in SIGNATURE.findall(page.read_text()):
        parts = [part.strip() for part in " ".join(text.split()).split(", ")]
        written = ", ".join(part for part in parts if part != "…").replace("…", "...")
        try:
            function = ast.parse(f"def f({written}): ...").body[0]
        except SyntaxError:
            continue  # an example of a call
        assert isinstance(function, ast.FunctionDef)
        real = callables().get(name, [])
        examples = [it.arg for it in function.args.args if it.arg[0].isupper()]
        if name in USERS or examples or not real:
            continue
        found = [problems(function.args, partial="…" in parts, real=it) for it in real]
        if all(found):
            faults.append(f"{name}({text}): {min(found, key=len)}")
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)
