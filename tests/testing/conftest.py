"""Fixtures of the tests of what prompt authors use."""

import pytest

from support.authors import Author


@pytest.fixture
def author(pytester: pytest.Pytester) -> Author:
    return Author(pytester)
