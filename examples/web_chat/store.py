"""Chats in SQLite, one row each; a write replaces only the version that was read."""

import sqlite3
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

__all__ = ["ChatStore", "StaleChatError", "Status", "StoredChat"]

type Status = Literal["ready", "running", "waiting", "stopped", "failed"]

_TABLE = """
CREATE TABLE IF NOT EXISTS chats (
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, status TEXT NOT NULL,
    snapshot TEXT NOT NULL, messages TEXT NOT NULL, pending TEXT NOT NULL,
    suspension TEXT NOT NULL)
"""
_COLUMNS = "version", "status", "snapshot", "messages", "pending", "suspension"
_INSERT = """
INSERT INTO chats (version, status, snapshot, messages, pending, suspension, id)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""
_UPDATE = """
UPDATE chats SET version = ?, status = ?, snapshot = ?, messages = ?, pending = ?, suspension = ?
WHERE id = ? AND version = ?
"""


class StaleChatError(Exception):
    """The chat was continued elsewhere after it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChat:
    """A chat: the session's `snapshot`, and its AG-UI `messages` as JSON.

    `pending` is a user message that is not in the snapshot yet. `suspension` is the JSON of a turn
    that is suspended until the user decides.
    """

    version: int = 0
    status: Status = "ready"
    snapshot: str = ""
    messages: str = "[]"
    pending: str = ""
    suspension: str = ""


class ChatStore:
    """The chats in one database file, keyed by their browsers' secrets.

    The file contains only digests of the secrets, so anyone who can read it can read the chats but
    not continue them.
    """

    def __init__(self, path: Path | str) -> None:
        # calls are short, and all come from the event loop
        self._database = sqlite3.connect(path, autocommit=True)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(_TABLE)

    def load(self, secret: str) -> StoredChat:
        """Returns the chat, or a new one."""
        query = f"SELECT {', '.join(_COLUMNS)} FROM chats WHERE id = ?"  # noqa: S608 - our names
        row = self._database.execute(query, [_digest(secret)]).fetchone()
        return StoredChat() if row is None else StoredChat(**dict(zip(_COLUMNS, row, strict=True)))

    def save(self, secret: str, chat: StoredChat) -> StoredChat:
        """Replaces the version that the chat was read from; returns the chat as stored.

        Raises `StaleChatError` if that version has been replaced in the meantime.
        """
        new = replace(chat, version=chat.version + 1)
        values = *(getattr(new, column) for column in _COLUMNS), _digest(secret)
        if chat.version == 0:
            written = self._database.execute(_INSERT, values)
        else:
            written = self._database.execute(_UPDATE, (*values, chat.version))
        if written.rowcount != 1:
            raise StaleChatError("The chat was continued in another window; reload the page.")
        return new

    def close(self) -> None:
        """Closes the database."""
        self._database.close()


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
