"""A headless Chromium for tests; without it, they are skipped with a reason that names the cause.

With `WEB_TESTS=required`, as in the gate, they fail instead.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Never

import pytest

__all__ = ["AnyPage", "load", "open_browser", "skip"]

type AnyPage = Any  # Any: the driver is not installed where types are checked
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def skip(reason: str) -> Never:
    """Skips a test, or fails it where skipping is not allowed."""
    if os.environ.get("WEB_TESTS") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def load(name: str) -> Any:  # Any: as above
    """Returns a module that is only installed by `make test-web`."""
    try:
        return import_module(name)
    except ImportError:
        skip(f"run `make test-web`: {name} is not installed")


@contextmanager
def open_browser() -> Generator[Any]:  # Any: as above
    """Yields a Playwright browser that runs this machine's Chromium."""
    driver = load("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        skip("no Chromium is installed: install it, or name it in CHROMIUM")
    with driver.sync_playwright() as playwright:
        # containers run as root, where the sandbox does not start
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
