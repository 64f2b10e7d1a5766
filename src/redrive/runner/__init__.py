"""The moving parts: loops that take in, call, decide and settle."""
