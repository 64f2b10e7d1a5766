"""The embedded store: one SQLite file in WAL mode."""

from redrive.store.sqlite.migrate import FileMigration
from redrive.store.sqlite.store import SqliteStore, exists_file

__all__ = ["FileMigration", "SqliteStore", "exists_file"]
