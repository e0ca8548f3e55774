"""`python -m weakincentives.cli` is `wink`."""

from .entry import main

main()
