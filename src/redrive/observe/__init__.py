"""Seeing what happens: typed signals, and the listeners that turn them into logs and metrics."""
