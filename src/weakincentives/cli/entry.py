"""The entry of `wink`, which turns failures into one line on stderr and an exit code."""

import sys
from io import TextIOWrapper
from typing import NoReturn

from ..errors import WeakIncentivesError, missing_extra

__all__ = ["main"]


def main() -> NoReturn:
    """Runs `wink` on the process's arguments and exits.

    Exit codes: 0 for success, 1 when a check found something or the provider failed, 2 when the
    command cannot do what its arguments say.
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
            stream.reconfigure(errors="replace")  # a terminal may lack a model's characters
    try:
        app(prog_name="wink")
    except (UsageError, WeakIncentivesError, ImportError, OSError) as error:
        if isinstance(error, PromptRenderError) and error.missing is not None:
            error.detail = f"On the command line, {how_to_set(error.missing)}"
        sys.stderr.write(f"wink: {single_line(str(error))}\n")
        sys.exit(1 if isinstance(error, PromptEvaluationError) else 2)
    sys.exit(0)
