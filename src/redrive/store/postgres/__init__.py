"""The store for several machines: one Postgres database, redrive's tables in a schema of their own."""

from redrive.store.postgres.migrate import migration
from redrive.store.postgres.store import PostgresStore

__all__ = ["PostgresStore", "migration"]
