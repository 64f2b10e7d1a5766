"""The store for several machines: one Postgres database, redrive's tables in a schema of their own."""

from redrive.store.postgres.migrate import migration
from redrive.store.postgres.store import PostgresStore, exists

__all__ = ["PostgresStore", "exists", "migration"]
