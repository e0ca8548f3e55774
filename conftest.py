"""What holds for every test: nothing leaves this machine, and the documents' code blocks are tests too.

Fixtures do not live here; they stand beside the tests that need them. Sybil's blocks see no autouse fixtures, so what
must hold for them as well happens when this module is imported.
"""

import os
import sys
from collections.abc import Iterable
from doctest import ELLIPSIS
from pathlib import Path
from types import ModuleType

from hypothesis import settings
from sybil import Document, Region, Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

# --- This machine: no proxies, no keys and no addresses of the person who runs the tests.
for _name in list(os.environ):
    if _name.upper().startswith(("ANTHROPIC_", "OPENAI_")) or _name.upper().endswith("_PROXY"):
        del os.environ[_name]


def _stay_here(event: str, args: tuple[object, ...]) -> None:
    """Refuse connections and look-ups that would leave the loopback interface."""
    match event, args:
        case "socket.connect", (_, (host, *_)):
            pass
        case "socket.getaddrinfo", (host, *_):
            pass
        case _:
            return
    name = host.decode() if isinstance(host, bytes) else host
    if name not in {None, "", "localhost", "127.0.0.1", "::1"}:
        raise RuntimeError(f"a test tried to reach {name!r}; tests talk to 127.0.0.1 alone")


sys.addaudithook(_stay_here)

# --- Hypothesis: time per example says nothing on a shared machine.
settings.register_profile("house", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))


# --- Documents: every ```python block runs, in order, in one namespace a file.
class _Page(Document):
    """A Markdown file whose blocks run in a module of their own.

    A real module, so that classes defined in a block can be pickled and their annotations resolved.
    """

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        relative = Path(path).relative_to(Path(__file__).parent).with_suffix("")
        module = ModuleType("page_" + "_".join(relative.parts).replace("-", "_"))
        sys.modules[module.__name__] = module
        self.namespace = module.__dict__


_blocks = PythonCodeBlockParser(doctest_optionflags=ELLIPSIS)


def _blocks_without_prompts(document: Document) -> Iterable[Region]:
    """Fenced blocks of a docstring, leaving those that start with ``>>>`` to the doctest parser."""
    return (region for region in _blocks(document) if isinstance(region.parsed, str))


pytest_collect_file = (
    Sybil(
        parsers=[_blocks],
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
