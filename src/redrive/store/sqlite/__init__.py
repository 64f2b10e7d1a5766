"""The embedded store: one SQLite file in WAL mode."""

from redrive.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
