"""Where everything durable lives: one database, one transaction with facets."""
