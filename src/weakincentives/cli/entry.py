"""The entry point of `wink`, which reports failures as one line on stderr and an exit code."""

import sys
from io import TextIOWrapper
from typing import NoReturn

from ..errors import WeakIncentivesError, missing_extra

__all__ = ["main"]


def main() -> NoReturn:
    """Runs `wink` with the process's arguments and exits.

    The exit code is 0 for success, 1 if a check found a problem or the provider failed, and 2 if
    the command cannot be executed with these arguments.
    """
    try:
        from .app import app
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{missing_extra('wink', str(error.name), 'cli')}\n")
        sys.exit(2)
    from ..evaluation.errors import PromptEvaluationError
    from ..prompt.errors import PromptRenderError
    from .printing import single_line
    from .target import UsageError, how_to_set

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # the terminal may not support all characters
    try:
        app(prog_name="wink")
    except (UsageError, WeakIncentivesError, ImportError, OSError) as error:
        if isinstance(error, PromptRenderError) and error.missing is not None:
            error.detail = f"On the command line, {how_to_set(error.missing)}"
        sys.stderr.write(f"wink: {single_line(str(error))}\n")
        sys.exit(1 if isinstance(error, PromptEvaluationError) else 2)
    sys.exit(0)
