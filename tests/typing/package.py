"""The installed package is typed: a checker reads its source instead of taking it for Any."""

from typing import assert_type

import weakincentives

assert_type(weakincentives.__name__, str)
