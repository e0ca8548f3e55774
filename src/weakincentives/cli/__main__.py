"""Runs `wink` as `python -m weakincentives.cli`."""

from .entry import main

main()
