"""Keeps every test on this machine, and makes tests of the documents' code blocks.

Fixtures do not live here; they stand beside the tests that need them. Sybil's blocks see no autouse
fixtures, so what must hold for them as well happens when this module is imported.
"""

import atexit
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import ModuleType

import pytest
from hypothesis import settings
from sybil import Document, Example, Region, Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

from weakincentives.network_guard import guard_network

# `pytester` runs pytest within a test, for the tests of our own plugin.
pytest_plugins = ["pytester", "weakincentives.pytest_plugin"]

# --- This machine: no proxies, no keys and no addresses of the person who runs the tests.
for _name in list(os.environ):
    if _name.upper().startswith(("ANTHROPIC_", "OPENAI_")) or _name.upper().endswith("_PROXY"):
        del os.environ[_name]

# Nor certificates: no test goes where they are asked for, and reading the system's takes each
# client 50 ms.
os.environ |= {"SSL_CERT_FILE": "", "SSL_CERT_DIR": os.devnull}

# No connection and no look-up of a name leaves it, from here on: while modules are imported, too.
_refusal = ExitStack()
_refusal.enter_context(guard_network(refuse=True))
atexit.register(_refusal.close)

# --- Hypothesis: time per example says nothing on a shared machine.
settings.register_profile("house", deadline=None)
# for a second Python, after one on which all examples ran
settings.register_profile("second", settings.get_profile("ci"), max_examples=40)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))

# --- What takes minutes, most of it in other processes, and depends little on Python's version.
_SLOW = (
    "docs/examples.md",
    "docs/how-to/",
    "tests/adapters/anthropic/test_anthropic_conformance.py",
    "tests/adapters/test_deadlines.py",
    "tests/adapters/test_faults.py",
    "tests/adapters/test_hostile_replies.py",
    "tests/cli",
    "tests/contrib/mcp",
    "tests/contrib/skills",
    "tests/examples",
    "tests/filesystem",
    "tests/prompt/overrides",
    "tests/test_benchmarks.py",
    "tests/test_docs.py",
    "tests/test_soak.py",
    "tests/test_typing.py",
    "tests/testing",
    "tests/web",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks slow tests, so that `-m "not slow"` leaves them out."""
    root = Path(__file__).parent
    for item in items:
        if item.path.relative_to(root).as_posix().startswith(_SLOW):
            item.add_marker(pytest.mark.slow)


# --- Documents: every ```python block runs, in order, in one namespace a file; so does every
# ```console block.
class _Page(Document):
    """A Markdown file whose blocks run in a module of their own.

    A real module, so that classes defined in a block can be pickled and their annotations resolved.
    Commands run in `folder`, which holds the Python blocks that start with a comment such as `#
    shop.py` as files.
    """

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        self.folder = Path(mkdtemp())
        atexit.register(rmtree, self.folder, ignore_errors=True)
        (self.folder / ".weakincentives").mkdir()  # as the top of a repository has it
        for name, source in re.findall(
            r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL
        ):
            (self.folder / name).write_text(source, encoding="utf-8")
        relative = Path(path).relative_to(Path(__file__).parent).with_suffix("")
        module = ModuleType("page_" + "_".join(relative.parts).replace("-", "_"))
        sys.modules[module.__name__] = module
        self.namespace = module.__dict__


_blocks = PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)


def _blocks_without_prompts(document: Document) -> Iterable[Region]:
    """Fenced blocks of a docstring, leaving those that start with ``>>>`` to the doctest parser."""
    return (region for region in _blocks(document) if isinstance(region.parsed, str))


def _blocks_but_tests(document: Document) -> Iterable[Region]:
    """Python blocks of a page, without the files of tests that its commands give to pytest."""
    for region in _blocks(document):
        name = re.match(r"# (test_\w+\.py)\n", str(region.parsed))
        if name is None or not re.search(
            rf"^\$ python -m pytest .*{name[1]}", document.text, re.MULTILINE
        ):
            yield region


def _run_commands(example: Example) -> str | None:
    """Runs each command of a console block as a process and compares what it prints.

    There `...` stands for anything.
    """
    assert isinstance(example.document, _Page)  # noqa: S101 - parsers are given to pages alone
    python = f'python() {{ "{sys.executable}" "$@"; }}; '
    wink = f'{python}wink() {{ python -m weakincentives.cli "$@"; }}; '
    path = os.pathsep.join([str(Path(__file__).parent / "src"), *sys.path])
    # nor this run's
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for command, shown in re.findall(
        r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", f"{example.parsed}\n", re.MULTILINE
    ):
        done = subprocess.run(  # noqa: S603 - commands of our own pages
            ["/bin/sh", "-c", wink + command],
            cwd=example.document.folder,
            env=outside
            | {
                "PYTHONPATH": path,
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "COLUMNS": "160",
                # our plugin by its module, so that a bare checkout has it too
                "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:weakincentives "
                "-p weakincentives.pytest_plugin",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        if not OutputChecker().check_output(
            shown.strip(), done.stdout.strip(), ELLIPSIS | NORMALIZE_WHITESPACE
        ):
            return f"{command!r} printed\n{done.stdout}"
    return None


# Pages whose commands need DBOS, which `make test-durable` has.
collect_ignore = (
    [] if find_spec("dbos") else ["docs/how-to/durable-runs.md", "docs/how-to/many-workers.md"]
)

pytest_collect_file = (
    Sybil(
        parsers=[_blocks_but_tests, CodeBlockParser("console", _run_commands)],
        patterns=["*.md"],
        document_types={".md": _Page},
    )
    + Sybil(
        parsers=[DocTestParser(ELLIPSIS), _blocks_without_prompts],
        # Path.match, by which Sybil goes, reads `**` as `*`: each depth has its own pattern.
        patterns=[f"src/weakincentives/{'*/' * depth}*.py" for depth in range(4)],
        document_types={".py": PythonDocStringDocument},
    )
).pytest()
