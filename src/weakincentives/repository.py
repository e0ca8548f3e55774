"""Finds the top of the repository, below which lock files and overrides are kept."""

from pathlib import Path

__all__ = ["MARKERS", "repository_root"]

MARKERS = (".weakincentives", ".git", "pyproject.toml")
"""The top of a repository has at least one of these."""


def repository_root(here: Path) -> Path | None:
    """Returns the nearest folder from `here` upwards that has one of `MARKERS`."""
    for folder in (here, *here.parents):
        if any((folder / marker).exists() for marker in MARKERS):
            return folder
    return None
