"""A small real language model in this process, served on 127.0.0.1; `make demo-local` runs it.

`weights` finds or downloads the file, `server` serves it. Needs the `local` extra. The tests do not
run this package.
"""

from .server import serve_model
from .weights import find_weights

__all__ = ["find_weights", "serve_model"]
