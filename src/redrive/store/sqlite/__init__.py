"""The embedded store: one SQLite file in WAL mode."""

from redrive.store.sqlite.store import SqliteStore, exists_file

__all__ = ["SqliteStore", "exists_file"]
