"""Warnings that Inspect's own code causes fail neither these tests nor those of its page."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

_PAGE = "evaluate-with-other-tools.md"
_KNOWN = (
    "ignore:The 'initial' parameter is deprecated:DeprecationWarning",  # of its retries
    "ignore:Unclosed <MemoryObject:ResourceWarning",  # it leaves streams of its tasks open
    "ignore::pytest.PytestUnraisableExceptionWarning",  # how pytest reports those
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) or item.path.name == _PAGE:
            item.add_marker(pytest.mark.filterwarnings(*_KNOWN))


def _collect() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Collects objects here, where the warnings are expected, and not in other tests."""
    yield
    _collect()


def pytest_sessionfinish() -> None:
    """Collects what the page left behind."""
    _collect()
