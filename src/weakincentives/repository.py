"""Finds the root of the repository, under which lock files and overrides are stored."""

from pathlib import Path

__all__ = ["MARKERS", "repository_root"]

MARKERS = (".weakincentives", ".git", "pyproject.toml")
"""The root of a repository contains at least one of these."""


def repository_root(here: Path) -> Path | None:
    """Returns the nearest folder, from `here` upwards, that contains one of `MARKERS`."""
    for folder in (here, *here.parents):
        if any((folder / marker).exists() for marker in MARKERS):
            return folder
    return None
