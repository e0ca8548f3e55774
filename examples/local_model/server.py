"""Serves a GGUF file with llama.cpp inside this process, on a free port of 127.0.0.1."""

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["serve_model"]

_CONTEXT = 8192


@contextmanager
def serve_model(weights: Path) -> Generator[str]:
    """Yields the base URL of an OpenAI-compatible server for `weights`, which needs no key.

    The chat template is our own: models of this size write a fenced JSON block more reliably than
    their native call syntax.
    """
    # Any: the package has no types, and is often not installed
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.n_ctx = _CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = 2
    params.use_jinja = True
    template = Path(__file__).with_name("chat_template.jinja")
    params.chat_template = template.read_text(encoding="utf-8")
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    server = xllamacpp.Server(params)
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server  # its destructor stops it
