"""Fixtures for tests of the tools for prompt authors."""

import pytest

from support.authors import Author


@pytest.fixture
def author(pytester: pytest.Pytester) -> Author:
    return Author(pytester)
