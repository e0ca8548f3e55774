"""The `wink` command. Its entry; nothing else imports what lives here."""

from .entry import main

__all__ = ["main"]
