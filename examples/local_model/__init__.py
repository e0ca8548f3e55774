"""A small real language model, run in this process and served on 127.0.0.1: opt-in, by `make
demo-local`.

`weights` finds or fetches the file, `server` serves it. Needs the extra `local`. Nothing here runs
in the tests.
"""

from .server import serve_model
from .weights import find_weights

__all__ = ["find_weights", "serve_model"]
