"""Recording events without getting in the way: a queue in memory, a file for bad times, limits, quiet and strict."""
