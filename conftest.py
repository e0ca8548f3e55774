"""Isolates the tests from the network, and turns the docs' code blocks into tests.

Fixtures are not defined here, but next to the tests that use them. Autouse fixtures do not apply to
Sybil's code blocks, so setup that the blocks also need runs when this module is imported.
"""

import atexit
import gc
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from importlib.util import find_spec
from operator import itemgetter
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

from support.sizes import FULL, limit_examples
from weakincentives.network_guard import guard_network

# The tests of our own plugin use `pytester` to run pytest inside a test.
pytest_plugins = ["pytester", "weakincentives.pytest_plugin"]

# --- Isolation: remove the proxies, keys and base URLs of whoever runs the tests.
for _name in list(os.environ):
    if _name.upper().startswith(("ANTHROPIC_", "OPENAI_")) or _name.upper().endswith("_PROXY"):
        del os.environ[_name]

# Use no system certificates either: no test connects to a host that needs them, and loading them
# takes 50 ms per client.
os.environ |= {"SSL_CERT_FILE": "", "SSL_CERT_DIR": os.devnull}

# From here on, even while modules are imported, block connections and name lookups that would leave
# this machine.
_refusal = ExitStack()
_refusal.enter_context(guard_network(refuse=True))
atexit.register(_refusal.close)

# Write bytecode even if the user has disabled it: the tests start hundreds of processes, each of
# which would otherwise compile everything that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collection creates hundreds of thousands of objects that live as long as the process, so pause the
# garbage collector; `pytest_collection_finish` below enables it again.
gc.disable()

# --- Test selection: see `support.sizes`, and `make slow-tests` for `-m "not slow"`.
# On a shared machine, the time of a single example is meaningless.
settings.register_profile("house", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))
_ROOT = Path(__file__).parent
_SLOW_TESTS = _ROOT / "tests/slow.txt"
_SLOW = frozenset(_SLOW_TESTS.read_text(encoding="utf-8").splitlines())
"""Slow files, and the slow functions of files that also have quick ones."""


_STARTED = set[str]()
"""The files whose tests have begun."""


def _function_of(nodeid: str) -> str:
    """The test function without its parameters, or a code block's file, which runs as a whole."""
    return re.split(r"\[|::line:", nodeid)[0]


def _file_of(name: str) -> str:
    return name.split("::", maxsplit=1)[0]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips importing a file if all its tests are slow and slow tests are deselected."""
    without_slow = config.getoption("-m") == "not slow"
    name = collection_path.relative_to(_ROOT).as_posix()
    return True if without_slow and name in _SLOW else None


def _freeze() -> None:
    """Lets the collector skip all objects; on 3.14, Hypothesis needs it to find referrers."""
    if sys.version_info < (3, 14):
        gc.freeze()


def pytest_collection_finish() -> None:
    """Enables the garbage collector again; it skips the objects that collection created."""
    _freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Collects garbage at the start of each test file, and lets later collections skip the rest."""
    if (file := _file_of(nodeid)) not in _STARTED:
        _STARTED.add(file)
        gc.collect()
        _freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks slow tests, and limits how many examples each law runs."""
    for item in items:
        name = _function_of(item.nodeid)
        if name in _SLOW or _file_of(name) in _SLOW:
            item.add_marker(pytest.mark.slow)
        if not FULL:
            limit_examples(getattr(item, "obj", None), getattr(item, "cls", None))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that `make slow-tests` uses."""
    parser.addoption(
        "--list-slow",
        metavar="SECONDS",
        type=float,
        help="list the slowest tests in tests/slow.txt, so that the others take SECONDS in total",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes the list of slow tests for `make slow-tests`."""
    left: float | None = terminalreporter.config.getoption("--list-slow")
    if left is None:
        return
    spent = defaultdict[str, float](float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                spent[_function_of(report.nodeid)] += report.duration
    slow: set[str] = set()
    for name, seconds in sorted(spent.items(), key=itemgetter(1)):
        left -= seconds
        if left < 0:
            slow.add(name)
    with_quick = {_file_of(name) for name in spent.keys() - slow}
    lines = {name if _file_of(name) in with_quick else _file_of(name) for name in slow}
    _SLOW_TESTS.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")


# --- Docs: every ```python block runs in order, in one namespace per file, and so does every
# ```console block.
class _Page(Document):
    """A Markdown file whose blocks run in their own module.

    The module is a real one, so that classes defined in a block can be pickled and their
    annotations resolved. Commands run in `folder`. It contains, as files, the Python and YAML
    blocks that start with a comment such as `# shop.py`.
    """

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        self.folder = Path(mkdtemp())
        atexit.register(rmtree, self.folder, ignore_errors=True)
        (self.folder / ".weakincentives").mkdir()  # like the root of a repository
        for name, source in re.findall(
            r"^```(?:python|yaml)\n# (\w+\.(?:py|yaml))\n(.*?)^```", text, re.MULTILINE | re.DOTALL
        ):
            (self.folder / name).write_text(source, encoding="utf-8")
        relative = Path(path).relative_to(Path(__file__).parent).with_suffix("")
        module = ModuleType("page_" + "_".join(relative.parts).replace("-", "_"))
        sys.modules[module.__name__] = module
        self.namespace = module.__dict__


_blocks = PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)


def _blocks_without_prompts(document: Document) -> Iterable[Region]:
    """Fenced blocks of a docstring, except ``>>>`` blocks, which the doctest parser handles."""
    return (region for region in _blocks(document) if isinstance(region.parsed, str))


def _blocks_but_tests(document: Document) -> Iterable[Region]:
    """Python blocks of a page, except scripts that the page's commands run.

    A script that does nothing when it is imported runs too, so that later blocks see its names.
    """
    for region in _blocks(document):
        text = str(region.parsed)
        name = re.match(r"# (\w+\.py)\n", text)
        if (
            name is None
            or 'if __name__ == "__main__":' in text
            or not re.search(rf"^\$ python (-m pytest .*)?{name[1]}", document.text, re.MULTILINE)
        ):
            yield region


def _run_commands(example: Example) -> str | None:
    """Runs each command of a console block as a process and compares its output with the block.

    In the block, `...` matches any text.
    """
    assert isinstance(example.document, _Page)  # only pages have these parsers
    python = f'python() {{ "{sys.executable}" "$@"; }}; '
    wink = f'{python}wink() {{ python -m weakincentives.cli "$@"; }}; '
    path = os.pathsep.join([str(Path(__file__).parent / "src"), *sys.path])
    # the commands must not see this test run's own variables
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for command, shown in re.findall(
        r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", f"{example.parsed}\n", re.MULTILINE
    ):
        done = subprocess.run(  # noqa: S603 - the commands are from our own pages
            ["/bin/sh", "-c", wink + command],
            cwd=example.document.folder,
            env=outside
            | {
                "PYTHONPATH": path,
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "COLUMNS": "160",
                # load our plugin by its module, so that it also works in a bare checkout
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


# Pages that need a package which has an environment of its own; see `make test-durable` and
# `make test-inspect`.
_PAGES = {
    "dbos": ["docs/how-to/durable-runs.md", "docs/how-to/many-workers.md"],
    "inspect_ai": ["docs/how-to/evaluate-with-other-tools.md"],
}
collect_ignore = [page for name in _PAGES if find_spec(name) is None for page in _PAGES[name]]

pytest_collect_file = (
    Sybil(
        parsers=[_blocks_but_tests, CodeBlockParser("console", _run_commands)],
        patterns=["*.md"],
        document_types={".md": _Page},
    )
    + Sybil(
        parsers=[DocTestParser(ELLIPSIS), _blocks_without_prompts],
        # Sybil uses Path.match, which treats `**` as `*`, so each depth needs its own pattern.
        patterns=[f"src/weakincentives/{'*/' * depth}*.py" for depth in range(4)],
        document_types={".py": PythonDocStringDocument},
    )
).pytest()
