"""A star import of the engine's package has its names, although it imports them on first use."""

from typing import assert_type

from weakincentives.evaluation import *  # pyright: ignore[reportWildcardImportFromLibrary]  # noqa: F403

assert_type(MainLoop("openai:gpt-5.2"), MainLoop)  # noqa: F405

assert MainLop  # type: ignore[name-defined]  # pyright: ignore[reportUndefinedVariable]  # noqa: F405
