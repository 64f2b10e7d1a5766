"""The store for several machines: one Postgres database, redrive's tables in a schema of their own."""
