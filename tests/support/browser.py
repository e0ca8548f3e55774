"""A headless Chromium for tests; without one they are skipped with a word on what is missing."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["AnyPage", "open_browser"]

type AnyPage = Any  # Any: the driver is not installed where types are checked
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextmanager
def open_browser() -> Generator[Any]:  # Any: as above
    """Yields a browser of Playwright that runs the Chromium of this machine."""
    driver = pytest.importorskip("playwright.sync_api", reason="run `make test-web`: no Playwright")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is installed: install it, or name it in CHROMIUM")
    with driver.sync_playwright() as playwright:
        # containers run as root, where the sandbox does not start
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
